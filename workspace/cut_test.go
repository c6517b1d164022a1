package workspace

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
)

// A power cut while git makes a worktree keeps the names of its files and loses what is in those that were not yet synced:
// any of the first ones with all that come after them, or the last one alone.
func TestPowerCutWhileATreeIsRegistered(t *testing.T) {
	t.Parallel()
	cases := [][]string{{".git"}}
	first := []string{"commondir", "HEAD", "locked"}
	for lost := range 1 << len(first) {
		names := []string{"gitdir", ".git"}
		for i, name := range first {
			if lost&(1<<i) != 0 {
				names = append(names, name)
			}
		}
		cases = append(cases, names)
	}
	for _, names := range cases {
		t.Run(strings.Join(names, " "), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.racy = 0
			base := f.git(f.checkout, "rev-parse", "HEAD")
			for _, c := range []struct {
				path string
				args []string
			}{
				{f.Path("SHOP-1"), []string{"--reason", makingReason("SHOP-1", "run-1", base), "-b", "gaia/SHOP-1"}},
				{f.sparePath(1), []string{"--reason", spareLock, "--detach"}},
			} {
				f.git(f.checkout, append(append([]string{"worktree", "add", "-q", "--no-checkout", "--lock"}, c.args...), c.path, base)...)
				a, err := f.adminOf(c.path)
				require.NoError(t, err)
				for _, name := range names {
					path := filepath.Join(a.dir, name)
					if name == ".git" {
						path = filepath.Join(c.path, name)
					}
					require.NoError(t, os.Truncate(path, 0))
				}
			}
			long := time.Now().Add(-2 * time.Minute)
			locks, err := filepath.Glob(filepath.Join(f.common, "worktrees/*/locked"))
			require.NoError(t, err)
			require.Len(t, locks, 2)
			for _, lock := range locks {
				require.NoError(t, os.Chtimes(lock, long, long))
			}
			tree := f.ensure("SHOP-1", "run-2")
			f.isWhole(tree, "gaia/SHOP-1", base)
			f.keep(1)
			f.keep(0)
			left, err := os.ReadDir(filepath.Join(f.common, "worktrees"))
			require.NoError(t, err)
			require.Len(t, left, 1, "no registration is left over")
			require.Empty(t, f.git(f.checkout, "for-each-ref", "refs/gaia/"), "there was nothing to save")
		})
	}
}

// Where somebody may have worked, an empty file is no reason to take anything away.
func TestAnEmptyLinkIsNotTakenForACut(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(f *fixture, path string){
		"a lock without a reason": func(f *fixture, path string) {
			f.git(f.checkout, "worktree", "add", "-q", "--no-checkout", "--detach", path)
			f.git(f.checkout, "worktree", "lock", path)
		},
		"another's lock": func(f *fixture, path string) {
			f.git(f.checkout, "worktree", "add", "-q", "--no-checkout", "--lock", "--reason", "mine", "--detach", path)
		},
		"an index": func(f *fixture, path string) { f.git(f.checkout, "worktree", "add", "-q", "--detach", path) },
		"files": func(f *fixture, path string) {
			f.git(f.checkout, "worktree", "add", "-q", "--no-checkout", "--detach", path)
			f.write(path, "work.txt", "mine\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			path := f.Path("SHOP-1")
			change(f, path)
			require.NoError(t, os.Truncate(filepath.Join(path, ".git"), 0))
			f.refused("SHOP-1")
			require.FileExists(t, filepath.Join(path, ".git"))
			require.Contains(t, f.git(f.checkout, "worktree", "list"), path)
		})
	}
}

