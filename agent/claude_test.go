package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/agent"
	"gaia/domain"
	"gaia/registry"
	"gaia/session"
)

const claudeSession = "01234567-89ab-7def-8123-456789abcdef"

// site is a machine with the agent, and one run on it.
type site struct {
	agent  domain.Agent
	home   string
	folder session.Folder
	req    domain.AgentRequest
}

func newSite(t *testing.T) *site {
	t.Helper()
	dir := t.TempDir()
	s := &site{home: filepath.Join(dir, "home")}
	tree, bin := filepath.Join(dir, "trees", "SHOP-7"), filepath.Join(dir, "bin")
	for _, d := range []string{s.home, tree, bin} {
		require.NoError(t, os.MkdirAll(d, 0o755))
	}
	program(t, bin, "claude", 0o755)
	var err error
	s.folder, err = session.Create(filepath.Join(dir, "runs", claudeSession), session.Spec{Run: claudeSession, GaiaBin: "/usr/lib/gaia"}, "token")
	require.NoError(t, err)
	s.agent, err = agent.New(agent.Claude, registry.AgentConfig{})
	require.NoError(t, err)
	s.req = domain.AgentRequest{
		Run: domain.Run{ID: claudeSession}, Folder: string(s.folder), Tree: domain.Tree{Path: tree},
		PromptFile: s.folder.Path(session.FilePrompt), Permissions: registry.PermissionsEdits,
		Env: map[string]string{"HOME": s.home, "PATH": bin},
	}
	return s
}

func (s *site) prepare(t *testing.T) domain.AgentCommand {
	t.Helper()
	cmd, err := s.agent.Prepare(t.Context(), s.req)
	require.NoError(t, err)
	return cmd
}

func prepared(t *testing.T) *site { t.Helper(); s := newSite(t); s.prepare(t); return s }

func (s *site) state() string { return filepath.Join(s.home, ".claude.json") }

// golden compares text with a file; UPDATE_GOLDEN=1 writes it.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", "claude", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), text)
}

func TestWhatClaudeIsStartedWith(t *testing.T) {
	t.Parallel()
	for _, permissions := range []string{registry.PermissionsAsk, registry.PermissionsEdits, registry.PermissionsAll} {
		s := newSite(t)
		s.req.Permissions = permissions
		cmd := s.prepare(t)
		settings, err := os.ReadFile(s.folder.Path("claude-settings.json"))
		require.NoError(t, err)
		text := strings.Join(cmd.Argv, "\n") + "\n\n" + string(settings)
		golden(t, "start-"+permissions+".golden", strings.ReplaceAll(text, filepath.Dir(s.home), "/…"))
		require.Equal(t, map[string]string{"DISABLE_AUTOUPDATER": "1"}, cmd.Env)
		for _, name := range []string{"claude.json", "claude-settings.json"} {
			st, err := os.Stat(s.folder.Path(name))
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
		}
	}
	s := newSite(t)
	s.req.Permissions = "everything"
	_, err := s.agent.Prepare(t.Context(), s.req)
	require.ErrorContains(t, err, `"everything"`)
	require.NoFileExists(t, s.state(), "nothing is trusted for a run that does not start")
}

func TestArgumentsOfTheMachineComeFirst(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a, err := agent.New(agent.Claude, registry.AgentConfig{Program: []string{"claude", "--model", "opus"}})
	require.NoError(t, err)
	cmd, err := a.Prepare(t.Context(), s.req)
	require.NoError(t, err)
	require.Equal(t, []string{"--model", "opus", "--session-id"}, cmd.Argv[1:4])
	require.Equal(t, "--", cmd.Argv[len(cmd.Argv)-2])
}

func TestClaudeTrustsTheWorktreeAndNothingElse(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.prepare(t)
	tree, err := filepath.EvalSymlinks(s.req.Tree.Path)
	require.NoError(t, err)
	var state struct {
		Projects map[string]map[string]any
	}
	read := func() string {
		data, err := os.ReadFile(s.state())
		require.NoError(t, err)
		state.Projects = nil
		require.NoError(t, json.Unmarshal(data, &state))
		return string(data)
	}
	first := read()
	require.Equal(t, map[string]map[string]any{tree: {"hasTrustDialogAccepted": true}}, state.Projects)
	s.prepare(t)
	require.Equal(t, first, read(), "a second start changes nothing")

	// A link on the way to the tree: the program knows it by its real name.
	link := filepath.Join(s.home, "link")
	require.NoError(t, os.Symlink(s.req.Tree.Path, link))
	s.req.Tree.Path = link
	s.prepare(t)
	require.Equal(t, first, read())
}

