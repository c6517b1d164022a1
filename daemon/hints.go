package daemon

import (
	"context"
	"time"

	"gaia/domain"
)

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
