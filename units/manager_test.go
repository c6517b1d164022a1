//go:build linux

package units

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/godbus/dbus/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gaia/domain"
	"gaia/internal/usermanager"
)

// helperMode makes the test binary a service: ready (until SIGTERM), ready-exit:N, exit:N, never.
const helperMode = "UNITS_TEST_SERVICE"

func TestMain(m *testing.M) {
	mode, ok := os.LookupEnv(helperMode)
	if strings.HasPrefix(filepath.Base(os.Args[0]), "gaia") { // by an installed unit file
		mode, ok = "ready", true
	}
	if ok {
		if err := service(mode); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	usermanager.Main(m)
}

// service notes in the folder that it is given how it was called, and then does as the mode says.
func service(mode string) error {
	if home := os.Getenv("GAIA_HOME"); home != "" {
		return errors.Join(note(home, "called"), writeJSON(home, "may-"+filepath.Base(os.Args[0]), may(home)), behave(mode))
	}
	what, folder := os.Args[1], os.Args[2]
	if err := note(folder, what); err != nil || what == "post" {
		return err
	}
	return behave(mode)
}

type call struct {
	Args, Env []string
	Cwd       string
}

func note(folder, name string) error {
	cwd, _ := os.Getwd()
	return writeJSON(folder, name, call{os.Args, os.Environ(), cwd})
}

func writeJSON(folder, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp := filepath.Join(folder, name+".tmp")
	return errors.Join(os.WriteFile(tmp, data, 0o600), os.Rename(tmp, filepath.Join(folder, name)))
}

// may tries what the hub has no use for and what git and its helpers may need, and says what went well.
func may(folder string) map[string]bool {
	status, _ := os.ReadFile("/proc/self/status")
	_, wx := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
	fd, netlink := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, 0)
	_ = unix.Close(fd)
	fd, inet := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM, 0)
	_ = unix.Close(fd)
	file := filepath.Join(folder, "setuid")
	setuid := errors.Join(os.WriteFile(file, nil, 0o755), os.Chmod(file, 0o755|os.ModeSetuid))
	_, _, personality := unix.Syscall(unix.SYS_PERSONALITY, 0x0040000, 0, 0) // ADDR_NO_RANDOMIZE
	// No threads may share what is to be left, so without the filter it is EINVAL.
	namespaces := unix.Unshare(unix.CLONE_NEWUSER) == unix.EINVAL
	umask := unix.Umask(0)
	unix.Umask(umask)
	return map[string]bool{
		"gain privileges": strings.Contains(string(status), "\nNoNewPrivs:\t0\n"), "write code": wx == nil, "use netlink": netlink == nil,
		"use the network": inet == nil, "make setuid": setuid == nil, "change personality": personality == 0, "make namespaces": namespaces,
		"share files": umask&0o077 != 0o077,
	}
}

func behave(mode string) error {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	verb, arg, _ := strings.Cut(mode, ":")
	if strings.HasPrefix(verb, "ready") {
		if sent, err := daemon.SdNotify(false, "READY=1\nSTATUS=all is well"); !sent || err != nil {
			return fmt.Errorf("notify: %v %w", sent, err)
		}
	}
	if strings.HasSuffix(verb, "exit") {
		n, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		os.Exit(n)
	}
	<-term
	return nil
}

func noted(t *testing.T, folder, name string) call {
	t.Helper()
	var c call
	data, err := os.ReadFile(filepath.Join(folder, name))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &c))
	return c
}

// bench is a test's own corner of the user manager.
type bench struct {
	*testing.T
	env usermanager.Env
	n   Names
	m   *Manager
	ctx context.Context
}

func newBench(t *testing.T) bench {
	t.Helper()
	env := usermanager.New(t)
	n, err := NewNames(env.Prefix)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	m, err := Connect(ctx, env.Runtime)
	require.NoError(t, err)
	t.Cleanup(m.Close)
	return bench{t, env, n, m, ctx}
}

// run returns the unit of a run whose host behaves by mode, and its folder.
func (b bench) run(instance string, number int, mode string) (RunUnit, string) {
	b.Helper()
	folder := filepath.Join(b.env.Home, fmt.Sprintf(`r%d %%h "q" 'p' \x41 # ä`, number))
	require.NoError(b, os.MkdirAll(folder, 0o700))
	exe, err := os.Executable()
	require.NoError(b, err)
	return RunUnit{
		Name: b.n.Run(instance, number), Description: "SHOP-7 100% $HOME ä", Slice: b.n.Slice(),
		ExecStart: []string{exe, "host", folder}, ExecStopPost: []string{exe, "post", folder},
		Environment: map[string]string{helperMode: mode, "GAIA_ODD": oddHome},
	}, folder
}

// unit writes a unit file of the test's prefix where the manager finds it.
func (b bench) unit(name, text string) string {
	b.Helper()
	_, own, err := b.m.folders(b.ctx)
	require.NoError(b, err)
	require.NoError(b, os.MkdirAll(own, 0o755))
	name = b.env.Prefix + "-" + name
	require.NoError(b, os.WriteFile(filepath.Join(own, name), []byte(text), 0o644))
	require.NoError(b, b.m.Reload(b.ctx))
	return name
}

func (b bench) status(unit string) Status {
	b.Helper()
	s, err := b.m.Status(b.ctx, unit)
	require.NoError(b, err)
	return s
}

