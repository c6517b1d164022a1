package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"gaia/domain"
	"gaia/internal/cgroup"
	fields "gaia/internal/log"
	"gaia/internal/sdnotify"
	"gaia/session"
	"gaia/tmux"
	"gaia/workspace"
)

const (
	treePoll     = time.Millisecond // at first, and then a twentieth of the time that it has taken
	treePollMax  = 100 * time.Millisecond
	panePoll     = 20 * time.Millisecond
	openTimeout  = 2 * execTimeout  // for tmux and the pane, and again for the pane to become the agent
	statusWait   = 3 * time.Second  // tmux learns of the end of a pane's process a moment after the kernel
	drainWait    = 15 * time.Second // for what the agent printed last, as long as something comes
	quiet        = time.Second
	pipeQuiet    = 100 * time.Millisecond
	captureWait  = 2 * time.Second  // together with endTimeout less than systemd's patience
	endTimeout   = 5 * time.Second  // of tmux and the agent, when the run is told to end
	politeEnd    = 3 * time.Second  // of which the agent has this much for itself
	fileTmuxConf = "tmux.conf"      // in the run folder
	extendMargin = 10 * time.Second // for what comes after the hook after_run
	maxSignal    = 128
)

// Host is the main process of a run's unit. It returns the status to exit with: that of the agent, 0 if it was told to end
// by ctx, or one of this package's own.
func Host(ctx context.Context, folder session.Folder, log zerolog.Logger) int {
	h := &host{folder: folder, log: log, notify: notifier()}
	var err error
	if h.spec, err = folder.Load(); err != nil {
		log.Error().Str(fields.MessageID, fields.RunFolderBroken).Err(err).Msg("the run folder is not usable")
		return ExitConfig
	}
	h.log = log.With().Str(fields.Run, h.spec.Run).Str(fields.Ticket, h.spec.Identifier).Str(fields.Project, h.spec.Project).Logger()
	if h.group, err = cgroup.Of("self"); err != nil {
		h.log.Error().Str(fields.MessageID, fields.SessionFailed).Err(err).Msg("the run cannot be hosted here")
		return ExitConfig
	}
	h.oom = oomKills(h.group)
	h.started = session.Started{Run: h.spec.Run, InvocationID: invocationID(), PID: os.Getpid(), At: domain.At(time.Now())}
	if h.started.BootID, err = session.BootID(); err != nil {
		h.log.Error().Str(fields.MessageID, fields.SessionFailed).Err(err).Msg("the run cannot be hosted here")
		return ExitConfig
	}
	keep, err := folder.MarkStarted(h.started)
	switch {
	case errors.Is(err, domain.ErrExists):
		h.log.Error().Str(fields.MessageID, fields.SessionFailed).Err(err).Msg("this run was started before; a run is started once")
		return ExitStarted
	case err != nil:
		h.log.Error().Str(fields.MessageID, fields.RunFolderBroken).Err(err).Msg("the run folder is not usable")
		return ExitConfig
	}
	h.kept = make(chan error, 1)
	go func() { h.kept <- keep() }()
	return h.run(ctx)
}

// invocationID is how systemd tells this start of the unit from any other.
func invocationID() string { return os.Getenv("INVOCATION_ID") }

// notifier returns what speaks to systemd, and takes the address out of the environment, so that no child has it.
func notifier() func(lines ...string) {
	address := os.Getenv("NOTIFY_SOCKET")
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		os.Unsetenv(name)
	}
	return func(lines ...string) {
		if address == "" {
			return
		}
		conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: address, Net: "unixgram"})
		if err != nil {
			return // systemd has its own time limits
		}
		defer conn.Close()
		_, _ = conn.Write([]byte(strings.Join(lines, "\n")))
	}
}

type host struct {
	folder  session.Folder
	spec    session.Spec
	started session.Started
	group   string
	kept    chan error // gets the end of the wait for the disk, which is to keep the start mark
	oom     int64      // oom_kill of the unit when the host began
	log     zerolog.Logger
	notify  func(lines ...string)

	tree session.TreeFile
	env  map[string]string

	server  tmux.Server
	ids     tmux.IDs
	pidfd   int
	output  *output
	process *exec.Cmd     // the tmux server, nil until it was started
	down    chan struct{} // closed when it has ended
	gone    chan struct{} // closed when the pane's process has ended
}

