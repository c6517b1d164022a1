//go:build linux

package doctor

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
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
	require.Equal(t, OK, finding("user bus").Level)
	require.Equal(t, OK, finding("journal").Level)
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

	// What was done behind Gaia's back.
	ghost := p.config.Names.Conductor("ghost")
	require.NoError(t, man.Enable(t.Context(), ghost))
	f = finding("registry")
	require.Equal(t, Warn, f.Level)
	require.Equal(t, "systemctl --user disable --now "+ghost, f.Mend)
	require.NoError(t, man.Disable(t.Context(), ghost))
	entries, err := home.Entries()
	require.NoError(t, err)
	require.NoError(t, os.Rename(entries[0].Checkout, entries[0].Checkout+".moved"))
	f = finding("conductor shop")
	require.Equal(t, Fail, f.Level)
	require.Equal(t, "gaia conductor remove shop", f.Mend)
	require.NoError(t, os.Rename(entries[0].Checkout+".moved", entries[0].Checkout))

	// The files of another installation are drift until they are mended.
	p.config.Paths.Bin = "/usr/lib/gaia"
	f = finding("unit files")
	require.Equal(t, Warn, f.Level)
	require.Equal(t, "gaia doctor --fix", f.Mend)
	edited := filepath.Join(filepath.Dir(written[0]), p.config.Names.Hub())
	text, err := os.ReadFile(edited)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(edited, append(text, "# mine\n"...), 0o644))
	done := 0
	for _, f := range Run(t.Context(), p.config) {
		if f.Check == "unit files" {
			require.Empty(t, f.Fix.Ask)
			text, err := f.Fix.Do(t.Context())
			require.NoError(t, err)
			require.Contains(t, text, "put right: /")
			done++
		}
	}
	require.NotZero(t, done)
	require.Equal(t, OK, finding("unit files").Level)
	kept, err := os.ReadFile(edited + ".edited-1")
	require.NoError(t, err)
	require.Contains(t, string(kept), "# mine", "what a person wrote is kept")

	// A hub whose socket is not up, is started.
	require.NoError(t, man.Stop(t.Context(), p.config.Names.HubSocket()))
	p.config.Hub = hub{live: domain.ErrUnreachable}
	f = finding("hub")
	require.Equal(t, Fail, f.Level)
	did, err := f.Fix.Do(t.Context())
	require.NoError(t, err)
	require.Equal(t, "started "+p.config.Names.HubSocket(), did)
	st, err := man.Status(t.Context(), p.config.Names.HubSocket())
	require.NoError(t, err)
	require.Equal(t, "active", st.Active)
	require.Nil(t, finding("hub").Fix, "one that is up and silent is for a person")
	p.config.Elsewhere = "https://hub"
	require.NoError(t, man.Stop(t.Context(), p.config.Names.HubSocket()))
	require.Nil(t, finding("hub").Fix)
}

// TestProgramsThatWereReplacedAreNamed: daemons that go on after an upgrade are told, with what restarts them.
func TestProgramsThatWereReplacedAreNamed(t *testing.T) {
	t.Parallel()
	env := usermanager.New(t)
	p := newPlace(t)
	names, err := units.NewNames(env.Prefix)
	require.NoError(t, err)
	p.config.Names = names
	p.config.Home.RuntimeRoot = env.Runtime
	man, err := units.Connect(t.Context(), env.Runtime)
	require.NoError(t, err)
	defer man.Close()

	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	program, err := os.ReadFile(sleep)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "daemon")
	put := func() { // as a package manager does
		require.NoError(t, os.WriteFile(path+".new", program, 0o755))
		require.NoError(t, os.Rename(path+".new", path))
	}
	put()
	written, err := units.Install(t.Context(), man, names, units.Paths{Bin: env.Bin, Env: map[string]string{"GAIA_PREFIX": env.Prefix}})
	require.NoError(t, err)
	for _, unit := range []string{names.Hub(), names.Conductor("")} {
		file := filepath.Join(filepath.Dir(written[0]), unit)
		require.NoError(t, os.WriteFile(file, []byte("[Service]\nExecStart="+path+" 1000\n"), 0o644))
	}
	require.NoError(t, man.Reload(t.Context()))
	started := []string{names.Hub(), names.Conductor("shop")}
	for _, unit := range started {
		require.NoError(t, man.Start(t.Context(), unit))
	}
	found := func(level Level) map[string]string {
		mends := map[string]string{}
		for _, f := range Run(t.Context(), p.config) {
			if f.Level == level && (f.Check == "hub" || f.Check == "conductor shop") {
				mends[f.Check] = f.Mend
			}
		}
		return mends
	}
	require.Equal(t, map[string]string{"hub": "", "conductor shop": ""}, found(OK))
	put()
	require.Equal(t, map[string]string{"hub": "systemctl --user restart " + names.Hub(), "conductor shop": "gaia conductor restart shop"}, found(Warn))
	for _, unit := range started {
		require.NoError(t, man.Restart(t.Context(), unit))
	}
	require.Equal(t, map[string]string{"hub": "", "conductor shop": ""}, found(OK))
	for _, unit := range started {
		require.NoError(t, man.Stop(t.Context(), unit))
	}
}

// TestGitIdentityOfRuns: an agent that cannot commit is told before its runs fail, as git sees it in a run.
func TestGitIdentityOfRuns(t *testing.T) {
	t.Parallel()
	env := usermanager.New(t)
	p := newPlace(t)
	p.config.Home.RuntimeRoot = env.Runtime
	agent := func(more string) { // without the settings of whoever runs the tests
		p.machine("user_id = \"anna\"\nhost_id = \"box\"\n[agents.script]\nprogram = [\"sh\"]\n[agents.script.env]\n" +
			"HOME = \"" + t.TempDir() + "\"\nXDG_CONFIG_HOME = \"/nonexistent\"\nGIT_CONFIG_NOSYSTEM = \"1\"\n" + more)
	}
	missing := func() []Finding {
		return slices.DeleteFunc(Run(t.Context(), p.config), func(f Finding) bool { return !strings.Contains(f.Text, "cannot commit") })
	}
	agent("")
	p.git("config", "user.useConfigOnly", "true") // git must not guess by the names of this machine
	found := missing()
	require.Len(t, found, 1)
	require.Equal(t, "conductor shop", found[0].Check)
	require.Equal(t, Fail, found[0].Level)
	require.Regexp(t, `^git has no name and address for the commits of the agent script, .*: no email was given and auto-detection is disabled$`, found[0].Text)
	require.Equal(t, `git config --global user.name "YOUR NAME"; git config --global user.email YOU@EXAMPLE.ORG`, found[0].Mend)
	p.git("config", "user.email", "anna@example.org")
	require.Len(t, missing(), 1, "a name is needed, too")
	p.git("config", "user.name", "Anna")
	require.Empty(t, missing())

	// It may be the agent's own.
	p.git("config", "--unset", "user.name")
	agent("GIT_AUTHOR_NAME = \"Agent\"\n")
	require.Len(t, missing(), 1, "there is no committer")
	agent("GIT_AUTHOR_NAME = \"Agent\"\nGIT_COMMITTER_NAME = \"Agent\"\n")
	require.Empty(t, missing())
}
