package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/internal/clock"
	"gaia/internal/fakes"
	"gaia/session"
)

var errCrash = errors.New("the process is dead")

// world is all that outlives a conductor process.
type world struct {
	t     testing.TB
	clock *clock.Fake
	hub   *fakes.Hub
	hosts *hosts
	trees *fakes.Workspace
	runs  string

	mu       sync.Mutex
	boot     string
	pressure string
	trusted  map[string]bool
	missing  error // why no agent is there
	report   domain.AgentReport
	attached bool
	epochs   int
	log      io.Writer
}

func newWorld(t testing.TB) *world {
	dir := t.TempDir()
	c := clock.NewFake(time.Now().UTC()) // run ids are drawn by the real clock and compared with this one
	c.Advance(time.Hour)
	c.Set(time.Now().UTC())
	w := &world{
		t: t, clock: c, hub: fakes.NewHub(c), trees: fakes.NewWorkspace(filepath.Join(dir, "trees")),
		runs: filepath.Join(dir, "runs"), boot: "boot-1", trusted: map[string]bool{}, log: io.Discard,
	}
	w.hosts = &hosts{w: w, units: map[string]*hostUnit{}, agents: map[string]int{}, most: map[string]int{}}
	t.Cleanup(func() {
		for _, run := range w.hosts.alive() {
			w.hosts.end(run, nil)
		}
	})
	return w
}

// hosts are units with gaia-session in them: the files of the run folder are the real ones.
type hosts struct {
	w *world

	mu       sync.Mutex
	units    map[string]*hostUnit
	agents   map[string]int // how often the agent of a run was started
	most     map[string]int // the most agents that a ticket ever had at once
	err      error          // of List
	watchers []func(string)
	onAgent  func(run string)
	block    chan struct{} // where set, an agent does not start before it is closed
	stops    []string
}

type hostUnit struct {
	ticket string
	agent  bool
	age    int
	ready  chan struct{}
	gone   chan struct{}
}

func (h *hosts) Start(ctx context.Context, l domain.Launch) error {
	f := session.Folder(l.Folder)
	spec, err := f.Load()
	if err != nil {
		return err
	}
	if _, err := f.Record(); has(err) {
		return domain.ErrExists
	}
	h.mu.Lock()
	if h.units[l.Run] != nil {
		h.mu.Unlock()
		return domain.ErrExists
	}
	keep, err := f.MarkStarted(session.Started{Run: l.Run, BootID: h.w.bootID(), InvocationID: "inv", PID: 1, At: domain.At(h.w.clock.Now())})
	if err == nil {
		err = keep()
	}
	if err != nil {
		h.mu.Unlock()
		return err
	}
	u := &hostUnit{ticket: spec.Identifier, ready: make(chan struct{}), gone: make(chan struct{})}
	h.units[l.Run] = u
	block := h.block
	h.mu.Unlock()
	go h.host(l.Run, f, u, block)
	select {
	case <-u.ready:
		return nil
	case <-u.gone:
		return errors.New("the unit failed")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *hosts) host(run string, f session.Folder, u *hostUnit, block chan struct{}) {
	for {
		if _, err := f.Tree(); err == nil {
			break
		}
		select {
		case <-u.gone:
			return
		case <-time.After(time.Millisecond):
		}
	}
	if block != nil {
		select {
		case <-block:
		case <-u.gone:
			return
		}
	}
	h.mu.Lock()
	if h.units[run] != u {
		h.mu.Unlock()
		return
	}
	_ = f.MarkBegun(domain.At(h.w.clock.Now()))
	u.agent = true
	h.agents[run]++
	n := 0
	for _, o := range h.units {
		if o.agent && o.ticket == u.ticket {
			n++
		}
	}
	h.most[u.ticket] = max(h.most[u.ticket], n)
	fn := h.onAgent
	h.mu.Unlock()
	if fn != nil {
		fn(run)
	}
	close(u.ready)
}

func (h *hosts) Probe(_ context.Context, run string) (domain.Session, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.units[run] != nil {
		return domain.Session{Run: run, State: domain.SessionAlive}, h.err
	}
	return domain.Session{Run: run, State: domain.SessionGone}, h.err
}

func (h *hosts) List(context.Context) ([]domain.Session, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return nil, h.err
	}
	var out []domain.Session
	folders, err := session.Folders(h.w.runs)
	for _, f := range folders {
		state := domain.SessionGone
		if _, err := f.Load(); errors.Is(err, domain.ErrNotFound) {
			continue
		} else if err != nil {
			state = domain.SessionUnknown
		} else if h.units[f.Run()] != nil {
			state = domain.SessionAlive
		}
		out = append(out, domain.Session{Run: f.Run(), State: state})
	}
	return out, err
}

