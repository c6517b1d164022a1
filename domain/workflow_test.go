package domain_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	. "gaia/domain"
)

// golden says for every workflow which states there are, which can be claimed (*) and which are final (.), and where
// a ticket may go from each by itself. human_input and cancelled are written out, since they are part of the promise.
var golden = map[string]map[string]string{
	Unqualified: {
		"qualification*": "human_input cancelled",
		"human_input":    "qualification cancelled",
		"cancelled.":     "",
	},
	Feature: {
		"qualification*":  "backlog todo spec coding human_input cancelled",
		"backlog":         "todo human_input cancelled",
		"todo*":           "spec coding human_input cancelled",
		"spec*":           "coding qualification human_input cancelled",
		"coding*":         "review spec qualification human_input cancelled",
		"review*":         "coding spec customer_review done human_input cancelled",
		"customer_review": "coding done human_input cancelled",
		"human_input":     "qualification backlog todo spec coding review customer_review cancelled",
		"done.":           "",
		"cancelled.":      "",
	},
	Bug: {
		"qualification*":  "backlog todo diagnose coding human_input cancelled",
		"backlog":         "todo human_input cancelled",
		"todo*":           "diagnose coding human_input cancelled",
		"diagnose*":       "coding qualification human_input cancelled",
		"coding*":         "review done diagnose qualification human_input cancelled",
		"review*":         "coding diagnose customer_review done human_input cancelled",
		"customer_review": "coding done human_input cancelled",
		"human_input":     "qualification backlog todo diagnose coding review customer_review cancelled",
		"done.":           "",
		"cancelled.":      "",
	},
	Chore: {
		"qualification*":  "backlog todo coding human_input cancelled",
		"backlog":         "todo human_input cancelled",
		"todo*":           "coding human_input cancelled",
		"coding*":         "review done qualification human_input cancelled",
		"review*":         "coding customer_review done human_input cancelled",
		"customer_review": "coding done human_input cancelled",
		"human_input":     "qualification backlog todo coding review customer_review cancelled",
		"done.":           "",
		"cancelled.":      "",
	},
	Task: {
		"todo*":       "working human_input cancelled",
		"working*":    "done human_input cancelled",
		"human_input": "todo working cancelled",
		"done.":       "",
		"cancelled.":  "",
	},
	Review: {
		"todo*":             "review human_input cancelled",
		"review*":           "done changes_requested human_input cancelled",
		"changes_requested": "review human_input cancelled",
		"human_input":       "todo review changes_requested cancelled",
		"done.":             "",
		"cancelled.":        "",
	},
}

// entry says where qualification leads in each workflow.
var entry = map[string]string{
	Feature: "backlog todo spec coding human_input cancelled",
	Bug:     "backlog todo diagnose coding human_input cancelled",
	Chore:   "backlog todo coding human_input cancelled",
	Task:    "todo",
	Review:  "todo",
}

