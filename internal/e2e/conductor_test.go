package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gaia/domain"
	"gaia/internal/usermanager"
	"gaia/session"
	"gaia/tmux/executor"
	"gaia/units"
)

// restartQuickly lets systemd restart the conductor after so short a time, as often as a test kills it.
func (w *world) restartQuickly(after time.Duration) {
	w.t.Helper()
	config := ""
	for _, v := range w.env.Environ() {
		if dir, ok := strings.CutPrefix(v, "XDG_CONFIG_HOME="); ok {
			config = dir
		}
	}
	w.write(filepath.Join(config, "systemd", "user", w.names.Conductor("")+".d", "test.conf"),
		fmt.Sprintf("[Unit]\nStartLimitIntervalSec=0\n[Service]\nRestartSec=%dms\n", after.Milliseconds()), 0o644)
	_, err := w.env.Systemctl("daemon-reload")
	require.NoError(w.t, err)
}

func (w *world) runsDir() string { return filepath.Join(w.env.GaiaHome, "state", "runs") }

func (w *world) folder(r domain.Run) session.Folder {
	return session.Folder(filepath.Join(w.runsDir(), r.ID))
}

func (w *world) treesDir() string { return filepath.Join(w.env.GaiaHome, "worktrees", w.instance) }

// process is a process that is never mistaken for a later one of the same number.
type process struct{ pid, fd int }

// conductor waits until the conductor's process is another than the one before, and holds it.
func (w *world) conductor(before int) process {
	w.t.Helper()
	var p process
	w.wait("a new process of the conductor", func() bool {
		p.pid = w.mainPID(w.conductorUnit())
		if p.pid == 0 || p.pid == before {
			return false
		}
		fd, err := unix.PidfdOpen(p.pid, 0)
		p.fd = fd
		return err == nil
	})
	return p
}

// kill ends the process, if it is still there.
func (p process) kill(t *testing.T) {
	t.Helper()
	if err := unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0); err != nil {
		require.ErrorIs(t, err, syscall.ESRCH)
	}
	require.NoError(t, unix.Close(p.fd))
}

// killAll ends the conductor with everything that it has started, as a kernel that runs out of memory might: no git has the
// time to remove its locks.
func (w *world) killAll(p process) {
	w.t.Helper()
	group := w.property(w.conductorUnit(), "ControlGroup")
	err := os.WriteFile(filepath.Join("/sys/fs/cgroup", group, "cgroup.kill"), []byte("1"), 0)
	if err != nil {
		require.ErrorIs(w.t, err, os.ErrNotExist)
	}
	p.kill(w.t)
}

// appears waits a while until a pattern matches a path that it did not match before.
func appears(t *testing.T, pattern string, known map[string]bool, limit time.Duration) bool {
	t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(time.Millisecond) {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, f := range found {
			if !known[f] {
				known[f] = true
				return true
			}
		}
	}
	return false
}

// nothingLostOrDoubled waits until every ticket is where it should be, and checks that each run started its agent once and
// came to a good end.
func (w *world) nothingLostOrDoubled(tickets []string, state string, perTicket int) {
	w.t.Helper()
	starts := map[string]int{}
	runs := 0
	for _, k := range tickets {
		v := w.waitState(k, state)
		require.Len(w.t, v.Runs, perTicket, k)
		require.Nil(w.t, v.Hold)
		for _, r := range v.Runs {
			require.Equal(w.t, domain.RunDone, r.State, "%s run %d: %s %s", k, r.Number, r.EndReason, r.EndNote)
			starts[r.ID] = 0
			runs++
		}
	}
	for _, id := range w.lines("starts") {
		_, known := starts[id]
		require.True(w.t, known, "an agent was started for the run %s, which nobody knows", id)
		starts[id]++
	}
	for id, n := range starts {
		require.Equal(w.t, 1, n, "starts of run %s", id)
	}
	w.verifyLog()
	w.wait("every unit of the runs is gone", func() bool {
		out, err := w.env.Systemctl("list-units", "--all", "--plain", "--no-legend", w.env.Prefix+"-run-*")
		return err == nil && strings.TrimSpace(out) == ""
	})
}

// The files by which a run's dispatch and end can be followed, in their order, and the pauses after each at which the
// conductor is killed.
var (
	steps  = []string{"token", "claim.json", "run.json", "started", "prompt.md", "env.json", "begin.json", "tree.json", "exec", "record.json", "reported"}
	pauses = []time.Duration{0, 3 * time.Millisecond, 20 * time.Millisecond, 80 * time.Millisecond}
)

