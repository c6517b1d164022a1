//go:build linux

package host_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gaia/domain"
	"gaia/internal/usermanager"
	"gaia/session"
	"gaia/tmux"
	"gaia/tmux/executor"
	"gaia/tmux/executortest"
	"gaia/units"
	"gaia/workspace"
)

func TestMain(m *testing.M) { usermanager.Main(m) }

const (
	instance = "shop-2"
	secret   = "gaia_run_hunter2hunter2"
	patience = 60 * time.Second
)

// rig is a conductor's executor over the real user manager, with one worktree.
type rig struct {
	env    usermanager.Env
	names  units.Names
	units  *units.Manager
	blind  *blindfold
	exec   *executor.Executor
	runs   string
	tree   string
	gitDir string
}

// blindfold takes the user manager away.
type blindfold struct {
	*units.Manager
	mu  sync.Mutex
	err error
}

func (b *blindfold) set(err error) { b.mu.Lock(); b.err = err; b.mu.Unlock() }
func (b *blindfold) get() error    { b.mu.Lock(); defer b.mu.Unlock(); return b.err }
func (b *blindfold) Status(ctx context.Context, unit string) (units.Status, error) {
	if err := b.get(); err != nil {
		return units.Status{}, err
	}
	return b.Manager.Status(ctx, unit)
}
func (b *blindfold) List(ctx context.Context, patterns ...string) ([]units.Status, error) {
	if err := b.get(); err != nil {
		return nil, err
	}
	return b.Manager.List(ctx, patterns...)
}
func (b *blindfold) StartTransient(ctx context.Context, u units.RunUnit) error {
	if err := b.get(); err != nil {
		return err
	}
	return b.Manager.StartTransient(ctx, u)
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{env: usermanager.New(t)}
	var err error
	r.names, err = units.NewNames(r.env.Prefix)
	require.NoError(t, err)
	r.units, err = units.Connect(t.Context(), r.env.Runtime)
	require.NoError(t, err)
	t.Cleanup(r.units.Close)
	r.blind = &blindfold{Manager: r.units}
	// Paths are data: nothing between here and the agent may take one for anything else.
	r.runs = filepath.Join(r.env.Home, "it's %H #{pid} `id`", "runs")
	odd := filepath.Join(r.env.Home, "it's $HOME %H #{pid};")
	r.exec = executor.New(executor.Config{
		Units: r.blind, Names: r.names, Instance: instance, Runs: r.runs,
		Session: filepath.Join(r.env.Bin, "gaia-session"),
		Env:     map[string]string{"GAIA_PREFIX": r.env.Prefix, "GAIA_HOME": r.env.GaiaHome},
	})
	r.tree = filepath.Join(odd, "trees", "SHOP-7;")
	checkout := filepath.Join(odd, "checkout")
	require.NoError(t, os.MkdirAll(checkout, 0o700))
	r.git(t, checkout, "init", "-q")
	r.git(t, checkout, "commit", "-q", "--allow-empty", "-m", "first")
	r.git(t, checkout, "worktree", "add", "-q", "--no-track", "-b", "gaia/SHOP-7", r.tree)
	r.gitDir = r.git(t, r.tree, "rev-parse", "--absolute-git-dir")
	marker(t, r)
	return r
}

func (r *rig) git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := r.env.Command("git", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "git %v: %s", args, out)
	return strings.TrimSpace(string(out))
}

// plan is what a test wants of a run.
type plan struct {
	script string // of the agent
	argv   []string
	number int
	hooks  domain.Hooks
	limits domain.RunLimits
	edit   func(*session.Spec, *session.TreeFile, map[string]string)
	noTree bool
}

// agent is a script that lives until the test gives it a status, which is what GAIA_END names.
const agent = `while [ ! -e "$GAIA_END" ]; do sleep 0.02; done; exit "$(cat "$GAIA_END")"`

func (r *rig) prepare(t testing.TB, p plan) domain.Launch {
	t.Helper()
	run := uuid.Must(uuid.NewV7()).String()
	number := max(p.number, 1)
	folder := filepath.Join(r.runs, run)
	spec := session.Spec{
		Run: run, Ticket: "t", Identifier: "SHOP-7", Title: "A title", Instance: instance, Prefix: r.env.Prefix, Project: "SHOP",
		Number: number, Attempt: 1, State: "coding", Unit: r.names.Run(instance, number),
		Socket: filepath.Join(r.env.Runtime, r.env.Prefix, "r", run[len(run)-12:]+".sock"),
	}
	argv := p.argv
	if argv == nil {
		argv = []string{"/bin/sh", "-c", p.script}
	}
	tree := session.TreeFile{
		Tree: domain.Tree{Path: r.tree, Branch: "gaia/SHOP-7", Base: "HEAD"}, Argv: argv, Hooks: p.hooks, GitDir: r.gitDir,
	}
	env := map[string]string{
		"HOME": r.env.Home, "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "SHELL": "/bin/sh", "USER": os.Getenv("USER"),
		"GAIA_RUN": run, "GAIA_END": filepath.Join(folder, "end"), "API_KEY": secret,
		"XDG_RUNTIME_DIR": r.env.Runtime, "DBUS_SESSION_BUS_ADDRESS": "unix:path=" + r.env.Runtime + "/bus",
	}
	if p.edit != nil {
		p.edit(&spec, &tree, env)
	}
	f, err := session.Create(folder, spec, secret)
	require.NoError(t, err)
	require.NoError(t, f.WriteEnv(env))
	if !p.noTree {
		require.NoError(t, f.WriteTree(tree))
	}
	return domain.Launch{Run: run, Number: number, Folder: folder, Description: "Gaia run SHOP-7", Limits: p.limits}
}

