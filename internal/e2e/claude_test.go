package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/internal/codingagent"
	"gaia/internal/model"
)

// claudes is a world in which every ticket is worked on by the real claude, which talks to a scripted model as somebody who
// is logged in, and has its files in the test's home.
type claudes struct {
	*world
	model *model.Server
}

// newClaudes prepares such a world; the conductor is not started.
func newClaudes(t *testing.T, s setting) claudes {
	t.Helper()
	program := codingagent.Need(t, codingagent.Claude)
	m := model.New(t)
	s.agent = "claude"
	s.machine = func(w *world) string {
		table, err := codingagent.ScriptedClaude(program, m.URL(), w.claudeFolder())
		require.NoError(t, err)
		return table
	}
	return claudes{prepare(t, "", s), m}
}

// claudeFolder is where the agent keeps what is its user's.
func (w *world) claudeFolder() string { return filepath.Join(w.env.Home, "claude") }

// start starts the conductor.
func (c claudes) start() { c.t.Helper(); c.gaia("conductor", "enable", "--now", c.instance) }

// task creates a ticket that wants one run.
func (c claudes) task(title string) string {
	c.t.Helper()
	return c.ticket(title, "--workflow", "gaia_task", "--state", "working")
}

// on gives the runs of a ticket that wants one run a script that begins when the model has read its prompt.
func (c claudes) on(identifier string, script model.Script) {
	c.model.On(marker(identifier), codingagent.Work(map[string]model.Script{"working": script}))
}

// marker is in the instructions of every conversation in a ticket's tree.
func marker(identifier string) string { return "branch: gaia/" + identifier + "\n" }

// tokens are what each answer of a script costs.
var tokens = model.Usage{Input: 100, Output: 20, CacheRead: 1000, CacheWrite: 50}

func TestClaudeTakesAFeatureToDone(t *testing.T) {
	t.Parallel()
	c := newClaudes(t, setting{repo: func(w *world) {
		w.write(filepath.Join(w.checkout, "WORKFLOW.md"), "# How we work\n\nEvery colour has a name.\n", 0o644)
		w.git("add", ".")
		w.git("commit", "--quiet", "-m", "How we work")
	}})
	bash := func(command string) model.Step { return model.Bash(command).Costing(tokens) }
	end := model.Say("Moved.").Costing(tokens)
	k := c.ticket("Add a dark mode", "--description", "The shop is too bright at night.")
	c.model.On(marker(k), codingagent.Work(map[string]model.Script{
		"qualification": model.Steps(
			bash(`gaia ticket show`),
			bash(`gaia ticket comment --type qualification "A feature: it adds a way to look at the shop."`),
			bash(`gaia ticket move --workflow gaia_feature spec`), end),
		"spec": model.Steps(
			model.Use("Write", map[string]string{"file_path": filepath.Join(c.treesDir(), k, "spec.md"), "content": "# Dark mode\n"}).Costing(tokens),
			bash(`git add spec.md && git commit -qm "Specify the dark mode"`),
			bash(`gaia ticket comment --type spec "See spec.md."`),
			bash(`gaia ticket move coding`), end),
		"coding": model.Steps(
			bash(`printf 'body { background: black }\n' >dark.css && git add dark.css && git commit -qm "A dark mode"`),
			bash(`gaia ticket comment --type summary "dark.css makes the shop dark."`),
			bash(`gaia ticket move review`), end),
		"review": model.Steps(
			bash(`git show --stat HEAD`),
			bash(`gaia ticket comment --type acceptance "It is dark."`),
			bash(`gaia ticket move done`), end),
	}))
	c.start()
	for n := 1; n <= 4; n++ {
		c.waitFor(k, fmt.Sprintf("has run %d closed", n), func(v view) bool {
			return len(v.Runs) >= n && !v.byNumber()[n-1].FinalizedAt.IsZero()
		})
	}
	v := c.waitState(k, "done")
	runs := v.byNumber()
	require.Len(t, runs, 4)
	for _, r := range runs {
		require.Equal(t, domain.RunDone, r.State)
		require.Empty(t, r.EndReason, r.EndNote)
		require.EqualValues(t, "claude", r.Agent)
		require.EqualValues(t, "edits", r.Permissions)
	}
	var types []string
	for _, comment := range v.Comments {
		types = append(types, comment.Type)
	}
	require.Equal(t, []string{"qualification", "spec", "summary", "acceptance"}, types)
	require.Equal(t, "A dark mode\nSpecify the dark mode", c.git("log", "--format=%s", "main..gaia/"+k))
	require.Equal(t, "# Dark mode", c.git("show", "gaia/"+k+":spec.md"))

	// What each run used is read from its transcript, of which a copy stays with the run. What it cost is known where the
	// program came to write it.
	cost := 0.0
	for _, r := range runs {
		f := r.Footprint
		require.NotNil(t, f)
		require.GreaterOrEqual(t, f.Turns, int64(4), "the last answer may come too late for the transcript")
		require.GreaterOrEqual(t, f.TokensIn, 3*int64(tokens.Input))
		require.GreaterOrEqual(t, f.TokensCacheRead, 3*int64(tokens.CacheRead))
		require.Contains(t, f.Model, "claude")
		cost += f.Cost
		transcript, err := os.ReadFile(c.folder(r).Path("transcript.jsonl"))
		require.NoError(t, err)
		require.Contains(t, string(transcript), "gaia ticket move")
	}
	require.Positive(t, cost)

	// The model has seen in each run what its prompt must hold.
	for i, want := range [][]string{
		{"Add a dark mode", "The shop is too bright at night.", "Every colour has a name.", "gaia ticket move"},
		{"A feature: it adds a way"}, {"See spec.md."}, {"dark.css makes the shop dark."},
	} {
		prompt, err := os.ReadFile(c.folder(runs[i]).Path("prompt.md"))
		require.NoError(t, err)
		for _, text := range want {
			require.Contains(t, string(prompt), text)
			require.True(t, c.modelHeard(k, runs[i], text), "the model of run %d has read %q", runs[i].Number, text)
		}
	}

	// The user's own file got one entry more and lost nothing.
	data, err := os.ReadFile(filepath.Join(c.claudeFolder(), ".claude.json"))
	require.NoError(t, err)
	var file struct {
		Later    map[string]string `json:"aKeyOfALaterVersion"`
		Onboard  bool              `json:"hasCompletedOnboarding"`
		Projects map[string]struct {
			Trusted bool `json:"hasTrustDialogAccepted"`
		}
	}
	require.NoError(t, json.Unmarshal(data, &file))
	require.Equal(t, map[string]string{"kept": "as it is"}, file.Later)
	require.True(t, file.Onboard)
	for path, p := range file.Projects {
		require.Equal(t, path == filepath.Join(c.treesDir(), k), p.Trusted, "no folder but the worktree is trusted: %s", path)
	}
	require.Contains(t, file.Projects, filepath.Join(c.treesDir(), k))
	require.Empty(t, c.git("status", "--porcelain"), "the program's settings are the run's and lie in no tree")
	c.verifyLog()
}

