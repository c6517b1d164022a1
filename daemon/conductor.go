package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"gaia/domain"
	"gaia/internal/log"
	"gaia/session"
)

// Conductor is one process's work for one checkout.
type Conductor struct {
	cfg   Config
	wakes chan struct{} // asks for a tick; holds at most one

	workers sync.WaitGroup
	workCtx context.Context // of the workers; ends at a clean stop
	endWork context.CancelFunc

	mu       sync.Mutex
	settings Settings
	reload   error // why the last reload was refused
	runs     map[string]*run
	foreign  map[string]bool // run folders that are none of our business any more
	// unreadable are run folders of which that has been said.
	unreadable map[string]bool
	damaged    map[string]bool // runs of which the last listing could not say how they do
	hub        hubState
	paused     string          // why nothing is claimed
	blind      string          // why the sessions could not be listed
	agents     Agents          // as the last tick found them
	shas       map[string]bool // hooks that a run's base commit brought and nobody trusted
	draining   bool            // as the hub last said
	looked     bool            // units and folders have been listed together once
	adopted    bool            // hub, units and folders have been listed together once
	whole      bool            // the last tick has seen everything
	eager      bool            // a ticket has changed since the last tick
	ready      bool            // the service manager has been told
	over       bool            // superseded
	stopping   bool
	ticked     time.Duration   // Mono, when the last tick began
	retries    []time.Duration // Mono, when tickets that failed here may be claimed again
	stepName   string
	stepAt     time.Duration // Mono
	pinged     time.Duration // Mono
	warned     bool          // the step at stepAt has been complained about
	status     Status
	settled    []RunStatus // runs that were closed since the status was last composed, as they ended

	// showing is held while a status is composed and told, so that each listener hears every change, and in order. It is
	// taken before mu.
	showing  sync.Mutex
	watchers map[*func(change)]bool

	spares  spares
	commits commitCache
	met     chan struct{} // closed at the first registration
	meet    func()
}

// hubState is what is known of the conversation with the hub.
type hubState struct {
	registered bool
	project    domain.Project
	conductor  string // id
	ttl        time.Duration
	answered   bool          // in the last tick
	beat       time.Duration // Boot, at the sending of the last answered heartbeat
	beatAt     domain.Time   // the same moment on the hub's clock
	since      time.Time     // of the present trouble
	err        error
}

// run is what the conductor remembers of one run. All of it can be had again from hub, units and run folder.
type run struct {
	id         string
	folder     session.Folder // "" where there is none
	spec       session.Spec
	claimed    bool // the claim has been answered: spec is filled
	free       bool // the claim was answered with nothing
	assignment *domain.Assignment

	known bool // to the hub, at its last answer
	fate  domain.Fate

	session  domain.SessionState
	goneAt   time.Duration // Mono of the first complete listing without it
	gone     int           // complete listings without it, in a row
	unknowns int           // failed probes, in a row

	tells     bool          // its agent writes down what it does
	doneAt    time.Duration // Mono, when the own state write was first heard of
	done      bool
	leaseFrom time.Duration // Boot, at the sending of the claim
	claimTTL  time.Duration

	work   string // what a worker is doing, "" without one
	cancel context.CancelFunc
	tried  string // the kind of work that tries counts for
	tries  int    // its failed attempts; the hub's absence and an interruption are none
	kept   bool

	asked   bool          // the profile of its silent agent, at least once
	askedAt time.Duration // Mono, when last
}

// Status is what people are shown.
type Status struct {
	Text        string
	Hub         string // ok, connecting, or the trouble
	Runs        []RunStatus
	CurrentLoad int
	MaxParallel int
	MachineID   string
	Project     string
	Version     string
}

// RunStatus is one run of Status.
type RunStatus struct {
	ID, Ticket, State, Session, Unit string
	Reason                           string // why it ended, "" for one that has not
	Number                           int
}

// change is a new status, and what has become of runs since the one before.
type change struct {
	Status
	began, ended []RunStatus
}

