package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/registry"
	"gaia/session"
)

func TestOneTicketFromClaimToClose(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set(func() { w.report.Footprint = domain.Footprint{TokensIn: 5, Model: "m"} })
	p := w.process()
	r := w.running(p, "SHOP-1")

	f := w.folder(r.ID)
	st, err := os.Stat(f.Path(session.FileToken))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	env, err := f.Env()
	require.NoError(t, err)
	require.Equal(t, "SHOP-1", env["GAIA_TICKET"])
	require.Equal(t, f.Path(session.FileToken), env["GAIA_TOKEN_FILE"])
	require.Equal(t, "gaia-run-shop-1.service", string(r.Unit))
	require.Equal(t, "script", string(r.Agent))
	require.Equal(t, "online, 1/2 running, hub ok", p.d.Status().Text)

	w.trees.SetStatus("SHOP-1", domain.TreeStatus{Head: "abc", Late: []string{"abc late commit"}})
	w.finish(r.ID)
	p.ticks(1)
	r = w.only()
	require.Equal(t, domain.RunDone, r.State)
	require.False(t, r.FinalizedAt.IsZero())
	require.Equal(t, "abc", string(r.EndSHA))
	require.Equal(t, []string{"abc late commit"}, w.hub.LateWork(r.ID))
	require.Equal(t, int64(5), r.Footprint.TokensIn)
	_, err = f.Token()
	require.ErrorIs(t, err, domain.ErrNotFound)
	reported, err := f.Reported()
	require.NoError(t, err)
	require.True(t, reported)
	require.Equal(t, "online, 0/2 running, hub ok", p.d.Status().Text)
}

func TestGraceAfterTheOwnWrite(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		then  func(w *world, run string)
		ticks int
		stop  bool // whether the conductor has ended the session
	}{
		{"still within", func(*world, string) {}, 1, false},
		{"over", func(*world, string) {}, 3, true},
		{"gone by itself", func(w *world, run string) { w.hosts.end(run, exited(0)) }, 1, false},
		{"the turn has ended", func(w *world, run string) {
			require.NoError(w.t, w.folder(run).WriteActivity(domain.Activity{Status: domain.ActivityIdle, Since: domain.At(w.clock.Now())}))
		}, 1, true},
		{"idle long before", func(w *world, run string) {
			require.NoError(w.t, w.folder(run).WriteActivity(domain.Activity{Status: domain.ActivityIdle, Since: domain.At(w.clock.Now().Add(-time.Minute))}))
		}, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p := w.process()
			r := w.running(p, "SHOP-1")
			require.NoError(t, w.hub.Move(r.ID, "done", "h"))
			c.then(w, r.ID)
			p.ticks(c.ticks)
			require.Equal(t, c.stop, w.hosts.stopped(r.ID))
		})
	}
}

func TestEveryOtherEndStopsAtOnce(t *testing.T) {
	t.Parallel()
	for state, reason := range map[domain.RunState]domain.Reason{domain.RunFailed: domain.ReasonSuperseded, domain.RunExpired: domain.ReasonMachineLost} {
		w := newWorld(t)
		p := w.process()
		r := w.running(p, "SHOP-1")
		w.hub.End(r.ID, state, reason)
		p.ticks(1)
		require.True(t, w.hosts.stopped(r.ID))
		require.False(t, w.only().FinalizedAt.IsZero())
	}
}