// modelHeard tells whether the model was told a text in a run.
func (c claudes) modelHeard(identifier string, r domain.Run, text string) bool {
	for _, q := range c.model.Requests(marker(identifier)) {
		if !strings.Contains(q.Opening(), r.ID) {
			continue
		}
		for _, m := range q.Messages {
			if strings.Contains(m.Text(), text) {
				return true
			}
		}
	}
	return false
}

// failed waits until a ticket's first run has failed, and returns it.
func (c claudes) failed(identifier string) domain.Run {
	c.t.Helper()
	v := c.waitFor(identifier, "has a run that failed", func(v view) bool {
		runs := v.byNumber()
		return len(runs) > 0 && runs[0].State == domain.RunFailed && !runs[0].FinalizedAt.IsZero()
	})
	return v.byNumber()[0]
}

func TestClaudeAndAModelThatFails(t *testing.T) {
	t.Parallel()
	c := newClaudes(t, setting{hub: "[limits]\nbackoff_base = \"1h\"\nbackoff_max = \"1h\"\n"})
	end := []model.Step{model.Bash("gaia ticket move done"), model.Say("Moved.")}

	// Errors that pass are none of Gaia's business.
	passing := c.task("Passing errors")
	c.on(passing, model.Steps(append([]model.Step{model.Overloaded(), model.Overloaded()}, end...)...))
	// Whoever asks again gets the same error.
	lasting := c.task("Lasting errors")
	c.on(lasting, model.Always(model.Refused("the model does not want to")))
	reset := time.Now().Add(2 * time.Hour).Truncate(time.Minute)
	limited := c.task("No more to use")
	c.on(limited, model.Always(model.Limited(reset)))
	out := c.task("Not logged in")
	c.on(out, model.Always(model.InvalidKey()))
	c.start()

	v := c.waitState(passing, "done")
	require.Len(t, v.Runs, 1)
	require.Equal(t, domain.RunDone, v.Runs[0].State)

	r := c.failed(lasting)
	require.Equal(t, domain.ReasonStalled, r.EndReason, r.EndNote)
	require.Contains(t, r.EndNote, "the model does not want to")
	require.NotNil(t, r.Footprint)

	r = c.failed(limited)
	require.Equal(t, domain.ReasonLimited, r.EndReason, r.EndNote)
	require.Contains(t, r.EndNote, "limit")
	v = c.show(limited)
	require.WithinDuration(t, reset, v.RetryAt.Time, time.Minute, "it goes on when the limit is reset")
	require.Zero(t, v.Attempts, "no attempt is used up by a limit")
	require.Nil(t, v.Hold)

	r = c.failed(out)
	require.Equal(t, domain.ReasonLoginMissing, r.EndReason, r.EndNote)
	require.Contains(t, r.EndNote, "log in")
	c.verifyLog()
}

