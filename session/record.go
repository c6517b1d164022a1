package session

import (
	"encoding/json"
	"fmt"

	"gaia/domain"
)

// The causes of an end, as the host saw it first.
const (
	CausePane   = "pane"   // the pane's process ended
	CauseServer = "server" // the tmux server ended
	CauseTerm   = "term"   // the host was told to end
	CauseHook   = "hook"   // a fatal hook failed
	CauseTree   = "tree"   // the tree did not come, or was not as it was said to be
	CauseStart  = "start"  // the session could not be opened
	CauseHost   = "host"   // the host itself died; only post writes this
)

// Who wrote a record.
const (
	WrittenByHost = "host"
	WrittenByPost = "post"
)

// Record holds the facts of a run's end. It never holds a reason: that is derived by Reason, so that a better derivation
// also holds for records that were written before it.
type Record struct {
	Run          string      `json:"run"`
	BootID       string      `json:"boot_id"`
	InvocationID string      `json:"invocation_id"`
	EndedAt      domain.Time `json:"ended_at"`
	Exit         *int        `json:"exit"`   // exit status of the pane's process, where it exited
	Signal       string      `json:"signal"` // SIGKILL, …: what ended the process that Cause is about, where a signal did
	Cause        string      `json:"cause"`
	Hook         string      `json:"hook"` // which hook failed
	Note         string      `json:"note"` // for a person
	// TermRequested: conductor or person asked for the end. Who it was and why is theirs to say.
	TermRequested bool  `json:"term_requested"`
	OOMKill       int64 `json:"oom_kill"` // by how much oom_kill of the unit's memory.events grew, and what systemd-oomd killed
	// What systemd told ExecStopPost=.
	ServiceResult string `json:"service_result"`
	ExitCode      string `json:"exit_code"`
	ExitStatus    string `json:"exit_status"`
	CPUMS         int64  `json:"cpu_ms"`
	MemoryPeak    int64  `json:"memory_peak"` // bytes
	WrittenBy     string `json:"written_by"`
}

// ParseRecord reads a record.
func ParseRecord(data []byte) (Record, error) {
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, fmt.Errorf("record: %w", err)
	}
	return r, nil
}
