package domain_test

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	. "gaia/domain"
)

var gateNames = []string{
	GateIdentifiers, GateWorkflow, GateState, GateStates, GateProject, GateTarget, GateAssignee, GateTree, GateServable, GateBlockers,
	GateHold, GateWait, GateLiveRun, GateFinalised, GateBudget, GateCap, GateConductor,
}

// eligible is a ticket and a conductor that fit.
func eligible() GateInput {
	return GateInput{
		Ticket:    Ticket{ID: "t", Identifier: "SHOP-7", Project: "p", Workflow: Feature, State: "coding"},
		Project:   Project{ID: "p", Key: "SHOP"},
		Conductor: Conductor{ID: "c", MachineID: "ada.lab.shop", Owner: "ada", Project: "p", Status: ConductorOnline, MaxParallel: 2},
		Offer:     Offer{Serves: []string{"gaia_feature/coding", "/qualification"}, Agents: []string{"claude", "codex"}, Default: "claude"},
		Limits:    DefaultLimits(),
		Now:       noon,
	}
}

// A state is closed to a conductor exactly where one of the gates that look at nothing else of a ticket fails; then no
// ticket in it is eligible.
func TestOpenState(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		open   bool
		change func(*GateInput)
	}{
		"all well":         {true, func(*GateInput) {}},
		"another's ticket": {true, func(in *GateInput) { in.Ticket.Assignee = "bob" }},
		"other states":     {false, func(in *GateInput) { in.Conductor.States = []string{"spec"} }},
		"cap":              {false, func(in *GateInput) { in.Project.Settings.ClusterCap, in.LiveInProject = 1, 1 }},
		"full":             {false, func(in *GateInput) { in.LiveHere = 2 }},
		"full in state": {false, func(in *GateInput) {
			in.Conductor.Slots, in.LiveHereState = map[string]int{"coding": 1}, 1
		}},
		"draining": {false, func(in *GateInput) { in.Conductor.Draining = true }},
		"offline":  {false, func(in *GateInput) { in.Conductor.Status = ConductorOffline }},
	} {
		in := eligible()
		c.change(&in)
		require.Equal(t, c.open, OpenState(in), name)
		if !c.open {
			require.False(t, Eligible(in), name)
		}
		in.Ticket = Ticket{State: in.Ticket.State}
		require.Equal(t, c.open, OpenState(in), "%s: whatever the ticket", name)
	}
}