func (h *host) status(format string, a ...any) string {
	return sdnotify.Status(fmt.Sprintf("%s, %s, attempt %d: ", h.spec.Identifier, h.spec.State, h.spec.Attempt) + fmt.Sprintf(format, a...))
}

// run does everything from the start mark to the end.
func (h *host) run(ctx context.Context) int {
	rec, after := h.live(ctx)
	// The record comes before anything else ends: whoever kills us from here on finds it.
	code := h.record(rec)
	h.close()
	if after {
		h.after(ctx)
	}
	return code
}

// live takes the run to its end and returns what is known of it; after says whether after_run is due. The session is
// opened before the worktree is there, so that neither waits for the other; the pane stands at the gate meanwhile.
func (h *host) live(ctx context.Context) (rec session.Record, after bool) {
	h.notify(h.status("waits for the worktree"))
	gate, err := h.open(ctx)
	if err != nil {
		return h.failure(ctx, session.CauseStart, err), false
	}
	defer gate.close()
	// Nothing is prepared any longer for a session that has ended.
	open, ended := context.WithCancelCause(ctx)
	defer ended(nil)
	go func() {
		select {
		case <-h.gone:
		case <-h.down:
		case <-open.Done():
		}
		ended(errEnded)
	}()
	if err := h.waitTree(open); err != nil {
		return h.failure(ctx, session.CauseTree, err), false
	}
	if err := <-h.kept; err != nil {
		return h.failure(ctx, session.CauseStart, err), false
	}
	if h.env, err = h.folder.Env(); err != nil {
		return h.failure(ctx, session.CauseStart, err), false
	}
	if h.tree.AfterCreate && h.tree.Hooks.AfterCreate.Set() {
		h.notify(h.status("runs the hook %s", domain.HookAfterCreate))
		if err := runHook(open, h.folder, h.tree, h.env, domain.HookAfterCreate, h.tree.Hooks.AfterCreate); err != nil {
			return h.failure(ctx, session.CauseHook, err), false
		}
		if err := workspace.MarkAfterCreate(h.tree.GitDir); err != nil {
			return h.failure(ctx, session.CauseTree, err), false
		}
	}
	if h.tree.Hooks.BeforeRun.Set() {
		h.notify(h.status("runs the hook %s", domain.HookBeforeRun))
		if err := runHook(open, h.folder, h.tree, h.env, domain.HookBeforeRun, h.tree.Hooks.BeforeRun); err != nil {
			return h.failure(ctx, session.CauseHook, err), false
		}
	}
	if open.Err() != nil {
		return h.failure(ctx, session.CauseStart, context.Cause(open)), true
	}
	if err := h.letIn(ctx, gate); err != nil {
		return h.failure(ctx, session.CauseStart, err), true
	}
	h.notify("READY=1", h.status("the agent runs"))
	h.log.Info().Str(fields.MessageID, fields.SessionStarted).Str("socket", h.spec.Socket).Msg("the agent runs")
	// What people start in the session finds what the agent has. The agent itself got it at the gate and waits for none of it.
	if err := h.server.Equip(ctx, h.tree.Path, serverEnv(h.env)); err != nil {
		h.log.Warn().Err(err).Msg("windows that people open in the session begin without the run's folder and PATH")
	}
	return h.wait(ctx), true
}

// waitTree waits for the file by which the conductor says that the worktree is ready.
func (h *host) waitTree(ctx context.Context) error {
	timeout := h.spec.TreeTimeout
	if timeout <= 0 {
		timeout = session.DefaultTreeTimeout
	}
	over := time.NewTimer(timeout)
	defer over.Stop()
	for begun := time.Now(); ; {
		tree, err := h.folder.Tree()
		if !errors.Is(err, domain.ErrNotFound) {
			h.tree = tree
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-over.C:
			return fmt.Errorf("no worktree came within %s", timeout)
		case <-time.After(min(max(time.Since(begun)/20, treePoll), treePollMax)):
		}
	}
}

