package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/domain"
)

// damage is one way in which a file of the configuration is broken, and what a person must be told besides its path.
type damage struct {
	name  string
	text  string // "" with make: see there
	make  func(t *testing.T, path string)
	tells []string
}

func locked000(t *testing.T, path string) { require.NoError(t, os.Chmod(path, 0)) }

func aFolder(t *testing.T, path string) {
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Mkdir(path, 0o700))
}

// damaged are the files, the ways to break them, and the commands that must refuse them.
func (w *world) damaged() map[string]struct {
	commands [][]string
	damages  []damage
} {
	read := func(path string) string {
		data, err := os.ReadFile(path)
		require.NoError(w.t, err)
		return string(data)
	}
	home := func(name string) string { return filepath.Join(w.env.GaiaHome, name) }
	checkout := filepath.Join(w.checkout, ".gaia", "conductor.toml")
	unreadable := []damage{
		{name: "binary", text: "\x7fELF\x00\x01\xff\xfe"},
		{name: "unreadable", make: locked000, tells: []string{"permission denied"}},
		{name: "a folder", make: aFolder, tells: []string{"no regular file"}},
	}
	// line is where the text that is put behind a file stands.
	line := func(text string, n int) string { return fmt.Sprintf(":%d:", strings.Count(text, "\n")+n) }
	machine, conductor, hub, conductors := read(home("machine.toml")), read(checkout), read(home("hub.toml")), read(home("conductors.json"))
	const trust = "schema = 1\n"
	type file = struct {
		commands [][]string
		damages  []damage
	}
	return map[string]file{
		home("machine.toml"): {
			[][]string{{"ticket", "list"}, {"conductor", "list"}, {"conductor", "status"}, {"init", "--yes"}, {"hub", "status"}},
			append([]damage{
				{name: "syntax", text: machine + "x = = 1\n", tells: []string{line(machine, 1)}},
				{name: "unknown key", text: machine + "colour = 1\n", tells: []string{line(machine, 1), "agents.script.colour"}},
				{name: "wrong type", text: strings.Replace(machine, `"ada"`, "7", 1), tells: []string{":1:", "user_id"}},
				{name: "empty", tells: []string{"user_id", "host_id"}},
			}, unreadable...),
		},
		home("conductors.json"): {
			[][]string{{"conductor", "list"}, {"conductor", "status"}, {"conductor", "enable"}, {"conductor", "reap"}, {"conductor", "reap", "shop"}, {"init", "--yes"}},
			append([]damage{
				{name: "syntax", text: conductors + "}", tells: []string{line(conductors, 1)}},
				{name: "unknown key", text: strings.Replace(conductors, "{\n", "{\n  \"colour\": 1,\n", 1), tells: []string{":2:", "colour"}},
				{name: "wrong type", text: strings.Replace(conductors, `"schema": 1`, `"schema": "1"`, 1), tells: []string{":2:", "schema"}},
				{name: "empty", tells: []string{":1:"}},
			}, unreadable...),
		},
		checkout: {
			[][]string{{"conductor", "enable"}, {"conductor", "reap"}, {"conductor", "trust", "--yes"}, {"init", "--yes"}, {"ticket", "create", "x"}},
			append([]damage{
				{name: "syntax", text: conductor + "x = = 1\n", tells: []string{line(conductor, 1)}},
				{name: "unknown key", text: conductor + "colour = 1\n", tells: []string{line(conductor, 1), "timing.colour"}},
				{name: "wrong type", text: strings.Replace(conductor, "max_load = 0", `max_load = "none"`, 1), tells: []string{":4:", "max_load"}},
				{name: "empty", tells: []string{"schema", "project", "slug"}},
			}, unreadable...),
		},
		home("trust.toml"): {
			[][]string{{"conductor", "trust", "--yes"}, {"conductor", "trust", "--yes", "--all-permissions"}, {"init", "--yes", "--trust"}},
			append([]damage{
				{name: "syntax", text: trust + "x = = 1\n", tells: []string{":2:"}},
				{name: "unknown key", text: trust + "colour = 1\n", tells: []string{":2:", "colour"}},
				{name: "wrong type", text: trust + "[[hooks]]\ncheckout = 7\nsha256 = \"\"\n", tells: []string{":2:", "checkout"}},
			}, unreadable...),
		},
		home("hub.toml"): {
			[][]string{{"hub", "verify"}},
			append([]damage{
				{name: "syntax", text: hub + "x = = 1\n", tells: []string{line(hub, 1)}},
				{name: "unknown key", text: hub + "colour = 1\n", tells: []string{line(hub, 1), "limits.colour"}},
				{name: "wrong type", text: strings.Replace(hub, `"200ms"`, "200", 1), tells: []string{":2:", "limits.backoff_base"}},
			}, unreadable...),
		},
	}
}

