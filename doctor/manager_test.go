//go:build linux

package doctor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/internal/usermanager"
	"gaia/registry"
	"gaia/units"
)

func TestMain(m *testing.M) { usermanager.Main(m) }

// TestWithAUserManager: units as systemd knows them, and their files against those of this version.
func TestWithAUserManager(t *testing.T) {
	env := usermanager.New(t)
	p := newPlace(t)
	vars := map[string]string{"HOME": env.Home, "GAIA_HOME": p.home.Dir, "GAIA_PREFIX": env.Prefix, "XDG_RUNTIME_DIR": env.Runtime}
	home, prefix, err := registry.Open(func(k string) string { return vars[k] })
	require.NoError(t, err)
	p.home, p.config.Home = home, home
	p.config.Names, err = units.NewNames(prefix)
	require.NoError(t, err)
	p.config.Paths = units.Paths{Bin: env.Bin, Env: map[string]string{"GAIA_PREFIX": prefix, "GAIA_HOME": home.Dir}}
	man, err := units.Connect(t.Context(), env.Runtime)
	require.NoError(t, err)
	defer man.Close()
	written, err := units.Install(t.Context(), man, p.config.Names, p.config.Paths)
	require.NoError(t, err)
	require.NotEmpty(t, written)

	finding := func(check string) Finding {
		t.Helper()
		for _, f := range Run(t.Context(), p.config) {
			if f.Check == check {
				return f
			}
		}
		t.Fatalf("nothing is said of %q", check)
		return Finding{}
	}
	require.Equal(t, OK, finding("user manager").Level)
	require.Equal(t, OK, finding("runtime folder").Level)
	require.Equal(t, OK, finding("unit files").Level)
	require.Equal(t, OK, finding("tmux").Level)
	require.Equal(t, OK, finding("git").Level)
	require.NotEmpty(t, finding("linger").Text)
	require.NotEmpty(t, finding("controllers").Text)

	f := finding("conductor shop")
	require.Equal(t, Warn, f.Level)
	require.Equal(t, "gaia conductor start shop", f.Mend)

	// A conductor that could not start.
	p.conductor("nonsense = 1\n")
	unit := p.config.Names.Conductor("shop")
	_ = man.Start(t.Context(), unit) // its failure is what is looked for
	env.WaitFor(t, func() bool {
		st, err := man.Status(t.Context(), unit)
		return err == nil && st.Active == "failed"
	}, time.Minute, unit, "fails")
	p.conductor("")
	f = finding("conductor shop")
	require.Equal(t, Fail, f.Level)
	require.Equal(t, "journalctl --user -u "+unit, f.Mend)

	// The files of another installation are drift until they are mended.
	p.config.Paths.Bin = "/usr/lib/gaia"
	f = finding("unit files")
	require.Equal(t, Warn, f.Level)
	require.Equal(t, "gaia doctor --fix", f.Mend)
	drifts, err := units.FindDrift(t.Context(), man, p.config.Names, p.config.Paths)
	require.NoError(t, err)
	require.NoError(t, units.Mend(t.Context(), man, drifts))
	require.Equal(t, OK, finding("unit files").Level)
}
