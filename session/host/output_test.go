package host

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/session"
)

// hooked is a run folder, whose hooks find it in FOLDER.
func hooked(t *testing.T) (session.Folder, func(script string) error) {
	t.Helper()
	folder := session.Folder(t.TempDir())
	env := map[string]string{"PATH": os.Getenv("PATH"), "FOLDER": string(folder)}
	return folder, func(script string) error {
		t.Helper()
		return runHook(t.Context(), folder, session.TreeFile{Tree: domain.Tree{Path: string(folder)}}, env,
			domain.HookBeforeRun, domain.Hook{Script: script})
	}
}

// fifo makes a named pipe: who opens it waits for the other side.
func fifo(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, syscall.Mkfifo(path, 0o600))
}

// holds waits until a file holds a text.
func holds(t *testing.T, path, text string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), text) {
			return
		}
	}
	t.Fatalf("%s does not hold %q", path, text)
}

// A hook that prints without end fills no disk, and what is kept is the end.
func TestAHooksOutputIsBounded(t *testing.T) {
	t.Parallel()
	folder, hook := hooked(t)
	err := hook("yes | head -c 30000000; echo no luck; exit 3")
	require.ErrorContains(t, err, "exit status 3; its last words: no luck (all of them: "+folder.Path("hook-before_run.log")+")")
	entries, err := os.ReadDir(string(folder))
	require.NoError(t, err)
	require.Len(t, entries, 2)
	total := int64(0)
	for _, e := range entries {
		st, err := e.Info()
		require.NoError(t, err)
		require.LessOrEqual(t, st.Size(), int64(outputLimit), e.Name())
		require.Zero(t, st.Mode().Perm()&0o077)
		total += st.Size()
	}
	require.Greater(t, total, int64(outputLimit))
}

// A line that the two files of a hook's output share is told whole.
func TestTheLastWordsInTwoFiles(t *testing.T) {
	t.Parallel()
	folder := session.Folder(t.TempDir())
	older, newer := HookLogs("before_run")
	require.NoError(t, os.WriteFile(folder.Path(older), []byte("one\nno space "), 0o600))
	require.NoError(t, os.WriteFile(folder.Path(newer), []byte("left\n"), 0o600))
	require.Contains(t, tail(folder, "before_run"), "; its last words: no space left (")
	require.NoError(t, os.WriteFile(folder.Path(newer), []byte("\n"), 0o600))
	require.Contains(t, tail(folder, "before_run"), "; its last words: no space (")
}

// What a hook leaves in the background is not waited for, goes on printing into the log, and lives.
func TestAHookLeavesAServer(t *testing.T) {
	t.Parallel()
	folder, hook := hooked(t)
	fifo(t, folder.Path("ask"))
	fifo(t, folder.Path("end"))
	require.NoError(t, hook(`(while read -r said; do echo "asked: $said"; done <"$FOLDER/ask"; echo bye; : >"$FOLDER/end") & echo started`))
	log := folder.Path("hook-before_run.log")
	require.Equal(t, "started\n", read(t, log), "the hook has ended, and its server has not even begun")
	ask, err := os.OpenFile(folder.Path("ask"), os.O_WRONLY, 0)
	require.NoError(t, err)
	for _, word := range []string{"one", "two"} {
		runtime.GC() // which closes what nobody holds
		_, err = io.WriteString(ask, word+"\n")
		require.NoError(t, err)
		holds(t, log, "asked: "+word+"\n")
	}
	require.NoError(t, ask.Close())
	holds(t, log, "bye\n")
	end, err := os.Open(folder.Path("end")) // which opens when the server has come to its end
	require.NoError(t, err)
	require.NoError(t, end.Close())
	require.Equal(t, "started\nasked: one\nasked: two\nbye\n", read(t, log))
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(data)
}

// A hook's last words are in its log when it is seen to have ended, though a server of its still holds its output.
func TestTheLastWordsComeBeforeTheEnd(t *testing.T) {
	t.Parallel()
	folder, hook := hooked(t)
	fifo(t, folder.Path("hold"))
	held, err := os.OpenFile(folder.Path("hold"), os.O_RDWR, 0) // until the test's end
	require.NoError(t, err)
	defer held.Close()
	want := strings.Repeat("x", 60000) + "no luck\n"
	require.NoError(t, os.WriteFile(folder.Path("words"), []byte(strings.Repeat("x", 60000)+"no luck\n"), 0o600))
	for range 20 {
		err := hook(`cat "$FOLDER/hold" & cat "$FOLDER/words"; exit 3`)
		require.ErrorContains(t, err, "xno luck (all of them: ")
		require.Equal(t, want, read(t, folder.Path("hook-before_run.log")))
	}
}

// What is in a pipe is copied without a wait for those who hold it.
func TestCopyPrinted(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	var got kept
	p := &pipe{r: r, w: w, to: &got}
	p.copyPrinted()
	require.Empty(t, got.String())
	_, err = io.WriteString(w, strings.Repeat("x", 60000)) // nearly all that a pipe holds
	require.NoError(t, err)
	p.copyPrinted()
	require.Equal(t, 60000, got.Len())
}

type kept struct{ bytes.Buffer }

func (*kept) Close() error { return nil }

// A full disk stops neither a hook nor who prints in the pane.
func TestAFullDiskStopsNobody(t *testing.T) {
	t.Parallel()
	folder, hook := hooked(t)
	for _, name := range []string{"hook-before_run.log", session.FileOutput} {
		require.NoError(t, os.Symlink("/dev/full", folder.Path(name)))
	}
	require.NoError(t, hook(`yes | head -c 1000000`), "more than a pipe holds")

	o, err := openOutput(folder)
	require.NoError(t, err)
	_, err = o.w.Write(make([]byte, 1000000))
	require.NoError(t, err)
	require.NoError(t, o.Close())
}

// A hook that takes too long is killed with its group, which holds its output, and its last words are told.
func TestAHookThatTakesTooLongIsKilledWithItsGroup(t *testing.T) {
	t.Parallel()
	folder := session.Folder(t.TempDir())
	fifo(t, folder.Path("alive"))
	alive, err := os.OpenFile(folder.Path("alive"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	require.NoError(t, err)
	defer alive.Close()
	err = runHook(t.Context(), folder, session.TreeFile{Tree: domain.Tree{Path: string(folder)}}, map[string]string{"PATH": os.Getenv("PATH")},
		domain.HookBeforeRun, domain.Hook{Script: `exec 9>alive; yes >/dev/null & echo slow; yes >/dev/null`, Timeout: 500 * time.Millisecond})
	require.ErrorContains(t, err, "it took longer than 500ms and was killed; its last words: slow (")
	_, err = io.ReadAll(alive) // which ends when nobody of the group is left
	require.NoError(t, err)
}

// before_remove may print as much as it likes: the last is kept. Other tests would take memory meanwhile.
func TestBeforeRemovePrintsMuch(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := BeforeRemove(t.Context(), domain.Hook{Script: "yes | head -c 32000000; echo no luck; exit 3"}, os.Environ(), t.TempDir(), "b")
	runtime.ReadMemStats(&after)
	require.EqualError(t, err, "exit status 3; its last words: no luck")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20))
}

// What before_remove leaves in the background is not waited for, and is no failure.
func TestBeforeRemoveLeavesAServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fifo(t, filepath.Join(dir, "hold"))
	held, err := os.OpenFile(filepath.Join(dir, "hold"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer held.Close()
	require.NoError(t, BeforeRemove(context.Background(), domain.Hook{Script: "cat hold & echo started"}, os.Environ(), dir, "b"))
}