// everyState is every state of every workflow and some that are none.
var everyState = func() []string {
	out := []string{"", "nonsense", "done "}
	for _, states := range golden {
		for s := range states {
			out = append(out, strings.Trim(s, "*."))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}()

func words(s string) []string {
	out := strings.Fields(s)
	slices.Sort(out)
	return out
}

func TestWorkflowStates(t *testing.T) {
	t.Parallel()
	var ids []string
	for _, w := range Workflows() {
		ids = append(ids, w.ID)
	}
	require.Equal(t, []string{Bug, Chore, Feature, Review, Task}, ids)
	for id, states := range golden {
		w, ok := WorkflowByID(id)
		require.True(t, ok, id)
		require.Len(t, w.States, len(states), id)
		for s, next := range states {
			name := strings.Trim(s, "*.")
			state, ok := w.State(name)
			require.True(t, ok, "%s %s", id, name)
			require.Equal(t, strings.HasSuffix(s, "*"), state.Claimable, "%s %s", id, name)
			require.Equal(t, strings.HasSuffix(s, "*"), Claimable(id, name), "%s %s", id, name)
			require.Equal(t, strings.HasSuffix(s, "."), state.Terminal, "%s %s", id, name)
			require.Equal(t, strings.HasSuffix(s, "."), Terminal(id, name), "%s %s", id, name)
			require.ElementsMatch(t, words(next), Open(id, name), "%s %s", id, name)
		}
	}
	for _, id := range []string{Feature, Bug, Chore} {
		w, _ := WorkflowByID(id)
		require.Equal(t, StateQualification, w.First)
	}
	require.Equal(t, []string{"coding", "diagnose", "qualification", "review", "spec", "todo", "working"}, ClaimableStates())
	require.Equal(t, []string{"backlog", "changes_requested", "coding", "customer_review", "diagnose", "human_input", "qualification", "review", "spec", "todo", "working"}, OpenStates())
	_, ok := WorkflowByID("gaia_nonsense")
	require.False(t, ok)
	require.Nil(t, Open(Feature, "nonsense"))
	require.False(t, Claimable("gaia_nonsense", "todo"))
	require.False(t, Terminal(Feature, "nonsense"))
}

// Every state against every state, in every workflow: what the table allows happens, all else is refused and says
// what is open.
func TestTransitionsExhaustively(t *testing.T) {
	t.Parallel()
	for id, states := range golden {
		for from, next := range states {
			from = strings.Trim(from, "*.")
			allowed := words(next)
			for _, to := range everyState {
				for _, name := range []*string{nil, &id} { // naming the same workflow is no change of it
					ticket := Ticket{Workflow: Ref(id), State: from}
					w, s, err := Transition(ticket, name, to)
					if slices.Contains(allowed, NormaliseState(to)) {
						require.NoError(t, err, "%s: %s to %s", id, from, to)
						require.Equal(t, []string{id, NormaliseState(to)}, []string{w, s})
						continue
					}
					var refused *TransitionError
					require.ErrorAs(t, err, &refused, "%s: %s to %q", id, from, to)
					require.ElementsMatch(t, allowed, refused.Open)
					require.Empty(t, w+s)
					for _, o := range refused.Open {
						require.Contains(t, err.Error(), o)
					}
				}
			}
		}
	}
}

// Every change of workflow, from every state to every state: only out of qualification, or out of a question that was
// asked there, and only to where qualification leads in the new workflow.
func TestWorkflowChangesExhaustively(t *testing.T) {
	t.Parallel()
	for id, states := range golden {
		for from := range states {
			from = strings.Trim(from, "*.")
			for target := range golden {
				if target == id {
					continue
				}
				for _, to := range everyState {
					w, s, err := Transition(Ticket{Workflow: Ref(id), State: from}, &target, to)
					movable := from == StateQualification || id == Unqualified && from == StateHumanInput
					if target != Unqualified && movable && slices.Contains(words(entry[target]), NormaliseState(to)) {
						require.NoError(t, err, "%s %s to %s %s", id, from, target, to)
						require.Equal(t, []string{target, NormaliseState(to)}, []string{w, s})
					} else {
						require.Error(t, err, "%q %s to %q %s", id, from, target, to)
						require.Empty(t, w+s)
					}
				}
			}
		}
	}
}

func TestTransitionInput(t *testing.T) {
	t.Parallel()
	_, s, err := Transition(Ticket{Workflow: Feature, State: "coding"}, nil, " Review ")
	require.NoError(t, err)
	require.Equal(t, "review", s)

	unknown := "gaia_nonsense"
	_, _, err = Transition(Ticket{State: StateQualification}, &unknown, "todo")
	require.ErrorContains(t, err, unknown)
	require.ErrorContains(t, err, Feature)
	null := Unqualified
	_, _, err = Transition(Ticket{Workflow: Feature, State: StateQualification}, &null, StateQualification)
	require.Error(t, err, "a workflow is not taken away")
	other := Bug
	_, _, err = Transition(Ticket{Workflow: Feature, State: "coding"}, &other, "todo")
	require.ErrorContains(t, err, StateQualification)
	_, _, err = Transition(Ticket{State: StateCancelled}, &other, "todo")
	require.Error(t, err)
	_, _, err = Transition(Ticket{Workflow: "gaia_gone", State: "coding"}, nil, "review")
	var refused *TransitionError
	require.True(t, errors.As(err, &refused))

	require.Equal(t, "gaia_feature cannot go from coding to done; open from here: review, spec, qualification, human_input, cancelled",
		refusal(Feature, "coding", "done"))
	require.Equal(t, "gaia_task cannot go from done to todo: done is final", refusal(Task, "done", "todo"))
	require.Equal(t, "a ticket without a workflow cannot go from qualification to coding; open from here: human_input, cancelled",
		refusal(Unqualified, "qualification", "coding"))
}

// refusal returns the text of a refused transition.
func refusal(workflow, from, to string) string {
	_, _, err := Transition(Ticket{Workflow: Ref(workflow), State: from}, nil, to)
	if err == nil {
		return "allowed"
	}
	return err.Error()
}

// Callers may keep and change what they were given.
func TestOpenIsACopy(t *testing.T) {
	t.Parallel()
	Open(Feature, "coding")[0] = "spoiled"
	require.Equal(t, "review", Open(Feature, "coding")[0])
}

func TestRunStatesExhaustively(t *testing.T) {
	t.Parallel()
	allowed := map[RunState][]RunState{
		RunClaimed: {RunRunning, RunDone, RunFailed, RunExpired},
		RunRunning: {RunDone, RunFailed, RunExpired},
	}
	states := []RunState{RunClaimed, RunRunning, RunDone, RunExpired, RunFailed, "", "nonsense"}
	for _, from := range states {
		for _, to := range states {
			require.Equal(t, slices.Contains(allowed[from], to), from.CanMove(to), "%q to %q", from, to)
		}
	}
	for _, s := range states {
		live, ended := s == RunClaimed || s == RunRunning, s == RunDone || s == RunExpired || s == RunFailed
		require.Equal(t, live, s.Live(), s)
		require.Equal(t, ended, s.Ended(), s)
		require.Equal(t, live || ended, s.Known(), s)
	}
}
