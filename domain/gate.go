package domain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Gate names, in the order in which they are checked and shown.
const (
	GateIdentifiers = "identifiers"
	GateWorkflow    = "workflow"
	GateState       = "state"
	GateStates      = "conductor_states"
	GateProject     = "project"
	GateTarget      = "target"
	GateAssignee    = "assignee"
	GateTree        = "tree_at"
	GateServable    = "servable"
	GateBlockers    = "blockers"
	GateHold        = "hold"
	GateWait        = "wait"
	GateLiveRun     = "live_run"
	GateFinalised   = "finalised"
	GateBudget      = "budget"
	GateCap         = "cluster_cap"
	GateConductor   = "conductor"
)

// WaitingForMachine starts the reason of GateTree when the machine that holds the work has been away for long.
const WaitingForMachine = "waiting_for_machine"

// MachineBusy starts what a conductor says in Paused while its machine has too much to do, which passes by itself. What it
// says without this, such as of a disk that is full, is for somebody to mend.
const MachineBusy = "the machine is busy: "

// GateResult is one gate's answer for one ticket and one conductor. Reason is never empty. Waits says that what the gate
// refuses for passes by itself, such as a run at work: nobody has anything to mend.
type GateResult struct {
	Gate   string `json:"gate"`
	Pass   bool   `json:"pass"`
	Waits  bool   `json:"waits"`
	Reason string `json:"reason"`
}

// Offer is what a conductor can serve, as it says with each claim.
type Offer struct {
	// Serves lists the workflow/state pairs that exactly one skill owns, as "workflow/state"; the workflow of an
	// unqualified ticket is empty ("/qualification").
	Serves []string `json:"serves"`
	// Agents lists the agents that the machine can start.
	Agents []string `json:"agents"`
	// Default is the agent of a ticket that names none, where its project does not either.
	Default string `json:"default"`
	// Routes score a ticket's labels; the highest total wins over the defaults.
	Routes []Route `json:"routes"`
}

// Route gives an agent a score for each ticket that carries the label.
type Route struct {
	Agent string `json:"agent"`
	Label string `json:"label"`
	Score int    `json:"score"`
}

// ServeKey returns how Offer.Serves names a workflow's state.
func ServeKey(workflow, state string) string { return workflow + "/" + state }

// AgentFor returns the agent that runs t: the ticket's own, else the best route, else the project's, else the offer's.
func (o Offer) AgentFor(t Ticket, p Project) string {
	if t.Agent != "" {
		return string(t.Agent)
	}
	scores := map[string]int{}
	for _, r := range o.Routes {
		if slices.Contains(t.Labels, strings.ToLower(r.Label)) {
			scores[r.Agent] += r.Score
		}
	}
	best, score := "", 0
	for _, r := range o.Routes { // in file order, so that a tie goes to the earlier rule
		if s := scores[r.Agent]; s > score {
			best, score = r.Agent, s
		}
	}
	return cmp.Or(best, string(p.Settings.Agent), o.Default)
}

// Blocker is what the gates need of a ticket that blocks another.
type Blocker struct {
	Identifier string
	State      string
	Terminal   bool
}

// GateInput is everything that the gates look at. The hub fills it inside the transaction of the claim, and in the
// same way for `gaia why`. What is not filled in (blockers, runs, what was used and what is live) lets a ticket through:
// one that is not eligible by the rest need not be asked for more.
type GateInput struct {
	Ticket    Ticket
	Project   Project
	Conductor Conductor // Status as of Now
	Offer     Offer
	Blockers  []Blocker
	LiveRun   *Run // the ticket's live run
	LastRun   *Run // the ticket's latest run that has ended
	// LastConductor is the status of LastRun's conductor.
	LastConductor ConductorStatus
	// TreeConductor is the conductor named by the ticket's tree_at; nil where that is empty.
	TreeConductor *Conductor
	TreeAway      time.Duration // how long TreeConductor has been offline while the hub was up and awake
	TargetName    string        // machine_id of the ticket's target
	Used          Footprint     // sum over the ticket's runs
	LiveInProject int           // live runs of the project
	LiveHere      int           // live runs of Conductor
	LiveHereState int           // those of them in the ticket's state
	Limits        Limits
	Now           Time
}

// Gates returns the answer of every gate, in order.
func Gates(in GateInput) []GateResult {
	out := make([]GateResult, 0, len(gates))
	for _, g := range gates {
		v, reason := g.check(in)
		out = append(out, GateResult{Gate: g.name, Pass: v == passes, Waits: v == waits, Reason: reason})
	}
	return out
}

// Eligible reports whether every gate passes.
func Eligible(in GateInput) bool {
	for _, g := range gates {
		if v, _ := g.check(in); v != passes {
			return false
		}
	}
	return true
}

// OpenState reports whether in's conductor could claim anything at all in the state of in.Ticket: it asks the gates
// that look at nothing else of a ticket. Where it is false, no ticket in that state has to be looked at.
func OpenState(in GateInput) bool {
	for _, g := range gates {
		switch g.name {
		case GateStates, GateCap, GateConductor:
			if v, _ := g.check(in); v != passes {
				return false
			}
		}
	}
	return true
}

