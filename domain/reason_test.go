package domain_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	. "gaia/domain"
)

var noon = At(time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC))

func later(d time.Duration) Time { return At(noon.Add(d)) }

// classes is the closed list of reasons.
var (
	attempts = []Reason{ReasonAgentExit, ReasonStalled, ReasonRunTime, ReasonOutOfMemory, ReasonPromptNotDelivered, ReasonTrustPrompt, ReasonHook, ReasonSkillMissing, ReasonAgentNotFound, ReasonLoginMissing, ReasonBudget}
	infra    = []Reason{ReasonSessionLost, ReasonMachineLost, ReasonWorkspace, ReasonAgentSandbox, ReasonInternal}
	free     = []Reason{ReasonLimited, ReasonStopped, ReasonSuperseded, ReasonUndone}
	holds    = []Reason{ReasonLoop, ReasonPerson}
)

func TestReasons(t *testing.T) {
	t.Parallel()
	require.Equal(t, []Reason{
		"agent_exit", "agent_not_found", "agent_sandbox", "budget", "hook", "internal", "limited", "login_missing", "machine_lost", "out_of_memory",
		"prompt_not_delivered", "run_time", "session_lost", "skill_missing", "stalled", "stopped", "superseded", "trust_prompt", "undone", "workspace",
	}, Reasons())
	for _, c := range []struct {
		reasons              []Reason
		ends, attempt, infra bool
	}{
		{attempts, true, true, false}, {infra, true, false, true}, {free, true, false, false}, {holds, false, false, false},
		{[]Reason{"", "nonsense"}, false, false, false},
	} {
		for _, r := range c.reasons {
			require.Equal(t, []bool{c.ends, c.attempt, c.infra}, []bool{r.EndsRun(), r.CountsAttempt(), r.CountsInfra()}, r)
		}
	}
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	l := DefaultLimits()
	for n, want := range map[int]time.Duration{
		-1: 10 * time.Second, 0: 10 * time.Second, 1: 10 * time.Second, 2: 20 * time.Second, 3: 40 * time.Second, 4: 80 * time.Second,
		5: 160 * time.Second, 6: 300 * time.Second, 7: 300 * time.Second, 1_000_000: 300 * time.Second,
	} {
		require.Equal(t, want, l.Backoff(n), n)
	}
	rapid.Check(t, func(t *rapid.T) {
		l := Limits{BackoffBase: time.Duration(rapid.Int64Min(1).Draw(t, "base")), BackoffMax: time.Duration(rapid.Int64Min(1).Draw(t, "max"))}
		n := rapid.IntRange(1, 100).Draw(t, "n")
		d := l.Backoff(n)
		require.Positive(t, d)
		require.LessOrEqual(t, d, l.BackoffMax)
		require.LessOrEqual(t, d, l.Backoff(n+1), "waits never become shorter")
	})
}

// Failures that count: a longer wait each time, and at the limit a hold that stays.
func TestAttempts(t *testing.T) {
	t.Parallel()
	l := DefaultLimits()
	for _, r := range attempts {
		x := Ticket{Workflow: Feature, State: "coding", NotBefore: later(time.Hour)}
		for n, wait := range []time.Duration{10 * time.Second, 20 * time.Second} {
			x.Fail(Failure{Reason: r, Note: "first"}, l, noon)
			require.Equal(t, n+1, x.Attempts, r)
			require.Equal(t, later(wait), x.RetryAt)
			require.Nil(t, x.Hold)
		}
		x.Fail(Failure{Reason: r, Note: "third"}, l, noon)
		require.Equal(t, &Hold{Reason: r, Note: "third", Since: noon}, x.Hold)
		x.Fail(Failure{Reason: ReasonHook, Note: "fourth"}, l, later(time.Hour))
		require.Equal(t, &Hold{Reason: r, Note: "third", Since: noon}, x.Hold, "the first hold stays")
		require.Equal(t, 4, x.Attempts)
		require.Empty(t, x.InfraFailures)
		require.Equal(t, later(time.Hour), x.NotBefore, "a person's own time is untouched")
		require.Equal(t, "coding", x.State)

		x.Enter("review", true, l, noon)
		require.Zero(t, x.Attempts)
		require.True(t, x.RetryAt.IsZero())
		require.NotNil(t, x.Hold, "a state write lifts no hold")
		x.Resume()
		require.Nil(t, x.Hold)
	}
}

