package daemon

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"gaia/domain"
	"gaia/internal/log"
)

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