func (h *hosts) Stop(_ context.Context, run string) error {
	h.mu.Lock()
	alive := h.units[run] != nil
	if alive {
		h.stops = append(h.stops, run)
	}
	h.mu.Unlock()
	if alive {
		h.end(run, &session.Record{Cause: session.CauseTerm, TermRequested: true})
	}
	return nil
}

func (h *hosts) Watch(ctx context.Context, fn func(string)) error {
	h.mu.Lock()
	h.watchers = append(h.watchers, fn)
	h.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

// end ends a unit, with a record or without a trace.
func (h *hosts) end(run string, rec *session.Record) {
	h.mu.Lock()
	u := h.units[run]
	if u == nil {
		h.mu.Unlock()
		return
	}
	if rec != nil {
		rec.Run, rec.BootID, rec.EndedAt = run, h.w.bootID(), domain.At(h.w.clock.Now())
		if err := session.Folder(filepath.Join(h.w.runs, run)).WriteRecord(*rec); err != nil {
			h.w.t.Error(err)
		}
	}
	delete(h.units, run)
	close(u.gone)
	watchers := slices.Clone(h.watchers)
	h.mu.Unlock()
	for _, fn := range watchers {
		fn(run)
	}
}

func (h *hosts) alive() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for run := range h.units {
		out = append(out, run)
	}
	slices.Sort(out)
	return out
}

func (h *hosts) stopped(run string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Contains(h.stops, run)
}

func (h *hosts) started(run string) int { h.mu.Lock(); defer h.mu.Unlock(); return h.agents[run] }

// work lets each agent that has lived for two looks write its state and end.
func (w *world) work() {
	w.hosts.mu.Lock()
	var due []string
	for run, u := range w.hosts.units {
		if u.agent {
			if u.age++; u.age >= 2 {
				due = append(due, run)
			}
		}
	}
	w.hosts.mu.Unlock()
	for _, run := range due {
		w.finish(run)
	}
}

// finish is the last that a good agent does.
func (w *world) finish(run string) {
	_ = w.hub.Move(run, "done", "head") // a stale run's agent can do no more than try
	w.hosts.end(run, exited(0))
}

func exited(status int) *session.Record {
	return &session.Record{Cause: session.CausePane, Exit: &status}
}

func (w *world) bootID() string { w.mu.Lock(); defer w.mu.Unlock(); return w.boot }

// proc is one conductor process.
type proc struct {
	w *world
	d *Conductor
	// at which call it dies, and whether after the call's effect; 0 is never.
	crashAt    int64
	crashAfter bool
	calls      atomic.Int64
	dead       atomic.Bool
	where      atomic.Value
	expected   atomic.Int64 // starts that the executor was told to expect
	said       []string
	saidMu     sync.Mutex
}

func (p *proc) call(name string, after bool) error {
	if p.dead.Load() {
		return errCrash
	}
	if after != p.crashAfter {
		return nil
	}
	if p.calls.Add(1) == p.crashAt {
		p.where.Store(name)
		p.dead.Store(true)
		p.d.endWork() // a dead process writes no file either
		return errCrash
	}
	return nil
}

func settings() Settings {
	return Settings{Project: "SHOP", MaxParallel: 2, WorkspaceRoot: "/trees"}
}

func (w *world) process(change ...func(*Config)) *proc {
	p := &proc{w: w}
	w.epochs++
	client := w.hub.Client()
	client.Call = p.call
	cfg := Config{
		Instance: "shop", Prefix: "gaia", MachineID: "kim.mill.shop", Epoch: fmt.Sprintf("epoch-%d", w.epochs),
		Runs: w.runs, GaiaBin: "/usr/bin", Hub: "unix:///hub.sock",
		Names:  Names{Unit: func(n int) string { return fmt.Sprintf("gaia-run-shop-%d.service", n) }, Socket: func(run string) string { return "/run/" + run }},
		Remote: client, Executor: &procHosts{w.hosts, p}, Workspace: w.trees.Process(p.call), Machine: &procMachine{w},
		Clock: w.clock, Log: zerolog.New(w.log), Settings: settings(),
		Drain:  func(_ context.Context, draining bool) error { w.hub.SetDraining(draining); return nil },
		Notify: func(s string) { p.saidMu.Lock(); p.said = append(p.said, s); p.saidMu.Unlock() },
	}
	cfg.step = func(name string) error {
		return errors.Join(p.call("step: "+name, false), p.call("step: "+name, true))
	}
	for _, fn := range change {
		fn(&cfg)
	}
	d, err := New(cfg)
	require.NoError(w.t, err)
	p.d = d
	w.t.Cleanup(p.kill)
	return p
}

