package daemon

import (
	"context"
	"time"

	"gaia/internal/log"
)

// spares is the conductor's work on the spare worktrees. It is done while nothing else is, and ends at once when a run is to
// be started.
type spares struct {
	cancel context.CancelFunc // of the work that goes on, nil without one
	from   time.Duration      // Mono, before which nothing is done
	pause  time.Duration      // after the next failure
	said   string             // the failure that people have been told of
}

const (
	sparesQuiet    = 2 * time.Second // after the begin of a dispatch, whose agent has the machine for itself so long
	sparesPause    = time.Minute     // after a failure, doubled with each
	sparesMaxPause = 16 * time.Minute
)

// keepSpares has a goroutine of its own see to the spares. Where nothing is to be done it starts no process.
func (d *Conductor) keepSpares() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.spares.cancel != nil || d.stopping || d.cfg.Clock.Mono() < d.spares.from {
		return
	}
	for _, r := range d.runs {
		if r.work == workDispatch {
			return
		}
	}
	n, minFree, busy := d.settings.Spares, d.settings.MinFreeDisk, d.draining || d.paused != ""
	ctx, cancel := context.WithCancel(d.workCtx)
	d.spares.cancel = cancel
	d.workers.Go(func() {
		err := d.cfg.Workspace.KeepSpares(ctx, n, minFree, busy)
		d.mu.Lock()
		defer d.mu.Unlock()
		interrupted := ctx.Err() != nil
		cancel()
		d.spares.cancel = nil
		switch {
		case interrupted:
		case err == nil:
			d.spares.pause, d.spares.said = 0, ""
		default:
			d.spares.pause = min(max(2*d.spares.pause, sparesPause), sparesMaxPause)
			d.spares.from = d.cfg.Clock.Mono() + d.spares.pause
			if text := err.Error(); text != d.spares.said {
				d.spares.said = text
				d.cfg.Log.Warn().Str(log.MessageID, log.SparesLacking).Err(err).Msg("the spare worktrees are not as they should be; tickets get theirs in the ordinary way")
			}
		}
	})
}

// yieldSparesLocked ends the work on the spares, without waiting for it: a run is to be started.
func (d *Conductor) yieldSparesLocked() {
	d.spares.from = max(d.spares.from, d.cfg.Clock.Mono()+sparesQuiet)
	if d.spares.cancel != nil {
		d.spares.cancel()
	}
}
