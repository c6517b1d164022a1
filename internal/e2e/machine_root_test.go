//go:build linux && root

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gaia/domain"
	"gaia/internal/usermanager"
)

// stages is an agent whose tickets stop at a stage that their title names, until the file go is there. Each start leaves
// a line, and a second start of the same run would leave the same one again.
func (w *world) stages() {
	at := func(name string) string { return filepath.Join(w.env.Home, name) }
	w.setAgent(fmt.Sprintf(`
echo "$GAIA_RUN" >>'%s'
title=$(gaia ticket show -o json | sed -n 's/^  "title": "\(.*\)",$/\1/p' | head -n 1)
wait_for_go() { until [ -e '%s' ]; do sleep 0.1; done; }
case "$title:$GAIA_STATE" in
running:todo) [ -e half ] || echo half >half; wait_for_go; cat half ;;
esac
git add -A; git commit -qm "$GAIA_STATE" --allow-empty
case "$GAIA_STATE" in
todo) gaia ticket move working ;;
working) gaia ticket move done ;;
esac
echo "$GAIA_RUN" >>'%s'
case "$title:$GAIA_STATE" in
written:todo) wait_for_go ;;
esac
`, at("starts"), at("go"), at("moved")))
}

// afterRun holds up the end of the runs of one worktree, until the file go is there.
func afterRun(home string) string {
	return fmt.Sprintf(`
[hooks.after_run]
run = '''
case "$GAIA_TICKET" in "$(cat %[1]s/slow)") echo "$GAIA_RUN" >>%[1]s/after; until [ -e %[1]s/go ]; do sleep 0.1; done ;; esac
'''
timeout = "8s"

[timing]
tick = "500ms"
grace = "60s"
`, home)
}

// staged is a machine on which tickets have come to rest in every stage that a run has.
type staged struct {
	*world
	tickets map[string]string // by stage
	runs    map[string]domain.Run
	trees   map[string]string
	lock    *os.File
}

const (
	waitingForTree = "waiting" // claimed, its host waits for the worktree
	atWork         = "running" // the agent runs
	stateWritten   = "written" // the agent has written its state and not ended its turn
	inAfterRun     = "after"   // the agent has ended, the hook after_run runs
)

func stage(t *testing.T, m *usermanager.Machine, hub string) *staged {
	t.Helper()
	env := m.New(t)
	s := &staged{tickets: map[string]string{}, runs: map[string]domain.Run{}, trees: map[string]string{}}
	s.world = prepareIn(t, env, "", setting{hub: hub, tables: afterRun(env.Home)})
	s.stages()
	s.write(filepath.Join(env.Home, "slow"), "none", 0o644)
	s.gaia("conductor", "trust", s.instance, "--yes")
	s.gaia("conductor", "enable", "--now", s.instance)

	create := func(stage string) string {
		s.tickets[stage] = s.ticket(stage, "--workflow", "gaia_task")
		return s.tickets[stage]
	}
	created := func(stage string) domain.Run {
		var run domain.Run
		s.waitFor(s.tickets[stage], "has a run", func(v view) bool {
			if len(v.Runs) > 0 {
				run = v.Runs[0]
			}
			return len(v.Runs) > 0 && v.Runs[0].Unit != ""
		})
		return run
	}
	s.runs[atWork] = s.waitRunning(create(atWork))
	create(stateWritten)
	s.runs[stateWritten] = created(stateWritten)
	// The slow hook is told its ticket by the next number, before that ticket is there.
	next := len(s.tickets) + 1
	s.write(filepath.Join(env.Home, "slow"), fmt.Sprintf("SHOP-%d", next), 0o644)
	require.Equal(t, fmt.Sprintf("SHOP-%d", next), create(inAfterRun))
	s.runs[inAfterRun] = created(inAfterRun)
	s.wait("the agent has written its state and goes on", func() bool { return slices.Contains(s.lines("moved"), s.runs[stateWritten].ID) })
	s.wait("the hook after_run runs", func() bool { return slices.Contains(s.lines("after"), s.runs[inAfterRun].ID) })

	// The repository's lock is held from outside, so that no worktree is made.
	var err error
	s.lock, err = os.OpenFile(filepath.Join(s.checkout, ".git", "gaia.lock"), os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { s.lock.Close() })
	require.NoError(t, unix.Flock(int(s.lock.Fd()), unix.LOCK_EX))
	create(waitingForTree)
	v := s.waitFor(s.tickets[waitingForTree], "is claimed", func(v view) bool { return len(v.Runs) > 0 })
	s.runs[waitingForTree] = v.Runs[0]
	s.wait("its host waits for the worktree", func() bool {
		_, err := os.Stat(s.runFile(s.runs[waitingForTree], "started"))
		return err == nil
	})
	for name, k := range s.tickets {
		v := s.show(k)
		require.Len(t, v.Runs, 1)
		require.True(t, v.Runs[0].FinalizedAt.IsZero(), name)
		s.trees[name] = string(v.Runs[0].WorktreePath)
	}
	require.Equal(t, domain.RunClaimed, s.show(s.tickets[waitingForTree]).Runs[0].State)
	require.Equal(t, domain.RunRunning, s.show(s.tickets[atWork]).Runs[0].State)
	require.Equal(t, domain.RunDone, s.show(s.tickets[stateWritten]).Runs[0].State)
	require.Equal(t, domain.RunDone, s.show(s.tickets[inAfterRun]).Runs[0].State)
	return s
}