func TestAConductorKilledAtEveryStepOfADispatch(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{})
	w.setAgent(w.note("starts") + carry)
	w.restartQuickly(50 * time.Millisecond)
	var tickets []string
	for i := range 12 {
		tickets = append(tickets, w.ticket(fmt.Sprintf("Ticket %d", i)))
	}
	w.gaia("conductor", "enable", "--now", w.instance)

	known := map[string]bool{}
	kills, before := 0, 0
	for _, pause := range pauses {
		for _, step := range steps {
			p := w.conductor(before)
			before = p.pid
			if appears(t, filepath.Join(w.runsDir(), "*", step), known, 4*time.Second) {
				time.Sleep(pause) // where in the step the kill falls, not something to wait for
				kills++
			}
			p.kill(t)
		}
	}
	for range 10 { // and at any other moment
		p := w.conductor(before)
		before = p.pid
		time.Sleep(time.Duration(rand.IntN(1500)) * time.Millisecond)
		p.kill(t)
	}
	t.Logf("killed at %d steps", kills)
	require.Greater(t, kills, 20)
	w.nothingLostOrDoubled(tickets, "done", 4)
}

func TestAConductorKilledAroundTheEndOfRuns(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{})
	w.setAgent(w.note("starts") + `
[ "$GAIA_ATTEMPT" != 1 ] || exit 3
exec gaia ticket move done
`)
	w.restartQuickly(50 * time.Millisecond)
	var tickets []string
	for i := range 12 {
		tickets = append(tickets, w.ticket(fmt.Sprintf("Ticket %d", i), "--workflow", "gaia_task", "--state", "working"))
	}
	w.gaia("conductor", "enable", "--now", w.instance)
	known := map[string]bool{}
	kills, before := 0, 0
	for _, pause := range pauses {
		for _, step := range []string{"stopping", "record.json", "verdict.json", "reported"} {
			p := w.conductor(before)
			before = p.pid
			if appears(t, filepath.Join(w.runsDir(), "*", step), known, 4*time.Second) {
				time.Sleep(pause) // where in the step the kill falls, not something to wait for
				kills++
			}
			p.kill(t)
		}
	}
	t.Logf("killed at %d steps", kills)
	require.Greater(t, kills, 8)
	for _, k := range tickets {
		runs := w.waitState(k, "done").byNumber()
		require.Len(t, runs, 2, k)
		require.Equal(t, domain.RunFailed, runs[0].State)
		require.Equal(t, domain.ReasonAgentExit, runs[0].EndReason)
		require.Contains(t, runs[0].EndNote, "status 3")
		require.Equal(t, domain.RunDone, runs[1].State)
		require.Equal(t, 2, runs[1].Attempt)
	}
	starts := w.lines("starts")
	slices.Sort(starts)
	require.Len(t, slices.Compact(starts), 2*len(tickets))
	require.Len(t, w.lines("starts"), 2*len(tickets))
	w.verifyLog()
}

func TestAConductorKilledDuringTheCheckoutOfALargeTree(t *testing.T) {
	t.Parallel()
	const files = 6000
	w := prepare(t, "", setting{conductor: "max_parallel = 2", repo: func(w *world) {
		for i := range files {
			w.write(filepath.Join(w.checkout, fmt.Sprintf("pkg%d", i/100), fmt.Sprintf("file%d.txt", i)), strings.Repeat(fmt.Sprintf("line of %d\n", i), 200), 0o644)
		}
		w.git("add", ".")
		w.git("commit", "--quiet", "-m", "A large shop")
	}})
	w.setAgent(w.note("starts") + fmt.Sprintf(`
[ -z "$(git status --porcelain)" ] || { git status --short | head; exit 7; }
[ "$(git ls-files 'pkg*' | wc -l)" = %d ] || exit 8
[ "$(find . -path './pkg*' -type f | wc -l)" = %[1]d ] || exit 9
exec gaia ticket move done
`, files))
	w.restartQuickly(50 * time.Millisecond)
	var tickets []string
	for i := range 8 {
		tickets = append(tickets, w.ticket(fmt.Sprintf("Ticket %d", i), "--workflow", "gaia_task", "--state", "working"))
	}
	w.gaia("conductor", "enable", "--now", w.instance)

	// Each kill falls when a checkout that this process has begun has come so far, from nothing to nearly everything.
	seen := map[string]bool{}
	partial, before := 0, 0
	for i := range 14 {
		p := w.conductor(before)
		before = p.pid
		tree := w.begunTree(seen)
		if tree == "" {
			p.kill(t)
			break
		}
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if there, err := filepath.Glob(filepath.Join(tree, "pkg*")); err == nil && len(there) >= i*files/100/14 {
				break
			}
		}
		if i%2 == 0 {
			p.kill(t)
		} else {
			w.killAll(p)
		}
		if _, err := os.Stat(w.marker(tree)); err != nil {
			partial++
		}
	}
	// How many is a matter of the machine's speed, but the first kill falls as soon as an unfinished tree is seen.
	t.Logf("%d checkouts were cut short", partial)
	require.Positive(t, partial)
	w.nothingLostOrDoubled(tickets, "done", 1)
}

