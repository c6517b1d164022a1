package workspace

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// E14: a process of our own user that cannot be looked into is unknown, and unknown is an error. Root can look into
// everything, so the test goes on as an ordinary user.
func TestProcessThatForbidsToLook(t *testing.T) {
	if os.Getuid() == 0 {
		dir, err := os.MkdirTemp("", "g")
		require.NoError(t, err)
		defer os.RemoveAll(dir)
		require.NoError(t, os.Chmod(dir, 0o755))
		b, err := os.ReadFile(os.Args[0])
		require.NoError(t, err)
		program := filepath.Join(dir, "test")
		require.NoError(t, os.WriteFile(program, b, 0o755))
		cmd := exec.Command(program, "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 64123, Gid: 64123}}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return
	}
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "GAIA_TEST_HIDE=1")
	in, err := child.StdinPipe()
	require.NoError(t, err)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	defer func() { in.Close(); _ = child.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "hidden\n", line)

	g := &Git{proc: "/proc"}
	who, err := g.lives(time.Time{}, "/nonexistent")
	require.Empty(t, who)
	if b, _ := os.ReadFile("/proc/self/cgroup"); strings.Contains(string(b), ".service\n") {
		require.NoError(t, err) // a service that is not Gaia's cannot have come from a run
	} else {
		require.ErrorContains(t, err, "forbids to look")
	}
	who, err = g.lives(time.Now().Add(time.Hour), "/nonexistent")
	require.NoError(t, err, "it began before the tree did")
	require.Empty(t, who)
}

// Who has a file open for a moment does not work there: whoever looks into a folder, or a child that is being started, which has the
// files of its parent until then.
func TestWhoPassesDoesNotWork(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	g := &Git{proc: "/proc"}
	var starters sync.WaitGroup
	defer starters.Wait()
	done := make(chan struct{})
	defer close(done)
	for range 4 {
		starters.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					_ = exec.Command("true").Run()
				}
			}
		})
	}
	for range 100 {
		f, err := os.Open(dir)
		require.NoError(t, err)
		require.NoError(t, exec.Command("true").Run())
		f.Close()
		who, err := g.lives(time.Now().Add(time.Hour), dir)
		require.NoError(t, err)
		require.Empty(t, who)
	}
}

// hide makes this process one that others of its user cannot look into, until its standard input ends.
func hide() int {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return 1
	}
	os.Stdout.WriteString("hidden\n")
	_, _ = os.Stdin.Read(make([]byte, 1))
	return 0
}