func TestClaudeEndsItsTurnWithoutAStateWrite(t *testing.T) {
	t.Parallel()
	c := newClaudes(t, setting{hub: "[limits]\nbackoff_base = \"1h\"\nbackoff_max = \"1h\"\n"})
	forgets, insists := c.task("Forgets to move"), c.task("Never moves")
	c.on(forgets, model.Steps(model.Bash("echo work >work.txt; git add .; git commit -qm Work"), model.Say("All done!"),
		model.Bash("gaia ticket move done"), model.Say("Now it is.")))
	c.on(insists, model.Steps(model.Say("I consider this finished."), model.Say("I said that it is finished.")))
	c.start()

	v := c.waitState(forgets, "done")
	require.Len(t, v.Runs, 1)
	require.True(t, c.modelHeard(forgets, v.Runs[0], "gaia ticket move"))
	requests := c.model.Requests(marker(forgets))
	told := 0
	for _, q := range requests {
		if strings.Contains(q.Last(), "the ticket is still in the state") {
			told++
		}
	}
	require.Equal(t, 1, told, "the agent is told once")

	r := c.failed(insists)
	require.Equal(t, domain.ReasonStalled, r.EndReason, r.EndNote)
	require.Contains(t, r.EndNote, "I said that it is finished.")
	c.verifyLog()
}

// activity waits until the hub shows what an agent is doing.
func (c claudes) activity(identifier, status string) domain.Run {
	c.t.Helper()
	v := c.waitFor(identifier, "is "+status, func(v view) bool {
		r := v.live()
		return r != nil && r.Activity != nil && r.Activity.Status == status
	})
	return *v.live()
}

// question is a question to a person by the agent's own means.
var question = model.Use("AskUserQuestion", map[string]any{"questions": []any{map[string]any{
	"question": "Which colour is it to be?", "header": "Colour", "multiSelect": false,
	"options": []any{
		map[string]string{"label": "Crimson", "description": "A red"},
		map[string]string{"label": "Azure", "description": "A blue"},
	},
}}})

func TestClaudeAsksAQuestionThatBlocks(t *testing.T) {
	t.Parallel()
	c := newClaudes(t, setting{
		hub:    "[limits]\nbackoff_base = \"1h\"\nbackoff_max = \"1h\"\n",
		tables: "[timing]\ntick = \"500ms\"\ngrace = \"2s\"\nblocked = \"20s\"\n",
	})
	answered, alone := c.task("A person answers"), c.task("Nobody answers")
	c.on(answered, func(turn int, r model.Request) model.Step {
		return model.Steps(question, model.Bash("gaia ticket comment --type answer "+strconv.Quote(r.Last())), model.Bash("gaia ticket move done"), model.Say("Moved."))(turn, r)
	})
	c.on(alone, model.Always(question))
	c.start()

	c.activity(answered, domain.ActivityBlocked)
	x := c.onTerminal(nil, "attach", answered)
	x.shows("Azure")
	x.types("2")
	v := c.waitState(answered, "done")
	require.Len(t, v.Runs, 1)
	require.Len(t, v.Comments, 1)
	require.Contains(t, v.Comments[0].Body, "Azure")
	_ = x.ends() // the session that it was attached to has ended

	r := c.failed(alone)
	require.Equal(t, domain.ReasonStalled, r.EndReason, r.EndNote)
	require.Contains(t, r.EndNote, "waited for an answer")
	c.verifyLog()
}

// sleeping is a tool call that takes long, of which the test learns that it has begun.
func (c claudes) sleeping(name string) model.Step {
	return model.Bash(fmt.Sprintf("echo $$ >>%q; exec sleep 300", filepath.Join(c.env.Home, name)))
}

// asleep waits until that call has begun, and returns its process.
func (c claudes) asleep(name string) int {
	c.t.Helper()
	c.wait("the tool runs", func() bool { return len(c.lines(name)) > 0 && c.lines(name)[0] != "" })
	pid, err := strconv.Atoi(c.lines(name)[0])
	require.NoError(c.t, err)
	return pid
}