func TestRunIsStartedWithItsPropertiesAndEndsWithoutATrace(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	u, folder := b.run("shop", 1, "ready")
	u.Limits = domain.RunLimits{MemoryMax: 256 << 20, TasksMax: 99, CPUWeight: 50, Time: 90 * time.Minute}
	require.NoError(t, b.m.StartTransient(b.ctx, u))

	var p props
	require.NoError(t, b.m.link.callOn(b.ctx, objectPath(u.Name), propsIface+".GetAll", "").Store(&p))
	for name, want := range map[string]any{
		"Type": "notify", "NotifyAccess": "main", "KillMode": "mixed", "Restart": "no", "OOMPolicy": "continue", "CollectMode": "inactive",
		"Slice": b.n.Slice(), "Description": u.Description, "Transient": true,
		"TimeoutStopUSec": uint64(10_000_000), "TimeoutStartUSec": infinity, "RuntimeMaxUSec": uint64(90 * 60 * 1_000_000),
		"MemoryMax": uint64(256 << 20), "TasksMax": uint64(99), "CPUWeight": uint64(50),
	} {
		require.Equal(t, want, p[name].Value(), name)
	}
	s := b.status(u.Name)
	require.Equal(t, "active", s.Active)
	require.Equal(t, "running", s.Sub)
	require.Equal(t, "all is well", s.StatusText)
	require.Equal(t, "transient", s.UnitFileState)
	require.Len(t, s.InvocationID, 32)
	require.Contains(t, s.ControlGroup, b.n.Slice()+"/"+u.Name)
	require.NotZero(t, s.MainPID)
	require.True(t, s.Running())
	require.WithinDuration(t, time.Now(), s.ActiveSince, time.Minute)

	c := noted(t, folder, "host")
	require.Equal(t, []string{"host", folder}, c.Args[1:], "arguments are passed literally")
	require.Contains(t, c.Env, "GAIA_ODD="+oddHome)

	// A daemon-reload reads the transient unit back from the file that systemd made of it.
	require.NoError(t, b.m.Reload(b.ctx))
	s = b.status(u.Name)
	require.Equal(t, "loaded", s.Load)
	require.Equal(t, u.Description, s.Description)
	require.NoError(t, b.m.Stop(b.ctx, u.Name))
	require.Equal(t, []string{"post", folder}, noted(t, folder, "post").Args[1:])
	require.Contains(t, noted(t, folder, "post").Env, "GAIA_ODD="+oddHome)
	require.Contains(t, noted(t, folder, "post").Env, "SERVICE_RESULT=success")
	b.env.WaitFor(t, func() bool { return b.status(u.Name).Load == "not-found" }, 5*time.Second, "the unit to be collected")
	require.False(t, b.status(u.Name).Running())
}

func TestRunWithoutLimitsHasNone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	u, _ := b.run("shop", 1, "ready")
	require.NoError(t, b.m.StartTransient(b.ctx, u))
	var p props
	require.NoError(t, b.m.link.callOn(b.ctx, objectPath(u.Name), propsIface+".GetAll", "").Store(&p))
	require.Equal(t, infinity, p["MemoryMax"].Value())
	require.Equal(t, infinity, p["TasksMax"].Value())
	require.Equal(t, uint64(domain.DefaultRunTime.Microseconds()), p["RuntimeMaxUSec"].Value())
}

func TestOneNameIsStartedOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	u, _ := b.run("shop", 1, "ready")
	const tries = 8
	errs := make(chan error, tries)
	for range tries {
		go func() { errs <- b.m.StartTransient(b.ctx, u) }()
	}
	won := 0
	for range tries {
		if err := <-errs; err == nil {
			won++
		} else {
			require.ErrorIs(t, err, domain.ErrExists)
		}
	}
	require.Equal(t, 1, won)
}

func TestRunThatFailsSaysWhyAndStaysUntilReset(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	u, folder := b.run("shop", 1, "exit:75")
	err := b.m.StartTransient(b.ctx, u)
	var job *JobError
	require.ErrorAs(t, err, &job)
	require.Equal(t, JobError{Op: "start", Unit: u.Name, Job: "failed", Result: "exit-code", Code: 1, Status: 75}, *job)
	require.ErrorContains(t, err, "exit status 75")
	require.ErrorContains(t, err, "journalctl --user -u "+u.Name)
	require.FileExists(t, filepath.Join(folder, "post"))

	s := b.status(u.Name)
	require.Equal(t, "failed", s.Active)
	require.False(t, s.Running())
	require.ErrorIs(t, b.m.StartTransient(b.ctx, u), domain.ErrExists, "a failed unit is loaded and keeps its name")
	require.NoError(t, b.m.ResetFailed(b.ctx, u.Name))
	b.env.WaitFor(t, func() bool { return b.status(u.Name).Load == "not-found" }, 5*time.Second, "the unit to be collected")
	require.NoError(t, b.m.ResetFailed(b.ctx, u.Name), "no error if it is not loaded")
}

func TestStartEndsWithItsContextAndTheUnitGoesOn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	u, _ := b.run("shop", 1, "never")
	ctx, cancel := context.WithTimeout(b.ctx, 300*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, b.m.StartTransient(ctx, u), context.DeadlineExceeded)
	require.Equal(t, "activating", b.status(u.Name).Active)
	require.Empty(t, b.m.jobs.waiting)
	require.NoError(t, b.m.Kill(b.ctx, u.Name, int(syscall.SIGKILL)))
	b.env.WaitFor(t, func() bool { return b.status(u.Name).Result == "signal" }, 5*time.Second, "the end by SIGKILL")
	require.EqualValues(t, 2, b.status(u.Name).ExecMainCode)
	require.EqualValues(t, 9, b.status(u.Name).ExecMainStatus)
}