func TestTheRepositoryCountsWhereItsUserTrustsIt(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	checkout := filepath.Join(s.home, "work", "shop")
	git := filepath.Join(checkout, ".git", "worktrees", "SHOP-7")
	require.NoError(t, os.MkdirAll(git, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(git, "commondir"), []byte("../..\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(s.req.Tree.Path, ".git"), []byte("gitdir: "+git+"\n"), 0o644))
	real, err := filepath.EvalSymlinks(checkout)
	require.NoError(t, err)
	userOnly := func() bool {
		return strings.Contains(strings.Join(s.prepare(t).Argv, " "), " --setting-sources user -- ")
	}
	trust := func(dir string, yes bool) {
		require.NoError(t, os.WriteFile(s.state(), fmt.Appendf(nil, `{"projects": {%q: {"hasTrustDialogAccepted": %t}}}`, dir, yes), 0o600))
	}
	require.True(t, userOnly(), "that Gaia trusts the worktree is no person's word")
	require.True(t, userOnly(), "nor is it at the second start")
	trust(real, false)
	require.True(t, userOnly())
	trust(real, true)
	require.False(t, userOnly())
	trust(filepath.Dir(real), true)
	require.False(t, userOnly())
	trust(real+"/sub", true)
	require.True(t, userOnly())
	s.req.Permissions = registry.PermissionsAll
	require.False(t, userOnly(), "a person has allowed everything for this checkout")
}

func TestTheUsersFileIsKeptAsItIs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	before := "{\n  \"numStartups\": 12345678901234567890, \n  \"k\": \"a\\u00e9\\/ <&>\",\n  \"projects\": {\n    \"/x\": {\n      \"hasTrustDialogAccepted\": false\n    }\n  },\n  \"z\":1e2\n}"
	real := filepath.Join(s.home, "dotfiles.json")
	require.NoError(t, os.WriteFile(real, []byte(before), 0o640))
	require.NoError(t, os.Symlink(real, s.state()))
	s.prepare(t)
	after, err := os.ReadFile(real)
	require.NoError(t, err)
	tree, err := filepath.EvalSymlinks(s.req.Tree.Path)
	require.NoError(t, err)
	want := strings.Replace(before, "false\n    }\n", "false\n    },\n    \""+tree+"\": {\"hasTrustDialogAccepted\": true}\n", 1)
	require.Equal(t, want, string(after))
	st, err := os.Lstat(s.state())
	require.NoError(t, err)
	require.NotZero(t, st.Mode()&os.ModeSymlink, "the link stays")
	st, err = os.Stat(real)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), st.Mode().Perm())
	require.NoFileExists(t, real+".lock")
}

func TestADamagedFileOfTheUserStopsTheStart(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "{", "[]", `{"projects": []}`, `{"projects": {"TREE": 1}}`, `{} x`, "\xef\xbb\xbf{}", `"x"`} {
		s := newSite(t)
		tree, err := filepath.EvalSymlinks(s.req.Tree.Path)
		require.NoError(t, err)
		text = strings.ReplaceAll(text, "TREE", tree)
		require.NoError(t, os.WriteFile(s.state(), []byte(text), 0o600))
		_, err = s.agent.Prepare(t.Context(), s.req)
		require.ErrorContains(t, err, s.state()+" was not changed: it is damaged", text)
		after, err := os.ReadFile(s.state())
		require.NoError(t, err)
		require.Equal(t, text, string(after))
	}
	s := newSite(t)
	require.NoError(t, os.Symlink(filepath.Join(s.home, "gone"), s.state()))
	_, err := s.agent.Prepare(t.Context(), s.req)
	require.ErrorContains(t, err, "is a link to a file that is not there")
}

