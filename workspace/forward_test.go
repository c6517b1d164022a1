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
