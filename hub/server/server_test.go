//go:build linux

package server_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/hub/server"
	"gaia/internal/log"
	"gaia/internal/usermanager"
	"gaia/registry"
	"gaia/remote"
	"gaia/units"
)

func TestMain(m *testing.M) { usermanager.Main(m) }

// home is an installation of its own, in a folder short enough for sockets.
func home(t *testing.T) registry.Home {
	dir, err := os.MkdirTemp("", "g")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	env := map[string]string{"GAIA_HOME": dir, "XDG_RUNTIME_DIR": filepath.Join(dir, "run"), "GAIA_PREFIX": "hubtest"}
	h, _, err := registry.Open(func(name string) string { return env[name] })
	require.NoError(t, err)
	return h
}

// process is a hub that runs inside the test.
type process struct {
	stop context.CancelFunc
	done chan error
	mu   sync.Mutex
	told []string
}

func (p *process) heard(prefix string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.told {
		if strings.HasPrefix(s, prefix) {
			return true
		}
	}
	return false
}

func (p *process) forget() { p.mu.Lock(); defer p.mu.Unlock(); p.told = nil }

// start runs a hub; it is stopped with the test.
func start(t *testing.T, o server.Options) *process {
	ctx, stop := context.WithCancel(context.Background())
	p := &process{stop: stop, done: make(chan error, 1)}
	o.Prefix, o.Log = "hubtest", zerolog.Nop()
	o.Notify = func(s string) { p.mu.Lock(); defer p.mu.Unlock(); p.told = append(p.told, s) }
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		p.done <- server.Run(ctx, o)
	}()
	t.Cleanup(func() {
		stop()
		<-finished
		if t.Failed() {
			t.Logf("the hub told %q", p.told)
			select {
			case err := <-p.done:
				t.Logf("and ended: %v", err)
			default:
			}
		}
	})
	return p
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, time.Minute, 5*time.Millisecond, what)
}

func client(t *testing.T, hub string) *remote.Client {
	c, err := remote.New(remote.Options{Hub: hub, User: "anna"})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func TestServeAndStop(t *testing.T) {
	t.Parallel()
	h := home(t)
	p := start(t, server.Options{Home: h})
	eventually(t, "READY", func() bool { return p.heard("READY=1") })
	st, err := os.Stat(h.HubSocket())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	eventually(t, "the watchdog is fed", func() bool { return p.heard("WATCHDOG=1") })

	c := client(t, "unix://"+h.HubSocket())
	_, err = c.CreateProject(t.Context(), domain.Project{Key: "SHOP", Slug: "shop"})
	require.NoError(t, err)
	streaming, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		var once sync.Once
		ended <- c.Follow(t.Context(), 0, func(domain.Event) { once.Do(func() { close(streaming) }) })
	}()
	<-streaming
	begun := time.Now()
	p.stop()
	require.NoError(t, <-p.done)
	require.Less(t, time.Since(begun), 30*time.Second, "an open stream holds nothing up")
	require.ErrorIs(t, <-ended, domain.ErrUnreachable)
	require.True(t, p.heard("STOPPING=1"))
	require.NoFileExists(t, h.HubSocket())

	again := start(t, server.Options{Home: h})
	eventually(t, "READY", func() bool { return again.heard("READY=1") })
	_, err = c.ProjectByKey(t.Context(), "SHOP")
	require.NoError(t, err)
}

func TestOnlyOneHub(t *testing.T) {
	t.Parallel()
	h := home(t)
	p := start(t, server.Options{Home: h})
	eventually(t, "READY", func() bool { return p.heard("READY=1") })
	err := server.Run(t.Context(), server.Options{Home: h, Prefix: "hubtest"})
	require.ErrorContains(t, err, "another hub uses the database")

	// Another database, the same socket.
	conf := filepath.Join(h.Dir, "other.toml")
	require.NoError(t, os.WriteFile(conf, []byte(fmt.Sprintf("store = \"sqlite://%s/other.db\"\n", h.Dir)), 0o600))
	err = server.Run(t.Context(), server.Options{Home: h, Prefix: "hubtest", Config: conf})
	require.ErrorContains(t, err, "serves "+h.HubSocket())
	require.False(t, errors.Is(err, server.ErrConfig))
	live, _ := client(t, "unix://"+h.HubSocket()).Health(t.Context())
	require.NoError(t, live, "the first hub has kept its socket")
}

