package daemon

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/domain"
)

// cut are hub and machine as a tick meets them that is cut off by the conductor's own end.
type cut struct {
	domain.Remote
	Machine
}

func (cut) Heartbeat(ctx context.Context, _ domain.Beat) (domain.Pulse, error) {
	return domain.Pulse{}, ctx.Err()
}

func (cut) Environment(ctx context.Context, _ string, _ map[string]string) (map[string]string, error) {
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
	c := cut{p.d.cfg.Remote, p.d.cfg.Machine}
	p.d.cfg.Remote, p.d.cfg.Machine = c, c
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	before := log.Bytes()
	_ = p.d.tick(ctx)
	require.ErrorIs(t, p.d.askHub(ctx), context.Canceled)
	p.d.setPaused(ctx)
	require.Equal(t, string(before), string(log.Bytes()))
	require.NotContains(t, p.d.Status().Text, "unreachable")
	require.NotContains(t, p.d.Status().Text, "claims nothing")
}
