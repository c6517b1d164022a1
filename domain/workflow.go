package domain

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// The states that every workflow shares, and the first state of the work workflows.
const (
	StateQualification = "qualification"
	StateHumanInput    = "human_input"
	StateCancelled     = "cancelled"
	StateDone          = "done"
)

// The workflows. Unqualified is the state machine of a ticket that has none yet.
const (
	Unqualified = ""
	Feature     = "gaia_feature"
	Bug         = "gaia_bug"
	Chore       = "gaia_chore"
	Task        = "gaia_task"
	Review      = "gaia_review"
)

// Workflow is one state machine.
type Workflow struct {
	ID     string          `json:"id"`
	First  string          `json:"first"`
	States []WorkflowState `json:"states"` // in the order in which work passes through them
}

// WorkflowState is one state of a workflow.
type WorkflowState struct {
	Name      string   `json:"name"`
	Claimable bool     `json:"claimable"`
	Terminal  bool     `json:"terminal"`
	Next      []string `json:"next"` // where a ticket may go from here
}

type row struct {
	state string // with a trailing * where claimable
	next  string // space separated
}

// workflow builds a table. To every state with somewhere to go, human_input and cancelled are added; human_input
// may go back to any of them.
func workflow(id string, rows ...row) Workflow {
	w := Workflow{ID: id}
	var back []string
	for _, r := range rows {
		name, claimable := strings.CutSuffix(r.state, "*")
		s := WorkflowState{Name: name, Claimable: claimable, Next: strings.Fields(r.next), Terminal: r.next == "-"}
		if s.Terminal {
			s.Next = []string{}
		} else {
			s.Next = append(s.Next, StateHumanInput, StateCancelled)
			back = append(back, name)
		}
		w.States = append(w.States, s)
	}
	w.First = w.States[0].Name
	w.States = append(w.States,
		WorkflowState{Name: StateHumanInput, Next: append(back, StateCancelled)},
		WorkflowState{Name: StateCancelled, Terminal: true, Next: []string{}})
	return w
}

// workflows are built when they are first asked for: most commands never do.
var workflows = sync.OnceValue(func() map[string]Workflow {
	m := map[string]Workflow{}
	for _, w := range []Workflow{
		workflow(Unqualified, row{"qualification*", ""}),
		workflow(Feature,
			row{"qualification*", "backlog todo spec coding"},
			row{"backlog", "todo"},
			row{"todo*", "spec coding"},
			row{"spec*", "coding qualification"},
			row{"coding*", "review spec qualification"},
			row{"review*", "coding spec customer_review done"},
			row{"customer_review", "coding done"},
			row{"done", "-"}),
		workflow(Bug,
			row{"qualification*", "backlog todo diagnose coding"},
			row{"backlog", "todo"},
			row{"todo*", "diagnose coding"},
			row{"diagnose*", "coding qualification"},
			row{"coding*", "review done diagnose qualification"},
			row{"review*", "coding diagnose customer_review done"},
			row{"customer_review", "coding done"},
			row{"done", "-"}),
		workflow(Chore,
			row{"qualification*", "backlog todo coding"},
			row{"backlog", "todo"},
			row{"todo*", "coding"},
			row{"coding*", "review done qualification"},
			row{"review*", "coding customer_review done"},
			row{"customer_review", "coding done"},
			row{"done", "-"}),
		workflow(Task,
			row{"todo*", "working"},
			row{"working*", "done"},
			row{"done", "-"}),
		workflow(Review,
			row{"todo*", "review"},
			row{"review*", "done changes_requested"},
			row{"changes_requested", "review"},
			row{"done", "-"}),
	} {
		m[w.ID] = w
	}
	return m
})

// Workflows returns the five workflows, sorted by id.
func Workflows() []Workflow {
	var out []Workflow
	for _, id := range slices.Sorted(maps.Keys(workflows())) {
		if id != Unqualified {
			out = append(out, workflows()[id])
		}
	}
	return out
}

