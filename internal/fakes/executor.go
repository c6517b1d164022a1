package fakes

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"gaia/domain"
	"gaia/session"
)

// Executor is a domain.Executor without units and processes: a session is alive from Start until End, Lose or Stop. The
// files of the run folder are the real ones.
type Executor struct {
	// Runs is the folder of the run folders.
	Runs string
	// BootID and Now are what records carry.
	BootID string
	Now    func() time.Time
	// OnStart, where set, is called by Start before the session counts as alive. Its error is that of a start that failed.
	OnStart func(l domain.Launch) error

	mu       sync.Mutex
	sessions map[string]*fakeSession
	watchers map[int]func(string)
	next     int
	err      error
	stops    []string
}

type fakeSession struct {
	unit  string
	state domain.SessionState
}

var _ domain.Executor = (*Executor)(nil)

// NewExecutor returns an executor whose run folders are below runs.
func NewExecutor(runs string) *Executor {
	return &Executor{
		Runs: runs, BootID: "11111111-1111-4111-8111-111111111111", Now: time.Now,
		sessions: map[string]*fakeSession{}, watchers: map[int]func(string){},
	}
}

// Fail makes every call but Watch return err until Fail(nil): what is alive goes on, and nobody can see it.
func (e *Executor) Fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = err
}

// Stops returns the runs that Stop was called for, in order.
func (e *Executor) Stops() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.stops)
}

// End ends a session as its host would: with a record, of which the executor fills the run, boot and time.
func (e *Executor) End(run string, r session.Record) error {
	folder := e.folder(run)
	started, err := folder.Started()
	if err != nil {
		return fmt.Errorf("ending the fake session of run %s: %w", run, err)
	}
	r.Run, r.BootID, r.InvocationID, r.EndedAt = run, started.BootID, started.InvocationID, domain.At(e.Now())
	if r.WrittenBy == "" {
		r.WrittenBy = session.WrittenByHost
	}
	if r.TermRequested, err = folder.Stopping(); err != nil {
		return err
	}
	if err := folder.WriteRecord(r); err != nil {
		return err
	}
	e.Lose(run)
	return nil
}

// Lose ends a session without a record, as a crash of the machine does.
func (e *Executor) Lose(run string) {
	e.mu.Lock()
	if s := e.sessions[run]; s != nil {
		s.state = domain.SessionGone
	}
	e.mu.Unlock()
	e.tell(run)
}

// Forget makes the executor know nothing of a run, as after the loss of its folder.
func (e *Executor) Forget(run string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.sessions, run)
}

func (e *Executor) folder(run string) session.Folder {
	return session.Folder(filepath.Join(e.Runs, run))
}

func (e *Executor) tell(run string) {
	e.mu.Lock()
	var fns []func(string)
	for i := range e.next {
		if fn := e.watchers[i]; fn != nil {
			fns = append(fns, fn)
		}
	}
	e.mu.Unlock()
	for _, fn := range fns {
		fn(run)
	}
}

// Expect implements domain.Executor.
func (e *Executor) Expect() {}

// Start implements domain.Executor.
func (e *Executor) Start(ctx context.Context, l domain.Launch) error {
	if err := errors.Join(ctx.Err(), e.failing()); err != nil {
		return fmt.Errorf("starting run %s: %w", l.Run, err)
	}
	folder := session.Folder(l.Folder)
	spec, err := folder.Load()
	if err != nil {
		return fmt.Errorf("starting run %s: %w", l.Run, err)
	}
	if spec.Run != l.Run || spec.Number != l.Number {
		return fmt.Errorf("starting run %s: folder %s belongs to run %s: %w", l.Run, folder, spec.Run, domain.ErrInvalid)
	}
	if _, err := folder.Record(); !errors.Is(err, domain.ErrNotFound) {
		return fmt.Errorf("starting run %s: %w", l.Run, errors.Join(domain.ErrExists, err))
	}
	keep, err := folder.MarkStarted(session.Started{Run: l.Run, BootID: e.BootID, InvocationID: "fake-" + l.Run, PID: 1, At: domain.At(e.Now())})
	if err == nil {
		err = keep()
	}
	if err != nil {
		return fmt.Errorf("starting run %s: %w", l.Run, err)
	}
	s := &fakeSession{unit: spec.Unit, state: domain.SessionGone}
	e.mu.Lock()
	e.sessions[l.Run] = s
	e.mu.Unlock()
	if e.OnStart != nil {
		if err := e.OnStart(l); err != nil {
			return fmt.Errorf("starting run %s: %w", l.Run, err)
		}
	}
	e.mu.Lock()
	s.state = domain.SessionAlive
	e.mu.Unlock()
	e.tell(l.Run)
	return nil
}

// Probe implements domain.Executor.
func (e *Executor) Probe(ctx context.Context, run string) (domain.Session, error) {
	if err := errors.Join(ctx.Err(), e.failing()); err != nil {
		return domain.Session{Run: run, State: domain.SessionUnknown}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.sessions[run]; s != nil {
		return domain.Session{Run: run, State: s.state, Unit: s.unit}, nil
	}
	return domain.Session{Run: run, State: domain.SessionGone}, nil
}

// List implements domain.Executor. Runs come oldest first, by their ids.
func (e *Executor) List(ctx context.Context) ([]domain.Session, error) {
	if err := errors.Join(ctx.Err(), e.failing()); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]domain.Session, 0, len(e.sessions))
	for run, s := range e.sessions {
		out = append(out, domain.Session{Run: run, State: s.state, Unit: s.unit})
	}
	slices.SortFunc(out, func(a, b domain.Session) int {
		if a.Run < b.Run {
			return -1
		}
		return 1
	})
	return out, nil
}

// Stop implements domain.Executor.
func (e *Executor) Stop(ctx context.Context, run string) error {
	if err := errors.Join(ctx.Err(), e.failing()); err != nil {
		return fmt.Errorf("stopping run %s: %w", run, err)
	}
	e.mu.Lock()
	e.stops = append(e.stops, run)
	s := e.sessions[run]
	alive := s != nil && s.state == domain.SessionAlive
	e.mu.Unlock()
	if !alive {
		return nil
	}
	if err := e.folder(run).MarkStopping(); err != nil {
		return err
	}
	return e.End(run, session.Record{Cause: session.CauseTerm, ServiceResult: "success", ExitCode: "exited", ExitStatus: "0"})
}

// Watch implements domain.Executor.
func (e *Executor) Watch(ctx context.Context, fn func(run string)) error {
	e.mu.Lock()
	id := e.next
	e.next++
	e.watchers[id] = fn
	e.mu.Unlock()
	<-ctx.Done()
	e.mu.Lock()
	delete(e.watchers, id)
	e.mu.Unlock()
	return ctx.Err()
}

func (e *Executor) failing() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}
