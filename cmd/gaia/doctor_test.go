package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/registry"
)

// here is what a finding says of the machine that the test runs on.
var here = regexp.MustCompile(`(?m)^(ok|info|warn|fail)( +)(tmux|git|controllers|linger)( .*\n)(      mend: .*\n)?`)

// TestDoctor: of a machine without a user manager, with a checkout that is set up.
func TestDoctor(t *testing.T) {
	t.Parallel()
	w := bare(t, "shop")
	require.Zero(t, w.call("", allFlags...).code)
	w.journal()
	w.env["DBUS_SYSTEM_BUS_ADDRESS"] = "unix:path=/nonexistent/bus"
	require.NoError(t, os.Chmod(w.env["XDG_RUNTIME_DIR"], 0o700))
	e, err := w.home().EntryOf(w.dir)
	require.NoError(t, err)
	e.Path = w.env["PATH"]
	require.NoError(t, w.home().Put(t.Context(), e))
	masked := func(text string) string { return here.ReplaceAllString(text, "-   $2$3  as it is here\n") }
	replace := []string{w.dir, "/CHECKOUT", w.env["GAIA_HOME"], "/HOME/gaia", w.env["XDG_RUNTIME_DIR"], "/RUNTIME", w.env["PATH"], "PATH"}

	r := w.call("", "doctor")
	require.Equal(t, exitRefused, r.code, "there is no user manager")
	golden(t, "doctor.golden", masked(r.out), replace...)
	require.Regexp(t, `^\d of \d+ checks failed\n$`, r.err)
	js := w.call("", "doctor", "-o", "json")
	require.Contains(t, js.out, `"mend": ""`)
	require.NotContains(t, js.out, `"Fix"`)

	// What a person must say yes to is not done where nobody can be asked; what is safe is.
	require.NoError(t, os.Chmod(w.env["GAIA_HOME"], 0o755))
	require.Contains(t, w.call("", "doctor").out, "warn  state folder        "+w.env["GAIA_HOME"]+" is open to others")
	r = w.call("", "doctor", "--fix")
	require.Contains(t, r.err, "mended: state folder: "+w.env["GAIA_HOME"]+" was open to others (0755); it is 0700 now")
	golden(t, "doctor.golden", masked(r.out), replace...)
	st, err := os.Stat(w.env["GAIA_HOME"])
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), st.Mode().Perm())
}

// TestDoctorOfNothing: nothing is set up, and everything is said with what to type.
func TestDoctorOfNothing(t *testing.T) {
	t.Parallel()
	w := bare(t, "shop")
	w.journal()
	r := w.call("", "doctor")
	require.Equal(t, exitRefused, r.code)
	require.Contains(t, r.out, "mend: gaia init\n")
	require.NoDirExists(t, w.env["GAIA_HOME"], "a look makes nothing")
	require.NoFileExists(t, filepath.Join(w.dir, registry.CheckoutFile))
}