func (w *world) runFile(r domain.Run, name string) string {
	return filepath.Join(w.env.GaiaHome, "state", "runs", r.ID, name)
}

// release lets everything go on that was held up.
func (s *staged) release() {
	s.t.Helper()
	s.write(filepath.Join(s.env.Home, "go"), "", 0o644)
	require.NoError(s.t, unix.Flock(int(s.lock.Fd()), unix.LOCK_UN))
}

// back waits until the conductor has come up without anybody's doing.
func (s *staged) back() {
	s.t.Helper()
	for _, unit := range []string{s.names.HubSocket(), s.conductorUnit(), s.names.Hub()} {
		s.wait(unit+" comes back by itself", func() bool {
			out, err := s.env.Systemctl("is-active", unit)
			return err == nil && strings.TrimSpace(out) == "active"
		})
	}
}

// outcome is how the first run of a stage's ticket is expected to have ended.
type outcome struct {
	state  domain.RunState
	reason domain.Reason
}

// accounted checks that every ticket came to its end, and what became of the runs that were under way.
func (s *staged) accounted(want map[string]outcome) {
	t := s.t
	t.Helper()
	starts := map[string]int{}
	for name, k := range s.tickets {
		v := s.waitState(k, "done")
		require.Zero(t, v.Attempts, "%s: an attempt was counted", name)
		require.Nil(t, v.Hold, name)
		first := v.Runs[slices.IndexFunc(v.Runs, func(r domain.Run) bool { return r.ID == s.runs[name].ID })]
		require.Equal(t, want[name], outcome{first.State, first.EndReason}, "%s: %s", name, first.EndNote)
		extra := 0
		if first.State != domain.RunDone {
			extra = 1
		}
		require.Len(t, v.Runs, 2+extra, "%s: one run for each state, and one more where it was lost", name)
		for _, r := range v.Runs {
			starts[r.ID] = 0
			if r.ID == first.ID {
				continue
			}
			require.Equal(t, domain.RunDone, r.State, "%s: %s %s", name, r.EndReason, r.EndNote)
			// The hub does not learn the tree of a run that ended before its start was told.
			if s.trees[name] != "" && r.WorktreePath != "" {
				require.Equal(t, s.trees[name], string(r.WorktreePath), "%s: the work goes on where it was", name)
			}
		}
	}
	for _, id := range s.lines("starts") {
		starts[id]++
	}
	for id, n := range starts {
		if id == s.runs[waitingForTree].ID {
			require.LessOrEqual(t, n, 1)
			continue
		}
		require.Equal(t, 1, n, "run %s was started %d times", id, n)
	}
	// What the agent had left in its tree when the lights went out is in the branch.
	require.Equal(t, "half", s.git("show", "gaia/"+s.tickets[atWork]+":half"))
	s.verifyLog()
	s.wait("no unit of a run is left", func() bool {
		out, err := s.env.Systemctl("list-units", "--all", "--plain", "--no-legend", s.env.Prefix+"-run-*")
		return err == nil && strings.TrimSpace(out) == ""
	})
	left, err := filepath.Glob(filepath.Join(s.env.GaiaHome, "state", "runs", "*", "token"))
	require.NoError(t, err)
	for _, path := range left {
		_, err := os.Stat(filepath.Join(filepath.Dir(path), "run.json"))
		require.ErrorIs(t, err, os.ErrNotExist, "%s: the token of a closed run is still there", path)
	}
}