// New returns a conductor that has done nothing yet.
func New(cfg Config) (*Conductor, error) {
	cfg.Settings = cfg.Settings.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.Notify == nil {
		cfg.Notify = func(string) {}
	}
	d := &Conductor{
		cfg: cfg, settings: cfg.Settings, wakes: make(chan struct{}, 1),
		runs: map[string]*run{}, foreign: map[string]bool{}, unreadable: map[string]bool{}, damaged: map[string]bool{}, shas: map[string]bool{}, watchers: map[*func(change)]bool{},
	}
	d.met = make(chan struct{})
	d.meet = sync.OnceFunc(func() { close(d.met) })
	d.hub.since = cfg.Clock.Now()
	d.workCtx, d.endWork = context.WithCancel(context.Background())
	d.setStatus()
	return d, nil
}

func (s Settings) withDefaults() Settings {
	if s.Tick <= 0 {
		s.Tick = DefaultTick
	}
	if s.Grace <= 0 {
		s.Grace = DefaultGrace
	}
	if s.Blocked <= 0 {
		s.Blocked = DefaultBlocked
	}
	if s.TreeTimeout <= 0 {
		s.TreeTimeout = session.DefaultTreeTimeout
	}
	return s
}

// Wake asks for a tick now.
func (d *Conductor) Wake() {
	select {
	case d.wakes <- struct{}{}:
	default:
	}
}

// Run conducts until ctx ends, which is a clean stop and no error, or until a newer process takes over.
func (d *Conductor) Run(ctx context.Context) error {
	hints, stopHints := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer stopHints()
	background.Go(func() { d.followSessions(hints) })
	background.Go(func() { d.followEvents(hints) })
	background.Go(func() { d.watchStep(hints) })

	for {
		got, err := d.claimEagerly(ctx)
		if got {
			d.breathe(ctx)
		}
		if err == nil {
			err = d.tick(ctx)
		}
		if errors.Is(err, ErrSuperseded) {
			return d.supersede()
		}
		if err == nil && ctx.Err() == nil && d.becomesReady() {
			d.cfg.Notify("READY=1\nSTATUS=" + d.Status().Text)
			d.cfg.Log.Info().Str(log.MessageID, log.ConductorReady).Msg("ready: " + d.Status().Text)
		}
		if ctx.Err() != nil {
			return d.stop()
		}
		d.wait(ctx)
	}
}

// becomesReady reports, once, that the conductor is ready. One without a hub is when it has seen all that is here.
func (d *Conductor) becomesReady() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ready || !d.hub.registered && !d.looked {
		return false
	}
	d.ready = true
	return true
}

// wait returns when something has happened, or it is time for the next tick. It shows signs of life meanwhile: to wait
// is progress, as the loop is where it should be.
func (d *Conductor) wait(ctx context.Context) {
	until := d.cfg.Clock.Mono() + d.untilNext()
	for ctx.Err() == nil {
		d.progress("waiting")
		left := until - d.cfg.Clock.Mono()
		if left <= 0 {
			return
		}
		if w := d.cfg.Watchdog / 3; w > 0 {
			left = min(left, w)
		}
		if d.sleep(ctx, left) {
			return
		}
	}
}

// sleep reports whether it was ended by a wake.
func (d *Conductor) sleep(ctx context.Context, t time.Duration) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	woken := make(chan bool, 1)
	go func() {
		select {
		case <-d.wakes:
			woken <- true
			cancel()
		case <-ctx.Done():
			woken <- false
		}
	}()
	_ = d.cfg.Clock.Sleep(ctx, t) // its error is that of ctx, which the caller looks at
	cancel()
	return <-woken
}

