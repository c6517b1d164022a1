package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gaia/domain"
)

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