func TestADeadSessionIsReportedWithItsReason(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		end    func(w *world, run string)
		ticks  int
		reason domain.Reason
	}{
		{"agent exit", func(w *world, run string) { w.hosts.end(run, exited(3)) }, 1, domain.ReasonAgentExit},
		{"the profile knows better", func(w *world, run string) {
			w.set(func() { w.report.Reason = domain.ReasonLimited })
			w.hosts.end(run, exited(1))
		}, 1, domain.ReasonLimited},
		{"hook", func(w *world, run string) {
			w.hosts.end(run, &session.Record{Cause: session.CauseHook, Hook: "before_run"})
		}, 1, domain.ReasonHook},
		{"stopped from outside", func(w *world, run string) { w.hosts.end(run, &session.Record{Cause: session.CauseTerm}) }, 1, domain.ReasonSessionLost},
		{"no record, second listing", func(w *world, run string) { w.hosts.end(run, nil) }, 2, domain.ReasonSessionLost},
		{"no record, and a start mark that a power cut has emptied", func(w *world, run string) {
			w.hosts.end(run, nil)
			require.NoError(t, os.WriteFile(session.Folder(filepath.Join(w.runs, run)).Path(session.FileStarted), nil, 0o600))
			w.set(func() { w.boot = "boot-2" })
		}, 2, domain.ReasonSessionLost},
		{"no record, another boot", func(w *world, run string) {
			w.hosts.end(run, nil)
			w.set(func() { w.boot = "boot-2" })
		}, 1, domain.ReasonMachineLost},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p := w.process(func(c *Config) { c.Settings.MaxParallel = 1 })
			r := w.running(p, "SHOP-1")
			w.hub.SetDraining(true) // so that no second run begins
			c.end(w, r.ID)
			for i := range c.ticks {
				if i == c.ticks-1 && i > 0 {
					require.Equal(t, domain.RunRunning, w.only().State, "one listing is no proof")
				}
				p.ticks(1)
			}
			require.Equal(t, domain.RunFailed, w.only().State)
			require.Equal(t, c.reason, w.only().EndReason)
			p.ticks(1)
			require.False(t, w.only().FinalizedAt.IsZero())
		})
	}
}

func TestUnknownIsNeverDeath(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	r := w.running(p, "SHOP-1")
	w.hub.AddTicket("SHOP-2")
	w.hosts.mu.Lock()
	w.hosts.err = errors.New("bus away")
	w.hosts.mu.Unlock()
	p.ticks(20)
	require.Equal(t, domain.RunRunning, w.only().State, "nothing ended, nothing begun")
	require.Contains(t, p.d.Status().Text, "sessions cannot be listed: bus away")
	require.Contains(t, p.d.Status().Text, "1 sessions of unknown state")
	w.hosts.mu.Lock()
	w.hosts.err = nil
	w.hosts.mu.Unlock()
	p.ticks(1)
	require.Equal(t, []string{r.ID, w.hub.Runs()[1].ID}, w.hosts.alive())
}

func TestMassVanishIsOneLoudEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var log safeBuffer
	w.log = &log
	p := w.process(func(c *Config) { c.Settings.MaxParallel = 6 })
	for i := range 6 {
		w.hub.AddTicket(fmt.Sprintf("SHOP-%d", i+1))
	}
	p.ticks(1)
	require.Len(t, w.hosts.alive(), 6)
	w.hub.SetDraining(true)
	for _, run := range w.hosts.alive()[:4] {
		w.hosts.end(run, nil)
	}
	p.ticks(3)
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("4 of 6 runs vanished at once")))
	failed := 0
	for _, r := range w.hub.Runs() {
		if r.State == domain.RunFailed {
			failed++
			require.Equal(t, domain.ReasonSessionLost, r.EndReason)
		}
	}
	require.Equal(t, 4, failed)
}

func TestHubAwayForLongerThanEveryLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	r := w.running(p, "SHOP-1")
	w.hub.SetDown(true)
	for range 40 { // ten minutes, twice the lease
		p.ticks(1)
	}
	require.Equal(t, []string{r.ID}, w.hosts.alive(), "nothing is killed")
	require.Contains(t, p.d.Status().Text, "1 unconfirmed")
	require.Contains(t, p.d.Status().Text, "hub unreachable since")
	w.hub.SetDown(false)
	p.ticks(1)
	require.True(t, w.hosts.stopped(r.ID), "the hub says that the run is over")
	require.Equal(t, domain.RunExpired, w.hub.Runs()[0].State)
}

func TestAnEndWhileTheHubIsAwayIsReportedLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	r := w.running(p, "SHOP-1")
	w.hub.SetDraining(true)
	w.hub.SetDown(true)
	w.hosts.end(r.ID, exited(2))
	p.ticks(3)
	p.kill()
	p = w.process()
	p.ticks(2)
	w.hub.SetDown(false)
	p.ticks(2)
	require.Equal(t, domain.ReasonAgentExit, w.only().EndReason)
	require.False(t, w.only().FinalizedAt.IsZero())
}

func TestAQuickAgentWritesItsStateBeforeStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hosts.onAgent = func(run string) { w.finish(run) }
	w.hub.AddTicket("SHOP-1")
	p := w.process()
	p.ticks(2)
	r := w.only()
	require.Equal(t, domain.RunDone, r.State)
	require.False(t, r.FinalizedAt.IsZero())
	require.Equal(t, 1, w.hosts.started(r.ID))
}