// Every gate, passing and failing, with the words that `gaia why` shows. A case changes one thing, so exactly its own
// gate may fail.
func TestGates(t *testing.T) {
	t.Parallel()
	ended := func(at, finalised Time) *Run {
		return &Run{Number: 3, State: RunFailed, EndedAt: at, FinalizedAt: finalised}
	}
	for _, c := range []struct {
		gate   string
		pass   bool
		change func(*GateInput)
		reason string
	}{
		{GateIdentifiers, true, func(in *GateInput) {}, "the ticket is SHOP-7"},
		{GateIdentifiers, false, func(in *GateInput) { in.Ticket.ID = "" }, "the ticket has no identifier"},
		{GateIdentifiers, false, func(in *GateInput) { in.Ticket.Identifier = "" }, "the ticket has no identifier"},

		{GateWorkflow, true, func(in *GateInput) {}, "the workflow is gaia_feature"},
		{GateWorkflow, true, func(in *GateInput) { in.Ticket.Workflow, in.Ticket.State = "", StateQualification }, "the ticket has no workflow yet and is to be qualified"},
		{GateWorkflow, false, func(in *GateInput) {
			in.Ticket.Workflow, in.Offer.Serves = "gaia_gone", []string{"gaia_gone/coding"}
		}, `the workflow "gaia_gone" is not known`},

		{GateState, true, func(in *GateInput) {}, "coding is claimable"},
		{GateState, false, func(in *GateInput) {
			in.Ticket.State, in.Offer.Serves = "done", []string{"gaia_feature/done"}
		}, "done is final"},
		{GateState, false, func(in *GateInput) {
			in.Ticket.State, in.Offer.Serves = "customer_review", []string{"gaia_feature/customer_review"}
		}, "customer_review is not claimable: it waits for a person"},

		{GateStates, true, func(in *GateInput) {}, "the conductor takes coding"},
		{GateStates, true, func(in *GateInput) { in.Conductor.States = []string{"spec", "coding"} }, "the conductor takes coding"},
		{GateStates, false, func(in *GateInput) { in.Conductor.States = []string{"spec", "review"} }, "the conductor takes only spec, review"},

		{GateProject, true, func(in *GateInput) {}, "the project is SHOP"},
		{GateProject, false, func(in *GateInput) { in.Conductor.Project = "q" }, "the conductor belongs to another project"},

		{GateTarget, true, func(in *GateInput) {}, "the ticket is for any conductor"},
		{GateTarget, true, func(in *GateInput) { in.Ticket.Target = "c" }, "the ticket is for this conductor"},
		{GateTarget, true, func(in *GateInput) { in.Ticket.Target, in.Project.Settings.Dispatch = "c", DispatchTargeted }, "the ticket is for this conductor"},
		{GateTarget, true, func(in *GateInput) { in.Project.Settings.Dispatch = DispatchOpen }, "the ticket is for any conductor"},
		{GateTarget, true, func(in *GateInput) {
			in.Project.Settings.Dispatch, in.Ticket.Workflow, in.Ticket.State = DispatchTargeted, "", StateQualification
		}, "the ticket is for any conductor"},
		{GateTarget, false, func(in *GateInput) { in.Ticket.Target, in.TargetName = "d", "bob.lab.shop" }, "the ticket is for bob.lab.shop"},
		{GateTarget, false, func(in *GateInput) { in.Project.Settings.Dispatch = DispatchTargeted }, "the project dispatches targeted tickets only, and this one has no target (gaia ticket target)"},

		{GateAssignee, true, func(in *GateInput) {}, "the assignee allows it"},
		{GateAssignee, true, func(in *GateInput) { in.Ticket.Assignee = "ada" }, "the assignee allows it"},
		{GateAssignee, false, func(in *GateInput) { in.Ticket.Assignee = "bob" }, "the ticket is assigned to bob, the conductor belongs to ada"},

		{GateTree, true, func(in *GateInput) {}, "no machine holds unpushed work"},
		{GateTree, true, func(in *GateInput) { in.Ticket.TreeAt = "c" }, "this conductor holds the ticket's work"},
		{GateTree, false, func(in *GateInput) {
			in.Ticket.TreeAt, in.TreeConductor = "d", &Conductor{ID: "d", MachineID: "bob.lab.shop"}
		}, "unpushed work lies with bob.lab.shop"},
		{GateTree, false, func(in *GateInput) {
			in.Ticket.TreeAt, in.TreeConductor, in.TreeAway = "d", &Conductor{ID: "d", MachineID: "bob.lab.shop"}, 30*time.Minute-time.Millisecond
		}, "unpushed work lies with bob.lab.shop"},
		{GateTree, false, func(in *GateInput) {
			in.Ticket.TreeAt, in.TreeConductor, in.TreeAway = "d", &Conductor{ID: "d", MachineID: "bob.lab.shop"}, 30*time.Minute
		}, "waiting_for_machine: unpushed work lies with bob.lab.shop, which has been away for 30m0s; it goes on when that is back, or re-target it, or start afresh (gaia ticket tree --clear)"},
		{GateTree, false, func(in *GateInput) { in.Ticket.TreeAt = "d" }, "unpushed work lies with a conductor that is not known any more (gaia ticket tree --clear starts afresh)"},

		{GateServable, true, func(in *GateInput) {}, "the agent claude can do it"},
		{GateServable, true, func(in *GateInput) { in.Ticket.Agent = "codex" }, "the agent codex can do it"},
		{GateServable, false, func(in *GateInput) { in.Offer.Serves = []string{"gaia_bug/coding"} }, "the conductor has no skill for gaia_feature/coding"},
		{GateServable, false, func(in *GateInput) {
			in.Ticket.Workflow, in.Ticket.State, in.Offer.Serves = "", StateQualification, nil
		}, "the conductor has no skill for qualification"},
		{GateServable, false, func(in *GateInput) { in.Ticket.Agent = "pi" }, "the conductor cannot start the agent pi"},
		{GateServable, false, func(in *GateInput) { in.Offer.Default = "" }, "neither ticket, routes, project nor machine name an agent"},

		{GateBlockers, true, func(in *GateInput) {}, "nothing blocks it"},
		{GateBlockers, true, func(in *GateInput) { in.Blockers = []Blocker{{"SHOP-1", "done", true}} }, "nothing blocks it"},
		{GateBlockers, false, func(in *GateInput) {
			in.Blockers = []Blocker{{"SHOP-1", "coding", false}, {"SHOP-2", "done", true}, {"SHOP-3", "spec", false}}
		}, "blocked by SHOP-1 (coding), SHOP-3 (spec)"},

		{GateHold, true, func(in *GateInput) {}, "no hold"},
		{GateHold, false, func(in *GateInput) { in.Ticket.Hold = &Hold{Reason: ReasonPerson, Note: "after the fair", Since: noon} }, "held since 2026-03-04T12:00:00.000Z: person: after the fair (gaia ticket resume SHOP-7)"},
		{GateHold, false, func(in *GateInput) { in.Ticket.Hold = &Hold{Reason: ReasonAgentExit, Since: noon} }, "held since 2026-03-04T12:00:00.000Z: agent_exit (gaia ticket resume SHOP-7)"},

		{GateWait, true, func(in *GateInput) {}, "no wait"},
		{GateWait, true, func(in *GateInput) { in.Ticket.NotBefore, in.Ticket.RetryAt = noon, noon }, "no wait"},
		{GateWait, false, func(in *GateInput) { in.Ticket.NotBefore = later(time.Millisecond) }, "not before 2026-03-04T12:00:00.001Z"},
		{GateWait, false, func(in *GateInput) { in.Ticket.RetryAt = later(time.Minute) }, "retried after a failure at 2026-03-04T12:01:00.000Z"},

		{GateLiveRun, true, func(in *GateInput) {}, "no live run"},
		{GateLiveRun, false, func(in *GateInput) { in.LiveRun = &Run{Number: 4, State: RunRunning} }, "run 4 is running"},

		{GateFinalised, true, func(in *GateInput) {}, "no earlier run"},
		{GateFinalised, true, func(in *GateInput) { in.LastRun = ended(noon, noon) }, "run 3 is finalised"},
		{GateFinalised, true, func(in *GateInput) { in.LastRun, in.LastConductor = ended(noon, Time{}), ConductorOffline }, "run 3 is not finalised, but its conductor is offline"},
		{GateFinalised, true, func(in *GateInput) { in.LastRun = ended(later(-5*time.Minute-time.Millisecond), Time{}) }, "run 3 was not finalised in time"},
		{GateFinalised, false, func(in *GateInput) { in.LastRun = ended(later(-5*time.Minute), Time{}) }, "run 3 has ended and is being finalised"},
		{GateFinalised, false, func(in *GateInput) { in.LastRun, in.LastConductor = ended(noon, Time{}), ConductorDraining }, "run 3 has ended and is being finalised"},

		{GateBudget, true, func(in *GateInput) { in.Used = Footprint{TokensIn: math.MaxInt64, Cost: 1e9} }, "within budget"},
		{GateBudget, true, func(in *GateInput) {
			in.Project.Settings.BudgetTokens, in.Used.TokensIn, in.Used.TokensOut = 100, 60, 39
		}, "within budget"},
		{GateBudget, false, func(in *GateInput) {
			in.Project.Settings.BudgetTokens, in.Used.TokensIn, in.Used.TokensOut = 100, 60, 40
		}, "the ticket has used 100 of 100 tokens"},
		{GateBudget, false, func(in *GateInput) {
			in.Project.Settings.BudgetTokens, in.Used.TokensIn, in.Used.TokensOut = 100, math.MaxInt64, math.MaxInt64
		}, "the ticket has used 18446744073709551614 of 100 tokens"},
		{GateBudget, true, func(in *GateInput) { in.Project.Settings.BudgetCost, in.Used.Cost = 2, 1.99 }, "within budget"},
		{GateBudget, false, func(in *GateInput) { in.Project.Settings.BudgetCost, in.Used.Cost = 2, 2 }, "the ticket has used $2.00 of $2.00"},

		{GateCap, true, func(in *GateInput) { in.LiveInProject = 99 }, "within the project's cap"},
		{GateCap, true, func(in *GateInput) { in.Project.Settings.ClusterCap, in.LiveInProject = 3, 2 }, "within the project's cap"},
		{GateCap, false, func(in *GateInput) { in.Project.Settings.ClusterCap, in.LiveInProject = 3, 3 }, "3 of 3 runs of the project are live"},

		{GateConductor, true, func(in *GateInput) {}, "ada.lab.shop is online with a free slot"},
		{GateConductor, false, func(in *GateInput) { in.Conductor.Status = ConductorOffline }, "ada.lab.shop is offline (on its machine: gaia conductor status)"},
		{GateConductor, false, func(in *GateInput) { in.Conductor.Draining = true }, "ada.lab.shop is draining (gaia conductor resume)"},
		{GateConductor, false, func(in *GateInput) { in.Conductor.Status = ConductorDraining }, "ada.lab.shop is draining (gaia conductor resume)"},
		{GateConductor, false, func(in *GateInput) { in.Conductor.Paused = "hooks are not trusted" }, "ada.lab.shop is paused: hooks are not trusted"},
		{GateConductor, false, func(in *GateInput) { in.Conductor.Paused = MachineBusy + "load average 9.0 on 4 processors" }, "ada.lab.shop is paused: the machine is busy: load average 9.0 on 4 processors"},
		{GateConductor, false, func(in *GateInput) { in.Conductor.Paused = "no agent can be started; " + MachineBusy }, "ada.lab.shop is paused: no agent can be started; the machine is busy: "},
		{GateConductor, true, func(in *GateInput) { in.LiveHere = 1 }, "ada.lab.shop is online with a free slot"},
		{GateConductor, false, func(in *GateInput) { in.LiveHere = 2 }, "ada.lab.shop has 2 of 2 slots in use"},
		{GateConductor, true, func(in *GateInput) { in.Conductor.Slots, in.LiveHereState = map[string]int{"coding": 2}, 1 }, "ada.lab.shop is online with a free slot"},
		{GateConductor, true, func(in *GateInput) { in.Conductor.Slots, in.LiveHereState = map[string]int{"spec": 0}, 1 }, "ada.lab.shop is online with a free slot"},
		{GateConductor, false, func(in *GateInput) { in.Conductor.Slots, in.LiveHereState = map[string]int{"coding": 1}, 1 }, "ada.lab.shop has 1 of 1 slots for coding in use"},
		{GateConductor, false, func(in *GateInput) { in.Conductor.Slots = map[string]int{"coding": 0} }, "ada.lab.shop has no slots for coding"},
	} {
		t.Run(fmt.Sprintf("%s/%s", c.gate, c.reason), func(t *testing.T) {
			t.Parallel()
			in := eligible()
			c.change(&in)
			var names []string
			eligible := true
			for _, g := range Gates(in) {
				names = append(names, g.Gate)
				eligible = eligible && g.Pass
				if g.Gate == c.gate {
					require.Equal(t, c.pass, g.Pass)
					require.Equal(t, c.reason, g.Reason)
					waits := strings.Contains(c.reason, "slots") && !strings.Contains(c.reason, "no slots") ||
						strings.Contains(c.reason, "is paused: "+MachineBusy) ||
						slices.Contains([]string{GateWait, GateLiveRun, GateFinalised, GateCap}, g.Gate)
					require.Equal(t, !c.pass && waits, g.Waits)
				} else if c.gate != GateWorkflow { // a state of an unknown workflow is not claimable either
					require.True(t, g.Pass, "%s: %s", g.Gate, g.Reason)
				}
			}
			require.Equal(t, gateNames, names)
			require.Equal(t, eligible, Eligible(in))
		})
	}
}