// untilNext returns how long the loop may wait: a tick, or less where a grace, a second look or a ticket's wait after a
// failure is over before.
func (d *Conductor) untilNext() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	next, now := d.settings.Tick, d.cfg.Clock.Mono()
	due := func(at time.Duration) {
		// What the last tick has seen fall due waits for something else now, a worker or the hub: to look again and again
		// would only keep both from it.
		if at > d.ticked {
			next = min(next, at-now)
		}
	}
	for _, r := range d.runs {
		if over := r.doneAt + d.settings.Grace; r.done && r.session != domain.SessionGone {
			if r.tells && over > d.ticked {
				due(min(d.ticked+graceLook, over))
			}
			due(over)
		}
		if r.gone == 1 && r.fate.State.Live() {
			due(r.goneAt + secondLook)
		}
	}
	d.retries = slices.DeleteFunc(d.retries, func(at time.Duration) bool { return at <= d.ticked })
	for _, at := range d.retries {
		due(at)
	}
	if d.settings.Spares > 0 {
		due(d.spares.from)
	}
	return max(next, 100*time.Millisecond)
}

// breathe leaves the machine to a dispatch that has just begun, before the tick looks at everything: until it is done,
// something else has happened, or as long as most take on a small tree. Nothing is decided by this time.
func (d *Conductor) breathe(ctx context.Context) {
	select {
	case <-d.wakes:
	case <-ctx.Done():
	case <-time.After(250 * time.Millisecond):
	}
}

// graceLook is how often it is looked whether an agent has ended the turn in which it wrote its state. It says so in a file,
// of which nothing tells.
const graceLook = time.Second

// secondLook is how far apart two listings must be to count as two.
const secondLook = 2 * time.Second

// progress is the loop's sign of life. It must be called from the loop only.
func (d *Conductor) progress(step string) {
	d.mu.Lock()
	now := d.cfg.Clock.Mono()
	d.stepName, d.stepAt, d.warned = step, now, false
	ping := d.cfg.Watchdog > 0 && (d.pinged == 0 || now-d.pinged >= d.cfg.Watchdog/4)
	if ping {
		d.pinged = now
	}
	d.mu.Unlock()
	if ping {
		d.cfg.Notify("WATCHDOG=1")
	}
}

// step announces a step of the loop; its error is that of a test that interrupts there.
func (d *Conductor) step(name string) error {
	d.progress(name)
	return d.at(name)
}

// at announces a step of a run's work.
func (d *Conductor) at(name string) error {
	if d.cfg.step == nil {
		return nil
	}
	return d.cfg.step(name)
}

// watchStep says which step the loop is stuck in, before the service manager ends the process for it.
func (d *Conductor) watchStep(ctx context.Context) {
	limit := d.cfg.Watchdog
	if limit <= 0 {
		return
	}
	for d.cfg.Clock.Sleep(ctx, limit/8) == nil {
		d.mu.Lock()
		stuck := d.cfg.Clock.Mono() - d.stepAt
		name, complain := d.stepName, stuck > limit/2 && !d.warned
		d.warned = d.warned || complain
		d.mu.Unlock()
		if complain {
			d.cfg.Log.Error().Str(log.MessageID, log.ConductorStuck).Str("step", name).Dur("for", stuck).
				Msgf("the conductor's loop is stuck in %q for %s; at %s the service manager restarts it", name, stuck.Round(time.Second), limit)
		}
	}
}

// followSessions wakes the loop when a session may have changed.
func (d *Conductor) followSessions(ctx context.Context) {
	d.follow(ctx, "units", func() error {
		return d.cfg.Executor.Watch(ctx, func(run string) {
			if !d.dispatching(run) {
				d.Wake()
			}
		})
	})
}

// dispatching reports whether a run is being started by a worker of ours. It hears itself how that goes and wakes the loop at
// its end; a tick in between would only take the machine's time from it.
func (d *Conductor) dispatching(run string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.runs[run]
	return r != nil && r.work == workDispatch
}