// inflict damages a file; the function that it returns looks whether it is as it was left, and puts the old one back.
func (d damage) inflict(t *testing.T, path string) (mend func()) {
	t.Helper()
	before, err := os.ReadFile(path)
	absent := os.IsNotExist(err)
	if !absent {
		require.NoError(t, err)
	} else {
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	}
	if d.make != nil {
		d.make(t, path)
	} else {
		require.NoError(t, os.WriteFile(path, []byte(d.text), 0o600))
	}
	was, err := os.Stat(path)
	require.NoError(t, err)
	return func() {
		t.Helper()
		is, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, was.Mode(), is.Mode(), path)
		if d.make == nil {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, d.text, string(data), "%s was overwritten", path)
			require.True(t, os.SameFile(was, is), "%s was replaced", path)
		}
		require.NoError(t, os.RemoveAll(path))
		if !absent {
			require.NoError(t, os.WriteFile(path, before, 0o600))
		}
	}
}

func TestDamagedConfigurationIsToldAndNeverOverwritten(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{tables: "[hooks.before_run]\nrun = \"true\"\n[timing]\ntick = \"500ms\"\n"})
	w.setAgent("echo x >x; git add x; git commit -qm x; exec gaia ticket move done\n")
	w.gaia("conductor", "trust", "--yes")
	w.gaia("conductor", "enable", "--now", w.instance)
	k := w.chore("Work that is merged")
	w.waitState(k, "done")
	tree := filepath.Join(w.treesDir(), k) // the hub knows it only of a run whose start it heard before its end
	w.git("merge", "--quiet", "gaia/"+k)
	w.gaia("conductor", "stop", w.instance)
	whole := w.damaged()
	reapNeeds := []string{"machine.toml", "conductors.json", "conductor.toml"}
	for path, f := range whole {
		for _, d := range f.damages {
			t.Run(filepath.Base(path)+"/"+d.name, func(t *testing.T) {
				mend := d.inflict(t, path)
				defer mend()
				for _, command := range f.commands {
					out, said, code := w.try("gaia", command...)
					require.Equal(t, 2, code, "gaia %q\n%s%s", command, out, said)
					require.Contains(t, said, path, "gaia %q", command)
					for _, tell := range d.tells {
						require.Contains(t, said, tell, "gaia %q", command)
					}
				}
				if slices.Contains(reapNeeds, filepath.Base(path)) {
					w.try("gaia", "conductor", "reap", w.instance)
				}
				require.DirExists(t, tree, "nothing becomes deletable")
			})
		}
	}
	t.Run("a lost registry", func(t *testing.T) {
		path := filepath.Join(w.env.GaiaHome, "conductors.json")
		require.NoError(t, os.Rename(path, path+".away"))
		_, said, code := w.try("gaia", "conductor", "reap")
		require.Equal(t, 2, code)
		require.Contains(t, said, "gaia init")
		_, _, code = w.try("gaia", "conductor", "reap", w.instance)
		require.Equal(t, 2, code)
		require.DirExists(t, tree)
		require.NoError(t, os.Rename(path+".away", path))
	})
	// All is mended, and what could not be removed can be now.
	require.Contains(t, w.gaia("conductor", "reap"), "removed")
	require.NoDirExists(t, tree)
}

