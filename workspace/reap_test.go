package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gaia/domain"
)

func TestReapRemovesWhatIsOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tree := f.ensure("SHOP-1", "run-1")
	head := f.commit(tree.Path, "work")
	f.git(tree.Path, "push", "-q", "origin", "HEAD")
	f.write(tree.Path, "ignored/cache", "x")
	require.NoError(t, os.Chmod(filepath.Join(tree.Path, "ignored"), 0o500))

	r := f.reap(ReapOptions{DryRun: true})["SHOP-1"]
	require.True(t, r.Removable)
	require.False(t, r.Removed)
	require.Contains(t, r.Reason, "pushed or merged")
	require.Equal(t, "SHOP-1", r.Identifier)
	require.Positive(t, r.Bytes)
	require.DirExists(t, tree.Path)
	require.Empty(t, f.git(f.checkout, "for-each-ref", "refs/gaia/reaped/"))

	var hooked TreeInfo
	r = f.reap(ReapOptions{BeforeRemove: func(_ context.Context, i TreeInfo) error { hooked = i; return errors.New("exit status 1") }})["SHOP-1"]
	require.True(t, r.Removed, r.Reason)
	require.Contains(t, r.Reason, "before_remove failed: exit status 1")
	require.Equal(t, tree.Path, hooked.Path)
	require.NoDirExists(t, tree.Path)
	require.Equal(t, head, f.git(f.checkout, "for-each-ref", "--format=%(objectname)", "refs/gaia/reaped/SHOP-1/"))
	require.Equal(t, head, f.git(f.checkout, "rev-parse", "gaia/SHOP-1"), "the branch stays")
	require.NotContains(t, f.git(f.checkout, "worktree", "list"), "SHOP-1")
	require.Empty(t, f.reap(ReapOptions{}))
	require.Equal(t, head, f.ensure("SHOP-1", "run-2").Head, "a ticket that comes back goes on where it was")
}

// E8, E9, E12: each condition alone keeps the tree.
func TestReapKeeps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do     func(f *fixture, path string)
		reason string
	}{
		"dirty":           {func(f *fixture, p string) { f.write(p, "README.md", "x") }, "not committed"},
		"untracked":       {func(f *fixture, p string) { f.write(p, "new", "x") }, "not committed"},
		"staged":          {func(f *fixture, p string) { f.write(p, "new", "x"); f.git(p, "add", "new") }, "not committed"},
		"unpushed":        {func(f *fixture, p string) { f.commit(p, "x") }, "neither pushed nor merged"},
		"unpushed branch": {func(f *fixture, p string) { f.commit(p, "x"); f.git(p, "switch", "-q", "--detach", "main") }, "neither pushed nor merged"},
		"detached commit": {func(f *fixture, p string) { f.git(p, "switch", "-q", "--detach"); f.commit(p, "x") }, "neither pushed nor merged"},
		"locked":          {func(f *fixture, p string) { f.git(p, "worktree", "lock", "--reason", "mine", p) }, "locked: mine"},
		"unfinished":      {func(f *fixture, p string) { f.git(p, "bisect", "start") }, "not committed"},
		"index.lock":      {func(f *fixture, p string) { f.write(f.gitDir(p), "index.lock", "") }, "index.lock"},
		"assume unchanged": {func(f *fixture, p string) {
			f.git(p, "update-index", "--assume-unchanged", "README.md")
			f.write(p, "README.md", "x")
		}, "not to look at README.md"},
		"skip worktree": {func(f *fixture, p string) {
			f.git(p, "update-index", "--skip-worktree", "README.md")
			f.write(p, "README.md", "x")
		}, "not to look at README.md"},
		"ref of its own":                  {func(f *fixture, p string) { f.git(p, "update-ref", "refs/worktree/mine", "HEAD") }, "refs/worktree/mine"},
		"repository in an ignored folder": {func(f *fixture, p string) { f.git(p, "init", "-q", "ignored/other") }, "another repository"},
		"no marker":                       {func(f *fixture, p string) { require.NoError(f.t, os.Remove(filepath.Join(f.gitDir(p), markerName))) }, "Gaia did not make it"},
		"damaged marker":                  {func(f *fixture, p string) { f.write(f.gitDir(p), markerName, "{}") }, "damaged"},
		"unreadable index":                {func(f *fixture, p string) { f.write(f.gitDir(p), "index", "garbage") }, "cannot be known"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			tree := f.ensure("SHOP-1", "run-1")
			c.do(f, tree.Path)
			f.kept("SHOP-1", c.reason)
		})
	}
}

