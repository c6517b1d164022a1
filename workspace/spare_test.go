package workspace

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"gaia/domain"
)

func inode(t *testing.T, path string) uint64 {
	st, err := os.Lstat(path)
	require.NoError(t, err)
	return st.Sys().(*syscall.Stat_t).Ino
}

// keep makes spares and returns the first.
func (f *fixture) keep(n int) spare {
	f.t.Helper()
	require.NoError(f.t, f.KeepSpares(ctx, n, 0, false))
	if n == 0 {
		require.Empty(f.t, f.sparePaths())
		return spare{}
	}
	var first spare
	for i := n; i > 0; i-- {
		s, err := f.spareAt(f.sparePath(i))
		require.NoError(f.t, err)
		first = s
	}
	return first
}

// isWhole looks at a tree as git does.
func (f *fixture) isWhole(tree domain.Tree, branch, head string) {
	f.t.Helper()
	require.Equal(f.t, branch, tree.Branch)
	require.Equal(f.t, head, tree.Head)
	require.Equal(f.t, branch, f.git(tree.Path, "symbolic-ref", "--short", "HEAD"))
	require.Equal(f.t, head, f.git(tree.Path, "rev-parse", "HEAD"))
	require.Empty(f.t, f.git(tree.Path, "status", "--porcelain", "--ignored"))
	require.NoError(f.t, Verify(ctx, tree))
	found, err := f.treeAt(tree.Path)
	require.NoError(f.t, err)
	require.False(f.t, found.locked)
	_, err = os.Lstat(filepath.Join(found.dir, spareMarker))
	require.ErrorIs(f.t, err, fs.ErrNotExist)
	require.Contains(f.t, f.git(f.checkout, "worktree", "list", "--porcelain"), "worktree "+tree.Path+"\n")
}

func TestSpareBecomesTheTree(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.keep(1)
	base := f.git(f.checkout, "rev-parse", "HEAD")
	require.Equal(t, base, s.Base)
	was := inode(t, filepath.Join(s.path, "README.md"))
	trees, err := f.Trees(ctx)
	require.NoError(t, err)
	require.Len(t, trees, 1)
	require.True(t, trees[0].Spare)
	require.False(t, trees[0].Complete, "it is no ticket's tree")
	require.Contains(t, f.reap(ReapOptions{})[".spare-1"].Reason, "a spare worktree")
	require.DirExists(t, s.path)

	tree := f.ensure("SHOP-1", "run-1")
	require.True(t, tree.AfterCreate)
	require.Empty(t, tree.Findings)
	require.Equal(t, was, inode(t, filepath.Join(tree.Path, "README.md")), "the file was moved, not made")
	require.Empty(t, f.git(tree.Path, "diff-files"), "git knows all files without reading them")
	f.isWhole(tree, "gaia/SHOP-1", base)
	require.Empty(t, f.sparePaths())

	// The next one has a name of its own at git, and the tree can be removed like any other.
	next := f.keep(1)
	require.NotEqual(t, f.gitDir(tree.Path), next.dir)
	second := f.ensure("SHOP-2", "run-1")
	f.isWhole(second, "gaia/SHOP-2", base)
	f.isWhole(f.ensure("SHOP-3", "run-1"), "gaia/SHOP-3", base)
	f.reaped("SHOP-1")
	f.isWhole(f.ensure("SHOP-2", "run-2"), "gaia/SHOP-2", base)
	f.git(f.checkout, "fsck", "--connectivity-only")
}

func TestSpareAtAnotherCommit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.keep(1)
	same := inode(t, filepath.Join(s.path, ".gitignore"))
	f.write(f.checkout, "README.md", "a better shop\n")
	head := f.commit(f.checkout, "second")
	f.git(f.checkout, "push", "-q")
	tree := f.ensure("SHOP-1", "run-1")
	f.isWhole(tree, "gaia/SHOP-1", head)
	require.Equal(t, same, inode(t, filepath.Join(tree.Path, ".gitignore")))
	require.Empty(t, f.sparePaths())

	// A branch with commits of its own, here or where an earlier run pushed it.
	f.keep(1)
	f.git(f.checkout, "switch", "-q", "-c", "gaia/SHOP-2")
	own := f.commit(f.checkout, "own")
	f.git(f.checkout, "push", "-q", "origin", "HEAD:gaia/SHOP-3")
	f.git(f.checkout, "switch", "-q", "main")
	tree = f.ensure("SHOP-2", "run-1")
	f.isWhole(tree, "gaia/SHOP-2", own)
	require.Equal(t, head, tree.Base)
	f.keep(1)
	tree = f.ensure("SHOP-3", "run-1")
	f.isWhole(tree, "gaia/SHOP-3", own)
	require.Empty(t, f.sparePaths())
}

