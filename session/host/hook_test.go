package host

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/session"
)

// The last line of a hook's output becomes part of a note: it is text, and not much of it.
func TestLastLine(t *testing.T) {
	t.Parallel()
	for out, want := range map[string]string{
		"":                                    "",
		"\n \n":                               "",
		"one\ntwo\n":                          "two",
		"one\n\x1b[31mtwo\x1b[0m\n\n\x1b[K\n": "two",
		"10%\r90%\rno space left":             "no space left",
		"\x1b]0;title\x07npm: not found\r\n":  "npm: not found",
		"a\xff\x00b":                          "ab",
	} {
		require.Equal(t, want, lastLine([]byte(out)), "%q", out)
	}
	long := lastLine([]byte(strings.Repeat("ü", 1000) + "end"))
	require.LessOrEqual(t, len(long), maxWords+len("…"))
	require.True(t, strings.HasPrefix(long, "…ü") && strings.HasSuffix(long, "üend"), long)
}

// A pane that is not let in says so in one sentence, and where the reason is.
func TestThePaneSaysThatNoAgentRuns(t *testing.T) {
	t.Parallel()
	folder, err := session.Create(filepath.Join(t.TempDir(), "run-1"), session.Spec{
		Run: "run-1", Ticket: "t", Identifier: "SHOP-7", Project: "SHOP", Number: 12, Socket: "/nowhere/s"}, "")
	require.NoError(t, err)
	keep, err := folder.MarkStarted(session.Started{Run: "run-1", PID: os.Getpid(), At: domain.At(time.Now())})
	require.NoError(t, err)
	require.NoError(t, keep())
	var said bytes.Buffer
	require.Equal(t, ExitNoAgent, Exec(folder, &said))
	require.Equal(t, "No agent runs here: the run ended before its agent was started, while its worktree was made or its hooks ran; "+
		"gaia run show SHOP/12 says why.\n", said.String())
}
