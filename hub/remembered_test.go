package hub_test

import (
	"crypto/sha256"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/hub"
	"gaia/hub/auth"
)

// What the hub remembers of tokens ends with a registration, which may have replaced one.
func TestAReplacedTokenIsForgotten(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	old, fresh := b.shop.call.Token, sha256.Sum256([]byte("another"))
	for range 2 { // the second time from memory
		p, err := b.hub.ByToken(b.ctx, old)
		require.NoError(t, err)
		require.Equal(t, b.shop.id, p.Conductor)
	}
	_, err := b.hub.ByToken(b.ctx, fresh)
	require.ErrorIs(t, err, domain.ErrUnauthenticated)
	again := hub.Call{Principal: auth.Principal{Kind: auth.Conductor, Machine: b.shop.call.Machine, Token: fresh, Peer: true}}
	_, err = b.hub.Register(b.ctx, again, domain.Registration{MachineID: b.shop.call.Machine, Epoch: "e2", Project: "SHOP", MaxParallel: 1})
	require.NoError(t, err)
	_, err = b.hub.ByToken(b.ctx, old)
	require.ErrorIs(t, err, domain.ErrUnauthenticated)
	p, err := b.hub.ByToken(b.ctx, fresh)
	require.NoError(t, err)
	require.Equal(t, b.shop.id, p.Conductor)
}

// A claim is the same whether or not the one before it got a ticket, which decides where it looks first.
func TestClaimsAfterOneThatGotATicket(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	for round := range 3 {
		require.Nil(t, b.shop.claim(), "round %d", round)
		first, second := b.ticket(domain.TicketDraft{Workflow: domain.Task}), b.ticket(domain.TicketDraft{Workflow: domain.Task})
		require.Equal(t, first.ID, b.shop.mustClaim().Ticket.ID)
		superseded := b.shop.call
		superseded.Epoch = "e0"
		_, err := b.hub.Claim(b.ctx, superseded, request(t))
		require.ErrorIs(t, err, domain.ErrSuperseded)
		q := request(t)
		for range 2 { // a repeat is known in either place
			a, err := b.hub.Claim(b.ctx, b.shop.call, q)
			require.NoError(t, err)
			require.Equal(t, second.ID, a.Ticket.ID)
		}
		require.Nil(t, b.shop.claim(), "round %d", round)
		b.disk.full = true // one that finds nothing does not write
		require.Nil(t, b.shop.claim(), "round %d", round)
		b.disk.full = false
	}
}

// A repeat of a heartbeat is told how things stand now.
func TestARepeatedHeartbeat(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	call := b.shop.call
	call.Key = "k"
	first, err := b.hub.Heartbeat(b.ctx, call, domain.Beat{Paused: "load"})
	require.NoError(t, err)
	b.clock.Advance(time.Second)
	second, err := b.hub.Heartbeat(b.ctx, call, domain.Beat{Paused: "load"})
	require.NoError(t, err)
	require.Equal(t, first.Conductor.LeaseExpiresAt.Add(time.Second), second.Conductor.LeaseExpiresAt.Time)
	kinds := map[string]int{}
	for _, e := range b.events() {
		kinds[e.Kind]++
	}
	require.Equal(t, 1, kinds["conductor.status"])
}