// Gates says something about everything, even about nothing, and agrees with Eligible.
func TestGatesOfAnything(t *testing.T) {
	t.Parallel()
	require.Len(t, Gates(GateInput{}), len(gateNames))
	require.False(t, Eligible(GateInput{}))
	rapid.Check(t, func(t *rapid.T) {
		in := eligible()
		flip := func(name string) bool { return rapid.IntRange(0, 5).Draw(t, name) == 0 }
		if flip("state") {
			in.Ticket.State = rapid.SampledFrom(everyState).Draw(t, "which state")
		}
		if flip("workflow") {
			in.Ticket.Workflow = Ref(rapid.SampledFrom([]string{"", Bug, Task, "x"}).Draw(t, "which workflow"))
		}
		if flip("target") {
			in.Ticket.Target = "d"
		}
		if flip("tree") {
			in.Ticket.TreeAt = "d"
		}
		if flip("hold") {
			in.Ticket.Hold = &Hold{}
		}
		if flip("live") {
			in.LiveRun = &Run{}
		}
		if flip("full") {
			in.LiveHere = 9
		}
		all := true
		for _, g := range Gates(in) {
			require.NotEmpty(t, g.Reason)
			all = all && g.Pass
		}
		require.Equal(t, all, Eligible(in))
	})
}