var done = outcome{domain.RunDone, ""}

func TestRootAPowerCutWithRunsInEveryStage(t *testing.T) {
	m := usermanager.NewMachine(t)
	s := stage(t, m, "")
	require.NoError(t, m.Crash())
	require.NoError(t, m.Boot())
	s.back()
	s.release()
	lost := outcome{domain.RunFailed, domain.ReasonMachineLost}
	s.accounted(map[string]outcome{atWork: lost, waitingForTree: lost, stateWritten: done, inAfterRun: done})
}

func TestRootAShutdownWithRunsInEveryStage(t *testing.T) {
	m := usermanager.NewMachine(t)
	s := stage(t, m, "")
	require.NoError(t, m.Shutdown())
	rec, err := os.ReadFile(s.runFile(s.runs[atWork], "record.json"))
	require.NoError(t, err, "the host has written down how the run ended")
	require.Contains(t, string(rec), `"term"`)
	require.NoError(t, m.Boot())
	s.back()
	s.release()
	// A claim whose agent was not let on is taken back by the conductor that stops, or ends with its host.
	first := s.show(s.tickets[waitingForTree]).Runs
	lost := outcome{domain.RunFailed, domain.ReasonSessionLost}
	waiting := lost
	for _, r := range first {
		if r.ID == s.runs[waitingForTree].ID && r.EndReason == domain.ReasonUndone {
			waiting = outcome{domain.RunFailed, domain.ReasonUndone}
		}
	}
	s.accounted(map[string]outcome{atWork: lost, waitingForTree: waiting, stateWritten: done, inAfterRun: done})
}

func TestRootTheUserManagerIsKilledAndComesBackInTheSameBoot(t *testing.T) {
	m := usermanager.NewMachine(t)
	s := stage(t, m, "")
	require.NoError(t, m.Crash())
	require.NoError(t, m.Login())
	s.back()
	s.release()
	lost := outcome{domain.RunFailed, domain.ReasonSessionLost}
	s.accounted(map[string]outcome{atWork: lost, waitingForTree: lost, stateWritten: done, inAfterRun: done})
}

// briefHub has leases that end while a machine is started.
const briefHub = `[leases]
claim = "3s"
claim_max = "6s"
running = "3s"
parting = "3s"

[limits]
backoff_base = "200ms"
backoff_max = "1s"
offline_after = "2s"
finalise_grace = "1h"
`

func TestRootAMachineThatIsDownForLongerThanEveryLease(t *testing.T) {
	m := usermanager.NewMachine(t)
	s := stage(t, m, briefHub)
	require.NoError(t, m.Crash())
	over := time.Now().Add(8 * time.Second) // longer than claim_max
	s.env.WaitFor(t, func() bool { return time.Now().After(over) }, time.Minute, "the leases to be over")
	require.NoError(t, m.Boot())
	s.back()
	s.release()
	// The hub was down as long: nobody could renew a lease, so none has run out, and the records decide.
	lost := outcome{domain.RunFailed, domain.ReasonMachineLost}
	s.accounted(map[string]outcome{atWork: lost, waitingForTree: lost, stateWritten: done, inAfterRun: done})
}

func TestRootTheHubExpiresRunsWhoseConductorDoesNotComeBack(t *testing.T) {
	m := usermanager.NewMachine(t)
	s := stage(t, m, briefHub)
	s.gaia("conductor", "disable", s.instance)
	require.NoError(t, m.Crash())
	require.NoError(t, m.Boot())
	for _, name := range []string{atWork, waitingForTree} {
		s.waitFor(s.tickets[name], "expires", func(v view) bool { return v.live() == nil })
	}
	// The tree is on this machine, and its conductor is not lost, only late.
	require.Contains(t, s.gaia("why", s.tickets[atWork]), "tree")
	s.gaia("conductor", "enable", "--now", s.instance)
	s.back()
	s.release()
	lost := outcome{domain.RunExpired, domain.ReasonMachineLost}
	s.accounted(map[string]outcome{atWork: lost, waitingForTree: lost, stateWritten: done, inAfterRun: done})
}
