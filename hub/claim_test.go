package hub_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gaia/domain"
	"gaia/hub/store"
)

// Fifty claimers on one ticket: one winner, each time.
func TestOneWinner(t *testing.T) {
	t.Parallel()
	rounds := 1000
	if testing.Short() || raced {
		rounds = 10
	}
	b := newBoard(t)
	claimers := make([]worker, 50)
	for i := range claimers {
		claimers[i] = b.conductor(fmt.Sprintf("ada.host%d.shop", i))
	}
	for round := range rounds {
		k := b.ticket(domain.TicketDraft{Workflow: domain.Task})
		var wg sync.WaitGroup
		won := make([]*domain.Assignment, len(claimers))
		errs := make([]error, len(claimers))
		for i, w := range claimers {
			wg.Go(func() { won[i], errs[i] = b.hub.Claim(b.ctx, w.call, request(t)) })
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
		winners := 0
		for _, a := range won {
			if a != nil {
				winners++
				require.Equal(t, k.ID, a.Ticket.ID)
			}
		}
		require.Equal(t, 1, winners, "round %d", round)
		require.NoError(t, b.move(b.owner, k.ID, "cancelled"))
	}
}

// A claim whose answer was lost is asked again with the same arguments: the same run, and never a second.
func TestALostAnswerToAClaim(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	b.ticket(domain.TicketDraft{Workflow: domain.Task})
	b.ticket(domain.TicketDraft{Workflow: domain.Task})
	q := request(t)
	for _, key := range []string{"k", "k", "", "another"} {
		call := b.shop.call
		call.Key = key
		a, err := b.hub.Claim(b.ctx, call, q)
		require.NoError(t, err)
		require.Equal(t, "SHOP-1", a.Ticket.Identifier)
		require.Equal(t, q.Run, a.Run.ID)
	}
	require.NoError(t, b.disk.View(b.ctx, func(tx store.Tx) error {
		_, err := tx.Answer(b.shop.call.Principal.String(), "k", time.Time{})
		require.ErrorIs(t, err, domain.ErrNotFound, "the run id is enough: the whole ticket is not kept once more")
		return nil
	}))
	thief := b.conductor("ada.lap.shop")
	_, err := b.hub.Claim(b.ctx, thief.call, q)
	require.ErrorIs(t, err, domain.ErrConflict)
}

func TestClaimWantsARealRunID(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	for field, change := range map[string]func(*domain.ClaimRequest){
		"run":          func(q *domain.ClaimRequest) { q.Run = "../../x" },
		"token_sha256": func(q *domain.ClaimRequest) { q.TokenSHA256 = "00" },
	} {
		q := request(t)
		change(&q)
		_, err := b.hub.Claim(b.ctx, b.shop.call, q)
		var fe *domain.FieldError
		require.ErrorAs(t, err, &fe)
		require.Equal(t, field, fe.Field)
	}
}

// Most claims find nothing. What they look at must not grow with what nobody may claim now.
func TestAClaimReadsNoMoreThanItMust(t *testing.T) {
	t.Parallel()
	const waiting = 100
	setup := func(t *testing.T, draft domain.TicketDraft) *board {
		b := newBoard(t)
		for range waiting {
			b.ticket(draft)
		}
		b.disk.looks = map[string]int{}
		return b
	}
	t.Run("blocked tickets cost one look at what blocks them", func(t *testing.T) {
		t.Parallel()
		b := newBoard(t)
		blocker := b.ticket(domain.TicketDraft{Workflow: domain.Chore, State: "customer_review"})
		for range waiting {
			b.ticket(domain.TicketDraft{Workflow: domain.Task, BlockedBy: []string{blocker.ID}})
		}
		b.disk.looks = map[string]int{}
		require.Nil(t, b.shop.claim())
		require.Equal(t, waiting, b.disk.looks["candidate"])
		require.Equal(t, 1, b.disk.looks["Ticket"])
		require.Zero(t, b.disk.looks["LastEndedRun"])
		require.Equal(t, 1, b.disk.looks["LiveByState"])
	})
	t.Run("tickets of somebody else cost nothing", func(t *testing.T) {
		t.Parallel()
		b := setup(t, domain.TicketDraft{Workflow: domain.Task, Assignee: "bob"})
		lap := b.conductor("ada.lap.shop")
		for range waiting {
			b.ticket(domain.TicketDraft{Workflow: domain.Task, Target: domain.Ref(lap.id)})
		}
		b.disk.looks = map[string]int{}
		require.Nil(t, b.shop.claim())
		require.Zero(t, b.disk.looks["candidate"])
	})
	t.Run("a conductor that may claim nothing looks at no ticket", func(t *testing.T) {
		t.Parallel()
		b := setup(t, domain.TicketDraft{Workflow: domain.Task})
		_, err := b.hub.Drain(b.ctx, b.owner, b.shop.id, true)
		require.NoError(t, err)
		require.Nil(t, b.shop.claim())
		require.Zero(t, b.disk.looks["candidate"])
	})
}

// On random boards, `why` and the claim never disagree, a claim always takes the first eligible ticket in claim order, at
// most one run per ticket is live, and no run leaves an end state.
func TestWhyAgreesWithTheClaim(t *testing.T) {
	t.Parallel()
	steps, seconds := 40, 90
	if raced {
		steps, seconds = 10, 20
	}
	rapid.Check(t, func(rt *rapid.T) {
		b := newBoard(t)
		workers := []worker{b.shop, b.conductor("bob.lap.shop")}
		ended := map[string]domain.RunState{}
		var live []*domain.Assignment
		var tickets []domain.Ticket
		pick := func() domain.Ticket { return tickets[rapid.IntRange(0, len(tickets)-1).Draw(rt, "ticket")] }
		for range rapid.IntRange(1, steps).Draw(rt, "steps") {
			step := rapid.IntRange(0, 9).Draw(rt, "step")
			if len(tickets) == 0 {
				step = 0
			}
			w := workers[rapid.IntRange(0, 1).Draw(rt, "worker")]
			switch step {
			case 0, 1:
				d := domain.TicketDraft{Workflow: domain.Ref(rapid.SampledFrom([]string{"", domain.Feature, domain.Bug, domain.Task}).Draw(rt, "workflow"))}
				if rapid.Bool().Draw(rt, "prioritised") {
					p := float64(rapid.IntRange(-2, 2).Draw(rt, "priority"))
					d.Priority = &p
				}
				d.Assignee = domain.Ref(rapid.SampledFrom([]string{"", "", "ada", "bob"}).Draw(rt, "assignee"))
				d.Target = domain.Ref(rapid.SampledFrom([]string{"", "", workers[0].id, workers[1].id}).Draw(rt, "target"))
				tickets = append(tickets, b.ticket(d))
			case 2:
				blockers := []string{pick().ID}
				_, err := b.hub.PatchTicket(b.ctx, b.owner, pick().ID, domain.TicketPatch{BlockedBy: &blockers})
				if err != nil {
					require.ErrorIs(rt, err, domain.ErrInvalid)
				}
			case 3:
				_, err := b.hub.Hold(b.ctx, b.owner, pick().ID, "")
				require.NoError(rt, err)
			case 4:
				_, err := b.hub.Resume(b.ctx, b.owner, pick().ID)
				require.NoError(rt, err)
			case 5:
				k := b.read(pick().ID)
				if open := domain.Open(string(k.Workflow), k.State); len(open) > 0 {
					err := b.move(b.owner, k.ID, rapid.SampledFrom(open).Draw(rt, "state"))
					if err != nil {
						require.ErrorIs(rt, err, domain.ErrInvalid)
					}
				}
			case 6:
				b.pass(time.Duration(rapid.IntRange(1, seconds).Draw(rt, "seconds"))*time.Second, workers...)
			case 7:
				if len(live) > 0 {
					a := live[rapid.IntRange(0, len(live)-1).Draw(rt, "run")]
					owner := workers[0]
					if a.Run.Conductor == workers[1].id {
						owner = workers[1]
					}
					switch rapid.IntRange(0, 2).Draw(rt, "end") {
					case 0:
						owner.start(a)
					case 1:
						owner.fail(a, domain.Failure{Reason: rapid.SampledFrom(domain.Reasons()).Draw(rt, "reason")})
					case 2:
						if b.run(a.Run.ID).State.Ended() {
							owner.finalise(a.Run.ID, domain.FinaliseReport{Unpushed: rapid.Bool().Draw(rt, "unpushed")})
						}
					}
				}
			default:
				live = append(live, b.claimAsPredicted(rt, w, tickets)...)
			}
			for _, a := range live {
				r := b.run(a.Run.ID)
				if was, ok := ended[r.ID]; ok {
					require.Equal(rt, was, r.State, "a run left an end state")
				}
				if r.State.Ended() {
					ended[r.ID] = r.State
				}
			}
		}
	})
}

// claimAsPredicted claims, and compares with what `why` said before.
func (b *board) claimAsPredicted(rt *rapid.T, w worker, tickets []domain.Ticket) []*domain.Assignment {
	// A claim that finds nothing tells the hub what the conductor can serve, and changes nothing else: a drained one.
	_, err := b.hub.Drain(b.ctx, b.owner, w.id, true)
	require.NoError(rt, err)
	require.Nil(rt, w.claim())
	_, err = b.hub.Drain(b.ctx, b.owner, w.id, false)
	require.NoError(rt, err)

	var want *domain.Ticket
	for _, k := range tickets {
		k := b.read(k.ID)
		why, err := b.hub.Why(b.ctx, b.owner.Principal, k.ID)
		require.NoError(rt, err)
		if eligible(why, w) && (want == nil || domain.CompareClaim(k, *want) < 0) {
			want = &k
		}
	}
	a, err := b.hub.Claim(b.ctx, w.call, request(b.t))
	require.NoError(rt, err)
	if want == nil {
		require.Nil(rt, a, "the claim took what `why` says it cannot")
		return nil
	}
	require.NotNil(rt, a, "the claim took nothing, though `why` says that %s is eligible", want.Identifier)
	require.Equal(rt, want.Identifier, a.Ticket.Identifier)
	return []*domain.Assignment{a}
}

func eligible(why domain.Why, w worker) bool {
	for _, c := range why.Conductors {
		if c.MachineID == w.call.Machine {
			return c.Eligible
		}
	}
	return false
}
