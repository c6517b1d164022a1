// Package executor is the domain's Executor port: it starts each run as a transient unit, whose main process hosts the run's
// tmux, and asks systemd, not tmux, whether the run lives.
//
// It starts no program itself and speaks to no tmux server; what happens inside of a unit is the host's.
package executor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"gaia/domain"
	"gaia/internal/cgroup"
	"gaia/session"
	"gaia/units"
)

const (
	// stopGrace is how long a unit may take to stop, on top of what its hook after_run may: systemd itself kills it
	// after ten seconds.
	stopGrace = 20 * time.Second
	// killGrace is how long the kernel may take to end what was killed.
	killGrace = 10 * time.Second
	stopPoll  = 20 * time.Millisecond
)

// UnitManager is what the executor needs of the user manager; *units.Manager has it.
type UnitManager interface {
	StartTransient(ctx context.Context, u units.RunUnit) error
	Stop(ctx context.Context, unit string) error
	Kill(ctx context.Context, unit string, sig int) error
	ResetFailed(ctx context.Context, unit string) error
	Status(ctx context.Context, unit string) (units.Status, error)
	List(ctx context.Context, patterns ...string) ([]units.Status, error)
	Watch(ctx context.Context, match func(unit string) bool, fn func(unit string)) error
}

// Config says whose runs an executor hosts, and with what.
type Config struct {
	Units    UnitManager
	Names    units.Names
	Instance string
	Runs     string            // folder of the run folders
	Session  string            // absolute path of gaia-session
	Env      map[string]string // environment of the units; world-readable, so never a secret
}

// Executor hosts each run in a transient unit of its own. Whether a run lives is what systemd says of its unit; the run
// folder says whose unit it is and whether it was ever started. It keeps no state that it could not read again.
type Executor struct {
	cfg Config

	mu    sync.Mutex
	specs map[string]session.Spec // by run id; a spec never changes once it is written
}

var _ domain.Executor = (*Executor)(nil)

// New returns the executor of one conductor.
func New(cfg Config) *Executor {
	return &Executor{cfg: cfg, specs: map[string]session.Spec{}}
}

// Expect implements domain.Executor. Before the kernel moves a process from one control group to another, as systemd does
// with each that it starts, it waits some ten milliseconds until every processor has taken note (an RCU grace
// period, for cgroup_threadgroup_rwsem); a move that follows soon finds that done. So this process moves to where it
// is, while the hub is asked for work. Where it may not, nothing is lost.
func (e *Executor) Expect() {
	go func() { _ = cgroup.Rejoin() }()
}

// Start starts the unit of a run and returns when the agent's program runs. It waits as long as the run's host does, which
// is until the tree is there and the hooks have ended. When ctx ends first, the unit goes on starting.
func (e *Executor) Start(ctx context.Context, l domain.Launch) error {
	folder := session.Folder(l.Folder)
	spec, err := folder.Load()
	if err != nil {
		return fmt.Errorf("starting run %s: %w", l.Run, err)
	}
	unit := e.cfg.Names.Run(e.cfg.Instance, l.Number)
	if spec.Run != l.Run || spec.Instance != e.cfg.Instance || spec.Number != l.Number || spec.Unit != unit {
		return fmt.Errorf("starting run %s: folder %s belongs to run %s, %s: %w", l.Run, folder, spec.Run, spec.Unit, domain.ErrInvalid)
	}
	// A unit's name locks only while the unit is loaded; the folder remembers.
	if _, err := folder.Started(); !errors.Is(err, domain.ErrNotFound) {
		return fmt.Errorf("starting run %s: %w", l.Run, orExists(err))
	}
	if _, err := folder.Record(); !errors.Is(err, domain.ErrNotFound) {
		return fmt.Errorf("starting run %s: %w", l.Run, orExists(err))
	}
	u := units.RunUnit{
		Name: unit, Description: l.Description, Slice: e.cfg.Names.Slice(),
		ExecStart:    []string{e.cfg.Session, "host", l.Folder},
		ExecStopPost: []string{e.cfg.Session, "post", l.Folder},
		Environment:  e.cfg.Env, Limits: l.Limits,
	}
	err = e.cfg.Units.StartTransient(ctx, u)
	if errors.Is(err, domain.ErrExists) {
		// No host has begun with this run. A failed unit of its name, which stays loaded, is that of a start that did not come
		// so far, or of another run where numbers started again: nothing lives in it, and it would be taken for this run.
		if err := e.cfg.Units.ResetFailed(ctx, unit); err != nil {
			return fmt.Errorf("starting run %s: %w", l.Run, err)
		}
		err = e.cfg.Units.StartTransient(ctx, u)
	}
	if err != nil {
		return fmt.Errorf("starting run %s: %w", l.Run, err)
	}
	return nil
}