func TestSlots(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process(func(c *Config) { c.Settings.MaxParallel = 1 })
	r := w.running(p, "SHOP-1")
	w.hub.AddTicket("SHOP-2")
	require.NoError(t, w.hub.Move(r.ID, "done", ""))
	p.ticks(1)
	require.Len(t, w.hub.Runs(), 1, "a session that lives on takes a slot, whatever the hub counts")
	require.Equal(t, 1, w.hub.LastBeat().CurrentLoad)
	p.ticks(3)
	require.Len(t, w.hub.Runs(), 2)

	w = newWorld(t)
	p = w.process(func(c *Config) { c.Settings.MaxParallel, c.Settings.Slots = 5, map[string]int{"todo": 2} })
	for i := range 4 {
		w.hub.AddTicket(fmt.Sprintf("SHOP-%d", i+1))
	}
	p.ticks(2)
	require.Len(t, w.hub.Runs(), 2, "slots of a state")
}

func TestNothingIsClaimedAndEverybodySeesWhy(t *testing.T) {
	t.Parallel()
	hooks := domain.Hooks{BeforeRun: domain.Hook{Script: "make deps", Timeout: time.Minute}}
	conf := []byte("schema = 1\nproject = \"SHOP\"\nslug = \"shop\"\n[hooks.before_run]\nrun = \"make deps\"\n")
	for _, c := range []struct {
		name       string
		begin, end func(w *world)
		why        string
	}{
		{"pressure", func(w *world) { w.pressure = "/ has 1 GiB free" }, func(w *world) { w.pressure = "" }, "/ has 1 GiB free"},
		{"no agent", func(w *world) { w.missing = errors.New("claude was not found") }, func(w *world) { w.missing = nil }, "claude was not found"},
		{"hooks", func(w *world) { w.trees.Commit("c1", map[string][]byte{registry.CheckoutFile: conf}) },
			func(w *world) { w.trusted[hooks.SHA256()] = true }, hooksNotTrusted},
		{"bad configuration", func(w *world) {
			w.trees.Commit("c1", map[string][]byte{registry.CheckoutFile: []byte("schema = 1\nprojcet = 1\n")})
		},
			func(w *world) { w.trees.SetBase("base") }, "projcet"},
		{"two skills", func(w *world) {
			w.trees.Commit("c1", map[string][]byte{registry.SkillsDir + "/x.md": []byte("---\nname: second\nworkflows: [gaia_task]\nstates: [todo]\n---\nDo.\n")})
		},
			func(w *world) { w.trees.SetBase("base") }, "only one may own it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.set(func() { c.begin(w) })
			w.hub.AddTicket("SHOP-1")
			p := w.process()
			p.ticks(3)
			require.Empty(t, w.hub.Runs())
			require.Contains(t, p.d.Status().Text, c.why)
			require.Contains(t, w.hub.LastBeat().Paused, c.why)
			w.set(func() { c.end(w) })
			p.ticks(2)
			require.Len(t, w.hub.Runs(), 1)
		})
	}
}

func TestHooksThatAFetchBringsUndoTheClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	conf := []byte("schema = 1\nproject = \"SHOP\"\nslug = \"shop\"\n[hooks.before_run]\nrun = \"make deps\"\n")
	w.trees.OnEnsure(func(domain.TreeRequest) error {
		w.trees.Commit("fetched", map[string][]byte{registry.CheckoutFile: conf})
		return nil
	})
	w.hub.AddTicket("SHOP-1")
	p := w.process()
	p.ticks(4)
	r := w.only()
	require.Equal(t, domain.ReasonUndone, r.EndReason)
	require.Zero(t, w.hub.Ticket("SHOP-1").Attempts)
	require.Zero(t, w.hosts.started(r.ID))
	require.Empty(t, w.hosts.alive())
	require.Contains(t, p.d.Status().Text, hooksNotTrusted)
}