type gate struct {
	name  string
	check func(GateInput) (verdict, string)
}

type verdict int

const (
	refuses verdict = iota
	waits
	passes
)

func pass(format string, a ...any) (verdict, string) { return passes, fmt.Sprintf(format, a...) }
func fail(format string, a ...any) (verdict, string) { return refuses, fmt.Sprintf(format, a...) }
func wait(format string, a ...any) (verdict, string) { return waits, fmt.Sprintf(format, a...) }

var gates = []gate{
	{GateIdentifiers, func(in GateInput) (verdict, string) {
		if in.Ticket.ID == "" || in.Ticket.Identifier == "" {
			return fail("the ticket has no identifier")
		}
		return pass("the ticket is %s", in.Ticket.Identifier)
	}},
	{GateWorkflow, func(in GateInput) (verdict, string) {
		w := string(in.Ticket.Workflow)
		if _, ok := WorkflowByID(w); !ok {
			return fail("the workflow %q is not known", w)
		}
		if w == Unqualified {
			return pass("the ticket has no workflow yet and is to be qualified")
		}
		return pass("the workflow is %s", w)
	}},
	{GateState, func(in GateInput) (verdict, string) {
		w, s := string(in.Ticket.Workflow), in.Ticket.State
		switch {
		case Terminal(w, s):
			return fail("%s is final", s)
		case !Claimable(w, s):
			return fail("%s is not claimable: it waits for a person", s)
		}
		return pass("%s is claimable", s)
	}},
	{GateStates, func(in GateInput) (verdict, string) {
		if len(in.Conductor.States) > 0 && !slices.Contains(in.Conductor.States, in.Ticket.State) {
			return fail("the conductor takes only %s", strings.Join(in.Conductor.States, ", "))
		}
		return pass("the conductor takes %s", in.Ticket.State)
	}},
	{GateProject, func(in GateInput) (verdict, string) {
		if in.Ticket.Project != in.Conductor.Project {
			return fail("the conductor belongs to another project")
		}
		return pass("the project is %s", in.Project.Key)
	}},
	{GateTarget, func(in GateInput) (verdict, string) {
		t := in.Ticket
		switch {
		case t.Target != "" && string(t.Target) != in.Conductor.ID:
			return fail("the ticket is for %s", in.TargetName)
		case t.Target != "":
			return pass("the ticket is for this conductor")
		case in.Project.Settings.Dispatch == DispatchTargeted && t.Workflow != Unqualified:
			return fail("the project dispatches targeted tickets only, and this one has no target (gaia ticket target)")
		}
		return pass("the ticket is for any conductor")
	}},
	{GateAssignee, func(in GateInput) (verdict, string) {
		if a := string(in.Ticket.Assignee); a != "" && a != in.Conductor.Owner {
			return fail("the ticket is assigned to %s, the conductor belongs to %s", a, in.Conductor.Owner)
		}
		return pass("the assignee allows it")
	}},
	{GateTree, func(in GateInput) (verdict, string) {
		at := string(in.Ticket.TreeAt)
		switch {
		case at == "":
			return pass("no machine holds unpushed work")
		case at == in.Conductor.ID:
			return pass("this conductor holds the ticket's work")
		case in.TreeConductor == nil:
			return fail("unpushed work lies with a conductor that is not known any more (gaia ticket tree --clear starts afresh)")
		case in.TreeAway >= in.Limits.WaitingAfter:
			return fail("%s: unpushed work lies with %s, which has been away for %s; it goes on when that is back, or re-target it, or start afresh (gaia ticket tree --clear)",
				WaitingForMachine, in.TreeConductor.MachineID, in.TreeAway.Round(time.Minute))
		}
		return fail("unpushed work lies with %s", in.TreeConductor.MachineID)
	}},
	{GateServable, func(in GateInput) (verdict, string) {
		if k := ServeKey(string(in.Ticket.Workflow), in.Ticket.State); !slices.Contains(in.Offer.Serves, k) {
			return fail("the conductor has no skill for %s", strings.TrimPrefix(k, "/"))
		}
		agent := in.Offer.AgentFor(in.Ticket, in.Project)
		switch {
		case agent == "":
			return fail("neither ticket, routes, project nor machine name an agent")
		case !slices.Contains(in.Offer.Agents, agent):
			return fail("the conductor cannot start the agent %s", agent)
		}
		return pass("the agent %s can do it", agent)
	}},
	{GateBlockers, func(in GateInput) (verdict, string) {
		var open []string
		for _, b := range in.Blockers {
			if !b.Terminal {
				open = append(open, b.Identifier+" ("+b.State+")")
			}
		}
		if len(open) > 0 {
			return fail("blocked by %s", strings.Join(open, ", "))
		}
		return pass("nothing blocks it")
	}},
	{GateHold, func(in GateInput) (verdict, string) {
		h := in.Ticket.Hold
		if h == nil {
			return pass("no hold")
		}
		return fail("held since %s: %s (gaia ticket resume %s)", h.Since, strings.TrimSuffix(string(h.Reason)+": "+h.Note, ": "), in.Ticket.Identifier)
	}},
	{GateWait, func(in GateInput) (verdict, string) {
		for _, w := range []struct {
			at   Time
			what string
		}{{in.Ticket.NotBefore, "not before"}, {in.Ticket.RetryAt, "retried after a failure at"}} {
			if w.at.After(in.Now.Time) {
				return wait("%s %s", w.what, w.at)
			}
		}
		return pass("no wait")
	}},
	{GateLiveRun, func(in GateInput) (verdict, string) {
		if in.LiveRun != nil {
			return wait("run %d is %s", in.LiveRun.Number, in.LiveRun.State)
		}
		return pass("no live run")
	}},
	{GateFinalised, func(in GateInput) (verdict, string) {
		r := in.LastRun
		switch {
		case r == nil:
			return pass("no earlier run")
		case !r.FinalizedAt.IsZero():
			return pass("run %d is finalised", r.Number)
		case in.LastConductor == ConductorOffline:
			return pass("run %d is not finalised, but its conductor is offline", r.Number)
		case in.Now.Sub(r.EndedAt.Time) > in.Limits.FinaliseGrace:
			return pass("run %d was not finalised in time", r.Number)
		}
		return wait("run %d has ended and is being finalised", r.Number)
	}},
	{GateBudget, func(in GateInput) (verdict, string) {
		s := in.Project.Settings
		if in, out := in.Used.TokensIn, in.Used.TokensOut; s.BudgetTokens > 0 && in >= s.BudgetTokens-out { // the sum may overflow
			return fail("the ticket has used %d of %d tokens", uint64(in)+uint64(out), s.BudgetTokens)
		}
		if s.BudgetCost > 0 && in.Used.Cost >= s.BudgetCost {
			return fail("the ticket has used $%.2f of $%.2f", in.Used.Cost, s.BudgetCost)
		}
		return pass("within budget")
	}},
	{GateCap, func(in GateInput) (verdict, string) {
		if c := in.Project.Settings.ClusterCap; c > 0 && in.LiveInProject >= c {
			return wait("%d of %d runs of the project are live", in.LiveInProject, c)
		}
		return pass("within the project's cap")
	}},
	{GateConductor, func(in GateInput) (verdict, string) {
		c := in.Conductor
		switch {
		case c.Status == ConductorOffline:
			return fail("%s is offline (on its machine: gaia conductor status)", c.MachineID)
		case c.Draining || c.Status == ConductorDraining:
			return fail("%s is draining (gaia conductor resume)", c.MachineID)
		case c.Paused != "":
			if strings.HasPrefix(c.Paused, MachineBusy) {
				return wait("%s is paused: %s", c.MachineID, c.Paused)
			}
			return fail("%s is paused: %s", c.MachineID, c.Paused)
		case in.LiveHere >= c.MaxParallel:
			return wait("%s has %d of %d slots in use", c.MachineID, in.LiveHere, c.MaxParallel)
		}
		switch n, ok := c.Slots[in.Ticket.State]; {
		case ok && n == 0:
			return fail("%s has no slots for %s", c.MachineID, in.Ticket.State)
		case ok && in.LiveHereState >= n:
			return wait("%s has %d of %d slots for %s in use", c.MachineID, in.LiveHereState, n, in.Ticket.State)
		}
		return pass("%s is online with a free slot", c.MachineID)
	}},
}

