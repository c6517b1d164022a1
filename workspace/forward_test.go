package workspace

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/domain"
)

// mainMoves makes a commit with a file on the default branch, as a person does who corrects a hook.
func (f *fixture) mainMoves(name, content string) string {
	f.t.Helper()
	f.write(f.checkout, name, content)
	sha := f.commit(f.checkout, "correct "+name)
	f.git(f.checkout, "push", "-q")
	return sha
}

// A person who has corrected a hook expects the corrected one to be run, also in a tree that is there already.
func TestATreeThatNobodyHasBegunInIsBroughtForward(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tree := f.ensure("SHOP-1", "run-1")
	f.write(tree.Path, "ignored/left", "by the hook that failed\n")
	first := f.mainMoves("conf", "one\n")
	again := f.ensure("SHOP-1", "run-2")
	require.Equal(t, domain.Tree{Path: tree.Path, Branch: tree.Branch, Base: first, Head: first, AfterCreate: true}, again)
	require.FileExists(t, filepath.Join(tree.Path, "conf"))
	require.FileExists(t, filepath.Join(tree.Path, "ignored/left"), "nothing is taken away")
	require.Equal(t, "gaia/SHOP-1", f.git(tree.Path, "symbolic-ref", "--short", "HEAD"))
	require.Empty(t, f.git(tree.Path, "status", "--porcelain"))
	m, err := ReadMarker(f.gitDir(tree.Path))
	require.NoError(t, err)
	require.Equal(t, first, m.Base)
	require.Empty(t, m.Next)

	second := f.mainMoves("conf", "two\n")
	require.Equal(t, second, f.ensure("SHOP-1", "run-3").Base, "as often as it takes")
}

// The tree may have been moved when a crash kept its base from being written down, or not.
func TestBringingATreeForwardIsCutShort(t *testing.T) {
	t.Parallel()
	for _, moved := range []bool{false, true} {
		f := newFixture(t)
		tree := f.ensure("SHOP-1", "run-1")
		first := f.mainMoves("conf", "one\n")
		m, err := ReadMarker(f.gitDir(tree.Path))
		require.NoError(t, err)
		m.Next = first
		require.NoError(t, m.write(f.gitDir(tree.Path)))
		if moved {
			f.git(tree.Path, "merge", "-q", "--ff-only", first)
		}
		second := f.mainMoves("conf", "two\n")
		again := f.ensure("SHOP-1", "run-2")
		require.Equal(t, second, again.Base, "moved: %v", moved)
		require.Equal(t, second, again.Head)
		require.Empty(t, again.Behind)
	}
}