func TestSpareIsRefreshed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.keep(2)
	same := inode(t, filepath.Join(s.path, ".gitignore"))
	f.write(f.checkout, "README.md", "a better shop\n")
	head := f.commit(f.checkout, "second")
	f.git(f.checkout, "push", "-q")
	s = f.keep(2)
	require.Equal(t, head, s.Base)
	require.Equal(t, same, inode(t, filepath.Join(s.path, ".gitignore")))
	require.Equal(t, head, f.git(s.path, "rev-parse", "HEAD"))

	// What a push writes into the configuration decides nothing about files; this does.
	f.git(f.checkout, "config", "branch.main.description", "main")
	f.keep(2)
	require.Equal(t, same, inode(t, filepath.Join(s.path, ".gitignore")))
	f.git(f.checkout, "config", "core.autocrlf", "true")
	f.isWhole(f.ensure("SHOP-1", "run-1"), "gaia/SHOP-1", head)
	require.Len(t, f.sparePaths(), 2, "it was not used")
	s = f.keep(1)
	b, err := os.ReadFile(filepath.Join(s.path, "README.md"))
	require.NoError(t, err)
	require.Equal(t, "a better shop\r\n", string(b))
	f.keep(0)
	require.Len(t, strings.Split(f.git(f.checkout, "worktree", "list"), "\n"), 2)
}

func TestNoRoomForSpares(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write(f.checkout, "large", strings.Repeat("x", 3<<20))
	f.commit(f.checkout, "large")
	f.git(f.checkout, "push", "-q")
	free, err := f.Free()
	require.NoError(t, err)
	k := keeper{f.spareJob(f.sparePath(1))}
	size, err := k.estimate(ctx)
	require.NoError(t, err)
	require.InDelta(t, 3<<20, size, 16<<10)
	k.spareSize = map[string]uint64{f.git(f.checkout, "rev-parse", "HEAD"): 1 << 60}
	require.NoError(t, f.KeepSpares(ctx, 1, 0, false))
	require.Empty(t, f.sparePaths())
	k.spareSize = nil
	require.NoError(t, f.KeepSpares(ctx, 1, 0, true))
	require.Empty(t, f.sparePaths(), "the machine has other things to do")
	f.keep(1)
	require.NoError(t, f.KeepSpares(ctx, 1, 0, true))
	require.Len(t, f.sparePaths(), 1)
	require.NoError(t, f.KeepSpares(ctx, 1, 2*free, false))
	require.Empty(t, f.sparePaths(), "the disk is needed for other things")
}

// A spare that is not exactly as it was made is neither used nor touched.
func TestChangedSpare(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(f *fixture, s spare) (undo func()){
		"new file":     func(f *fixture, s spare) func() { f.write(s.path, "new", "work"); return nil },
		"changed file": func(f *fixture, s spare) func() { f.write(s.path, "README.md", "work"); return nil },
		"ignored file": func(f *fixture, s spare) func() { f.write(s.path, "ignored/new", "work"); return nil },
		"deleted file": func(f *fixture, s spare) func() {
			require.NoError(f.t, os.Remove(filepath.Join(s.path, "README.md")))
			return nil
		},
		"written in place": func(f *fixture, s spare) func() {
			name := filepath.Join(s.path, "README.md")
			st, err := os.Stat(name)
			require.NoError(f.t, err)
			f.write(s.path, "README.md", "SHOP\n") // the same size, and the same time
			require.NoError(f.t, os.Chtimes(name, st.ModTime(), st.ModTime()))
			return nil
		},
		"emptied file": func(f *fixture, s spare) func() { f.write(s.path, "README.md", ""); return nil },
		"commit":       func(f *fixture, s spare) func() { f.commit(s.path, "work"); return nil },
		"branch":       func(f *fixture, s spare) func() { f.git(s.path, "switch", "-q", "-c", "work"); return nil },
		"submodules":   func(f *fixture, s spare) func() { f.write(s.dir, "modules/x/HEAD", "work"); return nil },
		"index lock":   func(f *fixture, s spare) func() { f.write(s.dir, "index.lock", ""); return nil },
		"process": func(f *fixture, s spare) func() {
			cmd := exec.Command("sleep", "600")
			cmd.Dir = s.path
			require.NoError(f.t, cmd.Start())
			return func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
		},
		"lock": func(f *fixture, s spare) func() {
			f.git(f.checkout, "worktree", "lock", "--reason", "mine", s.path)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.racy = 0
			s := f.keep(1)
			undo := change(f, s)
			if undo != nil {
				defer undo()
			}
			list := func() string {
				out, _ := f.tryGit(s.path, "status", "--porcelain", "--branch", "--ignored")
				return out
			}
			before := list()
			tree := f.ensure("SHOP-1", "run-1")
			f.isWhole(tree, "gaia/SHOP-1", f.git(f.checkout, "rev-parse", "main"))
			require.NoFileExists(t, filepath.Join(tree.Path, "new"))
			require.DirExists(t, s.path)
			if name != "lock" {
				require.NoError(t, f.KeepSpares(ctx, 1, 0, false)) // nothing is to be done
			}
			err := f.KeepSpares(ctx, 0, 0, false)
			require.ErrorContains(t, err, s.path)
			require.ErrorContains(t, err, "git -C "+f.checkout+" worktree")
			f.commit(f.checkout, "on")
			f.git(f.checkout, "push", "-q")
			require.Error(t, f.KeepSpares(ctx, 1, 0, false))
			require.Equal(t, before, list())
		})
	}
}

