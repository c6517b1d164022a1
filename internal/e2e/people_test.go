package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"gaia/domain"
)

// tree is the worktree of a run.
func (w *world) tree(r domain.Run) string {
	w.t.Helper()
	require.NotEmpty(w.t, r.WorktreePath)
	return string(r.WorktreePath)
}

func TestAPersonsMoveEndsALiveRunAndKeepsItsTree(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{})
	w.setAgent(w.patientAgent())
	w.gaia("conductor", "enable", "--now", w.instance)
	for _, c := range []struct{ name, to string }{{"move", "human_input"}, {"cancel", "cancelled"}, {"move on", "review"}} {
		t.Run(c.name, func(t *testing.T) {
			k := w.chore("A person will " + c.name)
			run, pid := w.waitRunning(k), w.agentPID(k)
			from := time.Now()
			if c.to == "review" { // so that nobody takes it up at once
				w.gaia("conductor", "drain", w.instance)
				t.Cleanup(func() { w.gaia("conductor", "resume", w.instance) })
			}
			w.gaia("ticket", "move", k, c.to)
			v := w.show(k)
			require.Equal(t, c.to, v.State)
			require.Equal(t, domain.RunFailed, v.Runs[0].State, "ended in the transaction of the move")
			require.Equal(t, domain.ReasonSuperseded, v.Runs[0].EndReason)
			w.wait("the agent is gone", func() bool { return !alive(pid) })
			require.Less(t, time.Since(from), 20*time.Second, "there is no grace for an agent that was overtaken")
			v = w.waitFor(k, "is finalised", view.settled)
			require.Len(t, v.Runs, 1)
			require.Zero(t, v.Attempts)
			require.Nil(t, v.Hold)
			require.Empty(t, v.RetryAt.String())
			data, err := os.ReadFile(filepath.Join(w.tree(run), "work.txt"))
			require.NoError(t, err, "the tree is kept, with what was not committed")
			require.Equal(t, "work\n", string(data))
			w.wait("the unit is gone", func() bool { return len(w.pids(w.runUnit(run))) == 0 })
		})
	}
	w.verifyLog()
}

func TestOtherChangesByAPersonDoNotEndALiveRun(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{})
	w.setAgent(w.patientAgent())
	w.gaia("conductor", "enable", "--now", w.instance)
	_, _ = w.stranger("other")
	_, err := w.person().PutUser(t.Context(), domain.User{ID: "bob"})
	require.NoError(t, err)
	blocker := w.ticket("Something else", "--not-before", "2099-01-01T00:00:00Z")
	k := w.chore("Stays with its agent")
	run, pid := w.waitRunning(k), w.agentPID(k)

	w.gaia("ticket", "target", k, "other")
	w.gaia("ticket", "assign", k, "bob")
	w.gaia("ticket", "block", k, "--by", blocker)
	w.gaia("ticket", "label", k, "urgent")
	w.gaia("ticket", "edit", k, "--title", "Another title", "--priority", "1", "--not-before", "2099-01-01T00:00:00Z")
	w.gaia("ticket", "hold", k, "--note", "look at it first")
	w.gaia("ticket", "move", k, "coding") // where it is: no transition
	v := w.show(k)
	require.Equal(t, domain.Ref("bob"), v.Assignee)
	require.NotEmpty(t, v.Target)
	require.Len(t, v.BlockedBy, 1)
	require.NotNil(t, v.Hold)

	// The conductor has looked at it more than once since.
	seen := w.beats(3)
	w.wait("the conductor has looked again", seen)
	v = w.show(k)
	require.NotNil(t, v.live())
	require.Equal(t, run.ID, v.live().ID)
	require.True(t, alive(pid))
	// What is blocked cannot be done, which the agent is told; it can hand its work on.
	out := filepath.Join(w.env.Home, "refused")
	w.tell(k, fmt.Sprintf(`git add .; git commit -qm Work
code=0; gaia ticket move done 2>%q || code=$?
echo "$code" >>%q
exec gaia ticket move review`, out, out))
	v = w.waitFor(k, "is handed on by the same run", func(v view) bool { return v.State == "review" && v.settled() })
	require.Len(t, v.Runs, 1)
	require.Equal(t, domain.RunDone, v.Runs[0].State)
	refused := w.lines("refused")
	require.Contains(t, refused[0], blocker)
	require.Equal(t, "4", refused[len(refused)-1])
}

// beats returns a condition: the conductor has sent n more heartbeats.
func (w *world) beats(n int) func() bool {
	c := w.person()
	last := ""
	return func() bool {
		con, err := c.Conductor(w.t.Context(), "ada.desk."+w.instance)
		require.NoError(w.t, err)
		if s := con.LastSeen.String(); s != last {
			last = s
			n--
		}
		return n < 0
	}
}