func TestAgentFor(t *testing.T) {
	t.Parallel()
	routes := []Route{{"codex", "UI", 2}, {"claude", "api", 1}, {"claude", "db", 1}, {"pi", "slow", -5}, {"kimi", "ui", 2}}
	for _, c := range []struct {
		name                   string
		ticket, project, deflt string
		labels                 []string
		want                   string
	}{
		{"the ticket's own", "grok", "kimi", "claude", []string{"ui"}, "grok"},
		{"a route, whatever its case", "", "kimi", "claude", []string{"ui"}, "codex"},
		{"a tie goes to the earlier rule", "", "", "", []string{"api", "db", "ui"}, "codex"},
		{"scores add up", "", "", "", []string{"api", "db"}, "claude"},
		{"the project's", "", "kimi", "claude", []string{"other"}, "kimi"},
		{"a negative score chooses nobody", "", "kimi", "claude", []string{"slow"}, "kimi"},
		{"the machine's", "", "", "claude", nil, "claude"},
		{"none", "", "", "", nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := Offer{Routes: routes, Default: c.deflt}
			require.Equal(t, c.want, o.AgentFor(Ticket{Agent: Ref(c.ticket), Labels: c.labels}, Project{Settings: ProjectSettings{Agent: Ref(c.project)}}))
		})
	}
}

