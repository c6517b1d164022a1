package agent_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/agent"
	"gaia/domain"
	"gaia/registry"
	"gaia/session"
)

func program(t *testing.T, dir, name string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"), mode))
	return path
}

func script(t *testing.T, argv ...string) domain.Agent {
	t.Helper()
	a, err := agent.New(agent.Script, registry.AgentConfig{Program: argv})
	require.NoError(t, err)
	require.Equal(t, "script", a.Name())
	return a
}

func TestTheProgramIsLookedUpInThePathOfTheRun(t *testing.T) {
	t.Parallel()
	one, two := t.TempDir(), t.TempDir()
	program(t, one, "tool", 0o644)
	want := program(t, two, "tool", 0o755)
	require.NoError(t, os.Mkdir(filepath.Join(two, "folder"), 0o755))
	env := map[string]string{"PATH": "::relative:" + one + ":" + two}

	a := script(t, "tool", "--flag", "two words")
	require.NoError(t, a.Check(env))
	cmd, err := a.Prepare(t.Context(), domain.AgentRequest{Env: env, PromptFile: "/run/prompt.md"})
	require.NoError(t, err)
	require.Equal(t, domain.AgentCommand{
		Argv: []string{want, "--flag", "two words"}, Env: map[string]string{"GAIA_PROMPT": "/run/prompt.md"},
	}, cmd)
	require.NoError(t, script(t, want).Check(nil), "an absolute path needs no PATH")

	err = a.Check(map[string]string{"PATH": one})
	require.ErrorIs(t, err, domain.ErrNotFound)
	require.ErrorContains(t, err, `the PATH of a run is "`+one+`"`)
	require.ErrorContains(t, err, filepath.Join(one, "tool")+": is not executable")
	_, err = a.Prepare(t.Context(), domain.AgentRequest{Env: map[string]string{"PATH": one}})
	require.Error(t, err)
	for _, argv := range [][]string{{"sh"}, {"folder"}, {"./tool"}, {filepath.Join(one, "tool")}, {filepath.Join(one, "none")}} {
		require.Error(t, script(t, argv...).Check(map[string]string{"PATH": two}), "the test's own PATH plays no part: %s", argv)
	}
}

func TestAnAgentHasVariablesOfItsOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := program(t, dir, "tool", 0o755)
	own := map[string]string{"PATH": dir, "TOKEN_FILE": "/x", "GAIA_PROMPT": "/nowhere"}
	a, err := agent.New(agent.Script, registry.AgentConfig{Program: []string{"tool"}, Env: own})
	require.NoError(t, err)
	env := map[string]string{"PATH": "/nowhere", "HOME": "/home/ada"}
	require.NoError(t, a.Check(env))
	cmd, err := a.Prepare(t.Context(), domain.AgentRequest{Env: env, PromptFile: "/run/prompt.md"})
	require.NoError(t, err)
	require.Equal(t, domain.AgentCommand{
		Argv: []string{want}, Env: map[string]string{"PATH": dir, "TOKEN_FILE": "/x", "GAIA_PROMPT": "/run/prompt.md"},
	}, cmd)
	require.Equal(t, "/nowhere", env["PATH"], "the run's environment is the caller's")
	require.Equal(t, "/nowhere", own["GAIA_PROMPT"])
}

func TestAnAgentThatIsNotKnownIsAnError(t *testing.T) {
	t.Parallel()
	_, err := agent.New("sh -c", registry.AgentConfig{})
	require.EqualError(t, err, `there is no agent "sh -c"; there are claude, script`)
	_, err = agent.New(agent.Script, registry.AgentConfig{})
	require.ErrorContains(t, err, "[agents.script] program")
}

func TestAvailableTellsWhyTheOthersAreNot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program(t, dir, "tool", 0o755)
	m := registry.Machine{Agents: map[string]registry.AgentConfig{"script": {Program: []string{"tool"}}, "other": {}}}
	have, not := agent.Available(m, map[string]string{"PATH": dir})
	require.Contains(t, have, "script")
	require.Len(t, have, 1)
	require.ErrorContains(t, not["other"], "there is no agent")
	require.Len(t, not, 1)
	have, not = agent.Available(m, map[string]string{"PATH": "/nowhere"})
	require.Empty(t, have)
	require.ErrorContains(t, not["script"], `"/nowhere"`)
}

func TestTheTranscriptOfAScriptIsWhatItPrinted(t *testing.T) {
	t.Parallel()
	f := session.Folder(t.TempDir())
	r, err := script(t, "x").Report(t.Context(), string(f))
	require.NoError(t, err)
	require.Zero(t, r)
	require.NoError(t, os.WriteFile(f.Path(session.FileOutput), []byte("hello"), 0o600))
	r, err = script(t, "x").Report(t.Context(), string(f))
	require.NoError(t, err)
	require.Equal(t, domain.AgentReport{Transcript: f.Path(session.FileOutput)}, r)
}