func (r *rig) start(t testing.TB, p plan) domain.Launch {
	t.Helper()
	l := r.prepare(t, p)
	require.NoError(t, r.exec.Start(t.Context(), l))
	return l
}

func (r *rig) end(t testing.TB, run string, status int) {
	t.Helper()
	path := filepath.Join(r.runs, run, "end")
	require.NoError(t, os.WriteFile(path+".tmp", []byte(strconv.Itoa(status)), 0o600))
	require.NoError(t, os.Rename(path+".tmp", path))
}

func (r *rig) server(t testing.TB, l domain.Launch) tmux.Server {
	t.Helper()
	spec, err := session.Folder(l.Folder).Load()
	require.NoError(t, err)
	return tmux.Server{Socket: spec.Socket, Conf: "/dev/null"}
}

func (r *rig) pane(t testing.TB, l domain.Launch) tmux.Pane {
	t.Helper()
	panes, err := r.server(t, l).Panes(t.Context())
	require.NoError(t, err)
	require.Len(t, panes, 1)
	return panes[0]
}

func (r *rig) status(t testing.TB, l domain.Launch) units.Status {
	t.Helper()
	st, err := r.units.Status(t.Context(), r.names.Run(instance, l.Number))
	require.NoError(t, err)
	return st
}

// record waits for the unit's end and returns what was recorded of it.
func (r *rig) record(t testing.TB, l domain.Launch) session.Record {
	t.Helper()
	eventually(t, "the unit's end", func() bool { return !r.status(t, l).Running() })
	rec, err := session.Folder(l.Folder).Record()
	require.NoError(t, err)
	require.Equal(t, l.Run, rec.Run)
	started, err := session.Folder(l.Folder).Started()
	require.NoError(t, err)
	require.Equal(t, started.InvocationID, rec.InvocationID)
	require.Equal(t, started.BootID, rec.BootID)
	require.NotEmpty(t, rec.BootID)
	require.WithinDuration(t, time.Now(), rec.EndedAt.Time, time.Minute)
	require.NotEmpty(t, rec.ServiceResult, "post has completed the record")
	require.Positive(t, rec.CPUMS)
	return rec
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("waited %s for: %s", patience, what)
}

// has reports whether a file of the run folder is there, and not empty.
func has(l domain.Launch, name string) bool {
	st, err := os.Stat(filepath.Join(l.Folder, name))
	return err == nil && st.Size() > 0
}

func read(t testing.TB, l domain.Launch, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(l.Folder, name))
	require.NoError(t, err)
	return string(b)
}

func pids(t testing.TB, group string) []int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", group, "cgroup.procs"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	require.NoError(t, err)
	var out []int
	for _, f := range strings.Fields(string(data)) {
		n, err := strconv.Atoi(f)
		require.NoError(t, err)
		out = append(out, n)
	}
	return out
}

func TestExecutorConforms(t *testing.T) {
	executortest.Run(t, func(t *testing.T) executortest.Harness {
		r := newRig(t)
		return executortest.Harness{
			Executor: r.exec,
			Prepare: func(t testing.TB, number int) domain.Launch {
				return r.prepare(t, plan{script: agent, number: number})
			},
			End: r.end,
			Break: func(testing.TB) func() {
				r.blind.set(errors.New("the bus is away"))
				return func() { r.blind.set(nil) }
			},
		}
	})
}

