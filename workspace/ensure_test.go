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
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
)

var ctx = context.Background()

func TestEnsureMakesATree(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tree := f.ensure("SHOP-7", "run-1")
	require.Equal(t, filepath.Join(f.root, "SHOP-7"), tree.Path)
	require.Equal(t, "gaia/SHOP-7", tree.Branch)
	require.Equal(t, f.git(f.checkout, "rev-parse", "main"), tree.Base)
	require.Equal(t, tree.Base, tree.Head)
	require.True(t, tree.AfterCreate)
	require.Empty(t, tree.Findings)
	require.FileExists(t, filepath.Join(tree.Path, "README.md"))
	require.Empty(t, f.git(tree.Path, "status", "--porcelain"))
	require.Equal(t, "gaia/SHOP-7", f.git(tree.Path, "symbolic-ref", "--short", "HEAD"))
	_, err := f.tryGit(tree.Path, "rev-parse", "--abbrev-ref", "@{upstream}")
	require.Error(t, err, "the branch must not track the default branch")
	require.Empty(t, f.git(f.checkout, "status", "--porcelain"), "the checkout must not see it")
	require.NotContains(t, f.git(f.checkout, "worktree", "list", "--porcelain"), "locked")

	m, err := ReadMarker(f.gitDir(tree.Path))
	require.NoError(t, err)
	require.Equal(t, "id-SHOP-7", m.Ticket)
	require.Equal(t, "run-1", m.Run)

	require.NoError(t, MarkAfterCreate(f.gitDir(tree.Path)))
	again := f.ensure("SHOP-7", "run-2")
	require.False(t, again.AfterCreate)
	tree.AfterCreate = false
	require.Equal(t, tree, again)
}

func TestEnsureNeedsTheLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, _, err := f.Ensure(ctx, domain.TreeRequest{Ticket: "t", Identifier: "SHOP-1", Run: "r"})
	require.ErrorIs(t, err, domain.ErrInvalid)
}

// E6: two runs of one ticket never make or take the tree at once, over processes and Git values.
func TestLockIsHeldAndNamesItsHolder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	unlock, err := f.Lock(ctx, "SHOP-1")
	require.NoError(t, err)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = f.open().Lock(short, "SHOP-1")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Contains(t, err.Error(), fmt.Sprintf("held by process %d", os.Getpid()))
	other, err := f.Lock(ctx, "SHOP-2")
	require.NoError(t, err)
	other()
	unlock()
	unlock()
	again, err := f.open().Lock(ctx, "SHOP-1")
	require.NoError(t, err)
	again()
}

// E1
func TestBranchCheckedOutElsewhereHolds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.git(f.checkout, "switch", "-q", "-c", "gaia/SHOP-1")
	f.refused("SHOP-1", "gaia/SHOP-1", f.checkout, "git -C "+f.checkout+" switch")
	f.git(f.checkout, "switch", "-q", "--detach")
	f.ensure("SHOP-1", "run-1")

	t.Run("by a rebase", func(t *testing.T) {
		f.git(f.checkout, "branch", "gaia/SHOP-2")
		elsewhere := filepath.Join(f.base, "elsewhere")
		f.git(f.checkout, "worktree", "add", "-q", elsewhere, "gaia/SHOP-2")
		f.write(elsewhere, "a", "1")
		f.commit(elsewhere, "one")
		_, err := f.tryGit(elsewhere, "rebase", "-q", "--exec", "false", "HEAD~1")
		require.Error(t, err)
		f.refused("SHOP-2", "gaia/SHOP-2", elsewhere)
	})
	t.Run("in a folder that is gone", func(t *testing.T) {
		gone := filepath.Join(f.base, "gone")
		f.git(f.checkout, "worktree", "add", "-q", "-b", "gaia/SHOP-3", gone)
		require.NoError(t, os.RemoveAll(gone))
		f.refused("SHOP-3", gone, "worktree remove --force")
	})
}

// Git looks for other worktrees with the branch when it begins to check it out, and not again at the end, which may be minutes
// later.
func TestTheBranchIsWantedElsewhereWhileItIsCheckedOut(t *testing.T) {
	t.Parallel()
	// A person does that at the worst moment: git has begun to write the files of the tree.
	begin := func(t *testing.T) (f *fixture, head, said string) {
		f = newFixture(t)
		f.write(f.checkout, ".gitattributes", "*.big filter=big\n")
		f.commit(f.checkout, "attributes")
		f.git(f.checkout, "push", "-q")
		f.keep(1)
		f.git(f.checkout, "switch", "-q", "-c", "gaia/SHOP-1")
		f.write(f.checkout, "a.big", "1\n")
		head, said = f.commit(f.checkout, "big"), filepath.Join(f.base, "said")
		f.git(f.checkout, "switch", "-q", "main")
		f.git(f.checkout, "config", "filter.big.smudge", "env -u GIT_DIR -u GIT_WORK_TREE -u GIT_INDEX_FILE -u GIT_PREFIX"+
			" git -C "+quote(f.checkout)+" -c filter.big.smudge=cat switch -q gaia/SHOP-1 2>"+quote(said)+"; cat")
		return f, head, said
	}
	t.Run("git refuses it to them", func(t *testing.T) {
		t.Parallel()
		f, head, said := begin(t) // the other filter is another setting: the spare is not taken
		f.isWhole(f.ensure("SHOP-1", "run-1"), "gaia/SHOP-1", head)
		require.Equal(t, "main", f.git(f.checkout, "symbolic-ref", "--short", "HEAD"))
		words, err := os.ReadFile(said)
		require.NoError(t, err)
		require.Contains(t, string(words), "gaia/SHOP-1")
	})
	t.Run("a tree that was a spare waits for them", func(t *testing.T) {
		t.Parallel()
		f, head, _ := begin(t)
		require.NoError(t, f.KeepSpares(ctx, 1, 0, false))
		f.refused("SHOP-1", "gaia/SHOP-1", f.checkout, "switch --detach")
		f.git(f.checkout, "config", "filter.big.smudge", "cat")
		f.refused("SHOP-1", "gaia/SHOP-1", f.checkout, "switch --detach")
		f.git(f.checkout, "switch", "-q", "main")
		f.isWhole(f.ensure("SHOP-1", "run-2"), "gaia/SHOP-1", head)
	})
}