// kill ends the process as SIGKILL does: none of its calls has an effect any more.
func (p *proc) kill() {
	p.dead.Store(true)
	p.d.endWork()
	p.d.workers.Wait()
}

// tick is one tick with all the work that it sets off.
func (p *proc) tick() error {
	err := p.d.tick(context.Background())
	if p.dead.Load() {
		p.kill()
		return errCrash
	}
	p.d.workers.Wait()
	if p.dead.Load() {
		return errCrash
	}
	return err
}

// ticks goes through n rounds of 15 s.
func (p *proc) ticks(n int) {
	p.w.t.Helper()
	for range n {
		require.NoError(p.w.t, p.tick())
		p.w.clock.Advance(DefaultTick)
	}
}

func (p *proc) heard(s string) bool {
	p.saidMu.Lock()
	defer p.saidMu.Unlock()
	return slices.ContainsFunc(p.said, func(v string) bool { return len(v) >= len(s) && v[:len(s)] == s })
}

type procHosts struct {
	*hosts
	p *proc
}

func (h *procHosts) around(name string, fn func() error) error {
	if err := h.p.call(name, false); err != nil {
		return err
	}
	err := fn()
	if lost := h.p.call(name, true); lost != nil {
		return lost
	}
	return err
}

func (h *procHosts) Expect() { h.p.expected.Add(1) }

func (h *procHosts) Start(ctx context.Context, l domain.Launch) error {
	return h.around("Executor.Start", func() error { return h.hosts.Start(ctx, l) })
}

func (h *procHosts) Stop(ctx context.Context, run string) error {
	return h.around("Executor.Stop", func() error { return h.hosts.Stop(ctx, run) })
}

func (h *procHosts) List(ctx context.Context) (out []domain.Session, err error) {
	err = h.around("Executor.List", func() error { out, err = h.hosts.List(ctx); return err })
	return out, err
}

type procMachine struct{ w *world }

func (m *procMachine) Agents(context.Context) (Agents, error) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if m.w.missing != nil {
		return Agents{Unavailable: map[string]error{"script": m.w.missing}, Default: "script"}, nil
	}
	return Agents{Available: map[string]domain.Agent{"script": testAgent{m.w}}, Default: "script"}, nil
}

func (m *procMachine) Environment(_ context.Context, _ string, gaia map[string]string) (map[string]string, error) {
	env := map[string]string{"PATH": "/usr/bin"}
	for k, v := range gaia {
		env[k] = v
	}
	return env, nil
}

func (m *procMachine) Trusted(sha string) (bool, error) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	return m.w.trusted[sha], nil
}

func (m *procMachine) Permissions(_, _ string) (string, bool, error) { return "edits", false, nil }

func (m *procMachine) Pressure(uint64, int) string {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	return m.w.pressure
}

func (m *procMachine) BootID() (string, error) { return m.w.bootID(), nil }

func (m *procMachine) Attached(context.Context, string) (bool, error) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	return m.w.attached, nil
}

type testAgent struct{ w *world }

func (testAgent) Name() string                  { return "script" }
func (testAgent) Check(map[string]string) error { return nil }
func (testAgent) Prepare(context.Context, domain.AgentRequest) (domain.AgentCommand, error) {
	return domain.AgentCommand{Argv: []string{"/bin/true"}}, nil
}
func (a testAgent) Report(context.Context, string) (domain.AgentReport, error) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	return a.w.report, nil
}

func (w *world) set(fn func()) { w.mu.Lock(); defer w.mu.Unlock(); fn() }

// only returns the single run that there is.
func (w *world) only() domain.Run {
	w.t.Helper()
	runs := w.hub.Runs()
	require.Len(w.t, runs, 1)
	return runs[0]
}

func (w *world) folder(run string) session.Folder {
	return session.Folder(filepath.Join(w.runs, run))
}

// running brings a ticket to a running agent.
func (w *world) running(p *proc, identifier string) domain.Run {
	w.t.Helper()
	w.hub.AddTicket(identifier)
	p.ticks(1)
	runs := w.hub.Runs()
	require.NotEmpty(w.t, runs)
	r := runs[len(runs)-1]
	require.Equal(w.t, domain.RunRunning, r.State)
	require.Contains(w.t, w.hosts.alive(), r.ID)
	return r
}
