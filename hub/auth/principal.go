// Package auth says who calls the hub and what each kind of caller may do. It decides on kinds and actions only;
// rules about a particular ticket (a run's subtree, a transition) are the hub's.
//
// Nothing here is a boundary against a program of the same uid, which can open the hub's database: tokens and scopes
// prevent accidents, not intent.
package auth

import "gaia/domain"

// Kind is what a caller is.
type Kind string

// The kinds of callers.
const (
	Owner     Kind = "owner"     // the same uid on the unix socket, acting as a user
	Conductor Kind = "conductor" // by its token
	Run       Kind = "run"       // an agent inside a run, by the run's token
	Nobody    Kind = ""
)

// Principal is an authenticated caller.
type Principal struct {
	Kind Kind
	// User is the user that an owner acts as.
	User string
	// Conductor and Machine are id and machine_id of a conductor. While a conductor registers for the first time,
	// Conductor is empty and Machine is what it claims to be.
	Conductor, Machine string
	// Epoch is that of the calling conductor process.
	Epoch string
	// Run and Ticket are the ids of the run that an agent acts for, and of its ticket.
	Run, Ticket string
	// Token is the SHA-256 of the token that was shown, where one was.
	Token [32]byte
	// Peer says that the caller is on the unix socket with the hub's own uid and in no run's cgroup, whatever token
	// it shows.
	Peer bool
}

// String is how the event log and comments name the caller.
func (p Principal) String() string {
	switch p.Kind {
	case Owner:
		return "user/" + p.User
	case Conductor:
		return "conductor/" + p.Machine
	case Run:
		return "run/" + p.Run
	}
	return "nobody"
}

// Action is one thing that a caller can ask for.
type Action string

// The actions.
const (
	Read           Action = "read"
	ProjectWrite   Action = "project.write"
	UserWrite      Action = "user.write"
	TicketCreate   Action = "ticket.create"
	TicketContent  Action = "ticket.content"  // title, description, labels, links, blockers
	TicketState    Action = "ticket.state"    // a transition
	TicketRouting  Action = "ticket.routing"  // target, assignee, project, priority, parent, agent, not_before
	TicketHold     Action = "ticket.hold"     // hold, resume, tree clear
	TicketRepair   Action = "ticket.repair"   // direct assignment of a state
	TicketIdentify Action = "ticket.identify" // choose the identifier or first state of a new ticket
	CommentAdd     Action = "comment.add"
	RunStop        Action = "run.stop"
	RunFootprint   Action = "run.footprint"
	ConductorDrain Action = "conductor.drain"
	Register       Action = "register"
	Lease          Action = "lease" // heartbeat, parting, claim, start, fail, finalise
	Verify         Action = "verify"
)

// table is the whole of who may do what.
var table = map[Action][]Kind{
	Read:           {Owner, Conductor, Run},
	ProjectWrite:   {Owner},
	UserWrite:      {Owner},
	TicketCreate:   {Owner, Run},
	TicketContent:  {Owner, Run},
	TicketState:    {Owner, Run},
	TicketRouting:  {Owner},
	TicketHold:     {Owner},
	TicketRepair:   {Owner},
	TicketIdentify: {Owner},
	CommentAdd:     {Owner, Run},
	RunStop:        {Owner},
	RunFootprint:   {Run},
	ConductorDrain: {Owner},
	Register:       {Owner, Conductor},
	Lease:          {Conductor},
	Verify:         {Owner},
}

// May returns nil, or domain.ErrForbidden or domain.ErrUnauthenticated with a reason.
func (p Principal) May(a Action) error {
	if p.Kind == Nobody {
		return &Refusal{Principal: p, Action: a, cause: domain.ErrUnauthenticated}
	}
	for _, k := range table[a] {
		if k == p.Kind {
			return nil
		}
	}
	return &Refusal{Principal: p, Action: a, cause: domain.ErrForbidden}
}

// Refusal says who may not do what.
type Refusal struct {
	Principal Principal
	Action    Action
	cause     error
}

func (r *Refusal) Error() string {
	if r.Principal.Kind == Nobody {
		return "the hub does not know who you are: no token was shown, and the peer is not the hub's own user (or runs inside a run)"
	}
	return "a " + string(r.Principal.Kind) + " may not do " + string(r.Action)
}

// Unwrap makes a Refusal match its sentinel.
func (r *Refusal) Unwrap() error { return r.cause }