// Failures of the machinery have a count of their own, over 24 hours, whatever the states meanwhile.
func TestInfraFailures(t *testing.T) {
	t.Parallel()
	l := DefaultLimits()
	for _, r := range infra {
		x := Ticket{Workflow: Feature, State: "coding", Attempts: 2}
		for n := 1; n < 10; n++ {
			x.Fail(Failure{Reason: r}, l, noon)
			require.Nil(t, x.Hold)
			require.Equal(t, 2, x.Attempts)
			require.Equal(t, later(l.Backoff(n)), x.RetryAt)
			x.Enter("coding", false, l, noon)
			x.Attempts = 2
		}
		x.Fail(Failure{Reason: r, Note: "tenth"}, l, later(24*time.Hour-time.Millisecond))
		require.Equal(t, r, x.Hold.Reason)
		require.Len(t, x.InfraFailures, 10)
	}
	x := Ticket{Workflow: Feature, State: "coding"}
	for range 9 {
		x.Fail(Failure{Reason: ReasonMachineLost}, l, noon)
	}
	x.Fail(Failure{Reason: ReasonMachineLost}, l, later(24*time.Hour))
	require.Nil(t, x.Hold, "failures of a day ago are forgotten")
	require.Equal(t, []Time{later(24 * time.Hour)}, x.InfraFailures)
	require.Equal(t, later(24*time.Hour+10*time.Second), x.RetryAt)
}

func TestFreeFailures(t *testing.T) {
	t.Parallel()
	l := DefaultLimits()
	for _, r := range []Reason{ReasonStopped, ReasonSuperseded, ReasonUndone} {
		x := Ticket{Workflow: Feature, State: "coding", Attempts: 2, RetryAt: later(time.Minute)}
		x.Fail(Failure{Reason: r}, l, noon)
		require.Equal(t, Ticket{Workflow: Feature, State: "coding", Attempts: 2, RetryAt: later(time.Minute)}, withoutEmpty(x), r)
	}
	for until, want := range map[Time]Time{
		later(5 * time.Hour): later(5 * time.Hour), {}: later(15 * time.Minute), noon: later(15 * time.Minute), later(-time.Hour): later(15 * time.Minute),
	} {
		x := Ticket{Attempts: 2}
		x.Fail(Failure{Reason: ReasonLimited, Until: until}, l, noon)
		require.Equal(t, want, x.RetryAt)
		require.Equal(t, 2, x.Attempts)
		require.Nil(t, x.Hold)
	}
	x := Ticket{}
	x.Fail(Failure{Reason: ReasonStopped, Note: "by ada", Hold: true}, l, noon)
	require.Equal(t, &Hold{Reason: ReasonStopped, Note: "by ada", Since: noon}, x.Hold)
	require.Zero(t, x.Attempts)
	x = Ticket{}
	x.Fail(Failure{Reason: ReasonWorkspace, Note: "the branch is checked out elsewhere", Hold: true}, l, noon)
	require.Equal(t, ReasonWorkspace, x.Hold.Reason)
}

func withoutEmpty(x Ticket) Ticket {
	if len(x.InfraFailures) == 0 {
		x.InfraFailures = nil
	}
	return x
}