// E2
func TestNothingRunsInTheParentCheckout(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tree := f.ensure("SHOP-1", "run-1")
	require.NoError(t, Verify(ctx, tree))
	inside := filepath.Join(f.checkout, "sub")
	require.NoError(t, os.Mkdir(inside, 0o755))
	for _, path := range []string{f.checkout, inside, f.base, "/nonexistent"} {
		wrong := tree
		wrong.Path = path
		require.Error(t, Verify(ctx, wrong), path)
	}
	wrong := tree
	wrong.Branch = "main"
	require.Error(t, Verify(ctx, wrong))
	require.NoError(t, os.Remove(filepath.Join(tree.Path, ".git")))
	require.Error(t, Verify(ctx, tree))
}

// E3
func TestBaseIsTheRemotesDefaultBranch(t *testing.T) {
	t.Parallel()
	t.Run("behind", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		sha := f.pushElsewhere("from another")
		require.Equal(t, sha, f.ensure("SHOP-1", "run-1").Base)
	})
	t.Run("ahead", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		want := f.git(f.checkout, "rev-parse", "main")
		f.commit(f.checkout, "not pushed")
		require.Equal(t, want, f.ensure("SHOP-1", "run-1").Base)
	})
	t.Run("no remote", func(t *testing.T) {
		t.Parallel()
		f := fixtureIn(t, t.TempDir(), false)
		f.git(f.checkout, "switch", "-q", "-c", "feature")
		f.commit(f.checkout, "feature")
		require.Equal(t, f.git(f.checkout, "rev-parse", "main"), f.ensure("SHOP-1", "run-1").Base)
	})
	t.Run("origin/HEAD missing", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.git(f.origin, "branch", "develop", "main")
		f.git(f.origin, "symbolic-ref", "HEAD", "refs/heads/develop")
		f.git(f.checkout, "remote", "set-head", "origin", "--delete")
		f.ensure("SHOP-1", "run-1")
		name, err := f.DefaultBranch(ctx)
		require.NoError(t, err)
		require.Equal(t, "develop", name)
	})
	t.Run("origin/HEAD leads nowhere", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.git(f.checkout, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/gone")
		name, err := f.DefaultBranch(ctx)
		require.NoError(t, err)
		require.Equal(t, "main", name)
	})
	t.Run("fetch fails", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		require.NoError(t, os.Rename(f.origin, f.origin+".away"))
		tree := f.ensure("SHOP-1", "run-1")
		require.Len(t, tree.Findings, 1)
		require.Contains(t, tree.Findings[0], "fetch from origin failed")
		require.Contains(t, tree.Findings[0], "old")
	})
	t.Run("fetch hangs", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.git(f.checkout, "config", "core.sshCommand", "sleep 600; true")
		f.git(f.checkout, "remote", "set-url", "origin", "ssh://nowhere.invalid/x")
		c := f.config()
		c.FetchTimeout = 300 * time.Millisecond
		g, err := New(c)
		require.NoError(t, err)
		begin := time.Now()
		tree, err := ensureOnce(g, "SHOP-1", "run-1")
		require.NoError(t, err)
		require.Contains(t, tree.Findings[0], "not done within")
		require.Less(t, time.Since(begin), 60*time.Second)
		begin = time.Now()
		_, err = ensureOnce(g, "SHOP-2", "run-2") // the failure is remembered
		require.NoError(t, err)
		require.Less(t, time.Since(begin), 60*time.Second)
	})
	t.Run("fetched a moment ago", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		first := f.ensure("SHOP-1", "run-1").Base
		f.pushElsewhere("later")
		require.Equal(t, first, f.ensure("SHOP-2", "run-2").Base)
	})
	t.Run("unborn", func(t *testing.T) {
		t.Parallel()
		f := fixtureIn(t, t.TempDir(), false)
		empty := filepath.Join(f.base, "empty")
		f.git(f.base, "init", "-q", empty)
		c := f.config()
		c.Checkout = empty
		g, err := New(c)
		require.NoError(t, err)
		_, err = ensureOnce(g, "SHOP-1", "run-1")
		require.ErrorContains(t, err, "no commit yet")
		require.ErrorContains(t, err, "commit --allow-empty")
	})
	t.Run("shallow", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.pushElsewhere("second")
		shallow := filepath.Join(f.base, "shallow")
		f.git(f.base, "clone", "-q", "--depth=1", "file://"+f.origin, shallow)
		c := f.config()
		c.Checkout = shallow
		g, err := New(c)
		require.NoError(t, err)
		tree, err := ensureOnce(g, "SHOP-1", "run-1")
		require.NoError(t, err)
		require.Equal(t, f.git(f.origin, "rev-parse", "main"), tree.Base)
		unpushed, err := Unpushed(ctx, tree.Path)
		require.NoError(t, err)
		require.False(t, unpushed)
	})
	t.Run("bare", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		c := f.config()
		c.Checkout = f.origin
		g, err := New(c)
		require.NoError(t, err)
		tree, err := ensureOnce(g, "SHOP-1", "run-1")
		require.NoError(t, err)
		require.FileExists(t, filepath.Join(tree.Path, "README.md"))
	})
}

