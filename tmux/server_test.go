package tmux_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gaia/tmux"
)

// poll asks until cond holds, which every answer that takes time here does within a second or so.
func poll(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("waited a minute for: %s", what)
}

// servers are the processes that serve has started, by their sockets.
var servers sync.Map

// serve starts a real server in a folder whose path is short enough for its socket, with exactly env.
func serve(t testing.TB, env ...string) tmux.Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "g")
	require.NoError(t, err)
	s := tmux.Server{Socket: filepath.Join(dir, "s"), Conf: filepath.Join(dir, "gaia.conf")}
	require.NoError(t, os.WriteFile(s.Conf, tmux.Conf(), 0o600))
	cmd := s.Foreground(append([]string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "TERM=dumb"}, env...))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	servers.Store(s.Socket, cmd.Process)
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() {
		if err := s.Kill(context.Background()); err != nil {
			_ = cmd.Process.Kill()
		}
		<-done
		os.RemoveAll(dir)
		require.Empty(t, stderr.String())
	})
	require.NoError(t, s.WaitReady(t.Context()))
	return s
}

func newSession(t testing.TB, s tmux.Server, argv ...string) tmux.IDs {
	t.Helper()
	ids, err := s.NewSession(t.Context(), tmux.NewSession{Name: "shop-7", Title: "SHOP-7 shop", Cols: 200, Rows: 50, Argv: argv})
	require.NoError(t, err)
	return ids
}

func onePane(t testing.TB, s tmux.Server) tmux.Pane {
	t.Helper()
	panes, err := s.Panes(t.Context())
	require.NoError(t, err)
	require.Len(t, panes, 1)
	return panes[0]
}

// ended waits until tmux knows how the pane's program has ended, which is a little after its end.
func ended(t testing.TB, s tmux.Server) tmux.Pane {
	t.Helper()
	server, ok := servers.Load(s.Socket)
	require.True(t, ok)
	var p tmux.Pane
	poll(t, "the pane's end", func() bool {
		p = onePane(t, s)
		if p.Exit != nil || p.Signal != 0 {
			return true
		}
		// As the host does: now and then tmux misses the signal by which the kernel tells it of an end.
		require.NoError(t, server.(*os.Process).Signal(syscall.SIGCHLD))
		return false
	})
	return p
}

func TestExitOfThePane(t *testing.T) {
	t.Parallel()
	seven := 7
	for name, c := range map[string]struct {
		script string
		exit   *int
		signal int
	}{
		"status":                             {"exit 7", &seven, 0},
		"signal":                             {"kill -9 $$", nil, 9},
		"child that keeps the terminal open": {"trap '' HUP; (trap '' HUP TERM; exec sleep 60) & exit 7", &seven, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			ids := newSession(t, s, "sh", "-c", c.script)
			p := ended(t, s)
			require.Equal(t, ids.Pane, p.ID)
			require.Equal(t, c.exit, p.Exit)
			require.Equal(t, c.signal, p.Signal)
		})
	}
}

