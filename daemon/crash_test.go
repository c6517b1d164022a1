package daemon

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gaia/domain"
	"gaia/session"
)

// invariants holds at any moment, whatever has crashed.
func (w *world) invariants(t require.TestingT) {
	w.hosts.mu.Lock()
	defer w.hosts.mu.Unlock()
	for run, n := range w.hosts.agents {
		require.LessOrEqual(t, n, 1, "run %s has one session for ever", run)
	}
	for ticket, n := range w.hosts.most {
		require.LessOrEqual(t, n, 1, "%s has one agent at a time", ticket)
	}
}

// settled holds when everything is over.
func (w *world) settled(t require.TestingT, tickets ...string) {
	w.invariants(t)
	require.Empty(t, w.hosts.alive(), "no session is left")
	for _, r := range w.hub.Runs() {
		require.True(t, r.State.Ended(), "run %d is %s", r.Number, r.State)
		require.False(t, r.FinalizedAt.IsZero(), "run %d (%s) is closed", r.Number, r.State)
		f := w.folder(r.ID)
		_, err := f.Token()
		require.ErrorIs(t, err, domain.ErrNotFound, "the token of run %d is gone", r.Number)
	}
	for _, id := range tickets {
		require.Equal(t, "done", w.hub.Ticket(id).State, id)
	}
	folders, err := session.Folders(w.runs)
	require.NoError(t, err)
	for _, f := range folders {
		reported, err := f.Reported()
		require.NoError(t, err)
		if _, err := f.Load(); err == nil {
			require.True(t, reported, "run folder %s waits for nothing", f)
		}
	}
}

// quiet reports whether nothing more is to come.
func (w *world) quiet(tickets []string) bool {
	for _, r := range w.hub.Runs() {
		if r.FinalizedAt.IsZero() {
			return false
		}
	}
	for _, id := range tickets {
		if w.hub.Ticket(id).State != "done" {
			return false
		}
	}
	return true
}

// drive has a process and the agents work until everything is over, the process has died or the rounds are used up.
func (w *world) drive(t require.TestingT, p *proc, rounds int) {
	for range rounds {
		if err := p.tick(); p.dead.Load() {
			return
		} else {
			require.NoError(t, err)
		}
		w.invariants(t)
		w.work()
		w.clock.Advance(DefaultTick)
		if w.quiet([]string{"SHOP-1"}) {
			return
		}
	}
}

// TestEveryStepInterrupted kills the process before and after the effect of each of its calls and before each of its
// steps, one after the other, and starts another one over what is left: one session per run, none lost, none doubled.
func TestEveryStepInterrupted(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		for at := int64(1); ; at++ {
			w := newWorld(t)
			w.hub.AddTicket("SHOP-1")
			p := w.process()
			p.crashAt, p.crashAfter = at, after
			w.drive(t, p, 6)
			if !p.dead.Load() {
				require.Greater(t, at, int64(20), "the test has met all steps of a run")
				w.settled(t, "SHOP-1")
				break
			}
			name := fmt.Sprintf("call %d (%v, after its effect: %v)", at, p.where.Load(), after)
			w.clock.Advance(20 * time.Second)
			p = w.process()
			w.drive(t, p, 50)
			w.settled(named{t, name}, "SHOP-1")
			done := 0
			for _, r := range w.hub.Runs() {
				if r.State == domain.RunDone {
					done++
				}
				require.Contains(t, []domain.Reason{"", domain.ReasonUndone}, r.EndReason, name)
			}
			require.Equal(t, 1, done, name)
			p.kill()
		}
	}
}

type named struct {
	t    *testing.T
	name string
}

func (n named) Errorf(format string, a ...any) { n.t.Errorf(n.name+": "+format, a...) }
func (n named) FailNow()                       { n.t.FailNow() }

// TestAnyOrderOfTroubles lets processes die anywhere while hub, bus, sessions and clocks fail in any order. When the
// troubles end, every run is closed and every ticket gets done.
func TestAnyOrderOfTroubles(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		var tickets []string
		for i := range rapid.IntRange(1, 3).Draw(rt, "tickets") {
			tickets = append(tickets, fmt.Sprintf("SHOP-%d", i+1))
			w.hub.AddTicket(tickets[i])
		}
		p := w.process()
		for range rapid.IntRange(1, 12).Draw(rt, "rounds") {
			switch rapid.SampledFrom([]string{"", "", "work", "crash", "crash after", "restart", "down", "up", "blind", "sight", "vanish", "exit", "suspend", "jump", "person"}).Draw(rt, "trouble") {
			case "work":
				w.work()
			case "crash", "crash after":
				p.kill()
				p = w.process()
				p.crashAt, p.crashAfter = rapid.Int64Range(1, 40).Draw(rt, "at"), rapid.Bool().Draw(rt, "after")
			case "restart":
				p.kill()
				p = w.process()
			case "down":
				w.hub.SetDown(true)
			case "up":
				w.hub.SetDown(false)
			case "blind":
				w.hosts.blind(domain.ErrUnreachable)
			case "sight":
				w.hosts.blind(nil)
			case "vanish":
				for _, run := range w.hosts.alive() {
					w.hosts.end(run, nil)
				}
			case "exit":
				for _, run := range w.hosts.alive() {
					w.hosts.end(run, exited(1))
				}
			case "suspend":
				w.clock.Suspend(time.Duration(rapid.IntRange(1, 900).Draw(rt, "seconds")) * time.Second)
			case "jump":
				w.clock.Set(w.clock.Now().Add(time.Duration(rapid.IntRange(-300, 300).Draw(rt, "seconds")) * time.Second))
			case "person":
				for _, r := range w.hub.Runs() {
					w.hub.Stop(r.ID)
				}
			}
			_ = p.tick()
			if p.dead.Load() {
				p = w.process()
			}
			w.invariants(rt)
			w.clock.Advance(DefaultTick)
		}
		w.hub.SetDown(false)
		w.hosts.blind(nil)
		p.kill()
		p = w.process()
		w.hub.ResumeAll()
		for range 80 {
			w.drive(rt, p, 1)
			w.hub.ResumeAll()
			if w.quiet(tickets) {
				break
			}
		}
		w.settled(rt, tickets...)
		p.kill()
	})
}

func (h *hosts) blind(err error) { h.mu.Lock(); defer h.mu.Unlock(); h.err = err }