func TestLateWritesOfAnEndedRunAreRefusedInsideThePane(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{})
	w.setAgent(w.patientAgent())
	w.gaia("conductor", "enable", "--now", w.instance)
	k := w.chore("Is overtaken")
	w.waitRunning(k)
	w.agentPID(k)
	w.gaia("conductor", "stop", w.instance) // nobody ends the session meanwhile
	w.gaia("ticket", "move", k, "human_input")
	out := filepath.Join(w.env.Home, "late")
	w.tell(k, fmt.Sprintf(`git add .; git commit -qm Work
for words in "comment hello" "move done" "label $GAIA_TICKET x" "edit --title x" "create --parent $GAIA_TICKET x"; do
	code=0; said=$(gaia ticket $words 2>&1) || code=$?
	echo "$code $said" | head -n 1 >>%q.new
done
mv %q.new %q
sleep 600`, out, out, out))
	w.wait("every late write is answered", func() bool { return len(w.lines("late")) == 5 })
	for _, l := range w.lines("late") {
		require.True(t, strings.HasPrefix(l, "1 "), l)
		require.Contains(t, l, "has ended", l)
	}
	v := w.show(k)
	require.Equal(t, "human_input", v.State)
	require.Equal(t, "Is overtaken", v.Title)
	require.Empty(t, v.Comments)
	require.Empty(t, v.Labels)
	w.gaia("conductor", "start", w.instance)
	v = w.waitFor(k, "is finalised", view.settled)
	require.Len(t, v.Runs, 1)
	require.Equal(t, domain.ReasonSuperseded, v.Runs[0].EndReason)
}

// watching runs a command that prints again and again, and returns what it has printed.
func (w *world) watching(args ...string) func() string {
	w.t.Helper()
	cmd := w.env.Command("gaia", args...)
	cmd.Dir = w.checkout
	var out locked
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(w.t, cmd.Start())
	w.t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		require.NoError(w.t, cmd.Wait(), "an interrupted --watch has done what it was asked")
	})
	return out.String
}

// locked is a buffer that is read while it is written.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.b.Write(p) }
func (l *locked) String() string              { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

func TestWatchShowsWhatChanges(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{})
	w.setAgent(w.patientAgent())
	w.gaia("conductor", "enable", "--now", w.instance)
	board := w.watching("board", "--watch")
	list := w.watching("ticket", "list", "--watch", "--all")
	runs := w.watching("run", "list", "--watch")
	k := w.chore("Watched")
	w.waitRunning(k)
	w.wait("the board shows the run", func() bool { return strings.Contains(board(), "run 1 running") })
	w.wait("the list shows the ticket", func() bool { return strings.Contains(list(), k) && strings.Contains(list(), "Watched") })
	w.wait("the runs show it", func() bool { return strings.Contains(runs(), "SHOP/1") })

	w.killMain(w.names.Hub()) // watching goes on over a restart of the hub
	w.tell(k, finish)
	w.waitState(k, "done")
	after := func(out func() string, word string) func() bool {
		return func() bool {
			s := out()
			return strings.Contains(s[strings.LastIndex(s, "\n\n")+1:], word) || strings.Contains(s[strings.LastIndex(s[:len(s)-1], k):], word)
		}
	}
	w.wait("the list shows that it is done", after(list, "done"))
	w.wait("the runs show that it is done", after(runs, "done"))
	w.wait("the board shows the done column", func() bool { return strings.Contains(board(), "DONE") || strings.Contains(board(), "done") })
	require.NotContains(t, board(), "\x1b[", "no terminal, no control sequences")
}

// failing are the gates that do not let a ticket through to the world's conductor, with their reasons.
func (w *world) failing(identifier string) map[string]string {
	w.t.Helper()
	var why domain.Why
	require.NoError(w.t, json.Unmarshal([]byte(w.gaia("why", identifier, "-o", "json")), &why))
	out := map[string]string{}
	for _, c := range why.Conductors {
		if c.MachineID != "ada.desk."+w.instance {
			continue
		}
		for _, g := range c.Gates {
			require.NotEmpty(w.t, g.Reason)
			if !g.Pass {
				out[g.Gate] = g.Reason
			}
		}
		require.Equal(w.t, len(out) == 0, c.Eligible)
	}
	return out
}