func TestDispatchFailsWithItsReason(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		err    error
		reason domain.Reason
		hold   bool
	}{
		{"a holder", &domain.WorkspaceError{Hold: true, Err: errors.New("branch is checked out in /x")}, domain.ReasonWorkspace, true},
		{"disk", &domain.WorkspaceError{Err: errors.New("no space")}, domain.ReasonWorkspace, false},
	} {
		w := newWorld(t)
		w.trees.OnEnsure(func(domain.TreeRequest) error { w.hub.SetDraining(true); return c.err })
		w.hub.AddTicket("SHOP-1")
		p := w.process()
		p.ticks(2)
		r := w.only()
		require.Equal(t, c.reason, r.EndReason, c.name)
		require.Equal(t, c.err.Error(), r.EndNote)
		require.Equal(t, c.hold, w.hub.Ticket("SHOP-1").Hold != nil)
		require.Empty(t, w.hosts.alive(), "the waiting host is gone")
		require.False(t, r.FinalizedAt.IsZero())
	}
}

func TestAHookThatFailsBeforeTheAgentRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hosts.block = make(chan struct{})
	w.hub.AddTicket("SHOP-1")
	p := w.process()
	require.NoError(t, p.d.tick(context.Background()))
	w.hub.SetDraining(true)
	run := w.only().ID
	require.Eventually(t, func() bool { // tree and unit are made side by side
		_, err := w.folder(run).Tree()
		return err == nil && len(w.hosts.alive()) == 1
	}, time.Minute, time.Millisecond)
	w.hosts.end(run, &session.Record{Cause: session.CauseHook, Hook: "before_run", Note: "status 1"})
	p.d.workers.Wait()
	p.ticks(2)
	r := w.only()
	require.Equal(t, domain.ReasonHook, r.EndReason)
	require.Contains(t, r.EndNote, "before_run")
	require.False(t, r.FinalizedAt.IsZero())
	require.Zero(t, w.hosts.started(run))
}

func TestOneHangingStartHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	hang := make(chan struct{})
	w.trees.OnEnsure(func(r domain.TreeRequest) error {
		if r.Identifier == "SHOP-1" {
			<-hang
		}
		return nil
	})
	w.hub.AddTicket("SHOP-1")
	w.hub.AddTicket("SHOP-2")
	p := w.process()
	for range 4 { // no waiting for workers here
		require.NoError(t, p.d.tick(context.Background()))
		w.clock.Advance(DefaultTick)
	}
	require.Eventually(t, func() bool { return w.hub.Runs()[1].State == domain.RunRunning }, time.Minute, time.Millisecond)
	require.Equal(t, domain.RunClaimed, w.hub.Runs()[0].State)
	close(hang)
	p.d.workers.Wait()
	require.Equal(t, domain.RunRunning, w.hub.Runs()[0].State, "its claim was renewed meanwhile")
}

func TestDraining(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	r := w.running(p, "SHOP-1")
	w.hub.SetDraining(true)
	w.hub.AddTicket("SHOP-2")
	p.ticks(3)
	require.Contains(t, p.d.Status().Text, "draining, 1/2 running")
	w.finish(r.ID)
	p.ticks(2)
	require.Len(t, w.hub.Runs(), 1)
	p.kill()
	p = w.process()
	p.ticks(2)
	require.Len(t, w.hub.Runs(), 1, "draining survives a restart")
	w.hub.SetDraining(false)
	p.ticks(1)
	require.Len(t, w.hub.Runs(), 2)
}

func TestSuperseded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.process()
	r := w.running(old, "SHOP-1")
	w.hub.AddTicket("SHOP-2")
	newer := w.process(func(c *Config) { c.Settings.MaxParallel = 1 })
	newer.ticks(1)
	require.ErrorIs(t, old.d.Run(t.Context()), ErrSuperseded)
	require.Equal(t, "superseded, 1/2 running, hub refuses: heartbeat: superseded since", old.d.Status().Text[:len("superseded, 1/2 running, hub refuses: heartbeat: superseded since")])
	require.Equal(t, []string{r.ID}, w.hosts.alive(), "everything is left running")
	require.Zero(t, w.hub.Parted())
	require.Len(t, w.hub.Runs(), 1, "the newer one has adopted the run, which fills its slot")
}

