package daemon

import (
	"context"
	"errors"
	"testing"

	"github.com/godbus/dbus/v5"
	"github.com/stretchr/testify/require"

	"gaia/domain"
)

func TestEveryRunIsToldToHaveBegunAndEndedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.process()
	q := &queue{ready: make(chan struct{}, 1)}
	now, forget := p.d.onStatus(q.put)
	require.Empty(t, now.Runs)
	r := w.running(p, "SHOP-1")
	w.finish(r.ID)
	p.ticks(1)
	failed := w.running(p, "SHOP-2")
	w.hub.SetDraining(true)
	w.hosts.end(failed.ID, exited(3))
	p.ticks(3)

	c, ok := q.take()
	require.True(t, ok)
	require.Empty(t, c.Runs, "what nobody fetched is one change, with the latest status")
	require.Len(t, c.began, 2)
	require.Equal(t, []RunStatus{
		{ID: r.ID, Number: 1, Ticket: "SHOP-1", State: "done", Session: "alive", Unit: "gaia-run-shop-1.service"},
		{ID: failed.ID, Number: 2, Ticket: "SHOP-2", State: "failed", Reason: string(domain.ReasonAgentExit), Session: "gone", Unit: "gaia-run-shop-2.service"},
	}, ended(c), "as they ended, though no status may have shown that")
	_, ok = q.take()
	require.False(t, ok)
	forget()
	p.ticks(1)
	_, ok = q.take()
	require.False(t, ok)
}

// ended is what ended, whatever was last seen of its session.
func ended(c change) []RunStatus {
	for i := range c.ended {
		c.ended[i].Session = map[string]string{"done": "alive", "failed": "gone"}[c.ended[i].State]
	}
	return c.ended
}

func TestWhatBecameOfRuns(t *testing.T) {
	t.Parallel()
	a, b := RunStatus{ID: "a", State: "running"}, RunStatus{ID: "b", State: "running"}
	done := RunStatus{ID: "a", State: "done"}
	status := func(runs ...RunStatus) Status { return Status{Runs: runs} }
	for name, c := range map[string]struct {
		before, after Status
		settled       []RunStatus
		began, ended  []RunStatus
	}{
		"nothing":                  {before: status(a), after: status(a)},
		"one begins":               {before: status(a), after: status(a, b), began: []RunStatus{b}},
		"one ends":                 {before: status(a, b), after: status(b), settled: []RunStatus{done}, ended: []RunStatus{done}},
		"one comes and goes":       {before: status(b), after: status(b), settled: []RunStatus{done}, began: []RunStatus{done}, ended: []RunStatus{done}},
		"one is lost out of sight": {before: status(a), after: status(), ended: []RunStatus{a}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := difference(c.before, c.after, c.settled)
			require.Equal(t, c.began, got.began)
			require.Equal(t, c.ended, got.ended)
		})
	}
}

func TestBusPropertiesChangeTogether(t *testing.T) {
	t.Parallel()
	p := &busProperties{iface: "i", values: values(Status{MaxParallel: 2})}
	require.Empty(t, p.set(values(Status{MaxParallel: 2})))
	changed := p.set(values(Status{MaxParallel: 2, CurrentLoad: 1, Runs: []RunStatus{{ID: "r\xff\x00", Number: 7}}}))
	require.Equal(t, map[string]dbus.Variant{
		"CurrentLoad": dbus.MakeVariant(uint32(1)), "Runs": dbus.MakeVariant([]busRun{{Number: 7, ID: "r\uFFFD"}}),
	}, changed)
	for _, c := range []struct{ iface, name, want string }{
		{"i", "Nothing", "org.freedesktop.DBus.Error.UnknownProperty"},
		{"j", "Status", "org.freedesktop.DBus.Error.UnknownInterface"},
	} {
		_, err := p.Get(c.iface, c.name)
		require.Equal(t, c.want, err.Name)
		require.Equal(t, c.want, p.Set(c.iface, c.name, dbus.MakeVariant("")).Name)
	}
	require.Equal(t, "org.freedesktop.DBus.Error.PropertyReadOnly", p.Set("i", "Status", dbus.MakeVariant("")).Name)
}

func TestErrorsOnTheBusHaveNamesOfOurs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var drain, reload error
	p := w.process(func(c *Config) {
		c.Drain = func(context.Context, bool) error { return drain }
		c.Reload = func() (Settings, error) { return settings(), reload }
	})
	m := busMethods{p.d, "gaia"}
	require.Nil(t, m.Drain())
	require.Nil(t, m.Reload())
	drain, reload = domain.ErrUnreachable, errors.New("conductor.toml:3: unknown key")
	require.Equal(t, "org.gaia.Conductor1.Error.HubUnreachable", m.Drain().Name)
	drain = domain.ErrForbidden
	require.Equal(t, "org.gaia.Conductor1.Error.HubRefused", m.Resume().Name)
	err := m.Reload()
	require.Equal(t, "org.gaia.Conductor1.Error.ConfigRefused", err.Name)
	require.ErrorContains(t, err, "conductor.toml:3")
	require.Equal(t, "org.gaia.Conductor1.Error.NoSuchRun", m.StopRun("99").Name)
	w.running(p, "2")
	w.running(p, "1")
	require.Equal(t, "org.gaia.Conductor1.Error.AmbiguousRun", m.StopRun("1").Name, "a number, and a ticket's identifier")
	require.Nil(t, m.StopRun("gaia-run-shop-1.service"))
	p.ticks(1)
	require.Equal(t, "org.gaia.Conductor1.Error.NoSuchRun", m.StopRun("gaia-run-shop-1.service").Name, "it has ended")
}
