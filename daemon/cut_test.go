package daemon

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/domain"
)

// What a tick meets that is cut off by the conductor's own end.
type (
	cutHub     struct{ domain.Remote }
	cutUnits   struct{ domain.Executor }
	cutMachine struct{ Machine }
)

func (cutUnits) List(ctx context.Context) ([]domain.Session, error) { return nil, ctx.Err() }

func (cutHub) Heartbeat(ctx context.Context, _ domain.Beat) (domain.Pulse, error) {
	return domain.Pulse{}, ctx.Err()
}

func (cutMachine) Environment(ctx context.Context, _ string, _ map[string]string) (map[string]string, error) {
	return nil, ctx.Err()
}

// A conductor that is stopped in the middle of a tick does not blame the hub or the machine for it.
func TestAStopIsNoTrouble(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var log safeBuffer
	w.log = &log
	p := w.process()
	p.ticks(1)
	p.d.cfg.Remote, p.d.cfg.Executor, p.d.cfg.Machine = cutHub{p.d.cfg.Remote}, cutUnits{p.d.cfg.Executor}, cutMachine{p.d.cfg.Machine}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	before := log.Bytes()
	_ = p.d.tick(ctx)
	require.ErrorIs(t, p.d.askHub(ctx), context.Canceled)
	p.d.setPaused(ctx)
	require.Equal(t, string(before), string(log.Bytes()))
	require.NotContains(t, p.d.Status().Text, "unreachable")
	require.NotContains(t, p.d.Status().Text, "claims nothing")
	require.NotContains(t, p.d.Status().Text, "cannot be listed")
}