// E10, E13, E14: what is not known is kept.
func TestReapKeepsTheUnknown(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tree := f.ensure("SHOP-1", "run-1")
	for _, c := range []struct {
		ticket func(context.Context, string) (string, bool, bool, error)
		reason string
	}{
		{everyTicket("coding", false), "is in coding"},
		{func(context.Context, string) (string, bool, bool, error) { return "", true, false, nil }, "does not know"},
		{func(context.Context, string) (string, bool, bool, error) {
			return "done", true, true, errors.New("hub unreachable")
		}, "hub unreachable"},
	} {
		r := f.reap(ReapOptions{Ticket: c.ticket})["SHOP-1"]
		require.False(t, r.Removed)
		require.Contains(t, r.Reason, c.reason)
	}
	_, err := f.Reap(ctx, ReapOptions{})
	require.Error(t, err)

	blind := f.open()
	blind.proc = t.TempDir()
	list, err := blind.Reap(ctx, ReapOptions{Ticket: everyTicket("done", true)})
	require.NoError(t, err)
	require.Contains(t, list[0].Reason, "no proc file system")

	unlock, err := f.open().Lock(ctx, "SHOP-1")
	require.NoError(t, err)
	f.kept("SHOP-1", "in use")
	unlock()

	for what, start := range map[string]func(*exec.Cmd){
		"working directory": func(c *exec.Cmd) { c.Dir = tree.Path },
		"open file": func(c *exec.Cmd) {
			file, err := os.Open(filepath.Join(tree.Path, "README.md"))
			require.NoError(t, err)
			c.ExtraFiles = []*os.File{file}
		},
		"program": func(c *exec.Cmd) {
			b, err := os.ReadFile(c.Path)
			require.NoError(t, err)
			c.Path = filepath.Join(tree.Path, "ignored", "sleep")
			f.write(tree.Path, "ignored/sleep", string(b))
			require.NoError(t, os.Chmod(c.Path, 0o755))
		},
	} {
		t.Run(what, func(t *testing.T) {
			sleeper := exec.Command("sleep", "600")
			start(sleeper)
			require.NoError(t, sleeper.Start())
			for _, file := range sleeper.ExtraFiles {
				file.Close()
			}
			f.kept("SHOP-1", fmt.Sprintf("process %d (sleep) works in it", sleeper.Process.Pid))
			require.NoError(t, sleeper.Process.Kill())
			_ = sleeper.Wait()
		})
	}
	f.reaped("SHOP-1")
}

func TestReapAsksAgainAfterTheHook(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tree := f.ensure("SHOP-1", "run-1")
	r := f.reap(ReapOptions{BeforeRemove: func(context.Context, TreeInfo) error { f.write(tree.Path, "export", "x"); return nil }})["SHOP-1"]
	require.False(t, r.Removed)
	require.Contains(t, r.Reason, "not committed")
	require.DirExists(t, tree.Path)
}