// A state that runs have entered more than five times is held, and only a person's resume starts the count afresh.
func TestLoop(t *testing.T) {
	t.Parallel()
	l := DefaultLimits()
	x := Ticket{Workflow: Feature, State: "coding"}
	for n := 1; n <= 5; n++ {
		x.Enter("review", true, l, noon)
		x.Enter("coding", true, l, noon)
		require.Nil(t, x.Hold, n)
	}
	x.Enter("review", false, l, noon)
	require.Nil(t, x.Hold, "a person's write does not count")
	x.Enter("review", true, l, noon)
	require.Equal(t, ReasonLoop, x.Hold.Reason)
	require.Contains(t, x.Hold.Note, "review")
	require.Equal(t, "review", x.State)
	x.Resume()
	require.Nil(t, x.Hold)
	require.Empty(t, x.Entries)
	x.Enter("coding", true, l, noon)
	require.Nil(t, x.Hold)

	done := Ticket{Workflow: Feature, State: "review", Entries: map[string]int{"done": 9}}
	done.Enter("done", true, l, noon)
	require.Nil(t, done.Hold, "what is over is not held")
}

func TestResume(t *testing.T) {
	t.Parallel()
	x := Ticket{
		State: "coding", Attempts: 3, InfraFailures: []Time{noon}, RetryAt: later(time.Hour), NotBefore: later(2 * time.Hour),
		Entries: map[string]int{"coding": 6}, Hold: &Hold{Reason: ReasonLoop}, TreeAt: "c",
	}
	x.Resume()
	require.Equal(t, Ticket{State: "coding", NotBefore: later(2 * time.Hour), TreeAt: "c"}, x)
	x.HoldBy("wait for the release", noon)
	require.Equal(t, &Hold{Reason: ReasonPerson, Note: "wait for the release", Since: noon}, x.Hold)
	x.HoldBy("again", later(time.Hour))
	require.Equal(t, "wait for the release", x.Hold.Note)
}

// Changes of one ticket never reach another that shares its maps and slices, such as the one before the change.
func TestTicketsDoNotShare(t *testing.T) {
	t.Parallel()
	l := DefaultLimits()
	before := Ticket{Workflow: Feature, State: "coding", Entries: map[string]int{"review": 1}, InfraFailures: append(make([]Time, 0, 8), later(-48*time.Hour), noon)}
	after := before
	after.Enter("review", true, l, noon)
	after.Fail(Failure{Reason: ReasonInternal}, l, noon)
	require.Equal(t, map[string]int{"review": 1}, before.Entries)
	require.Equal(t, []Time{later(-48 * time.Hour), noon}, before.InfraFailures)
	require.Equal(t, []Time{noon, noon}, after.InfraFailures)
}

// Whatever happens to a ticket, a hold once set is lifted by resume alone.
func TestHoldsAreSticky(t *testing.T) {
	t.Parallel()
	l := DefaultLimits()
	rapid.Check(t, func(t *rapid.T) {
		x := Ticket{Workflow: Feature, State: "coding"}
		now := noon
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			held := x.Hold
			now = At(now.Add(time.Duration(rapid.Int64Range(0, int64(3*time.Hour)).Draw(t, "later"))))
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				x.Fail(Failure{Reason: rapid.SampledFrom(Reasons()).Draw(t, "reason"), Until: later(time.Hour)}, l, now)
			case 2:
				x.Enter(rapid.SampledFrom([]string{"coding", "review", "spec"}).Draw(t, "state"), rapid.Bool().Draw(t, "by run"), l, now)
			case 3:
				if rapid.IntRange(0, 9).Draw(t, "resume") == 0 {
					x.Resume()
					held = nil
					require.Nil(t, x.Hold)
				}
			}
			if held != nil {
				require.Equal(t, held, x.Hold)
			}
			require.True(t, x.Attempts < l.MaxAttempts || x.Hold != nil, "too many attempts are held")
			require.True(t, len(x.InfraFailures) < l.MaxInfra || x.Hold != nil, "too many failures are held")
			require.LessOrEqual(t, len(x.InfraFailures), 60)
		}
	})
}