func TestRunsAreListedByInstance(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for instance, numbers := range map[string][]int{"shop": {12, 3}, "shop-12": {3}} {
		for _, i := range numbers {
			u, _ := b.run(instance, i, "ready")
			require.NoError(t, b.m.StartTransient(b.ctx, u))
		}
	}
	names := func(instance string) (out []string) {
		runs, err := b.m.ListRuns(b.ctx, b.n, instance)
		require.NoError(t, err)
		for _, s := range runs {
			require.Equal(t, "active", s.Active)
			require.Equal(t, "loaded", s.Load)
			out = append(out, s.Name)
		}
		slices.Sort(out)
		return out
	}
	require.Equal(t, []string{b.n.Run("shop", 12), b.n.Run("shop", 3)}, names("shop"))
	require.Equal(t, []string{b.n.Run("shop-12", 3)}, names("shop-12"))
	require.Empty(t, names("sho"))
	all, err := b.m.List(b.ctx, b.env.Prefix+"-run-*")
	require.NoError(t, err)
	require.Len(t, all, 3)
}

func TestRunsThatAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for what, spoil := range map[string]func(*RunUnit){
		"name":         func(u *RunUnit) { u.Name = b.n.Run("a b/../c", 1) },
		"no text":      func(u *RunUnit) { u.Description = "\xff" },
		"slice":        func(u *RunUnit) { u.Slice = "" },
		"program":      func(u *RunUnit) { u.ExecStart = []string{"gaia-session"} },
		"no program":   func(u *RunUnit) { u.ExecStart = nil },
		"post":         func(u *RunUnit) { u.ExecStopPost = []string{"x"} },
		"argument":     func(u *RunUnit) { u.ExecStart = append(u.ExecStart, "a\x00b") },
		"dollar":       func(u *RunUnit) { u.ExecStart[2] += "$HOME" },
		"semicolon":    func(u *RunUnit) { u.ExecStopPost[2] += ";" },
		"variable":     func(u *RunUnit) { u.Environment = map[string]string{"A=B": ""} },
		"value":        func(u *RunUnit) { u.Environment = map[string]string{"A": "\xff"} },
		"weight":       func(u *RunUnit) { u.Limits.CPUWeight = 10001 },
		"negative end": func(u *RunUnit) { u.Limits.Time = -1 },
	} {
		u, _ := b.run("shop", 1, "ready")
		spoil(&u)
		require.ErrorIs(t, b.m.StartTransient(b.ctx, u), domain.ErrInvalid, what)
	}
	for _, unit := range []string{"", "x", "a b.service", "\xff.service", "*.service", "../../x.service"} {
		_, err := b.m.Status(b.ctx, unit)
		for _, err := range []error{
			err, b.m.Start(b.ctx, unit), b.m.Stop(b.ctx, unit), b.m.Restart(b.ctx, unit), b.m.Enable(b.ctx, unit), b.m.Disable(b.ctx, unit),
			b.m.ResetFailed(b.ctx, unit), b.m.Kill(b.ctx, unit, 1),
		} {
			require.ErrorIs(t, err, domain.ErrInvalid, "%q", unit)
		}
	}
	_, err := b.m.List(b.ctx, "\xff*")
	require.ErrorIs(t, err, domain.ErrInvalid)
	_, err = b.m.SystemdVersion(b.ctx)
	require.NoError(t, err, "the connection has survived all of that")
}

func TestStartStopRestart(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	good := b.unit("good.service", "[Service]\nExecStart=/bin/sleep infinity\n")
	require.Equal(t, "inactive", b.status(good).Active)
	require.NoError(t, b.m.Start(b.ctx, good))
	first := b.status(good)
	require.Equal(t, "active", first.Active)
	require.NoError(t, b.m.Start(b.ctx, good), "it is up already")
	require.NoError(t, b.m.Restart(b.ctx, good))
	second := b.status(good)
	require.NotEqual(t, first.InvocationID, second.InvocationID)
	require.NotEqual(t, first.MainPID, second.MainPID)
	require.NoError(t, b.m.Kill(b.ctx, good, int(syscall.SIGSTOP)))
	require.NoError(t, b.m.Kill(b.ctx, good, int(syscall.SIGCONT)))
	require.NoError(t, b.m.Stop(b.ctx, good))
	require.Equal(t, "inactive", b.status(good).Active)
	require.NoError(t, b.m.Stop(b.ctx, good), "it is down already")
}

