package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
)

// scripts is an agent that does for each ticket what that ticket's own script says.
func (w *world) scripts() string {
	return w.note("starts") + fmt.Sprintf(". '%s'/for-\"$GAIA_TICKET\"\n", w.env.Home)
}

// script creates a ticket that wants one run, and the script of its agent. The conductor must not run yet.
func (w *world) script(title, body string) string {
	w.t.Helper()
	k := w.ticket(title, "--workflow", "gaia_task", "--state", "working")
	w.write(filepath.Join(w.env.Home, "for-"+k), strings.ReplaceAll(body, "HOME_OF_TEST", w.env.Home), 0o644)
	return k
}

// failures checks a ticket's failed runs and that each next one waited as long as it had to.
func (w *world) failures(v view, reason domain.Reason, note string, n int) {
	w.t.Helper()
	runs := v.byNumber()
	require.GreaterOrEqual(w.t, len(runs), n)
	for i, r := range runs[:n] {
		require.Equal(w.t, domain.RunFailed, r.State)
		require.Equal(w.t, reason, r.EndReason, r.EndNote)
		require.Contains(w.t, r.EndNote, note)
		if i+1 < len(runs) {
			wait, least := runs[i+1].ClaimedAt.Sub(r.EndedAt.Time), 200*time.Millisecond<<i
			require.GreaterOrEqual(w.t, wait, least, "wait after failure %d", i+1)
		}
	}
}

// byNumber returns the runs, oldest first.
func (v view) byNumber() []domain.Run {
	runs := slices.Clone(v.Runs)
	slices.SortFunc(runs, func(a, b domain.Run) int { return a.Number - b.Number })
	return runs
}

func TestAgentsOfEveryKind(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{tables: "[timing]\ntick = \"500ms\"\ngrace = \"20s\"\n"})
	w.setAgent(w.scripts())

	late := w.script("Commits after its state write", `
echo work >work.txt; git add .; git commit -qm "In time"
gaia ticket move done
echo more >more.txt; git add .; git commit -qm "Too late for the state write"
`)
	quitter := w.script("Exits without a state write", `exit 0`)
	rebase := w.script("Dies in the middle of a rebase", `
if [ "$GAIA_ATTEMPT" = 1 ]; then
	git switch -q -c side; echo theirs >conflict.txt; git add .; git commit -qm Theirs
	git switch -q -; echo ours >conflict.txt; git add .; git commit -qm Ours
	git branch -q base side
	echo draft >untracked.txt
	git rebase -q side >/dev/null 2>&1 || kill -KILL $$
	exit 9
fi
cp "$GAIA_PROMPT" 'HOME_OF_TEST/rebase-prompt'
git rev-parse -q --verify REBASE_HEAD >/dev/null || exit 10
[ "$(cat untracked.txt)" = draft ] || exit 11
git for-each-ref --format='%(refname)' refs/gaia/saved >'HOME_OF_TEST/rebase-saved'
echo both >conflict.txt; git add .; GIT_EDITOR=true git rebase --continue >/dev/null
exec gaia ticket move done
`)
	silent := w.script("Prints nothing", `
exec >/dev/null 2>&1
echo quiet >quiet.txt; git add .; git commit -qm Quiet
sleep 3
exec gaia ticket move done
`)
	dirty := w.script("Leaves a dirty tree", `
echo loose >loose.txt
code=0; gaia ticket move done 2>'HOME_OF_TEST/dirty-refused' || code=$?
echo "$code" >'HOME_OF_TEST/dirty-code'
gaia ticket show -o json | grep -q '"state": *"working"' || exit 12
exec gaia ticket move --anyway done
`)
	w.gaia("conductor", "enable", "--now", w.instance)

	// The comments are read before the runs, so that a look in between sees the one without the other.
	v := w.waitFor(late, "has its late work noted", func(v view) bool { return v.State == "done" && v.settled() && len(v.Comments) > 0 })
	require.Len(t, v.Runs, 1)
	require.Equal(t, domain.RunDone, v.Runs[0].State)
	require.Len(t, v.Comments, 1)
	require.Equal(t, "late_work", v.Comments[0].Type)
	require.Contains(t, v.Comments[0].Body, "Too late for the state write")
	require.NotContains(t, v.Comments[0].Body, "In time")
	require.Equal(t, w.git("rev-parse", "gaia/"+late), string(v.Runs[0].EndSHA))

	v = w.waitFor(quitter, "is held", func(v view) bool { return v.Hold != nil && v.settled() })
	require.Len(t, v.Runs, 3)
	w.failures(v, domain.ReasonAgentExit, "status 0", 3)
	require.Equal(t, domain.ReasonAgentExit, v.Hold.Reason)
	require.Equal(t, "working", v.State)
	for i, r := range v.byNumber() {
		require.Equal(t, i+1, r.Attempt)
	}

	v = w.waitState(rebase, "done")
	require.Len(t, v.Runs, 2)
	runs := v.byNumber()
	w.failures(v, domain.ReasonAgentExit, "SIGKILL", 1)
	saved := "refs/gaia/saved/" + rebase + "/" + runs[0].ID
	other := "refs/gaia/saved/" + rebase + "/" + runs[1].ID
	refs := w.lines("rebase-saved")
	require.Len(t, refs, 1)
	require.Contains(t, []string{saved, other}, refs[0])
	require.Equal(t, "draft", w.git("show", refs[0]+":untracked.txt"))
	prompt, err := os.ReadFile(filepath.Join(w.env.Home, "rebase-prompt"))
	require.NoError(t, err)
	require.Contains(t, string(prompt), refs[0])
	require.Contains(t, string(prompt), "rebase")
	require.Contains(t, string(prompt), "SIGKILL", "the failure before")
	require.Equal(t, "both", w.git("show", "gaia/"+rebase+":conflict.txt"))

	v = w.waitState(silent, "done")
	require.Len(t, v.Runs, 1)
	require.Equal(t, "Quiet", w.git("log", "-1", "--format=%s", "gaia/"+silent))

	v = w.waitState(dirty, "done")
	require.Len(t, v.Runs, 1)
	require.Equal(t, []string{"1"}, w.lines("dirty-code"))
	require.Contains(t, strings.Join(w.lines("dirty-refused"), "\n"), "--anyway")
	require.FileExists(t, filepath.Join(w.treesDir(), dirty, "loose.txt"))
	require.NotEmpty(t, v.TreeAt, "work that is nowhere else keeps the ticket on its machine")
	w.verifyLog()
}