func TestCompareClaimExamples(t *testing.T) {
	t.Parallel()
	p := func(f float64) *float64 { return &f }
	order := []Ticket{
		{Identifier: "low", Priority: p(-1), CreatedAt: later(9 * time.Hour)},
		{Identifier: "one-a", Priority: p(1), CreatedAt: noon},
		{Identifier: "one-b", Priority: p(1), CreatedAt: noon},
		{Identifier: "one", Priority: p(1), CreatedAt: later(time.Millisecond)},
		{Identifier: "two", Priority: p(2), CreatedAt: later(-time.Hour)},
		{Identifier: "null-a", CreatedAt: later(-2 * time.Hour)},
		{Identifier: "A", CreatedAt: noon},
		{Identifier: "B", CreatedAt: noon},
	}
	for i := range order {
		for j := range order {
			require.Equal(t, cmp.Compare(i, j), CompareClaim(order[i], order[j]), "%s and %s", order[i].Identifier, order[j].Identifier)
		}
	}
}

// The claim order is total: of any two tickets one comes first, and always the same one.
func TestCompareClaimIsTotal(t *testing.T) {
	t.Parallel()
	draw := rapid.Custom(func(t *rapid.T) Ticket {
		x := Ticket{Identifier: rapid.StringMatching(`[A-C]{0,2}`).Draw(t, "identifier"), CreatedAt: later(time.Duration(rapid.IntRange(0, 2).Draw(t, "created")) * time.Second)}
		if rapid.Bool().Draw(t, "ranked") {
			p := rapid.SampledFrom([]float64{math.Inf(-1), -1, math.Copysign(0, -1), 0, 0.1, 1, math.Inf(1), math.NaN()}).Draw(t, "priority")
			x.Priority = &p
		}
		return x
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := draw.Draw(t, "a"), draw.Draw(t, "b"), draw.Draw(t, "c")
		require.Zero(t, CompareClaim(a, a))
		require.Equal(t, CompareClaim(a, b), -CompareClaim(b, a))
		if CompareClaim(a, b) <= 0 && CompareClaim(b, c) <= 0 {
			require.LessOrEqual(t, CompareClaim(a, c), 0)
		}
		if a.Identifier != b.Identifier {
			require.NotZero(t, CompareClaim(a, b))
		}
	})
}

