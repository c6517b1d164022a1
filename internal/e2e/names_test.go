package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/domain"
)

// faithful is an agent that leaves what it was told of its ticket, byte for byte, and what systemd calls its run.
func (w *world) faithful() string {
	return fmt.Sprintf(`
out=%q/told
mkdir -p "$out"
unit=$(sed -n 's|^0::.*/||p' /proc/self/cgroup)
systemctl --user show --value --property=Description "$unit" >"$out/$GAIA_RUN.description"
printf %%s "$GAIA_TICKET" >"$out/$GAIA_RUN.identifier"
pwd -P >"$out/$GAIA_RUN.tree"
git symbolic-ref --short HEAD >"$out/$GAIA_RUN.branch"
gaia ticket show -o json >"$out/$GAIA_RUN.ticket"
cp "$GAIA_PROMPT" "$out/$GAIA_RUN.prompt"
printf %%s "$GAIA_TICKET" >identifier; git add identifier; git commit -qm "$GAIA_TICKET"
gaia ticket comment -- "$GAIA_TICKET"
exec gaia ticket move done
`, w.env.Home)
}

func (w *world) told(r domain.Run, what string) string {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(w.env.Home, "told", r.ID+"."+what))
	require.NoError(w.t, err)
	return string(data)
}

func TestIdentifiersAndTitlesOfAnyText(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{conductor: "max_parallel = 2"})
	w.setAgent(w.faithful())
	pwned := filepath.Join(w.env.Home, "pwned")
	evil := fmt.Sprintf("$(touch %s) `touch %s` #(touch %s) #{@gaia_title} %%n %%h ${HOME} ; touch %s 'q' \"q\" \\ 🐛", pwned, pwned, pwned, pwned)
	title := "-- " + evil
	cases := map[string]string{
		"..": title, "../../etc/passwd": title, ".hidden": title, "-rf": title, "--help": title, "/": title,
		"a.b:c/d": title, "same/key": title, "same:key": title, "x.lock": title, "@{-1}": title, "gaia/SHOP-1": title,
		"🐛 Käfer №7":                                strings.Repeat("ö🐛", 83) + "ab",
		evil[:min(len(evil), domain.MaxIdentifier)]: strings.Repeat("x", 500),
		strings.Repeat("long ", 40) + "end":         "%s %n",
		"SHOP-" + strings.Repeat("9", 60):           "A number that no integer holds",
		"shop-1":                                    "Lower case",
	}
	for id, title := range cases {
		require.Equal(t, id, w.chore(title, "--identifier", id))
	}
	w.gaia("conductor", "enable", "--now", w.instance)
	keys := map[string]string{}
	for id, title := range cases {
		v := w.waitState(id, "done")
		require.Len(t, v.Runs, 1, id)
		r := v.Runs[0]
		require.Equal(t, domain.RunDone, r.State, id)
		require.Equal(t, title, v.Title)
		require.Equal(t, id, v.Comments[0].Body)
		require.Equal(t, id, w.told(r, "identifier"))
		var inside view
		require.NoError(t, json.Unmarshal([]byte(w.told(r, "ticket")), &inside))
		require.Equal(t, id, inside.Identifier)
		require.Equal(t, title, inside.Title)
		require.Contains(t, w.told(r, "prompt"), title)

		key := domain.WorkspaceKey(id)
		require.NotContains(t, keys, key)
		keys[key] = id
		tree := strings.TrimSuffix(w.told(r, "tree"), "\n")
		require.Equal(t, filepath.Join(w.env.GaiaHome, "worktrees", w.instance, key), tree)
		require.Contains(t, []string{tree, ""}, string(r.WorktreePath), "the hub may not have heard of the start before the end")
		require.Equal(t, "gaia/"+key+"\n", w.told(r, "branch"))
		require.Equal(t, id, w.must("git", "show", "refs/heads/gaia/"+key+":identifier"))
		description := strings.TrimSuffix(w.told(r, "description"), "\n")
		require.Contains(t, description, fmt.Sprintf("run %d: ", r.Number))
		require.NotContains(t, description, "\n")

		require.Contains(t, w.gaia("why", "--", id), "done is final")
		w.gaia("ticket", "list", "--all")
		w.gaia("run", "show", fmt.Sprint(r.Number))
	}
	require.Contains(t, w.gaia("board", "--all"), "🐛 Käfer №7")
	require.NoFileExists(t, pwned)
	out := w.gaia("conductor", "reap", "--dry-run", "-o", "json")
	for _, id := range keys {
		quoted, err := json.Marshal(id)
		require.NoError(t, err)
		require.Contains(t, unescaped(out), unescaped(string(quoted)))
	}
	w.verifyLog()
}

