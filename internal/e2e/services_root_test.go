//go:build linux && root

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/internal/usermanager"
)

// held is a world in which every agent waits for the file go, with one at work.
func held(t *testing.T, m *usermanager.Machine) (w *world, ticket string, run domain.Run, release func()) {
	t.Helper()
	env := m.New(t)
	w = prepareIn(t, env, "", setting{})
	file := filepath.Join(env.Home, "go")
	w.setAgent(w.note("starts") + fmt.Sprintf("until [ -e '%s' ]; do sleep 0.1; done\n", file) + carryTask)
	w.gaia("conductor", "enable", "--now", w.instance)
	ticket = w.ticket("Under way", "--workflow", "gaia_task")
	run = w.waitRunning(ticket)
	return w, ticket, run, func() { w.write(file, "", 0o644) }
}

// unharmed checks that a run that was under way, and one that began later, have come to their ends as if nothing had been.
func (w *world) unharmed(tickets ...string) {
	w.t.Helper()
	for _, k := range tickets {
		v := w.waitState(k, "done")
		require.Len(w.t, v.Runs, 2)
		for _, r := range v.Runs {
			require.Equal(w.t, domain.RunDone, r.State, "%s: %s %s", k, r.EndReason, r.EndNote)
		}
	}
	require.Len(w.t, w.lines("starts"), 2*len(tickets))
	w.verifyLog()
}

func TestRootNothingDependsOnJournald(t *testing.T) {
	m := usermanager.NewMachine(t)
	w, k, _, release := held(t, m)
	hub, conductor := w.mainPID(w.names.Hub()), w.mainPID(w.conductorUnit())
	require.NoError(t, m.KillJournal())
	second := w.ticket("Without a journal", "--workflow", "gaia_task")
	w.waitRunning(second)
	release()
	w.unharmed(k, second)
	require.Equal(t, hub, w.mainPID(w.names.Hub()))
	require.Equal(t, conductor, w.mainPID(w.conductorUnit()))

	require.NoError(t, m.StartJournal())
	third := w.ticket("With a journal again", "--workflow", "gaia_task")
	w.unharmed(k, second, third)
	w.wait("the journal tells of the third again", func() bool {
		out, err := w.env.Command("journalctl", "--user", "--quiet", "--output=cat", "GAIA_TICKET="+third).Output()
		return err == nil && strings.Contains(string(out), "claimed "+third)
	})
	require.Equal(t, hub, w.mainPID(w.names.Hub()))
	require.Equal(t, conductor, w.mainPID(w.conductorUnit()))
}

func TestRootTheBusIsStartedAnew(t *testing.T) {
	m := usermanager.NewMachine(t)
	w, k, run, release := held(t, m)
	conductor, agent := w.mainPID(w.conductorUnit()), w.mainPID(w.runUnit(run))
	status := func() string {
		out, _ := w.env.Command("busctl", "--user", "get-property", w.names.BusName(w.instance),
			"/org/"+w.env.Prefix+"/Conductor1", "org."+w.env.Prefix+".Conductor1", "Status").CombinedOutput()
		return string(out)
	}
	w.wait("the conductor is on the bus", func() bool { return strings.Contains(status(), "1/4 running") })
	before := w.mainPID("dbus.service")
	w.killMain("dbus.service")
	w.wait("a bus is there again", func() bool {
		_ = status() // whoever asks starts it, by its socket
		pid := w.mainPID("dbus.service")
		return pid != 0 && pid != before
	})
	w.wait("the conductor is on the bus again", func() bool { return strings.Contains(status(), "1/4 running") })
	require.Equal(t, agent, w.mainPID(w.runUnit(run)), "the run goes on")
	require.Equal(t, conductor, w.mainPID(w.conductorUnit()))
	second := w.ticket("On the new bus", "--workflow", "gaia_task")
	w.waitRunning(second)
	release()
	w.unharmed(k, second)
	require.Equal(t, conductor, w.mainPID(w.conductorUnit()))
}

// TestRootDoctorStartsTheBus that was installed after the user manager was started, and whose socket is therefore not up.
func TestRootDoctorStartsTheBus(t *testing.T) {
	m := usermanager.NewMachine(t)
	w := prepareIn(t, m.New(t), "", setting{})
	_, err := w.env.Systemctl("stop", "dbus.socket", "dbus.service")
	require.NoError(t, err)
	out, _, _ := w.try("gaia", "doctor")
	require.Regexp(t, `(?m)^warn  user bus .*\n      mend: systemctl --user start dbus\.socket$`, out)
	out, said, _ := w.try("gaia", "doctor", "--fix")
	require.Contains(t, said, "mended: user bus: started dbus.socket")
	require.Contains(t, out, "ok    user bus  ")
}

func TestRootSocketsAreRemoved(t *testing.T) {
	m := usermanager.NewMachine(t)
	w, k, run, release := held(t, m)
	conductor := w.mainPID(w.conductorUnit())
	sockets := filepath.Join(w.env.Runtime, w.env.Prefix)
	panes, err := filepath.Glob(filepath.Join(sockets, "r", "*.sock"))
	require.NoError(t, err)
	require.Len(t, panes, 1)
	require.NoError(t, os.Remove(panes[0]))
	require.NoError(t, os.Remove(filepath.Join(sockets, "hub.sock")))

	_, said, code := w.try("gaia", "ticket", "list")
	require.Equal(t, 5, code, said)
	require.Contains(t, said, "systemctl --user restart "+w.names.HubSocket())
	_, err = w.env.Systemctl("restart", w.names.HubSocket())
	require.NoError(t, err)
	w.gaia("hub", "status")
	require.Positive(t, w.mainPID(w.runUnit(run)), "the run goes on")
	second := w.ticket("On the new socket", "--workflow", "gaia_task")
	w.waitRunning(second)
	release()
	w.unharmed(k, second)
	require.Equal(t, conductor, w.mainPID(w.conductorUnit()))
}