func TestAStateWrittenBeforeStart(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{conductor: "max_parallel = 1"})
	w.setAgent(w.note("starts") + "exec gaia ticket move done\n")
	w.gaia("conductor", "enable", "--now", w.instance)
	pid := w.conductor(0).pid
	known := map[string]bool{}
	for range 10 {
		// The conductor stands still between letting the host on and telling the hub that the agent runs.
		k := w.ticket("Quick", "--workflow", "gaia_task", "--state", "working")
		require.True(t, appears(t, filepath.Join(w.runsDir(), "*", "tree.json"), known, patience))
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
		w.waitFor(k, "is done", func(v view) bool { return v.State == "done" })
		require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
		v := w.waitState(k, "done")
		require.Len(t, v.Runs, 1)
		require.Equal(t, domain.RunDone, v.Runs[0].State)
		require.Empty(t, v.Runs[0].EndReason)
		if v.Runs[0].StartedAt.IsZero() {
			w.verifyLog()
			return
		}
	}
	t.Fatal("start always came before the agent's state write")
}

// unitEnd is when systemd said that a run's unit had ended.
func (w *world) unitEnd(unit string) time.Time {
	w.t.Helper()
	var end time.Time
	w.wait("the journal tells of the end of "+unit, func() bool {
		out := w.must("journalctl", "--user", "--no-pager", "--quiet", "--output=short-unix", "USER_UNIT="+unit)
		for line := range strings.Lines(out) {
			if strings.Contains(line, "Failed with result") || strings.Contains(line, "Deactivated successfully") || strings.Contains(line, ": Stopped ") {
				at, _, _ := strings.Cut(line, " ")
				seconds, err := strconv.ParseFloat(at, 64)
				require.NoError(w.t, err)
				end = time.UnixMicro(int64(seconds * 1e6))
				return true
			}
		}
		return false
	})
	return end
}