// What an agent finds itself in: exactly the environment that was written for it, in its worktree, in its unit.
func TestAgentsWorld(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.start(t, plan{script: `printf 'uñi⠋ 日本語\n'; env -0 >"$GAIA_END.env"; pwd >"$GAIA_END.pwd"; tty >"$GAIA_END.tty"; ` + agent})
	eventually(t, "the agent's notes", func() bool { return has(l, "end.tty") })
	require.Equal(t, r.tree+"\n", read(t, l, "end.pwd"))

	want, err := session.Folder(l.Folder).Env()
	require.NoError(t, err)
	want["TERM"] = "tmux-256color"
	got := map[string]string{}
	for kv := range strings.SplitSeq(strings.TrimSuffix(read(t, l, "end.env"), "\x00"), "\x00") {
		k, v, _ := strings.Cut(kv, "=")
		if k != "PWD" && k != "_" && k != "OLDPWD" && k != "SHLVL" { // the shell's own
			got[k] = v
		}
	}
	require.Equal(t, want, got)

	st := r.status(t, l)
	require.Equal(t, "active", st.Active)
	require.Equal(t, "SHOP-7, coding, attempt 1: the agent runs", st.StatusText)
	pane := r.pane(t, l)
	group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pane.PID))
	require.NoError(t, err)
	require.Contains(t, string(group), "0::"+st.ControlGroup+"\n")
	require.Contains(t, string(group), r.names.Slice())
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pane.PID))
	require.NoError(t, err)
	sh, err := filepath.EvalSymlinks("/bin/sh")
	require.NoError(t, err)
	require.Equal(t, sh, exe, "nothing stands between tmux and the agent")

	var out []byte
	eventually(t, "the session's environment", func() bool {
		out, err = r.server(t, l).Command(t.Context(), "show-environment", "-g").Output()
		return err == nil && strings.Contains(string(out), "HOME="+r.env.Home+"\n")
	})
	require.NotContains(t, string(out), secret)
	for _, name := range []string{"XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "NOTIFY_SOCKET", "INVOCATION_ID", "GAIA_", "JOURNAL_STREAM"} {
		require.NotContains(t, string(out), name)
	}
	for _, pid := range pids(t, st.ControlGroup) {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil {
			require.NotContains(t, string(line), secret)
		}
	}
	require.Contains(t, string(out), "PATH=/usr/local/bin:/usr/bin:/bin\n", "what people start in the session is found where the agent finds it")
	out, err = r.server(t, l).Command(t.Context(), "list-sessions", "-F", "#{session_name} #{window_width} #{pane_current_path}").Output()
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(out), "shop-7 200 "), string(out))
	info, err := os.Stat(r.server(t, l).Socket)
	require.NoError(t, err)
	require.Zero(t, info.Mode().Perm()&0o077)

	r.end(t, l.Run, 0)
	r.record(t, l)
	require.Contains(t, read(t, l, session.FileScreen), "uñi⠋ 日本語\n")
	require.True(t, strings.HasPrefix(read(t, l, session.FileOutput), "uñi⠋ 日本語\r\n"), "the output begins with the agent's first word")
	_, err = os.Stat(r.server(t, l).Socket)
	require.ErrorIs(t, err, os.ErrNotExist)
	files, err := os.ReadDir(l.Folder)
	require.NoError(t, err)
	for _, f := range files {
		info, err := f.Info()
		require.NoError(t, err)
		if !strings.HasPrefix(f.Name(), "end") {
			require.Zero(t, info.Mode().Perm()&0o077, f.Name())
		}
	}
}