func TestWhichFileOfTheUserItIs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	other := filepath.Join(s.home, "work login")
	s.req.Env["CLAUDE_CONFIG_DIR"] = other
	s.prepare(t)
	require.FileExists(t, filepath.Join(other, ".claude.json"))
	require.NoFileExists(t, s.state())
	// An old installation keeps all in one folder, and the program looks nowhere else then.
	require.NoError(t, os.WriteFile(filepath.Join(other, ".config.json"), []byte("{}"), 0o600))
	s.prepare(t)
	data, err := os.ReadFile(filepath.Join(other, ".config.json"))
	require.NoError(t, err)
	require.Contains(t, string(data), "hasTrustDialogAccepted")
	s.req.Env = map[string]string{"PATH": s.req.Env["PATH"]}
	_, err = s.agent.Prepare(t.Context(), s.req)
	require.ErrorContains(t, err, "HOME")
}

func TestAKeyThatTheMachinePassesIsApproved(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.req.Env["ANTHROPIC_API_KEY"] = "sk-ant-api03-0123456789abcdefghij"
	s.prepare(t)
	answers := func() string {
		var state struct {
			Responses json.RawMessage `json:"customApiKeyResponses"`
		}
		data, err := os.ReadFile(s.state())
		require.NoError(t, err)
		require.NotContains(t, string(data), "sk-ant")
		require.NoError(t, json.Unmarshal(data, &state))
		return string(state.Responses)
	}
	require.JSONEq(t, `{"approved": ["0123456789abcdefghij"]}`, answers())
	s.req.Env["ANTHROPIC_API_KEY"] = "short"
	s.prepare(t)
	require.JSONEq(t, `{"approved": ["0123456789abcdefghij", "short"]}`, answers())
	require.NoError(t, os.WriteFile(s.state(), []byte(`{"customApiKeyResponses": {"rejected": ["short"]}}`), 0o600))
	s.prepare(t)
	require.JSONEq(t, `{"rejected": ["short"]}`, answers(), "the user's No stays one")
}

func TestManyRunsChangeTheFileAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	require.NoError(t, os.WriteFile(s.state(), []byte(`{"keep": "me"}`), 0o600))
	// Left behind by a program that was killed.
	lock := s.state() + ".lock"
	require.NoError(t, os.Mkdir(lock, 0o700))
	old := time.Now().Add(-time.Minute)
	require.NoError(t, os.Chtimes(lock, old, old))
	const runs = 16
	var wg sync.WaitGroup
	errs := make([]error, runs)
	for i := range runs {
		r := s.req
		r.Tree.Path = filepath.Join(s.home, fmt.Sprint("tree", i))
		require.NoError(t, os.Mkdir(r.Tree.Path, 0o755))
		wg.Go(func() { _, errs[i] = s.agent.Prepare(t.Context(), r) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	var state struct {
		Keep     string
		Projects map[string]any
	}
	data, err := os.ReadFile(s.state())
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &state))
	require.Equal(t, "me", state.Keep)
	require.Len(t, state.Projects, runs)
	require.NoDirExists(t, lock)
}

func TestTheProgramsOwnLockIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lock := s.state() + ".lock"
	require.NoError(t, os.Mkdir(lock, 0o700))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := s.agent.Prepare(ctx, s.req)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, lock)
	require.NoFileExists(t, s.state())
	require.DirExists(t, lock, "it is somebody else's")
	require.NoError(t, os.Remove(lock))
	s.prepare(t)
}

// transcript puts a recorded transcript where the program leaves its own.
func (s *site) transcript(t *testing.T, name string, path ...string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "claude", name))
	require.NoError(t, err)
	to := filepath.Join(append([]string{s.home, ".claude", "projects", "-home-ada-trees-SHOP-7"}, path...)...)
	require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o700))
	require.NoError(t, os.WriteFile(to, data, 0o600))
}

func (s *site) report(t *testing.T) domain.AgentReport {
	t.Helper()
	r, err := s.agent.Report(t.Context(), string(s.folder))
	require.NoError(t, err)
	return r
}

