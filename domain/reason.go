package domain

import (
	"slices"
	"time"
)

// Reason says why a run ended without its own state write, or why a ticket is held. The list is closed.
type Reason string

// The reasons that count as an attempt of the ticket in its state.
const (
	ReasonAgentExit          Reason = "agent_exit"           // the agent ended without a state write
	ReasonStalled            Reason = "stalled"              // no progress, or a question nobody answered
	ReasonRunTime            Reason = "run_time"             // the run's time limit was reached
	ReasonOutOfMemory        Reason = "out_of_memory"        // the kernel killed it for memory
	ReasonPromptNotDelivered Reason = "prompt_not_delivered" // the agent never took its prompt
	ReasonTrustPrompt        Reason = "trust_prompt"         // the agent asked whether to trust the folder
	ReasonHook               Reason = "hook"                 // a fatal hook of the checkout failed
	ReasonSkillMissing       Reason = "skill_missing"        // no skill owns the ticket's state
	ReasonAgentNotFound      Reason = "agent_not_found"      // the agent's program was not found
	ReasonLoginMissing       Reason = "login_missing"        // the agent is not logged in
	ReasonBudget             Reason = "budget"               // the ticket's budget is used up
)

// The reasons that are the machinery's fault; they have a count of their own.
const (
	ReasonSessionLost  Reason = "session_lost"  // host, tmux or unit ended from outside
	ReasonMachineLost  Reason = "machine_lost"  // the machine rebooted or stopped answering
	ReasonWorkspace    Reason = "workspace"     // the worktree could not be made
	ReasonAgentSandbox Reason = "agent_sandbox" // the agent's own sandbox hides what a run needs
	ReasonInternal     Reason = "internal"      // a fault of Gaia
)

// The reasons that count nowhere.
const (
	ReasonLimited    Reason = "limited"    // the agent's usage limit was reached
	ReasonStopped    Reason = "stopped"    // a person stopped the run
	ReasonSuperseded Reason = "superseded" // somebody else changed the ticket's state
	ReasonUndone     Reason = "undone"     // the claim was taken back before anything ran
)

// The reasons that only a hold has.
const (
	ReasonLoop   Reason = "loop"   // runs keep entering the same state
	ReasonPerson Reason = "person" // a person set the hold
)

type reasonClass int

const (
	classAttempt reasonClass = iota
	classInfra
	classFree
	classHold
)

var reasonTable = map[Reason]reasonClass{
	ReasonAgentExit: classAttempt, ReasonStalled: classAttempt, ReasonRunTime: classAttempt,
	ReasonOutOfMemory: classAttempt, ReasonPromptNotDelivered: classAttempt, ReasonTrustPrompt: classAttempt,
	ReasonHook: classAttempt, ReasonSkillMissing: classAttempt, ReasonAgentNotFound: classAttempt,
	ReasonLoginMissing: classAttempt, ReasonBudget: classAttempt,
	ReasonSessionLost: classInfra, ReasonMachineLost: classInfra, ReasonWorkspace: classInfra,
	ReasonAgentSandbox: classInfra, ReasonInternal: classInfra,
	ReasonLimited: classFree, ReasonStopped: classFree, ReasonSuperseded: classFree, ReasonUndone: classFree,
	ReasonLoop: classHold, ReasonPerson: classHold,
}

// Reasons returns every reason that a run can end with, sorted.
func Reasons() []Reason {
	var out []Reason
	for r, c := range reasonTable {
		if c != classHold {
			out = append(out, r)
		}
	}
	slices.Sort(out)
	return out
}

// EndsRun reports whether a run can end with r.
func (r Reason) EndsRun() bool { c, ok := reasonTable[r]; return ok && c != classHold }

// CountsAttempt reports whether r uses up one of the ticket's attempts.
func (r Reason) CountsAttempt() bool { c, ok := reasonTable[r]; return ok && c == classAttempt }

// CountsInfra reports whether r is counted as a failure of the machinery.
func (r Reason) CountsInfra() bool { c, ok := reasonTable[r]; return ok && c == classInfra }

