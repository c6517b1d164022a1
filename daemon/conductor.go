package daemon

import (
	"context"
	"fmt"
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