func TestWhatATranscriptTells(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	require.Zero(t, s.report(t), "nothing was prepared")
	s.prepare(t)
	require.Zero(t, s.report(t), "the program has not begun")
	s.transcript(t, "answered.jsonl", claudeSession+".jsonl")
	r := s.report(t)
	require.Equal(t, domain.Footprint{
		TokensIn: 30, TokensOut: 15, TokensCacheRead: 300, TokensCacheWrite: 21, Turns: 3, Model: "claude-opus-4-8",
	}, r.Footprint)
	require.Equal(t, s.folder.Path("transcript.jsonl"), r.Transcript)
	require.Empty(t, r.Reason)
	want, err := os.ReadFile(filepath.Join("testdata", "claude", "answered.jsonl"))
	require.NoError(t, err)
	got, err := os.ReadFile(r.Transcript)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	require.Equal(t, r, s.report(t), "a report can be made again")

	// The program's own sum, if it is that of this session.
	tree, err := filepath.EvalSymlinks(s.req.Tree.Path)
	require.NoError(t, err)
	cost := func(session string) {
		require.NoError(t, os.WriteFile(s.state(), fmt.Appendf(nil, `{"projects": {%q: {"lastSessionId": %q, "lastCost": 0.25}}}`, tree, session), 0o600))
	}
	cost("another")
	require.Zero(t, s.report(t).Footprint.Cost)
	cost(claudeSession)
	require.Equal(t, 0.25, s.report(t).Footprint.Cost)
}

func TestSubAgentsCount(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.prepare(t)
	s.transcript(t, "subagent-main.jsonl", claudeSession+".jsonl")
	alone := s.report(t).Footprint
	s.transcript(t, "subagent-agent.jsonl", claudeSession, "subagents", "agent-1.jsonl")
	both := s.report(t).Footprint
	require.Equal(t, alone.Turns+2, both.Turns)
	require.Equal(t, alone.TokensOut+10, both.TokensOut)
	require.Equal(t, alone.Model, both.Model)
}

func TestASessionThatWasCleared(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.prepare(t)
	const next = "4cbd0cb8-1919-4df4-8a34-9dee5e65b798"
	begins := func(id string) {
		s.call(t, fmt.Appendf(nil, `{"hook_event_name": "SessionStart", "session_id": %q}`, id), live)
	}
	s.transcript(t, "answered.jsonl", claudeSession+".jsonl")
	s.transcript(t, "subagent-main.jsonl", next+".jsonl")
	alone := s.report(t)
	for _, id := range []string{claudeSession, next, next, "../../etc/passwd", ""} {
		begins(id)
	}
	both := s.report(t)
	// The recorded ones share the ids of their messages.
	require.Equal(t, alone.Footprint.Turns+1, both.Footprint.Turns)
	copied, err := os.ReadFile(both.Transcript)
	require.NoError(t, err)
	var want []byte
	for _, name := range []string{"answered.jsonl", "subagent-main.jsonl"} {
		data, err := os.ReadFile(filepath.Join("testdata", "claude", name))
		require.NoError(t, err)
		want = append(want, data...)
	}
	require.Equal(t, string(want), string(copied))
}

func TestWhyTheModelStopped(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]domain.Reason{
		"rate-limit.jsonl": domain.ReasonLimited, "credit.jsonl": domain.ReasonLimited, "usage-limit.jsonl": domain.ReasonLimited,
		"usage-limit-week.jsonl": domain.ReasonLimited, "key-refused.jsonl": domain.ReasonLoginMissing,
		"overloaded.jsonl": domain.ReasonStalled,
	} {
		s := newSite(t)
		s.prepare(t)
		s.transcript(t, name, claudeSession+".jsonl")
		r := s.report(t)
		require.Equal(t, want, r.Reason, name)
		require.NotEmpty(t, r.Note, name)
		require.Zero(t, r.Footprint.Turns, "what the program makes up is no answer")
		require.Equal(t, strings.HasPrefix(name, "usage-limit"), !r.Until.IsZero(), name)
	}
}