// marker is the file that says of a worktree that it is whole.
func (w *world) marker(tree string) string {
	link, err := os.ReadFile(filepath.Join(tree, ".git")) // a tree that was a spare has a git directory of another name
	if err != nil {
		return filepath.Join(tree, ".git", "gaia.json")
	}
	return filepath.Join(strings.TrimSpace(strings.TrimPrefix(string(link), "gitdir: ")), "gaia.json")
}

// begunTree waits for a worktree whose folder was made after the last look and which is not whole; "" if none comes.
func (w *world) begunTree(seen map[string]bool) string {
	w.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		trees, err := filepath.Glob(filepath.Join(w.treesDir(), "*"))
		require.NoError(w.t, err)
		for _, tree := range trees {
			var st unix.Statx_t
			if unix.Statx(unix.AT_FDCWD, tree, 0, unix.STATX_INO|unix.STATX_BTIME, &st) != nil {
				continue // it is being removed
			}
			made := fmt.Sprintf("%s %d %d.%09d", tree, st.Ino, st.Btime.Sec, st.Btime.Nsec)
			if seen[made] {
				continue
			}
			seen[made] = true
			if _, err := os.Stat(w.marker(tree)); err != nil {
				return tree
			}
		}
	}
	return ""
}

// patient is an agent that leaves its process id and waits for the file go, then moves its ticket on.
func (w *world) patient() string {
	return w.note("starts") + fmt.Sprintf(`
echo "$GAIA_RUN $$" >>'%[1]s/pids'
while [ ! -e '%[1]s/go' ]; do sleep 0.5; done
exec gaia ticket move done
`, w.env.Home)
}

// panes returns the process of each run's pane, as the agents say.
func (w *world) panes() map[string]int {
	w.t.Helper()
	out := map[string]int{}
	for _, l := range w.lines("pids") {
		run, pid, ok := strings.Cut(l, " ")
		require.True(w.t, ok, l)
		n, err := strconv.Atoi(pid)
		require.NoError(w.t, err)
		require.Zero(w.t, out[run], "run %s has a second agent", run)
		out[run] = n
	}
	return out
}

// replaceBinaries puts copies of the binaries of one folder into another, as a package manager does.
func replaceBinaries(t *testing.T, to, from string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(to, 0o755))
	for _, name := range []string{"gaia", "gaia-hub", "gaia-conductor", "gaia-session"} {
		data, err := os.ReadFile(filepath.Join(from, name))
		require.NoError(t, err)
		path := filepath.Join(to, name)
		require.NoError(t, os.WriteFile(path+".new", data, 0o755))
		require.NoError(t, os.Rename(path+".new", path))
	}
}

// executable is the file that a process runs.
func executable(t *testing.T, pid int) fs.FileInfo {
	t.Helper()
	info, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	require.NoError(t, err)
	return info
}

// heardSince waits until the hub has heard from the conductor since a moment.
func (w *world) heardSince(at time.Time) {
	w.t.Helper()
	w.wait("a heartbeat", func() bool {
		out := w.gaia("conductor", "list", "-o", "json")
		_, rest, ok := strings.Cut(out, `"last_seen":`)
		if !ok {
			return false
		}
		seen, _, _ := strings.Cut(strings.TrimLeft(rest, " \""), `"`)
		when, err := time.Parse(time.RFC3339, seen)
		return err == nil && when.After(at)
	})
}