// E7
func TestDirtyTreeIsSavedAndLeftAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tree := f.ensure("SHOP-1", "run-1")
	f.write(tree.Path, "README.md", "staged\n")
	f.git(tree.Path, "add", "README.md")
	f.write(tree.Path, "README.md", "changed again\n")
	f.write(tree.Path, "new/file ü", "two hundred lines\n")
	f.write(tree.Path, "ignored/x", "x")
	before := f.git(tree.Path, "status", "--porcelain=v2", "--untracked-files=all")
	index, err := os.ReadFile(filepath.Join(f.gitDir(tree.Path), "index"))
	require.NoError(t, err)

	again := f.ensure("SHOP-1", "run-2")
	ref := "refs/gaia/saved/SHOP-1/run-2"
	require.Contains(t, strings.Join(again.Findings, "\n"), ref)
	now, err := os.ReadFile(filepath.Join(f.gitDir(tree.Path), "index"))
	require.NoError(t, err)
	require.Equal(t, index, now)
	require.Equal(t, before, f.git(tree.Path, "status", "--porcelain=v2", "--untracked-files=all"))
	require.Equal(t, "changed again", f.git(f.checkout, "show", ref+":README.md"))
	require.Equal(t, "staged", f.git(f.checkout, "show", ref+"^2:README.md"))
	require.Equal(t, "two hundred lines", f.git(f.checkout, "show", ref+":new/file ü"))
	_, err = f.tryGit(f.checkout, "show", ref+":ignored/x")
	require.Error(t, err)

	f.ensure("SHOP-1", "run-2") // the same state is saved once
	require.Equal(t, ref, f.git(f.checkout, "for-each-ref", "--format=%(refname)", "refs/gaia/saved/"))
	f.write(tree.Path, "more", "more")
	f.ensure("SHOP-1", "run-2") // another one never replaces it
	require.Equal(t, "more", f.git(f.checkout, "show", ref+"-2:more"))
}

func TestUnfinishedOperationIsSaved(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"rebase", "merge", "cherry-pick", "revert"} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			tree := f.ensure("SHOP-1", "run-1")
			f.write(tree.Path, "README.md", "mine\n")
			mine := f.commit(tree.Path, "mine")
			f.git(f.checkout, "switch", "-q", "-c", "theirs")
			f.write(f.checkout, "README.md", "theirs\n")
			theirs := f.commit(f.checkout, "theirs")
			args := map[string][]string{"rebase": {"rebase", "theirs"}, "merge": {"merge", "theirs"},
				"cherry-pick": {"cherry-pick", "theirs"}, "revert": {"revert", theirs}}[op]
			_, err := f.tryGit(tree.Path, args...)
			require.Error(t, err)
			before := f.git(tree.Path, "status", "--porcelain=v2")
			require.Contains(t, before, "u ")

			again := f.ensure("SHOP-1", "run-2")
			require.Equal(t, "gaia/SHOP-1", again.Branch)
			require.Contains(t, again.Findings[0], "in the middle of a "+op)
			require.Equal(t, before, f.git(tree.Path, "status", "--porcelain=v2"))
			ref := "refs/gaia/saved/SHOP-1/run-2"
			require.Contains(t, f.git(f.checkout, "show", ref+":README.md"), "<<<<<<<")
			f.git(f.checkout, "merge-base", "--is-ancestor", mine, ref)
			if op != "revert" {
				f.git(f.checkout, "merge-base", "--is-ancestor", theirs, ref)
			}
			unpushed, err := Unpushed(ctx, tree.Path)
			require.NoError(t, err)
			require.True(t, unpushed)
			_, err = f.tryGit(tree.Path, op, "--abort")
			require.NoError(t, err, "the operation can still be ended")
		})
	}
}

func TestOddContentIsSavedOrTold(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tree := f.ensure("SHOP-1", "run-1")
	nested := filepath.Join(tree.Path, "nested")
	f.git(tree.Path, "init", "-q", nested)
	f.write(nested, "x", "x")
	f.commit(nested, "x")
	f.git(tree.Path, "init", "-q", filepath.Join(tree.Path, "unborn"))
	f.write(tree.Path, "unborn/y", "y")
	f.write(tree.Path, "-dash", "dash")
	f.write(tree.Path, ":(glob)*", "glob")
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(tree.Path, "link")))
	again := f.ensure("SHOP-1", "run-2")
	ref := "refs/gaia/saved/SHOP-1/run-2"
	require.Contains(t, again.Findings[0], "nested is a repository of its own")
	require.Equal(t, "dash", f.git(f.checkout, "show", ref+":-dash"))
	require.Equal(t, "glob", f.git(f.checkout, "show", ref+"::(glob)*"))
	require.Equal(t, "/etc/passwd", f.git(f.checkout, "show", ref+":link"))
}

func TestHeadElsewhereIsTold(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tree := f.ensure("SHOP-1", "run-1")
	f.git(tree.Path, "switch", "-q", "--detach")
	f.commit(tree.Path, "on no branch")
	require.Contains(t, f.ensure("SHOP-1", "run-2").Findings[0], "detached")
	f.git(tree.Path, "switch", "-q", "-c", "idea")
	again := f.ensure("SHOP-1", "run-3")
	require.Contains(t, again.Findings[0], "idea")
	require.Equal(t, "gaia/SHOP-1", again.Branch)
}