// Every end leaves one true record and no process.
func TestEnds(t *testing.T) {
	seven, zero := 7, 0
	// What ignores all that can be ignored, in a session of its own.
	stubborn := `setsid sh -c 'trap "" TERM HUP INT; touch "$GAIA_END.stubborn"; while :; do sleep 1; done' >/dev/null 2>&1 & `
	kill := func(sig syscall.Signal, pid func(*rig, *testing.T, domain.Launch) int) func(*rig, *testing.T, domain.Launch) {
		return func(r *rig, t *testing.T, l domain.Launch) { require.NoError(t, syscall.Kill(pid(r, t, l), sig)) }
	}
	pane := func(r *rig, t *testing.T, l domain.Launch) int { return r.pane(t, l).PID }
	main := func(r *rig, t *testing.T, l domain.Launch) int { return int(r.status(t, l).MainPID) }
	server := func(r *rig, t *testing.T, l domain.Launch) int {
		out, err := r.server(t, l).Command(t.Context(), "list-sessions", "-F", "#{pid}").Output()
		require.NoError(t, err)
		pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
		require.NoError(t, err)
		return pid
	}
	for name, c := range map[string]struct {
		script string
		limits domain.RunLimits
		end    func(*rig, *testing.T, domain.Launch)
		want   session.Record
		reason domain.Reason
		result string // of the unit
	}{
		"the agent exits": {end: func(r *rig, t *testing.T, l domain.Launch) { r.end(t, l.Run, 7) },
			want: session.Record{Cause: session.CausePane, Exit: &seven}, reason: domain.ReasonAgentExit, result: "exit-code"},
		"the agent exits well": {end: func(r *rig, t *testing.T, l domain.Launch) { r.end(t, l.Run, 0) },
			want: session.Record{Cause: session.CausePane, Exit: &zero}, reason: domain.ReasonAgentExit, result: "success"},
		"the agent is killed": {end: kill(syscall.SIGKILL, pane),
			want: session.Record{Cause: session.CausePane, Signal: "SIGKILL"}, reason: domain.ReasonAgentExit, result: "exit-code"},
		"the agent crashes": {end: kill(syscall.SIGSEGV, pane),
			want: session.Record{Cause: session.CausePane, Signal: "SIGSEGV"}, reason: domain.ReasonAgentExit, result: "exit-code"},
		"the host is killed": {end: kill(syscall.SIGKILL, main),
			want: session.Record{Cause: session.CauseHost, Signal: "SIGKILL", WrittenBy: session.WrittenByPost}, reason: domain.ReasonSessionLost, result: "signal"},
		"the tmux server is killed": {end: kill(syscall.SIGKILL, server),
			want: session.Record{Cause: session.CauseServer, Signal: "SIGKILL"}, reason: domain.ReasonSessionLost, result: "exit-code"},
		"tmux is told to end by hand": {end: func(r *rig, t *testing.T, l domain.Launch) {
			require.NoError(t, r.server(t, l).Kill(t.Context()))
		}, want: session.Record{Cause: session.CauseServer}, reason: domain.ReasonSessionLost, result: "exit-code"},
		"the session is closed by hand": {end: func(r *rig, t *testing.T, l domain.Launch) {
			require.NoError(t, r.server(t, l).Command(t.Context(), "kill-session", "-t", "=shop-7").Run())
		}, want: session.Record{Cause: session.CausePane}, reason: domain.ReasonAgentExit, result: "exit-code"},
		"a TERM that nobody asked for": {end: kill(syscall.SIGTERM, main),
			want: session.Record{Cause: session.CauseTerm}, reason: domain.ReasonSessionLost, result: "success"},
		"systemctl stop": {end: func(r *rig, t *testing.T, l domain.Launch) {
			_, err := r.env.Systemctl("stop", r.names.Run(instance, l.Number))
			require.NoError(t, err)
		}, want: session.Record{Cause: session.CauseTerm}, reason: domain.ReasonSessionLost, result: "success"},
		"a stop that was asked for": {end: func(r *rig, t *testing.T, l domain.Launch) { require.NoError(t, r.exec.Stop(t.Context(), l.Run)) },
			want: session.Record{Cause: session.CauseTerm, TermRequested: true}, reason: "", result: "success"},
		"an agent that ignores TERM": {script: "trap '' TERM HUP; " + agent, end: func(r *rig, t *testing.T, l domain.Launch) { require.NoError(t, r.exec.Stop(t.Context(), l.Run)) },
			want: session.Record{Cause: session.CauseTerm, TermRequested: true}, reason: "", result: "success"},
		"the time is over": {limits: domain.RunLimits{Time: 2 * time.Second}, end: func(*rig, *testing.T, domain.Launch) {},
			want: session.Record{Cause: session.CauseTerm}, reason: domain.ReasonRunTime, result: "timeout"},
		"a child that keeps the terminal": {script: `sh -c 'trap "" TERM HUP; exec sleep 600' & ` + agent,
			end:  func(r *rig, t *testing.T, l domain.Launch) { r.end(t, l.Run, 7) },
			want: session.Record{Cause: session.CausePane, Exit: &seven}, reason: domain.ReasonAgentExit, result: "exit-code"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			script := c.script
			if script == "" {
				script = agent
			}
			l := r.start(t, plan{script: stubborn + script, limits: c.limits})
			eventually(t, "the stubborn child", func() bool {
				_, err := os.Stat(filepath.Join(l.Folder, "end.stubborn"))
				return err == nil
			})
			st := r.status(t, l)
			require.GreaterOrEqual(t, len(pids(t, st.ControlGroup)), 4)
			c.end(r, t, l)
			rec := r.record(t, l)
			if c.want.WrittenBy == "" {
				c.want.WrittenBy = session.WrittenByHost
				require.True(t, has(l, session.FileScreen) || rec.Cause == session.CauseServer || c.want.Exit == nil && c.want.Signal == "")
			}
			require.Equal(t, c.result, rec.ServiceResult)
			got := session.Record{Cause: rec.Cause, Exit: rec.Exit, Signal: rec.Signal, TermRequested: rec.TermRequested, WrittenBy: rec.WrittenBy}
			require.Equal(t, c.want, got, rec.Note)
			reason, note := session.Reason(rec)
			require.Equal(t, c.reason, reason, note)
			require.Zero(t, rec.OOMKill)
			require.Empty(t, pids(t, st.ControlGroup), "no process is left")
			require.NoError(t, r.exec.Stop(t.Context(), l.Run))
			require.Equal(t, "not-found", r.status(t, l).Load, "a failed unit is forgotten")
			after, err := session.Folder(l.Folder).Record()
			require.NoError(t, err)
			require.Equal(t, rec, after)
			_, err = os.Stat(r.server(t, l).Socket)
			require.ErrorIs(t, err, os.ErrNotExist)
		})
	}
}

// The kernel's part needs a memory controller, which not every user manager is given; what a SIGKILL means without one is
// asserted there instead.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.start(t, plan{
		script: `while [ ! -e "$GAIA_END" ]; do sleep 0.02; done; head -c 300m /dev/zero | tail >/dev/null; kill -9 $$`,
		limits: domain.RunLimits{MemoryMax: 120 << 20},
	})
	limit, err := r.env.Systemctl("show", "-P", "MemoryMax", r.names.Run(instance, l.Number))
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(120<<20), strings.TrimSpace(limit))
	data, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", r.status(t, l).ControlGroup, "cgroup.controllers"))
	limited := err == nil && slices.Contains(strings.Fields(string(data)), "memory")
	r.end(t, l.Run, 0)
	rec := r.record(t, l)
	require.Equal(t, "SIGKILL", rec.Signal)
	reason, note := session.Reason(rec)
	if !limited {
		t.Log("NOT TESTED HERE: that the kernel ends a run at MemoryMax; this user manager has no memory controller (gaia doctor names what is not delegated)")
		require.Zero(t, rec.OOMKill)
		require.Equal(t, domain.ReasonAgentExit, reason, note)
		return
	}
	require.Positive(t, rec.OOMKill)
	require.Positive(t, rec.MemoryPeak)
	require.Equal(t, domain.ReasonOutOfMemory, reason, note)
}