func TestTenAgentsOutliveStopRestartDeathAndUpgradeOfTheConductor(t *testing.T) {
	t.Parallel()
	const agents = 10
	env := usermanager.New(t)
	shared := env.Bin
	env.Bin = filepath.Join(env.Home, "bin")
	replaceBinaries(t, env.Bin, shared)
	w := prepareIn(t, env, "", setting{hub: quickHub, conductor: fmt.Sprintf("max_parallel = %d", agents)})
	w.setAgent(w.patient())
	w.restartQuickly(50 * time.Millisecond)
	var tickets []string
	for i := range agents {
		tickets = append(tickets, w.ticket(fmt.Sprintf("Ticket %d", i), "--workflow", "gaia_task", "--state", "working"))
	}
	w.gaia("conductor", "enable", "--now", w.instance)
	runs := map[string]domain.Run{}
	for _, k := range tickets {
		runs[k] = w.waitRunning(k)
	}
	w.wait("every agent says its process", func() bool { return len(w.panes()) == agents })
	panes := w.panes()

	// same: every lease holds, every run has its process in its unit, and nothing was started again.
	same := func(after string) {
		t.Helper()
		w.heardSince(time.Now())
		for _, k := range tickets {
			live := w.show(k).live()
			require.NotNil(t, live, "%s: %s has lost its run", after, k)
			require.Equal(t, runs[k].ID, live.ID, after)
			require.Equal(t, domain.RunRunning, live.State, after)
			require.Contains(t, w.pids(w.runUnit(*live)), panes[live.ID], after)
		}
		require.Equal(t, panes, w.panes(), after)
		require.Len(t, w.lines("starts"), agents, after)
	}
	same("the start")

	w.gaia("conductor", "restart", w.instance)
	same("a restart")

	before := w.mainPID(w.conductorUnit())
	w.killMain(w.conductorUnit())
	w.conductor(before)
	same("the death of the conductor")

	// Away for longer than a running lease lives, and shorter than what a clean stop leaves.
	w.gaia("conductor", "stop", w.instance)
	stopped := time.Now()
	w.wait("the running leases would have run out", func() bool { return time.Since(stopped) > 16*time.Second })
	for _, k := range tickets {
		require.NotNil(t, w.show(k).live(), "%s has lost its run while the conductor was away", k)
	}
	w.gaia("conductor", "start", w.instance)
	same("a stop of 16 s")

	old := executable(t, w.mainPID(w.conductorUnit()))
	replaceBinaries(t, env.Bin, shared)
	w.gaia("conductor", "restart", w.instance)
	require.False(t, os.SameFile(old, executable(t, w.mainPID(w.conductorUnit()))), "the old binary still runs")
	same("an upgrade")

	w.refusesASecondStart(runs[tickets[0]])
	same("a second start that was refused")

	w.write(filepath.Join(w.env.Home, "go"), "", 0o644)
	w.nothingLostOrDoubled(tickets, "done", 1)
	w.refusesASecondStart(runs[tickets[0]])
	require.Len(t, w.lines("starts"), agents)
}

// refusesASecondStart tries to start a run again by the conductor's own way and by hand.
func (w *world) refusesASecondStart(r domain.Run) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	m, err := units.Connect(ctx, w.env.Runtime)
	require.NoError(w.t, err)
	defer m.Close()
	folder := w.folder(r)
	before, err := folder.Started()
	require.NoError(w.t, err)
	e := executor.New(executor.Config{
		Units: m, Names: w.names, Instance: w.instance, Runs: w.runsDir(), Session: filepath.Join(w.env.Bin, "gaia-session"),
	})
	err = e.Start(ctx, domain.Launch{Run: r.ID, Number: r.Number, Folder: string(folder)})
	require.ErrorIs(w.t, err, domain.ErrExists)

	// By hand, in another unit, with what ends a run's unit too: neither touches what the run itself has left.
	host := filepath.Join(w.env.Bin, "gaia-session")
	_, recordErr := folder.Record()
	out, said, code := w.try("systemd-run", "--user", "--wait", "--quiet", "--unit="+w.env.Prefix+"-twice-"+strconv.FormatUint(rand.Uint64(), 36),
		"--property=ExecStopPost="+host+" post "+string(folder), host, "host", string(folder))
	require.Equal(w.t, 75, code, "%s%s", out, said)
	after, err := folder.Started()
	require.NoError(w.t, err)
	require.Equal(w.t, before, after)
	_, err = folder.Record()
	require.Equal(w.t, recordErr == nil, err == nil)
	if recordErr != nil { // it lives: the unit's name is taken as well
		_, said, code = w.try("systemd-run", "--user", "--quiet", "--unit="+w.runUnit(r), host, "host", string(folder))
		require.NotZero(w.t, code)
		require.Contains(w.t, said, "already loaded")
	}
}

