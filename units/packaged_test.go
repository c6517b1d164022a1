//go:build linux

package units

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
)

// TestPackagedUnitsAreUsed: where a package brings the unit files, none is written, a copy that hides one is drift, and an
// upgrade takes effect with the next restart.
func TestPackagedUnitsAreUsed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	search, own, err := b.m.folders(b.ctx)
	require.NoError(t, err)
	// A folder of the manager's that is neither the user's own nor root's stands for /usr/lib/systemd/user.
	i := slices.IndexFunc(search, func(dir string) bool { return strings.HasSuffix(dir, "/.local/share/systemd/user") })
	require.GreaterOrEqual(t, i, 0, "%q", search)
	dir, bin, home := search[i], filepath.Join(b.env.Home, "bin"), filepath.Join(b.env.Home, "place")
	for _, d := range []string{dir, bin, home} {
		require.NoError(t, os.MkdirAll(d, 0o755))
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	program, err := os.ReadFile(exe)
	require.NoError(t, err)
	put := func(path string, data []byte, mode os.FileMode) { // as a package manager does
		require.NoError(t, os.WriteFile(path+".new", data, mode))
		require.NoError(t, os.Rename(path+".new", path))
	}
	put(filepath.Join(bin, "gaia-conductor"), program, 0o755)
	p := Paths{Bin: bin, Env: map[string]string{"GAIA_PREFIX": b.env.Prefix, "GAIA_HOME": home}}
	for name, text := range Files(b.n, p) {
		put(filepath.Join(dir, name), text, 0o644)
		t.Cleanup(func() { _ = os.Remove(filepath.Join(dir, name)) })
	}

	written, err := Install(b.ctx, b.m, b.n, p)
	require.NoError(t, err)
	require.Empty(t, written)
	unit := b.n.Conductor("shop")
	require.NoError(t, b.m.Enable(b.ctx, unit))
	require.NoError(t, b.m.Start(b.ctx, unit))
	st := b.status(unit)
	require.Equal(t, filepath.Join(dir, b.n.Conductor("")), st.FragmentPath)
	require.Equal(t, "enabled", st.UnitFileState)
	require.False(t, st.NeedDaemonReload)
	require.False(t, st.Replaced())

	// They are for one installation, and no other one is run by them.
	_, err = Install(b.ctx, b.m, b.n, Paths{Bin: bin, Env: map[string]string{"GAIA_PREFIX": b.env.Prefix, "GAIA_HOME": "/elsewhere"}})
	require.ErrorIs(t, err, domain.ErrInvalid)
	require.ErrorContains(t, err, "does not set GAIA_HOME")

	shadow := filepath.Join(own, b.n.Conductor(""))
	require.NoError(t, os.MkdirAll(own, 0o755))
	put(shadow, Files(b.n, p)[b.n.Conductor("")], 0o644)
	drift, err := FindDrift(b.ctx, b.m, b.n, p)
	require.NoError(t, err)
	require.Len(t, drift, 1)
	require.Equal(t, DriftShadow, drift[0].Kind)
	require.NoError(t, Mend(b.ctx, b.m, drift))
	require.NoFileExists(t, shadow)

	put(filepath.Join(bin, "gaia-conductor"), program, 0o755)
	next := strings.Replace(string(Files(b.n, p)[b.n.Conductor("")]), "conductor of %i", "new conductor of %i", 1)
	var before Status
	require.Eventually(t, func() bool { // another test may have had the manager read its files just in between
		put(filepath.Join(dir, b.n.Conductor("")), []byte(next), 0o644)
		before = b.status(unit)
		return before.NeedDaemonReload
	}, time.Minute, 10*time.Millisecond)
	require.True(t, before.Replaced())
	require.Equal(t, st.MainPID, before.MainPID, "an upgrade restarts nothing")
	require.NoError(t, b.m.Restart(b.ctx, unit))
	after := b.status(unit)
	require.Equal(t, "Gaia's new conductor of shop", after.Description)
	require.False(t, after.NeedDaemonReload)
	require.False(t, after.Replaced())
	require.NoError(t, b.m.Disable(b.ctx, unit))
	require.NoError(t, b.m.Stop(b.ctx, unit))
}