// failure records an end before, or instead of, the agent's. What failed because the run was told to end is not a failure.
func (h *host) failure(ctx context.Context, cause string, err error) session.Record {
	if ctx.Err() != nil {
		return session.Record{Cause: session.CauseTerm}
	}
	rec := session.Record{Cause: cause, Note: err.Error()}
	var hook *hookError
	var agent *agentError
	if errors.As(err, &agent) && agent.Cause != "" {
		rec.Cause = agent.Cause
	}
	if errors.Is(err, errEnded) { // whatever was being done for it
		rec.Cause = session.CauseStart
	}
	if errors.As(err, &hook) {
		rec.Hook, rec.Exit, rec.Note = hook.name, hook.exit, hook.err.Error() // that a hook failed, and which, follows from the cause
		if h.tree.Behind != "" {
			rec.Note += "; " + h.tree.Behind
		}
	}
	h.log.Error().Str(fields.MessageID, fields.SessionFailed).Err(err).Str("cause", cause).Msg("the run cannot go on")
	return rec
}

// open starts tmux and opens the one pane, which waits at the gate, or is about to come there. The caller closes the gate.
func (h *host) open(ctx context.Context) (*gate, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	h.server = tmux.Server{Socket: h.spec.Socket, Conf: h.folder.Path(fileTmuxConf)}
	if err := h.server.CheckSocket(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(h.spec.Socket), 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of the tmux sockets: %w", err)
	}
	if err := os.WriteFile(h.server.Conf, tmux.Conf(), 0o600); err != nil {
		return nil, fmt.Errorf("writing tmux's configuration: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	gate, err := closeGate(h.folder)
	if err != nil {
		return nil, err
	}
	if err := h.openPane(ctx, self); err != nil {
		gate.close()
		return nil, err
	}
	return gate, nil
}

func (h *host) openPane(ctx context.Context, self string) error {
	err := h.startServer(ctx)
	if err != nil {
		return err
	}
	if h.output, err = openOutput(h.folder); err != nil {
		return err
	}
	h.ids, err = h.server.NewSession(ctx, tmux.NewSession{
		Name: tmux.SessionName(h.spec.Identifier), Title: h.spec.Identifier + " · " + h.spec.Project,
		Cols: cmp.Or(h.spec.Cols, 200), Rows: cmp.Or(h.spec.Rows, 50),
		Argv: []string{self, "exec", string(h.folder)}, Output: h.output.r,
	})
	if err != nil {
		return fmt.Errorf("opening the session: %w", err)
	}
	// The pane does not pass the gate yet, so that its process is there and its id cannot be another's.
	if err := h.watchPane(); err != nil {
		return err
	}
	group, err := cgroup.Of(strconv.Itoa(h.ids.PID))
	if err != nil {
		return err
	}
	if group != h.group {
		return fmt.Errorf("tmux moved the pane to the control group %s, where the run's limits do not hold; the run's own is %s", group, h.group)
	}
	return nil
}

// letIn opens the gate and returns when the pane has become the agent. A pane that has not come to the gate yet finds it
// open: it need not wait for its host to see it.
func (h *host) letIn(ctx context.Context, gate *gate) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if err := gate.open(h.folder); err != nil {
		return err
	}
	pane, err := awaitPane(ctx, h.folder, h.gone)
	if err != nil {
		return fmt.Errorf("waiting for the pane: %w", err)
	}
	defer pane.Close()
	return awaitAgent(ctx, pane)
}

// serverEnv is what the tmux server gets, and with it whatever a person starts in the session. It has neither the bus nor
// the runtime folder: with them tmux asks systemd to put each pane into a scope of its own, out of reach of the run's
// limits. And it has nothing secret, since everybody who attaches can read it.
func serverEnv(env map[string]string) map[string]string {
	out := map[string]string{}
	for _, name := range []string{"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ"} {
		if v := env[name]; v != "" {
			out[name] = v
		}
	}
	return out
}

// unitEnv is the environment that systemd gave to this process.
func unitEnv() map[string]string {
	env := map[string]string{"LANG": "C.UTF-8"}
	for _, kv := range os.Environ() {
		if k, v, ok := strings.Cut(kv, "="); ok && v != "" {
			env[k] = v
		}
	}
	return env
}

func (h *host) startServer(ctx context.Context) error {
	cmd := h.server.Foreground(environ(serverEnv(unitEnv())))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting tmux: %w", err)
	}
	h.process, h.down = cmd, make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is in ProcessState
		close(h.down)
	}()
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	go func() { // a server that ends at once is not waited for
		select {
		case <-h.down:
			cancel()
		case <-ctx.Done():
		}
	}()
	return h.server.WaitReady(ctx)
}

