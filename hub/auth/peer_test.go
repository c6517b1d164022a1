package auth

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestMain lets the test binary be the peer of a test.
func TestMain(m *testing.M) {
	if path := os.Getenv("AUTH_TEST_DIAL"); path != "" {
		os.Exit(dialAndWait(path))
	}
	os.Exit(m.Run())
}

func dialAndWait(path string) int {
	c, err := net.Dial("unix", path)
	if err != nil {
		return 1
	}
	_, _ = c.Read(make([]byte, 1)) // until the test closes the connection
	return 0
}

// socket returns a listener and its path.
func socket(t *testing.T) (net.Listener, string) {
	dir, err := os.MkdirTemp("", "g")
	require.NoError(t, err)
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close(); os.RemoveAll(dir) })
	return l, path
}

// peer starts a process that connects and returns the hub's end of the connection.
func peer(t *testing.T) (net.Conn, *exec.Cmd) {
	l, path := socket(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "AUTH_TEST_DIAL="+path)
	require.NoError(t, cmd.Start())
	c, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { c.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return c, cmd
}

func TestPeerIsTheOwner(t *testing.T) {
	t.Parallel()
	c, cmd := peer(t)
	p := NewIdentifier(os.Geteuid(), "hubtest").Of(c)
	require.True(t, p.Owner, p.Why)
	require.Equal(t, cmd.Process.Pid, int(p.PID))
	require.Equal(t, os.Geteuid(), int(p.UID))
}

func TestPeerOfAnotherUser(t *testing.T) {
	t.Parallel()
	c, _ := peer(t)
	p := NewIdentifier(os.Geteuid()+1, "hubtest").Of(c)
	require.False(t, p.Owner)
	require.Contains(t, p.Why, "uid")
}

func TestPeerThatIsGone(t *testing.T) {
	t.Parallel()
	c, cmd := peer(t)
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	p := NewIdentifier(os.Geteuid(), "hubtest").Of(c)
	require.False(t, p.Owner)
	require.NotEmpty(t, p.Why)
}

func TestNoUnixPeer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() {
		if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
			defer c.Close()
			_, _ = c.Read(make([]byte, 1))
		}
	}()
	c, err := l.Accept()
	require.NoError(t, err)
	defer c.Close()
	p := NewIdentifier(os.Geteuid(), "hubtest").Of(c)
	require.False(t, p.Owner)
	require.False(t, PeerFrom(context.Background()).Owner)
	require.NotEmpty(t, PeerFrom(context.Background()).Why)
}

func TestClosedConnection(t *testing.T) {
	t.Parallel()
	c, _ := peer(t)
	require.NoError(t, c.Close())
	require.False(t, NewIdentifier(os.Geteuid(), "hubtest").Of(c).Owner)
}

func TestCgroups(t *testing.T) {
	t.Parallel()
	slice := "0::/user.slice/user-1000.slice/user@1000.service/gaia.slice/"
	for name, c := range map[string]struct {
		content string
		outside bool
	}{
		"session":                 {"0::/user.slice/user-1000.slice/session-3.scope\n", true},
		"root":                    {"0::/\n", true},
		"conductor":               {slice + "gaia-conductor@shop.service\n", true},
		"hub":                     {slice + "gaia-hub.service\n", true},
		"run":                     {slice + "gaia-run-shop-12.service\n", false},
		"below a run":             {slice + "gaia-run-shop-12.service/nested/deep\n", false},
		"deleted run":             {slice + "gaia-run-shop-12.service (deleted)\n", false},
		"run of another prefix":   {slice + "gaiatest-run-shop-12.service\n", true},
		"name that only holds it": {slice + "my-gaia-run-shop-12.service\n", true},
		"scope of that name":      {slice + "gaia-run-shop-12.scope\n", true},
		"hybrid, run":             {"2:cpu:/\n1:name=systemd:/user.slice/gaia-run-shop-1.service\n0::/\n", false},
		"hybrid, none":            {"4:memory:/process_api/9e\n1:cpu:/\n0::/\n", true},
		"colons in the path":      {"0::/a:b/gaia-run-x-1.service\n", false},
		"empty":                   {"", false},
		"no path":                 {"0::\n", false},
		"not a cgroup file":       {"hello\n", false},
		"one bad line":            {"0::/\nhello\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := NewIdentifier(0, "gaia")
			id.proc = t.TempDir()
			require.NoError(t, os.MkdirAll(filepath.Join(id.proc, "7"), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(id.proc, "7", "cgroup"), []byte(c.content), 0o600))
			err := id.outside(7)
			if c.outside {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
		})
	}
	require.Error(t, NewIdentifier(0, "gaia").outside(1<<30), "a file that cannot be read says nothing good")
}

// The process is looked at once for each connection, and not before somebody asks.
func TestConnectionKnowsItsPeer(t *testing.T) {
	t.Parallel()
	c, cmd := peer(t)
	ctx := NewIdentifier(os.Geteuid(), "hubtest").WithConn(t.Context(), c)
	require.True(t, PeerFrom(ctx).Owner)
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.True(t, PeerFrom(ctx).Owner)
}

func TestEnded(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "60")
	require.NoError(t, cmd.Start())
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	gone, err := ended(fd)
	require.NoError(t, err)
	require.False(t, gone)
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	gone, err = ended(fd)
	require.NoError(t, err)
	require.True(t, gone)
}

func FuzzCgroup(f *testing.F) {
	f.Add("0::/user.slice/gaia-run-x-1.service\n")
	f.Add("1:name=systemd:/\n0::/a/b\n")
	f.Fuzz(func(t *testing.T, s string) {
		proc := filepath.Join(t.TempDir(), "proc")
		require.NoError(t, os.MkdirAll(filepath.Join(proc, "7"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(proc, "7", "cgroup"), []byte(s+"\n0::/x/gaia-run-a-1.service\n"), 0o600))
		id := NewIdentifier(0, "gaia")
		id.proc = proc
		require.Error(t, id.outside(7), "%q hid the run", s)
	})
}