// Systemd-oomd ends a whole unit by SIGKILL and leaves no other trace of why than this mark.
func TestEndedBySystemdOomd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.start(t, plan{script: agent})
	group := filepath.Join("/sys/fs/cgroup", r.status(t, l).ControlGroup)
	require.NoError(t, unix.Setxattr(group, "user.oomd_ooms", []byte("1"), 0))
	out, err := r.env.Systemctl("kill", "--signal=KILL", r.names.Run(instance, l.Number))
	require.NoError(t, err, out)
	rec := r.record(t, l)
	require.Equal(t, int64(1), rec.OOMKill)
	reason, note := session.Reason(rec)
	require.Equal(t, domain.ReasonOutOfMemory, reason, note)
}

// A person at the terminal talks to the agent itself.
func TestAttach(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.start(t, plan{script: `trap 'exit 3' INT; trap 'stty size >"$GAIA_END.size"' WINCH; touch "$GAIA_END.ready"; while :; do sleep 0.05; done`})
	eventually(t, "the agent's traps", func() bool { _, err := os.Stat(filepath.Join(l.Folder, "end.ready")); return err == nil })
	args := r.server(t, l).AttachArgs(false)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(r.env.Environ(), "TERM=xterm-256color")
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 33, Cols: 111})
	require.NoError(t, err)
	copied := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, tty); close(copied) }()
	eventually(t, "the new size", func() bool { return has(l, "end.size") })
	require.Contains(t, read(t, l, "end.size"), " 111\n")
	_, err = tty.Write([]byte{3})
	require.NoError(t, err)
	rec := r.record(t, l)
	three := 3
	require.Equal(t, &three, rec.Exit, "%+v", rec)
	_ = cmd.Wait()
	_ = tty.Close()
	<-copied
}

func TestHooks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	note := func(name string) domain.Hook {
		return domain.Hook{Script: `echo "$GAIA_HOOK $GAIA_BRANCH $API_KEY"; pwd >>"$GAIA_END.` + name + `"; [ "$PWD" = "$GAIA_WORKTREE" ]`, Timeout: time.Minute}
	}
	l := r.start(t, plan{script: `test -e "$GAIA_END.create" && test -e "$GAIA_END.before" && exit 5`,
		hooks: domain.Hooks{AfterCreate: note("create"), BeforeRun: note("before"), AfterRun: note("after")},
		edit:  func(_ *session.Spec, tree *session.TreeFile, _ map[string]string) { tree.AfterCreate = true }})
	rec := r.record(t, l)
	require.Equal(t, 5, *rec.Exit)
	for _, name := range []string{"create", "before", "after"} {
		require.Equal(t, r.tree+"\n", read(t, l, "end."+name))
	}
	require.Equal(t, "before_run gaia/SHOP-7 "+secret+"\n", read(t, l, "hook-before_run.log"))
	require.NotContains(t, rec.Note, secret)
	m, err := workspace.ReadMarker(r.gitDir)
	require.NoError(t, err)
	require.True(t, m.AfterCreate, "it is not due again")
}

// marker makes the tree look complete.
func marker(t testing.TB, r *rig) {
	t.Helper()
	data, err := json.Marshal(workspace.Marker{Ticket: "t", Identifier: "SHOP-7", Run: "r", Branch: "gaia/SHOP-7", Base: r.git(t, r.tree, "rev-parse", "HEAD")})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(r.gitDir, "gaia.json"), data, 0o600))
}

// A fatal hook that fails, or takes too long, ends the run before the agent, with all that it started.
func TestFatalHooks(t *testing.T) {
	three := 3
	for name, c := range map[string]struct {
		hooks domain.Hooks
		hook  string
		exit  *int
		note  string
	}{
		"exit":  {domain.Hooks{BeforeRun: domain.Hook{Script: "echo installing; printf '\\033[31mno such package\\033[0m\\n\\n' >&2; exit 3"}}, "before_run", &three, "exit status 3; its last words: no such package ("},
		"time":  {domain.Hooks{BeforeRun: domain.Hook{Script: `trap '' TERM; sleep 600 & echo $! >"$GAIA_END.pid"; wait`, Timeout: time.Second}}, "before_run", nil, "it took longer than 1s and was killed; it printed nothing"},
		"first": {domain.Hooks{AfterCreate: domain.Hook{Script: "exit 3"}, BeforeRun: domain.Hook{Script: "touch \"$GAIA_END.agent\""}}, "after_create", &three, "exit status 3; it printed nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			l := r.prepare(t, plan{script: `touch "$GAIA_END.agent"`, hooks: c.hooks,
				edit: func(_ *session.Spec, tree *session.TreeFile, _ map[string]string) {
					tree.AfterCreate, tree.Behind = true, "the hook is an old one"
				}})
			require.Error(t, r.exec.Start(t.Context(), l))
			rec := r.record(t, l)
			require.Equal(t, session.CauseHook, rec.Cause)
			require.Equal(t, c.hook, rec.Hook)
			require.Equal(t, c.exit, rec.Exit)
			reason, note := session.Reason(rec)
			require.Equal(t, domain.ReasonHook, reason)
			require.True(t, strings.HasPrefix(note, "the hook "+c.hook+" failed: "+c.note), note)
			require.True(t, strings.HasSuffix(note, "; the hook is an old one"), note)
			require.NoFileExists(t, filepath.Join(l.Folder, "end.agent"))
			if c.exit == nil {
				pid, err := strconv.Atoi(strings.TrimSpace(read(t, l, "end.pid")))
				require.NoError(t, err)
				require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH)
			}
		})
	}
}