func TestCleanStopTakesBackWhatHasNotBegun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	r := w.running(p, "SHOP-1")
	hang := make(chan struct{})
	w.trees.OnEnsure(func(domain.TreeRequest) error { <-hang; return errors.New("interrupted") })
	w.hub.AddTicket("SHOP-2")
	require.NoError(t, p.d.tick(context.Background()))
	require.Eventually(t, func() bool { return len(w.hosts.alive()) == 2 }, time.Minute, time.Millisecond)

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.d.Run(ctx) }()
	require.Eventually(t, func() bool { return p.heard("READY=1") }, time.Minute, time.Millisecond)
	cancel()
	require.Eventually(t, func() bool { return p.heard("STOPPING=1") }, time.Minute, time.Millisecond)
	close(hang)
	require.NoError(t, <-done)
	require.Equal(t, []string{r.ID}, w.hosts.alive(), "agents are left running")
	runs := w.hub.Runs()
	require.Equal(t, domain.RunRunning, runs[0].State)
	require.Equal(t, domain.ReasonUndone, runs[1].EndReason)
	require.Equal(t, 1, w.hub.Parted())
	require.Equal(t, []string{"EXTEND_TIMEOUT_USEC=9000000", "EXTEND_TIMEOUT_USEC=21000000", "EXTEND_TIMEOUT_USEC=9000000"},
		p.told("EXTEND_TIMEOUT_USEC="), "each part of the stop has its time")

	w.clock.Advance(50 * time.Minute)
	next := w.process()
	next.ticks(1)
	require.Equal(t, domain.RunRunning, w.hub.Runs()[0].State, "adopted")
	require.Equal(t, 1, w.hosts.started(r.ID))
}

func TestReadyWithoutAHub(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hub.SetDown(true)
	w.hub.AddTicket("SHOP-1")
	p := w.process()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.d.Run(ctx) }()
	require.Eventually(t, func() bool { return p.heard("READY=1") }, time.Minute, time.Millisecond)
	require.Contains(t, p.d.Status().Text, "hub unreachable since")
	w.hub.SetDown(false)
	p.d.Wake()
	require.Eventually(t, func() bool { return len(w.hosts.alive()) == 1 }, time.Minute, time.Millisecond)
	cancel()
	require.NoError(t, <-done)
}

func TestAUnitsEndWakesTheLoop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	r := w.running(p, "SHOP-1")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.d.Run(ctx) }()
	require.Eventually(t, func() bool { return p.heard("READY=1") && w.hosts.watched() }, time.Minute, time.Millisecond)
	w.hub.SetDraining(true)
	w.hosts.end(r.ID, exited(1)) // the clock stands still: only the hint can bring the tick
	require.Eventually(t, func() bool { return !w.only().FinalizedAt.IsZero() }, time.Minute, time.Millisecond)
	require.Equal(t, domain.ReasonAgentExit, w.only().EndReason)
	cancel()
	require.NoError(t, <-done)
}

func (h *hosts) watched() bool { h.mu.Lock(); defer h.mu.Unlock(); return len(h.watchers) > 0 }

func TestAnEventOfTheHubWakesTheLoop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.d.Run(ctx) }()
	require.Eventually(t, func() bool { return p.heard("READY=1") }, time.Minute, time.Millisecond)
	w.hub.AddTicket("SHOP-1") // whether the stream stands already or not
	require.Eventually(t, func() bool { return len(w.hosts.alive()) > 0 }, time.Minute, time.Millisecond)
	cancel()
	require.NoError(t, <-done)
}

// lateStream is a hub whose event stream stands only once it may.
type lateStream struct {
	domain.Remote
	may chan struct{}
}

func (l lateStream) Follow(ctx context.Context, after int64, fn func(domain.Event)) error {
	select {
	case <-l.may:
		return l.Remote.Follow(ctx, after, fn)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestWhatHappensBeforeTheStreamStandsIsSeenWhenItDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	may := make(chan struct{})
	p := w.process(func(c *Config) { c.Remote = lateStream{c.Remote, may} })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.d.Run(ctx) }()
	require.Eventually(t, func() bool { return p.heard("READY=1") }, time.Minute, time.Millisecond)
	require.Eventually(t, func() bool { return len(p.d.wakes) == 0 && p.d.Status().Hub == "ok" }, time.Minute, time.Millisecond)
	w.hub.AddTicket("SHOP-1") // the clock stands still, and the stream will not tell of it
	close(may)
	require.Eventually(t, func() bool { return len(w.hosts.alive()) > 0 }, time.Minute, time.Millisecond)
	cancel()
	require.NoError(t, <-done)
}

