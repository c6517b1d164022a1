package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A conductor that began a run while it was being removed goes on with it, or the hub would take the run for lost.
func TestRemoveThatIsRefusedLateLeavesTheConductorUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "exit 0", setting{})
	folder := filepath.Join(filepath.Dir(w.property(w.conductorUnit(), "FragmentPath")), w.conductorUnit()+".d")
	w.mkdir(folder, 0o755)
	run := w.names.Run(w.instance, 99)
	w.write(filepath.Join(folder, "late.conf"), "[Service]\nExecStop=systemd-run --user --unit="+run+" sleep 600\n", 0o644)
	w.must("systemctl", "--user", "daemon-reload")
	before := w.mainPID(w.conductorUnit())
	_, said, code := w.try("gaia", "conductor", "remove", w.instance)
	require.NotZero(t, code)
	require.Contains(t, said, run+" is at work")
	require.Equal(t, "active", w.property(w.conductorUnit(), "ActiveState"))
	require.NotEqual(t, before, w.mainPID(w.conductorUnit()), "it was stopped first")
	require.Equal(t, "enabled", w.property(w.conductorUnit(), "UnitFileState"))
	w.must("systemctl", "--user", "stop", run)
	w.write(filepath.Join(folder, "late.conf"), "", 0o644)
	w.must("systemctl", "--user", "daemon-reload")
	spare := filepath.Join(w.treesDir(), ".spare-1")
	w.wait("a spare worktree is there", func() bool {
		_, err := os.Stat(filepath.Join(spare, ".git"))
		return err == nil
	})
	w.gaia("conductor", "remove", w.instance)
	require.NoDirExists(t, spare, "it held nothing of anybody's")
	require.Equal(t, "inactive", w.property(w.conductorUnit(), "ActiveState"))
}