func TestWhatClaudeAsksBeforeItBegins(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]domain.Reason{
		"screen-trust.log": domain.ReasonTrustPrompt, "screen-mcp.log": domain.ReasonTrustPrompt, "screen-key.log": domain.ReasonLoginMissing,
		"screen-new.log": domain.ReasonLoginMissing,
	} {
		s := newSite(t)
		s.prepare(t)
		data, err := os.ReadFile(filepath.Join("testdata", "claude", name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(s.folder.Path(session.FileOutput), data, 0o600))
		r := s.report(t)
		require.Equal(t, want, r.Reason, name)
		require.NotEmpty(t, r.Note)
		// Once it has its prompt, such words are the agent's.
		require.NoError(t, s.folder.WriteActivity(domain.Activity{Status: domain.ActivityWorking}))
		require.Empty(t, s.report(t).Reason, name)
	}
}

func TestAnAgentThatNeverBegan(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.prepare(t)
	require.NoError(t, os.WriteFile(s.folder.Path(session.FileOutput), []byte("starting"), 0o600))
	keep, err := s.folder.MarkStarted(session.Started{Run: claudeSession, At: domain.At(time.Now().Add(-time.Hour))})
	require.NoError(t, err)
	require.NoError(t, keep())
	require.Empty(t, s.report(t).Reason, "a hook takes long")
	require.NoError(t, s.folder.MarkBegun(domain.At(time.Now())))
	require.Empty(t, s.report(t).Reason, "it has just begun")
	require.NoError(t, s.folder.MarkBegun(domain.At(time.Now().Add(-time.Hour))))
	require.Equal(t, domain.ReasonPromptNotDelivered, s.report(t).Reason)
	require.NoError(t, s.folder.WriteRecord(session.Record{Run: claudeSession}))
	require.Empty(t, s.report(t).Reason, "it has ended, which is the better reason")
}

// call plays one recorded event.
func (s *site) call(t *testing.T, input []byte, over func() (bool, error)) string {
	t.Helper()
	out, err := agent.Hook(t.Context(), agent.Claude, agent.HookCall{
		Folder: s.folder, Input: input, Now: func() time.Time { return time.Date(2026, 12, 1, 2, 30, 0, 0, time.UTC) },
		Over: func(context.Context) (bool, error) { return over() },
	})
	require.NoError(t, err)
	return string(out)
}

// play plays recorded events and returns what is known after each.
func (s *site) play(t *testing.T, name string, over func() (bool, error)) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "claude", name))
	require.NoError(t, err)
	var out strings.Builder
	for line := range bytes.Lines(data) {
		var e struct {
			Event string `json:"hook_event_name"`
		}
		require.NoError(t, json.Unmarshal(line, &e))
		answer := s.call(t, line, over)
		status := "-"
		if a, err := s.folder.Activity(); err == nil {
			status = a.Status
		}
		fmt.Fprintf(&out, "%-20s %s", e.Event, status)
		if answer != "" {
			out.WriteString(", answered")
		}
		if h, err := s.folder.Halt(); err == nil {
			fmt.Fprintf(&out, ", %s", h.Reason)
			if !h.Until.IsZero() {
				fmt.Fprintf(&out, " until %s", h.Until.UTC().Format(time.RFC3339))
			}
			fmt.Fprintf(&out, ": %s", h.Note)
		}
		out.WriteString("\n")
	}
	return out.String()
}

func live() (bool, error) { return false, nil }

func TestWhatTheHooksTell(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/claude/hooks-*.jsonl")
	require.NoError(t, err)
	require.Greater(t, len(files), 5)
	for _, f := range files {
		name := filepath.Base(f)
		golden(t, strings.TrimSuffix(name, ".jsonl")+".golden", prepared(t).play(t, name, live))
	}
}

func TestATurnThatEndsAfterTheMove(t *testing.T) {
	t.Parallel()
	s := prepared(t)
	got := s.play(t, "hooks-answered.jsonl", func() (bool, error) { return true, nil })
	require.NotContains(t, got, "answered")
	require.NotContains(t, got, "stalled")
	require.True(t, strings.HasSuffix(got, " idle\n"), got)
}

func TestAHubThatIsAwayIsNotTheAgentsFault(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	away := func(context.Context) (bool, error) { return false, domain.ErrUnreachable }
	out, err := agent.Hook(t.Context(), agent.Claude, agent.HookCall{
		Folder: s.folder, Input: []byte(`{"hook_event_name": "Stop"}`), Now: time.Now, Over: away,
	})
	require.ErrorIs(t, err, domain.ErrUnreachable)
	require.Empty(t, out)
	_, err = s.folder.Halt()
	require.ErrorIs(t, err, domain.ErrNotFound)
	a, err := s.folder.Activity()
	require.NoError(t, err)
	require.Equal(t, domain.ActivityIdle, a.Status)
}