// CompareClaim orders tickets for a claim: priority ascending with null last, then oldest, then identifier. It is a
// total order over tickets with distinct identifiers.
func CompareClaim(a, b Ticket) int {
	switch {
	case a.Priority == nil && b.Priority != nil:
		return 1
	case a.Priority != nil && b.Priority == nil:
		return -1
	case a.Priority != nil:
		if c := cmp.Compare(*a.Priority, *b.Priority); c != 0 {
			return c
		}
	}
	if c := a.CreatedAt.Compare(b.CreatedAt.Time); c != 0 {
		return c
	}
	return cmp.Compare(a.Identifier, b.Identifier)
}

// BlockCycle returns the chain of ticket ids that would lead from ticket back to itself if it were blocked by all of
// blockedBy, or nil. next returns what a ticket is blocked by.
func BlockCycle(ticket string, blockedBy []string, next func(string) ([]string, error)) ([]string, error) {
	seen := map[string]bool{}
	var walk func(id string, path []string) ([]string, error)
	walk = func(id string, path []string) ([]string, error) {
		path = append(path, id)
		if id == ticket {
			return path, nil
		}
		if seen[id] {
			return nil, nil
		}
		seen[id] = true
		ids, err := next(id)
		if err != nil {
			return nil, err
		}
		for _, n := range ids {
			if found, err := walk(n, path); found != nil || err != nil {
				return found, err
			}
		}
		return nil, nil
	}
	for _, id := range blockedBy {
		if found, err := walk(id, []string{ticket}); found != nil || err != nil {
			return found, err
		}
	}
	return nil, nil
}