// E11, E17: only what is ours and lies in the root.
func TestReapTouchesNothingElse(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.NoError(t, os.MkdirAll(f.root, 0o700))
	at := func(key string) string { return filepath.Join(f.root, key) }
	require.NoError(t, os.Symlink(f.checkout, at("SHOP-1")))
	f.write(at("SHOP-2"), "mine", "x")
	require.NoError(t, os.WriteFile(at("SHOP-3"), nil, 0o644))
	f.git(f.base, "clone", "-q", f.origin, at("SHOP-4"))
	f.git(f.checkout, "worktree", "add", "-q", "--detach", at("SHOP-5"))
	other := fixtureIn(t, filepath.Join(f.base, "another"), true)
	c := other.config()
	c.Root = f.root
	g, err := New(c)
	require.NoError(t, err)
	_, err = ensureOnce(g, "SHOP-6", "run-1")
	require.NoError(t, err)
	// A tree of ours behind a link, and one under a wrong name.
	moved := f.ensure("SHOP-7", "run-1")
	require.NoError(t, os.Rename(moved.Path, filepath.Join(f.base, "moved")))
	require.NoError(t, os.Symlink(filepath.Join(f.base, "moved"), moved.Path))
	wrong := f.ensure("SHOP-8", "run-1")
	f.git(f.checkout, "worktree", "move", wrong.Path, at("SHOP-9"))
	f.write(at(".gone.SHOP-10"), "mine", "x")
	outside := filepath.Join(f.base, "outside")
	f.git(f.checkout, "worktree", "add", "-q", "--detach", outside)

	all := f.reap(ReapOptions{})
	for key, r := range all {
		require.False(t, r.Removed, "%s: %+v", key, r)
		require.NotEmpty(t, r.Reason)
	}
	for key, reason := range map[string]string{"SHOP-1": "symbolic link", "SHOP-2": "no git worktree", "SHOP-3": "no folder", "SHOP-4": "no git worktree",
		"SHOP-5": "Gaia did not make it", "SHOP-6": "another repository", "SHOP-7": "symbolic link", "SHOP-9": "marked as", ".gone.SHOP-10": "has not put it there"} {
		require.Contains(t, all[key].Reason, reason)
	}
	require.FileExists(t, at(".gone.SHOP-10")+"/mine")
	require.DirExists(t, outside)

	// Run from inside a tree: its own process works there.
	tree := f.ensure("SHOP-11", "run-1")
	cmd := exec.Command(os.Args[0])
	cmd.Dir = tree.Path
	cmd.Env = append(os.Environ(), "GAIA_TEST_REAP="+strings.Join([]string{f.checkout, f.config().Root, f.config().Locks}, "\n"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.DirExists(t, tree.Path)
}

// reapProcess is a process of its own that reaps from inside a tree; spec is checkout, root and locks.
func reapProcess(spec string) error {
	p := strings.Split(spec, "\n")
	g, err := New(Config{Checkout: p[0], Root: p[1], Locks: p[2]})
	if err != nil {
		return err
	}
	list, err := g.Reap(ctx, ReapOptions{Ticket: everyTicket("done", true)})
	if err != nil {
		return err
	}
	seen := false
	for _, r := range list {
		if r.Removed {
			return fmt.Errorf("removed: %+v", r)
		}
		seen = seen || r.Identifier == "SHOP-11" && strings.Contains(r.Reason, fmt.Sprintf("process %d", os.Getpid()))
	}
	if !seen {
		return fmt.Errorf("the own process does not keep the tree: %+v", list)
	}
	return nil
}

func TestRemovalThatWasCutShort(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tree := f.ensure("SHOP-1", "run-1")
	aside := filepath.Join(f.root, remains+"SHOP-1")

	// Before it was decided: the tree is put back.
	require.NoError(t, os.Rename(tree.Path, aside))
	f.ensure("SHOP-1", "run-2")
	require.NoDirExists(t, aside)
	require.NoError(t, os.Rename(tree.Path, aside))
	require.NoError(t, os.WriteFile(filepath.Join(aside, goingMark), nil, 0o600))
	r := f.reap(ReapOptions{Ticket: everyTicket("coding", false)})
	require.DirExists(t, tree.Path)
	require.NoFileExists(t, filepath.Join(tree.Path, goingMark))
	require.Contains(t, r["SHOP-1"].Reason, "is in coding")

	// After it: the removal is ended.
	require.NoError(t, os.Rename(tree.Path, aside))
	require.NoError(t, os.WriteFile(filepath.Join(aside, goingMark), nil, 0o600))
	a, err := f.adminOf(tree.Path)
	require.NoError(t, err)
	require.NoError(t, f.unregister(*a))
	require.True(t, f.reap(ReapOptions{DryRun: true})[remains+"SHOP-1"].Removable)
	require.DirExists(t, aside)
	require.True(t, f.reap(ReapOptions{})[remains+"SHOP-1"].Removed)
	require.NoDirExists(t, aside)
}

func TestTrees(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	trees, err := f.Trees(ctx)
	require.NoError(t, err)
	require.Empty(t, trees)
	one := f.ensure("SHOP-1", "run-1")
	two := f.ensure("team/ABC-1", "run-2")
	require.NoError(t, os.RemoveAll(two.Path))
	trees, err = f.Trees(ctx)
	require.NoError(t, err)
	require.Len(t, trees, 2)
	require.Equal(t, one.Path, trees[0].Path)
	require.True(t, trees[0].Complete)
	require.Equal(t, one.Head, trees[0].Head)
	require.Equal(t, "run-1", trees[0].Run)
	require.False(t, trees[1].Complete)
	require.Contains(t, trees[1].Note, "is not there")
	size, err := Size(ctx, one.Path)
	require.NoError(t, err)
	require.Positive(t, size)
	free, err := f.Free()
	require.NoError(t, err)
	require.Positive(t, free)
}

// E16: the documentation prints this list.
func TestReapRules(t *testing.T) {
	t.Parallel()
	var names []string
	for _, r := range ReapRules() {
		require.NotEmpty(t, r.Text)
		names = append(names, r.Name)
	}
	require.Equal(t, []string{"ours", "terminal", "unlocked", "clean", "pushed", "submodules", "refs", "repositories", "processes"}, names)
}

// Whatever people and agents do, and whenever reap runs, every commit stays reachable by a ref and no change that was
// not committed is lost.
func TestReapNeverLosesWork(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		f := fixtureIn(t, filepath.Join(base, fmt.Sprint(n)), rapid.Bool().Draw(rt, "cloned"))
		defer os.RemoveAll(f.base)
		f.racy = 0
		var commits []string
		files := map[string]string{} // uncommitted work by path
		state, run, serial := "coding", 0, 0
		var tree domain.Tree
		exists := func() bool { _, err := os.Lstat(tree.Path); return tree.Path != "" && err == nil }
		ensure := func() {
			run++
			tree = f.ensure("SHOP-1", fmt.Sprintf("run-%d", run))
		}
		ensure()
		steps := rapid.SliceOfN(rapid.SampledFrom([]string{"commit", "push", "dirty", "clean", "detach", "branch", "done", "reopen", "reap", "reap", "lock", "unlock", "merge", "reset", "spare", "no spare"}), 4, 14).Draw(rt, "steps")
		for _, step := range append(steps, "done", "reap") {
			if !exists() && step != "reap" && step != "done" && step != "reopen" {
				ensure()
			}
			switch serial++; step {
			case "commit":
				for p := range files {
					delete(files, p)
				}
				commits = append(commits, f.commit(tree.Path, fmt.Sprint("commit ", serial)))
			case "push":
				if f.origin != "" {
					f.git(tree.Path, "push", "-q", "-f", "origin", fmt.Sprintf("HEAD:refs/heads/pushed-%d", serial))
				}
			case "dirty":
				p := filepath.Join(tree.Path, fmt.Sprint("file ", serial))
				f.write(tree.Path, filepath.Base(p), "work")
				files[p] = "work"
			case "clean":
				f.git(tree.Path, "clean", "-fdq")
				clear(files)
			case "detach":
				f.git(tree.Path, "switch", "-q", "--detach")
			case "branch":
				f.git(tree.Path, "switch", "-q", "-c", fmt.Sprint("side-", serial))
			case "merge":
				f.git(f.checkout, "merge", "-q", "-m", "merge", f.git(tree.Path, "rev-parse", "HEAD"))
			case "reset": // what a person throws away is no loss
				f.git(tree.Path, "reset", "-q", "--hard", "HEAD")
				commits = commits[:0]
				commits = append(commits, f.git(tree.Path, "rev-parse", "HEAD"))
			case "spare": // the next tree comes from it
				require.NoError(rt, f.KeepSpares(ctx, 1, 0, false))
			case "no spare":
				require.NoError(rt, f.KeepSpares(ctx, 0, 0, false))
			case "done":
				state = "done"
			case "reopen":
				state = "coding"
			case "lock":
				_, _ = f.tryGit(tree.Path, "worktree", "lock", tree.Path)
			case "unlock":
				_, _ = f.tryGit(tree.Path, "worktree", "unlock", tree.Path)
			case "reap":
				if !exists() {
					continue
				}
				unpushed, err := Unpushed(ctx, tree.Path)
				require.NoError(rt, err)
				locked := strings.Contains(f.git(f.checkout, "worktree", "list", "--porcelain"), "\nlocked")
				r := f.reap(ReapOptions{Ticket: everyTicket(state, state == "done")})["SHOP-1"]
				require.Equal(rt, state == "done" && !unpushed && !locked, r.Removed, "%+v", r)
				if r.Removed {
					require.Empty(rt, files)
				}
			}
			for p, want := range files {
				b, err := os.ReadFile(p)
				require.NoError(rt, err)
				require.Equal(rt, want, string(b))
			}
			for _, sha := range commits {
				out := f.git(f.checkout, "for-each-ref", "--contains="+sha, "--format=%(refname)")
				if out == "" && exists() { // on a detached HEAD
					f.git(tree.Path, "merge-base", "--is-ancestor", sha, "HEAD")
				} else {
					require.NotEmpty(rt, out, "commit %s is lost after %s", sha, step)
				}
			}
		}
	})
}
