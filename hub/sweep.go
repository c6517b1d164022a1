package hub

import (
	"context"
	"fmt"
	"time"

	"gaia/domain"
	"gaia/hub/store"
	"gaia/internal/log"
)

// SweepEvery is the time between two sweeps that a hub is made for.
const SweepEvery = time.Second

// jump is by how much two clocks may drift apart, or a sweep be late, before the hub takes it for a set clock, a suspend
// or a stopped process, during which nobody could renew a lease.
const jump = 5 * time.Second

// reading is one look at all clocks.
type reading struct {
	wall       time.Time
	mono, boot time.Duration
}

func (h *Hub) read() reading {
	return reading{h.clock.Now(), h.clock.Mono(), h.clock.Boot()}
}

// slept reports whether leases cannot be trusted, because between two readings the wall clock was set, the machine was
// suspended, or the hub did not run.
func slept(a, b reading) bool {
	mono, boot, wall := b.mono-a.mono, b.boot-a.boot, b.wall.Sub(a.wall)
	return mono > jump+SweepEvery || boot-mono > jump || (wall-boot).Abs() > jump
}

// Open gives every live lease a fresh lifetime: nobody could renew it while the hub was down. It must be called once,
// before the hub serves.
func (h *Hub) Open(ctx context.Context) error {
	if err := h.refresh(ctx); err != nil {
		return fmt.Errorf("renew the leases: %w", err)
	}
	h.mu.Lock()
	h.last = h.read()
	h.mu.Unlock()
	return nil
}

// refresh starts all counting anew: leases, and how long a conductor has been away.
func (h *Hub) refresh(ctx context.Context) error {
	now := h.now()
	h.mu.Lock()
	h.refused = false // what is refused from here on counts for the next time
	h.mu.Unlock()
	err := h.update(ctx, func(tx store.Tx) error {
		runs, err := tx.LiveRuns("")
		if err != nil {
			return err
		}
		for _, r := range runs {
			fresh := domain.At(now.Add(h.leases().Running))
			if r.State == domain.RunClaimed {
				// The longest life of a claim counts from its making, so that moves on, too.
				r.ClaimedAt, fresh = now, domain.At(now.Add(h.leases().Claim))
			}
			if con, err := tx.Conductor(r.Conductor); err == nil && !con.PartedAt.IsZero() {
				fresh = domain.At(now.Add(h.leases().Parting))
			}
			r.ClaimExpiresAt = fresh
			if err := tx.PutRun(r); err != nil {
				return err
			}
		}
		return nil
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.refused = true
		return err
	}
	h.awake = now
	return nil
}

// Sweep is one look at leases and conductors: it expires runs whose lease ran out while the hub was up, awake and able to
// write, and notes which conductors have gone.
func (h *Hub) Sweep(ctx context.Context) error {
	h.mu.Lock()
	last, swept, refused := h.last, h.swept, h.refused
	h.mu.Unlock()
	now := h.read()
	if jumped := slept(last, now); jumped || refused {
		if jumped {
			h.log.Warn().Str(log.MessageID, log.ClockJumped).Dur("monotonic", now.mono-last.mono).Dur("boot", now.boot-last.boot).Dur("wall", now.wall.Sub(last.wall)).
				Msg("a clock has jumped or the machine has slept; every lease starts anew")
		}
		if err := h.refresh(ctx); err != nil {
			return fmt.Errorf("renew the leases: %w", err)
		}
	}
	h.mu.Lock()
	h.last = now
	h.mu.Unlock()
	// From here on the time is the one that was looked at: what ran out while the machine slept after that look is for the
	// next one, which will see that it slept.
	at := domain.At(now.wall)
	due, err := h.due(ctx, at)
	if err != nil {
		return err
	}
	if due {
		if err := h.expire(ctx, at); err != nil {
			return err
		}
	}
	if now.mono-swept < time.Hour {
		return nil
	}
	h.mu.Lock()
	h.swept = now.mono
	h.mu.Unlock()
	if err := h.update(ctx, func(tx store.Tx) error { return tx.DropAnswers(now.wall.Add(-AnswerTTL)) }); err != nil {
		return fmt.Errorf("drop old answers: %w", err)
	}
	return h.store.Checkpoint(ctx)
}

// due reports, without a writing transaction, whether there is anything to expire.
func (h *Hub) due(ctx context.Context, now domain.Time) (bool, error) {
	due := false
	err := h.store.View(ctx, func(tx store.Tx) error {
		runs, err := tx.LiveRuns("")
		if err != nil {
			return err
		}
		for _, r := range runs {
			due = due || !r.ClaimExpiresAt.After(now.Time)
		}
		cons, _, err := tx.Conductors(store.Query{})
		for _, c := range cons {
			due = due || c.Status != h.status(c, now)
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("look at the leases: %w", err)
	}
	return due, nil
}

func (h *Hub) expire(ctx context.Context, now domain.Time) error {
	t := &tx{h: h, now: now}
	err := h.update(ctx, func(stx store.Tx) error {
		t.Tx = stx
		cons, _, err := t.Conductors(store.Query{})
		if err != nil {
			return err
		}
		for _, c := range cons {
			if s := h.status(c, t.now); s != c.Status {
				c.Status = s
				if err := t.saveConductor(&c, "conductor.status"); err != nil {
					return err
				}
			}
		}
		runs, err := t.LiveRuns("")
		if err != nil {
			return err
		}
		for _, r := range runs {
			if r.ClaimExpiresAt.After(t.now.Time) {
				continue
			}
			note := "its conductor did not renew the lease in time"
			if r.State == domain.RunClaimed {
				note = "it was claimed and never started"
			}
			if err := t.fail(&r, domain.RunExpired, domain.Failure{Reason: domain.ReasonMachineLost, Note: note}); err != nil {
				return err
			}
			k, err := t.Ticket(r.Ticket)
			if err != nil {
				return err
			}
			// Nobody else can tell of it: the conductor is away.
			t.tell = append(t.tell, func() {
				h.log.Warn().Str(log.MessageID, log.RunEnded).Str(log.Run, r.ID).Str(log.Ticket, k.Identifier).Str(log.Reason, string(r.EndReason)).Int("number", r.Number).
					Str("conductor", r.Conductor).Msg("the run's lease has expired: " + r.EndNote)
			})
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("expire leases: %w", err)
	}
	t.committed()
	return nil
}

// away is how long nothing was heard of a conductor while the hub was up and awake.
func (h *Hub) away(c domain.Conductor, now domain.Time) time.Duration {
	h.mu.Lock()
	since := h.awake
	h.mu.Unlock()
	if c.LastSeen.After(since.Time) {
		since = c.LastSeen
	}
	return now.Sub(since.Time)
}

// status is what a conductor is now. A clean stop is offline at once.
func (h *Hub) status(c domain.Conductor, now domain.Time) domain.ConductorStatus {
	switch {
	case !c.PartedAt.IsZero(), h.away(c, now) > h.limits().OfflineAfter:
		return domain.ConductorOffline
	case c.Draining:
		return domain.ConductorDraining
	}
	return domain.ConductorOnline
}