func TestWhyNamesEachReason(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{conductor: "max_parallel = 3\nstates = [\"coding\", \"todo\", \"review\"]\n[slots]\nreview = 0\n"})
	w.setAgent(w.patientAgent())
	w.gaia("conductor", "enable", "--now", w.instance)
	_, other := w.stranger("other")
	person := w.person()
	_, err := person.PutUser(t.Context(), domain.User{ID: "bob"})
	require.NoError(t, err)
	later := w.chore("Later", "--not-before", "2099-01-01T00:00:00Z")
	live := w.chore("At work")
	w.waitRunning(live)

	held := w.chore("Held", "--not-before", "2099-01-01T00:00:00Z")
	w.gaia("ticket", "hold", held, "--note", "not now")
	question := w.chore("Asks")
	w.waitRunning(question)
	w.gaia("ticket", "move", question, "human_input")
	fails := w.chore("Fails")
	w.agentPID(fails)
	w.tell(fails, "exit 9")
	w.waitFor(fails, "has failed", func(v view) bool { return v.Hold != nil && v.settled() })

	for _, c := range []struct{ what, ticket, gate, reason string }{
		{"not before", later, domain.GateWait, "not before 2099-01-01"},
		{"live run", live, domain.GateLiveRun, "is running"},
		{"hold", held, domain.GateHold, "not now"},
		{"human input", question, domain.GateState, "waits for a person"},
		{"attempts", fails, domain.GateHold, string(domain.ReasonAgentExit)},
		{"states", w.ticket("To be qualified"), domain.GateStates, "takes only coding, todo, review"},
		{"slots of a state", w.chore("To be reviewed", "--state", "review"), domain.GateConductor, "no slots for review"},
		{"target", w.chore("For another", "--target", "other"), domain.GateTarget, other.MachineID},
		{"assignee", w.chore("For bob", "--assignee", "bob"), domain.GateAssignee, "assigned to bob"},
		{"agent", w.chore("For another agent", "--agent", "claude"), domain.GateServable, "claude"},
		{"blockers", w.chore("Blocked", "--blocked-by", later), domain.GateBlockers, later + " (coding)"},
	} {
		t.Run(c.what, func(t *testing.T) {
			var f map[string]string
			w.wait("why says "+c.reason, func() bool { f = w.failing(c.ticket); return strings.Contains(f[c.gate], c.reason) })
			require.Regexp(t, "(FAIL|wait)  "+c.gate, w.gaia("why", c.ticket), "people read it, too")
		})
	}

	t.Run("cluster cap", func(t *testing.T) {
		p, err := person.ProjectByKey(t.Context(), "SHOP")
		require.NoError(t, err)
		before := p.Settings
		p.Settings.ClusterCap = 1
		_, err = person.PatchProject(t.Context(), p.ID, domain.ProjectPatch{Settings: &p.Settings})
		require.NoError(t, err)
		k := w.chore("Over the cap")
		require.Contains(t, w.failing(k)[domain.GateCap], "1 of 1 runs")
		_, err = person.PatchProject(t.Context(), p.ID, domain.ProjectPatch{Settings: &before})
		require.NoError(t, err)
		w.waitRunning(k)
	})
	t.Run("slots", func(t *testing.T) {
		w.waitRunning(w.chore("Fills the last slot"))
		require.Contains(t, w.failing(w.chore("Has no slot"))[domain.GateConductor], "3 of 3 slots")
	})
	t.Run("drained", func(t *testing.T) {
		w.gaia("conductor", "drain", w.instance)
		require.Contains(t, w.failing(w.chore("Drained"))[domain.GateConductor], "draining (gaia conductor resume)")
	})
	t.Run("tree", func(t *testing.T) {
		// The live run's work is on this machine; for the other conductor that is a reason.
		var why domain.Why
		require.NoError(t, json.Unmarshal([]byte(w.gaia("why", live, "-o", "json")), &why))
		found := false
		for _, con := range why.Conductors {
			for _, g := range con.Gates {
				found = found || con.MachineID == other.MachineID && g.Gate == domain.GateTree && !g.Pass && strings.Contains(g.Reason, "ada.desk.shop")
			}
		}
		require.True(t, found, "%+v", why)
	})
	t.Run("offline", func(t *testing.T) {
		w.gaia("conductor", "stop", w.instance)
		require.Contains(t, w.failing(w.chore("Nobody is there"))[domain.GateConductor], "offline")
	})
}

// terminal is a command on a terminal of its own.
type terminal struct {
	w   *world
	cmd *exec.Cmd
	pty *os.File
	out locked
	end chan error
}

// onTerminal starts a gaia command on a terminal; env replaces variables, and an empty value removes one.
func (w *world) onTerminal(env map[string]string, args ...string) *terminal {
	w.t.Helper()
	cmd := w.env.Command("gaia", args...)
	cmd.Dir = w.checkout
	var kept []string
	for _, kv := range cmd.Env {
		name, _, _ := strings.Cut(kv, "=")
		if _, replaced := env[name]; !replaced {
			kept = append(kept, kv)
		}
	}
	for name, v := range env {
		if v != "" {
			kept = append(kept, name+"="+v)
		}
	}
	cmd.Env = kept
	f, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: 120})
	require.NoError(w.t, err)
	x := &terminal{w: w, cmd: cmd, pty: f, end: make(chan error, 1)}
	go func() {
		_, _ = io.Copy(&x.out, f)
		x.end <- cmd.Wait()
	}()
	w.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		f.Close()
	})
	return x
}

