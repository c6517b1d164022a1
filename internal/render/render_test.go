package render

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

func rows(t *testing.T, width int, headings []string, rows [][]string) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, Rows(&b, width, headings, rows))
	return b.String()
}

func TestRows(t *testing.T) {
	t.Parallel()
	data := func() [][]string {
		return [][]string{{"SHOP-1", "日本語", "x"}, {"SHOP-22", "ab\x1b[31m\u202e", "a long title that is cut"}, {"S", "🐛", ""}}
	}
	require.Equal(t, `TICKET   NAME      TITLE
SHOP-1   日本語    x
SHOP-22  ab [31m   a long title that is cut
S        🐛
`, rows(t, 0, []string{"TICKET", "NAME", "TITLE"}, data()))
	require.Equal(t, `TICKET   NAME      TITLE
SHOP-1   日本語    x
SHOP-22  ab [31m   a lon…
S        🐛
`, rows(t, 25, []string{"TICKET", "NAME", "TITLE"}, data()))
	require.Equal(t, "A  B\n", rows(t, 0, []string{"A", "B"}, nil))
	require.Equal(t, "…\n", rows(t, 1, []string{"AB", "B"}, nil))
}

func TestFitAndPad(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		s     string
		width int
		want  string
	}{
		{"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"abc", 0, ""}, {"abc", -1, ""}, {"abc", 1, "…"}, {"日本", 4, "日本"},
		{"日本語", 5, "日本…"}, {"日本", 3, "日…"}, {"日本", 2, "…"}, {"日", 1, "…"}, {"e\u0301e\u0301", 2, "e\u0301e\u0301"}, {"", 5, ""}, {"\u0300", 0, "\u0300"}, {"\u0300", -1, ""},
	} {
		require.Equal(t, c.want, Fit(c.s, c.width), "%q in %d", c.s, c.width)
	}
	require.Equal(t, "日 ", Pad("日", 3))
	require.Equal(t, "日本", Pad("日本", 3))
}

// TestFitNeverExceeds: whatever the text is.
func TestFitNeverExceeds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s, width := rapid.String().Draw(t, "s"), rapid.IntRange(-1, 40).Draw(t, "width")
		got := Fit(Clean(s), width)
		if Width(got) > max(width, 0) {
			t.Fatalf("%q is %d wide, and not at most %d", got, Width(got), width)
		}
		if Width(Clean(s)) <= width && got != Clean(s) {
			t.Fatalf("%q was cut to %q, though it fits in %d", s, got, width)
		}
	})
}

func TestBoard(t *testing.T) {
	t.Parallel()
	columns := []Column{
		{Title: "todo", Cards: []Card{{Head: "SHOP-1", Text: "日本語のチケットです", Note: "held: person"}, {Head: "SHOP-2", Text: "b\x1bc"}}},
		{Title: "done", Cards: []Card{{Head: "SHOP-3", Text: "old"}}, More: true},
	}
	board := func(width int, c []Column) string {
		var b bytes.Buffer
		require.NoError(t, Board(&b, width, c))
		return b.String()
	}
	require.Equal(t, `todo (2)        done (1+)
──────────────  ──────────────
SHOP-1          SHOP-3
  日本語のチ…     old
  held: person  … and older o…
SHOP-2
  b c
`, board(30, columns))
	require.Equal(t, `todo (2)
  SHOP-1  日本語のチケットで…
  SHOP-2  b c

done (1+)
  SHOP-3  old
  … and older ones
`, board(29, columns))
	require.Equal(t, "no tickets\n", board(80, nil))
	for width := range 200 {
		for _, line := range strings.Split(board(width, columns), "\n") {
			require.LessOrEqual(t, Width(line), max(width, 0), "%d: %q", width, line)
		}
	}
}

type sample struct {
	Name   string         `json:"name"`
	Note   *string        `json:"note"`
	List   []string       `json:"list"`
	Number *float64       `json:"number"`
	On     bool           `json:"on"`
	Map    map[string]any `json:"map"`
}

func printed(t require.TestingT, f Format, data any) string {
	var b bytes.Buffer
	require.NoError(t, Print(&b, f, Value{Data: data, Names: []string{"a\x1bb", "c"}, Table: func(w io.Writer) error {
		_, err := io.WriteString(w, "table\n")
		return err
	}}))
	return b.String()
}

func TestPrint(t *testing.T) {
	t.Parallel()
	n := 2.0
	v := sample{Name: "first\n  second <&>\n", List: []string{"yes", "1.0", "null", "~", "", "a: b", "- c", "# d", "2026-01-01", "0x1f", "1e3", "<<"}, Number: &n}
	require.Equal(t, `name: |
  first
    second <&>
note: null
list:
  - "yes"
  - "1.0"
  - "null"
  - "~"
  - ""
  - 'a: b'
  - '- c'
  - '# d'
  - "2026-01-01"
  - "0x1f"
  - "1e3"
  - "<<"
number: 2
"on": false
map: null
`, printed(t, YAML, v))
	require.Contains(t, printed(t, JSON, v), `"name": "first\n  second <&>\n"`)
	require.Equal(t, "a b\nc\n", printed(t, Name, v))
	require.Equal(t, "table\n", printed(t, Table, v))
	require.Equal(t, "[]\n", printed(t, YAML, []string{}))
	require.Equal(t, `"\u001b\u009b\u202e\u007f"`+"\n", printed(t, JSON, "\x1b\u009b\u202e\x7f"))
	require.Error(t, Print(io.Discard, JSON, Value{Data: math.NaN()}))
	require.Error(t, Print(io.Discard, YAML, Value{Data: math.NaN()}))
	_, err := ParseFormat("xml")
	require.EqualError(t, err, `-o "xml" is none of table, json, yaml, name`)
}