func TestSessionsThatTheHubDoesNotKnowAreKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var log safeBuffer
	w.log = &log
	p := w.process()
	r := w.running(p, "SHOP-1")
	w.hub.SetDraining(true)
	w.hub.Forget(r.ID)
	p.ticks(30)
	require.Equal(t, []string{r.ID}, w.hosts.alive())
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("it is left alone")))
	require.Equal(t, 1, p.d.Status().CurrentLoad, "it takes a slot")
}

func TestClockJumpsAndSuspends(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	r := w.running(p, "SHOP-1")
	w.clock.Set(w.clock.Now().Add(-48 * time.Hour))
	p.ticks(2)
	w.clock.Set(w.clock.Now().Add(96 * time.Hour))
	p.ticks(2)
	require.Equal(t, domain.RunRunning, w.only().State, "the wall clock decides nothing here")
	require.NotContains(t, p.d.Status().Text, "unconfirmed")

	w.hub.SetDown(true)
	w.clock.Suspend(10 * time.Minute)
	p.ticks(1)
	require.Contains(t, p.d.Status().Text, "1 unconfirmed", "a suspend counts")
	require.Equal(t, []string{r.ID}, w.hosts.alive())
}

func TestNoAgentIsLetOnAfterTheClaimsLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	hang, reached := make(chan struct{}), make(chan struct{})
	w.trees.OnEnsure(func(domain.TreeRequest) error { close(reached); <-hang; return nil })
	w.hub.AddTicket("SHOP-1")
	p := w.process()
	require.NoError(t, p.d.tick(context.Background()))
	<-reached
	w.trees.OnEnsure(nil)
	w.hub.SetDown(true)
	w.clock.Suspend(3 * time.Minute)
	close(hang)
	require.Eventually(t, func() bool { return p.d.Status().Text != "" && !p.d.busy() }, time.Minute, time.Millisecond)
	run := w.only().ID
	_, err := w.folder(run).Tree()
	require.ErrorIs(t, err, domain.ErrNotFound)
	require.Zero(t, w.hosts.started(run))
	w.hub.SetDown(false)
	p.ticks(4)
	require.Zero(t, w.hosts.started(run), "the hub has expired it")
	require.Equal(t, domain.RunExpired, w.hub.Runs()[0].State)
}

func (d *Conductor) busy() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.runs {
		if r.work != "" {
			return true
		}
	}
	return false
}

func TestStopRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	r := w.running(p, "SHOP-1")
	require.ErrorIs(t, p.d.StopRun("99"), domain.ErrNotFound)
	require.NoError(t, p.d.StopRun("SHOP-1"))
	p.ticks(2)
	require.Empty(t, w.hosts.alive())
	require.Equal(t, domain.ReasonStopped, w.only().EndReason)
	require.NotNil(t, w.hub.Ticket("SHOP-1").Hold)
	require.Equal(t, r.ID, w.only().ID)
}

func TestStalled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	r := w.running(p, "SHOP-1")
	w.hub.SetDraining(true)
	require.NoError(t, w.folder(r.ID).WriteActivity(domain.Activity{Status: domain.ActivityBlocked, Since: domain.At(w.clock.Now())}))
	w.set(func() { w.attached = true })
	p.ticks(70)
	require.Equal(t, domain.RunRunning, w.only().State, "somebody is attached")
	require.Equal(t, domain.ActivityBlocked, w.hub.LastBeat().Runs[0].Activity.Status)
	w.set(func() { w.attached = false })
	p.ticks(2)
	require.Equal(t, domain.ReasonStalled, w.only().EndReason)
	require.Empty(t, w.hosts.alive())
}

func TestAnAgentThatDoesNothingMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	r := w.running(p, "SHOP-1")
	w.hub.SetDraining(true)
	until := domain.At(w.clock.Now().Add(3 * time.Hour))
	require.NoError(t, w.folder(r.ID).WriteHalt(domain.Failure{Reason: domain.ReasonLimited, Note: "resets later", Until: until, Hold: true}))
	w.set(func() { w.attached = true })
	p.ticks(2)
	require.Equal(t, domain.RunRunning, w.only().State, "somebody is attached")
	w.set(func() { w.attached = false })
	p.ticks(2)
	require.Equal(t, domain.ReasonLimited, w.only().EndReason)
	require.Equal(t, "resets later", w.only().EndNote)
	ticket := w.hub.Ticket("SHOP-1")
	require.Equal(t, until, ticket.RetryAt)
	require.Nil(t, ticket.Hold, "an agent cannot hold its ticket")
	require.Empty(t, w.hosts.alive())
}

