package daemon

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func withSpares(n int) func(*Config) { return func(c *Config) { c.Settings.Spares = n } }

func TestSparesAreKeptWhenNothingElseIsToBeDone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	type call struct {
		n    int
		busy bool
	}
	var last atomic.Pointer[call]
	w.trees.OnSpares(func(_ context.Context, n int, busy bool) error { last.Store(&call{n, busy}); return nil })
	asked := func(p *proc) *call {
		last.Store(nil)
		require.NoError(t, p.tick())
		return last.Load()
	}
	p := w.process(withSpares(2))
	require.Equal(t, &call{2, false}, asked(p))
	w.set(func() { w.pressure = "memory" })
	require.Equal(t, &call{2, true}, asked(p))
	w.set(func() { w.pressure = "" })
	w.hub.SetDraining(true)
	require.Equal(t, &call{2, true}, asked(p))
	w.hub.SetDraining(false)

	w.hub.AddTicket("SHOP-1")
	require.Nil(t, asked(p), "a run was started in this tick")
	require.Nil(t, asked(p), "its agent has just begun")
	require.LessOrEqual(t, p.d.untilNext(), sparesQuiet)
	w.clock.Advance(sparesQuiet)
	require.Equal(t, &call{2, false}, asked(p))
}

func TestAClaimInterruptsTheWorkOnSpares(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var log safeBuffer
	w.log = &log
	begun, ended := make(chan struct{}), make(chan error, 1)
	w.trees.OnSpares(func(ctx context.Context, _ int, _ bool) error {
		close(begun)
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	})
	p := w.process(withSpares(1))
	require.NoError(t, p.d.tick(t.Context()))
	<-begun
	require.NoError(t, p.d.tick(t.Context()), "the next tick neither waits nor begins it again")
	w.hub.AddTicket("SHOP-1")
	require.NoError(t, p.d.tick(t.Context()))
	require.ErrorIs(t, <-ended, context.Canceled)
	p.d.workers.Wait()
	require.Contains(t, w.hosts.alive(), w.only().ID)
	require.NotContains(t, string(log.Bytes()), "spare", "an interruption is no failure")
}

func TestFailuresWithSparesAreToldOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var log safeBuffer
	w.log = &log
	n := 0
	w.trees.OnSpares(func(context.Context, int, bool) error { n++; return errors.New("somebody's file is in it") })
	p := w.process(withSpares(1))
	p.ticks(40) // ten minutes
	require.Equal(t, 4, n, "at once, and after 1, 3 and 7 minutes")
	require.Equal(t, 1, strings.Count(string(log.Bytes()), "somebody's file is in it"))
}