// unescaped takes from JSON what one writer escapes and another does not.
func unescaped(s string) string {
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(s)
}

func TestTheSessionOfATicketWithAnEvilName(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{})
	w.setAgent("echo ready\nread -r _\necho x >x; git add x; git commit -qm x; exec gaia ticket move done\n")
	w.gaia("conductor", "enable", "--now", w.instance)
	pwned := filepath.Join(w.env.Home, "pwned")
	id := "-#(touch " + pwned + ")#[fg=red]#{pid}%H"
	w.chore(id, "--identifier", id)
	w.waitRunning(id)
	x := w.onTerminal(nil, "attach", "--", id)
	x.shows("ready")
	x.shows("-(touch " + pwned + ")[fg=red]") // the status line has the name, without what tmux would act on
	x.types("\r")
	w.waitState(id, "done")
	require.NoFileExists(t, pwned)
}

// beside is a second checkout of the world's project, with a conductor of its own.
func (w *world) beside(instance string) *world {
	w.t.Helper()
	v := *w
	v.instance, v.checkout = instance, filepath.Join(w.env.Home, instance)
	w.must("git", "clone", "--quiet", w.checkout, v.checkout)
	v.git("config", "user.name", "Test")
	v.git("config", "user.email", "test@gaia.invalid")
	v.gaia("conductor", "init", "--instance", instance)
	return &v
}

// busRuns are the runs that a conductor says it has; "" while it is not on the bus.
func (w *world) busRuns() string {
	w.t.Helper()
	out, _, _ := w.try("busctl", "--user", "--json=short", "get-property", w.names.BusName(w.instance), "/org/"+w.env.Prefix+"/Conductor1", "org."+w.env.Prefix+".Conductor1", "Runs")
	return out
}

func TestTwoInstancesWithNamesThatContainEachOther(t *testing.T) {
	t.Parallel()
	shop := prepare(t, "", setting{})
	shop.setAgent("case \"$(gaia ticket show -o json)\" in *quick*) echo x >x; git add x; git commit -qm x; exec gaia ticket move done;; esac\n" + shop.patientAgent())
	twelve := shop.beside("shop-12")
	for _, w := range []*world{shop, twelve} {
		w.gaia("conductor", "enable", "--now", w.instance)
		w.gaia("ticket", "list")
	}
	k1 := twelve.chore("Long", "--target", "shop-12")
	r1, p1 := twelve.waitRunning(k1), shop.agentPID(k1)
	require.Equal(t, 1, r1.Number)
	for range 10 {
		shop.chore("quick", "--target", "shop")
	}
	shop.wait("ten runs of shop are over", func() bool {
		var runs []domain.Run
		require.NoError(t, json.Unmarshal([]byte(shop.gaia("run", "list", "-o", "json")), &runs))
		ended := 0
		for _, r := range runs {
			if !r.FinalizedAt.IsZero() {
				ended++
			}
		}
		return ended == 10
	})
	k12 := shop.chore("Long", "--target", "shop")
	r12, p12 := shop.waitRunning(k12), shop.agentPID(k12)
	require.Equal(t, 12, r12.Number)
	k13 := twelve.chore("Long", "--target", "shop-12")
	r13, p13 := twelve.waitRunning(k13), shop.agentPID(k13)
	require.Equal(t, shop.env.Prefix+"-run-shop-12.service", shop.runUnit(r12))
	require.Equal(t, shop.env.Prefix+"-run-shop-12-13.service", twelve.runUnit(r13))
	require.NotEmpty(t, shop.pids(shop.runUnit(r12)))
	require.NotEmpty(t, twelve.pids(twelve.runUnit(r1)))

	// Each knows its own, also after a start that has to find them again.
	shop.killMain(shop.conductorUnit())
	_, err := twelve.env.Systemctl("restart", twelve.conductorUnit())
	require.NoError(t, err)
	has := func(w *world, own ...domain.Run) {
		w.wait(w.instance+" has its runs again", func() bool {
			out := w.busRuns()
			for _, r := range own {
				if !strings.Contains(out, r.ID) {
					return false
				}
			}
			return true
		})
		out := w.busRuns()
		for _, r := range []domain.Run{r1, r12, r13} {
			require.Equal(t, slices.ContainsFunc(own, func(o domain.Run) bool { return o.ID == r.ID }), strings.Contains(out, r.ID), out)
		}
		require.Contains(t, w.property(w.conductorUnit(), "StatusText"), fmt.Sprintf("%d/4 running", len(own)))
	}
	has(shop, r12)
	has(twelve, r1, r13)

	shop.gaia("run", "stop", "12")
	shop.wait("run 12 is gone", func() bool { return !alive(p12) })
	shop.waitFor(k12, "is finalised", view.settled)
	require.True(t, alive(p1))
	require.True(t, alive(p13))
	shop.gaia("conductor", "stop", "shop")
	require.Equal(t, "inactive", shop.property(shop.conductorUnit(), "ActiveState"))
	require.Equal(t, "active", twelve.property(twelve.conductorUnit(), "ActiveState"))
	for _, k := range []string{k1, k13} {
		twelve.tell(k, finish)
		v := twelve.waitState(k, "done")
		require.Len(t, v.Runs, 1)
		require.Equal(t, domain.RunDone, v.Runs[0].State)
	}
	out := shop.gaia("conductor", "reap", "shop", "-o", "json")
	require.Contains(t, out, "/worktrees/shop/"+k12)
	require.NotContains(t, out, "/worktrees/shop-12/")
	require.DirExists(t, filepath.Join(shop.env.GaiaHome, "worktrees", "shop-12", k1))
	shop.verifyLog()
}

