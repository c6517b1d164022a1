package session

import (
	"fmt"
	"os"
	"strings"

	"gaia/domain"
)

// Reason derives why a run ended from the facts of its record, and a note for people. The empty reason means that the
// end was asked for: whoever asked knows why. It looks at nothing but the record.
func Reason(r Record) (domain.Reason, string) {
	reason, note := derive(r)
	if r.Note != "" {
		note += ": " + r.Note
	}
	if r.OOMKill > 0 && reason != domain.ReasonOutOfMemory {
		note += fmt.Sprintf(" (%d of the run's processes had been killed for memory)", r.OOMKill)
	}
	return reason, note
}

func derive(r Record) (domain.Reason, string) {
	// A pane or a hook that ended first ended by itself, even if somebody asked for the end at the same time.
	ended := r.Cause == CausePane || r.Cause == CauseHook || r.Cause == CauseTree
	switch {
	case r.TermRequested && !ended:
		return "", "the end was asked for"
	case r.ServiceResult == "timeout" && !ended:
		return domain.ReasonRunTime, "the run reached its time limit"
	}
	switch r.Cause {
	case CausePane:
		switch {
		case r.Signal == "SIGKILL" && r.OOMKill > 0:
			return domain.ReasonOutOfMemory, "the agent was killed for memory"
		case r.Signal != "":
			return domain.ReasonAgentExit, "the agent was ended by " + r.Signal + " without a state write"
		case r.Exit != nil:
			return domain.ReasonAgentExit, fmt.Sprintf("the agent ended with status %d without a state write", *r.Exit)
		}
		return domain.ReasonAgentExit, "the agent ended without a state write; its status is not known"
	case CauseHook:
		return domain.ReasonHook, fmt.Sprintf("the hook %s failed", r.Hook)
	case CauseTree:
		return domain.ReasonWorkspace, "the worktree was not there or not as it should be"
	case CauseTerm:
		return domain.ReasonSessionLost, "the run's unit was stopped from outside"
	case CauseServer:
		if r.OOMKill > 0 && r.killed() {
			return domain.ReasonOutOfMemory, "the run's tmux server was killed for memory"
		}
		return domain.ReasonSessionLost, "the run's tmux server ended"
	case CauseHost:
		if r.OOMKill > 0 && r.killed() {
			return domain.ReasonOutOfMemory, "the run's host was killed for memory"
		}
		return domain.ReasonSessionLost, "the run's host ended (" + strings.Trim(r.ServiceResult+" "+r.ExitCode+" "+r.ExitStatus, " ") + ")"
	case CauseStart:
		return domain.ReasonInternal, "the session could not be opened"
	}
	return domain.ReasonInternal, fmt.Sprintf("the record names no cause that is known (%q)", r.Cause)
}

// killed reports whether host or server died by SIGKILL: the record says so by name, systemd by EXIT_STATUS.
func (r Record) killed() bool {
	return r.Signal == "SIGKILL" || r.ExitCode == "killed" && (r.ExitStatus == "KILL" || r.ExitStatus == "SIGKILL")
}

// ReasonWithoutRecord says why a run ended that was started, lives no more and left no record: bootID is that of the
// machine now.
func ReasonWithoutRecord(s Started, bootID string) (domain.Reason, string) {
	if s.BootID != bootID {
		return domain.ReasonMachineLost, "the machine was started anew while the run was under way"
	}
	return domain.ReasonSessionLost, "the run's unit is gone and left no record"
}

// BootID identifies the present boot of the machine.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