// What changes no file is no reason to leave a spare alone.
func TestTouchedSpare(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.keep(1)
	require.NotEmpty(t, s.Print)
	now, err := s.print(ctx)
	require.NoError(t, err)
	require.Equal(t, s.Print, now)
	require.NoError(t, os.Chtimes(filepath.Join(s.path, "README.md"), time.Time{}, time.Now().Add(-time.Hour)))
	now, err = s.print(ctx)
	require.NoError(t, err)
	require.NotEqual(t, s.Print, now)
	f.isWhole(f.ensure("SHOP-1", "run-1"), "gaia/SHOP-1", s.Base)
	require.Empty(t, f.sparePaths())
}

// What a crash left of the making is made again, and what somebody put there is saved before.
func TestIncompleteSpare(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.racy = 0
	base := f.git(f.checkout, "rev-parse", "HEAD")
	s := f.keep(1)
	require.NoError(t, s.open(spareLock))
	f.write(s.path, "new", "work")
	f.git(s.path, "commit", "-q", "--allow-empty", "-m", "work")
	tip := f.git(s.path, "rev-parse", "HEAD")
	f.isWhole(f.ensure("SHOP-1", "run-1"), "gaia/SHOP-1", base)
	require.FileExists(t, filepath.Join(s.path, "new"))
	s = f.keep(1)
	require.NoFileExists(t, filepath.Join(s.path, "new"))
	require.Equal(t, "work", f.git(f.checkout, "show", "refs/gaia/saved/spare-1/none:new"))
	f.git(f.checkout, "merge-base", "--is-ancestor", tip, "refs/gaia/saved/spare-1/none")

	// Its folder is gone.
	require.NoError(t, os.RemoveAll(s.path))
	f.keep(1)
	// Something else is in its place.
	f.keep(0)
	f.write(f.root, ".spare-1/mine", "work")
	require.ErrorContains(t, f.KeepSpares(ctx, 1, 0, false), "move it away")
	require.FileExists(t, filepath.Join(f.root, ".spare-1/mine"))
	f.isWhole(f.ensure("SHOP-2", "run-1"), "gaia/SHOP-2", base)
}

// A spare that somebody has moved away, and left a link to, is theirs.
func TestSpareMovedAway(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.racy = 0
	s := f.keep(1)
	moved := filepath.Join(f.base, "moved")
	require.NoError(t, os.Rename(s.path, moved))
	require.NoError(t, os.Symlink(moved, s.path))
	f.write(moved, "ignored/work", "mine")
	for _, n := range []int{1, 0} {
		require.ErrorContains(t, f.KeepSpares(ctx, n, 0, false), "mv "+s.path)
	}
	tree := f.ensure("SHOP-1", "run-1")
	require.DirExists(t, tree.Path)
	require.FileExists(t, filepath.Join(moved, "ignored/work"))
	require.FileExists(t, filepath.Join(moved, "README.md"))
}