func TestAPersonsPromptBeginsAnew(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	stop := []byte(`{"hook_event_name": "Stop", "last_assistant_message": "I\u001b[2J am\nstuck"}`)
	require.Contains(t, s.call(t, stop, live), `"decision":"block"`)
	require.Empty(t, s.call(t, stop, live))
	h, err := s.folder.Halt()
	require.NoError(t, err)
	require.Equal(t, domain.ReasonStalled, h.Reason)
	require.True(t, strings.HasSuffix(h.Note, "its last words: I [2J am stuck"), h.Note)
	s.call(t, []byte(`{"hook_event_name": "UserPromptSubmit", "prompt": "<task-notification>\n"}`), live)
	_, err = s.folder.Halt()
	require.NoError(t, err, "news of its own work is no prompt")
	s.call(t, []byte(`{"hook_event_name": "UserPromptSubmit", "prompt": "go on"}`), live)
	_, err = s.folder.Halt()
	require.ErrorIs(t, err, domain.ErrNotFound)
	require.NotEmpty(t, s.call(t, stop, live), "it is told once in each turn")
}

func TestTheTimeOfAnActivityIsThatOfTheChange(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	call := func(event string) domain.Time {
		now = now.Add(time.Minute)
		_, err := agent.Hook(t.Context(), agent.Claude, agent.HookCall{
			Folder: s.folder, Input: []byte(`{"hook_event_name": "` + event + `"}`), Now: func() time.Time { return now },
			Over: func(context.Context) (bool, error) { return true, nil },
		})
		require.NoError(t, err)
		a, err := s.folder.Activity()
		require.NoError(t, err)
		return a.Since
	}
	first := call("PreToolUse")
	require.Equal(t, first, call("PostToolUse"))
	require.Equal(t, domain.At(now.Add(time.Minute)), call("PermissionRequest"))
	require.Equal(t, domain.At(now.Add(time.Minute)), call("Stop"))
}

func TestAHookThatIsNotUnderstood(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, input := range []string{"", "{", "[]", `{"hook_event_name": 3}`} {
		_, err := agent.Hook(t.Context(), agent.Claude, agent.HookCall{Folder: s.folder, Input: []byte(input), Now: time.Now})
		require.Error(t, err, input)
	}
	require.Empty(t, s.call(t, []byte(`{"hook_event_name": "SomethingNew"}`), live))
	_, err := s.folder.Activity()
	require.ErrorIs(t, err, domain.ErrNotFound)
	_, err = agent.Hook(t.Context(), agent.Script, agent.HookCall{})
	require.ErrorContains(t, err, "script")
}

func TestAnInterruptedTurnIsIdle(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.call(t, []byte(`{"hook_event_name": "UserPromptSubmit"}`), live)
	idle := func(transcript string) string {
		in, err := json.Marshal(map[string]string{"hook_event_name": "Notification", "notification_type": "idle_prompt", "transcript_path": transcript})
		require.NoError(t, err)
		s.call(t, in, live)
		a, err := s.folder.Activity()
		require.NoError(t, err)
		return a.Status
	}
	require.Equal(t, domain.ActivityWorking, idle("testdata/claude/answered.jsonl"), "it may wait for work in the background")
	require.Equal(t, domain.ActivityWorking, idle("testdata/none"))
	require.Equal(t, domain.ActivityIdle, idle("testdata/claude/interrupted.jsonl"))
}

func TestASessionThatAPersonStoppedIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.prepare(t)
	s.transcript(t, "interrupted.jsonl", claudeSession+".jsonl")
	require.Empty(t, s.report(t).Reason, "it was just now")
	path := filepath.Join(s.home, ".claude", "projects", "-home-ada-trees-SHOP-7", claudeSession+".jsonl")
	old := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(path, old, old))
	require.Equal(t, domain.ReasonStalled, s.report(t).Reason)
}