func TestUnitsThatDoNotStart(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	conf := b.unit("conf.service", "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'exit 78'\n")
	killed := b.unit("killed.service", "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'kill -9 $$$$'\n")
	slow := b.unit("slow.service", "[Service]\nType=notify\nTimeoutStartSec=1\nExecStart=/bin/sleep infinity\n")
	limit := b.unit("limit.service", "[Unit]\nStartLimitBurst=1\nStartLimitIntervalSec=1h\n[Service]\nType=oneshot\nExecStart=/bin/false\n")
	needs := b.unit("needs.service", fmt.Sprintf("[Unit]\nRequires=%[1]s\nAfter=%[1]s\n[Service]\nType=oneshot\nExecStart=/bin/true\n", conf))
	broken := b.unit("broken.service", "[Service]\nType=oneshot\n")
	for _, c := range []struct{ unit, job, result, text string }{
		{conf, "failed", "exit-code", "exit status 78"},
		{killed, "failed", "signal", "signal 9"},
		{slow, "failed", "timeout", "timeout"},
		{limit, "failed", "start-limit-hit", ""},
		{needs, "dependency", "success", "dependency"},
	} {
		err := b.m.Start(b.ctx, c.unit)
		if c.unit == limit { // the other tests' daemon-reloads make the manager forget how often it was started
			b.env.WaitFor(t, func() bool { return strings.Contains(fmt.Sprint(b.m.Start(b.ctx, limit)), c.result) }, 10*time.Second, c.result)
			continue
		}
		var job *JobError
		require.ErrorAs(t, err, &job, c.unit)
		require.Equal(t, [2]string{c.job, c.result}, [2]string{job.Job, job.Result}, c.unit)
		require.ErrorContains(t, err, c.unit)
		require.ErrorContains(t, err, c.text)
		require.ErrorContains(t, err, "journalctl --user -u "+c.unit)
	}
	var job *JobError
	require.ErrorAs(t, b.m.Restart(b.ctx, conf), &job)
	require.Equal(t, JobError{Op: "restart", Unit: conf, Job: "failed", Result: "exit-code", Code: 1, Status: 78}, *job)
	require.ErrorContains(t, b.m.Start(b.ctx, broken), "systemd-analyze --user verify "+broken)
	absent := b.env.Prefix + "-absent.service"
	require.ErrorIs(t, b.m.Start(b.ctx, absent), domain.ErrNotFound)
	require.ErrorIs(t, b.m.Restart(b.ctx, absent), domain.ErrNotFound)
	require.ErrorIs(t, b.m.Kill(b.ctx, absent, 15), domain.ErrNotFound)
	require.NoError(t, b.m.Stop(b.ctx, absent))
	s := b.status(absent)
	require.Equal(t, "not-found", s.Load)
	require.Equal(t, absent, s.Name)
}

func TestEnableDisable(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tmpl := b.unit("t@.service", "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=default.target\n")
	unit := strings.Replace(tmpl, "@", "@shop", 1)
	require.Equal(t, "disabled", b.status(unit).UnitFileState)
	require.NoError(t, b.m.Enable(b.ctx, unit))
	require.Equal(t, "enabled", b.status(unit).UnitFileState)
	require.NoError(t, b.m.Enable(b.ctx, unit))
	require.Equal(t, "inactive", b.status(unit).Active, "enable starts nothing")
	require.NoError(t, b.m.Disable(b.ctx, unit))
	require.Equal(t, "disabled", b.status(unit).UnitFileState)
	require.NoError(t, b.m.Disable(b.ctx, unit))
	err := b.m.Enable(b.ctx, b.env.Prefix+"-absent.service")
	require.ErrorIs(t, err, domain.ErrNotFound)
	require.ErrorContains(t, err, b.env.Prefix+"-absent.service")
}

func TestEnvironmentAndVersion(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	env, err := b.m.Environment(b.ctx)
	require.NoError(t, err)
	require.Equal(t, os.Getenv("HOME"), env["HOME"])
	require.NotEmpty(t, env["PATH"])
	v, err := b.m.SystemdVersion(b.ctx)
	require.NoError(t, err)
	require.GreaterOrEqual(t, v, OldestSystemd)
	can, err := b.m.Abilities(b.ctx)
	require.NoError(t, err)
	require.Equal(t, v, can.Systemd)
	require.True(t, can.Unified)
	require.Equal(t, len(can.Missing) > 0, can.Mend() != "")
}

func TestTheManagersPrivateSocketIsEnough(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := shortDir(t)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "systemd"), 0o700))
	require.NoError(t, os.Symlink(filepath.Join(b.env.Runtime, "systemd/private"), filepath.Join(dir, "systemd/private")))
	m, err := Connect(b.ctx, dir)
	require.NoError(t, err)
	defer m.Close()
	require.True(t, m.link.direct)
	for range 20 { // the first call comes at the worst moment sooner or later
		l, err := dialUser(b.ctx, dir, nil)
		require.NoError(t, err)
		require.NoError(t, l.call(b.ctx, "Subscribe").Err)
		require.NoError(t, l.Close())
	}
	told := watch(b, m, b.n.Run("shop", 1))
	u, _ := b.run("shop", 1, "ready")
	require.NoError(t, m.StartTransient(b.ctx, u))
	told.quiet(b)
	told.after(b, u.Name, func() { require.NoError(t, m.Stop(b.ctx, u.Name)) })
}

func TestConnectSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err := Connect(ctx, "")
	require.ErrorContains(t, err, "XDG_RUNTIME_DIR")
	_, err = Connect(ctx, t.TempDir())
	require.ErrorContains(t, err, "loginctl enable-linger")
}

// A bus that takes the connection and never says a word must not hold its caller longer than the caller wants.
func TestConnectToASilentBusEndsWithItsContext(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	l, err := net.Listen("unix", filepath.Join(dir, "bus"))
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err = Connect(ctx, dir)
	require.Error(t, err)
	require.Less(t, time.Since(began), 30*time.Second)
}