func TestIndexLockOfADeadGitIsToldApart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tree := f.ensure("SHOP-1", "run-1")
	lock := filepath.Join(f.gitDir(tree.Path), "index.lock")
	require.NoError(t, os.WriteFile(lock, nil, 0o644))

	sleeper := exec.Command("sleep", "600")
	sleeper.Dir = tree.Path
	require.NoError(t, sleeper.Start())
	again := f.ensure("SHOP-1", "run-2")
	require.FileExists(t, lock)
	require.Contains(t, strings.Join(again.Findings, "\n"), fmt.Sprintf("rocess %d (sleep) still works", sleeper.Process.Pid))

	require.NoError(t, sleeper.Process.Kill())
	_ = sleeper.Wait()
	again = f.ensure("SHOP-1", "run-3")
	require.NoFileExists(t, lock)
	require.Contains(t, again.Findings[0], "index.lock was removed")
}

// E4 also covers what parallel calls leave; here: a branch without a tree.
func TestBranchWithoutATree(t *testing.T) {
	t.Parallel()
	t.Run("nothing of its own: brought up to date", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.git(f.checkout, "branch", "gaia/SHOP-1")
		sha := f.pushElsewhere("newer")
		tree := f.ensure("SHOP-1", "run-1")
		require.Equal(t, sha, tree.Head)
		require.Equal(t, sha, tree.Base)
	})
	t.Run("with commits: kept", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		base := f.git(f.checkout, "rev-parse", "main")
		f.git(f.checkout, "switch", "-q", "-c", "gaia/SHOP-1")
		work := f.commit(f.checkout, "work")
		f.git(f.checkout, "switch", "-q", "main")
		f.pushElsewhere("newer")
		tree := f.ensure("SHOP-1", "run-1")
		require.Equal(t, work, tree.Head)
		require.Equal(t, base, tree.Base)
		require.Contains(t, tree.Findings[0], "was there already")
	})
	t.Run("pushed by another machine", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		other := filepath.Join(f.base, "other")
		f.git(f.base, "clone", "-q", f.origin, other)
		f.git(other, "switch", "-q", "-c", "gaia/SHOP-1")
		one := f.commit(other, "one")
		f.git(other, "push", "-q", "origin", "gaia/SHOP-1")
		tree := f.ensure("SHOP-1", "run-1")
		require.Equal(t, one, tree.Head)
		require.NotEqual(t, one, tree.Base)
		f.reaped("SHOP-1")
		two := f.commit(other, "two")
		f.git(other, "push", "-q", "origin", "gaia/SHOP-1")
		f.git(f.checkout, "fetch", "-q")
		require.Equal(t, two, f.ensure("SHOP-1", "run-2").Head, "the local branch is moved forward")
	})
}

// E26
func TestIdentifiersAreData(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	seen := map[string]bool{}
	for i, id := range []string{"team/ABC-1", "team_ABC-1", "--force", "../../etc", "..", "ü ö", "a:b", "-x", ".git", "x.lock", "@{u}", "refs/heads/main", "ABC-1", "$(touch x)", "HEAD"} {
		tree := f.ensure(id, fmt.Sprintf("run-%d", i))
		require.Equal(t, f.root, filepath.Dir(tree.Path))
		require.False(t, seen[tree.Path], id)
		seen[tree.Path] = true
		require.True(t, strings.HasPrefix(tree.Branch, "gaia/"))
	}
	for _, id := range []string{"", " ", "a\nb", "a\x00b"} {
		_, err := f.Lock(ctx, id)
		require.Error(t, err, "%q", id)
	}
}

func TestPathsWithOddNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"with space", "ünï", "-dash", "quo'te\"", "$HOME", "a:b"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fixtureIn(t, filepath.Join(t.TempDir(), name), true)
			tree := f.ensure("SHOP-1", "run-1")
			f.write(tree.Path, "x", "x")
			require.Contains(t, f.ensure("SHOP-1", "run-2").Findings[0], "saved")
			f.git(tree.Path, "clean", "-fdq")
			f.reaped("SHOP-1")
		})
	}
	t.Run("symbolic links", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		for _, p := range [][2]string{{"shop", "link"}, {"elsewhere", "root"}} {
			require.NoError(t, os.MkdirAll(filepath.Join(f.base, p[0]), 0o755))
			require.NoError(t, os.Symlink(filepath.Join(f.base, p[0]), filepath.Join(f.base, p[1])))
		}
		c := f.config()
		c.Checkout, c.Root = filepath.Join(f.base, "link"), filepath.Join(f.base, "root", "deep", "trees")
		g, err := New(c)
		require.NoError(t, err)
		tree, err := ensureOnce(g, "SHOP-1", "run-1")
		require.NoError(t, err)
		require.Equal(t, filepath.Join(f.base, "elsewhere", "deep", "trees", "SHOP-1"), tree.Path)
		_, err = ensureOnce(g, "SHOP-1", "run-2")
		require.NoError(t, err)
		c.Root = filepath.Join(f.base, "link", "trees")
		_, err = New(c)
		require.ErrorIs(t, err, domain.ErrInvalid)
	})
}

func TestRootMustBeOutside(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.git(f.checkout, "worktree", "add", "-q", "--detach", filepath.Join(f.base, "linked"))
	for _, root := range []string{f.checkout, f.checkout + "/trees", f.checkout + "/.git/trees", f.base, filepath.Join(f.base, "linked/x"), "", "a\nb"} {
		c := f.config()
		c.Root = root
		_, err := New(c)
		require.ErrorIs(t, err, domain.ErrInvalid, root)
	}
	c := f.config()
	c.Checkout = filepath.Join(f.base, "linked") // a worktree is a checkout like any other
	c.Root = filepath.Join(f.checkout, "trees")
	_, err := New(c)
	require.ErrorIs(t, err, domain.ErrInvalid)
	c = f.config()
	c.Checkout = f.base
	_, err = New(c)
	require.Error(t, err)
	for _, prefix := range []string{"-x/", "a..b/", "a b/", "x.lock/", "/"} {
		c = f.config()
		c.BranchPrefix = prefix
		_, err = New(c)
		require.Error(t, err, prefix)
	}
}