func TestADaemonWithADamagedConfigurationEndsOnceAndSaysWhy(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{})
	w.gaia("conductor", "enable", w.instance)
	ends := func(t *testing.T, unit, path string, d damage) {
		t.Helper()
		w.wait(unit+" has ended", func() bool { return w.property(unit, "ActiveState") == "failed" })
		require.Equal(t, "78", w.property(unit, "ExecMainStatus"))
		require.Equal(t, "0", w.property(unit, "NRestarts"))
		status := w.property(unit, "StatusText")
		require.Contains(t, status, path)
		for _, tell := range d.tells {
			require.Contains(t, status, tell)
		}
		_, _ = w.env.Systemctl("reset-failed", unit)
	}
	for path, f := range w.damaged() {
		name := filepath.Base(path)
		if name == "trust.toml" {
			continue // see the hooks: what is in it is read when it is needed
		}
		for _, d := range f.damages {
			if d.name == "wrong type" || d.name == "binary" {
				continue // as for the commands; each start takes its time
			}
			t.Run(name+"/"+d.name, func(t *testing.T) {
				unit := w.conductorUnit()
				if name == "hub.toml" {
					unit = w.names.Hub()
					w.hubDown()
				}
				mend := d.inflict(t, path)
				defer mend()
				_, err := w.env.Systemctl("start", unit)
				require.Error(t, err)
				ends(t, unit, path, d)
			})
		}
	}
	// With everything mended all is as before.
	w.gaia("conductor", "start", w.instance)
	require.Equal(t, "active", w.property(w.conductorUnit(), "ActiveState"))
}

func TestAHubWithADamagedConfigurationIsMendedByTheCommandThatTheErrorNames(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{})
	path := filepath.Join(w.env.GaiaHome, "hub.toml")
	mend := damage{text: "colour = 1\n"}.inflict(t, path)
	w.killMain(w.names.Hub())
	var said string
	w.wait("the hub is given up", func() bool {
		var code int
		_, said, code = w.try("gaia", "ticket", "list")
		require.Equal(t, 5, code, said)
		return w.property(w.names.HubSocket(), "ActiveState") == "failed"
	})
	require.Equal(t, "78", w.property(w.names.Hub(), "ExecMainStatus"))
	require.Contains(t, w.property(w.names.Hub(), "StatusText"), path+":1: colour")
	_, said, _ = w.try("gaia", "ticket", "list")
	_, command, ok := strings.Cut(said, "(systemctl --user ")
	require.True(t, ok, said)
	command, _, _ = strings.Cut(command, ")")
	mend()
	// A person needs longer to mend a file than systemd remembers failed starts of the hub.
	w.wait("the command works, and the hub after it", func() bool {
		w.try("systemctl", append([]string{"--user"}, strings.Fields(command)...)...)
		_, _, code := w.try("gaia", "ticket", "list")
		return code == 0
	})
}

// hooked is a conductor.toml whose hooks leave their names in a file.
func (w *world) hooked(scripts map[string]string) string {
	var b strings.Builder
	for _, name := range []string{"after_create", "before_run", "after_run"} {
		script := fmt.Sprintf("echo %s $GAIA_TICKET >>%q", name, filepath.Join(w.env.Home, "hooks"))
		if s, ok := scripts[name]; ok {
			script = s
		}
		fmt.Fprintf(&b, "[hooks.%s]\nrun = '''%s'''\n", name, script)
	}
	return b.String()
}