func TestALostBusFailsWhatIsInFlight(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	proxy := newProxy(b)
	m, err := Connect(b.ctx, proxy.dir)
	require.NoError(t, err)
	defer m.Close()
	require.False(t, m.link.direct)

	u, folder := b.run("shop", 1, "never")
	errs := make(chan error, 3)
	watching := make(chan struct{})
	go func() { errs <- m.StartTransient(b.ctx, u) }() // waits for its job
	go func() {
		var once sync.Once
		errs <- m.Watch(b.ctx, func(string) bool { return true }, func(string) { once.Do(func() { close(watching) }) })
	}()
	b.env.WaitFor(t, func() bool { _, err := os.Stat(filepath.Join(folder, "host")); return err == nil }, 10*time.Second, "the host")
	<-watching
	proxy.mute.Store(true)
	asked := proxy.asked.Load()
	go func() { _, err := m.Environment(b.ctx); errs <- err }() // waits for its answer
	b.env.WaitFor(t, func() bool { return proxy.asked.Load() > asked }, 10*time.Second, "the call")
	proxy.drop()
	for range 3 {
		select {
		case err := <-errs:
			require.Error(t, err)
			require.NoError(t, b.ctx.Err())
		case <-b.ctx.Done():
			t.Fatal("a call hangs on a dead connection")
		}
	}
	<-m.Lost()
	_, err = m.Status(b.ctx, u.Name)
	require.ErrorIs(t, err, dbus.ErrClosed, "a lost bus is no answer about a unit")
	require.Equal(t, "activating", b.status(u.Name).Active, "the unit does not notice")
}

func TestWatchSeesEveryEndAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i, mode := range []string{"ready", "ready-exit:7", "never"} {
		u, _ := b.run("shop", i+1, mode)
		told := watch(b, b.m, u.Name)
		if mode == "never" {
			go func() { _ = b.m.StartTransient(b.ctx, u) }()
			b.env.WaitFor(t, func() bool { return b.status(u.Name).MainPID > 0 }, 10*time.Second, "the host")
		} else if err := b.m.StartTransient(b.ctx, u); mode == "ready" {
			require.NoError(t, err)
		}
		b.env.WaitFor(t, func() bool { return told.count() > 0 }, 5*time.Second, "the start to be told")
		if mode == "ready-exit:7" {
			b.env.WaitFor(t, func() bool { return !b.status(u.Name).Running() }, 5*time.Second, "its end")
			continue
		}
		pid := int(b.status(u.Name).MainPID)
		told.after(b, u.Name, func() { require.NoError(t, syscall.Kill(pid, syscall.SIGKILL)) })
		b.env.WaitFor(t, func() bool { return b.status(u.Name).Active == "failed" }, 5*time.Second, "failure")
		told.after(b, u.Name, func() { require.NoError(t, b.m.ResetFailed(b.ctx, u.Name)) })
	}
}

// A daemon-reload takes every unit away and adds it again; what ends afterwards is still told.
func TestWatchOutlivesADaemonReload(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	u, _ := b.run("shop", 1, "ready")
	require.NoError(t, b.m.StartTransient(b.ctx, u))
	told := watch(b, b.m, u.Name)
	b.env.WaitFor(t, func() bool { return told.count() > 0 }, 5*time.Second, "the first listing")
	for range 3 {
		require.NoError(t, b.m.Reload(b.ctx))
	}
	told.quiet(b)
	told.after(b, u.Name, func() { require.NoError(t, syscall.Kill(int(b.status(u.Name).MainPID), syscall.SIGTERM)) })
}

// A manager that executes itself anew, as an upgrade of systemd makes it do, has forgotten who listens. Whoever waits hears
// of it instead of waiting for ever. Not parallel: it is the manager of all tests.
func TestAManagerThatIsExecutedAnewFailsWhatWaits(t *testing.T) {
	b := newBench(t)
	u, folder := b.run("shop", 1, "never")
	job, watching := make(chan error, 1), make(chan error, 1)
	begun := make(chan struct{})
	var once sync.Once
	go func() { job <- b.m.StartTransient(b.ctx, u) }()
	go func() {
		watching <- b.m.Watch(b.ctx, func(string) bool { return true }, func(string) { once.Do(func() { close(begun) }) })
	}()
	<-begun
	b.env.WaitFor(t, func() bool { _, err := os.Stat(filepath.Join(folder, "host")); return err == nil }, 10*time.Second, "the host")
	out, err := b.env.Systemctl("daemon-reexec")
	require.NoError(t, err, out)
	for _, failed := range []error{<-job, <-watching} {
		// The bus tells that the manager has left, or the manager's own socket is closed.
		require.True(t, errors.Is(failed, errManagerLeft) || errors.Is(failed, dbus.ErrClosed), "%v", failed)
	}
	b.env.WaitFor(t, func() bool {
		m, err := Connect(b.ctx, b.env.Runtime)
		if err != nil {
			return false
		}
		defer m.Close()
		s, err := m.Status(b.ctx, u.Name)
		return err == nil && s.Active == "activating" && s.Load == "loaded"
	}, 10*time.Second, "the manager to be back, with the run")
}