// orExists returns what a file of the folder that is there, or that cannot be read, means for a start.
func orExists(err error) error {
	if err == nil {
		return domain.ErrExists
	}
	return err
}

// Probe asks systemd for one run's unit. An error comes with SessionUnknown.
func (e *Executor) Probe(ctx context.Context, run string) (domain.Session, error) {
	s := domain.Session{Run: run, State: domain.SessionUnknown}
	spec, err := e.spec(run)
	switch {
	case errors.Is(err, domain.ErrNotFound):
		if err := e.unclaimed(ctx, run); err != nil {
			return s, err
		}
		s.State = domain.SessionGone
		return s, nil
	case err != nil:
		return s, err
	}
	s.Unit = spec.Unit
	st, mine, err := e.status(ctx, spec)
	if err != nil {
		return s, err
	}
	s.State = domain.SessionGone
	if mine && st.Running() {
		s.State = domain.SessionAlive
	}
	return s, nil
}

// List returns every run of this instance that has a folder. One of which it cannot be said whether it lives is unknown.
func (e *Executor) List(ctx context.Context) ([]domain.Session, error) {
	live, err := e.live(ctx) // before the folders: a run that starts in between is then gone for a moment, not forgotten
	if err != nil {
		return nil, err
	}
	specs, damaged, err := e.all()
	if err != nil {
		return nil, err
	}
	claims := map[string]int{}
	for _, s := range specs {
		claims[s.Unit]++
	}
	out := damaged
	for _, s := range specs {
		state := domain.SessionGone
		if live[s.Unit] {
			mine := true
			// Numbers start again where a hub was set up anew, and a unit may be another run's: only then ask for each.
			if claims[s.Unit] > 1 {
				st, m, err := e.status(ctx, s)
				if err != nil {
					out = append(out, domain.Session{Run: s.Run, State: domain.SessionUnknown, Unit: s.Unit})
					continue
				}
				mine = m && st.Running()
			}
			if mine {
				state = domain.SessionAlive
			}
		}
		out = append(out, domain.Session{Run: s.Run, State: state, Unit: s.Unit})
	}
	return out, nil
}

// Stop stops a run's unit and returns when no process of it is left. What does not end in time is killed.
func (e *Executor) Stop(ctx context.Context, run string) error {
	spec, err := e.spec(run)
	if errors.Is(err, domain.ErrNotFound) {
		return e.unclaimed(ctx, run)
	}
	if err != nil {
		return err
	}
	st, mine, err := e.status(ctx, spec)
	if err != nil {
		return fmt.Errorf("stopping run %s: %w", run, err)
	}
	if !mine {
		return nil
	}
	folder := e.folder(run)
	if st.Running() {
		if err := folder.MarkStopping(); err != nil {
			return fmt.Errorf("stopping run %s: %w", run, err)
		}
		if err := e.end(ctx, folder, st); err != nil {
			return fmt.Errorf("stopping run %s: %w", run, err)
		}
	}
	if err := e.cfg.Units.ResetFailed(ctx, spec.Unit); err != nil {
		return fmt.Errorf("stopping run %s: %w", run, err)
	}
	return nil
}

// end stops the unit that st tells of.
func (e *Executor) end(ctx context.Context, folder session.Folder, st units.Status) error {
	grace := stopGrace
	if tree, err := folder.Tree(); err == nil && tree.Hooks.AfterRun.Set() { // without a readable tree no hook runs
		grace += tree.Hooks.AfterRun.Timeout
	}
	ctx, cancel := context.WithTimeout(ctx, grace+killGrace)
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- e.cfg.Units.Stop(ctx, st.Name) }()
	kill := time.After(grace)
	var last error
	tick := time.NewTicker(stopPoll)
	defer tick.Stop()
	for waiting := stopped; ; {
		select {
		case last = <-waiting:
			waiting = nil
		case <-kill:
			last = e.cfg.Units.Kill(ctx, st.Name, int(syscall.SIGKILL))
			waiting = nil
		case <-tick.C:
			if waiting != nil {
				continue // the job's own end is reported; only after it is there something to ask
			}
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("unit %s is still there: %w", st.Name, ctx.Err()), last)
		}
		now, err := e.cfg.Units.Status(ctx, st.Name)
		if err != nil {
			last = err
			continue
		}
		if (!now.Running() || now.InvocationID != st.InvocationID) && empty(st.ControlGroup) {
			return nil
		}
	}
}