func TestStopDrainAndDisableUnderALiveAgent(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{})
	w.setAgent(w.patient())
	w.gaia("conductor", "enable", "--now", w.instance)
	k := w.ticket("To be stopped", "--workflow", "gaia_task", "--state", "working")
	r := w.waitRunning(k)
	unit := w.runUnit(r)
	w.wait("the agent says its process", func() bool { return w.panes()[r.ID] > 0 })

	// A person's stop ends the agent, keeps the tree and holds the ticket.
	w.gaia("run", "stop", "--note", "wrong direction", "--", strconv.Itoa(r.Number))
	v := w.waitFor(k, "is stopped", func(v view) bool { return v.settled() })
	require.Equal(t, domain.RunFailed, v.Runs[0].State)
	require.Equal(t, domain.ReasonStopped, v.Runs[0].EndReason)
	require.Contains(t, v.Runs[0].EndNote, "wrong direction")
	require.NotNil(t, v.Hold)
	require.Equal(t, domain.ReasonStopped, v.Hold.Reason)
	require.Zero(t, v.Attempts)
	require.DirExists(t, filepath.Join(w.treesDir(), k))
	require.False(t, alive(w.panes()[r.ID]))
	w.wait("the unit is gone", func() bool { return w.property(unit, "LoadState") == "not-found" })

	w.gaia("ticket", "resume", "--", k)
	r = w.waitRunning(k)
	w.wait("the second agent says its process", func() bool { return w.panes()[r.ID] > 0 })
	pid := w.panes()[r.ID]

	// Drained, it claims nothing more, also after a restart, and its run goes on.
	w.gaia("conductor", "drain", w.instance)
	waiting := w.ticket("Has to wait", "--workflow", "gaia_task", "--state", "working")
	w.gaia("conductor", "restart", w.instance)
	w.heardSince(time.Now())
	w.heardSince(time.Now())
	require.Contains(t, w.gaia("why", "--", waiting), "drain")
	require.Empty(t, w.show(waiting).Runs)
	require.True(t, alive(pid))
	w.gaia("conductor", "resume", w.instance)
	w.waitRunning(waiting)

	// Disabled and stopped, it leaves its agents; enabled, it has them again.
	w.gaia("conductor", "disable", "--now", w.instance)
	require.Equal(t, "inactive", w.property(w.conductorUnit(), "ActiveState"))
	require.Equal(t, "disabled", w.property(w.conductorUnit(), "UnitFileState"))
	require.True(t, alive(pid))
	require.Equal(t, r.ID, w.show(k).live().ID)
	w.gaia("conductor", "enable", "--now", w.instance)
	w.heardSince(time.Now())
	require.Equal(t, r.ID, w.show(k).live().ID)
	require.True(t, alive(pid))
	w.write(filepath.Join(w.env.Home, "go"), "", 0o644)
	require.Len(t, w.waitState(k, "done").Runs, 2)
	require.Len(t, w.waitState(waiting, "done").Runs, 1)
	require.Len(t, w.lines("starts"), 3)

	// Stopped by a person while no conductor is there, an agent is ended by the next one.
	require.NoError(t, os.Remove(filepath.Join(w.env.Home, "go")))
	k = w.ticket("To be stopped later", "--workflow", "gaia_task", "--state", "working")
	r = w.waitRunning(k)
	w.wait("the agent says its process", func() bool { return w.panes()[r.ID] > 0 })
	pid = w.panes()[r.ID]
	w.gaia("conductor", "stop", w.instance)
	w.gaia("run", "stop", "--retry", "--", strconv.Itoa(r.Number))
	require.True(t, alive(pid))
	w.gaia("conductor", "start", w.instance)
	again := w.waitFor(k, "runs again", func(v view) bool { return v.live() != nil && v.live().State == domain.RunRunning })
	require.False(t, alive(pid), "two agents in one tree")
	require.Len(t, again.Runs, 2)
	require.Nil(t, again.Hold)
}

func TestATicketIsClaimedAtOnceAfterRegistration(t *testing.T) {
	t.Parallel()
	// Thirty seconds between ticks: only the event stream, and its begin, can bring one before.
	w := prepare(t, "exec gaia ticket move done\n", setting{tables: "[timing]\ntick = \"30s\"\n"})
	w.gaia("conductor", "enable", "--now", w.instance)
	k := w.ticket("At once", "--workflow", "gaia_task", "--state", "working")
	v := w.waitFor(k, "is done", func(v view) bool { return v.State == "done" })
	waited := v.Runs[0].ClaimedAt.Sub(v.CreatedAt.Time)
	t.Logf("claimed after %s", waited)
	require.Less(t, waited, 15*time.Second)
}