// Reading a unit at rest loads and unloads it; a watcher that reads what it is told must come to rest too.
func TestWatchDoesNotWakeItself(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rest := b.unit("rest.service", "[Service]\nExecStart=/bin/sleep infinity\n")
	absent := b.env.Prefix + "-absent.service"
	told := watch(b, b.m, rest, absent)
	told.after(b, rest, func() { require.NoError(t, b.m.Start(b.ctx, rest)) })
	told.after(b, rest, func() { require.NoError(t, b.m.Stop(b.ctx, rest)) })
	for range 20 {
		b.status(rest)
		b.status(absent)
	}
	told.quiet(b)
}

// A receiver that stands still holds nobody up: the bus is read on, and each unit is told once when it wakes.
func TestWatchMergesWhatASlowReceiverMisses(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	busy := b.unit("busy@.service", "[Service]\nType=oneshot\nExecStart=/bin/true\n")
	unit := func(i int) string { return strings.Replace(busy, "@", fmt.Sprintf("@%d", i), 1) }
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	entered, leave := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	calls := map[string]int{}
	done := make(chan error, 1)
	go func() {
		done <- b.m.Watch(ctx, func(u string) bool { return strings.HasPrefix(u, b.env.Prefix+"-busy@") }, func(u string) {
			mu.Lock()
			calls[u]++
			first := len(calls) == 1 && calls[u] == 1
			mu.Unlock()
			if first {
				close(entered)
				<-leave
			}
		})
	}()
	b.env.WaitFor(t, func() bool { // until the watch has begun
		require.NoError(t, b.m.Start(b.ctx, unit(0)))
		select {
		case <-entered:
			return true
		default:
			return false
		}
	}, 10*time.Second, "the watch")
	for range 10 {
		for i := range 5 {
			require.NoError(t, b.m.Restart(b.ctx, unit(i+1)))
		}
	}
	close(leave)
	b.env.WaitFor(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(calls) == 6 }, 5*time.Second, "the five units")
	mu.Lock()
	for i := range 5 {
		require.LessOrEqual(t, calls[unit(i+1)], 2)
	}
	mu.Unlock()
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

