package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/session"
)

// TestAgentHook: an agent is answered in the same way with the command tree and without it, and whatever is wrong with the
// machine's own files. It fails with 1 and no other code: with 2, claude would refuse the tool.
func TestAgentHook(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(w *world, in string, args ...string) answer{
		"command": func(w *world, in string, args ...string) answer { return w.call(in, args...) },
		"at once": func(w *world, in string, args ...string) answer {
			var out, errs bytes.Buffer
			code, called := w.app(strings.NewReader(in), &out, &errs).agentHookAtOnce(args)
			require.True(w.t, called)
			return answer{out.String(), errs.String(), code}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			con := w.shop()
			w.ticket("create", "T")
			a, file := w.claim(con)
			token, err := os.ReadFile(file)
			require.NoError(t, err)
			spec := session.Spec{Run: a.Run.ID, Hub: w.hub.URL}
			folder, err := session.Create(filepath.Join(t.TempDir(), "it's %H", a.Run.ID), spec, strings.TrimSpace(string(token)))
			require.NoError(t, err)
			inside := w.inside(a, file)
			broken := inside.with("GAIA_HUB", "ftp://nowhere", "GAIA_HOME", t.TempDir())
			require.NoError(t, os.WriteFile(filepath.Join(broken.env["GAIA_HOME"], "machine.toml"), []byte("user_id = ["), 0o600))
			hook := func(event string) answer { return call(broken, event, "agent-hook", string(folder), "claude") }
			status := func() string {
				now, err := folder.Activity()
				require.NoError(t, err)
				return now.Status
			}

			require.Equal(t, answer{}, hook(`{"hook_event_name":"PreToolUse","tool_name":"AskUserQuestion"}`))
			require.Equal(t, domain.ActivityBlocked, status())
			require.Equal(t, answer{}, hook(`{"hook_event_name":"PostToolUse","tool_response":"`+strings.Repeat("x", 1<<20)+`"}`))
			require.Equal(t, domain.ActivityWorking, status())
			told := hook(`{"hook_event_name":"Stop"}`)
			require.Zero(t, told.code, told.err)
			require.Empty(t, told.err)
			require.Regexp(t, `^\{"decision":"block","reason":".*gaia ticket move.*"\}\n$`, told.out)
			require.Equal(t, answer{}, hook(`{"hook_event_name":"Stop"}`))
			halt, err := folder.Halt()
			require.NoError(t, err)
			require.Equal(t, domain.ReasonStalled, halt.Reason)

			require.Equal(t, answer{}, hook(`{"hook_event_name":"UserPromptSubmit","prompt":"go on"}`))
			inside.gaia("ticket", "move", "--anyway", "--workflow", "gaia_chore", "coding")
			require.Equal(t, answer{}, hook(`{"hook_event_name":"Stop"}`), "the run is over")
			require.Equal(t, domain.ActivityIdle, status())
			_, err = folder.Halt()
			require.ErrorIs(t, err, domain.ErrNotFound)

			for _, c := range []struct{ event, agent, says string }{
				{"nothing", "claude", "cannot be read"}, {"{}", "script", `"script" has no status hooks`},
			} {
				got := call(broken, c.event, "agent-hook", string(folder), c.agent)
				require.Equal(t, answer{code: 1, err: got.err}, got)
				require.True(t, strings.HasPrefix(got.err, "gaia agent-hook: "), got.err)
				require.Contains(t, got.err, c.says)
			}
			require.NoError(t, folder.RemoveSecrets())
			got := hook(`{"hook_event_name":"Stop"}`)
			require.Equal(t, answer{code: 1, err: got.err}, got, "without its token the hub cannot be asked")
		})
	}
	w := newWorld(t)
	require.Contains(t, w.fails(exitUsage, "agent-hook", "runs/7", "claude"), "runs/7 is no absolute path")
	require.Contains(t, w.fails(exitUsage, "agent-hook", "/runs/7"), "Usage: gaia agent-hook RUN-FOLDER AGENT")
	require.NotContains(t, w.gaia("--help"), "agent-hook")
	for _, args := range [][]string{{"agent-hook", "runs/7", "claude"}, {"agent-hook", "/runs/7"}, {"agent-hook", "--help", "x"}} {
		_, called := w.app(strings.NewReader(""), nil, nil).agentHookAtOnce(args)
		require.False(t, called, args)
	}
}
