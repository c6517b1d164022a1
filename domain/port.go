package domain

import (
	"context"
	"time"
)

// Remote is the conductor's view of the hub. Every call may return ErrUnreachable, after which the same call with
// the same arguments may be repeated without harm.
type Remote interface {
	// Register makes this process the conductor of its machine_id; an earlier process is superseded by it.
	Register(ctx context.Context, r Registration) (Registered, error)
	// Heartbeat renews every lease of the conductor. ErrSuperseded: a newer process has registered.
	Heartbeat(ctx context.Context, b Beat) (Pulse, error)
	// Parting says that the conductor stops cleanly while its runs go on.
	Parting(ctx context.Context) error
	// Claim asks for one ticket. A nil Assignment means that there is nothing to do.
	Claim(ctx context.Context, c ClaimRequest) (*Assignment, error)
	// Assignment returns a live or ended run of this conductor in the form that Claim gave it.
	Assignment(ctx context.Context, run string) (*Assignment, error)
	// Start marks a claimed run running. On an ended run it changes nothing and returns its fate.
	Start(ctx context.Context, run string, s StartReport) (Fate, error)
	// Fail ends a live run. On an ended run it changes nothing and returns its fate.
	Fail(ctx context.Context, run string, f Failure) (Fate, error)
	// Finalise closes an ended run. It may be repeated.
	Finalise(ctx context.Context, run string, f FinaliseReport) error
	// Runs returns this conductor's runs that are live or not finalised, oldest first.
	Runs(ctx context.Context) ([]Run, error)
	// Follow calls fn with events from after the sequence number on until ctx ends or the stream breaks; it
	// always returns an error. Events are hints: what they tell must be read again. The first call comes with the
	// zero event as soon as the stream stands: what happened before that must be read too.
	Follow(ctx context.Context, after int64, fn func(Event)) error
}

// Registration is what a conductor says of itself.
type Registration struct {
	MachineID     string         `json:"machine_id"`
	Epoch         string         `json:"epoch"`
	Label         string         `json:"label"`
	Project       string         `json:"project"` // project key
	States        []string       `json:"states"`
	MaxParallel   int            `json:"max_parallel"`
	Slots         map[string]int `json:"slots"`
	WorkspaceRoot string         `json:"workspace_root"`
	Version       string         `json:"version"`
	// Again says that this process has registered before, to tell changed settings or a hub without memory. It then never
	// takes the place of a newer process.
	Again bool `json:"again"`
}

// Registered is the hub's answer to a registration.
type Registered struct {
	Conductor Conductor     `json:"conductor"`
	Project   Project       `json:"project"`
	LeaseTTL  time.Duration `json:"lease_ttl"` // nanoseconds; how long a running lease lives after a heartbeat
}

// Beat is one heartbeat.
type Beat struct {
	CurrentLoad int       `json:"current_load"`
	Paused      string    `json:"paused"` // why the conductor asks for nothing, "" if it does
	Runs        []RunBeat `json:"runs"`
}

// RunBeat is what a conductor sees of one of its live runs.
type RunBeat struct {
	Run       string     `json:"run"`
	Activity  *Activity  `json:"activity"`
	Footprint *Footprint `json:"footprint"`
}

// Pulse is the hub's answer to a heartbeat: the conductor's own state, and the fate of every run it named and of every
// other run of its own that is live or not finalised.
type Pulse struct {
	Conductor Conductor     `json:"conductor"`
	LeaseTTL  time.Duration `json:"lease_ttl"`
	Fates     []Fate        `json:"fates"`
}

// ClaimRequest asks for one ticket.
type ClaimRequest struct {
	// Run is the UUIDv7 that the run will have. The caller draws it, and the run's token, before it asks: so a lost
	// answer loses nothing.
	Run         string `json:"run"`
	TokenSHA256 string `json:"token_sha256"` // hex
	Offer       Offer  `json:"offer"`
}

// Assignment is a claimed run with all that is needed to work on it.
type Assignment struct {
	Run      Run       `json:"run"`
	Ticket   Ticket    `json:"ticket"`
	Project  Project   `json:"project"`
	Comments []Comment `json:"comments"` // oldest first
	Blockers []Ticket  `json:"blockers"`
	Children []Ticket  `json:"children"`
	LastRun  *Run      `json:"last_run"` // the ticket's run before this one
}

// StartReport says what a run was started with.
type StartReport struct {
	WorktreePath string `json:"worktree_path"`
	Branch       string `json:"branch"`
	BaseSHA      string `json:"base_sha"`
	Unit         string `json:"unit"`
	Agent        string `json:"agent"`
	Permissions  string `json:"permissions"`
	Log          string `json:"log"`
}

// FinaliseReport is what a conductor found when it closed a run.
type FinaliseReport struct {
	Footprint *Footprint `json:"footprint"`
	EndSHA    string     `json:"end_sha"`
	Unpushed  bool       `json:"unpushed"`  // work that lies in this tree alone
	LateWork  []string   `json:"late_work"` // one line a commit made after the state write
}

// SessionState is a probe's answer. Unknown is never treated as gone.
type SessionState string

// The answers of a probe.
const (
	SessionAlive   SessionState = "alive"
	SessionGone    SessionState = "gone"
	SessionUnknown SessionState = "unknown"
)

// Session is what an executor knows of one run's session.
type Session struct {
	Run   string // run id
	State SessionState
	Unit  string
}