func TestCheckPrefix(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.NoError(t, f.CheckPrefix(ctx))
	f.git(f.checkout, "branch", "gaia")
	err := f.CheckPrefix(ctx)
	require.ErrorIs(t, err, domain.ErrConflict)
	require.Contains(t, err.Error(), "branch -m gaia gaia-old")
	f.refused("SHOP-1", "branch -m gaia gaia-old")
	f.git(f.checkout, "branch", "-m", "gaia", "gaia-old")
	require.NoError(t, f.CheckPrefix(ctx))
	f.git(f.checkout, "branch", "gaia/SHOP-1/sub")
	f.refused("SHOP-1", "gaia/SHOP-1/sub")
}

// E28
func TestFolderDeletedByHand(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := filepath.Join(f.base, "removable")
	f.git(f.checkout, "worktree", "add", "-q", "--detach", other)
	require.NoError(t, os.RemoveAll(other))

	tree := f.ensure("SHOP-1", "run-1")
	require.NoError(t, MarkAfterCreate(f.gitDir(tree.Path)))
	work := f.commit(tree.Path, "work")
	f.write(tree.Path, "staged", "staged")
	f.git(tree.Path, "add", "staged")
	require.NoError(t, os.RemoveAll(tree.Path))
	again := f.ensure("SHOP-1", "run-2")
	require.Equal(t, work, again.Head)
	require.Equal(t, tree.Base, again.Base)
	require.True(t, again.AfterCreate, "what the hook made is gone too")
	require.Contains(t, again.Findings[0], "deleted by somebody")
	require.Equal(t, "staged", f.git(f.checkout, "show", "refs/gaia/saved/SHOP-1/run-2:staged"))
	require.Contains(t, f.git(f.checkout, "worktree", "list"), other, "no other registration is touched")

	t.Run("commits on no branch", func(t *testing.T) {
		f.git(tree.Path, "switch", "-q", "--detach")
		lost := f.commit(tree.Path, "on no branch")
		require.NoError(t, os.RemoveAll(tree.Path))
		require.Equal(t, work, f.ensure("SHOP-1", "run-3").Head)
		require.Equal(t, lost, f.git(f.checkout, "rev-parse", "refs/gaia/saved/SHOP-1/run-3^"))
	})
	t.Run("locked", func(t *testing.T) {
		f.git(f.checkout, "worktree", "lock", "--reason", "on a stick", tree.Path)
		require.NoError(t, os.RemoveAll(tree.Path))
		f.refused("SHOP-1", "on a stick", "worktree unlock")
	})
}

func TestForeignThingsHold(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.NoError(t, os.MkdirAll(f.root, 0o700))
	at := func(key string) string { return filepath.Join(f.root, key) }

	f.write(at("SHOP-1"), "mine", "mine")
	f.refused("SHOP-1", "mv ", at("SHOP-1"))
	require.FileExists(t, at("SHOP-1")+"/mine")

	require.NoError(t, os.WriteFile(at("SHOP-2"), nil, 0o644))
	f.refused("SHOP-2", "no folder")

	require.NoError(t, os.Symlink(f.checkout, at("SHOP-3")))
	f.refused("SHOP-3", "symbolic link")

	f.git(f.base, "clone", "-q", f.origin, at("SHOP-4"))
	f.refused("SHOP-4", "no git worktree")

	f.git(f.checkout, "worktree", "add", "-q", "-b", "gaia/SHOP-5", at("SHOP-5"))
	f.refused("SHOP-5", "Gaia did not make it")

	tree := f.ensure("SHOP-6", "run-1")
	f.git(f.checkout, "worktree", "lock", "--reason", "hands off", tree.Path)
	f.refused("SHOP-6", "hands off", "worktree unlock")
	f.git(f.checkout, "worktree", "unlock", tree.Path)
	_, err := ensureRequest(f.Git, domain.TreeRequest{Ticket: "another", Identifier: "SHOP-6", Run: "r"})
	f.isHold(err, "another ticket")
	_, err = ensureRequest(f.Git, domain.TreeRequest{Ticket: "id-SHOP-6", Identifier: "SHOP-6", Run: "r", Branch: "frozen"})
	f.isHold(err, "frozen")

	require.NoError(t, os.Mkdir(at("SHOP-7"), 0o700))
	f.ensure("SHOP-7", "run-1") // an empty folder is in nobody's way
	require.NoError(t, os.WriteFile(filepath.Join(f.gitDir(at("SHOP-7")), markerName), []byte("{"), 0o600))
	f.refused("SHOP-7", "damaged")
}

func TestLockFileInTheWay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lock := filepath.Join(f.checkout, ".git/refs/heads/gaia/SHOP-1.lock")
	f.write(filepath.Dir(lock), "SHOP-1.lock", "")
	_, err := ensureOnce(f.Git, "SHOP-1", "run-1")
	var w *domain.WorkspaceError
	require.ErrorAs(t, err, &w)
	require.False(t, w.Hold, "a young one belongs to a git at work: %v", err)
	old := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(lock, old, old))
	f.refused("SHOP-1", "rm "+lock)
	require.FileExists(t, lock)
	require.NoError(t, os.Remove(lock))
	f.ensure("SHOP-1", "run-1")
}

