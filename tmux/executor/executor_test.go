package executor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/session"
	"gaia/tmux/executor"
	"gaia/units"
)

// manager is a user manager whose answers a test writes down. What a real one does is tested with the run's host.
type manager struct {
	mu    sync.Mutex
	units map[string]units.Status
	err   error
	stop  func(m *manager, unit string) error
	kills []string
	start []units.RunUnit
}

func (m *manager) StartTransient(_ context.Context, u units.RunUnit) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.start = append(m.start, u)
	return m.err
}

func (m *manager) Stop(_ context.Context, unit string) error { return m.stop(m, unit) }

func (m *manager) Kill(_ context.Context, unit string, sig int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kills = append(m.kills, unit+" "+syscall.Signal(sig).String())
	m.set(unit, "failed")
	return nil
}

func (m *manager) set(unit, active string) {
	st := m.units[unit]
	st.Active = active
	m.units[unit] = st
}

func (m *manager) ResetFailed(_ context.Context, unit string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.units[unit].Running() {
		delete(m.units, unit)
	}
	return m.err
}

func (m *manager) Status(_ context.Context, unit string) (units.Status, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if st, ok := m.units[unit]; ok || m.err != nil {
		return st, m.err
	}
	return units.Status{Name: unit, Load: "not-found", Active: "inactive"}, nil
}

func (m *manager) List(context.Context, ...string) ([]units.Status, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []units.Status
	for _, st := range m.units {
		out = append(out, units.Status{Name: st.Name, Load: st.Load, Active: st.Active})
	}
	return out, m.err
}

func (m *manager) Watch(ctx context.Context, match func(string) bool, fn func(string)) error {
	m.mu.Lock()
	names := []string{}
	for name := range m.units {
		names = append(names, name)
	}
	m.mu.Unlock()
	slices.Sort(names)
	for _, name := range names {
		if match(name) {
			fn(name)
		}
	}
	return ctx.Err()
}

func active(name, invocation string) units.Status {
	return units.Status{Name: name, Load: "loaded", Active: "active", InvocationID: invocation}
}

const (
	run1 = "01890000-0000-7000-8000-000000000001"
	run2 = "01890000-0000-7000-8000-000000000002"
	unit = "gaia-run-shop-7.service"
)

func newExecutor(t *testing.T) (*executor.Executor, *manager, string) {
	t.Helper()
	m := &manager{units: map[string]units.Status{}}
	runs := t.TempDir()
	return executor.New(executor.Config{Units: m, Names: units.Names{Prefix: "gaia"}, Instance: "shop", Runs: runs, Session: "/bin/gaia-session"}), m, runs
}

// folder makes the folder of run 7; with an invocation it has been started.
func folder(t *testing.T, runs, run, instance, invocation string) session.Folder {
	t.Helper()
	f, err := session.Create(filepath.Join(runs, run), session.Spec{Run: run, Instance: instance, Prefix: "gaia", Number: 7, Unit: "gaia-run-" + instance + "-7.service"}, "x")
	require.NoError(t, err)
	if invocation != "" {
		keep, err := f.MarkStarted(session.Started{Run: run, InvocationID: invocation})
		require.NoError(t, err)
		require.NoError(t, keep())
	}
	return f
}

func states(t *testing.T, e *executor.Executor) map[string]domain.SessionState {
	t.Helper()
	l, err := e.List(t.Context())
	require.NoError(t, err)
	out := map[string]domain.SessionState{}
	for _, s := range l {
		out[s.Run] = s.State
		if s.Unit != "" {
			p, err := e.Probe(t.Context(), s.Run)
			require.NoError(t, err)
			require.Equal(t, s, p)
		}
	}
	return out
}

// Numbers start again where a hub was set up anew: then a unit's name is that of two runs, and only one of them lives.
func TestUnitOfTheSameName(t *testing.T) {
	t.Parallel()
	e, m, runs := newExecutor(t)
	folder(t, runs, run1, "shop", "old")
	folder(t, runs, run2, "shop", "new")
	m.units[unit] = active(unit, "new")
	require.Equal(t, map[string]domain.SessionState{run1: domain.SessionGone, run2: domain.SessionAlive}, states(t, e))
	require.NoError(t, e.Stop(t.Context(), run1))
	require.Contains(t, m.units, unit, "the other run's unit is not stopped")
	stopping, err := session.Folder(filepath.Join(runs, run1)).Stopping()
	require.NoError(t, err)
	require.False(t, stopping)
}