func (x *terminal) types(s string) {
	x.w.t.Helper()
	_, err := x.pty.WriteString(s)
	require.NoError(x.w.t, err)
}

func (x *terminal) shows(text string) {
	x.w.t.Helper()
	x.w.wait(fmt.Sprintf("the terminal shows %q", text), func() bool { return strings.Contains(x.out.String(), text) })
}

func (x *terminal) ends() error {
	x.w.t.Helper()
	select {
	case err := <-x.end:
		return err
	case <-time.After(patience):
		require.Fail(x.w.t, "the command on the terminal does not end", x.out.String())
		return nil
	}
}

// asking is an agent that asks for a line and writes it down.
func (w *world) asking() string {
	return fmt.Sprintf("echo \"$GAIA_TICKET wants an answer\"\nwhile read -r line; do echo \"heard: $line\"; echo \"$line\" >>%q/\"said.$GAIA_TICKET\"; done\n", w.env.Home)
}

func TestAPersonAttachesToARun(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{})
	w.setAgent(w.asking())
	w.gaia("conductor", "enable", "--now", w.instance)
	k, other := w.chore("First"), w.chore("Second")
	run := w.waitRunning(k)
	w.waitRunning(other)
	agent := w.pids(w.runUnit(run))

	t.Run("it reads and writes", func(t *testing.T) {
		x := w.onTerminal(nil, "attach", k)
		x.shows(k + " wants an answer")
		x.types("forty-two\r")
		x.shows("heard: forty-two")
		require.Equal(t, []string{"forty-two"}, w.lines("said."+k))
		x.types("\x02d")
		require.NoError(t, x.ends())
	})
	t.Run("read-only", func(t *testing.T) {
		x := w.onTerminal(nil, "attach", "-r", k)
		x.shows("heard: forty-two")
		x.types("nonsense\r\x03")
		// When this is heard, what was typed before has been. It is said again, as tmux takes what comes at once for a paste.
		w.wait("the read-only client is detached", func() bool {
			_, _ = x.pty.WriteString("\x02d")
			return len(x.end) > 0
		})
		require.NoError(t, x.ends())
		require.Equal(t, []string{"forty-two"}, w.lines("said."+k))
	})
	t.Run("without TERM", func(t *testing.T) {
		x := w.onTerminal(map[string]string{"TERM": ""}, "attach", k)
		x.shows("heard: forty-two")
		x.types("\x02d")
		require.NoError(t, x.ends())
	})
	t.Run("from inside tmux", func(t *testing.T) {
		dir, err := os.MkdirTemp("", "g")
		require.NoError(t, err)
		t.Cleanup(func() { os.RemoveAll(dir) })
		socket := filepath.Join(dir, "s")
		w.must("tmux", "-S", socket, "-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30",
			filepath.Join(w.env.Bin, "gaia")+" attach "+other)
		t.Cleanup(func() { w.try("tmux", "-S", socket, "kill-server") })
		var screen string
		w.wait("the agent's screen is inside the person's tmux", func() bool {
			screen, _, _ = w.try("tmux", "-S", socket, "capture-pane", "-p")
			return strings.Contains(screen, other+" wants an answer")
		})
		w.must("tmux", "-S", socket, "send-keys", "nested", "Enter")
		w.wait("the agent hears it", func() bool { return len(w.lines("said."+other)) == 1 })
	})
	t.Run("a picker without a ticket", func(t *testing.T) {
		x := w.onTerminal(nil, "attach")
		x.shows("Which one [1]")
		require.Contains(t, x.out.String(), k)
		require.Contains(t, x.out.String(), "Second")
		x.types("2\r")
		x.shows("heard: nested")
		x.types("\x02d")
		require.NoError(t, x.ends())

		x = w.onTerminal(nil, "attach")
		x.shows("Which one [1]")
		x.types("7\r")
		require.Error(t, x.ends())
		require.Contains(t, x.out.String(), `"7" is none of 1 to 2`)
		_, said, code := w.try("gaia", "attach")
		require.Equal(t, 2, code)
		require.Contains(t, said, "give a ticket")
	})
	t.Run("nobody is there", func(t *testing.T) {
		later := w.chore("Later", "--not-before", "2099-01-01T00:00:00Z")
		_, said, code := w.try("gaia", "attach", later)
		require.Equal(t, 1, code)
		require.Contains(t, said, "gaia why "+later)
		_, said, code = w.try("gaia", "attach", "SHOP-999")
		require.Equal(t, 1, code)
		require.Contains(t, said, "SHOP-999")
	})
	require.Equal(t, agent, w.pids(w.runUnit(run)), "who comes and goes changes nothing for the agent")
	require.NotNil(t, w.show(k).live())
}