// empty reports whether a control group has no process, or is no more.
func empty(group string) bool {
	if group == "" {
		return true
	}
	data, err := os.ReadFile(filepath.Join(cgroup.Root, group, "cgroup.events"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
		return true
	}
	return err == nil && strings.Contains(string(data), "populated 0")
}

// Watch calls fn when systemd tells of a change of a run's unit, until ctx ends or the bus is lost.
func (e *Executor) Watch(ctx context.Context, fn func(run string)) error {
	return e.cfg.Units.Watch(ctx,
		func(unit string) bool { return e.cfg.Names.IsRun(e.cfg.Instance, unit) },
		func(unit string) {
			specs, _, err := e.all()
			if err != nil {
				return // events are hints; the next listing tells the error
			}
			for _, s := range specs {
				if s.Unit == unit {
					fn(s.Run)
				}
			}
		})
}

func (e *Executor) folder(run string) session.Folder {
	return session.Folder(filepath.Join(e.cfg.Runs, run))
}

// spec returns what a run's folder says the run is.
func (e *Executor) spec(run string) (session.Spec, error) {
	if run == "" || run != filepath.Base(run) || strings.HasPrefix(run, ".") {
		return session.Spec{}, fmt.Errorf("%q is no run id: %w", run, domain.ErrInvalid)
	}
	e.mu.Lock()
	s, ok := e.specs[run]
	e.mu.Unlock()
	if ok {
		// The folder itself may have been removed since.
		if _, err := os.Lstat(string(e.folder(run))); !errors.Is(err, fs.ErrNotExist) {
			return s, nil
		}
		e.mu.Lock()
		delete(e.specs, run)
		e.mu.Unlock()
	}
	s, err := e.folder(run).Load()
	if err != nil {
		return session.Spec{}, err
	}
	if s.Run != run {
		return session.Spec{}, fmt.Errorf("run folder %s says that it is of run %q", e.folder(run), s.Run)
	}
	e.mu.Lock()
	e.specs[run] = s
	e.mu.Unlock()
	return s, nil
}

// all returns the specs of this instance's runs, oldest first, and as unknown sessions the runs whose spec is damaged.
func (e *Executor) all() ([]session.Spec, []domain.Session, error) {
	folders, err := session.Folders(e.cfg.Runs)
	if err != nil {
		return nil, nil, err
	}
	var specs []session.Spec
	var damaged []domain.Session
	for _, f := range folders {
		s, err := e.spec(f.Run())
		switch {
		case errors.Is(err, domain.ErrNotFound), errors.Is(err, domain.ErrInvalid): // reserved for a claim, or none of ours
		case err != nil:
			damaged = append(damaged, domain.Session{Run: f.Run(), State: domain.SessionUnknown})
		case s.Instance == e.cfg.Instance && s.Prefix == e.cfg.Names.Prefix:
			specs = append(specs, s)
		}
	}
	return specs, damaged, nil
}

// live returns the names of this instance's run units that run.
func (e *Executor) live(ctx context.Context) (map[string]bool, error) {
	all, err := e.cfg.Units.List(ctx, e.cfg.Names.RunPattern(e.cfg.Instance))
	if err != nil {
		return nil, err
	}
	live := map[string]bool{}
	for _, st := range all {
		if st.Running() && e.cfg.Names.IsRun(e.cfg.Instance, st.Name) {
			live[st.Name] = true
		}
	}
	return live, nil
}

// status asks for the unit of a run, and whether the loaded unit is that run's and not one of the same name.
func (e *Executor) status(ctx context.Context, spec session.Spec) (st units.Status, mine bool, err error) {
	if st, err = e.cfg.Units.Status(ctx, spec.Unit); err != nil {
		return units.Status{}, false, err
	}
	started, err := e.folder(spec.Run).Started()
	switch {
	case err == nil:
		return st, started.InvocationID == st.InvocationID, nil
	case !errors.Is(err, domain.ErrNotFound) && !st.Running():
		// The mark is damaged, as a power cut may leave it, and whosever the unit is, nothing of the run lives.
		return st, false, nil
	}
	others, _, allErr := e.all()
	if allErr != nil {
		return units.Status{}, false, allErr
	}
	for _, o := range others {
		if o.Unit != spec.Unit || o.Run == spec.Run {
			continue
		}
		if s, err := e.folder(o.Run).Started(); err == nil && s.InvocationID == st.InvocationID {
			return st, false, nil
		}
	}
	if !errors.Is(err, domain.ErrNotFound) {
		return units.Status{}, false, err
	}
	return st, true, nil // no host of this run has begun: the unit, which is no other's, is its own and about to begin
}

// unclaimed returns an error unless every unit of the instance that runs belongs to a run with a folder: else a run whose
// folder was removed may still live, and nobody can say that it does not.
func (e *Executor) unclaimed(ctx context.Context, run string) error {
	live, err := e.live(ctx)
	if err != nil {
		return err
	}
	specs, _, err := e.all()
	if err != nil {
		return err
	}
	for _, s := range specs {
		delete(live, s.Unit)
	}
	for unit := range live {
		return fmt.Errorf("run %s has no folder in %s, and %s runs without one (systemctl --user stop %[3]s ends it)", run, e.cfg.Runs, unit)
	}
	return nil
}