// A unit that has just begun has no start mark yet, and must not be taken for an older run's.
func TestUnitThatBegins(t *testing.T) {
	t.Parallel()
	e, m, runs := newExecutor(t)
	folder(t, runs, run1, "shop", "old")
	folder(t, runs, run2, "shop", "")
	m.units[unit] = active(unit, "new")
	require.Equal(t, map[string]domain.SessionState{run1: domain.SessionGone, run2: domain.SessionAlive}, states(t, e))
	m.units[unit] = active(unit, "old")
	require.Equal(t, map[string]domain.SessionState{run1: domain.SessionAlive, run2: domain.SessionGone}, states(t, e))
}

// Only this instance's runs are listed, and a name that begins like it is another's.
func TestOtherInstances(t *testing.T) {
	t.Parallel()
	e, m, runs := newExecutor(t)
	folder(t, runs, run1, "shop", "a")
	folder(t, runs, run2, "shop-2", "b")
	other := "gaia-run-shop-2-7.service"
	m.units[unit], m.units[other] = active(unit, "a"), active(other, "b")
	_, err := session.Reserve(filepath.Join(runs, "01890000-0000-7000-8000-000000000003"), "x")
	require.NoError(t, err)
	require.Equal(t, map[string]domain.SessionState{run1: domain.SessionAlive}, states(t, e))
	var seen []string
	_ = e.Watch(t.Context(), func(run string) { seen = append(seen, run) })
	require.Equal(t, []string{run1}, seen)
}

// A power cut may leave a start mark without content. It says nothing of whose a unit is that runs, and that nobody's does
// where none runs: a run that stayed unknown would never end.
func TestDamagedStartMark(t *testing.T) {
	t.Parallel()
	e, m, runs := newExecutor(t)
	f := folder(t, runs, run1, "shop", "a")
	require.NoError(t, os.WriteFile(f.Path(session.FileStarted), nil, 0o600))
	m.units[unit] = active(unit, "a")
	s, err := e.Probe(t.Context(), run1)
	require.Error(t, err)
	require.Equal(t, domain.SessionUnknown, s.State)
	delete(m.units, unit)
	require.Equal(t, map[string]domain.SessionState{run1: domain.SessionGone}, states(t, e))
	require.NoError(t, e.Stop(t.Context(), run1))
	require.ErrorContains(t, e.Start(t.Context(), domain.Launch{Run: run1, Number: 7, Folder: string(f)}), "JSON")
}

// Where numbers have started again, the unit of its name is the one that another run's mark tells of; before that mark is
// there, only the run with the damaged one is unknown.
func TestDamagedStartMarkAndAUnitOfTheSameName(t *testing.T) {
	t.Parallel()
	e, m, runs := newExecutor(t)
	f := folder(t, runs, run1, "shop", "old")
	require.NoError(t, os.WriteFile(f.Path(session.FileStarted), nil, 0o600))
	folder(t, runs, run2, "shop", "")
	m.units[unit] = active(unit, "new")
	l, err := e.List(t.Context())
	require.NoError(t, err)
	require.ElementsMatch(t, []domain.Session{
		{Run: run1, State: domain.SessionUnknown, Unit: unit}, {Run: run2, State: domain.SessionAlive, Unit: unit},
	}, l)
	require.NoError(t, os.RemoveAll(filepath.Join(runs, run2)))
	folder(t, runs, run2, "shop", "new")
	require.Equal(t, map[string]domain.SessionState{run1: domain.SessionGone, run2: domain.SessionAlive}, states(t, e))
	require.NoError(t, e.Stop(t.Context(), run1))
	require.Contains(t, m.units, unit)
}