func TestFrozenBranch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := domain.TreeRequest{Ticket: "t", Identifier: "SHOP-1", Run: "r1", Branch: "feature/old-name"}
	tree, err := ensureRequest(f.Git, r)
	require.NoError(t, err)
	require.Equal(t, "feature/old-name", tree.Branch)
	require.Equal(t, "feature/old-name", f.git(tree.Path, "symbolic-ref", "--short", "HEAD"))
	for _, bad := range []string{"-x", "a..b", "HEAD", "a b"} {
		r.Branch = bad
		_, err := ensureRequest(f.Git, r)
		require.Error(t, err, bad)
	}
}

// half makes what a crash leaves: a tree of ours that is still locked and has no marker.
func (f *fixture) half(identifier string) (path, gitDir string) {
	tree := f.ensure(identifier, "run-1")
	gitDir = f.gitDir(tree.Path)
	f.git(f.checkout, "worktree", "lock", "--reason", makingReason(identifier, "run-1", tree.Head), tree.Path)
	require.NoError(f.t, os.Remove(filepath.Join(gitDir, markerName)))
	return tree.Path, gitDir
}

func TestIncompleteTreeIsMadeAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	t.Run("cut short in the checkout", func(t *testing.T) {
		path, _ := f.half("SHOP-1")
		require.NoError(t, os.Remove(filepath.Join(path, "README.md")))
		tree := f.ensure("SHOP-1", "run-2")
		require.FileExists(t, filepath.Join(path, "README.md"))
		require.True(t, tree.AfterCreate)
		require.Empty(t, tree.Findings)
	})
	t.Run("files that are not the commit's are saved", func(t *testing.T) {
		path, _ := f.half("SHOP-2")
		f.write(path, "precious", "precious")
		tree := f.ensure("SHOP-2", "run-2")
		require.NoFileExists(t, filepath.Join(path, "precious"))
		require.Contains(t, tree.Findings[0], "refs/gaia/saved/SHOP-2/run-2")
		require.Equal(t, "precious", f.git(f.checkout, "show", "refs/gaia/saved/SHOP-2/run-2:precious"))
	})
	t.Run("before it had a folder", func(t *testing.T) {
		path, _ := f.half("SHOP-3")
		require.NoError(t, os.RemoveAll(path))
		require.Empty(t, f.ensure("SHOP-3", "run-2").Findings)
	})
	t.Run("before git knew its path", func(t *testing.T) {
		path, dir := f.half("SHOP-4")
		require.NoError(t, os.RemoveAll(path))
		require.NoError(t, os.Remove(filepath.Join(dir, "gitdir")))
		require.NoError(t, os.Remove(filepath.Join(dir, "HEAD")))
		f.ensure("SHOP-4", "run-2")
		require.Equal(t, dir, f.gitDir(path), "the junk is gone")
	})
	t.Run("empty folder", func(t *testing.T) {
		path, dir := f.half("SHOP-5")
		require.NoError(t, os.RemoveAll(path))
		require.NoError(t, os.Mkdir(path, 0o700))
		require.NoError(t, os.Remove(filepath.Join(dir, "HEAD")))
		f.ensure("SHOP-5", "run-2")
	})
	t.Run("its branch has moved", func(t *testing.T) {
		path, _ := f.half("SHOP-6")
		work := f.commit(path, "work")
		f.refused("SHOP-6", "has moved", short(work))
		require.DirExists(t, path)
	})
	t.Run("a process lives in it", func(t *testing.T) {
		path, _ := f.half("SHOP-7")
		sleeper := exec.Command("sleep", "600")
		sleeper.Dir = path
		require.NoError(t, sleeper.Start())
		f.refused("SHOP-7", fmt.Sprintf("process %d (sleep)", sleeper.Process.Pid))
		require.NoError(t, sleeper.Process.Kill())
		_ = sleeper.Wait()
		f.ensure("SHOP-7", "run-2")
	})
	t.Run("processes are hidden", func(t *testing.T) {
		f.half("SHOP-8")
		blind := f.open()
		blind.proc = t.TempDir()
		_, err := ensureOnce(blind, "SHOP-8", "run-2")
		f.isHold(err, "cannot be known")
	})
	t.Run("complete but still locked by us", func(t *testing.T) {
		tree := f.ensure("SHOP-9", "run-1")
		f.git(f.checkout, "worktree", "lock", "--reason", makingReason("SHOP-9", "run-1", tree.Head), tree.Path)
		f.write(tree.Path, "work", "work")
		f.ensure("SHOP-9", "run-2")
		require.FileExists(t, filepath.Join(tree.Path, "work"))
		require.NoFileExists(t, filepath.Join(f.gitDir(tree.Path), "locked"))
	})
}

// E30
func TestRepositoryHooksDoNotRun(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, hook := range []string{"post-checkout", "reference-transaction", "post-index-change", "pre-commit"} {
		p := filepath.Join(f.checkout, ".git", "hooks", hook)
		require.NoError(t, os.WriteFile(p, []byte("#!/bin/sh\ntouch "+quote(filepath.Join(f.base, "ran"))+"\nexit 1\n"), 0o755))
	}
	tree := f.ensure("SHOP-1", "run-1")
	f.write(tree.Path, "x", "x")
	f.ensure("SHOP-1", "run-2")
	require.NoFileExists(t, filepath.Join(f.base, "ran"))
}