// What may be somebody's work stays as it is, and what is told helps.
func TestATreeThatStaysSaysWhyAndWhatHelps(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, why string
		begin     func(f *fixture, tree domain.Tree)
		mend      func(f *fixture, tree domain.Tree, base string) []string // also done
	}{
		{"changed", "it holds changes that are not committed", func(f *fixture, tree domain.Tree) { f.write(tree.Path, "new", "mine\n") },
			func(f *fixture, tree domain.Tree, _ string) []string {
				f.git(f.checkout, "worktree", "remove", "--force", tree.Path)
				return []string{"git -C " + f.checkout + " worktree remove --force " + tree.Path}
			}},
		{"a file that git does not look at", "git was told not to look at README.md", func(f *fixture, tree domain.Tree) {
			f.git(tree.Path, "update-index", "--skip-worktree", "README.md")
			f.write(tree.Path, "README.md", "mine\n")
		}, nil},
		{"committed", "its branch has commits of its own", func(f *fixture, tree domain.Tree) { f.commit(tree.Path, "mine") },
			func(f *fixture, tree domain.Tree, base string) []string {
				f.git(tree.Path, "merge", "-q", short(base))
				f.git(f.checkout, "worktree", "remove", tree.Path)
				return []string{"git -C " + tree.Path + " merge " + short(base), "git -C " + f.checkout + " worktree remove " + tree.Path}
			}},
		{"merged since", "its branch has commits of its own", func(f *fixture, tree domain.Tree) {
			f.commit(tree.Path, "mine")
			f.git(f.checkout, "merge", "-q", "--ff-only", tree.Branch)
		}, nil},
		{"pushed", "origin has commits of its branch that it lacks", func(f *fixture, tree domain.Tree) {
			f.git(tree.Path, "switch", "-q", "--detach")
			f.commit(tree.Path, "elsewhere")
			f.git(tree.Path, "push", "-q", "origin", "HEAD:refs/heads/"+tree.Branch)
			f.git(tree.Path, "switch", "-q", tree.Branch)
			f.git(f.checkout, "fetch", "-q")
		}, func(f *fixture, tree domain.Tree, base string) []string {
			f.git(tree.Path, "merge", "-q", "origin/"+tree.Branch)
			f.git(tree.Path, "merge", "-q", short(base))
			f.git(f.checkout, "worktree", "remove", tree.Path)
			return []string{"git -C " + tree.Path + " merge origin/" + tree.Branch, "git -C " + tree.Path + " merge " + short(base)}
		}},
		{"prepared", "after_create has finished in it", func(f *fixture, tree domain.Tree) {
			require.NoError(f.t, MarkAfterCreate(f.gitDir(tree.Path)))
		}, func(f *fixture, tree domain.Tree, _ string) []string {
			f.git(f.checkout, "worktree", "remove", tree.Path)
			return []string{"git -C " + f.checkout + " worktree remove " + tree.Path}
		}},
		{"on another branch", "another branch than the ticket's", func(f *fixture, tree domain.Tree) { f.git(tree.Path, "switch", "-q", "-c", "idea") },
			func(f *fixture, tree domain.Tree, _ string) []string {
				f.git(tree.Path, "switch", "-q", tree.Branch)
				return []string{"git -C " + tree.Path + " switch " + tree.Branch}
			}},
		{"with submodules", "it has submodules", func(f *fixture, _ domain.Tree) { f.write(f.checkout, ".gitmodules", "") },
			func(f *fixture, tree domain.Tree, _ string) []string {
				f.git(f.checkout, "worktree", "remove", "--force", tree.Path)
				return []string{"git -C " + f.checkout + " worktree remove --force " + tree.Path}
			}},
		{"an ignored file in the way", "git does not bring it forward", func(f *fixture, tree domain.Tree) {
			f.write(tree.Path, "ignored/conf", "mine\n")
			f.write(f.checkout, "ignored/conf", "theirs\n")
			f.git(f.checkout, "add", "-f", "ignored/conf")
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			tree := f.ensure("SHOP-1", "run-1")
			c.begin(f, tree)
			look := func() string {
				files, err := os.ReadDir(tree.Path)
				require.NoError(t, err)
				out := f.git(tree.Path, "status", "--porcelain", "--branch") + f.git(tree.Path, "rev-parse", "HEAD", tree.Branch)
				for _, e := range files {
					out += " " + e.Name()
				}
				return out
			}
			before := look()
			base := f.mainMoves("conf", "one\n")
			again := f.ensure("SHOP-1", "run-2")
			require.Equal(t, before, look())
			require.Equal(t, tree.Base, again.Base)
			require.Contains(t, again.Behind, "the hook is that of the commit "+short(tree.Base)+", where this worktree starts, and new ones start from "+short(base))
			require.Contains(t, again.Behind, c.why)
			require.Contains(t, again.Behind, "gaia ticket resume SHOP-1")
			m, err := ReadMarker(f.gitDir(tree.Path))
			require.NoError(t, err)
			require.Empty(t, m.Next)
			if c.mend == nil {
				return
			}
			for _, command := range c.mend(f, tree, base) {
				require.Contains(t, again.Behind, command)
			}
			mended := f.ensure("SHOP-1", "run-3")
			require.Equal(t, base, mended.Base)
			require.Empty(t, mended.Behind)
		})
	}
	t.Run("somebody in it", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		tree := f.ensure("SHOP-1", "run-1")
		sleeper := exec.Command("sleep", "600")
		sleeper.Dir = tree.Path
		require.NoError(t, sleeper.Start())
		base := f.mainMoves("conf", "one\n")
		again := f.ensure("SHOP-1", "run-2")
		require.Equal(t, tree.Base, again.Head)
		require.Contains(t, again.Behind, "(sleep) works in it. If it was corrected since, end it, then gaia ticket resume SHOP-1")
		require.NoError(t, sleeper.Process.Kill())
		_ = sleeper.Wait()
		require.Equal(t, base, f.ensure("SHOP-1", "run-3").Head)
	})
}