// What a power cut has emptied in a complete tree is told, and keeps no agent from its work.
func TestPowerCutInACompleteTree(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tree := f.ensure("SHOP-1", "run-1")
	a, err := f.adminOf(tree.Path)
	require.NoError(t, err)
	f.write(tree.Path, "empty.txt", "")
	first := f.commit(tree.Path, "one side")
	f.git(tree.Path, "switch", "-q", "--detach", tree.Base)
	second := f.commit(tree.Path, "other side")
	f.git(tree.Path, "switch", "-q", "gaia/SHOP-1")
	f.git(tree.Path, "merge", "-q", "--no-commit", second)
	index := filepath.Join(a.dir, "index")
	require.NoError(t, os.Remove(index)) // as a kill leaves it in the middle of the mend
	tree = f.ensure("SHOP-1", "run-2")
	require.Contains(t, strings.Join(tree.Findings, "\n"), "The index was empty")
	require.Empty(t, f.git(tree.Path, "status", "--porcelain"))
	require.Equal(t, second, f.git(tree.Path, "rev-parse", "MERGE_HEAD"), "the merge is still under way")
	f.git(tree.Path, "commit", "-q", "-m", "merged")
	require.Equal(t, first+" "+second, f.git(tree.Path, "log", "-1", "--format=%P"))

	require.NoError(t, os.Truncate(index, 0))
	require.NoError(t, os.Truncate(filepath.Join(tree.Path, "README.md"), 0))
	tree = f.ensure("SHOP-1", "run-3")
	require.Contains(t, strings.Join(tree.Findings, "\n"), "The index was empty")
	require.NotContains(t, strings.Join(tree.Findings, "\n"), "README.md", "it was emptied after the boot: by somebody")
	require.Equal(t, "M README.md", f.git(tree.Path, "status", "--porcelain"))

	require.NoError(t, os.Chmod(filepath.Join(tree.Path, "empty.txt"), 0o755)) // which is all that git knows otherwise
	j := &job{Git: f.open(), path: tree.Path, request: domain.TreeRequest{Identifier: "SHOP-1"}}
	j.proc = t.TempDir() // of a machine that was booted just now
	require.NoError(t, os.WriteFile(filepath.Join(j.proc, "uptime"), []byte("0.00 0.00\n"), 0o600))
	require.NoError(t, os.Chtimes(filepath.Join(tree.Path, "empty.txt"), time.Now(), time.Now()))
	j.emptied(t.Context())
	require.Len(t, j.findings, 1)
	require.Contains(t, j.findings[0], "otherwise: README.md. A power cut")
	require.Empty(t, f.git(f.checkout, "diff", "--stat"))
}

// Git fails everywhere in a repository with such a registration; what to do about it is said.
func TestAnEmptyCommondirIsTold(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.git(f.checkout, "worktree", "add", "-q", "--detach", filepath.Join(f.base, "it's mine"))
	dir := filepath.Join(f.common, "worktrees", "it's-mine")
	if _, err := os.Stat(dir); err != nil {
		dir = filepath.Join(f.common, "worktrees", "it's mine")
	}
	require.NoError(t, os.Truncate(filepath.Join(dir, "commondir"), 0))
	_, err := New(f.config())
	require.ErrorContains(t, err, "rm -r "+quote(dir))
}

// A git that was killed while it made a ticket's branch leaves the branch's lock, on which every other git fails.
func TestADeadGitsLockOfABranch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.racy = 0
	base := f.git(f.checkout, "rev-parse", "HEAD")
	lock := filepath.Join(f.common, "refs/heads/gaia/SHOP-1.lock")
	require.NoError(t, os.MkdirAll(filepath.Dir(lock), 0o755))
	f.git(f.checkout, "worktree", "add", "-q", "--no-checkout", "--detach", "--lock", "--reason", makingReason("SHOP-1", "run-1", base), f.Path("SHOP-1"), base)
	require.NoError(t, os.WriteFile(lock, nil, 0o644))
	a, err := f.adminOf(f.Path("SHOP-1"))
	require.NoError(t, err)
	later := time.Now().Add(time.Hour)
	require.NoError(t, os.Chtimes(filepath.Join(a.dir, "locked"), later, later))
	_, err = ensureOnce(f.Git, "SHOP-1", "run-2")
	require.ErrorContains(t, err, "SHOP-1.lock", "it is older than the tree, and so somebody else's")
	require.NoError(t, os.Chtimes(lock, later, later)) // now it came after run-2 had registered the tree
	f.isWhole(f.ensure("SHOP-1", "run-3"), "gaia/SHOP-1", base)
	require.NoFileExists(t, lock)
}