// A tree of which git says right after its checkout that it is not clean is made once, and not again and again.
func TestSpareThatIsNeverClean(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.racy = 0
	f.write(f.checkout, "text", "one\r\ntwo\n")
	f.commit(f.checkout, "mixed")
	f.write(f.checkout, ".gitattributes", "text text eol=lf\n")
	f.git(f.checkout, "add", ".gitattributes")
	f.git(f.checkout, "commit", "-q", "-m", "attributes")
	f.git(f.checkout, "push", "-q")
	require.ErrorContains(t, f.KeepSpares(ctx, 1, 0, false), "would not be clean")
	require.Empty(t, f.sparePaths())
	require.NoError(t, f.KeepSpares(ctx, 1, 0, false))
	require.Empty(t, f.sparePaths())
}

func TestParallelClaimsOfSpares(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.racy = 0
	base := f.git(f.checkout, "rev-parse", "HEAD")
	f.keep(3)
	var group errgroup.Group
	for n := range 6 {
		group.Go(func() error { _, err := ensureOnce(f.Git, fmt.Sprint("SHOP-", n), "run-1"); return err })
	}
	group.Go(func() error {
		for range 6 {
			if err := f.KeepSpares(ctx, 2, 0, false); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, group.Wait())
	f.keep(2)
	for n := range 6 {
		f.isWhole(f.ensure(fmt.Sprint("SHOP-", n), "run-2"), fmt.Sprint("gaia/SHOP-", n), base)
	}
}

// A conductor that dies at one of these points while it takes a spare leaves it to the next, which makes the same tree; or
// to whoever keeps the spares, should nobody want that tree any more.
func TestCrashWhileASpareIsTaken(t *testing.T) {
	t.Parallel()
	reason := makingReason("SHOP-1", "run-1", "")
	steps := []struct {
		name string
		do   func(j *job, s spare) error
	}{
		{"locked", func(j *job, s spare) error {
			return os.WriteFile(filepath.Join(s.dir, "locked"), []byte(reason+s.Base), 0o600)
		}},
		{"opened", func(j *job, s spare) error { return s.open(reason + s.Base) }},
		{"registered", func(j *job, s spare) error { return j.point(s.dir) }},
		{"moved", func(j *job, s spare) error { return os.Rename(s.path, j.path) }},
		{"branched", func(j *job, s spare) error {
			_, err := call{dir: j.path}.run(ctx, "switch", "--quiet", "-c", "gaia/SHOP-1")
			return err
		}},
	}
	for last, step := range steps {
		for _, wanted := range []bool{true, false} {
			t.Run(fmt.Sprint(step.name, " ", wanted), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				f.racy = 0
				s := f.keep(1)
				j := &job{Git: f.Git, key: "SHOP-1", path: f.Path("SHOP-1")}
				for _, step := range steps[:last+1] {
					require.NoError(t, step.do(j, s))
				}
				if !wanted {
					f.keep(1)
					f.isWhole(f.ensure("SHOP-2", "run-1"), "gaia/SHOP-2", s.Base)
				}
				tree := f.ensure("SHOP-1", "run-2")
				require.Empty(t, tree.Findings)
				f.isWhole(tree, "gaia/SHOP-1", s.Base)
				f.keep(1)
				f.keep(0)
				f.git(f.checkout, "fsck", "--connectivity-only")
				require.Empty(t, f.git(f.checkout, "for-each-ref", "refs/gaia/"), "there was nothing to save")
			})
		}
	}
}

// The same by a kill at any point, of who keeps spares and of who takes them.
func TestKilledWithSpares(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.racy = 0
	for i := range 1000 {
		f.write(f.checkout, fmt.Sprintf("src/%d/%d.txt", i%50, i), strings.Repeat(strconv.Itoa(i)+"\n", 20))
	}
	base := f.commit(f.checkout, "large")
	f.git(f.checkout, "push", "-q")
	kill := func(cmd *exec.Cmd, within time.Duration, children bool) {
		require.NoError(t, cmd.Start())
		time.Sleep(rand.N(within)) // the point of the kill, not a wait
		var victims []int
		if children {
			victims = descendants(cmd.Process.Pid)
		}
		_ = cmd.Process.Kill()
		for _, pid := range victims {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = cmd.Wait()
	}
	c := f.config()
	rounds := 10
	if testing.Short() {
		rounds = 5
	}
	for n := 1; n <= rounds; n++ {
		keep := exec.Command(os.Args[0])
		keep.Env = append(os.Environ(), "GAIA_TEST_SPARES="+strings.Join([]string{c.Checkout, c.Root, c.Locks, "1"}, "\n"))
		kill(keep, 600*time.Millisecond, n%2 == 0)
		if n%3 != 0 { // else what the kill left is met by who takes
			require.Eventually(t, func() bool {
				require.NoError(t, f.KeepSpares(ctx, 1, 0, false))
				_, err := f.spareAt(f.sparePath(1)) // a git that has outlived its conductor keeps the lock
				return err == nil
			}, time.Minute, 20*time.Millisecond)
		}
		take, _ := f.process(n, n)
		kill(take, 200*time.Millisecond, n%2 == 0)
		if n%2 == 0 {
			base = f.commit(f.checkout, "on")
			f.git(f.checkout, "push", "-q")
		}
		tree := f.ensure(fmt.Sprint("SHOP-", n), "run-again")
		require.FileExists(t, filepath.Join(tree.Path, "src/49/999.txt"))
		head := base
		if tree.Head != base { // it was complete before the base went on
			head = f.git(f.checkout, "rev-parse", "main~1")
		}
		f.isWhole(tree, fmt.Sprint("gaia/SHOP-", n), head)
	}
	require.Eventually(t, func() bool {
		require.NoError(t, f.KeepSpares(ctx, 0, 0, false))
		return len(f.sparePaths()) == 0
	}, time.Minute, 20*time.Millisecond)
	f.git(f.checkout, "fsck", "--connectivity-only")
	require.Empty(t, f.git(f.checkout, "for-each-ref", "refs/gaia/"), "there was nothing to save")
}

// A claim ends the making of a spare, and does not wait for it.
func TestSparesAreInterrupted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.racy = time.Hour
	limited, cancel := context.WithCancel(ctx)
	done := make(chan error)
	go func() { done <- f.KeepSpares(limited, 1, 0, false) }()
	require.Eventually(t, func() bool { _, err := os.Lstat(filepath.Join(f.sparePath(1), "README.md")); return err == nil }, time.Minute, time.Millisecond)
	f.ensure("SHOP-1", "run-1") // beside it
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	f.racy = 0
	f.keep(1)
}

// Where nothing is to be done no process is started.
func TestKeptSparesStartNoGit(t *testing.T) {
	f := newFixture(t)
	path := os.Getenv("PATH")
	quiet := func(n int) error {
		t.Setenv("PATH", t.TempDir())
		defer t.Setenv("PATH", path)
		return f.KeepSpares(t.Context(), n, 0, false)
	}
	require.NoError(t, quiet(0))
	f.keep(2)
	require.Eventually(t, func() bool {
		f.keep(2)
		return quiet(2) == nil
	}, 20*time.Second, 50*time.Millisecond)
	require.Error(t, quiet(0))
}

func TestNoRefs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const local, far = "refs/heads/gaia/SHOP-1", "refs/remotes/origin/gaia/SHOP-1"
	require.True(t, f.noRefs(local, far))
	f.git(f.checkout, "branch", "gaia/SHOP-10")
	f.git(f.checkout, "pack-refs", "--all")
	require.True(t, f.noRefs(local, far))
	f.git(f.checkout, "branch", "gaia/SHOP-1")
	require.False(t, f.noRefs(local, far))
	f.git(f.checkout, "pack-refs", "--all")
	require.False(t, f.noRefs(local, far))
	f.git(f.checkout, "branch", "-D", "gaia/SHOP-1")
	require.True(t, f.noRefs(local, far))
	f.git(f.checkout, "push", "-q", "origin", "main:gaia/SHOP-1")
	require.False(t, f.noRefs(local, far))
	f.git(f.checkout, "push", "-q", "origin", ":gaia/SHOP-1")
	require.True(t, f.noRefs(local, far))
	f.git(f.checkout, "branch", "gaia/x")
	require.NoError(t, os.Rename(filepath.Join(f.common, "refs/heads/gaia"), filepath.Join(f.base, "elsewhere")))
	require.NoError(t, os.Symlink(filepath.Join(f.base, "elsewhere"), filepath.Join(f.common, "refs/heads/gaia")))
	require.False(t, f.noRefs(local, far), "who knows where that leads")

	plain := fixtureIn(t, t.TempDir(), false)
	require.True(t, plain.noRefs(local, far))
}