// Launch is what an executor needs to start a run. Everything else lies in the run folder.
type Launch struct {
	Run         string // run id
	Number      int
	Folder      string // absolute path of the run folder
	Description string // shown by systemctl status
	Limits      RunLimits
}

// RunLimits bound one run. Zero means "no limit", except for Time, where it means DefaultRunTime.
type RunLimits struct {
	MemoryMax uint64        // bytes
	TasksMax  uint64        // processes and threads
	CPUWeight uint64        // 1 to 10000
	Time      time.Duration // wall clock
}

// DefaultRunTime is how long a run may take where nothing else is set.
const DefaultRunTime = 2 * time.Hour

// Executor hosts sessions. Nothing that it does may depend on the process that started a session being alive.
type Executor interface {
	// Expect says that a Start may follow within moments, which is then quicker. It returns at once.
	Expect()
	// Start starts the session of a run and returns when the agent's program runs. ErrExists: the run was started
	// before; nothing was done.
	Start(ctx context.Context, l Launch) error
	// Probe asks for one run.
	Probe(ctx context.Context, run string) (Session, error)
	// List returns every session of this conductor, alive or not, that the executor still knows. An error means
	// that nothing is known.
	List(ctx context.Context) ([]Session, error)
	// Stop ends a session with all its processes and returns when none is left. It is no error if there is none.
	Stop(ctx context.Context, run string) error
	// Watch calls fn with the id of a run whose session may have changed, until ctx ends.
	Watch(ctx context.Context, fn func(run string)) error
}

// TreeRequest asks for the worktree of a ticket.
type TreeRequest struct {
	Ticket     string // ticket id
	Identifier string
	Run        string // run id
	Branch     string // the ticket's frozen branch, "" at first
}

// Tree is a worktree, ready to work in.
type Tree struct {
	Path        string   `json:"path"` // absolute
	Branch      string   `json:"branch"`
	Base        string   `json:"base"`         // commit
	Head        string   `json:"head"`         // commit
	AfterCreate bool     `json:"after_create"` // the hook after_create is still to be run
	Findings    []string `json:"findings"`     // what an earlier run left: told to the agent
	// Behind says, of a tree that starts from an older commit than new ones do, why and what helps: its hooks are of that commit.
	Behind string `json:"behind,omitempty"`
}

// TreeStatus is what a worktree holds.
type TreeStatus struct {
	Path     string
	Branch   string
	Head     string
	Dirty    bool
	Unpushed bool     // dirty, or commits that no remote has
	Late     []string // "<short sha> <subject>" of each commit beyond a given one
}

// WorkspaceError is a worktree that cannot be made. Hold says that only a person can mend it.
type WorkspaceError struct {
	Hold bool
	Err  error
}

func (e *WorkspaceError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *WorkspaceError) Unwrap() error { return e.Err }

// Workspace gives each ticket a place to work in.
type Workspace interface {
	// Lock takes the lock of a ticket's tree over all processes of the machine and returns what gives it back.
	// Ensure, its finish and Inspect are called with the lock held.
	Lock(ctx context.Context, identifier string) (unlock func(), err error)
	// Ensure makes the ticket's tree, or takes the one that is there. Nobody works in it before finish has returned
	// without an error: it has the disk keep the tree and marks it as complete, while the caller does other things. Of a
	// tree that is not finished nothing is kept. Failures are *WorkspaceError.
	Ensure(ctx context.Context, r TreeRequest) (t Tree, finish func(context.Context) error, err error)
	// Inspect looks at a ticket's tree. since is the commit that Late counts from; where it is empty and after is
	// set, Late counts commits made after that time. ErrNotFound: there is no tree.
	Inspect(ctx context.Context, identifier, since string, after time.Time) (TreeStatus, error)
	// Files returns committed files as they stand in a commit, by path. A path that is a folder stands for all
	// files in it; one that does not exist is left out.
	Files(ctx context.Context, commit string, paths ...string) (map[string][]byte, error)
}

// AgentRequest asks an agent's profile how to run it.
type AgentRequest struct {
	Run         Run
	Ticket      Ticket
	Folder      string // run folder: private settings and files may be written here
	Tree        Tree
	PromptFile  string
	Permissions string            // ask, edits or all
	Env         map[string]string // the environment of the run so far
}

// AgentCommand is how to run an agent.
type AgentCommand struct {
	Argv []string          // Argv[0] is an absolute path; no secret and no prompt text stands here
	Env  map[string]string // added to the run's environment
}

// AgentReport is what a profile can tell of a session that has ended or still runs. Fields that it cannot tell are zero.
type AgentReport struct {
	Footprint  Footprint
	Transcript string // path of the transcript; copied to the run folder by the profile
	// Reason, where not "", says what only the profile can tell: limited, login_missing, trust_prompt,
	// prompt_not_delivered or agent_sandbox.
	Reason Reason
	Note   string
	Until  Time // limited: when it resets
}

// Agent is the closed profile of one coding agent.
type Agent interface {
	// Name is how tickets and configuration name the agent.
	Name() string
	// Check returns nil if the agent's program is found in the environment of a run, or an error that says which PATH
	// was searched.
	Check(env map[string]string) error
	// Prepare writes what the agent needs into the run folder and returns how to run it.
	Prepare(ctx context.Context, r AgentRequest) (AgentCommand, error)
	// Report reads what the agent left: transcript, tokens, messages on its last screen.
	Report(ctx context.Context, folder string) (AgentReport, error)
}