func TestHooksRunOnceTheyAreTrusted(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{})
	w.setAgent(fmt.Sprintf("echo agent $GAIA_TICKET >>%q\n", filepath.Join(w.env.Home, "hooks")) +
		"echo $GAIA_STATE >x; git add x; git commit -qm x\ncase $GAIA_STATE in todo) exec gaia ticket move working;; *) exec gaia ticket move done;; esac\n")
	w.configure("", w.hooked(nil))
	w.gaia("conductor", "enable", "--now", w.instance)
	k := w.ticket("Waits for trust", "--workflow", "gaia_task")
	untrusted := func(k string) {
		t.Helper()
		w.wait("why says that the hooks are not trusted", func() bool {
			return strings.Contains(w.failing(k)[domain.GateConductor], "hooks are not trusted: gaia conductor trust")
		})
		require.Contains(t, w.gaia("conductor", "status"), "hooks are not trusted: gaia conductor trust")
		require.Contains(t, w.property(w.conductorUnit(), "StatusText"), "hooks are not trusted")
	}
	untrusted(k)
	require.Empty(t, w.show(k).Runs)
	require.Empty(t, w.lines("hooks"))

	// What is trusted cannot be read: nothing is claimed either, and why says which file it is.
	path := filepath.Join(w.env.GaiaHome, "trust.toml")
	mend := damage{text: "colour = 1\n"}.inflict(t, path)
	w.wait("why names the damaged file", func() bool { return strings.Contains(w.failing(k)[domain.GateConductor], path) })
	require.Empty(t, w.show(k).Runs)
	mend()

	w.gaia("conductor", "trust", "--yes")
	v := w.waitState(k, "done")
	require.Len(t, v.Runs, 2)
	want := []string{"after_create", "before_run", "agent", "after_run", "before_run", "agent", "after_run"}
	for i := range want {
		want[i] += " " + k
	}
	require.Equal(t, want, w.lines("hooks"))

	// A later commit brings hooks that nobody has seen.
	w.configure("", w.hooked(map[string]string{"before_run": fmt.Sprintf("echo changed >>%q", filepath.Join(w.env.Home, "hooks"))}))
	k = w.ticket("Meets other hooks", "--workflow", "gaia_task")
	untrusted(k)
	require.Equal(t, want, w.lines("hooks"))
	v = w.waitFor(k, "its run to be taken back", func(v view) bool { // the pause is told before its session has ended
		return !slices.ContainsFunc(v.Runs, func(r domain.Run) bool { return r.State.Live() })
	})
	require.Zero(t, v.Attempts)
	require.Nil(t, v.Hold)
	for _, r := range v.Runs {
		require.Equal(t, domain.ReasonUndone, r.EndReason)
	}
	w.gaia("conductor", "trust", "--yes")
	w.waitState(k, "done")
	require.Contains(t, w.lines("hooks"), "changed")
}

func TestAHookThatFailsFailsTheRun(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"after_create", "before_run"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := prepare(t, "", setting{})
			w.setAgent(w.note("agents") + "echo x >x; git add x; git commit -qm x; exec gaia ticket move done\n")
			mended := filepath.Join(w.env.Home, "mended")
			w.configure("", w.hooked(map[string]string{name: fmt.Sprintf(
				"echo 'no such package' >&2; [ -e %q ] || exit 7; echo %s again >>%q", mended, name, filepath.Join(w.env.Home, "hooks"))}))
			w.gaia("conductor", "trust", "--yes")
			w.gaia("conductor", "enable", "--now", w.instance)
			k := w.chore("Cannot begin")
			v := w.waitFor(k, "is held", func(v view) bool { return v.Hold != nil && v.settled() })
			require.Equal(t, domain.ReasonHook, v.Hold.Reason)
			require.Len(t, v.Runs, 3)
			for _, r := range v.Runs {
				require.Equal(t, domain.RunFailed, r.State)
				require.Equal(t, domain.ReasonHook, r.EndReason)
				require.Contains(t, r.EndNote, name)
				require.Contains(t, r.EndNote, "no such package", "its last words are told, and where all of them are")
				_, log, ok := strings.Cut(r.EndNote, "(all of them: ")
				require.True(t, ok, r.EndNote)
				data, err := os.ReadFile(strings.TrimRight(log, ")"))
				require.NoError(t, err)
				require.Contains(t, string(data), "no such package")
			}
			require.Empty(t, w.lines("agents"))
			w.write(mended, "", 0o644)
			w.gaia("ticket", "resume", k)
			v = w.waitState(k, "done")
			require.Len(t, v.Runs, 4)
			require.Contains(t, w.lines("hooks"), name+" again")
			require.Len(t, w.lines("agents"), 1)
		})
	}
}