// WorkflowByID returns a workflow; the empty id is that of an unqualified ticket.
func WorkflowByID(id string) (Workflow, bool) { w, ok := workflows()[id]; return w, ok }

// State returns a state of w.
func (w Workflow) State(name string) (WorkflowState, bool) {
	i := slices.IndexFunc(w.States, func(s WorkflowState) bool { return s.Name == name })
	if i < 0 {
		return WorkflowState{}, false
	}
	return w.States[i], true
}

// Claimable reports whether a conductor may pick up a ticket in that state of that workflow.
func Claimable(workflow, state string) bool {
	s, ok := workflows()[workflow].State(state)
	return ok && s.Claimable
}

// Terminal reports whether that state ends a ticket's life.
func Terminal(workflow, state string) bool {
	s, ok := workflows()[workflow].State(state)
	return ok && s.Terminal
}

// ClaimableStates returns every state name that is claimable in some workflow, sorted.
func ClaimableStates() []string {
	return statesWhere(func(s WorkflowState) bool { return s.Claimable })
}

// OpenStates returns every state name that is not terminal in some workflow, sorted.
func OpenStates() []string { return statesWhere(func(s WorkflowState) bool { return !s.Terminal }) }

func statesWhere(fits func(WorkflowState) bool) []string {
	set := map[string]bool{}
	for _, w := range workflows() {
		for _, s := range w.States {
			if fits(s) {
				set[s.Name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// TransitionError is a refused change of state. Open lists what is possible instead.
type TransitionError struct {
	Workflow, From, To string
	Open               []string
}

func (e *TransitionError) Error() string {
	w := e.Workflow
	if w == Unqualified {
		w = "a ticket without a workflow"
	}
	if len(e.Open) == 0 {
		return fmt.Sprintf("%s cannot go from %s to %s: %s is final", w, e.From, e.To, e.From)
	}
	return fmt.Sprintf("%s cannot go from %s to %s; open from here: %s", w, e.From, e.To, strings.Join(e.Open, ", "))
}

// Open returns the states that a ticket may go to.
func Open(workflow, state string) []string {
	s, ok := workflows()[workflow].State(state)
	if !ok {
		return nil
	}
	return slices.Clone(s.Next)
}

// Transition returns the workflow and state that t has after a change to state and, where workflow is not nil, to
// that workflow; or a *TransitionError or another error that says what is wrong. The workflow can be set only while
// it is null or the ticket is in qualification, together with a state that can be reached from qualification in it.
func Transition(t Ticket, workflow *string, state string) (string, string, error) {
	state = NormaliseState(state)
	current := string(t.Workflow)
	if workflow == nil || *workflow == current {
		if s, ok := workflows()[current].State(t.State); !ok || !slices.Contains(s.Next, state) {
			return "", "", &TransitionError{current, t.State, state, Open(current, t.State)}
		}
		return current, state, nil
	}
	w, ok := workflows()[*workflow]
	if !ok || w.ID == Unqualified {
		return "", "", UnknownWorkflow(*workflow)
	}
	if current != Unqualified && t.State != StateQualification {
		return "", "", fmt.Errorf("the workflow can be changed only in %s; the ticket is in %s", StateQualification, t.State)
	}
	if t.State != StateQualification && t.State != StateHumanInput {
		return "", "", &TransitionError{w.ID, t.State, state, nil}
	}
	open := qualified(w)
	if !slices.Contains(open, state) {
		return "", "", &TransitionError{w.ID, StateQualification, state, open}
	}
	return w.ID, state, nil
}

// qualified returns where qualification leads in w; a workflow without that state is entered at its first.
func qualified(w Workflow) []string {
	if s, ok := w.State(StateQualification); ok {
		return s.Next
	}
	return []string{w.First}
}

// UnknownWorkflow returns the error for an id that is no workflow.
func UnknownWorkflow(id string) error {
	var known []string
	for _, w := range Workflows() {
		known = append(known, w.ID)
	}
	return fmt.Errorf("there is no workflow %q; there are %s", id, strings.Join(known, ", "))
}