// after_run has its own time, also when the unit is told to stop and would else be killed after ten seconds; and the
// record does not wait for it.
func TestAfterRunExtendsTheStop(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.start(t, plan{script: agent, hooks: domain.Hooks{AfterRun: domain.Hook{Script: `touch "$GAIA_END.begun"; sleep 13; touch "$GAIA_END.done"`, Timeout: time.Minute}}})
	stopped := make(chan error, 1)
	go func() { stopped <- r.exec.Stop(context.WithoutCancel(t.Context()), l.Run) }()
	eventually(t, "the hook", func() bool { _, err := os.Stat(filepath.Join(l.Folder, "end.begun")); return err == nil })
	_, err := session.Folder(l.Folder).Record()
	require.NoError(t, err)
	require.Empty(t, panesOrNone(r, t, l), "the agent has ended before")
	require.NoError(t, <-stopped)
	require.FileExists(t, filepath.Join(l.Folder, "end.done"))
	rec := r.record(t, l)
	require.Equal(t, "success", rec.ServiceResult)
}

func panesOrNone(r *rig, t testing.TB, l domain.Launch) []tmux.Pane {
	t.Helper()
	p, err := r.server(t, l).Panes(t.Context())
	if err != nil && !errors.Is(err, tmux.ErrNoPane) {
		require.ErrorIs(t, err, tmux.ErrNoServer)
	}
	return p
}

// An agent never starts in a folder that is not the one it was promised.
func TestWrongTree(t *testing.T) {
	for name, c := range map[string]struct {
		edit  func(*rig, *testing.T) func(*session.Spec, *session.TreeFile, map[string]string)
		cause string
		note  string
	}{
		"another ticket's tree": {func(*rig, *testing.T) func(*session.Spec, *session.TreeFile, map[string]string) {
			return func(_ *session.Spec, tree *session.TreeFile, _ map[string]string) { tree.Branch = "gaia/SHOP-8" }
		}, session.CauseTree, "is that of the branch gaia/SHOP-7"},
		"half made": {func(r *rig, t *testing.T) func(*session.Spec, *session.TreeFile, map[string]string) {
			require.NoError(t, os.Remove(filepath.Join(r.gitDir, "gaia.json")))
			return nil
		}, session.CauseTree, "is not complete"},
		"a folder inside the checkout": {func(r *rig, t *testing.T) func(*session.Spec, *session.TreeFile, map[string]string) {
			return func(_ *session.Spec, tree *session.TreeFile, _ map[string]string) {
				tree.Path = filepath.Join(tree.Path, "sub")
				require.NoError(t, os.Mkdir(tree.Path, 0o700))
			}
		}, session.CauseTree, "not a worktree of its own"},
		"no folder": {func(r *rig, t *testing.T) func(*session.Spec, *session.TreeFile, map[string]string) {
			return func(_ *session.Spec, tree *session.TreeFile, _ map[string]string) { tree.Path += "-gone" }
		}, session.CauseTree, "no such file"},
		"no program": {func(r *rig, t *testing.T) func(*session.Spec, *session.TreeFile, map[string]string) {
			return func(_ *session.Spec, tree *session.TreeFile, _ map[string]string) {
				tree.Argv = []string{"/nowhere/agent", "x"}
			}
		}, session.CauseStart, "/nowhere/agent"},
		"a socket's path that is too long": {func(r *rig, t *testing.T) func(*session.Spec, *session.TreeFile, map[string]string) {
			return func(s *session.Spec, _ *session.TreeFile, _ map[string]string) {
				s.Socket = "/" + strings.Repeat("x", 120)
			}
		}, session.CauseStart, "at most 107"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			l := r.prepare(t, plan{script: `touch "$GAIA_END.agent"`, edit: c.edit(r, t)})
			err := r.exec.Start(t.Context(), l)
			require.ErrorContains(t, err, r.names.Run(instance, l.Number))
			rec := r.record(t, l)
			require.Equal(t, c.cause, rec.Cause, rec.Note)
			require.Contains(t, rec.Note, c.note)
			require.NoFileExists(t, filepath.Join(l.Folder, "end.agent"))
		})
	}
}

// What an agent may leave checked out is told to the next one, and no reason not to go on.
func TestAnotherBranchCheckedOut(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"checkout", "-q", "-b", "other"}, {"checkout", "-q", "--detach"}} {
		r := newRig(t)
		r.git(t, r.tree, args...)
		l := r.start(t, plan{script: "exit 4"})
		require.Equal(t, 4, *r.record(t, l).Exit)
	}
}

