package daemon

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"gaia/domain"
	"gaia/internal/log"
	"gaia/session"
)

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