func TestClaudeIsKilledInTheMiddleOfATool(t *testing.T) {
	t.Parallel()
	c := newClaudes(t, setting{})
	k := c.task("Killed")
	c.on(k, func(turn int, r model.Request) model.Step {
		if len(c.lines("tool")) == 0 {
			return c.sleeping("tool")
		}
		return model.Steps(model.Bash("gaia ticket move done"), model.Say("Moved."))(turn, r)
	})
	c.start()
	tool := c.asleep("tool")
	r := c.activity(k, domain.ActivityWorking)
	all := c.pids(c.runUnit(r))
	require.Contains(t, all, tool)
	c.killProcess(c.named(c.runUnit(r), "claude"))

	v := c.waitState(k, "done")
	runs := v.byNumber()
	require.Len(t, runs, 2)
	require.Equal(t, domain.RunFailed, runs[0].State)
	require.Equal(t, domain.ReasonAgentExit, runs[0].EndReason)
	require.Contains(t, runs[0].EndNote, "SIGKILL")
	require.NotNil(t, runs[0].Footprint)
	require.Positive(t, runs[0].Footprint.Turns, "what was used until then counts")
	for _, pid := range all {
		require.False(t, alive(pid), "process %d outlives its run", pid)
	}
	require.True(t, c.modelHeard(k, runs[1], "SIGKILL"), "the next agent is told how the run before it failed")
	c.verifyLog()
}

// screen waits until the agent's screen shows a text. What a terminal gets has the cursor moved in the place of blanks.
func (c claudes) screen(r domain.Run, text string) {
	c.t.Helper()
	spec, err := c.folder(r).Load()
	require.NoError(c.t, err)
	shown := ""
	defer func() {
		if c.t.Failed() {
			c.t.Log(shown)
		}
	}()
	c.wait(fmt.Sprintf("the agent's screen shows %q", text), func() bool {
		shown, _, _ = c.try("tmux", "-S", spec.Socket, "capture-pane", "-p")
		return strings.Contains(shown, text)
	})
}

func TestClaudeIsTypedToWhileItWorks(t *testing.T) {
	t.Parallel()
	c := newClaudes(t, setting{})
	k := c.task("Watched")
	open := make(chan struct{})
	c.on(k, model.Steps(
		model.Bash("echo one >one.txt; git add .; git commit -qm One").When(open),
		model.Bash("gaia ticket comment --type summary Seen"),
		model.Bash("gaia ticket move done"), model.Say("Moved.")))
	c.start()
	r := c.activity(k, domain.ActivityWorking)
	agent := c.named(c.runUnit(r), "claude")
	x := c.onTerminal(nil, "attach", k)
	x.shows("Claude")
	c.wait("the model is asked", func() bool { return len(c.model.Requests(marker(k))) > 1 })
	x.types("Please be quick about it.")
	c.screen(r, "Please be quick about it.")
	x.types("\r")
	close(open)
	v := c.waitState(k, "done")
	require.Len(t, v.Runs, 1)
	require.Equal(t, domain.RunDone, v.Runs[0].State)
	require.True(t, c.modelHeard(k, r, "Please be quick about it."))
	require.Positive(t, agent)
	require.False(t, alive(agent))
	_ = x.ends() // the session that it was attached to has ended
	c.verifyLog()
}

func TestClaudeAndCtrlC(t *testing.T) {
	t.Parallel()
	c := newClaudes(t, setting{hub: "[limits]\nbackoff_base = \"1h\"\nbackoff_max = \"1h\"\n"})
	on, off := c.task("Goes on"), c.task("Is left")
	c.on(on, func(turn int, r model.Request) model.Step {
		if strings.Contains(r.Last(), "Leave that and finish.") {
			return model.Bash("gaia ticket move done")
		}
		if turn == 0 {
			return c.sleeping("on")
		}
		return model.Say("Moved.")
	})
	c.on(off, func(int, model.Request) model.Step { return c.sleeping("off") })
	c.start()

	// One ends the tool and the turn, and the agent takes another instruction.
	tool := c.asleep("on")
	r := c.waitRunning(on)
	x := c.onTerminal(nil, "attach", on)
	x.shows("sleep")
	x.types("\x03")
	c.screen(r, "Interrupted")
	c.wait("the tool is gone", func() bool { return !alive(tool) })
	x.types("Leave that and finish.")
	c.screen(r, "Leave that and finish.")
	x.types("\r")
	v := c.waitState(on, "done")
	require.Len(t, v.Runs, 1)
	_ = x.ends()

	// More of them end the program, and with it the run.
	tool = c.asleep("off")
	y := c.onTerminal(nil, "attach", off)
	y.shows("sleep")
	c.wait("the agent has gone", func() bool {
		if len(y.end) == 0 {
			_, _ = y.pty.WriteString("\x03")
			time.Sleep(200 * time.Millisecond)
		}
		return len(y.end) > 0
	})
	failed := c.failed(off)
	require.Equal(t, domain.ReasonAgentExit, failed.EndReason, failed.EndNote)
	require.False(t, alive(tool))
	c.verifyLog()
}
