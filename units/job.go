package units

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"gaia/domain"
)

// jobTimeout bounds the wait for a start or stop of a unit whose own limits are finite. Systemd's limits come first.
const jobTimeout = 5 * time.Minute

// JobError says that the manager did what was asked, without success.
type JobError struct {
	Op   string // start, stop, restart
	Unit string
	Job  string // the job's result: failed, timeout, canceled, dependency, skipped, …
	// Result is the unit's own result where it was still to be read: exit-code, signal, start-limit-hit, …
	Result string
	Code   int32 // as Status.ExecMainCode
	Status int32 // as Status.ExecMainStatus
}

func (e *JobError) Error() string {
	why := cmp.Or(e.Result, "no result")
	switch {
	case e.Code == 1 && e.Status != 0:
		why += fmt.Sprintf(", exit status %d", e.Status)
	case e.Code == 2 || e.Code == 3:
		why += fmt.Sprintf(", signal %d", e.Status)
	}
	mend := "see: journalctl --user -u " + e.Unit
	if e.Result == "start-limit-hit" {
		mend += "; then: systemctl --user reset-failed " + e.Unit
	}
	return fmt.Sprintf("%s %s: the job ended as %q (%s); %s", e.Op, e.Unit, e.Job, why, mend)
}

// Start starts a unit and waits until it is up.
func (m *Manager) Start(ctx context.Context, unit string) error {
	return m.job(ctx, "start", "StartUnit", unit)
}

// Stop stops a unit and waits until it is down. It is no error if it is not loaded.
func (m *Manager) Stop(ctx context.Context, unit string) error {
	err := m.job(ctx, "stop", "StopUnit", unit)
	if errors.Is(err, domain.ErrNotFound) {
		return nil
	}
	return err
}

// Restart stops a unit if it runs, starts it and waits until it is up. It starts by the unit file as it is now: that of an
// upgrade is read before.
func (m *Manager) Restart(ctx context.Context, unit string) error {
	s, err := m.Status(ctx, unit)
	if err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	if s.NeedDaemonReload {
		if err := m.Reload(ctx); err != nil {
			return fmt.Errorf("restart %s: %w", unit, err)
		}
	}
	return m.job(ctx, "restart", "RestartUnit", unit)
}

func (m *Manager) job(ctx context.Context, op, method, unit string) error {
	if err := checkUnit(unit); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	ctx, cancel := context.WithTimeout(ctx, jobTimeout)
	defer cancel()
	return m.await(ctx, op, unit, func() *dbus.Call { return m.link.call(ctx, method, unit, "replace") })
}

// await queues a job and waits for its end.
func (m *Manager) await(ctx context.Context, op, unit string, queue func() *dbus.Call) error {
	var before unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &before); err != nil {
		return fmt.Errorf("%s %s: read the clock: %w", op, unit, err)
	}
	ends := m.jobs.listen(unit) // before the call, so that the end of a quick job is not missed
	defer m.jobs.forget(ends)
	var job dbus.ObjectPath
	if err := queue().Store(&job); err != nil {
		return m.refused(op, unit, err)
	}
	result, err := ends.wait(ctx, m.link.Context(), job)
	if err != nil {
		return fmt.Errorf("%s %s: wait for the job: %w", op, unit, err)
	}
	if result == "done" {
		return nil
	}
	e := &JobError{Op: op, Unit: unit, Job: result}
	if s, err := m.Status(ctx, unit); err == nil { // else the job's own result has to do
		e.Result, e.Code, e.Status = s.Result, s.ExecMainCode, s.ExecMainStatus
		// A start that the limit forbids leaves the result of the one before.
		if result == "failed" && s.mainStart > 0 && s.mainStart < time.Duration(before.Nano()) {
			e.Result, e.Code, e.Status = "start-limit-hit", 0, 0
		}
	}
	return e
}

// refused words a job that was not even queued.
func (m *Manager) refused(op, unit string, err error) error {
	switch errName(err) {
	case errLoadFailed, errBadSetting:
		return fmt.Errorf("%s %s: the unit file is broken: %w; see: systemd-analyze --user verify %s", op, unit, err, unit)
	case errUnitMasked:
		return fmt.Errorf("%s %s: %w; undo with: systemctl --user unmask %s", op, unit, err, unit)
	}
	return fmt.Errorf("%s %s: %w", op, unit, known(err))
}

// errManagerLeft: the manager was executed anew, so that the ends of earlier jobs are not to be heard of any more.
var errManagerLeft = errors.New("the user manager was restarted")

// ownerChanged asks for the manager's coming and going on the bus.
var ownerChanged = []dbus.MatchOption{
	dbus.WithMatchSender(busName), dbus.WithMatchInterface(busName), dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, systemdName),
}

// isOwnerChanged reports whether a signal says that the manager came or went.
func isOwnerChanged(s *dbus.Signal) bool {
	if s.Name != busName+".NameOwnerChanged" || len(s.Body) == 0 {
		return false
	}
	name, _ := s.Body[0].(string)
	return name == systemdName
}

// jobs hands the ends of jobs to those who wait for them. It is called by the connection's reader and never blocks it.
type jobs struct {
	mu      sync.Mutex
	waiting map[*jobEnds]struct{}
}

// jobEnds collects the ended jobs of one unit.
type jobEnds struct {
	unit  string
	mu    sync.Mutex
	ended map[dbus.ObjectPath]string
	left  bool
	wake  chan struct{} // capacity 1
}

func newJobs() *jobs { return &jobs{waiting: map[*jobEnds]struct{}{}} }

func (j *jobs) listen(unit string) *jobEnds {
	e := &jobEnds{unit: unit, ended: map[dbus.ObjectPath]string{}, wake: make(chan struct{}, 1)}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.waiting[e] = struct{}{}
	return e
}

func (j *jobs) forget(e *jobEnds) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.waiting, e)
}

// DeliverSignal implements dbus.SignalHandler.
func (j *jobs) DeliverSignal(_, _ string, s *dbus.Signal) {
	left := isOwnerChanged(s)
	var path dbus.ObjectPath
	var unit, result string
	if !left {
		if s.Name != managerIface+".JobRemoved" || len(s.Body) < 4 {
			return
		}
		path, _ = s.Body[1].(dbus.ObjectPath)
		unit, _ = s.Body[2].(string)
		result, _ = s.Body[3].(string)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for e := range j.waiting {
		if left || e.unit == unit {
			e.add(path, result, left)
		}
	}
}

func (e *jobEnds) add(path dbus.ObjectPath, result string, left bool) {
	e.mu.Lock()
	if left {
		e.left = true
	} else {
		e.ended[path] = result
	}
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *jobEnds) wait(ctx, conn context.Context, job dbus.ObjectPath) (string, error) {
	for {
		e.mu.Lock()
		result, ok := e.ended[job]
		left := e.left
		e.mu.Unlock()
		switch {
		case ok:
			return result, nil
		case left:
			return "", errManagerLeft
		}
		select {
		case <-e.wake:
		case <-conn.Done():
			return "", dbus.ErrClosed
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}