// An unfinished rebase is what a crash may leave, and no reason not to go on.
func TestUnfinishedRebase(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, c := range []struct{ branch, text string }{{"gaia/SHOP-7", "ours"}, {"side", "theirs"}} {
		if c.branch == "side" {
			r.git(t, r.tree, "checkout", "-q", "-b", "side", "HEAD~1")
		}
		require.NoError(t, os.WriteFile(filepath.Join(r.tree, "f"), []byte(c.text), 0o600))
		r.git(t, r.tree, "add", "f")
		r.git(t, r.tree, "commit", "-q", "-m", c.text)
	}
	r.git(t, r.tree, "checkout", "-q", "gaia/SHOP-7")
	cmd := r.env.Command("git", "rebase", "side")
	cmd.Dir = r.tree
	require.Error(t, cmd.Run(), "a conflict")
	l := r.start(t, plan{script: "exit 4"})
	require.Equal(t, 4, *r.record(t, l).Exit)
}

func TestTreeComesLater(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var tree session.TreeFile
	l := r.prepare(t, plan{script: agent, noTree: true, edit: func(_ *session.Spec, f *session.TreeFile, _ map[string]string) { tree = *f }})
	started := make(chan error, 1)
	go func() { started <- r.exec.Start(context.WithoutCancel(t.Context()), l) }()
	eventually(t, "the host to wait", func() bool { return strings.HasSuffix(r.status(t, l).StatusText, "waits for the worktree") })
	s, err := r.exec.Probe(t.Context(), l.Run)
	require.NoError(t, err)
	require.Equal(t, domain.SessionAlive, s.State)
	require.NoError(t, session.Folder(l.Folder).WriteTree(tree))
	require.NoError(t, <-started)
	require.NoError(t, r.exec.Stop(t.Context(), l.Run))
}

// Who attaches before the agent is there sees what it waits for; nothing that is typed ends the wait or reaches the agent.
func TestAttachBeforeTheAgent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var tree session.TreeFile
	l := r.prepare(t, plan{noTree: true, script: `touch "$GAIA_END.ready"; read -r line; echo "$line" >"$GAIA_END.line"; ` + agent,
		edit: func(_ *session.Spec, f *session.TreeFile, _ map[string]string) { tree = *f }})
	started := make(chan error, 1)
	go func() { started <- r.exec.Start(context.WithoutCancel(t.Context()), l) }()
	screen := func() string {
		panes := panesOrNone(r, t, l)
		if len(panes) != 1 {
			return ""
		}
		text, err := r.server(t, l).Capture(t.Context(), panes[0].ID)
		require.NoError(t, err)
		return text
	}
	eventually(t, "the pane", func() bool { return len(panesOrNone(r, t, l)) == 1 })
	at, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", r.pane(t, l).PID))
	require.NoError(t, err)
	require.Equal(t, "/", at, "nobody seems to work in the tree while it is made")
	eventually(t, "the pane to say what it waits for", func() bool { return strings.Contains(screen(), "as soon as its worktree is ready") })
	require.NoError(t, r.server(t, l).Command(t.Context(), "send-keys", "-t", "%0", "C-c", "C-\\\\", "C-z", "rm -rf", "Enter").Run())
	eventually(t, "the keys", func() bool { return strings.Contains(screen(), "rm -rf") })
	require.NoError(t, r.server(t, l).Command(t.Context(), "send-keys", "-t", "%0", "C-s").Run(), "which stops a terminal until Ctrl-Q")
	require.NoError(t, session.Folder(l.Folder).WriteTree(tree))
	require.NoError(t, <-started)
	eventually(t, "the agent", func() bool { _, err := os.Stat(filepath.Join(l.Folder, "end.ready")); return err == nil })
	require.NotContains(t, screen(), "worktree is ready", "the agent's screen is its own")
	require.NoError(t, r.server(t, l).Command(t.Context(), "send-keys", "-t", "%0", "go on", "Enter").Run())
	eventually(t, "the agent's line", func() bool { return has(l, "end.line") })
	require.Equal(t, "go on\n", read(t, l, "end.line"))
	r.end(t, l.Run, 0)
	require.Equal(t, 0, *r.record(t, l).Exit)
}

// A session that a person closes while its agent is awaited ends the run, and no agent starts.
func TestSessionClosedBeforeTheAgent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.prepare(t, plan{noTree: true})
	started := make(chan error, 1)
	go func() { started <- r.exec.Start(context.WithoutCancel(t.Context()), l) }()
	eventually(t, "the pane", func() bool { return len(panesOrNone(r, t, l)) == 1 })
	require.NoError(t, r.server(t, l).Kill(t.Context()))
	require.Error(t, <-started)
	rec := r.record(t, l)
	require.Equal(t, session.CauseStart, rec.Cause, rec.Note)
}

// So does one whose pane goes while a hook prepares the tree: the hook has nobody to run for, and no agent ever ran.
func TestPaneGoneDuringAHook(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.prepare(t, plan{script: agent, hooks: domain.Hooks{
		BeforeRun: domain.Hook{Script: `touch "$GAIA_END.begun"; sleep 600`, Timeout: 15 * time.Minute},
		AfterRun:  domain.Hook{Script: `touch "$GAIA_END.after"`},
	}})
	started := make(chan error, 1)
	go func() { started <- r.exec.Start(context.WithoutCancel(t.Context()), l) }()
	eventually(t, "the hook", func() bool { _, err := os.Stat(filepath.Join(l.Folder, "end.begun")); return err == nil })
	require.NoError(t, syscall.Kill(r.pane(t, l).PID, syscall.SIGKILL))
	require.Error(t, <-started)
	rec := r.record(t, l)
	require.Equal(t, session.CauseStart, rec.Cause, rec.Note)
	require.Empty(t, rec.Hook, "it did not fail")
	require.NoFileExists(t, filepath.Join(l.Folder, "end.after"))
}