// E21
func TestSubmodules(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lib := fixtureIn(t, filepath.Join(f.base, "lib"), true)
	f.git(f.checkout, "submodule", "--quiet", "add", "--name", "lib", lib.origin, "vendor/lib")
	f.commit(f.checkout, "lib")
	f.git(f.checkout, "push", "-q")

	tree := f.ensure("SHOP-1", "run-1") // the person has it in the checkout
	require.FileExists(t, filepath.Join(tree.Path, "vendor/lib/README.md"))
	require.Empty(t, f.git(tree.Path, "status", "--porcelain"))
	unpushed, err := Unpushed(ctx, tree.Path)
	require.NoError(t, err)
	require.False(t, unpushed)

	t.Run("a local path that nobody cloned", func(t *testing.T) {
		fresh := filepath.Join(f.base, "fresh")
		f.git(f.base, "clone", "-q", f.origin, fresh)
		c := f.config()
		c.Checkout, c.Root = fresh, filepath.Join(f.base, "trees2")
		g, err := New(c)
		require.NoError(t, err)
		_, err = ensureOnce(g, "SHOP-1", "run-1")
		f.isHold(err, "submodule update --init")
		_, err = ensureOnce(g, "SHOP-1", "run-2")
		f.isHold(err, "submodule update --init")
		c.SkipSubmodules = true
		g, err = New(c)
		require.NoError(t, err)
		tree, err := ensureOnce(g, "SHOP-1", "run-3")
		require.NoError(t, err)
		require.NoFileExists(t, filepath.Join(tree.Path, "vendor/lib/README.md"))
	})
	t.Run("cut short while a submodule was filled", func(t *testing.T) {
		path, _ := f.half("SHOP-2")
		ahead := f.commit(filepath.Join(path, "vendor/lib"), "a clone stands at the remote's branch before its commit is checked out")
		again := f.ensure("SHOP-2", "run-2")
		require.FileExists(t, filepath.Join(again.Path, "vendor/lib/README.md"))
		require.Empty(t, f.git(again.Path, "status", "--porcelain"))
		require.Contains(t, f.git(f.checkout, "ls-tree", "refs/gaia/saved/SHOP-2/run-2", "vendor/lib"), ahead)
	})
	t.Run("reap", func(t *testing.T) {
		sub := filepath.Join(tree.Path, "vendor/lib")
		f.write(sub, "x", "x")
		f.kept("SHOP-1", "not committed")
		f.git(sub, "clean", "-fdq")
		f.git(sub, "switch", "-q", "-c", "side")
		f.commit(sub, "side")
		f.git(sub, "switch", "-q", "--detach", "origin/main")
		f.kept("SHOP-1", "neither pushed nor merged")
		f.git(sub, "push", "-q", "origin", "side")
		f.write(sub, "README.md", "stashed")
		f.git(sub, "stash", "-q")
		f.kept("SHOP-1", "neither pushed nor merged")
		f.git(sub, "stash", "drop", "-q")
		f.reaped("SHOP-1")
	})
	t.Run("reap, the submodule left the tree", func(t *testing.T) {
		tree := f.ensure("SHOP-2", "run-1")
		sub := filepath.Join(tree.Path, "vendor/lib")
		f.git(sub, "switch", "-q", "-c", "side2")
		f.commit(sub, "side2")
		f.git(tree.Path, "rm", "-q", "-f", "vendor/lib")
		f.commit(tree.Path, "no lib")
		f.git(tree.Path, "push", "-q", "origin", "HEAD")
		f.kept("SHOP-2", "has commits that its remote lacks")
		require.NoError(t, os.RemoveAll(tree.Path))
		f.refused("SHOP-2", "has commits that its remote lacks")
	})
}