func TestDeathsOfAgentHostAndServer(t *testing.T) {
	t.Parallel()
	// A failure of the machinery is held at its third time here, as that of an agent is anyway.
	w := prepare(t, "", setting{hub: "[limits]\nbackoff_base = \"200ms\"\nbackoff_max = \"1s\"\nmax_infra = 3\n"})
	w.setAgent(w.scripts())
	stubborn := `
setsid sh -c 'trap "" TERM HUP; echo "$GAIA_RUN $$" >>HOME_OF_TEST/children; while :; do sleep 0.5; done' </dev/null >/dev/null 2>&1 &
echo "$GAIA_RUN $$" >>HOME_OF_TEST/pids
trap "" HUP
while :; do sleep 0.5; done
`
	kinds := []struct {
		name   string
		reason domain.Reason
		note   string
		end    func(r domain.Run)
	}{
		{"agent", domain.ReasonAgentExit, "SIGKILL", func(r domain.Run) { w.killProcess(w.panes()[r.ID]) }},
		{"host", domain.ReasonSessionLost, "host", func(r domain.Run) { w.killMain(w.runUnit(r)) }},
		{"server", domain.ReasonSessionLost, "tmux server ended", func(r domain.Run) {
			w.killProcess(w.named(w.runUnit(r), "tmux: server"))
		}},
		{"unit", domain.ReasonSessionLost, "stopped from outside", func(r domain.Run) {
			out, err := w.env.Systemctl("stop", w.runUnit(r))
			require.NoError(t, err, out)
		}},
	}
	keys := make([]string, len(kinds))
	for i, kind := range kinds {
		keys[i] = w.script("Killed: "+kind.name, stubborn)
	}
	w.gaia("conductor", "enable", "--now", w.instance)

	for i, kind := range kinds {
		k, seen := keys[i], map[string]bool{}
		for attempt := 1; attempt <= 3; attempt++ {
			var r domain.Run
			w.wait(fmt.Sprintf("%s: attempt %d runs with its child", kind.name, attempt), func() bool {
				live := w.show(k).live()
				if live == nil || seen[live.ID] || live.State != domain.RunRunning || w.child(live.ID) == 0 || w.panes()[live.ID] == 0 {
					return false
				}
				r = *live
				return true
			})
			seen[r.ID] = true
			unit := w.runUnit(r)
			all := w.pids(unit)
			require.Contains(t, all, w.child(r.ID))
			kind.end(r)
			var ended domain.Run
			w.waitFor(k, "has failed", func(v view) bool {
				for _, x := range v.Runs {
					if x.ID == r.ID && x.State.Ended() {
						ended = x
						return true
					}
				}
				return false
			})
			end := w.unitEnd(unit)
			t.Logf("%s, attempt %d: failed %s after the end of its unit", kind.name, attempt, ended.EndedAt.Sub(end))
			require.Less(t, ended.EndedAt.Sub(end), 30*time.Second, "it is told, and not found out by a lease")
			for _, pid := range all {
				require.False(t, alive(pid), "process %d outlives its run", pid)
			}
		}
		v := w.waitFor(k, "is held", func(v view) bool { return v.Hold != nil && v.settled() })
		require.Len(t, v.Runs, 3)
		w.failures(v, kind.reason, kind.note, 3)
		require.Equal(t, kind.reason, v.Hold.Reason)
	}
	require.Len(t, w.lines("starts"), 3*len(kinds))
	w.verifyLog()
}

// killProcess sends SIGKILL to a process that must be there.
func (w *world) killProcess(pid int) {
	w.t.Helper()
	require.Positive(w.t, pid)
	require.NoError(w.t, syscall.Kill(pid, syscall.SIGKILL))
}

func TestAnAgentThatDoesNotWantToEnd(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{tables: "[limits]\nrun_time = \"8s\"\n"})
	w.setAgent(w.scripts())
	stubborn := `
trap "" TERM HUP INT
setsid sh -c 'trap "" TERM HUP; echo "$GAIA_RUN $$" >>HOME_OF_TEST/children; while :; do sleep 0.5; done' </dev/null >/dev/null 2>&1 &
while :; do sleep 0.5; done
`
	stopped, overtime := w.script("Stopped by a person", stubborn), w.script("Works for too long", stubborn)
	w.gaia("conductor", "enable", "--now", w.instance)
	running := func(k string) (domain.Run, []int) {
		r := w.waitRunning(k)
		w.wait("its child runs", func() bool { return w.child(r.ID) != 0 })
		return r, w.pids(w.runUnit(r))
	}
	r, processes := running(stopped)
	late, others := running(overtime)
	w.gaia("run", "stop", "--", strconv.Itoa(r.Number))
	v := w.waitFor(stopped, "is closed", func(v view) bool { return v.settled() })
	require.Equal(t, domain.ReasonStopped, v.Runs[0].EndReason)
	require.Less(t, v.Runs[0].FinalizedAt.Sub(v.Runs[0].EndedAt.Time), 25*time.Second)
	for _, pid := range processes {
		require.False(t, alive(pid), "process %d outlives its run", pid)
	}

	w.waitFor(overtime, "has failed", func(v view) bool { return len(v.Runs) > 1 || v.Runs[0].State.Ended() })
	ended := w.show(overtime).byNumber()[0]
	require.Equal(t, late.ID, ended.ID)
	require.Equal(t, domain.ReasonRunTime, ended.EndReason, ended.EndNote)
	t.Logf("failed %s after the end of its unit", ended.EndedAt.Sub(w.unitEnd(w.runUnit(late))))
	require.Less(t, ended.EndedAt.Sub(w.unitEnd(w.runUnit(late))), 5*time.Second)
	for _, pid := range others {
		require.False(t, alive(pid), "process %d outlives its run", pid)
	}
}

// child is the process that the agent of a run has started in a session of its own, 0 if it does not say so yet.
func (w *world) child(run string) int {
	w.t.Helper()
	for _, l := range w.lines("children") {
		if of, pid, _ := strings.Cut(l, " "); of == run {
			n, err := strconv.Atoi(pid)
			require.NoError(w.t, err)
			return n
		}
	}
	return 0
}

// named is the one process of a unit with that name.
func (w *world) named(unit, name string) int {
	w.t.Helper()
	found := 0
	for _, pid := range w.pids(unit) {
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err == nil && strings.TrimSpace(string(comm)) == name {
			require.Zero(w.t, found, "two processes are called %s", name)
			found = pid
		}
	}
	return found
}
