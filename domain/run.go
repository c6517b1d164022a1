package domain

import (
	"math"
	"slices"
)

// RunState is where a run stands. Done, Expired and Failed are final.
type RunState string

// The run states.
const (
	RunClaimed RunState = "claimed"
	RunRunning RunState = "running"
	RunDone    RunState = "done"
	RunExpired RunState = "expired"
	RunFailed  RunState = "failed"
)

var runMoves = map[RunState][]RunState{
	RunClaimed: {RunRunning, RunDone, RunFailed, RunExpired},
	RunRunning: {RunDone, RunFailed, RunExpired},
	RunDone:    {},
	RunExpired: {},
	RunFailed:  {},
}

// Known reports whether s is one of the run states.
func (s RunState) Known() bool { _, ok := runMoves[s]; return ok }

// Ended reports whether s is final.
func (s RunState) Ended() bool { moves, ok := runMoves[s]; return ok && len(moves) == 0 }

// Live reports whether a run in s holds the lease on its ticket.
func (s RunState) Live() bool { return s == RunClaimed || s == RunRunning }

// CanMove reports whether a run may go from s to next. Nothing leaves a final state.
func (s RunState) CanMove(next RunState) bool { return slices.Contains(runMoves[s], next) }

// The run modes.
const (
	ModeAgent  = "agent"  // an agent works alone
	ModeAssist = "assist" // a person and an agent share the session
)

// Run is one attempt at one ticket state and the lease on the ticket.
type Run struct {
	ID             string     `json:"id"`        // UUIDv7
	Number         int        `json:"number"`    // per project, from 1
	Project        string     `json:"project"`   // project id
	Ticket         string     `json:"ticket"`    // ticket id
	Conductor      string     `json:"conductor"` // conductor id
	Mode           string     `json:"mode"`
	State          RunState   `json:"state"`
	Attempt        int        `json:"attempt"` // from 1, in this state of the ticket
	ClaimedAt      Time       `json:"claimed_at"`
	ClaimExpiresAt Time       `json:"claim_expires_at"`
	StateAtStart   string     `json:"state_at_start"`
	StartedAt      Time       `json:"started_at"`
	EndedAt        Time       `json:"ended_at"`
	EndReason      Reason     `json:"end_reason"` // "" for done
	EndNote        string     `json:"end_note"`   // what a person should know about the end
	FinalizedAt    Time       `json:"finalized_at"`
	WorktreePath   Ref        `json:"worktree_path"`
	Branch         Ref        `json:"branch"`
	BaseSHA        Ref        `json:"base_sha"`
	EndSHA         Ref        `json:"end_sha"` // HEAD at the state write, then at finalise
	Unit           Ref        `json:"unit"`
	Agent          Ref        `json:"agent"`
	Permissions    Ref        `json:"permissions"`
	Activity       *Activity  `json:"activity"`
	Footprint      *Footprint `json:"footprint"`
	Log            Ref        `json:"log"` // path of the run folder on its machine
}

// The activities of an agent.
const (
	ActivityWorking = "working"
	ActivityBlocked = "blocked"
	ActivityIdle    = "idle"
)

// Activity is what an agent was last seen doing.
type Activity struct {
	Status string `json:"status"`
	Since  Time   `json:"since"`
}

// Footprint is what a run has used. Unknown values are zero; none is ever negative.
type Footprint struct {
	TokensIn         int64   `json:"tokens_in"`
	TokensOut        int64   `json:"tokens_out"`
	TokensCacheRead  int64   `json:"tokens_cache_read"`
	TokensCacheWrite int64   `json:"tokens_cache_write"`
	Turns            int64   `json:"turns"`
	Cost             float64 `json:"cost"` // US dollars
	Model            string  `json:"model"`
	WallMS           int64   `json:"wall_ms"`
	CPUMS            int64   `json:"cpu_ms"`
	MemoryPeak       int64   `json:"memory_peak"` // bytes
	IORead           int64   `json:"io_read"`     // bytes
	IOWrite          int64   `json:"io_write"`    // bytes
}

// Negative returns the JSON name of the first value below zero, or "".
func (f Footprint) Negative() string {
	for _, v := range []struct {
		name string
		val  float64
	}{
		{"tokens_in", float64(f.TokensIn)}, {"tokens_out", float64(f.TokensOut)},
		{"tokens_cache_read", float64(f.TokensCacheRead)}, {"tokens_cache_write", float64(f.TokensCacheWrite)},
		{"turns", float64(f.Turns)}, {"cost", f.Cost}, {"wall_ms", float64(f.WallMS)}, {"cpu_ms", float64(f.CPUMS)},
		{"memory_peak", float64(f.MemoryPeak)}, {"io_read", float64(f.IORead)}, {"io_write", float64(f.IOWrite)},
	} {
		if !(v.val >= 0) { // NaN is no value either
			return v.name
		}
	}
	return ""
}

// Fate is what the hub answers about a run that a conductor asks about.
type Fate struct {
	Run       string   `json:"run"` // run id
	State     RunState `json:"state"`
	EndReason Reason   `json:"end_reason"`
	EndedAt   Time     `json:"ended_at"`
	Finalized bool     `json:"finalized"`
	Head      Ref      `json:"head"` // the commit that the run's own state write named
}

// FateOf returns what there is to say about r.
func FateOf(r Run) Fate {
	return Fate{Run: r.ID, State: r.State, EndReason: r.EndReason, EndedAt: r.EndedAt, Finalized: !r.FinalizedAt.IsZero(), Head: r.EndSHA}
}

// Add adds what another run has used. Model and MemoryPeak, which are no sums, become the other's where that is set or
// larger. A sum too large for its type stays at the largest value: it must not turn negative and lift a budget.
func (f *Footprint) Add(o Footprint) {
	for _, s := range []struct {
		to *int64
		n  int64
	}{
		{&f.TokensIn, o.TokensIn}, {&f.TokensOut, o.TokensOut},
		{&f.TokensCacheRead, o.TokensCacheRead}, {&f.TokensCacheWrite, o.TokensCacheWrite},
		{&f.Turns, o.Turns}, {&f.WallMS, o.WallMS}, {&f.CPUMS, o.CPUMS}, {&f.IORead, o.IORead}, {&f.IOWrite, o.IOWrite},
	} {
		if s.n > math.MaxInt64-*s.to {
			*s.to = math.MaxInt64
		} else {
			*s.to += s.n
		}
	}
	f.Cost += o.Cost
	f.MemoryPeak = max(f.MemoryPeak, o.MemoryPeak)
	if o.Model != "" {
		f.Model = o.Model
	}
}