func TestInstalledUnitsRunWithWhatTheyCarry(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	bin := filepath.Join(b.env.Home, "my tools 100%")
	home := filepath.Join(b.env.Home, strings.ReplaceAll(oddHome, "/", "_"))
	require.NoError(t, os.MkdirAll(bin, 0o755))
	require.NoError(t, os.MkdirAll(home, 0o755))
	exe, err := os.Executable()
	require.NoError(t, err)
	for _, name := range []string{"gaia", "gaia-hub", "gaia-conductor"} {
		require.NoError(t, os.Symlink(exe, filepath.Join(bin, name)))
	}
	p := Paths{Bin: bin, Env: map[string]string{"GAIA_PREFIX": b.env.Prefix, "GAIA_HOME": home}}
	drift, err := FindDrift(b.ctx, b.m, b.n, p)
	require.NoError(t, err)
	require.Empty(t, drift, "what was never installed does not drift")
	written, err := Install(b.ctx, b.m, b.n, p)
	require.NoError(t, err)
	require.Len(t, written, 6)
	again, err := Install(b.ctx, b.m, b.n, p)
	require.NoError(t, err)
	require.Empty(t, again)
	drift, err = FindDrift(b.ctx, b.m, b.n, p)
	require.NoError(t, err)
	require.Empty(t, drift)

	unit := b.n.Conductor("shop-12")
	require.NoError(t, b.m.Start(b.ctx, unit))
	c := noted(t, home, "called")
	require.Equal(t, []string{filepath.Join(bin, "gaia-conductor"), "shop-12"}, c.Args)
	require.Contains(t, c.Env, "GAIA_HOME="+home)
	require.Contains(t, c.Env, "GAIA_PREFIX="+b.env.Prefix)
	require.Equal(t, "all is well", b.status(unit).StatusText)
	require.NoError(t, b.m.Stop(b.ctx, unit))

	require.NoError(t, b.m.Start(b.ctx, b.n.Hub()), "with its hardening, and by way of its socket")
	require.Equal(t, "active", b.status(b.n.HubSocket()).Active)
	allowed := func(program string) (out map[string]bool) {
		data, err := os.ReadFile(filepath.Join(home, "may-"+program))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(data, &out))
		return out
	}
	for what, ok := range allowed("gaia-hub") {
		require.Equal(t, what == "use the network", ok, "the hub may %s", what)
	}
	for what, ok := range allowed("gaia-conductor") {
		require.True(t, ok, "git may not %s", what)
	}
	for _, unit := range []string{b.n.Hub(), unit} {
		var p props
		require.NoError(t, b.m.link.callOn(b.ctx, objectPath(unit), propsIface+".GetAll", "").Store(&p))
		require.Equal(t, int32(0), p["OOMScoreAdjust"].Value(), unit)
		require.Equal(t, "avoid", p["ManagedOOMPreference"].Value(), unit)
	}
	info, err := os.Stat(filepath.Join(b.env.Runtime, b.env.Prefix, "hub.sock"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	info, err = os.Stat(filepath.Join(b.env.Runtime, b.env.Prefix))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	// drift: one of another version, one edited, one missing
	stale := Files(b.n, Paths{Bin: "/old"})
	_, own, err := b.m.folders(b.ctx)
	require.NoError(t, err)
	path := func(name string) string { return filepath.Join(own, name) }
	require.NoError(t, os.WriteFile(path(b.n.Hub()), stale[b.n.Hub()], 0o644))
	require.NoError(t, os.WriteFile(path(b.n.Slice()), append(stale[b.n.Slice()], "[Slice]\nMemoryMax=1G\n"...), 0o644))
	require.NoError(t, os.Remove(path(b.n.ReapTimer(""))))
	drift, err = FindDrift(b.ctx, b.m, b.n, p)
	require.NoError(t, err)
	kinds := map[string]DriftKind{}
	for _, d := range drift {
		kinds[d.Unit] = d.Kind
	}
	require.Equal(t, map[string]DriftKind{b.n.Hub(): DriftStale, b.n.Slice(): DriftEdited, b.n.ReapTimer(""): DriftMissing}, kinds)
	require.NoError(t, Mend(b.ctx, b.m, drift))
	require.FileExists(t, path(b.n.Slice())+".edited-1")
	drift, err = FindDrift(b.ctx, b.m, b.n, p)
	require.NoError(t, err)
	require.Empty(t, drift)
	require.False(t, b.status(b.n.Hub()).NeedDaemonReload)
}

func TestUnitFilesVerify(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	home := filepath.Join(b.env.Home, "o")
	bin := filepath.Join(b.env.Home, "my tools 100%")
	require.NoError(t, os.MkdirAll(home, 0o755))
	require.NoError(t, os.MkdirAll(bin, 0o755))
	for _, name := range []string{"gaia", "gaia-hub", "gaia-conductor"} {
		require.NoError(t, os.Symlink("/bin/true", filepath.Join(bin, name)))
	}
	var paths []string
	for name, text := range Files(b.n, Paths{Bin: bin, Env: map[string]string{"GAIA_PREFIX": b.n.Prefix, "GAIA_HOME": oddHome}}) {
		paths = append(paths, filepath.Join(home, name))
		require.NoError(t, os.WriteFile(paths[len(paths)-1], text, 0o644))
	}
	slices.Sort(paths)
	out, err := exec.CommandContext(b.ctx, "systemd-analyze", append([]string{"--user", "verify", "--man=no"}, paths...)...).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Empty(t, string(out))
}

func TestLinger(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	me, err := user.Current()
	require.NoError(t, err)
	dir := shortDir(t)
	socket := filepath.Join(dir, "none")
	on, err := Logind{socket, dir}.Linger(ctx, os.Getuid())
	require.NoError(t, err)
	require.False(t, on)
	require.NoError(t, os.WriteFile(filepath.Join(dir, me.Username), nil, 0o644))
	on, err = Logind{socket, dir}.Linger(ctx, os.Getuid())
	require.NoError(t, err)
	require.True(t, on)
	_, err = Logind{socket, filepath.Join(dir, "absent")}.Linger(ctx, os.Getuid())
	require.ErrorContains(t, err, "loginctl show-user", "what is not known is not guessed")
	_, err = Logind{socket, dir}.Linger(ctx, 1<<30)
	require.Error(t, err)
}

// logind plays the part of the real one for the uids that it knows.
type logind map[uint32]bool

func (l logind) GetUser(uid uint32) (dbus.ObjectPath, *dbus.Error) {
	if _, ok := l[uid]; !ok {
		return "", dbus.NewError("org.freedesktop.login1.NoSuchUser", []any{"no such user"})
	}
	return dbus.ObjectPath(fmt.Sprintf("/org/freedesktop/login1/user/_%d", uid)), nil
}

// asked is what was asked of logind, lingerCalls the part of it that sets linger.
type asked struct {
	uid             uint32
	on, interactive bool
}

type lingerCalls chan asked

func (c lingerCalls) SetUserLinger(uid uint32, on, interactive bool) *dbus.Error {
	c <- asked{uid, on, interactive}
	switch uid {
	case 4003:
		return dbus.NewError("org.freedesktop.DBus.Error.AccessDenied", []any{"Permission denied"})
	case 4004:
		return dbus.NewError("org.freedesktop.DBus.Error.InteractiveAuthorizationRequired", []any{"Interactive authentication required."})
	case 4005:
		return dbus.NewError("System.Error.ENOSPC", []any{"the disk is full"})
	}
	return nil
}

type loginUser bool

func (u loginUser) Get(_, _ string) (dbus.Variant, *dbus.Error) {
	return dbus.MakeVariant(bool(u)), nil
}

func TestLingerAsLogindSaysIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	bus := filepath.Join(b.env.Runtime, "bus")
	l, err := dialBus(b.ctx, bus, nil)
	require.NoError(t, err)
	defer l.Close()
	users := logind{4001: true, 4002: false}
	lingers := make(lingerCalls, 1)
	require.NotContains(t, users, uint32(os.Getuid()))
	require.NoError(t, l.Export(struct {
		logind
		lingerCalls
	}{users, lingers}, "/org/freedesktop/login1", "org.freedesktop.login1.Manager"))
	for uid, on := range users {
		path, _ := users.GetUser(uid)
		require.NoError(t, l.Export(loginUser(on), path, propsIface))
	}
	_, err = l.RequestName("org.freedesktop.login1", dbus.NameFlagDoNotQueue)
	require.NoError(t, err)
	g := Logind{bus, filepath.Join(b.env.Home, "absent")}
	for uid, want := range users {
		on, err := g.Linger(b.ctx, int(uid))
		require.NoError(t, err)
		require.Equal(t, want, on)
	}
	on, err := g.Linger(b.ctx, os.Getuid())
	require.NoError(t, err, "logind holds nothing of the user")
	require.False(t, on)
	require.Equal(t, g.Socket, SystemLogind("tcp:host=x;unix:guid=1,path="+dbus.EscapeBusAddressValue(bus)).Socket)

	require.NoError(t, g.EnableLinger(b.ctx, 4002, true))
	require.Equal(t, asked{4002, true, true}, <-lingers)
	require.ErrorIs(t, g.EnableLinger(b.ctx, 4003, false), ErrLingerRefused)
	<-lingers
	require.ErrorIs(t, g.EnableLinger(b.ctx, 4004, false), ErrLingerRefused)
	<-lingers
	err = g.EnableLinger(b.ctx, 4005, false)
	require.ErrorContains(t, err, "disk is full")
	require.NotErrorIs(t, err, ErrLingerRefused)
	require.NotErrorIs(t, err, ErrNoLogind)
	<-lingers

	// A bus without logind, and no bus at all.
	require.NoError(t, l.Close())
	for _, g := range []Logind{g, {filepath.Join(b.env.Home, "none"), g.Folder}} {
		require.ErrorIs(t, g.EnableLinger(b.ctx, 4002, true), ErrNoLogind)
		_, err := g.Linger(b.ctx, os.Getuid())
		require.ErrorIs(t, err, ErrNoLogind)
	}
}

