package tmux

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestParseVersion(t *testing.T) {
	for in, want := range map[string][2]int{"tmux 3.3a\n": {3, 3}, "tmux next-3.4": {3, 4}, "tmux openbsd-7.4": {7, 4}, "tmux 3.10": {3, 10}} {
		major, minor, err := parseVersion(in)
		require.NoError(t, err)
		require.Equal(t, want, [2]int{major, minor}, in)
	}
	for _, in := range []string{"", "tmux master", "3.3"} {
		_, _, err := parseVersion(in)
		require.Error(t, err, in)
	}
}

func TestClassify(t *testing.T) {
	cause := errors.New("exit status 1")
	for text, want := range map[string]error{
		"no server running on /x/s":                            ErrNoServer,
		"error connecting to /x/s (No such file or directory)": ErrNoServer,
		"can't find pane: %1":                                  ErrNoPane,
		"no current target":                                    ErrNoPane,
		"something new":                                        cause,
		"":                                                     cause,
	} {
		err := classify(text+"\n", cause)
		require.ErrorIs(t, err, want, text)
		require.ErrorContains(t, err, text)
	}
}

// A name is always one that tmux keeps as it is, whatever the ticket is called.
func TestSessionName(t *testing.T) {
	for in, want := range map[string]string{"SHOP-7": "shop-7", "INT:8.1/x": "int-8-1-x", "..": "run", "": "run", "été 1": "t-1", "--a--": "a"} {
		require.Equal(t, want, SessionName(in), in)
	}
	require.Equal(t, "shop-shop-7", SessionName("shop", "SHOP-7"))
	rule := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	rapid.Check(t, func(t *rapid.T) {
		n := SessionName(rapid.String().Draw(t, "identifier"))
		if !rule.MatchString(n) || len(n) > 60 {
			t.Fatalf("%q", n)
		}
	})
}

func FuzzParsePanes(f *testing.F) {
	f.Add("%0:12:0::\n%1:13:1:7:\n%2:14:1::9\n")
	f.Add("")
	f.Fuzz(func(t *testing.T, out string) {
		panes, err := parsePanes(out)
		if err != nil && panes != nil {
			t.Fatal("both an answer and an error")
		}
		if err == nil && len(panes) > strings.Count(out, "\n")+1 {
			t.Fatal("more panes than lines")
		}
	})
}

func TestParsePanes(t *testing.T) {
	seven := 7
	panes, err := parsePanes("%0:12:0::\n%1:13:1:7:\n%2:14:1::9")
	require.NoError(t, err)
	require.Equal(t, []Pane{{ID: "%0", PID: 12}, {ID: "%1", PID: 13, Dead: true, Exit: &seven}, {ID: "%2", PID: 14, Dead: true, Signal: 9}}, panes)
	require.Equal(t, []bool{false, true, true}, []bool{panes[0].Ended(), panes[1].Ended(), panes[2].Ended()})
}