func TestInspect(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := f.Inspect(ctx, "SHOP-1", "", time.Time{})
	require.ErrorIs(t, err, domain.ErrNotFound)
	tree := f.ensure("SHOP-1", "run-1")
	s, err := f.Inspect(ctx, "SHOP-1", "", time.Time{})
	require.NoError(t, err)
	require.Equal(t, domain.TreeStatus{Path: tree.Path, Branch: tree.Branch, Head: tree.Head}, s)

	one := f.commit(tree.Path, "one")
	two := f.commit(tree.Path, "two\twith a tab")
	s, err = f.Inspect(ctx, "SHOP-1", one, time.Time{})
	require.NoError(t, err)
	require.Equal(t, []string{f.git(tree.Path, "rev-parse", "--short", two) + " two with a tab"}, s.Late)
	require.True(t, s.Unpushed)
	require.False(t, s.Dirty)
	require.Equal(t, two, s.Head)

	s, err = f.Inspect(ctx, "SHOP-1", "", time.Now().Add(-time.Hour))
	require.NoError(t, err)
	require.Len(t, s.Late, 2, "the base is no late commit, though it is as young")
	s, err = f.Inspect(ctx, "SHOP-1", strings.Repeat("0", 39)+"1", time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Empty(t, s.Late)

	f.git(tree.Path, "push", "-q", "origin", "HEAD")
	f.write(tree.Path, "x", "x")
	s, err = f.Inspect(ctx, "SHOP-1", two, time.Time{})
	require.NoError(t, err)
	require.Empty(t, s.Late)
	require.True(t, s.Dirty)
	require.True(t, s.Unpushed)
	_, err = f.Inspect(ctx, "", "", time.Time{})
	require.Error(t, err)
}

func TestUnpushed(t *testing.T) {
	t.Parallel()
	for _, cloned := range []bool{true, false} {
		t.Run(fmt.Sprintf("remote %v", cloned), func(t *testing.T) {
			t.Parallel()
			f := fixtureIn(t, t.TempDir(), cloned)
			tree := f.ensure("SHOP-1", "run-1")
			is := func(want bool) {
				t.Helper()
				got, err := Unpushed(ctx, tree.Path)
				require.NoError(t, err)
				require.Equal(t, want, got)
			}
			is(false)
			f.write(tree.Path, "ignored/x", "x")
			is(false)
			f.write(tree.Path, "x", "x")
			is(true)
			f.commit(tree.Path, "x")
			is(true)
			pushed, err := Pushed(ctx, tree.Path)
			require.NoError(t, err)
			require.False(t, pushed)
			f.git(tree.Path, "switch", "-q", "--detach", "main")
			is(true) // the ticket's branch still has it
			f.git(tree.Path, "switch", "-q", tree.Branch)
			if cloned {
				f.git(tree.Path, "push", "-q", "origin", "HEAD")
			} else {
				f.git(f.checkout, "merge", "-q", "--ff-only", tree.Branch)
			}
			is(false)
		})
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write(f.checkout, ".gaia/conductor.toml", "schema = 1\n")
	f.write(f.checkout, ".gaia/skills/a.md", "")
	f.write(f.checkout, ".gaia/skills/deep/ü b.md", "no newline")
	f.write(f.checkout, "*", "star\n\n")
	require.NoError(t, os.Symlink(".gaia/conductor.toml", filepath.Join(f.checkout, "WORKFLOW.md")))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(f.checkout, "outside")))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(f.checkout, "dangling")))
	require.NoError(t, os.Symlink("loop", filepath.Join(f.checkout, "loop")))
	sha := f.commit(f.checkout, "files")
	f.write(f.checkout, ".gaia/conductor.toml", "changed in the work tree only")

	files, err := f.Files(ctx, sha, ".gaia/conductor.toml", ".gaia/skills/", "WORKFLOW.md", "outside", "dangling", "loop", "missing", "*")
	require.NoError(t, err)
	require.Equal(t, map[string][]byte{
		".gaia/conductor.toml":     []byte("schema = 1\n"),
		".gaia/skills/a.md":        {},
		".gaia/skills/deep/ü b.md": []byte("no newline"),
		"WORKFLOW.md":              []byte("schema = 1\n"),
		"*":                        []byte("star\n\n"),
	}, files)
	files, err = f.Files(ctx, sha, "missing")
	require.NoError(t, err)
	require.Empty(t, files)
	_, err = f.Files(ctx, "0123456789", "x")
	require.ErrorIs(t, err, domain.ErrNotFound)
	_, err = f.Files(ctx, "--help", "x")
	require.ErrorIs(t, err, domain.ErrNotFound)
	for _, p := range []string{"", ".", "..", "/etc/passwd", "../x"} {
		_, err = f.Files(ctx, sha, p)
		require.ErrorIs(t, err, domain.ErrInvalid, p)
	}
	f.write(f.checkout, "big", strings.Repeat("x", maxFile+1))
	sha = f.commit(f.checkout, "big")
	_, err = f.Files(ctx, sha, "loop", "big", "README.md")
	require.ErrorIs(t, err, domain.ErrInvalid)
}

func TestEnvironmentOfGit(t *testing.T) {
	t.Parallel()
	env := environment([]string{"PATH=/bin", "GIT_DIR=/x", "GIT_INDEX_FILE=/x", "GIT_CONFIG_COUNT=1", "GIT_SSH=/s", "LC_MESSAGES=de", "LANGUAGE=de"}, "GIT_INDEX_FILE=mine")
	require.Contains(t, env, "PATH=/bin")
	require.Contains(t, env, "GIT_SSH=/s")
	require.Contains(t, env, "GIT_INDEX_FILE=mine")
	require.Contains(t, env, "LC_ALL=C")
	require.Contains(t, env, "GIT_TERMINAL_PROMPT=0")
	for _, kv := range []string{"GIT_DIR=/x", "GIT_INDEX_FILE=/x", "GIT_CONFIG_COUNT=1", "LC_MESSAGES=de", "LANGUAGE=de"} {
		require.NotContains(t, env, kv)
	}
}

func TestDeadlineEndsGitAndItsChildren(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	begin := time.Now()
	c := call{dir: f.checkout, limit: 200 * time.Millisecond, config: []string{"alias.hang=!sleep 4711.5 & wait"}}
	_, err := c.run(ctx, "hang")
	require.ErrorContains(t, err, "not done within")
	require.Less(t, time.Since(begin), 60*time.Second)
	var g *gitError
	require.True(t, errors.As(err, &g))
	require.Eventually(t, func() bool {
		out, _ := os.ReadDir("/proc")
		for _, e := range out {
			b, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
			if string(b) == "sleep\x004711.5\x00" {
				return false
			}
		}
		return true
	}, time.Minute, 20*time.Millisecond)
}

// A branch above or below the ticket's keeps git from making it. That is said before anything is made.
func TestABranchInTheWayLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		branch string
		packed bool
	}{{"gaia", false}, {"gaia", true}, {"gaia/SHOP-1/old", false}, {"gaia/SHOP-1/old", true}} {
		t.Run(fmt.Sprint(c.branch, " packed ", c.packed), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.git(f.checkout, "branch", c.branch)
			if c.packed {
				f.git(f.checkout, "pack-refs", "--all")
			}
			_, err := ensureOnce(f.Git, "SHOP-1", "run-1")
			var we *domain.WorkspaceError
			require.ErrorAs(t, err, &we)
			require.True(t, we.Hold)
			require.ErrorContains(t, err, c.branch)
			require.NoDirExists(t, f.Path("SHOP-1"))
			require.NotContains(t, f.git(f.checkout, "worktree", "list"), f.Path("SHOP-1"))
			f.git(f.checkout, "branch", "-m", c.branch, "elsewhere")
			f.ensure("SHOP-1", "run-2")
		})
	}
}
