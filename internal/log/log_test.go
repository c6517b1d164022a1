package log

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
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

// Every id is one of its own, and has one entry that journalctl -x can show.
func TestCatalog(t *testing.T) {
	t.Parallel()
	f, err := parser.ParseFile(token.NewFileSet(), "messages.go", nil, 0)
	require.NoError(t, err)
	ids := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.BasicLit); ok && v.Kind == token.STRING {
			id, err := strconv.Unquote(v.Value)
			require.NoError(t, err)
			require.Regexp(t, regexp.MustCompile(`^[0-9a-f]{32}$`), id)
			require.False(t, ids[id], "%s is there twice", id)
			ids[id] = true
		}
		return true
	})
	require.NotEmpty(t, ids)
	entries := strings.Split(string(Catalog()), "\n-- ")[1:]
	require.Len(t, entries, len(ids))
	for _, e := range entries {
		lines := strings.Split(e, "\n")
		require.True(t, ids[lines[0]], lines[0])
		require.True(t, strings.HasPrefix(lines[1], "Subject: "))
		require.Equal(t, "Defined-By: gaia", lines[2])
		head, text, ok := strings.Cut(e, "\n\n")
		require.True(t, ok, head)
		require.NotEmpty(t, strings.TrimSpace(text))
	}
}