// watchPane holds the pane's process by a descriptor that no other process can take over.
func (h *host) watchPane() error {
	fd, err := unix.PidfdOpen(h.ids.PID, 0)
	if err != nil {
		return fmt.Errorf("watching the pane's process: %w", err)
	}
	h.pidfd, h.gone = fd, make(chan struct{})
	go func() {
		defer close(h.gone)
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if n > 0 || err != nil && !errors.Is(err, syscall.EINTR) {
				return
			}
		}
	}()
	return nil
}

// wait returns at the run's end with what is known of it.
func (h *host) wait(ctx context.Context) session.Record {
	select {
	case <-ctx.Done():
		return session.Record{Cause: session.CauseTerm}
	case <-h.down:
	case <-h.gone:
		if rec, ok := h.paneEnd(ctx); ok {
			return rec
		}
	}
	// The server's end hangs up on the pane, whose end may be seen first; its exit is reaped a moment later.
	rec := session.Record{Cause: session.CauseServer, Note: "the tmux server does not answer any more"}
	select {
	case <-h.down:
		rec.Note = "the tmux server ended: " + h.process.ProcessState.String()
		if st, ok := h.process.ProcessState.Sys().(syscall.WaitStatus); ok && st.Signaled() {
			rec.Signal = unix.SignalName(st.Signal())
		}
	case <-time.After(statusWait):
	}
	return rec
}

// paneEnd asks tmux how the pane's process ended; ok is false when the server has ended too. tmux calls the pane dead when
// it has passed on all that was printed, which is worth waiting for as long as something comes: a child that holds the
// terminal open keeps it from that for ever.
func (h *host) paneEnd(stop context.Context) (rec session.Record, ok bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(stop), drainWait)
	defer cancel()
	begun := time.Now()
	printed, at := h.output.file.written.Load(), begun
	rec = session.Record{Cause: session.CausePane, Note: "the agent ended, and tmux does not say how"}
	known := false
	for ctx.Err() == nil {
		pane, err := h.pane(ctx)
		switch {
		case errors.Is(err, tmux.ErrNoServer):
			return rec, known
		case errors.Is(err, tmux.ErrNoPane):
			rec.Note = "the agent ended with its tmux session, which was closed by hand"
			select { // a server that ends loses its panes first
			case <-h.down:
				return rec, false
			case <-time.After(quiet / 2):
				return rec, true
			}
		case err != nil:
			h.log.Warn().Err(err).Msg("tmux does not say how the agent ended")
		case pane.Exit != nil || pane.Signal != 0:
			known = true
			rec = session.Record{Cause: session.CausePane, Exit: pane.Exit}
			if pane.Signal != 0 {
				rec.Signal = unix.SignalName(syscall.Signal(pane.Signal))
			}
			if n := h.output.file.written.Load(); n != printed {
				printed, at = n, time.Now()
			}
			// What tmux has read of the pane it may still be writing to our pipe.
			still := quiet
			if pane.Dead {
				still = pipeQuiet
			}
			if time.Since(at) > still || stop.Err() != nil {
				return rec, true
			}
		case time.Since(begun) > statusWait:
			return rec, true
		default:
			// Now and then tmux misses the signal by which the kernel tells it of an end, and leaves the zombie alone. It
			// looks again when it gets another.
			_ = h.process.Process.Signal(unix.SIGCHLD)
		}
		select {
		case <-h.down:
			return rec, known
		case <-time.After(panePoll):
		}
	}
	return rec, true
}

