//go:build linux && root

package usermanager

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRootAUnitDiesWithTheMachineAndTheNextBootKnowsNothingOfIt(t *testing.T) {
	m := NewMachine(t)
	e := m.New(t)
	unit := e.Prefix + "-run-a-1.service"
	out, err := e.Command("systemd-run", "--user", "--unit="+unit, "sleep", "1000").CombinedOutput()
	require.NoError(t, err, "%s", out)
	first := m.BootID
	read, err := os.ReadFile(bootIDFile)
	require.NoError(t, err)
	require.Equal(t, first, strings.TrimSpace(string(read)))

	require.NoError(t, m.Crash())
	_, err = e.Systemctl("is-system-running")
	require.Error(t, err, "nothing answers on a machine that is down")

	require.NoError(t, m.Boot())
	require.NotEqual(t, first, m.BootID)
	out, err = e.Command("cat", bootIDFile).Output()
	require.NoError(t, err)
	require.Equal(t, m.BootID, strings.TrimSpace(string(out)), "the user sees the new boot id too")
	state, err := e.Systemctl("show", "--property=LoadState", "--value", unit)
	require.NoError(t, err, state)
	require.Equal(t, "not-found", strings.TrimSpace(state))
}

func TestRootALogoutStopsTheUnitsInOrder(t *testing.T) {
	m := NewMachine(t)
	e := m.New(t)
	mark := e.Home + "/stopped"
	out, err := e.Command("systemd-run", "--user", "--unit="+e.Prefix+"-run-a-1.service", "--property=ExecStop=touch "+mark, "sleep", "1000").CombinedOutput()
	require.NoError(t, err, "%s", out)
	boot := m.BootID
	require.NoError(t, m.Shutdown())
	require.FileExists(t, mark)
	require.NoError(t, m.Login())
	require.Equal(t, boot, m.BootID)
	e.WaitFor(t, func() bool {
		out, err := e.Systemctl("is-system-running")
		return err == nil && strings.TrimSpace(out) == "running"
	}, 10*time.Second, "the user manager of the second login")
}
