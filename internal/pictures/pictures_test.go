package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/internal/codingagent"
	"gaia/internal/usermanager"
)

func TestMain(m *testing.M) {
	codingagent.Install()
	usermanager.Main(m)
}

// TestPicturesCanBeTakenAnew takes all of them, and sees that none tells of the machine that it was taken on.
func TestPicturesCanBeTakenAnew(t *testing.T) {
	codingagent.Need(t, codingagent.Claude)
	host, err := os.Hostname()
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, pictures(&out))
	archive, names := tar.NewReader(&out), []string{}
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		drawn, err := io.ReadAll(archive)
		require.NoError(t, err)
		names = append(names, header.Name)
		require.Contains(t, string(drawn), "SHOP", header.Name)
		for _, word := range []string{os.TempDir(), "@" + host, os.Getenv("USER"), "/run/user"} {
			require.NotContains(t, string(drawn), word, header.Name)
		}
	}
	require.Equal(t, []string{"board.svg", "status.svg", "attach.svg"}, names)
}

func TestParse(t *testing.T) {
	t.Parallel()
	plain := func(s string) (row []cell) {
		for _, r := range s {
			row = append(row, cell{text: string(r)})
		}
		return row
	}
	for name, c := range map[string]struct {
		screen string
		want   [][]cell
	}{
		"text":                  {"ab\nc\n", [][]cell{plain("ab"), plain("c")}},
		"looks hold over lines": {"\x1b[1ma\nb\x1b[0mc", [][]cell{{{"a", style{bold: true}}}, {{"b", style{bold: true}}, {text: "c"}}}},
		"sixteen colours":       {"\x1b[31;102ma\x1b[39;49mb", [][]cell{{{"a", style{fore: palette[1], back: palette[10]}}, {text: "b"}}}},
		"256 colours":           {"\x1b[38;5;208ma\x1b[48;5;232mb\x1b[38;5;7mc", [][]cell{{{"a", style{fore: "#ff8700"}}, {"b", style{fore: "#ff8700", back: "#080808"}}, {"c", style{fore: palette[7], back: "#080808"}}}}},
		"all colours":           {"\x1b[38;2;1;2;300ma", [][]cell{{{"a", style{fore: "#0102ff"}}}}},
		"other looks":           {"\x1b[2;3;4;7ma\x1b[22;23;24;27mb", [][]cell{{{"a", style{faint: true, italic: true, underline: true, invert: true}}, {text: "b"}}}},
		"no parameter":          {"\x1b[7ma\x1b[mb", [][]cell{{{"a", style{invert: true}}, {text: "b"}}}},
		"wide and combined":     {"日e\u0301", [][]cell{{{text: "日"}, {text: ""}, {text: "e\u0301"}}}},
		"other sequences":       {"\x1b[2Ja\x1b]8;;https://x\x1b\\b\x0e", [][]cell{plain("ab")}},
		"cut off":               {"a\x1b[3", [][]cell{plain("a")}},
		"cut off colour":        {"\x1b[38;5ma\x1b[38mb", [][]cell{{{"a", style{fore: palette[0]}}, {"b", style{}}}}},
	} {
		require.Equal(t, c.want, parse(c.screen), name)
	}
}

func TestSVG(t *testing.T) {
	t.Parallel()
	drawn := string(svg("a & b", "  <x>  \x1b[42my  \x1b[0m\n\x1b[7m \x1b[0m   \n\n"))
	require.Contains(t, drawn, "<title>a &amp; b</title>")
	require.Contains(t, drawn, `<text x="30.8" y="28" textLength="25.2">&lt;x&gt;</text>`)
	require.Contains(t, drawn, `<rect x="72.8" y="14" width="25.2" height="18" fill="`+palette[2]+`"/>`)
	require.Contains(t, drawn, `<rect x="14.0" y="32" width="8.4" height="18" fill="`+foreground+`"/>`, "a cursor")
	require.Contains(t, drawn, `height="64"`, "empty lines at the end are not drawn")
	require.Equal(t, 2, strings.Count(drawn, "<text "))
}

func TestAnonymous(t *testing.T) {
	t.Parallel()
	require.Equal(t, "in /home/ada/shop    | gaia-run-1.service \x1b[0m|", anonymous("in /tmp/t1-2345/shop | tabcd-run-1.service\x1b[0m|", "/tmp/t1-2345", "tabcd"))
}