func TestARepositoryWithABranchNamedGaia(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{})
	w.setAgent("echo x >x; git add x; git commit -qm x; exec gaia ticket move done\n")
	other := *w
	other.checkout, other.instance = filepath.Join(w.env.Home, "it's taken"), "taken"
	require.NoError(t, os.MkdirAll(other.checkout, 0o755))
	other.git("init", "--quiet", "--initial-branch=gaia")
	other.git("config", "user.name", "Test")
	other.git("config", "user.email", "test@gaia.invalid")
	other.git("commit", "--quiet", "--allow-empty", "-m", "Begin")
	args := []string{"init", "--yes", "--key", "TAKEN", "--slug", "taken", "--instance", "taken", "--agent", "script"}
	_, said, code := other.try("gaia", args...)
	require.Equal(t, 1, code, said)
	require.Contains(t, said, `the repository has a branch "gaia"`)
	require.Contains(t, said, "branch_prefix")
	_, mend, ok := strings.Cut(said, "rename it (")
	require.True(t, ok, said)
	mend, _, _ = strings.Cut(mend, ")")

	file := filepath.Join(other.checkout, ".gaia", "conductor.toml")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	other.write(file, "max_load = 0\n"+string(text)+"[workspace]\nbranch_prefix = \"agents/\"\n[timing]\ntick = \"500ms\"\n", 0o644)
	other.gaia(args...)
	other.git("add", ".")
	other.git("commit", "--quiet", "-m", "Let Gaia work here")
	other.gaia("conductor", "enable", "--now", "taken")
	k := other.chore("Works with another prefix", "--project", "TAKEN")
	other.waitState(k, "done")
	require.Equal(t, "x", other.git("show", "agents/"+k+":x"))

	// The command that the refusal named mends it, typed as it stands.
	other.write(file, strings.Replace(string(text), "agents/", "gaia/", 1), 0o644)
	_, _, code = other.try("gaia", args...)
	require.Equal(t, 1, code)
	other.must("sh", "-c", mend)
	other.gaia(args...)
}

func TestACheckoutInAnAwkwardPlace(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{})
	w.setAgent(w.faithful())
	v := *w
	v.instance, v.checkout = "awkward", filepath.Join(w.env.Home, "Über 100% of it's $HOME", "a \"shop\"; ok #1")
	require.NoError(t, os.MkdirAll(filepath.Dir(v.checkout), 0o755))
	w.must("git", "clone", "--quiet", w.checkout, v.checkout)
	v.git("config", "user.name", "Test")
	v.git("config", "user.email", "test@gaia.invalid")
	root := filepath.Join(w.env.Home, "Bäume 50%u $X; 'x'")
	quoted, err := json.Marshal(root)
	require.NoError(t, err)
	v.configure("", fmt.Sprintf("[workspace]\nroot = %s\n[hooks.after_create]\nrun = 'pwd -P >%q'\n", quoted, filepath.Join(w.env.Home, "made")))
	v.gaia("conductor", "init", "--instance", v.instance, "--trust")
	v.git("push", "--quiet", "origin", "HEAD:refs/heads/configured")
	w.git("merge", "--quiet", "configured")
	v.gaia("conductor", "enable", "--now", v.instance)
	k := v.chore("Somewhere", "--target", v.instance)
	r := v.waitState(k, "done").Runs
	require.Len(t, r, 1)
	require.Equal(t, filepath.Join(root, k)+"\n", v.told(r[0], "tree"))
	require.Equal(t, []string{filepath.Join(root, k)}, w.lines("made"))
	require.Equal(t, "active", v.property(v.conductorUnit(), "ActiveState"))
	require.Contains(t, v.gaia("conductor", "status"), v.checkout)
	require.Contains(t, v.gaia("conductor", "reap", "--dry-run"), root)
}