func TestSocketsOfOthers(t *testing.T) {
	t.Parallel()
	t.Run("stale", func(t *testing.T) {
		t.Parallel()
		h := home(t)
		require.NoError(t, os.MkdirAll(filepath.Dir(h.HubSocket()), 0o700))
		l, err := net.Listen("unix", h.HubSocket())
		require.NoError(t, err)
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		require.NoError(t, l.Close())
		p := start(t, server.Options{Home: h})
		eventually(t, "READY", func() bool { return p.heard("READY=1") })
		live, _ := client(t, "unix://"+h.HubSocket()).Health(t.Context())
		require.NoError(t, live)
	})
	t.Run("live", func(t *testing.T) {
		t.Parallel()
		h := home(t)
		require.NoError(t, os.MkdirAll(filepath.Dir(h.HubSocket()), 0o700))
		l, err := net.Listen("unix", h.HubSocket()) // as systemd holds it, without a lock
		require.NoError(t, err)
		defer l.Close()
		err = server.Run(t.Context(), server.Options{Home: h, Prefix: "hubtest"})
		require.ErrorContains(t, err, "serves")
		c, err := net.Dial("unix", h.HubSocket())
		require.NoError(t, err)
		require.NoError(t, c.Close())
	})
	t.Run("a file", func(t *testing.T) {
		t.Parallel()
		h := home(t)
		require.NoError(t, os.MkdirAll(filepath.Dir(h.HubSocket()), 0o700))
		require.NoError(t, os.WriteFile(h.HubSocket(), []byte("precious"), 0o600))
		require.ErrorIs(t, server.Run(t.Context(), server.Options{Home: h, Prefix: "hubtest"}), server.ErrConfig)
		b, err := os.ReadFile(h.HubSocket())
		require.NoError(t, err)
		require.Equal(t, "precious", string(b))
	})
}

func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	for name, toml := range map[string]string{
		"unknown key":    "lsten = []\n",
		"no listener":    "listen = []\n",
		"open network":   "listen = [\"tcp://0.0.0.0:0\"]\n",
		"named host":     "listen = [\"tcp://hub.example.org:1\"]\n",
		"other database": "store = \"postgres://x\"\n",
		"long socket":    "listen = [\"unix:///" + strings.Repeat("x", 120) + "\"]\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := home(t)
			conf := filepath.Join(h.Dir, "hub.toml")
			require.NoError(t, os.WriteFile(conf, []byte(toml), 0o600))
			require.ErrorIs(t, server.Run(t.Context(), server.Options{Home: h, Prefix: "hubtest"}), server.ErrConfig)
			require.ErrorIs(t, server.Run(t.Context(), server.Options{Home: home(t), Prefix: "hubtest", Config: conf}), server.ErrConfig)
		})
	}
	require.ErrorIs(t, server.Run(t.Context(), server.Options{Home: home(t), Config: "/nowhere/hub.toml"}), server.ErrConfig)
}

func TestReload(t *testing.T) {
	t.Parallel()
	h := home(t)
	hup := make(chan os.Signal)
	p := start(t, server.Options{Home: h, Reload: hup})
	eventually(t, "READY", func() bool { return p.heard("READY=1") })
	c := client(t, "unix://"+h.HubSocket())
	attempts := func() int {
		s, err := c.Snapshot(t.Context(), "")
		require.NoError(t, err)
		return s.Limits.MaxAttempts
	}
	require.Equal(t, 3, attempts())
	for _, step := range []struct {
		toml, status string
		attempts     int
	}{
		{"[limits]\nmax_attempts = 7\n", "", 7},
		{"[limits]\nmax_atempts = 8\n", "the new hub.toml is refused", 7},
		{"listen = [\"tcp://127.0.0.1:0\"]\n[limits]\nmax_attempts = 8\n", "needs a restart", 7},
		{"[limits]\nmax_attempts = 9\n", "ready on ", 9},
	} {
		p.forget()
		require.NoError(t, os.WriteFile(filepath.Join(h.Dir, "hub.toml"), []byte(step.toml), 0o600))
		hup <- syscall.SIGHUP
		eventually(t, "READY again", func() bool { return p.heard("READY=1") })
		require.Equal(t, step.attempts, attempts())
		p.mu.Lock()
		var told []string
		for _, s := range p.told {
			if !strings.HasPrefix(s, "WATCHDOG") {
				told = append(told, s)
			}
		}
		p.mu.Unlock()
		require.Regexp(t, `^RELOADING=1\nMONOTONIC_USEC=[0-9]+$`, told[0])
		require.Regexp(t, `(?s)READY=1`, told[len(told)-1])
		require.Contains(t, strings.Join(told, "\n"), step.status)
	}
	p.stop()
	require.NoError(t, <-p.done)
	require.True(t, p.heard("STOPPING=1\nSTATUS=answering what is under way\nEXTEND_TIMEOUT_USEC=11000000"))
	require.True(t, p.heard("STATUS=closing the database\nEXTEND_TIMEOUT_USEC="))
}