func TestWordsArriveAsTheyAre(t *testing.T) {
	t.Parallel()
	s := serve(t)
	out := filepath.Join(t.TempDir(), "out")
	words := []string{"#{pane_id}", "%H", "$HOME", "`id`", "a;", `b\;`, ";", `\`, "", "ünï", "-x", "two words"}
	_, err := s.NewSession(t.Context(), tmux.NewSession{Name: "a", Title: "x; #{pid} #[fg=red];", Cols: 100, Rows: 30,
		Argv: append([]string{"sh", "-c", `pwd >"$0.tmp"; printf '%s\0' "$@" >>"$0.tmp"; mv "$0.tmp" "$0"`, out}, words...)})
	require.NoError(t, err)
	poll(t, "the program's output", func() bool { _, err := os.Stat(out); return err == nil })
	got, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, "/\n"+strings.Join(words, "\x00")+"\x00", string(got))
}

func TestOneWordAndBadNamesAreRefused(t *testing.T) {
	t.Parallel()
	s := tmux.Server{Socket: "/nowhere/s", Conf: "/nowhere/c"}
	for _, n := range []tmux.NewSession{
		{Name: "a", Argv: []string{"reboot; id"}},
		{Name: "INT:8.1/x", Argv: []string{"a", "b"}},
		{Name: "", Argv: []string{"a", "b"}},
		{Name: "a-", Argv: []string{"a", "b"}},
	} {
		_, err := s.NewSession(t.Context(), n)
		require.Error(t, err)
		require.NotErrorIs(t, err, tmux.ErrNoServer, "refused before tmux was asked")
	}
	_, err := s.Capture(t.Context(), "=a")
	require.NotErrorIs(t, err, tmux.ErrNoServer)
}

func TestErrorsAreNamed(t *testing.T) {
	t.Parallel()
	s := serve(t)
	newSession(t, s, "sleep", "60")
	_, err := s.Capture(t.Context(), "%99")
	require.ErrorIs(t, err, tmux.ErrNoPane)

	gone := tmux.Server{Socket: filepath.Join(filepath.Dir(s.Socket), "other"), Conf: s.Conf}
	_, err = gone.Panes(t.Context())
	require.ErrorIs(t, err, tmux.ErrNoServer)
	require.NoError(t, gone.Kill(t.Context()), "ending what is not there is no error")
	_, err = gone.NewSession(t.Context(), tmux.NewSession{Name: "a", Cols: 80, Rows: 24, Argv: []string{"sleep", "60"}})
	require.ErrorIs(t, err, tmux.ErrNoServer, "no call starts a server")
	require.NoFileExists(t, gone.Socket)
	require.Error(t, tmux.Server{Socket: "/" + strings.Repeat("x", 107)}.CheckSocket())
	require.NoError(t, tmux.Server{Socket: "/" + strings.Repeat("x", 106)}.CheckSocket())
}

func TestSizeAndScreen(t *testing.T) {
	t.Parallel()
	s := serve(t)
	ids := newSession(t, s, "sh", "-c", `stty size; printf 'uñi⠋ 日本語\n'; exec sleep 60`)
	var text string
	poll(t, "the screen", func() bool {
		var err error
		text, err = s.Capture(t.Context(), ids.Pane)
		require.NoError(t, err)
		return strings.Contains(text, "日本語")
	})
	rows := strings.Split(text, "\n")
	require.Contains(t, []string{"50 200", "49 200"}, rows[0], "one row may be the status line's")
	require.Equal(t, "uñi⠋ 日本語", rows[1])
}

func TestAttach(t *testing.T) {
	t.Parallel()
	s := serve(t)
	newSession(t, s, "sh", "-c", `trap 'echo interrupted; exit 3' INT; while :; do sleep 0.05; done`)
	args := s.AttachArgs(false)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TERM=xterm-256color", "SECRET=hunter2", "SSH_AUTH_SOCK=/x"}
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 30, Cols: 100})
	require.NoError(t, err)
	var seen syncBuffer
	copied := make(chan struct{})
	go func() { _, _ = io.Copy(&seen, tty); close(copied) }()
	poll(t, "the terminal's title", func() bool { return strings.Contains(seen.String(), "\x1b]0;SHOP-7 shop\x07") })
	_, err = tty.Write([]byte{3})
	require.NoError(t, err)
	three := 3
	require.Equal(t, &three, ended(t, s).Exit)
	require.NoError(t, s.Kill(t.Context()))
	_ = cmd.Wait()
	_ = tty.Close()
	<-copied
}

// A window that a person opens begins where the agent works, with the run's PATH.
func TestWindowsOfPeople(t *testing.T) {
	t.Parallel()
	s := serve(t)
	newSession(t, s, "sleep", "60")
	dir := filepath.Join(t.TempDir(), "a b'c\" $(id) %H #{pid} #[fg=red];\né;")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, s.Equip(t.Context(), dir, map[string]string{"GREETING": "good day;"}))
	args := s.AttachArgs(false)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TERM=xterm-256color"}
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 30, Cols: 100})
	require.NoError(t, err)
	var seen syncBuffer
	copied := make(chan struct{})
	go func() { _, _ = io.Copy(&seen, tty); close(copied) }()
	// What is typed before tmux has the terminal is thrown away.
	poll(t, "the terminal's title", func() bool { return strings.Contains(seen.String(), "\x1b]0;") })
	for i, key := range []string{"c", "%", "\""} {
		_, err = tty.Write([]byte("\x02" + key))
		require.NoError(t, err)
		typed := time.Now()
		poll(t, "the window", func() bool {
			panes, err := s.Panes(t.Context())
			require.NoError(t, err)
			if len(panes) == i+1 && time.Since(typed) > 5*time.Second {
				// While it still draws for the first time tmux may forget that the prefix was typed. A person types it again, too.
				typed = time.Now()
				_, err = tty.Write([]byte("\x02" + key))
				require.NoError(t, err)
			}
			if len(panes) != i+2 {
				return false
			}
			for _, p := range panes[1:] {
				at, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.PID))
				env, envErr := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
				if err != nil || envErr != nil || at != dir || !strings.Contains("\x00"+string(env), "\x00GREETING=good day;\x00") {
					return false
				}
			}
			return true
		})
	}
	require.NoError(t, s.Kill(t.Context()))
	_ = cmd.Wait()
	_ = tty.Close()
	<-copied
}

// What a run's server knows is what it was started with: neither a client nor a configuration adds to it.
func TestEnvironmentIsWhatTheServerGot(t *testing.T) {
	t.Setenv("HUB_KEY", "hunter2")
	s := serve(t)
	newSession(t, s, "sleep", "60")
	for _, scope := range [][]string{{"show-environment", "-g"}, {"show-environment", "-t", "=shop-7"}} {
		out, err := s.Command(t.Context(), scope...).Output()
		require.NoError(t, err)
		require.NotContains(t, string(out), "hunter2")
	}
	out, err := s.Command(t.Context(), "show-environment", "-g").Output()
	require.NoError(t, err)
	var names []string
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(line, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	require.Equal(t, []string{"LANG", "PATH", "PWD", "TERM"}, slices.DeleteFunc(names, func(n string) bool { return n == "SHLVL\n" }))
}

func TestOutput(t *testing.T) {
	t.Parallel()
	s := serve(t)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	session := tmux.NewSession{Name: "w", Cols: 80, Rows: 24, Output: r,
		Argv: []string{"sh", "-c", `read go; i=0; while [ $i -lt 2000 ]; do echo "line $i ünï"; i=$((i+1)); done; exec sleep 60`}}
	ids, err := s.NewSession(t.Context(), session)
	require.NoError(t, err)
	poll(t, "the pipe", func() bool {
		out, err := s.Command(t.Context(), "list-panes", "-a", "-F", "#{pane_pipe}").Output()
		require.NoError(t, err)
		return string(out) == "1\n"
	})
	require.NoError(t, s.Command(t.Context(), "send-keys", "-t", ids.Pane, "Enter").Run())
	var got syncBuffer
	done := make(chan error, 1)
	go func() { _, err := io.Copy(&got, r); done <- err }()
	poll(t, "all lines", func() bool { return strings.Contains(got.String(), "line 1999 ünï\r\n") })
	require.NoError(t, s.Kill(t.Context()))
	require.NoError(t, w.Close())
	require.NoError(t, <-done, "the pipe ends when the server has")
	require.Equal(t, 2000, strings.Count(got.String(), "ünï"))

	f, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	session.Output = f
	_, err = s.NewSession(t.Context(), session)
	require.ErrorContains(t, err, "not a pipe")
}

// A tmux that hangs is killed with everything that it started, and the caller gets an error in time.
func TestWedgedCall(t *testing.T) {
	dir := t.TempDir()
	pidfile := filepath.Join(dir, "pid")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tmux"), fmt.Appendf(nil, "#!/bin/sh\ntrap '' TERM HUP\nsleep 600 &\necho $! >%s\nwait\n", pidfile), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	s := tmux.Server{Socket: filepath.Join(dir, "s"), Conf: filepath.Join(dir, "c")}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		poll(t, "the child", func() bool { b, _ := os.ReadFile(pidfile); return len(b) > 1 })
		cancel()
	}()
	_, err := s.Panes(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, tmux.ErrNoServer, "no answer is not an answer")
	b, err := os.ReadFile(pidfile)
	require.NoError(t, err)
	var pid int
	_, err = fmt.Sscan(string(b), &pid)
	require.NoError(t, err)
	poll(t, "the grandchild's end", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(b), ") Z ")
	})
}

// The user's own server is neither used nor ended.
func TestOtherServersAreLeftAlone(t *testing.T) {
	t.Parallel()
	mine, other := serve(t), serve(t)
	newSession(t, mine, "sleep", "60")
	ids := newSession(t, other, "sleep", "60")
	require.NoError(t, mine.Kill(t.Context()))
	require.NoError(t, unix.Kill(ids.PID, syscall.Signal(0)))
	require.Equal(t, ids.PID, onePane(t, other).PID)
}

func TestVersion(t *testing.T) {
	major, minor, err := tmux.Version(t.Context())
	require.NoError(t, err)
	require.True(t, major > 3 || major == 3 && minor >= 3, "tmux %d.%d", major, minor)
	t.Setenv("PATH", t.TempDir())
	_, _, err = tmux.Version(t.Context())
	require.ErrorContains(t, err, "is tmux installed")
}

// syncBuffer is a buffer that one goroutine fills while another looks at it.
type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}
func (s *syncBuffer) String() string { s.mu.Lock(); defer s.mu.Unlock(); return s.b.String() }