// followEvents wakes the loop when the hub's log tells of something that others did, and when the stream has come up:
// nothing told of what happened between the last tick and that moment.
func (d *Conductor) followEvents(ctx context.Context) {
	select {
	case <-d.met: // before that the hub would refuse
	case <-ctx.Done():
		return
	}
	seq := int64(-1) // from now on: what was before is listed anyway
	own := "conductor/" + d.cfg.MachineID
	d.follow(ctx, "events", func() error {
		return d.cfg.Remote.Follow(ctx, seq, func(e domain.Event) {
			if e.Seq > 0 {
				seq = max(seq, e.Seq)
			}
			if e.Actor == own { // or each heartbeat would call for the next
				return
			}
			if e.Type == "ticket" {
				d.mu.Lock()
				d.eager = true
				d.mu.Unlock()
			}
			d.Wake()
		})
	})
}

// follow keeps a stream of hints going. Losing hints costs time and nothing else, so it is no more than a debug line.
func (d *Conductor) follow(ctx context.Context, what string, fn func() error) {
	pause := time.Second
	for ctx.Err() == nil {
		from := d.cfg.Clock.Mono()
		err := fn()
		if ctx.Err() != nil {
			return
		}
		d.cfg.Log.Debug().Err(err).Msgf("the stream of %s broke off and is taken up again", what)
		if d.cfg.Clock.Mono()-from > time.Minute {
			pause = time.Second
		}
		if d.cfg.Clock.Sleep(ctx, pause) != nil {
			return
		}
		pause = min(2*pause, 30*time.Second)
	}
}

// supersede leaves everything as it is to the newer process.
func (d *Conductor) supersede() error {
	d.mu.Lock()
	d.over, d.stopping = true, true
	d.mu.Unlock()
	d.setStatus()
	d.cfg.Log.Error().Str(log.MessageID, log.Superseded).Msg("superseded: another process has registered as " + d.cfg.MachineID + "; this one claims nothing more, leaves its runs running and exits")
	d.cfg.Notify("STOPPING=1\nSTATUS=" + d.Status().Text)
	d.endWork()
	d.needTime(partingDeadline)
	d.awaitWorkers()
	return ErrSuperseded
}

// stop takes back the claims whose agent has not been let on and leaves the rest running. The context of the caller
// has ended, so each call has a deadline of its own.
func (d *Conductor) stop() error {
	d.mu.Lock()
	d.stopping = true
	d.mu.Unlock()
	d.setStatus()
	d.cfg.Notify("STOPPING=1\nSTATUS=" + d.Status().Text)
	d.endWork()
	d.needTime(partingDeadline)
	d.awaitWorkers()
	if claims := d.inFlight(); len(claims) > 0 {
		d.needTime(undoDeadline)
		ctx, cancel := context.WithTimeout(context.Background(), undoDeadline)
		defer cancel()
		var undone sync.WaitGroup
		for _, r := range claims {
			undone.Go(func() {
				if err := d.undo(ctx, r, "the conductor was stopped before the agent was started"); err != nil {
					d.runLog(r).Warn().Err(err).Msg("a claim could not be taken back; the next start goes on with it")
				}
			})
		}
		undone.Wait()
	}
	if d.registered() {
		// Its own time: a claim that is slow to be taken back must not cost the running agents their leases.
		d.needTime(partingDeadline)
		ctx, cancel := context.WithTimeout(context.Background(), partingDeadline)
		defer cancel()
		if err := d.cfg.Remote.Parting(ctx); err != nil {
			d.cfg.Log.Warn().Err(err).Msg("the hub did not hear that the conductor stops; it will count as lost until the next start")
		}
	}
	d.cfg.Log.Info().Str(log.MessageID, log.ConductorStopped).Msg("stopped; the runs go on without the conductor")
	return nil
}