func TestLoopback(t *testing.T) {
	t.Parallel()
	h := home(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free, as far as one can know
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	require.NoError(t, os.WriteFile(filepath.Join(h.Dir, "hub.toml"), []byte(fmt.Sprintf("listen = [\"unix://%s\", \"tcp://%s\"]\n", h.HubSocket(), addr)), 0o600))
	p := start(t, server.Options{Home: h})
	eventually(t, "READY", func() bool { return p.heard("READY=1") })
	c := client(t, "http://"+addr)
	live, ready := c.Health(t.Context())
	require.NoError(t, live)
	require.NoError(t, ready)
	_, err = c.Projects(t.Context(), remote.Query{})
	require.ErrorIs(t, err, domain.ErrUnauthenticated)
}

// A hub that lost its database says so and refuses writes, but goes on: a new start would begin an empty one.
func TestLostDatabase(t *testing.T) {
	t.Parallel()
	h := home(t)
	p := start(t, server.Options{Home: h})
	eventually(t, "READY", func() bool { return p.heard("READY=1") })
	c := client(t, "unix://"+h.HubSocket())
	_, err := c.CreateProject(t.Context(), domain.Project{Key: "SHOP", Slug: "shop"})
	require.NoError(t, err)
	away := h.HubDB() + ".away"
	require.NoError(t, os.Rename(h.HubDB(), away))
	live, ready := c.Health(t.Context())
	require.NoError(t, live)
	require.ErrorIs(t, ready, domain.ErrStorage)
	impatient, err := remote.New(remote.Options{Hub: "unix://" + h.HubSocket(), User: "anna", Patience: 50 * time.Millisecond})
	require.NoError(t, err)
	defer impatient.Close()
	_, err = impatient.CreateProject(t.Context(), domain.Project{Key: "NEW", Slug: "new"})
	require.ErrorIs(t, err, domain.ErrStorage)
	p.forget()
	eventually(t, "the watchdog is fed all the same", func() bool { return p.heard("WATCHDOG=1") })

	// A write that waits goes through when the database is back.
	wrote := make(chan error, 1)
	go func() {
		_, err := c.CreateProject(t.Context(), domain.Project{Key: "LATE", Slug: "late"})
		wrote <- err
	}()
	require.NoError(t, os.Rename(away, h.HubDB()))
	require.NoError(t, <-wrote)
	all, err := c.Projects(t.Context(), remote.Query{})
	require.NoError(t, err)
	require.Len(t, all, 2)
}

// installed is a hub of its own under the user manager.
func installed(t *testing.T) (usermanager.Env, *units.Manager, units.Names) {
	env := usermanager.New(t)
	require.NoError(t, os.MkdirAll(env.GaiaHome, 0o700))
	names, err := units.NewNames(env.Prefix)
	require.NoError(t, err)
	m, err := units.Connect(t.Context(), env.Runtime)
	require.NoError(t, err)
	t.Cleanup(m.Close)
	_, err = units.Install(t.Context(), m, names, units.Paths{Bin: env.Bin, Env: map[string]string{"GAIA_PREFIX": env.Prefix, "GAIA_HOME": env.GaiaHome}})
	require.NoError(t, err)
	return env, m, names
}

func TestUnderSystemd(t *testing.T) {
	t.Parallel()
	env, m, names := installed(t)
	require.NoError(t, m.Start(t.Context(), names.HubSocket()))
	socket := filepath.Join(env.Runtime, env.Prefix, "hub.sock")
	c := client(t, "unix://"+socket)
	st, err := m.Status(t.Context(), names.Hub())
	require.NoError(t, err)
	require.Equal(t, "inactive", st.Active, "nobody has asked for it yet")

	p, err := c.CreateProject(t.Context(), domain.Project{Key: "SHOP", Slug: "shop"})
	require.NoError(t, err, "the first caller starts it")
	st, err = m.Status(t.Context(), names.Hub())
	require.NoError(t, err)
	require.Equal(t, "running", st.Sub)
	require.Contains(t, st.StatusText, "ready on unix://"+socket)

	// A restart is a pause for those who write, and loses nothing.
	wrote := make(chan error, 1)
	go func() {
		for i := range 40 {
			if _, err := c.CreateTicket(t.Context(), domain.TicketDraft{Project: p.ID, Title: fmt.Sprint(i)}); err != nil {
				wrote <- err
				return
			}
		}
		wrote <- nil
	}()
	for range 2 {
		require.NoError(t, m.Restart(t.Context(), names.Hub()))
	}
	require.NoError(t, m.Kill(t.Context(), names.Hub(), 9))
	require.NoError(t, <-wrote)
	all, err := c.Tickets(t.Context(), remote.Query{})
	require.NoError(t, err)
	require.Len(t, all, 40)

	// What runs inside a run's unit is not the owner, whatever it says of itself.
	curl := []string{"curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Gaia-User: anna", "--unix-socket", socket, "http://hub/jsonapi/user/user"}
	ask := func(unit string) string {
		out, err := env.Command("systemd-run", append([]string{"--user", "--quiet", "--wait", "--pipe", "--collect", "--unit=" + unit}, curl...)...).CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	require.Equal(t, "401", ask(names.Run("shop", 1)))
	require.Equal(t, "200", ask(env.Prefix+"-other.service"))

	// It reads its limits again; a file with a mistake does not reach it.
	pid := func() uint32 {
		st, err := m.Status(t.Context(), names.Hub())
		require.NoError(t, err)
		require.Equal(t, "active", st.Active)
		return st.MainPID
	}
	before := pid()
	conf := filepath.Join(env.GaiaHome, "hub.toml")
	require.NoError(t, os.WriteFile(conf, []byte("[limits]\nmax_atempts = 5\n"), 0o600))
	_, err = env.Systemctl("reload", names.Hub())
	require.Error(t, err)
	require.NoError(t, os.WriteFile(conf, []byte("[limits]\nmax_attempts = 5\n"), 0o600))
	said, err := env.Systemctl("reload", names.Hub())
	require.NoError(t, err, said)
	eventually(t, "the limits to hold", func() bool {
		s, err := c.Snapshot(t.Context(), "")
		return err == nil && s.Limits.MaxAttempts == 5
	})
	require.Equal(t, before, pid(), "the same process")

	// The journal has the story, and knows the kinds of events.
	out, err := env.Command("journalctl", "--user", "--user-unit="+names.Hub(), "-o", "cat", "MESSAGE_ID="+log.HubReady).CombinedOutput()
	require.NoError(t, err, string(out))
	require.GreaterOrEqual(t, strings.Count(string(out), "the hub is ready"), 3)

	require.NoError(t, m.Stop(t.Context(), names.Hub()))
	st, err = m.Status(t.Context(), names.Hub())
	require.NoError(t, err)
	require.Equal(t, "success", st.Result)
	require.FileExists(t, socket, "the socket is systemd's, and stays")
}

func TestBadConfigurationIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	env, m, names := installed(t)
	require.NoError(t, os.WriteFile(filepath.Join(env.GaiaHome, "hub.toml"), []byte("lsten = []\n"), 0o600))
	require.Error(t, m.Start(t.Context(), names.Hub()))
	st, err := m.Status(t.Context(), names.Hub())
	require.NoError(t, err)
	require.Equal(t, "failed", st.Active)
	require.Equal(t, int32(78), st.ExecMainStatus)
	require.Zero(t, st.NRestarts)
}

// An http.Server that closes its streams late would hang every stop of the machine.
func TestIdleConnectionsDoNotHoldUpAStop(t *testing.T) {
	t.Parallel()
	h := home(t)
	p := start(t, server.Options{Home: h})
	eventually(t, "READY", func() bool { return p.heard("READY=1") })
	c, err := net.Dial("unix", h.HubSocket())
	require.NoError(t, err)
	defer c.Close()
	req, err := http.NewRequest("GET", "http://hub/gaia/v1/healthz", nil)
	require.NoError(t, err)
	require.NoError(t, req.Write(c))
	_, err = c.Read(make([]byte, 16))
	require.NoError(t, err)
	begun := time.Now()
	p.stop()
	require.NoError(t, <-p.done)
	require.Less(t, time.Since(begun), 30*time.Second)
}
