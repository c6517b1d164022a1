package workspace

import (
	"bytes"
	"fmt"
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
)

// E4
func TestParallelEnsures(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for round := range 3 {
		var group errgroup.Group
		for n := range 8 {
			group.Go(func() error {
				_, err := ensureOnce(f.Git, fmt.Sprintf("SHOP-%d", 1+n+8*round), "run-1")
				return err
			})
		}
		require.NoError(t, group.Wait())
	}
	trees, err := f.Trees(ctx)
	require.NoError(t, err)
	require.Len(t, trees, 24)
	for _, tree := range trees {
		require.True(t, tree.Complete, tree.Note)
		require.Empty(t, f.git(tree.Path, "status", "--porcelain"))
	}
}

func (f *fixture) process(first, last int) (*exec.Cmd, *bytes.Buffer) {
	c := f.config()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "GAIA_TEST_ENSURE="+strings.Join([]string{c.Checkout, c.Root, c.Locks, fmt.Sprintf("%d %d", first, last)}, "\n"))
	var out bytes.Buffer
	cmd.Stderr = &out
	return cmd, &out
}

func TestParallelProcesses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	one, out1 := f.process(1, 8)
	two, out2 := f.process(5, 12) // some tickets in both
	require.NoError(t, one.Start())
	require.NoError(t, two.Start())
	err1, err2 := one.Wait(), two.Wait()
	require.NoError(t, err1, out1.String())
	require.NoError(t, err2, out2.String())
	trees, err := f.Trees(ctx)
	require.NoError(t, err)
	require.Len(t, trees, 12)
	for _, tree := range trees {
		require.True(t, tree.Complete, tree.Note)
	}
}

// A conductor may be killed at any point, alone or with its git, in a large tree or in a small one: the next one makes
// a complete tree, and nobody's work is lost.
func TestKilledAtAnyPoint(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for i := range 3000 {
		f.write(f.checkout, fmt.Sprintf("src/%d/%d.txt", i%50, i), strings.Repeat(strconv.Itoa(i)+"\n", 20))
	}
	base := f.commit(f.checkout, "large")
	f.git(f.checkout, "push", "-q")
	bystander := f.ensure("SHOP-999", "run-1")
	f.write(bystander.Path, "work", "work")

	begin := time.Now()
	f.ensure("SHOP-998", "run-1")
	whole := time.Since(begin)
	rounds := 12
	if testing.Short() {
		rounds = 6
	}
	unfinished := 0
	for n := 1; n <= rounds; n++ {
		path := f.Path(fmt.Sprintf("SHOP-%d", n))
		for range 1 + n%2 { // some are killed twice
			cmd, _ := f.process(n, n)
			require.NoError(t, cmd.Start())
			time.Sleep(time.Duration(rand.Int64N(int64(whole + whole/2)))) // the point of the kill, not a wait
			var victims []int
			if n%3 != 0 {
				victims = descendants(cmd.Process.Pid)
			}
			_ = cmd.Process.Kill()
			for _, pid := range victims {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			_ = cmd.Wait()
		}
		if _, err := f.treeAt(path); err != nil {
			unfinished++
		}
		tree, err := ensureOnce(f.Git, fmt.Sprintf("SHOP-%d", n), "run-again")
		require.NoError(t, err)
		require.Equal(t, base, tree.Head)
		require.Empty(t, f.git(path, "status", "--porcelain"))
		require.NoError(t, Verify(ctx, tree))
		require.FileExists(t, filepath.Join(path, "src/49/2999.txt"))
	}
	t.Logf("%d of %d kills left an unfinished tree", unfinished, rounds)
	require.Equal(t, "work", func() string { b, _ := os.ReadFile(filepath.Join(bystander.Path, "work")); return string(b) }())
	require.Empty(t, f.git(f.checkout, "status", "--porcelain"))
	f.git(f.checkout, "fsck", "--connectivity-only")
	junk, err := filepath.Glob(filepath.Join(f.common, goneAdmins+"*"))
	require.NoError(t, err)
	require.Empty(t, junk)
}

// Work that lies in a tree survives the kill of whoever takes the tree, at any point, and so do index and files.
func TestKilledWhileTakingATree(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tree := f.ensure("SHOP-1", "run-1")
	f.write(tree.Path, "README.md", "staged")
	f.git(tree.Path, "add", "README.md")
	for i := range 300 {
		f.write(tree.Path, fmt.Sprintf("new/%d", i), strings.Repeat("work ", i))
	}
	status := f.git(tree.Path, "status", "--porcelain=v2", "--untracked-files=all")
	for range 12 {
		cmd, _ := f.process(1, 1)
		require.NoError(t, cmd.Start())
		time.Sleep(time.Duration(rand.Int64N(int64(400 * time.Millisecond))))
		victims := descendants(cmd.Process.Pid)
		_ = cmd.Process.Kill()
		for _, pid := range victims {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = cmd.Wait()
		require.Equal(t, status, f.git(tree.Path, "status", "--porcelain=v2", "--untracked-files=all"))
	}
	again := f.ensure("SHOP-1", "run-2")
	require.Contains(t, strings.Join(again.Findings, "\n"), "refs/gaia/saved/SHOP-1/run-2")
	require.Equal(t, status, f.git(tree.Path, "status", "--porcelain=v2", "--untracked-files=all"))
	left, err := filepath.Glob(filepath.Join(f.gitDir(tree.Path), "gaia-index*"))
	require.NoError(t, err)
	require.Empty(t, left, "copies of the index are cleaned up")
}

// descendants returns the children of a process, and theirs.
func descendants(pid int) []int {
	var out []int
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		b, _ := os.ReadFile(task)
		for child := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(child); err == nil {
				out = append(append(out, n), descendants(n)...)
			}
		}
	}
	return out
}
