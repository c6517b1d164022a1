package daemon

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/session"
)

func TestTheLoopWaitsForWhatFallsDueAndForThatOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	r := w.running(p, "SHOP-1")
	require.Equal(t, DefaultTick, p.d.untilNext())

	require.NoError(t, w.hub.Move(r.ID, "done", "h"))
	w.clock.Advance(6 * time.Second)
	require.NoError(t, p.tick())
	require.Equal(t, 14*time.Second, p.d.untilNext(), "the grace counts from the state write")

	w.hub.SetDown(true)
	w.clock.Advance(14 * time.Second)
	require.NoError(t, p.tick())
	require.Equal(t, DefaultTick, p.d.untilNext(), "without the hub nothing can be done about it")
	w.hub.SetDown(false)
	require.NoError(t, p.tick())
	require.False(t, w.only().FinalizedAt.IsZero())
}

// An agent that tells what it does is looked at often once its state is written, so that its run ends with its turn.
func TestTheEndOfATurnIsSeenSoon(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	r := w.running(p, "SHOP-1")
	folder := session.Folder(filepath.Join(w.runs, r.ID))
	require.NoError(t, folder.WriteActivity(domain.Activity{Status: domain.ActivityWorking, Since: domain.At(w.clock.Now())}))
	require.NoError(t, w.hub.Move(r.ID, "done", "h"))
	require.NoError(t, p.tick())
	require.Equal(t, time.Second, p.d.untilNext())
	w.clock.Advance(time.Second)
	require.NoError(t, folder.WriteActivity(domain.Activity{Status: domain.ActivityIdle, Since: domain.At(w.clock.Now())}))
	p.ticks(1)
	require.True(t, w.hosts.stopped(r.ID))
}

func TestTheEndOfATicketsWaitIsNotSleptThrough(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	r := w.running(p, "SHOP-1")
	w.hosts.end(r.ID, exited(1))
	require.NoError(t, p.tick())
	require.NoError(t, p.tick())
	require.False(t, w.only().FinalizedAt.IsZero())
	require.Equal(t, 10*time.Second, p.d.untilNext())
	w.clock.Advance(10 * time.Second)
	require.NoError(t, p.tick())
	require.Len(t, w.hub.Runs(), 2)
	require.Equal(t, DefaultTick, p.d.untilNext())
}

func TestTheGraceDoesNotBeginAnewWithTheConductor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	r := w.running(p, "SHOP-1")
	w.hub.SetDraining(true)
	require.NoError(t, w.hub.Move(r.ID, "done", "h"))
	p.ticks(1)
	require.False(t, w.hosts.stopped(r.ID))
	p.kill()
	w.clock.Advance(DefaultGrace - DefaultTick)
	w.process().ticks(1)
	require.True(t, w.hosts.stopped(r.ID))
}

func TestAnAdoptedClaimIsTrustedForItsOwnLeaseAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	reached := make(chan struct{}, 1)
	block := func() (release chan struct{}) {
		release = make(chan struct{})
		w.trees.OnEnsure(func(domain.TreeRequest) error { reached <- struct{}{}; <-release; return nil })
		return release
	}
	release := block()
	w.hub.AddTicket("SHOP-1")
	p := w.process()
	require.NoError(t, p.d.tick(context.Background()))
	<-reached
	for range 20 { // the claim is renewed for longer than a running lease lives
		w.clock.Advance(DefaultTick)
		require.NoError(t, p.d.tick(context.Background()))
	}
	p.dead.Store(true)
	close(release)
	p.kill()

	release = block()
	next := w.process()
	require.NoError(t, next.d.tick(context.Background()))
	<-reached
	w.hub.SetDown(true)
	w.clock.Suspend(3 * time.Minute)
	close(release)
	require.Eventually(t, func() bool { return !next.d.busy() }, time.Minute, time.Millisecond)
	_, err := w.folder(w.only().ID).Tree()
	require.ErrorIs(t, err, domain.ErrNotFound)
}

func TestNotReadyBeforeAnythingIsKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hub.SetDown(true)
	w.hosts.fail(errors.New("no bus"))
	p := w.process()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.d.Run(ctx) }()
	require.Eventually(t, func() bool { return p.heard("STATUS=starting, 0/2 running, hub unreachable") }, time.Minute, time.Millisecond)
	p.d.Wake()
	require.False(t, p.heard("READY=1"))
	w.hosts.fail(nil)
	p.d.Wake()
	require.Eventually(t, func() bool { return p.heard("READY=1") }, time.Minute, time.Millisecond)
	cancel()
	require.NoError(t, <-done)
}

func (h *hosts) fail(err error) { h.mu.Lock(); defer h.mu.Unlock(); h.err = err }

// deadlines notes how long a hub has to hear something.
type deadlines struct {
	domain.Remote
	fail, parting time.Duration
}

func (r *deadlines) Fail(ctx context.Context, run string, f domain.Failure) (domain.Fate, error) {
	end, _ := ctx.Deadline()
	r.fail = time.Until(end)
	return r.Remote.Fail(ctx, run, f)
}

func (r *deadlines) Parting(ctx context.Context) error {
	end, _ := ctx.Deadline()
	r.parting = time.Until(end)
	return r.Remote.Parting(ctx)
}

func TestTakingBackAClaimDoesNotUseUpTheTimeOfTheParting(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var hub *deadlines
	p := w.process(func(c *Config) { hub = &deadlines{Remote: c.Remote}; c.Remote = hub })
	hang := make(chan struct{})
	w.trees.OnEnsure(func(domain.TreeRequest) error { <-hang; return errors.New("interrupted") })
	w.hub.AddTicket("SHOP-1")
	require.NoError(t, p.d.tick(context.Background()))
	require.Eventually(t, func() bool { return len(w.hosts.alive()) == 1 }, time.Minute, time.Millisecond)
	p.d.endWork()
	close(hang)
	require.NoError(t, p.d.stop())
	require.Equal(t, domain.ReasonUndone, w.only().EndReason)
	require.Greater(t, hub.fail, partingDeadline)
	require.Greater(t, hub.parting, partingDeadline/2)
	require.LessOrEqual(t, hub.parting, partingDeadline, "a time of its own")
}

func TestAFolderThatCannotBeReadHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var log safeBuffer
	w.log = &log
	p := w.process()
	r := w.running(p, "SHOP-1")
	p.kill()
	spec := w.folder(r.ID).Path(session.FileSpec)
	whole, err := os.ReadFile(spec)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(spec, []byte("{"), 0o600))
	// A mark that cannot be looked for.
	loop := filepath.Join(w.runs, "01890000-0000-7000-8000-000000000001")
	require.NoError(t, os.Mkdir(loop, 0o700))
	require.NoError(t, os.Symlink(session.FileSpec, filepath.Join(loop, session.FileSpec)))

	next := w.process()
	w.hub.AddTicket("SHOP-2")
	next.ticks(3)
	require.Len(t, w.hub.Runs(), 2, "others go on")
	require.Equal(t, 2, bytes.Count(log.Bytes(), []byte("is left alone until it can")))

	require.NoError(t, os.WriteFile(spec, whole, 0o600))
	w.finish(r.ID)
	next.ticks(2)
	require.False(t, w.hub.Runs()[0].FinalizedAt.IsZero(), "what can be read again is looked after again")
	for _, name := range []string{session.FileToken, session.FileEnv} {
		require.NoFileExists(t, w.folder(r.ID).Path(name))
	}
}

// deaf is a hub that does not hear of a run's close.
type deaf struct {
	domain.Remote
	times int
}

func (r *deaf) Finalise(ctx context.Context, run string, f domain.FinaliseReport) error {
	if r.times--; r.times >= 0 {
		return domain.ErrUnreachable
	}
	return r.Remote.Finalise(ctx, run, f)
}

func TestTheHubsAbsenceDoesNotMakeATreeUnpushed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process(func(c *Config) { c.Remote = &deaf{c.Remote, 5} })
	r := w.running(p, "SHOP-1")
	w.finish(r.ID)
	p.ticks(5)
	w.trees.FailInspect(errors.New("git is busy"))
	p.ticks(1)
	require.True(t, w.only().FinalizedAt.IsZero(), "looked at once more before it counts as unpushed")
	w.trees.FailInspect(nil)
	p.ticks(1)
	require.False(t, w.only().FinalizedAt.IsZero())
}
