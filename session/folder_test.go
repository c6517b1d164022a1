package session_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/session"
)

func newFolder(t *testing.T) session.Folder {
	f, err := session.Create(filepath.Join(t.TempDir(), "runs", "0190"), session.Spec{Run: "0190", Number: 12}, "secret")
	require.NoError(t, err)
	return f
}

func TestEveryFileIsReadBackAndForTheOwnerAlone(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	spec, err := f.Load()
	require.NoError(t, err)
	require.Equal(t, session.Spec{Run: "0190", Number: 12}, spec)
	token, err := f.Token()
	require.NoError(t, err)
	require.Equal(t, "secret", token)
	require.Equal(t, "0190", f.Run())

	env := map[string]string{"HOME": "/home/ada", "EMPTY": "", "LINES": "a\nb"}
	require.NoError(t, f.WriteEnv(env))
	gotEnv, err := f.Env()
	require.NoError(t, err)
	require.Equal(t, env, gotEnv)

	tree := session.TreeFile{
		Tree: domain.Tree{Path: "/t", Branch: "gaia/SHOP-7", Base: "b", Head: "h", AfterCreate: true, Findings: []string{"dirty"}},
		Argv: []string{"/bin/true", ""}, GitDir: "/g",
		Hooks: domain.Hooks{BeforeRun: domain.Hook{Script: "make", Timeout: time.Second}},
	}
	require.NoError(t, f.WriteTree(tree))
	gotTree, err := f.Tree()
	require.NoError(t, err)
	require.Equal(t, tree, gotTree)

	three := 3
	record := session.Record{Run: "0190", Exit: &three, Cause: session.CausePane, EndedAt: domain.At(time.Now())}
	require.NoError(t, f.WriteRecord(record))
	record.WrittenBy, record.CPUMS = session.WrittenByPost, 12
	require.NoError(t, f.WriteRecord(record), "post adds to what host wrote")
	gotRecord, err := f.Record()
	require.NoError(t, err)
	require.Equal(t, record, gotRecord)

	require.NoError(t, f.WritePrompt([]byte("do it")))
	require.NoError(t, f.WriteScreen("last"))
	screen, err := f.Screen()
	require.NoError(t, err)
	require.Equal(t, "last", screen)
	activity := domain.Activity{Status: domain.ActivityBlocked, Since: domain.At(time.Now())}
	require.NoError(t, f.WriteActivity(activity))
	gotActivity, err := f.Activity()
	require.NoError(t, err)
	require.Equal(t, activity, gotActivity)
	keep, err := f.MarkStarted(session.Started{Run: "0190", PID: 1})
	require.NoError(t, err)
	require.NoError(t, keep())
	for _, mark := range []struct {
		set func() error
		is  func() (bool, error)
	}{{f.MarkReported, f.Reported}, {f.MarkStopping, f.Stopping}} {
		is, err := mark.is()
		require.NoError(t, err)
		require.False(t, is)
		require.NoError(t, mark.set())
		require.NoError(t, mark.set(), "a mark may be set again")
		is, err = mark.is()
		require.NoError(t, err)
		require.True(t, is)
	}

	st, err := os.Stat(string(f))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o700), st.Mode().Perm())
	entries, err := os.ReadDir(string(f))
	require.NoError(t, err)
	require.Len(t, entries, 11, "no temporary file is left")
	for _, e := range entries {
		info, err := e.Info()
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode().Perm(), e.Name())
	}
}

func TestWhatIsNotThereIsNotFound(t *testing.T) {
	t.Parallel()
	f := session.Folder(t.TempDir())
	for name, read := range map[string]func() error{
		"spec":     func() error { _, err := f.Load(); return err },
		"token":    func() error { _, err := f.Token(); return err },
		"env":      func() error { _, err := f.Env(); return err },
		"tree":     func() error { _, err := f.Tree(); return err },
		"started":  func() error { _, err := f.Started(); return err },
		"record":   func() error { _, err := f.Record(); return err },
		"screen":   func() error { _, err := f.Screen(); return err },
		"activity": func() error { _, err := f.Activity(); return err },
	} {
		require.ErrorIs(t, read(), domain.ErrNotFound, name)
	}
	require.NoError(t, f.RemoveSecrets())
}

func TestARunIsStartedOnceForEver(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	var won atomic.Int32
	var wg sync.WaitGroup
	for pid := range 16 {
		wg.Go(func() {
			keep, err := f.MarkStarted(session.Started{Run: "0190", PID: pid + 1})
			if err != nil {
				require.ErrorIs(t, err, domain.ErrExists)
				return
			}
			won.Add(1)
			require.NoError(t, keep())
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, won.Load())
	s, err := f.Started()
	require.NoError(t, err)
	require.Equal(t, "0190", s.Run)
	require.Positive(t, s.PID)
}

func TestATokenIsReservedBeforeTheClaim(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "runs", "0190")
	f, err := session.Reserve(path, "secret")
	require.NoError(t, err)
	_, err = session.Reserve(path, "other")
	require.ErrorIs(t, err, domain.ErrExists)
	_, err = session.Create(path, session.Spec{Run: "0190"}, "other")
	require.ErrorIs(t, err, domain.ErrExists, "another token is another claim")
	_, err = session.Create(path, session.Spec{Run: "0190"}, "")
	require.NoError(t, err)
	_, err = session.Create(path, session.Spec{Run: "0190", Number: 2}, "secret")
	require.ErrorIs(t, err, domain.ErrExists, "a spec never changes")
	require.ErrorIs(t, f.Discard(), domain.ErrExists, "a run's folder is never discarded")

	unused, err := session.Reserve(filepath.Join(filepath.Dir(path), "0191"), "secret")
	require.NoError(t, err)
	folders, err := session.Folders(filepath.Dir(path))
	require.NoError(t, err)
	require.Equal(t, []session.Folder{f, unused}, folders)
	require.NoError(t, unused.Discard())
	require.NoDirExists(t, string(unused))
	folders, err = session.Folders(filepath.Join(path, "none"))
	require.NoError(t, err)
	require.Empty(t, folders)
}

func TestADamagedFileIsAnErrorThatNamesIt(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	require.NoError(t, os.WriteFile(f.Path(session.FileRecord), []byte(`{"cause": 1}`), 0o600))
	_, err := f.Record()
	require.ErrorContains(t, err, f.Path(session.FileRecord))
	require.NoError(t, os.WriteFile(f.Path(session.FileTree), []byte(`{`), 0o600))
	_, err = f.Tree()
	require.ErrorContains(t, err, f.Path(session.FileTree))
	require.NotErrorIs(t, err, domain.ErrNotFound, "a damaged tree file is not one that has not come yet")
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(`{"run":"r","exit":1,"cause":"pane","signal":"","oom_kill":-1}`))
	f.Add([]byte(`{"cause":"host","exit_code":"killed","exit_status":"KILL","oom_kill":9}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := session.ParseRecord(data)
		if err != nil {
			return
		}
		reason, note := session.Reason(r)
		require.NotEmpty(t, note)
		require.True(t, reason == "" || reason.EndsRun(), "%q", reason)
	})
}