// Limits are the numbers of attempts, holds and back-off. All come from hub.toml.
type Limits struct {
	MaxAttempts   int           // failures in one state before the ticket is held
	MaxInfra      int           // failures of the machinery within InfraWindow before it is held
	InfraWindow   time.Duration // how long such a failure is remembered
	MaxEntries    int           // how often runs may enter one state before it is held
	BackoffBase   time.Duration // the wait after the first failure, doubled by each further one
	BackoffMax    time.Duration // the longest such wait
	LimitedWait   time.Duration // the wait for a usage limit whose reset time is not known
	FinaliseGrace time.Duration // how long an unfinalised last run keeps its ticket
	OfflineAfter  time.Duration // a conductor without heartbeat for that long is offline
	WaitingAfter  time.Duration // offline for that long, its ticket shows as waiting_for_machine
}

// DefaultLimits are the built-in limits.
func DefaultLimits() Limits {
	return Limits{
		MaxAttempts: 3, MaxInfra: 10, InfraWindow: 24 * time.Hour, MaxEntries: 5,
		BackoffBase: 10 * time.Second, BackoffMax: 300 * time.Second, LimitedWait: 15 * time.Minute,
		FinaliseGrace: 5 * time.Minute, OfflineAfter: time.Minute, WaitingAfter: 30 * time.Minute,
	}
}

// Backoff returns the wait after the n-th failure, n from 1: base · 2^(n−1), at most the maximum.
func (l Limits) Backoff(n int) time.Duration {
	d := l.BackoffBase
	for i := 1; i < n && d < l.BackoffMax; i++ {
		if d > l.BackoffMax/2 { // doubled, it might not even be a duration any more
			return l.BackoffMax
		}
		d *= 2
	}
	return min(d, l.BackoffMax)
}

// Failure is how a run failed, as its conductor (or the hub's own sweep) reports it.
type Failure struct {
	Reason Reason `json:"reason"`
	Note   string `json:"note"`  // shown to people
	Until  Time   `json:"until"` // limited: when the limit is said to reset
	Hold   bool   `json:"hold"`  // hold the ticket at once, with Reason and Note
}

// Fail records on t that its run failed. It sets attempts, wait and hold, and nothing else.
func (t *Ticket) Fail(f Failure, l Limits, now Time) {
	t.InfraFailures = slices.DeleteFunc(slices.Clone(t.InfraFailures), func(at Time) bool {
		return now.Sub(at.Time) >= l.InfraWindow
	})
	switch {
	case f.Reason.CountsAttempt():
		t.Attempts++
		t.RetryAt = At(now.Add(l.Backoff(t.Attempts)))
		if t.Attempts >= l.MaxAttempts {
			t.hold(f.Reason, f.Note, now)
		}
	case f.Reason.CountsInfra():
		t.InfraFailures = append(t.InfraFailures, now)
		t.RetryAt = At(now.Add(l.Backoff(len(t.InfraFailures))))
		if len(t.InfraFailures) >= l.MaxInfra {
			t.hold(f.Reason, f.Note, now)
		}
	case f.Reason == ReasonLimited:
		t.RetryAt = f.Until
		if !f.Until.After(now.Time) {
			t.RetryAt = At(now.Add(l.LimitedWait))
		}
	}
	if f.Hold {
		t.hold(f.Reason, f.Note, now)
	}
}

// hold sets a hold, unless there is one: the first hold is the one that a person must answer.
func (t *Ticket) hold(r Reason, note string, now Time) {
	if t.Hold == nil {
		t.Hold = &Hold{Reason: r, Note: note, Since: now}
	}
}

// HoldBy sets a person's hold.
func (t *Ticket) HoldBy(note string, now Time) { t.hold(ReasonPerson, note, now) }

// Resume lifts what keeps t from being claimed: hold, attempts, the machinery's failures, waits and loop count.
func (t *Ticket) Resume() {
	t.Hold, t.Attempts, t.InfraFailures, t.RetryAt, t.Entries = nil, 0, nil, Time{}, nil
}

// Enter records on t a change of state to next, by a run or by a person: attempts start afresh, and a state that
// runs have entered too often is held.
func (t *Ticket) Enter(next string, byRun bool, l Limits, now Time) {
	t.State, t.Attempts, t.RetryAt = next, 0, Time{}
	if !byRun {
		return
	}
	entries := make(map[string]int, len(t.Entries)+1)
	for s, n := range t.Entries {
		entries[s] = n
	}
	entries[next]++
	t.Entries = entries
	if entries[next] > l.MaxEntries && !Terminal(string(t.Workflow), next) {
		t.hold(ReasonLoop, "runs have entered the state "+next+" again and again", now)
	}
}