// What cannot be read is unknown, for that run alone.
func TestDamagedFolder(t *testing.T) {
	t.Parallel()
	e, m, runs := newExecutor(t)
	f := folder(t, runs, run1, "shop", "a")
	folder(t, runs, run2, "shop", "")
	require.NoError(t, os.WriteFile(f.Path(session.FileSpec), []byte("{"), 0o600))
	require.Equal(t, map[string]domain.SessionState{run1: domain.SessionUnknown, run2: domain.SessionGone}, states(t, e))
	s, err := e.Probe(t.Context(), run1)
	require.Error(t, err)
	require.Equal(t, domain.SessionUnknown, s.State)
	require.Error(t, e.Stop(t.Context(), run1))
	require.Empty(t, m.kills)

	require.NoError(t, os.WriteFile(filepath.Join(runs, run2, session.FileStarted), []byte("{"), 0o600))
	err = e.Start(t.Context(), domain.Launch{Run: run2, Number: 7, Folder: filepath.Join(runs, run2)})
	require.Error(t, err)
	require.NotErrorIs(t, err, domain.ErrExists)
	require.Empty(t, m.start, "whether it was started is not known, so it is not started")
}

// A run whose folder was removed may still live: nobody may call it gone while a unit runs that no folder explains.
func TestFolderRemoved(t *testing.T) {
	t.Parallel()
	e, m, runs := newExecutor(t)
	f := folder(t, runs, run1, "shop", "a")
	m.units[unit] = active(unit, "a")
	require.Equal(t, map[string]domain.SessionState{run1: domain.SessionAlive}, states(t, e))
	require.NoError(t, os.RemoveAll(string(f)))
	s, err := e.Probe(t.Context(), run1)
	require.ErrorContains(t, err, "systemctl --user stop "+unit)
	require.Equal(t, domain.SessionUnknown, s.State)
	require.Error(t, e.Stop(t.Context(), run1))
	delete(m.units, unit)
	s, err = e.Probe(t.Context(), run1)
	require.NoError(t, err)
	require.Equal(t, domain.SessionGone, s.State)
}

// A unit that does not stop is killed when its time is over, and no sooner.
func TestStopKills(t *testing.T) {
	t.Parallel()
	e, m, runs := newExecutor(t)
	folder(t, runs, run1, "shop", "a")
	m.units[unit] = active(unit, "a")
	synctest.Test(t, func(t *testing.T) {
		begun := make(chan struct{})
		m.stop = func(*manager, string) error { close(begun); <-t.Context().Done(); return t.Context().Err() }
		require.NoError(t, e.Stop(context.Background(), run1))
		<-begun
		require.Equal(t, []string{unit + " killed"}, m.kills)
	})
	require.NotContains(t, m.units, unit, "and forgotten")
	stopping, err := session.Folder(filepath.Join(runs, run1)).Stopping()
	require.NoError(t, err)
	require.True(t, stopping)
}

// What the stop job says is not believed: the unit itself is looked at.
func TestStopLooks(t *testing.T) {
	t.Parallel()
	e, m, runs := newExecutor(t)
	folder(t, runs, run1, "shop", "a")
	m.units[unit] = active(unit, "a")
	m.stop = func(m *manager, unit string) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.set(unit, "failed")
		return errors.New("the job was cancelled")
	}
	require.NoError(t, e.Stop(t.Context(), run1))
	require.Empty(t, m.kills)

	m.units[unit] = active(unit, "a")
	m.stop = func(*manager, string) error { return errors.New("the bus is away") }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := e.Stop(ctx, run1)
	require.ErrorIs(t, err, context.Canceled)
	require.Contains(t, m.units, unit)
}

func TestNoRunIDs(t *testing.T) {
	t.Parallel()
	e, _, _ := newExecutor(t)
	for _, run := range []string{"", ".", "..", "../x", "a/b"} {
		_, err := e.Probe(t.Context(), run)
		require.ErrorIs(t, err, domain.ErrInvalid, run)
		require.ErrorIs(t, e.Stop(t.Context(), run), domain.ErrInvalid, run)
	}
}

// What starts a unit is a program, a word and a path.
func TestLaunch(t *testing.T) {
	t.Parallel()
	e, m, runs := newExecutor(t)
	f := folder(t, runs, run1, "shop", "")
	l := domain.Launch{Run: run1, Number: 7, Folder: string(f), Description: "Gaia run", Limits: domain.RunLimits{TasksMax: 9}}
	require.NoError(t, e.Start(t.Context(), l))
	require.Equal(t, []units.RunUnit{{
		Name: unit, Description: "Gaia run", Slice: "gaia.slice", Limits: l.Limits,
		ExecStart: []string{"/bin/gaia-session", "host", string(f)}, ExecStopPost: []string{"/bin/gaia-session", "post", string(f)},
	}}, m.start)
}