// A git that fails in the middle, for want of space or of the server of large files, leaves what differs half checked out.
func TestBringingATreeForwardFailsInTheMiddle(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write(f.checkout, ".gitattributes", "*.large filter=large\n")
	f.write(f.checkout, "gone", "old\n")
	f.write(f.checkout, "kept", "old\n")
	f.commit(f.checkout, "before")
	f.git(f.checkout, "push", "-q")
	f.git(f.checkout, "config", "filter.large.required", "true")
	f.git(f.checkout, "config", "filter.large.clean", "cat")
	f.git(f.checkout, "config", "filter.large.smudge", "cat")
	tree := f.ensure("SHOP-1", "run-1")
	f.git(f.checkout, "rm", "-q", "gone")
	f.write(f.checkout, "a/new", "new\n")
	f.write(f.checkout, "kept", "new\n")
	base := f.mainMoves("m.large", "large\n")
	f.git(f.checkout, "config", "filter.large.smudge", "false")
	again := f.ensure("SHOP-1", "run-2")
	require.Equal(t, tree.Base, again.Head)
	require.Contains(t, again.Behind, "git does not bring it forward (")
	require.Empty(t, f.git(tree.Path, "status", "--porcelain"), "what git has done of it is undone")
	f.git(f.checkout, "config", "filter.large.smudge", "cat")
	again = f.ensure("SHOP-1", "run-3")
	require.Equal(t, base, again.Head)
	require.Empty(t, again.Behind)
	require.Empty(t, again.Findings)
}

// What a git that was cut short has left is not taken for somebody's changes; what somebody has left is.
func TestBringingATreeForwardIsCutShortInTheMiddle(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		moved bool
		left  func(f *fixture, path, next string)
		stays string // the changes that nobody takes away
	}{
		{"files", false, func(f *fixture, path, _ string) {
			require.NoError(f.t, os.Remove(filepath.Join(path, "gone")))
			f.write(path, "a/new", "n")
			f.write(path, "kept", "")
		}, ""},
		{"the index, too", false, func(f *fixture, path, next string) { f.git(path, "read-tree", "-m", "-u", "HEAD", next) }, ""},
		{"a file where a folder was", false, func(f *fixture, path, _ string) {
			require.NoError(f.t, os.RemoveAll(filepath.Join(path, "folder")))
			f.write(path, "folder", "new\n")
		}, ""},
		{"emptied files", true, func(f *fixture, path, _ string) {
			require.NoError(f.t, os.Truncate(filepath.Join(path, "a/new"), 0))
			f.write(path, "gone", "old\n")
		}, ""},
		{"nothing", true, func(*fixture, string, string) {}, ""},
		{"somebody's file, too", false, func(f *fixture, path, _ string) {
			f.write(path, "a/new", "new\n")
			f.write(path, "theirs", "theirs\n")
		}, "?? a/\n?? theirs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.write(f.checkout, "gone", "old\n")
			f.write(f.checkout, "kept", "old\n")
			f.write(f.checkout, "folder/file", "old\n")
			f.commit(f.checkout, "before")
			f.git(f.checkout, "push", "-q")
			tree := f.ensure("SHOP-1", "run-1")
			f.git(f.checkout, "rm", "-q", "-r", "gone", "folder")
			f.write(f.checkout, "a/new", "new\n")
			f.write(f.checkout, "folder", "new\n")
			next := f.mainMoves("kept", "new\n")
			m, err := ReadMarker(f.gitDir(tree.Path))
			require.NoError(t, err)
			m.Next = next
			require.NoError(t, m.write(f.gitDir(tree.Path)))
			if c.moved {
				f.git(tree.Path, "merge", "-q", "--ff-only", next)
			}
			c.left(f, tree.Path, next)
			dirty := f.git(tree.Path, "status", "--porcelain") != ""
			again := f.ensure("SHOP-1", "run-2")
			require.Equal(t, c.stays, f.git(tree.Path, "status", "--porcelain"))
			m, err = ReadMarker(f.gitDir(tree.Path))
			require.NoError(t, err)
			require.Empty(t, m.Next)
			if c.stays != "" {
				require.Equal(t, tree.Base, again.Head)
				require.Contains(t, again.Behind, "it holds changes that are not committed")
				return
			}
			require.Equal(t, next, again.Head)
			require.Equal(t, next, again.Base)
			require.Empty(t, again.Behind)
			if dirty {
				require.Len(t, again.Findings, 2)
				require.Contains(t, again.Findings[0], "a copy is saved in refs/gaia/saved/SHOP-1/run-2")
				require.Contains(t, again.Findings[1], "taken away")
			}
		})
	}
}
