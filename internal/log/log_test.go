package log

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

func TestPanicLevelIsNeverWritten(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	l := build(Options{Name: "x"}, &b)
	require.Panics(t, func() { l.Panic().Msg("boom") })
	require.NotContains(t, b.String(), `"panic"`)
	require.Contains(t, b.String(), `"level":"error"`)
	b.Reset()
	l.Debug().Msg("unseen")
	require.Empty(t, b.String())
	l.Info().Str(Ticket, "SHOP-1").Str(MessageID, HubReady).Msg("seen")
	require.Contains(t, b.String(), `"GAIA_TICKET":"SHOP-1"`)
	require.Contains(t, b.String(), `"level":"info"`)
}

func TestNoLineIsLost(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	l := zerolog.New(&journalWriter{to: failing{}, other: &b})
	l.Info().Msg("kept")
	require.Contains(t, b.String(), "kept")
}

// journalctl shows the message alone: without its cause it would be of no use.
func TestTheJournalsMessageNamesTheCause(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		log  func(zerolog.Logger)
		want string
	}{
		{func(l zerolog.Logger) { l.Warn().Err(errors.New("disk \"a\" is full")).Msg("not written") }, `not written: disk "a" is full`},
		{func(l zerolog.Logger) { l.Warn().Err(errors.New("full")).Msg("not written: full") }, "not written: full"},
		{func(l zerolog.Logger) { l.Info().Err(nil).Msg("fine") }, "fine"},
		{func(l zerolog.Logger) { l.Error().Err(errors.New("full")).Int64("n", 1<<60+1).Send() }, ""},
	} {
		var b bytes.Buffer
		c.log(zerolog.New(&journalWriter{to: &b, other: failing{}}))
		var line struct {
			Message string `json:"message"`
			N       int64  `json:"n"`
		}
		require.NoError(t, json.Unmarshal(b.Bytes(), &line), b.String())
		require.Equal(t, c.want, line.Message)
		if c.want == "" {
			require.EqualValues(t, 1<<60+1, line.N, "nothing else is changed")
		}
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("the journal is not there") }

// entry is one kind of event: its name in this package, its id, and what the catalog says of it.
type entry struct{ name, id, subject, text string }

// entries reads the kinds of events, in the order of messages.go.
func entries(t *testing.T) []entry {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "messages.go", nil, 0)
	require.NoError(t, err)
	var all []entry
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			id, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			all = append(all, entry{name: v.Names[0].Name, id: id})
		}
		return true
	})
	require.NotEmpty(t, all)
	return all
}

// Every id is one of its own, and has one entry that journalctl -x can show.
func TestCatalog(t *testing.T) { catalogued(t) }

// catalogued is entries with what the catalog says, which is in the same order and has nothing else.
func catalogued(t *testing.T) []entry {
	t.Helper()
	all := entries(t)
	parts := strings.Split(string(Catalog()), "\n-- ")[1:]
	require.Len(t, parts, len(all))
	seen := map[string]bool{}
	for i, part := range parts {
		e := &all[i]
		require.Regexp(t, regexp.MustCompile(`^[0-9a-f]{32}$`), e.id)
		require.False(t, seen[e.id], "%s is there twice", e.id)
		seen[e.id] = true
		head, text, ok := strings.Cut(part, "\n\n")
		require.True(t, ok, head)
		lines := strings.Split(head, "\n")
		require.Len(t, lines, 4, head)
		require.Equal(t, e.id, lines[0], e.name)
		e.subject, ok = strings.CutPrefix(lines[1], "Subject: ")
		require.True(t, ok, e.name)
		require.Equal(t, []string{"Defined-By: gaia", "Documentation: man:gaia-systemd(7)"}, lines[2:], e.name)
		e.text = strings.TrimSpace(text)
		require.NotEmpty(t, e.text, e.name)
		for _, line := range strings.Split(text, "\n") {
			require.LessOrEqual(t, len(line), 86, "journalctl indents it: %s", line)
		}
	}
	return all
}

var update = flag.Bool("update", false, "write the guide for administrators anew")

const (
	guide      = "../../docs/admin.md"
	guideBegin = "<!-- The kinds of messages: written by go test ./internal/log -update from gaia.catalog. -->\n"
	guideEnd   = "<!-- The end of the kinds of messages. -->\n"
)

// TestGuide: docs/admin.md has every kind of message with its id, its name and what the catalog says of it, and no other.
func TestGuide(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(guide)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(data), guideBegin)
	require.True(t, ok)
	is, after, ok := strings.Cut(rest, guideEnd)
	require.True(t, ok)
	var b strings.Builder
	all := catalogued(t)
	b.WriteString("\n| name | MESSAGE_ID | what has happened |\n|---|---|---|\n")
	for _, e := range all {
		fmt.Fprintf(&b, "| [%s](#%s) | `%s` | %s |\n", e.name, strings.ToLower(e.name), e.id, e.subject)
	}
	for _, e := range all {
		fmt.Fprintf(&b, "\n### %s\n\n`MESSAGE_ID=%s` — %s.\n\n%s\n", e.name, e.id, e.subject, strings.ReplaceAll(e.text, "~/", "`~/`"))
	}
	b.WriteString("\n")
	if *update {
		require.NoError(t, os.WriteFile(guide, []byte(before+guideBegin+b.String()+guideEnd+after), 0o644))
		return
	}
	require.Equal(t, b.String(), is, "go test ./internal/log -update writes it anew")
	// What the rest of the guide names exists.
	ids := map[string]bool{}
	for _, e := range all {
		ids[e.id] = true
	}
	for _, m := range regexp.MustCompile(`\b[0-9a-f]{32}\b`).FindAllString(before+after, -1) {
		require.True(t, ids[m], m)
	}
	for _, field := range []string{Project, Ticket, Run, Conductor, Reason, MessageID} {
		require.Contains(t, before+after, "| `"+field+"` |")
	}
}

// TestWhatDaemonsLog: every line of an error has a kind, and every kind is that of a line.
func TestWhatDaemonsLog(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	found := 0
	for _, room := range []string{"hub", "daemon", "session/host", "cmd/gaia-hub", "cmd/gaia-conductor", "cmd/gaia-session"} {
		err := filepath.WalkDir(filepath.Join("../..", room), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			set := token.NewFileSet()
			f, err := parser.ParseFile(set, path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					if pkg, ok := s.X.(*ast.Ident); ok && (pkg.Name == "log" || pkg.Name == "fields") {
						used[s.Sel.Name] = true
					}
				}
				methods, kind := chain(n)
				if len(methods) > 0 && slices.Contains([]string{"Msg", "Msgf", "Send"}, methods[0]) && slices.Contains(methods, "Error") {
					found++
					if !kind {
						t.Errorf("%s: an error is logged without a MESSAGE_ID; see messages.go", set.Position(n.Pos()))
					}
				}
				return true
			})
			return nil
		})
		require.NoError(t, err)
	}
	require.Greater(t, found, 10, "the lines are not found")
	for _, e := range entries(t) {
		require.True(t, used[e.name], "nothing logs %s", e.name)
	}
}

// chain returns the methods of a chain of calls, the last one first, and whether one of them gives a MESSAGE_ID.
func chain(n ast.Node) (methods []string, kind bool) {
	for {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return methods, kind
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return methods, kind
		}
		methods = append(methods, method.Sel.Name)
		if len(call.Args) > 0 {
			if field, ok := call.Args[0].(*ast.SelectorExpr); ok && method.Sel.Name == "Str" && field.Sel.Name == "MessageID" {
				kind = true
			}
		}
		n = method.X
	}
}