// pane returns what tmux knows of the run's pane.
func (h *host) pane(ctx context.Context) (tmux.Pane, error) {
	panes, err := h.server.Panes(ctx)
	if err != nil {
		return tmux.Pane{}, err
	}
	for _, p := range panes {
		if p.ID == h.ids.Pane {
			return p, nil
		}
	}
	return tmux.Pane{}, tmux.ErrNoPane
}

// record saves the last screen and writes the record, and returns the status to exit with.
func (h *host) record(rec session.Record) int {
	if h.ids.Pane != "" && rec.Cause != session.CauseServer {
		ctx, cancel := context.WithTimeout(context.Background(), captureWait)
		text, err := h.server.Capture(ctx, h.ids.Pane)
		cancel()
		if err == nil {
			err = h.folder.WriteScreen(text)
		}
		if err != nil {
			h.log.Warn().Err(err).Msg("the last screen is lost")
		}
	}
	rec.Run, rec.BootID, rec.InvocationID = h.spec.Run, h.started.BootID, h.started.InvocationID
	rec.EndedAt, rec.WrittenBy = domain.At(time.Now()), session.WrittenByHost
	rec.OOMKill = max(0, oomKills(h.group)-h.oom)
	var err error
	if rec.TermRequested, err = h.folder.Stopping(); err != nil {
		h.log.Warn().Err(err).Msg("whether the end was asked for is not known")
	}
	if err := h.folder.WriteRecord(rec); err != nil {
		h.log.Error().Str(fields.MessageID, fields.RecordLost).Err(err).Msg("the record of the run's end is lost")
	}
	h.notify(h.status("has ended"))
	h.log.Info().Str(fields.MessageID, fields.SessionEnded).Str("cause", rec.Cause).Str("signal", rec.Signal).Interface("exit", rec.Exit).Msg("the run has ended")
	switch {
	case rec.Cause == session.CauseTerm:
		return 0
	case rec.Cause != session.CausePane:
		return ExitFailed
	case rec.Exit != nil:
		return *rec.Exit
	case rec.Signal != "":
		return maxSignal + int(unix.SignalNum(rec.Signal))
	}
	return ExitFailed
}

// close ends the agent and tmux, within endTimeout. Children of the agent that are in no pane are systemd's: it kills the
// unit's control group when this process has ended.
func (h *host) close() {
	if h.process == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	if h.gone != nil {
		_ = unix.PidfdSendSignal(h.pidfd, unix.SIGTERM, nil, 0) // it may be gone already
		select {
		case <-h.gone:
		case <-time.After(politeEnd):
			_ = unix.PidfdSendSignal(h.pidfd, unix.SIGKILL, nil, 0)
		}
	}
	if err := h.server.Kill(ctx); err != nil {
		h.log.Warn().Err(err).Msg("tmux does not end by itself")
	}
	select {
	case <-h.down:
	case <-ctx.Done():
		_ = h.process.Process.Kill()
		<-h.down
	}
	if h.output != nil {
		if err := h.output.Close(); err != nil {
			h.log.Warn().Err(err).Msg("the run's output is not complete")
		}
	}
	if err := os.Remove(h.spec.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		h.log.Warn().Err(err).Msg("the tmux socket is left")
	}
}

// after runs the hook after_run, which has its own time even when the unit is being stopped.
func (h *host) after(ctx context.Context) {
	hook := h.tree.Hooks.AfterRun
	if !hook.Set() {
		return
	}
	timeout := hook.Timeout
	if timeout <= 0 {
		timeout = domain.DefaultHookTimeout
	}
	extend := context.AfterFunc(ctx, func() {
		h.notify("EXTEND_TIMEOUT_USEC=" + strconv.FormatInt((timeout+extendMargin).Microseconds(), 10))
	})
	defer extend()
	h.notify(h.status("runs the hook %s", domain.HookAfterRun))
	if err := runHook(context.WithoutCancel(ctx), h.folder, h.tree, h.env, domain.HookAfterRun, hook); err != nil {
		h.log.Warn().Err(err).Msg("the run is not affected")
	}
}
