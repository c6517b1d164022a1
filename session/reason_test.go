package session_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gaia/domain"
	"gaia/session"
)

func status(n int) *int { return &n }

func TestReasonFollowsFromTheFacts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		record session.Record
		reason domain.Reason
		note   string
	}{
		{"the agent ended well", session.Record{Cause: "pane", Exit: status(0)}, "agent_exit", "the agent ended with status 0 without a state write"},
		{"the agent failed", session.Record{Cause: "pane", Exit: status(127), Note: "not found"}, "agent_exit", "the agent ended with status 127 without a state write: not found"},
		{"the agent crashed", session.Record{Cause: "pane", Signal: "SIGSEGV"}, "agent_exit", "the agent was ended by SIGSEGV without a state write"},
		{"somebody killed the agent", session.Record{Cause: "pane", Signal: "SIGKILL"}, "agent_exit", "the agent was ended by SIGKILL without a state write"},
		{"the status is lost", session.Record{Cause: "pane"}, "agent_exit", "the agent ended without a state write; its status is not known"},
		{"the kernel killed the agent", session.Record{Cause: "pane", Signal: "SIGKILL", OOMKill: 1}, "out_of_memory", "the agent was killed for memory"},
		{"the kernel killed a child of the agent", session.Record{Cause: "pane", Exit: status(1), OOMKill: 2}, "agent_exit", "the agent ended with status 1 without a state write (2 of the run's processes had been killed for memory)"},
		{"another signal while the kernel killed", session.Record{Cause: "pane", Signal: "SIGTERM", OOMKill: 1}, "agent_exit", "the agent was ended by SIGTERM without a state write (1 of the run's processes had been killed for memory)"},

		{"the end was asked for", session.Record{Cause: "term", TermRequested: true}, "", "the end was asked for"},
		{"and the stop took too long", session.Record{Cause: "host", TermRequested: true, ServiceResult: "timeout", ExitCode: "killed", ExitStatus: "KILL"}, "", "the end was asked for"},
		{"but the agent ended first", session.Record{Cause: "pane", TermRequested: true, Exit: status(0)}, "agent_exit", "the agent ended with status 0 without a state write"},
		{"but the hook failed first", session.Record{Cause: "hook", Hook: "before_run", TermRequested: true}, "hook", "the hook before_run failed"},

		{"the time was over", session.Record{Cause: "term", ServiceResult: "timeout"}, "run_time", "the run reached its time limit"},
		{"the time was over and the host hung", session.Record{Cause: "host", ServiceResult: "timeout", ExitCode: "killed", ExitStatus: "KILL"}, "run_time", "the run reached its time limit"},
		{"the agent ended just before the time was over", session.Record{Cause: "pane", Exit: status(0), ServiceResult: "timeout"}, "agent_exit", "the agent ended with status 0 without a state write"},

		{"any other TERM", session.Record{Cause: "term", ServiceResult: "success"}, "session_lost", "the run's unit was stopped from outside"},
		{"tmux died", session.Record{Cause: "server"}, "session_lost", "the run's tmux server ended"},
		{"tmux died of memory", session.Record{Cause: "server", Signal: "SIGKILL", OOMKill: 1}, "out_of_memory", "the run's tmux server was killed for memory"},
		{"tmux died after a memory death", session.Record{Cause: "server", OOMKill: 1}, "session_lost", "the run's tmux server ended (1 of the run's processes had been killed for memory)"},
		{"the host died", session.Record{Cause: "host", ServiceResult: "signal", ExitCode: "killed", ExitStatus: "KILL"}, "session_lost", "the run's host ended (signal killed KILL)"},
		{"the host died of memory", session.Record{Cause: "host", ServiceResult: "signal", ExitCode: "killed", ExitStatus: "KILL", OOMKill: 1}, "out_of_memory", "the run's host was killed for memory"},
		{"the host died of memory, systemd spells it out", session.Record{Cause: "host", ExitCode: "killed", ExitStatus: "SIGKILL", OOMKill: 1}, "out_of_memory", "the run's host was killed for memory"},
		{"the host failed while the kernel killed", session.Record{Cause: "host", ExitCode: "exited", ExitStatus: "2", OOMKill: 1}, "session_lost", "the run's host ended (exited 2) (1 of the run's processes had been killed for memory)"},

		{"a hook", session.Record{Cause: "hook", Hook: "after_create", Note: "status 1"}, "hook", "the hook after_create failed: status 1"},
		{"the tree did not come", session.Record{Cause: "tree", Note: "waited 20m"}, "workspace", "the worktree was not there or not as it should be: waited 20m"},
		{"the session could not be opened", session.Record{Cause: "start", Note: "no tmux"}, "internal", "the session could not be opened: no tmux"},
		{"a cause of another version", session.Record{Cause: "gremlins"}, "internal", `the record names no cause that is known ("gremlins")`},
		{"no cause", session.Record{}, "internal", `the record names no cause that is known ("")`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			reason, note := session.Reason(c.record)
			require.Equal(t, c.reason, reason)
			require.Equal(t, c.note, note)
		})
	}
}

func TestReasonIsAlwaysOneOfTheClosedListAndNeverMemoryWithoutAKill(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := session.Record{
			Cause:         rapid.SampledFrom([]string{"pane", "server", "term", "hook", "tree", "start", "host", "", "x"}).Draw(t, "cause"),
			Signal:        rapid.SampledFrom([]string{"", "SIGKILL", "SIGTERM"}).Draw(t, "signal"),
			ServiceResult: rapid.SampledFrom([]string{"", "success", "timeout", "signal", "exit-code", "oom-kill"}).Draw(t, "result"),
			ExitCode:      rapid.SampledFrom([]string{"", "exited", "killed", "dumped"}).Draw(t, "code"),
			ExitStatus:    rapid.SampledFrom([]string{"", "0", "1", "KILL", "TERM"}).Draw(t, "status"),
			TermRequested: rapid.Bool().Draw(t, "requested"),
			OOMKill:       rapid.Int64Range(0, 2).Draw(t, "oom"),
		}
		reason, note := session.Reason(r)
		require.NotEmpty(t, note)
		if reason == "" {
			require.True(t, r.TermRequested)
		} else {
			require.True(t, reason.EndsRun())
		}
		if r.OOMKill == 0 {
			require.NotEqual(t, domain.ReasonOutOfMemory, reason)
		}
		if r.ServiceResult != "timeout" {
			require.NotEqual(t, domain.ReasonRunTime, reason)
		}
	})
}

func TestWithoutARecordTheBootDecides(t *testing.T) {
	t.Parallel()
	boot, err := session.BootID()
	require.NoError(t, err)
	require.Len(t, boot, 36)
	reason, _ := session.ReasonWithoutRecord(session.Started{BootID: "another"}, boot)
	require.Equal(t, domain.ReasonMachineLost, reason)
	reason, _ = session.ReasonWithoutRecord(session.Started{BootID: boot}, boot)
	require.Equal(t, domain.ReasonSessionLost, reason)
}