// The file is written from inside the run.
func TestAHaltIsReadWithCare(t *testing.T) {
	t.Parallel()
	f := session.Folder(t.TempDir())
	_, ok := halted(f)
	require.False(t, ok)
	for _, r := range domain.Reasons() {
		require.NoError(t, f.WriteHalt(domain.Failure{Reason: r, Note: strings.Repeat("é", 5000)}))
		h, ok := halted(f)
		require.Equal(t, slices.Contains(halts, r), ok, r)
		if ok {
			require.LessOrEqual(t, len(h.Note), maxHaltNote+2)
			require.True(t, utf8.ValidString(h.Note))
		}
	}
	require.NoError(t, os.WriteFile(f.Path(session.FileHalt), []byte("{"), 0o600))
	_, ok = halted(f)
	require.False(t, ok)
}

func TestAnAgentThatTellsNothingIsLookedAt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	r := w.running(p, "SHOP-1")
	w.hub.SetDraining(true)
	p.ticks(20)
	require.Equal(t, domain.RunRunning, w.only().State, "its profile knows nothing")
	w.set(func() {
		w.report = domain.AgentReport{Reason: domain.ReasonTrustPrompt, Note: "it asks"}
		w.attached = true
	})
	p.ticks(45)
	require.Equal(t, domain.RunRunning, w.only().State, "somebody is attached")
	working := func() {
		require.NoError(t, w.folder(r.ID).WriteActivity(domain.Activity{Status: domain.ActivityWorking, Since: domain.At(w.clock.Now())}))
	}
	working()
	w.set(func() { w.attached = false })
	p.ticks(45)
	require.Equal(t, domain.RunRunning, w.only().State, "it tells what it does")
	working()
	p.ticks(55)
	require.Equal(t, domain.RunRunning, w.only().State)
	p.ticks(20)
	require.Equal(t, domain.ReasonTrustPrompt, w.only().EndReason, "nothing new for long")
	require.Equal(t, "it asks", w.only().EndNote)
	require.Empty(t, w.hosts.alive())
}

func TestAnAgentThatNeverToldAnythingIsLookedAtSoon(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	w.running(p, "SHOP-1")
	w.hub.SetDraining(true)
	w.set(func() { w.report = domain.AgentReport{Reason: domain.ReasonTrustPrompt, Note: "it asks"} })
	p.ticks(6)
	require.Equal(t, domain.ReasonTrustPrompt, w.only().EndReason)
}

// Worktree and hooks may take long, and the agent is not asked why it was silent meanwhile.
func TestAnAgentThatWasLetInLateIsNotLookedAtAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	r := w.running(p, "SHOP-1")
	w.hub.SetDraining(true)
	w.set(func() { w.report = domain.AgentReport{Reason: domain.ReasonPromptNotDelivered} })
	w.clock.Advance(3 * time.Minute)
	require.NoError(t, w.folder(r.ID).MarkBegun(domain.At(w.clock.Now())))
	require.NoError(t, p.tick())
	require.Equal(t, domain.RunRunning, w.only().State)
	p.ticks(6)
	require.Equal(t, domain.ReasonPromptNotDelivered, w.only().EndReason)
}

func TestATurnThatEndedWithoutAMoveIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	r := w.running(p, "SHOP-1")
	w.hub.SetDraining(true)
	require.NoError(t, w.folder(r.ID).WriteActivity(domain.Activity{Status: domain.ActivityIdle, Since: domain.At(w.clock.Now())}))
	p.ticks(50)
	require.Equal(t, domain.RunRunning, w.only().State)
	p.ticks(20)
	require.Equal(t, domain.ReasonStalled, w.only().EndReason)
}

func TestATreeThatCannotBeSeenCountsAsUnpushed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	r := w.running(p, "SHOP-1")
	w.trees.FailInspect(errors.New("git is broken"))
	w.finish(r.ID)
	p.ticks(2)
	require.True(t, w.only().FinalizedAt.IsZero())
	p.ticks(2)
	require.False(t, w.only().FinalizedAt.IsZero())
}