// needTime tells the service manager that this part of the stop may take so long, whatever TimeoutStopSec= was set to: cut
// short, it would cost agents their leases.
func (d *Conductor) needTime(t time.Duration) {
	d.cfg.Notify(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", (t + time.Second).Microseconds()))
}

// awaitWorkers waits until the workers have heard that they are to end. One that does not hear it must not keep the process
// from stopping: whatever it does then is what a crash at that point would leave.
func (d *Conductor) awaitWorkers() {
	ended := make(chan struct{})
	go func() { d.workers.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(partingDeadline):
		d.cfg.Log.Warn().Msg("some work does not end in time and is left to the next start")
	}
}

// inFlight returns the claimed runs whose host has not been let on.
func (d *Conductor) inFlight() []*run {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []*run
	for _, id := range slices.Sorted(maps.Keys(d.runs)) {
		r := d.runs[id]
		if r.work != "" || r.folder == "" || !r.known || r.fate.State != domain.RunClaimed {
			continue
		}
		if _, err := r.folder.Tree(); has(err) {
			continue // the agent may be running
		}
		if _, err := r.folder.Record(); has(err) {
			continue // it has ended by itself and is to be reported as what it was
		}
		out = append(out, r)
	}
	return out
}

// undo takes a claim back: the waiting host, if there is one, is stopped first.
func (d *Conductor) undo(ctx context.Context, r *run, note string) error {
	verdict := domain.Failure{Reason: domain.ReasonUndone, Note: note}
	if err := d.condemn(ctx, r, verdict); err != nil {
		return err
	}
	fate, err := d.cfg.Remote.Fail(ctx, r.id, verdict)
	if err != nil {
		return fmt.Errorf("taking back the claim of run %s: %w", r.id, err)
	}
	d.learn(r, fate)
	return nil
}

// condemn writes down that a run is to fail and how, then ends its session. The order makes the reason survive a crash.
func (d *Conductor) condemn(ctx context.Context, r *run, verdict domain.Failure) error {
	if err := sentence(r.folder, verdict); err != nil {
		return err
	}
	return d.cfg.Executor.Stop(ctx, r.id)
}

func sentence(folder session.Folder, verdict domain.Failure) error {
	if err := writeFile(folder, fileVerdict, verdict); err != nil {
		return err
	}
	return folder.MarkStopping()
}

func (d *Conductor) registered() bool { d.mu.Lock(); defer d.mu.Unlock(); return d.hub.registered }

func (d *Conductor) learn(r *run, f domain.Fate) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.learnLocked(r, f, f.EndedAt)
}

// learnLocked takes in what the hub says of a run at a moment of its clock. The grace counts from the run's state write,
// whenever it is heard of, also by a process that was not there then; both times are the hub's, so that a clock that is
// wrong here takes nothing from the agent.
func (d *Conductor) learnLocked(r *run, f domain.Fate, at domain.Time) {
	if f.State == domain.RunDone && !r.done {
		r.done, r.doneAt = true, d.cfg.Clock.Mono()-max(at.Sub(f.EndedAt.Time), 0)
	}
	r.known, r.fate = true, f
}

// confirmed reports whether this conductor may still act for a run: its lease, counted on the boot clock from the
// sending of the last heartbeat that was answered, has not run out.
func (d *Conductor) confirmed(r *run) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.confirmedLocked(r)
}

func (d *Conductor) confirmedLocked(r *run) bool {
	from, ttl := d.hub.beat, d.hub.ttl
	if r.fate.State == domain.RunClaimed && r.claimTTL > 0 {
		ttl = min(ttl, r.claimTTL)
	}
	return d.cfg.Clock.Boot() < max(from, r.leaseFrom)+ttl
}