func TestTreeNeverComes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.prepare(t, plan{noTree: true, edit: func(s *session.Spec, _ *session.TreeFile, _ map[string]string) {
		s.TreeTimeout = 300 * time.Millisecond
	}})
	require.Error(t, r.exec.Start(t.Context(), l))
	rec := r.record(t, l)
	require.Equal(t, session.CauseTree, rec.Cause)
	reason, _ := session.Reason(rec)
	require.Equal(t, domain.ReasonWorkspace, reason)
}

func TestStopWhileWaiting(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.prepare(t, plan{noTree: true})
	started := make(chan error, 1)
	go func() { started <- r.exec.Start(context.WithoutCancel(t.Context()), l) }()
	eventually(t, "the host to wait", func() bool { return strings.HasSuffix(r.status(t, l).StatusText, "waits for the worktree") })
	require.NoError(t, r.exec.Stop(t.Context(), l.Run))
	require.Error(t, <-started)
	rec := r.record(t, l)
	require.Equal(t, session.CauseTerm, rec.Cause)
	require.True(t, rec.TermRequested)
}

// The start mark outlives the unit: a second host, however it was started, does nothing.
func TestSecondHost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.start(t, plan{script: agent})
	pid := r.pane(t, l).PID
	for _, c := range []struct {
		verb string
		code int
	}{{"host", 75}, {"exec", 126}, {"post", 0}} {
		cmd := r.env.Command("gaia-session", c.verb, l.Folder)
		cmd.Env = append(cmd.Env, "INVOCATION_ID=00000000000000000000000000000000", "SERVICE_RESULT=success")
		out, err := cmd.CombinedOutput()
		if c.code == 0 {
			require.NoError(t, err, string(out))
			continue
		}
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, "%s", out)
		require.Equal(t, c.code, exit.ExitCode(), "%s: %s", c.verb, out)
	}
	_, err := session.Folder(l.Folder).Record()
	require.ErrorIs(t, err, domain.ErrNotFound, "another unit's end is none of this run")
	require.Equal(t, pid, r.pane(t, l).PID)
	require.NoError(t, r.exec.Stop(t.Context(), l.Run))
}

// An agent that prints without end neither fills the disk nor stops.
func TestOutputIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.start(t, plan{script: `head -c 20m /dev/zero | tr '\0' x | fold -w 190; echo; echo the last line; exit 0`})
	rec := r.record(t, l)
	require.Equal(t, 0, *rec.Exit)
	var total int64
	for _, name := range []string{session.FileOutput, session.FileOutput + ".1"} {
		st, err := os.Stat(filepath.Join(l.Folder, name))
		require.NoError(t, err)
		require.LessOrEqual(t, st.Size(), int64(8<<20))
		total += st.Size()
	}
	require.Greater(t, total, int64(8<<20))
	log := read(t, l, session.FileOutput)
	require.True(t, strings.HasSuffix(log, "the last line\r\n"), "what is kept is the end, not …%q", log[max(0, len(log)-400):])
	require.Contains(t, read(t, l, session.FileScreen), "the last line")
}

// knowsSystemd reports whether a process has a name of systemd's contract with another. One that has ended has none.
func knowsSystemd(pid int) bool {
	env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	for kv := range strings.SplitSeq(string(env), "\x00") {
		name, _, _ := strings.Cut(kv, "=")
		if slices.Contains([]string{"NOTIFY_SOCKET", "INVOCATION_ID", "JOURNAL_STREAM", "MANAGERPID", "SYSTEMD_EXEC_PID"}, name) {
			return true
		}
	}
	return false
}

// The environment that reaches tmux must not let it ask systemd for a scope of its own; what asks anyway is seen.
func TestNothingListensToTheUnitsSocketButSystemd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.start(t, plan{script: agent})
	st := r.status(t, l)
	// A call of tmux by the host has the host's environment, and is over in a moment.
	eventually(t, "a unit in which nobody but the host knows systemd's names", func() bool {
		return !slices.ContainsFunc(pids(t, st.ControlGroup), func(pid int) bool {
			return pid != int(st.MainPID) && knowsSystemd(pid)
		})
	})
	conn, err := net.Dial("unix", r.server(t, l).Socket)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.NoError(t, r.exec.Stop(t.Context(), l.Run))
}

// A unit whose host could not even be executed stays loaded as failed, and must not stand in the way of the next try.
func TestAHostThatCannotBeExecuted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.prepare(t, plan{script: "exit 3"})
	broken := executor.New(executor.Config{
		Units: r.units, Names: r.names, Instance: instance, Runs: r.runs, Session: filepath.Join(r.env.Home, "nowhere", "gaia-session"),
	})
	for range 2 {
		var job *units.JobError
		require.ErrorAs(t, broken.Start(t.Context(), l), &job)
	}
	require.NoError(t, r.exec.Start(t.Context(), l))
	require.Equal(t, 3, *r.record(t, l).Exit)
}