// A hook that was wrong, and corrected in the checkout, is the corrected one in the worktree that is there already.
func TestACorrectedHookFreesTheTicket(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{})
	w.setAgent("echo x >x; git add x; git commit -qm x; exec gaia ticket move done\n")
	w.configure("", w.hooked(map[string]string{"after_create": "no-such-installer ci"}))
	w.gaia("conductor", "trust", "--yes")
	w.gaia("conductor", "enable", "--now", w.instance)
	k := w.chore("Cannot begin")
	v := w.waitFor(k, "is held", func(v view) bool { return v.Hold != nil && v.settled() })
	require.Equal(t, domain.ReasonHook, v.Hold.Reason)
	for _, r := range v.Runs {
		require.Regexp(t, `^the hook after_create failed: exit status 127; its last words: \S.*no-such-installer: .*not found \(all of them: `, r.EndNote)
		require.Regexp(t, `The hook after_create failed\. It printed:\n.*no-such-installer: .*not found\n$`, w.gaia("run", "output", r.ID))
	}
	w.configure("", w.hooked(nil))
	w.gaia("conductor", "trust", "--yes")
	w.gaia("ticket", "resume", k)
	w.waitState(k, "done")
	require.Contains(t, w.lines("hooks"), "after_create "+k)
}

func TestAHookThatFailsAfterTheAgentFailsNothing(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{})
	w.setAgent("echo x >x; git add x; git commit -qm x; exec gaia ticket move done\n")
	out := filepath.Join(w.env.Home, "after")
	w.configure("", w.hooked(map[string]string{"after_run": fmt.Sprintf("git log -1 --format=%%s >>%q; exit 5", out)}))
	w.gaia("conductor", "trust", "--yes")
	w.gaia("conductor", "enable", "--now", w.instance)
	k := w.chore("Is done")
	v := w.waitState(k, "done")
	require.Len(t, v.Runs, 1)
	require.Equal(t, domain.RunDone, v.Runs[0].State)
	require.Equal(t, []string{"x"}, w.lines("after"), "it sees what the agent has committed")
}

func TestTheHookBeforeATreeIsRemoved(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{})
	w.setAgent("echo x >x; git add x; git commit -qm x; exec gaia ticket move done\n")
	seen := filepath.Join(w.env.Home, "removing")
	w.configure("", fmt.Sprintf("[hooks.before_remove]\nrun = '''%s'''\n",
		fmt.Sprintf(`echo "$(pwd -P) $GAIA_WORKTREE $GAIA_BRANCH $GAIA_HOOK" >>%q; echo no luck; exit 3`, seen)))
	w.gaia("conductor", "trust", "--yes")
	w.gaia("conductor", "enable", "--now", w.instance)
	k := w.chore("Is reaped")
	w.waitState(k, "done")
	tree := filepath.Join(w.treesDir(), k) // the hub knows it only of a run whose start it heard before its end
	w.git("merge", "--quiet", "gaia/"+k)
	w.gaia("conductor", "reap", "--dry-run")
	require.Empty(t, w.lines("removing"), "a dry run runs nothing")
	out := w.gaia("conductor", "reap")
	require.Equal(t, []string{tree + " " + tree + " gaia/" + k + " before_remove"}, w.lines("removing"))
	require.NoDirExists(t, tree, "its failure keeps nothing")
	require.Contains(t, out, "before_remove failed: exit status 3; its last words: no luck")
}