// Reload takes over new settings, or keeps the last good ones and returns why. The service manager and the status are told, too.
func (d *Conductor) Reload() error {
	d.mu.Lock()
	up := d.ready && !d.stopping // else there is nothing to go back to
	d.mu.Unlock()
	if up {
		d.cfg.Notify(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", d.cfg.Clock.Mono().Microseconds()))
	}
	err := d.readSettings()
	d.setStatus()
	if up {
		d.cfg.Notify("READY=1\nSTATUS=" + d.Status().Text)
	}
	d.Wake()
	return err
}

func (d *Conductor) readSettings() error {
	if d.cfg.Reload == nil {
		return nil
	}
	s, err := d.cfg.Reload()
	if err == nil && s.MaxParallel < 1 {
		err = fmt.Errorf("max_parallel is %d and must be at least 1", s.MaxParallel)
	}
	d.mu.Lock()
	if err == nil && s.Project != d.settings.Project {
		err = fmt.Errorf("the project has changed from %s to %s; that needs a restart", d.settings.Project, s.Project)
	}
	d.reload = err
	if err == nil {
		d.settings = s.withDefaults()
		d.hub.registered = false // so that the hub hears of it
	}
	d.mu.Unlock()
	if err != nil {
		d.cfg.Log.Error().Str(log.MessageID, log.ConfigRefused).Err(err).Msg("the new configuration is refused; the last good one stays in force")
		return err
	}
	d.cfg.Log.Info().Str(log.MessageID, log.ConfigReloaded).Msg("configuration reloaded")
	return nil
}

// StopRun ends a live run for a person: its ticket is held until they lift that. which is a number, a run id, a ticket's
// identifier or a unit. It returns as soon as that is settled, whatever becomes of this process; the session ends after that,
// which may take as long as the hook after_run.
func (d *Conductor) StopRun(which string) error {
	found, err := d.live(which)
	if err != nil {
		return err
	}
	verdict := domain.Failure{Reason: domain.ReasonStopped, Note: "stopped by a person on the conductor's machine", Hold: true}
	if err := sentence(found.folder, verdict); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if found.cancel != nil {
		found.cancel()
	}
	if d.stopping {
		return nil // the next start reads it
	}
	// At once, and not when the hub can be asked again.
	ctx, cancel := context.WithTimeout(d.workCtx, stopDeadline)
	d.workers.Go(func() {
		defer cancel()
		if err := d.cfg.Executor.Stop(ctx, found.id); err != nil {
			d.runLog(found).Warn().Err(err).Msg("the session of a run that a person stops does not end yet; it is tried again")
		}
		d.Wake()
	})
	return nil
}

// live finds the live run that a person means.
func (d *Conductor) live(which string) (*run, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var found *run
	for _, r := range d.runs {
		if r.folder == "" || !r.claimed || !r.known || !r.fate.State.Live() ||
			!slices.Contains([]string{r.id, fmt.Sprint(r.spec.Number), r.spec.Identifier, r.spec.Unit}, which) {
			continue
		}
		if found != nil { // the number of one is the identifier of the other's ticket
			return nil, fmt.Errorf("%q names the runs %d and %d: %w; name the one by its unit", which, found.spec.Number, r.spec.Number, domain.ErrConflict)
		}
		found = r
	}
	if found == nil {
		return nil, fmt.Errorf("no live run %q on this conductor: %w", which, domain.ErrNotFound)
	}
	return found, nil
}

// Status returns what people are shown now.
func (d *Conductor) Status() Status { d.mu.Lock(); defer d.mu.Unlock(); return d.status }

// onStatus returns the status and has fn called at each later change of it, in order, until the returned function has been
// called. fn must not wait for anything.
func (d *Conductor) onStatus(fn func(change)) (now Status, forget func()) {
	d.showing.Lock()
	defer d.showing.Unlock()
	d.watchers[&fn] = true
	return d.Status(), func() {
		d.showing.Lock()
		defer d.showing.Unlock()
		delete(d.watchers, &fn)
	}
}

// setStatus composes the status anew and tells whoever listens.
func (d *Conductor) setStatus() {
	d.showing.Lock()
	defer d.showing.Unlock()
	d.mu.Lock()
	before := d.status
	d.status = d.composeLocked()
	after, settled := d.status, d.settled
	d.settled = nil
	d.mu.Unlock()
	if after.Text != before.Text {
		d.cfg.Notify("STATUS=" + after.Text)
	}
	c := difference(before, after, settled)
	for fn := range d.watchers {
		(*fn)(c)
	}
}

// difference says what has become of runs between two statuses. settled are those that were closed in between, in their
// last state, which no status may have shown.
func difference(before, after Status, settled []RunStatus) change {
	c := change{Status: after}
	has := func(runs []RunStatus, id string) bool {
		return slices.ContainsFunc(runs, func(r RunStatus) bool { return r.ID == id })
	}
	for _, r := range settled {
		if !has(before.Runs, r.ID) {
			c.began = append(c.began, r)
		}
		c.ended = append(c.ended, r)
	}
	for _, r := range after.Runs {
		if !has(before.Runs, r.ID) {
			c.began = append(c.began, r)
		}
	}
	for _, r := range before.Runs {
		if !has(after.Runs, r.ID) && !has(settled, r.ID) {
			c.ended = append(c.ended, r)
		}
	}
	return c
}

func (d *Conductor) composeLocked() Status {
	s := Status{
		MaxParallel: d.settings.MaxParallel, MachineID: d.cfg.MachineID,
		Project: d.settings.Project, Version: d.cfg.Version, CurrentLoad: d.loadLocked(),
	}
	unconfirmed, unclear := 0, 0
	for _, id := range slices.Sorted(maps.Keys(d.runs)) {
		r := d.runs[id]
		if !r.claimed {
			continue
		}
		state := string(r.fate.State)
		if r.known && r.fate.State.Live() && d.hub.ttl > 0 && !d.confirmedLocked(r) {
			unconfirmed++
			state = "unconfirmed"
		}
		if r.unknowns >= 3 {
			unclear++
		}
		shown := r.status()
		shown.State = state
		s.Runs = append(s.Runs, shown)
	}
	switch {
	case d.hub.err != nil:
		s.Hub = fmt.Sprintf("%s since %s", trouble(d.hub.err), d.hub.since.Local().Format(time.TimeOnly))
	case d.hub.registered:
		s.Hub = "ok"
	default:
		s.Hub = "connecting"
	}
	mode := "online"
	switch {
	case d.over:
		mode = "superseded"
	case d.stopping:
		mode = "stopping"
	case !d.adopted:
		mode = "starting"
	case d.draining:
		mode = "draining"
	case d.paused != "":
		mode = "paused"
	}
	parts := []string{mode, fmt.Sprintf("%d/%d running", s.CurrentLoad, s.MaxParallel), "hub " + s.Hub}
	if d.paused != "" {
		parts = append(parts, "claims nothing: "+d.paused)
	}
	if unconfirmed > 0 {
		parts = append(parts, fmt.Sprintf("%d unconfirmed", unconfirmed))
	}
	if unclear > 0 {
		parts = append(parts, fmt.Sprintf("%d sessions of unknown state", unclear))
	}
	if d.blind != "" {
		parts = append(parts, "sessions cannot be listed: "+d.blind)
	}
	if d.reload != nil {
		parts = append(parts, "the new conductor.toml is refused: "+d.reload.Error())
	}
	s.Text = strings.NewReplacer("\n", " ", "\r", " ").Replace(strings.Join(parts, ", "))
	return s
}

func (r *run) status() RunStatus {
	return RunStatus{
		ID: r.id, Number: r.spec.Number, Ticket: r.spec.Identifier, State: string(r.fate.State), Reason: string(r.fate.EndReason),
		Session: string(r.session), Unit: r.spec.Unit,
	}
}

func trouble(err error) string {
	if errors.Is(err, domain.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded) {
		return "unreachable"
	}
	return "refuses: " + err.Error()
}

// loadLocked counts the runs that take a slot: live ones at the hub, and sessions that live on here.
func (d *Conductor) loadLocked() int {
	n := 0
	for _, r := range d.runs {
		if r.takesSlot() {
			n++
		}
	}
	return n
}

func (r *run) takesSlot() bool {
	return r.work != "" || r.known && r.fate.State.Live() || r.session == domain.SessionAlive ||
		r.session == domain.SessionUnknown && r.claimed && !(r.known && r.fate.Finalized)
}