func TestSystemLogind(t *testing.T) {
	t.Parallel()
	usual := SystemLogind("")
	require.Equal(t, "/run/dbus/system_bus_socket", usual.Socket)
	for _, address := range []string{"tcp:path=/x", "unix:abstract=/x", "nonsense", "unix:path=%zz"} {
		require.Equal(t, usual, SystemLogind(address), address)
	}
	require.Equal(t, "/a b", SystemLogind("unix:path=/a%20b,guid=12").Socket)
}

// TestCheckBus tells a bus with the user manager from one without, and from none.
func TestCheckBus(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, CheckBus(b.ctx, b.env.Runtime))
	require.ErrorIs(t, CheckBus(b.ctx, shortDir(t)), fs.ErrNotExist)
}

// told counts what a watch tells.
type told struct {
	n    atomic.Int64
	wake chan struct{}
}

// watch counts the calls for some units until the test's end. It returns when the watch has begun.
func watch(b bench, m *Manager, units ...string) *told {
	b.Helper()
	w := &told{wake: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan error, 1)
	begun := make(chan struct{})
	var once sync.Once
	go func() {
		done <- m.Watch(ctx, func(u string) bool { return slices.Contains(units, u) || u == "basic.target" }, func(u string) {
			if u == "basic.target" { // told with the first listing
				once.Do(func() { close(begun) })
				return
			}
			_, _ = m.Status(ctx, u) // as a real one would
			w.n.Add(1)
			select {
			case w.wake <- struct{}{}:
			default:
			}
		})
	}()
	b.Cleanup(func() {
		cancel()
		require.ErrorIs(b, <-done, context.Canceled)
	})
	select {
	case <-begun:
	case err := <-done:
		b.Fatal(err)
	case <-b.ctx.Done():
		b.Fatal("the watch does not begin")
	}
	return w
}

func (w *told) count() int64 { return w.n.Load() }

// after does something to a unit and requires to be told within a second of the manager's knowing it.
func (w *told) after(b bench, unit string, do func()) {
	b.Helper()
	was, before := b.status(unit), w.count()
	do()
	b.env.WaitFor(b, func() bool {
		s := b.status(unit)
		return s.Active != was.Active || s.Sub != was.Sub
	}, 10*time.Second, "a change of %s", unit)
	deadline := time.After(20 * time.Second) // at once, on a machine that has time
	for w.count() <= before {
		select {
		case <-w.wake:
		case <-deadline:
			b.Fatalf("not told that %s has changed", unit)
		}
	}
}

// quiet waits until nothing has been told for a while.
func (w *told) quiet(b bench) {
	b.Helper()
	for {
		before := w.count()
		select {
		case <-time.After(time.Second):
			if w.count() == before {
				return
			}
		case <-b.ctx.Done():
			b.Fatal("the watch does not come to rest")
		}
	}
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "g")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// proxy stands between a client and the user bus, so that a test can cut them off.
type proxy struct {
	dir   string
	mute  atomic.Bool  // answers are swallowed
	asked atomic.Int64 // bytes sent by clients
	mu    sync.Mutex
	conns []net.Conn
	l     net.Listener
}

func newProxy(b bench) *proxy {
	b.Helper()
	p := &proxy{dir: shortDir(b.T)}
	var err error
	p.l, err = net.Listen("unix", filepath.Join(p.dir, "bus"))
	require.NoError(b, err)
	b.Cleanup(p.drop)
	go func() {
		for {
			in, err := p.l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", filepath.Join(b.env.Runtime, "bus"))
			if err != nil {
				in.Close()
				return
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			go func() { _, _ = io.Copy(out, countingReader{in, &p.asked}) }()
			go func() { _, _ = io.Copy(muted{in, &p.mute}, out) }()
		}
	}()
	return p
}

func (p *proxy) drop() {
	p.l.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
}

type countingReader struct {
	io.Reader
	n *atomic.Int64
}

func (c countingReader) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n.Add(int64(n))
	return n, err
}

type muted struct {
	io.Writer
	mute *atomic.Bool
}

func (m muted) Write(b []byte) (int, error) {
	if m.mute.Load() {
		return len(b), nil
	}
	return m.Writer.Write(b)
}