func TestBlockCycle(t *testing.T) {
	t.Parallel()
	graph := map[string][]string{"b": {"c"}, "c": {"d", "a"}, "d": nil, "e": {"e2"}, "e2": {"e"}}
	next := func(id string) ([]string, error) { return graph[id], nil }
	for _, c := range []struct {
		blockedBy, want []string
	}{
		{nil, nil}, {[]string{"d"}, nil}, {[]string{"a"}, []string{"a", "a"}}, {[]string{"d", "b"}, []string{"a", "b", "c", "a"}},
		{[]string{"e"}, nil}, // a cycle of others is not ours, and no endless walk
		{[]string{"unknown"}, nil},
	} {
		got, err := BlockCycle("a", c.blockedBy, next)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	boom := errors.New("boom")
	_, err := BlockCycle("a", []string{"b"}, func(string) ([]string, error) { return nil, boom })
	require.ErrorIs(t, err, boom)

	// A long chain is walked once.
	const n = 100_000
	calls := 0
	got, err := BlockCycle("end", []string{"0", "1"}, func(id string) ([]string, error) {
		calls++
		var i int
		if _, err := fmt.Sscan(id, &i); err != nil || i == n {
			return nil, err
		}
		return []string{fmt.Sprint(i + 1)}, nil
	})
	require.NoError(t, err)
	require.Nil(t, got)
	require.Equal(t, n+1, calls)
}

// If every change asks first, the graph never has a cycle; and what is refused would have made one.
func TestBlockCycles(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "tickets")
		id := rapid.Map(rapid.IntRange(0, n-1), func(i int) string { return string(rune('a' + i)) })
		graph := map[string][]string{}
		next := func(id string) ([]string, error) { return graph[id], nil }
		for range rapid.IntRange(0, 20).Draw(t, "changes") {
			ticket, by := id.Draw(t, "ticket"), rapid.SliceOfNDistinct(id, 0, n, rapid.ID[string]).Draw(t, "blocked by")
			cycle, err := BlockCycle(ticket, by, next)
			require.NoError(t, err)
			before := graph[ticket]
			graph[ticket] = by
			require.Equal(t, cycle != nil, cyclic(graph), "%v", graph)
			if cycle == nil {
				continue
			}
			require.Equal(t, ticket, cycle[0])
			require.Equal(t, ticket, cycle[len(cycle)-1])
			for i := range len(cycle) - 1 {
				require.Contains(t, graph[cycle[i]], cycle[i+1], "the chain that is shown exists")
			}
			graph[ticket] = before
		}
	})
}

// cyclic removes tickets that nothing blocks until none is left, or none can be removed.
func cyclic(graph map[string][]string) bool {
	left := map[string][]string{}
	for k, v := range graph {
		left[k] = v
	}
	for {
		removed := false
		for k, v := range left {
			if !slices.ContainsFunc(v, func(id string) bool { _, ok := left[id]; return ok }) {
				delete(left, k)
				removed = true
			}
		}
		if !removed {
			return len(left) > 0
		}
	}
}