func TestReloadKeepsTheLastGoodSettings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	next, bad := settings(), error(nil)
	p := w.process(func(c *Config) { c.Reload = func() (Settings, error) { return next, bad } })
	p.ticks(1)
	bad = errors.New("conductor.toml:3: unknown key maxparallel")
	require.ErrorIs(t, p.d.Reload(), bad)
	require.Contains(t, p.d.Status().Text, "unknown key maxparallel")
	require.Equal(t, 2, p.d.Status().MaxParallel)
	require.False(t, p.heard("READY=1"), "the service manager waits for the start still")
	require.True(t, p.d.becomesReady())
	require.False(t, p.d.becomesReady(), "once")
	bad, next.MaxParallel = nil, 7
	require.NoError(t, p.d.Reload())
	told := p.told("RELOADING=1", "READY=1")
	require.Len(t, told, 2)
	require.Equal(t, fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", w.clock.Mono().Microseconds()), told[0])
	require.Contains(t, told[1], "READY=1\nSTATUS=online, ")
	p.ticks(1)
	require.Equal(t, "online, 0/7 running, hub ok", p.d.Status().Text)
	require.Equal(t, 2, w.hub.Registrations())
}

// What a reload has taken away from the conductor is not claimed by the hub's older word of it.
func TestNothingIsClaimedBeforeTheHubHasHeardOfAReload(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	next := settings()
	next.States = []string{"review"}
	p := w.process(func(c *Config) { c.Reload = func() (Settings, error) { return next, nil } })
	p.ticks(1)
	require.NoError(t, p.d.Reload())
	w.hub.AddTicket("SHOP-1") // in another state
	p.d.mu.Lock()
	p.d.eager = true
	p.d.mu.Unlock()
	got, err := p.d.claimEagerly(t.Context())
	require.NoError(t, err)
	require.False(t, got)
	require.NoError(t, p.tick())
	require.Empty(t, w.hub.Runs())
}

// What is told of a ticket most likely means a start; an idle machine is not kept ready for one.
func TestAStartIsExpectedWhereATicketHasChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	p.ticks(3)
	require.Zero(t, p.expected.Load())
	w.hub.AddTicket("SHOP-1")
	p.d.mu.Lock()
	p.d.eager = true
	p.d.mu.Unlock()
	got, err := p.d.claimEagerly(t.Context())
	require.NoError(t, err)
	require.True(t, got)
	require.EqualValues(t, 1, p.expected.Load())
}

func TestTheWatchdogIsFedByProgressAloneAndTheStuckStepIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var log safeBuffer
	w.log = &log
	stuck := make(chan struct{})
	p := w.process(func(c *Config) {
		c.Watchdog = time.Minute
		step := c.step
		c.step = func(name string) error {
			if name == "asking the hub" {
				<-stuck
			}
			return step(name)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.d.Run(ctx) }()
	require.Eventually(t, func() bool {
		w.clock.Advance(time.Second)
		return bytes.Contains(log.Bytes(), []byte(`is stuck in \"asking the hub\"`))
	}, time.Minute, time.Millisecond)
	pings := p.count("WATCHDOG=1")
	for range 100 {
		w.clock.Advance(time.Second)
	}
	require.Equal(t, pings, p.count("WATCHDOG=1"))
	close(stuck)
	w.hub.SetDown(true) // the hub's absence is no lack of progress
	require.Eventually(t, func() bool {
		w.clock.Advance(5 * time.Second)
		return p.count("WATCHDOG=1") > pings+5
	}, time.Minute, time.Millisecond)
	cancel()
	require.NoError(t, <-done)
}

// told returns what the service manager was told that begins with one of these.
func (p *proc) told(begins ...string) (out []string) {
	p.saidMu.Lock()
	defer p.saidMu.Unlock()
	for _, v := range p.said {
		if slices.ContainsFunc(begins, func(s string) bool { return strings.HasPrefix(v, s) }) {
			out = append(out, v)
		}
	}
	return out
}

func (p *proc) count(s string) (n int) {
	p.saidMu.Lock()
	defer p.saidMu.Unlock()
	for _, v := range p.said {
		if v == s {
			n++
		}
	}
	return n
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}
func (s *safeBuffer) Bytes() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.b.Bytes())
}