// TestYAMLIsJSON: whatever the texts are, both forms say the same, and no form says a terminal what to do.
func TestYAMLIsJSON(t *testing.T) {
	t.Parallel()
	text := rapid.OneOf(rapid.String(), rapid.StringOf(rapid.SampledFrom([]rune(" \n\t\r:-#'\"\\{}[]&*!|>%@`~,?.0123456789abNYeo\u0085\u2028\u2029\u202e\ufeff\x1b\u009b🐛日"))))
	rapid.Check(t, func(t *rapid.T) {
		s := text.Draw(t, "note")
		v := sample{Name: text.Draw(t, "name"), Note: &s, List: rapid.SliceOf(text).Draw(t, "list"), Map: map[string]any{text.Draw(t, "key"): text.Draw(t, "value")}}
		js, ys := printed(t, JSON, v), printed(t, YAML, v)
		var a, b sample
		require.NoError(t, json.Unmarshal([]byte(js), &a))
		var any any
		require.NoError(t, yaml.Unmarshal([]byte(ys), &any), ys)
		again, err := json.Marshal(any)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(again, &b))
		require.Equal(t, a, b, ys)
		for _, form := range []string{js, ys} {
			for _, r := range form {
				require.False(t, r != '\n' && unsafe(r), "%U in %q", r, form)
			}
		}
	})
}

func TestClean(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a b c d e  f g", Clean("a\nb\tc\x1bd\u202ee\u009b\xfff\u200fg"))
	require.Equal(t, "a\n\tb c", CleanText("a\n\tb\rc"))
}

func TestAge(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for d, want := range map[time.Duration]string{
		-time.Hour: "0s", 0: "0s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 119 * time.Minute: "119m", 2 * time.Hour: "2h",
		47 * time.Hour: "47h", 48 * time.Hour: "2d", 1000 * time.Hour: "41d",
	} {
		require.Equal(t, want, Age(now, now.Add(-d)), d)
	}
	require.Equal(t, "-", Age(now, time.Time{}))
}

func TestBytes(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1 << 20: "1.0 MiB", math.MaxInt64: "8.0 EiB", -1: "-1 B"} {
		require.Equal(t, want, Bytes(n))
	}
}

func TestPlain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want, colour string }{
		{"plain\r\ntext\tand 日本", "plain\ntext\tand 日本", "plain\ntext\tand 日本"},
		{"\x1b[1;31mred\x1b[0m", "red", "\x1b[1;31mred\x1b[0m"},
		{"a\x1b[2J\x1b[Hb\x1b[?1049hc\x1b[10;5Hd", "abcd", "abcd"},
		{"a\x1b]0;title\ab\x1b]52;c;AAAA\x1b\\c", "abc", "abc"},
		{"a\x1bP1;2|x\x1b\\b\x1b(Bc\x1b=d\x1bMe", "abcde", "abcde"},
		{"a\u009b31mb\u009d0;x\u009cc\x7f\x00d\u202e", "abcd", "a\x1b[31mbcd"},
		{"bad \xff utf", "bad  utf", "bad  utf"},
		{"open \x1b]0;never ends", "open ", "open "},
		{"x\x1b[" + strings.Repeat("1;", 64) + "mend", "x", ""},
	} {
		for _, size := range []int{1, 2, 3, 1000} { // however it is cut
			for colour, want := range map[bool]string{false: c.want, true: c.colour} {
				if colour && want == "" {
					continue
				}
				var b bytes.Buffer
				w := Plain(&b, colour)
				for s := []byte(c.in); len(s) > 0; s = s[min(size, len(s)):] {
					n, err := w.Write(s[:min(size, len(s))])
					require.NoError(t, err)
					require.Equal(t, min(size, len(s)), n)
				}
				if strings.HasPrefix(c.in, "x\x1b[") {
					require.NotContains(t, b.String(), "\x1b")
					continue
				}
				require.Equal(t, want, b.String(), "%q by %d", c.in, size)
			}
		}
	}
}

func FuzzPlain(f *testing.F) {
	f.Add([]byte("a\x1b[31mb\x1b]0;x\a\xc3"), true)
	f.Fuzz(func(t *testing.T, in []byte, colour bool) {
		var whole, parts bytes.Buffer
		_, err := Plain(&whole, colour).Write(in)
		require.NoError(t, err)
		w := Plain(&parts, colour)
		for _, c := range in {
			_, err := w.Write([]byte{c})
			require.NoError(t, err)
		}
		require.Equal(t, whole.String(), parts.String())
		require.True(t, utf8.Valid(whole.Bytes()))
		for _, r := range whole.String() {
			require.False(t, r != '\n' && r != '\t' && unsafe(r) && (r != esc || !colour), "%U", r)
		}
	})
}
