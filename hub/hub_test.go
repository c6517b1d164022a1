package hub_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/hub"
	"gaia/hub/auth"
	"gaia/hub/store"
	"gaia/hub/store/sqlite"
	"gaia/internal/clock"
	"gaia/internal/log"
)

// board is a hub on a real database with a clock that the test moves, one project and one conductor.
type board struct {
	t       testing.TB
	ctx     context.Context
	clock   *clock.Fake
	disk    *disk
	hub     *hub.Hub
	owner   hub.Call
	project domain.Project
	shop    worker
}

// worker is one conductor.
type worker struct {
	b    *board
	call hub.Call
	id   string
}

// disk is a store that can be out of order.
type disk struct {
	store.Store
	full bool
	seen func() // called after each look at the store
	// looks are counted by the method of store.Tx where it is not nil.
	looks map[string]int
}

// counted is a look at the store whose steps are counted.
type counted struct {
	store.Tx
	looks map[string]int
}

func (c counted) Ticket(id string) (domain.Ticket, error) {
	c.looks["Ticket"]++
	return c.Tx.Ticket(id)
}

func (c counted) LastEndedRun(ticket string) (domain.Run, error) {
	c.looks["LastEndedRun"]++
	return c.Tx.LastEndedRun(ticket)
}

func (c counted) LiveByState(conductor string) (map[string]int, error) {
	c.looks["LiveByState"]++
	return c.Tx.LiveByState(conductor)
}

func (c counted) Candidates(whom store.Claimer, now domain.Time, fn func(domain.Ticket) (bool, error)) error {
	return c.Tx.Candidates(whom, now, func(k domain.Ticket) (bool, error) {
		c.looks["candidate"]++
		return fn(k)
	})
}

func (d *disk) View(ctx context.Context, fn func(store.Tx) error) error {
	err := d.Store.View(ctx, func(tx store.Tx) error {
		if d.looks != nil {
			tx = counted{tx, d.looks}
		}
		return fn(tx)
	})
	if d.seen != nil {
		d.seen()
	}
	return err
}

func (d *disk) Update(ctx context.Context, fn func(store.Tx) error) error {
	if d.full {
		return store.ErrUnavailable
	}
	return d.Store.Update(ctx, fn)
}

// folder is a place for a database, in memory where that is possible: what survives a power cut is tested elsewhere, and
// thousands of transactions wait for a disk here.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "gaia-hub-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func newBoard(t testing.TB) *board {
	t.Helper()
	b := &board{t: t, ctx: context.Background(), clock: clock.NewFake(time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC))}
	db, err := sqlite.Open(b.ctx, filepath.Join(folder(t), "hub.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	b.disk = &disk{Store: db}
	b.hub = hub.New(hub.Options{Store: b.disk, Clock: b.clock, Limits: domain.DefaultLimits(), Leases: hub.DefaultLeases(), Log: zerolog.Nop()})
	require.NoError(t, b.hub.Open(b.ctx))
	b.owner = hub.Call{Principal: auth.Principal{Kind: auth.Owner, User: "ada", Peer: true}}
	b.project, err = b.hub.CreateProject(b.ctx, b.owner, domain.Project{Key: "SHOP", Slug: "shop"})
	require.NoError(t, err)
	b.shop = b.conductor("ada.desk.shop")
	return b
}

func (b *board) conductor(machineID string) worker {
	b.t.Helper()
	token := sha256.Sum256([]byte(machineID))
	first := hub.Call{Principal: auth.Principal{Kind: auth.Conductor, Machine: machineID, Token: token, Peer: true}}
	r, err := b.hub.Register(b.ctx, first, domain.Registration{MachineID: machineID, Epoch: "e1", Project: "SHOP", MaxParallel: 100})
	require.NoError(b.t, err)
	p, err := b.hub.ByToken(b.ctx, token)
	require.NoError(b.t, err)
	p.Epoch = "e1"
	return worker{b, hub.Call{Principal: p}, r.Conductor.ID}
}

// offer serves everything with one agent.
func offer() domain.Offer {
	o := domain.Offer{Agents: []string{"script"}, Default: "script", Serves: []string{"/qualification"}}
	for _, w := range domain.Workflows() {
		for _, s := range w.States {
			o.Serves = append(o.Serves, domain.ServeKey(w.ID, s.Name))
		}
	}
	return o
}

func request(t testing.TB) domain.ClaimRequest {
	t.Helper()
	id, err := uuid.NewV7()
	require.NoError(t, err)
	token := sha256.Sum256([]byte(id.String()))
	return domain.ClaimRequest{Run: id.String(), TokenSHA256: hex.EncodeToString(token[:]), Offer: offer()}
}

func (w worker) claim() *domain.Assignment {
	w.b.t.Helper()
	a, err := w.b.hub.Claim(w.b.ctx, w.call, request(w.b.t))
	require.NoError(w.b.t, err)
	return a
}

// mustClaim claims and starts.
func (w worker) mustClaim() *domain.Assignment {
	w.b.t.Helper()
	a := w.claim()
	require.NotNil(w.b.t, a, "nothing was claimed")
	return a
}

func (w worker) start(a *domain.Assignment) domain.Fate {
	w.b.t.Helper()
	f, err := w.b.hub.Start(w.b.ctx, w.call, a.Run.ID, domain.StartReport{Branch: "gaia/" + a.Ticket.Identifier, WorktreePath: "/t"})
	require.NoError(w.b.t, err)
	return f
}

func (w worker) beat() domain.Pulse {
	w.b.t.Helper()
	p, err := w.b.hub.Heartbeat(w.b.ctx, w.call, domain.Beat{})
	require.NoError(w.b.t, err)
	return p
}

func (w worker) fail(a *domain.Assignment, r domain.Failure) {
	w.b.t.Helper()
	_, err := w.b.hub.Fail(w.b.ctx, w.call, a.Run.ID, r)
	require.NoError(w.b.t, err)
}

func (w worker) finalise(run string, f domain.FinaliseReport) {
	w.b.t.Helper()
	require.NoError(w.b.t, w.b.hub.Finalise(w.b.ctx, w.call, run, f))
}

// agent is the call of the agent inside a run.
func (b *board) agent(a *domain.Assignment) hub.Call {
	b.t.Helper()
	p, err := b.hub.ByToken(b.ctx, sha256.Sum256([]byte(a.Run.ID)))
	require.NoError(b.t, err)
	return hub.Call{Principal: p}
}

func (b *board) ticket(d domain.TicketDraft) domain.Ticket {
	b.t.Helper()
	d.Project = b.project.ID
	if d.Title == "" {
		d.Title = "A ticket"
	}
	k, err := b.hub.CreateTicket(b.ctx, b.owner, d)
	require.NoError(b.t, err)
	return k
}

func (b *board) read(id string) domain.Ticket {
	b.t.Helper()
	k, err := b.hub.Ticket(b.ctx, b.owner.Principal, id)
	require.NoError(b.t, err)
	return k
}

func (b *board) run(id string) domain.Run {
	b.t.Helper()
	r, err := b.hub.Run(b.ctx, b.owner.Principal, id)
	require.NoError(b.t, err)
	return r
}

func (b *board) move(c hub.Call, id, state string) error {
	_, err := b.hub.PatchTicket(b.ctx, c, id, domain.TicketPatch{State: &state})
	return err
}

// pass lets time go by in steps that a sweep takes for ordinary time, with the given conductors alive.
func (b *board) pass(d time.Duration, alive ...worker) {
	b.t.Helper()
	for ; d > 0; d -= time.Second {
		b.clock.Advance(min(d, time.Second))
		if d%(15*time.Second) == 0 {
			for _, w := range alive {
				w.beat()
			}
		}
		require.NoError(b.t, b.hub.Sweep(b.ctx))
	}
}

func (b *board) events() []domain.Event {
	b.t.Helper()
	e, _, err := b.hub.Events(b.ctx, b.owner.Principal, 0, 1000)
	require.NoError(b.t, err)
	return e
}

func kinds(events []domain.Event) []string {
	out := make([]string, len(events))
	for i, e := range events {
		out[i] = e.Kind
	}
	return out
}

func TestAStateWriteEndsTheRun(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	k := b.ticket(domain.TicketDraft{Workflow: domain.Chore, State: "coding"})
	a := b.shop.mustClaim()
	require.Equal(t, k.ID, a.Ticket.ID)
	require.Equal(t, domain.RunRunning, b.shop.start(a).State)
	before := len(b.events())

	state, head := "review", "c0ffee"
	agent := b.agent(a)
	agent.Key = "k1"
	_, err := b.hub.PatchTicket(b.ctx, agent, k.ID, domain.TicketPatch{State: &state, Head: &head})
	require.NoError(t, err)

	r := b.run(a.Run.ID)
	require.Equal(t, domain.RunDone, r.State)
	require.Equal(t, domain.Ref(head), r.EndSHA)
	require.Empty(t, r.EndReason)
	require.Equal(t, []string{"ticket.moved", "run.done"}, kinds(b.events()[before:]), "the ticket's event comes first")

	t.Run("a repeat gets the first answer", func(t *testing.T) {
		again, err := b.hub.PatchTicket(b.ctx, agent, k.ID, domain.TicketPatch{State: &state, Head: &head})
		require.NoError(t, err)
		require.Equal(t, "review", again.State)
		require.Len(t, b.events(), before+2)
	})
	t.Run("the same key with another request is refused", func(t *testing.T) {
		other := agent
		other.Request = [32]byte{1}
		_, err := b.hub.PatchTicket(b.ctx, other, k.ID, domain.TicketPatch{State: &state})
		require.ErrorIs(t, err, domain.ErrInvalid)
	})
	t.Run("a late write of the ended run is refused", func(t *testing.T) {
		late := b.agent(a)
		require.ErrorIs(t, b.move(late, k.ID, "done"), domain.ErrStaleRun)
		_, err := b.hub.AddComment(b.ctx, late, domain.Comment{Ticket: k.ID, Body: "late"})
		require.ErrorIs(t, err, domain.ErrStaleRun)
		_, err = b.hub.Ticket(b.ctx, late.Principal, k.ID)
		require.ErrorIs(t, err, domain.ErrStaleRun)
	})
	t.Run("nothing is claimed before it is finalised", func(t *testing.T) {
		require.Nil(t, b.shop.claim())
		b.shop.finalise(a.Run.ID, domain.FinaliseReport{Unpushed: true, EndSHA: "beef"})
		require.Equal(t, k.ID, b.shop.mustClaim().Ticket.ID)
	})
}

func TestAPersonAndALiveRun(t *testing.T) {
	t.Parallel()
	ref := func(s string) *domain.Ref { r := domain.Ref(s); return &r }
	str := func(s string) *string { return &s }
	for name, c := range map[string]struct {
		patch func(*board) domain.TicketPatch
		state domain.RunState
	}{
		"moves":   {func(*board) domain.TicketPatch { return domain.TicketPatch{State: str("qualification")} }, domain.RunFailed},
		"cancels": {func(*board) domain.TicketPatch { return domain.TicketPatch{State: str("cancelled")} }, domain.RunFailed},
		"same":    {func(*board) domain.TicketPatch { return domain.TicketPatch{State: str(" CODING ")} }, domain.RunRunning},
		"re-target": {func(b *board) domain.TicketPatch {
			return domain.TicketPatch{Target: ref(b.conductor("ada.lap.shop").id)}
		}, domain.RunRunning},
		"re-assign": {func(*board) domain.TicketPatch { return domain.TicketPatch{Assignee: ref("bob")} }, domain.RunRunning},
		"blocks": {func(b *board) domain.TicketPatch {
			return domain.TicketPatch{BlockedBy: &[]string{b.ticket(domain.TicketDraft{}).ID}}
		}, domain.RunRunning},
		"project": {func(b *board) domain.TicketPatch {
			p, err := b.hub.CreateProject(b.ctx, b.owner, domain.Project{Key: "OTHER", Slug: "other"})
			require.NoError(b.t, err)
			return domain.TicketPatch{Project: &p.ID}
		}, domain.RunRunning},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBoard(t)
			k := b.ticket(domain.TicketDraft{Workflow: domain.Chore, State: "coding"})
			a := b.shop.mustClaim()
			b.shop.start(a)
			_, err := b.hub.PatchTicket(b.ctx, b.owner, k.ID, c.patch(b))
			require.NoError(t, err)
			r := b.run(a.Run.ID)
			require.Equal(t, c.state, r.State)
			if c.state == domain.RunFailed {
				require.Equal(t, domain.ReasonSuperseded, r.EndReason)
				require.Zero(t, b.read(k.ID).Attempts, "superseded counts no attempt")
			}
		})
	}
}

func TestTheThirdFailureHolds(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	k := b.ticket(domain.TicketDraft{Workflow: domain.Chore, State: "coding"})
	for i := 1; i <= 3; i++ {
		a := b.shop.mustClaim()
		require.Equal(t, i, a.Run.Attempt)
		b.shop.start(a)
		b.shop.fail(a, domain.Failure{Reason: domain.ReasonAgentExit, Note: "exit status 3"})
		require.Equal(t, domain.RunFailed, b.run(a.Run.ID).State)
		b.shop.finalise(a.Run.ID, domain.FinaliseReport{})
		require.Nil(t, b.shop.claim(), "it waits before it is tried again")
		b.pass(5*time.Minute, b.shop)
	}
	held := b.read(k.ID)
	require.NotNil(t, held.Hold)
	require.Equal(t, domain.ReasonAgentExit, held.Hold.Reason)
	require.Nil(t, b.shop.claim())
	_, err := b.hub.Resume(b.ctx, b.owner, k.ID)
	require.NoError(t, err)
	require.NotNil(t, b.shop.claim())
}

func TestStartAndFailOfAnEndedRunChangeNothing(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	k := b.ticket(domain.TicketDraft{Workflow: domain.Chore, State: "coding"})
	a := b.shop.mustClaim()
	require.NoError(t, b.move(b.agent(a), k.ID, "review"), "a quick agent writes before start arrives")
	n := len(b.events())
	require.Equal(t, domain.RunDone, b.shop.start(a).State)
	f, err := b.hub.Fail(b.ctx, b.shop.call, a.Run.ID, domain.Failure{Reason: domain.ReasonAgentExit})
	require.NoError(t, err)
	require.Equal(t, domain.RunDone, f.State)
	require.Len(t, b.events(), n)
	b.shop.finalise(a.Run.ID, domain.FinaliseReport{Unpushed: true})
	require.Equal(t, domain.Ref(b.shop.id), b.read(k.ID).TreeAt, "its work lies there all the same")
}

func TestWhereTheWorkLies(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	other := b.conductor("ada.lap.shop")
	k := b.ticket(domain.TicketDraft{Workflow: domain.Chore, State: "coding"})
	first := b.shop.mustClaim()
	b.shop.start(first)
	b.shop.fail(first, domain.Failure{Reason: domain.ReasonSessionLost})
	b.shop.finalise(first.Run.ID, domain.FinaliseReport{Unpushed: true})
	b.pass(time.Minute, b.shop, other)
	require.Nil(t, other.claim(), "only the conductor with the tree may claim")

	why, err := b.hub.Why(b.ctx, b.owner.Principal, k.Identifier)
	require.NoError(t, err)
	require.Len(t, why.Conductors, 2)

	t.Run("away for long it shows, and still nobody else may", func(t *testing.T) {
		b.pass(31*time.Minute, other)
		require.Nil(t, other.claim())
		s, err := b.hub.Snapshot(b.ctx, b.owner.Principal, "SHOP")
		require.NoError(t, err)
		require.Len(t, s.Machines, 1)
	})
	t.Run("a person may give it to another", func(t *testing.T) {
		target := func(id string) domain.Ticket {
			ref := domain.Ref(id)
			k, err := b.hub.PatchTicket(b.ctx, b.owner, k.ID, domain.TicketPatch{Target: &ref})
			require.NoError(t, err)
			return k
		}
		require.Equal(t, domain.Ref(b.shop.id), target(b.shop.id).TreeAt)
		b.shop.beat()
		require.Equal(t, domain.Ref(b.shop.id), target(other.id).TreeAt, "not while the one that has it is there")
		require.Nil(t, other.claim())
		b.pass(31*time.Minute, other)
		require.Empty(t, target(other.id).TreeAt)
		again := other.mustClaim()
		require.Equal(t, k.ID, again.Ticket.ID)
		other.start(again)
		other.fail(again, domain.Failure{Reason: domain.ReasonSessionLost})
		other.finalise(again.Run.ID, domain.FinaliseReport{Unpushed: true})
		target("")
		b.pass(5*time.Minute, b.shop, other)
	})
	t.Run("until a person starts afresh", func(t *testing.T) {
		_, err := b.hub.ClearTree(b.ctx, b.owner, k.ID)
		require.NoError(t, err)
		second := b.shop.mustClaim()
		b.shop.start(second)
		// A finalise of a run that is not the ticket's last changes nothing.
		require.NoError(t, b.move(b.agent(second), k.ID, "review"))
		require.Equal(t, domain.Ref(b.shop.id), b.read(k.ID).TreeAt)
		b.shop.finalise(second.Run.ID, domain.FinaliseReport{Unpushed: false})
		require.Empty(t, b.read(k.ID).TreeAt)
	})
}

func TestAStartThatChangesNothingOfTheTicketIsNoEventOfIt(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	k := b.ticket(domain.TicketDraft{Workflow: domain.Chore, State: "coding"})
	for i, want := range [][]string{{"ticket.tree_set", "run.started"}, {"run.started"}} {
		a := b.shop.mustClaim()
		before := len(b.events())
		b.shop.start(a)
		require.Equal(t, want, kinds(b.events()[before:]), "start %d", i)
		require.Equal(t, domain.Ref("gaia/"+k.Identifier), b.read(k.ID).Branch)
		require.Equal(t, domain.Ref(b.shop.id), b.read(k.ID).TreeAt)
		b.shop.fail(a, domain.Failure{Reason: domain.ReasonAgentExit})
		b.shop.finalise(a.Run.ID, domain.FinaliseReport{Unpushed: true})
		b.pass(time.Minute, b.shop)
	}
}

// The journal holds the head of the log under the id by which its catalog explains it.
func TestFinaliseWritesTheAnchor(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	b.ticket(domain.TicketDraft{Workflow: domain.Chore, State: "coding"})
	a := b.shop.mustClaim()
	b.shop.fail(a, domain.Failure{Reason: domain.ReasonAgentExit})
	var journal bytes.Buffer
	b.hub = hub.New(hub.Options{Store: b.disk, Clock: b.clock, Limits: domain.DefaultLimits(), Leases: hub.DefaultLeases(), Log: zerolog.New(&journal)})
	b.shop.finalise(a.Run.ID, domain.FinaliseReport{})
	var line map[string]any
	require.NoError(t, json.Unmarshal(journal.Bytes(), &line))
	seq, head, err := b.disk.Head(b.ctx)
	require.NoError(t, err)
	require.Equal(t, log.Anchor, line[log.MessageID])
	require.Equal(t, a.Run.ID, line[log.Run])
	require.Equal(t, hex.EncodeToString(head[:]), line["head"])
	require.EqualValues(t, seq, line["seq"])
	require.Equal(t, fmt.Sprintf("run finalised; head of the event log: entry %d, hash %s", seq, line["head"]), line["message"])
}

// A lease that expires and a ticket that is held are in the journal, once.
func TestTheJournalTellsWhatNobodyElseSees(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	k := b.ticket(domain.TicketDraft{Workflow: domain.Chore, State: "coding"})
	var journal bytes.Buffer
	b.hub = hub.New(hub.Options{Store: b.disk, Clock: b.clock, Limits: domain.Limits{MaxInfra: 1, InfraWindow: time.Hour}, Leases: hub.DefaultLeases(), Log: zerolog.New(&journal)})
	require.NoError(t, b.hub.Open(b.ctx))
	a := b.shop.mustClaim()
	b.pass(3 * time.Minute)
	var lines []map[string]any
	for dec := json.NewDecoder(&journal); dec.More(); {
		var line map[string]any
		require.NoError(t, dec.Decode(&line))
		lines = append(lines, line)
	}
	require.Len(t, lines, 2)
	require.Equal(t, log.TicketHeld, lines[0][log.MessageID])
	require.Equal(t, k.Identifier, lines[0][log.Ticket])
	require.Equal(t, log.RunEnded, lines[1][log.MessageID])
	require.Equal(t, a.Run.ID, lines[1][log.Run])
	require.Equal(t, k.Identifier, lines[1][log.Ticket])
	require.Equal(t, "machine_lost", lines[1][log.Reason])
}

// What a snapshot shows, of one project and of all.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	p, err := b.hub.CreateProject(b.ctx, b.owner, domain.Project{Key: "OTHER", Slug: "other"})
	require.NoError(t, err)
	ran := b.ticket(domain.TicketDraft{Workflow: domain.Chore, State: "coding"})
	for _, cost := range []float64{0.5, 0.25} {
		a := b.shop.mustClaim()
		b.shop.start(a)
		_, err := b.hub.Heartbeat(b.ctx, b.shop.call, domain.Beat{Runs: []domain.RunBeat{{Run: a.Run.ID, Footprint: &domain.Footprint{Cost: cost, TokensIn: 10}}}})
		require.NoError(t, err)
		b.shop.fail(a, domain.Failure{Reason: domain.ReasonAgentExit})
		b.shop.finalise(a.Run.ID, domain.FinaliseReport{})
		b.pass(time.Minute, b.shop)
	}
	live := b.shop.mustClaim()
	held, later := b.ticket(domain.TicketDraft{}), b.ticket(domain.TicketDraft{NotBefore: domain.At(b.clock.Now().Add(time.Hour))})
	ready := b.ticket(domain.TicketDraft{}) // nothing that a snapshot tells of
	blocked := b.ticket(domain.TicketDraft{BlockedBy: []string{ready.ID}, NotBefore: later.NotBefore})
	for _, k := range []domain.Ticket{held, ran} { // which shows as held and as running
		_, err = b.hub.PatchTicket(b.ctx, b.owner, k.ID, domain.TicketPatch{BlockedBy: &[]string{ready.ID}})
		require.NoError(t, err)
	}
	over := b.ticket(domain.TicketDraft{Workflow: domain.Chore, State: "done"})
	b.ticket(domain.TicketDraft{BlockedBy: []string{over.ID}})
	_, err = b.hub.Hold(b.ctx, b.owner, held.ID, "")
	require.NoError(t, err)
	elsewhere, err := b.hub.CreateTicket(b.ctx, b.owner, domain.TicketDraft{Project: p.ID, Title: "x"})
	require.NoError(t, err)
	_, err = b.hub.Hold(b.ctx, b.owner, elsewhere.ID, "")
	require.NoError(t, err)

	ids := func(tickets []domain.Ticket) (out []string) {
		for _, k := range tickets {
			out = append(out, k.ID)
		}
		return out
	}
	for project, holds := range map[string][]string{"SHOP": {held.ID}, "OTHER": {elsewhere.ID}, "": {held.ID, elsewhere.ID}} {
		s, err := b.hub.Snapshot(b.ctx, b.owner.Principal, project)
		require.NoError(t, err)
		require.Equal(t, holds, ids(s.Held), project)
		if project == "OTHER" {
			require.Zero(t, s.Totals)
			require.Empty(t, s.Running)
			require.Empty(t, s.Blocked)
			continue
		}
		require.Equal(t, domain.SnapshotTotals{Runs: 3, Footprint: domain.Footprint{Cost: 0.75, TokensIn: 20}}, s.Totals)
		require.Len(t, s.Running, 1)
		require.Equal(t, live.Run.ID, s.Running[0].Run.ID)
		require.Equal(t, ran.ID, s.Running[0].Ticket.ID)
		require.Equal(t, []string{later.ID}, ids(s.Waiting))
		require.Equal(t, []string{blocked.ID}, ids(s.Blocked))
		require.Equal(t, 1, s.Limits.Live)
	}
	_, err = b.hub.Snapshot(b.ctx, b.shop.call.Principal, "OTHER")
	require.ErrorIs(t, err, domain.ErrNotFound)

	_, err = b.hub.PatchTicket(b.ctx, b.owner, elsewhere.ID, domain.TicketPatch{Labels: &[]string{"secret"}})
	require.NoError(t, err)
	labels, err := b.hub.Labels(b.ctx, b.shop.call.Principal)
	require.NoError(t, err)
	require.Empty(t, labels, "a conductor sees the labels of its own project")
	labels, err = b.hub.Labels(b.ctx, b.owner.Principal)
	require.NoError(t, err)
	require.Len(t, labels, 1)
}

func TestLateWorkBecomesAComment(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	k := b.ticket(domain.TicketDraft{Workflow: domain.Chore, State: "coding"})
	a := b.shop.mustClaim()
	b.shop.start(a)
	require.ErrorIs(t, b.hub.Finalise(b.ctx, b.shop.call, a.Run.ID, domain.FinaliseReport{}), domain.ErrConflict, "only ended runs are finalised")
	require.NoError(t, b.move(b.agent(a), k.ID, "review"))
	for range 2 { // it may be repeated
		b.shop.finalise(a.Run.ID, domain.FinaliseReport{LateWork: []string{"abc1234 one more thing"}})
	}
	as, err := b.hub.Assignment(b.ctx, b.shop.call.Principal, a.Run.ID)
	require.NoError(t, err)
	require.Len(t, as.Comments, 1)
	require.Equal(t, "late_work", as.Comments[0].Type)
	require.Contains(t, as.Comments[0].Body, "one more thing")
}

func TestStoppedByAPerson(t *testing.T) {
	t.Parallel()
	for _, retry := range []bool{false, true} {
		t.Run(fmt.Sprintf("retry %v", retry), func(t *testing.T) {
			t.Parallel()
			b := newBoard(t)
			k := b.ticket(domain.TicketDraft{Workflow: domain.Chore, State: "coding"})
			a := b.shop.mustClaim()
			b.shop.start(a)
			r, err := b.hub.StopRun(b.ctx, b.owner, a.Run.ID, retry, "")
			require.NoError(t, err)
			require.Equal(t, domain.ReasonStopped, r.EndReason)
			require.Equal(t, retry, b.read(k.ID).Hold == nil)
			require.Zero(t, b.read(k.ID).Attempts)
		})
	}
}

func TestLeases(t *testing.T) {
	t.Parallel()
	setup := func(t *testing.T, started bool) (*board, *domain.Assignment) {
		b := newBoard(t)
		b.ticket(domain.TicketDraft{Workflow: domain.Chore, State: "coding"})
		a := b.shop.mustClaim()
		if started {
			b.shop.start(a)
		}
		return b, a
	}
	t.Run("a claim that nobody renews expires", func(t *testing.T) {
		t.Parallel()
		b, a := setup(t, false)
		b.pass(119 * time.Second)
		require.Equal(t, domain.RunClaimed, b.run(a.Run.ID).State)
		b.pass(2 * time.Second)
		require.Equal(t, domain.RunExpired, b.run(a.Run.ID).State)
		require.Equal(t, domain.ReasonMachineLost, b.run(a.Run.ID).EndReason)
		require.Zero(t, b.read(a.Ticket.ID).Attempts)
	})
	t.Run("a claim lives 20 minutes at most", func(t *testing.T) {
		t.Parallel()
		b, a := setup(t, false)
		b.pass(19*time.Minute, b.shop)
		require.Equal(t, domain.RunClaimed, b.run(a.Run.ID).State)
		b.pass(2*time.Minute, b.shop)
		require.Equal(t, domain.RunExpired, b.run(a.Run.ID).State)
	})
	t.Run("heartbeats keep a run", func(t *testing.T) {
		t.Parallel()
		b, a := setup(t, true)
		b.pass(time.Hour, b.shop)
		require.Equal(t, domain.RunRunning, b.run(a.Run.ID).State)
		b.pass(6 * time.Minute)
		require.Equal(t, domain.RunExpired, b.run(a.Run.ID).State)
	})
	t.Run("a suspend, a set clock and a stopped hub expire nothing", func(t *testing.T) {
		t.Parallel()
		b, a := setup(t, true)
		b.clock.Suspend(10 * time.Hour)
		require.NoError(t, b.hub.Sweep(b.ctx))
		require.Equal(t, domain.RunRunning, b.run(a.Run.ID).State)
		b.clock.Set(b.clock.Now().Add(48 * time.Hour))
		require.NoError(t, b.hub.Sweep(b.ctx))
		require.Equal(t, domain.RunRunning, b.run(a.Run.ID).State)
		b.clock.Set(b.clock.Now().Add(-96 * time.Hour))
		require.NoError(t, b.hub.Sweep(b.ctx))
		b.clock.Advance(time.Hour) // nobody swept: the hub did not run
		require.NoError(t, b.hub.Sweep(b.ctx))
		require.Equal(t, domain.RunRunning, b.run(a.Run.ID).State)
		b.pass(4 * time.Minute)
		require.Equal(t, domain.RunRunning, b.run(a.Run.ID).State, "a full lifetime counts from the waking")
		b.pass(2 * time.Minute)
		require.Equal(t, domain.RunExpired, b.run(a.Run.ID).State)
	})
	t.Run("a suspend in the middle of a sweep expires nothing", func(t *testing.T) {
		t.Parallel()
		b, a := setup(t, true)
		b.conductor("ada.lap.shop")
		b.pass(time.Minute, b.shop)
		b.clock.Advance(time.Second) // now the other one is away, so that the sweep has something to write
		b.disk.seen = func() { b.clock.Suspend(10 * time.Hour) }
		require.NoError(t, b.hub.Sweep(b.ctx))
		b.disk.seen = nil
		require.Contains(t, kinds(b.events()), "conductor.status")
		require.NoError(t, b.hub.Sweep(b.ctx))
		require.Equal(t, domain.RunRunning, b.run(a.Run.ID).State)
	})
	t.Run("a hub that cannot write expires nothing, and takes nobody for gone", func(t *testing.T) {
		t.Parallel()
		b, a := setup(t, true)
		b.disk.full = true
		for range 600 { // twice the lifetime
			b.clock.Advance(time.Second)
			_, err := b.hub.Heartbeat(b.ctx, b.shop.call, domain.Beat{})
			require.ErrorIs(t, err, store.ErrUnavailable)
			_ = b.hub.Sweep(b.ctx) // it may have tried to write
		}
		b.disk.full = false
		require.NoError(t, b.hub.Sweep(b.ctx))
		require.Equal(t, domain.RunRunning, b.run(a.Run.ID).State)
		con, err := b.hub.Conductor(b.ctx, b.owner.Principal, b.shop.id)
		require.NoError(t, err)
		require.Equal(t, domain.ConductorOnline, con.Status)
		b.pass(4 * time.Minute)
		require.Equal(t, domain.RunRunning, b.run(a.Run.ID).State, "a full lifetime counts from the first write that worked")
		b.pass(2 * time.Minute)
		require.Equal(t, domain.RunExpired, b.run(a.Run.ID).State)
	})
	t.Run("a hub that starts gives a fresh lifetime", func(t *testing.T) {
		t.Parallel()
		b, a := setup(t, true)
		b.clock.Advance(4 * time.Minute)
		require.NoError(t, b.hub.Open(b.ctx))
		b.pass(4 * time.Minute)
		require.Equal(t, domain.RunRunning, b.run(a.Run.ID).State)
	})
	t.Run("a clean stop keeps the leases for an hour", func(t *testing.T) {
		t.Parallel()
		b, a := setup(t, true)
		require.NoError(t, b.hub.Parting(b.ctx, b.shop.call))
		b.pass(59 * time.Minute)
		require.Equal(t, domain.RunRunning, b.run(a.Run.ID).State)
		require.Equal(t, domain.ConductorOnline, b.shop.beat().Conductor.Status)
		b.pass(4 * time.Minute)
		require.Equal(t, domain.RunRunning, b.run(a.Run.ID).State)
	})
}

func TestOfflineAfterAMinute(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	b.pass(59 * time.Second)
	status := func() domain.ConductorStatus {
		c, err := b.hub.Conductor(b.ctx, b.owner.Principal, "ada.desk.shop")
		require.NoError(t, err)
		return c.Status
	}
	require.Equal(t, domain.ConductorOnline, status())
	b.pass(3 * time.Second)
	require.Equal(t, domain.ConductorOffline, status())
	require.Contains(t, kinds(b.events()), "conductor.status")
	b.shop.beat()
	require.Equal(t, domain.ConductorOnline, status())
}

func TestANewerProcessSupersedes(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	call := b.shop.call
	_, err := b.hub.Register(b.ctx, call, domain.Registration{MachineID: "ada.desk.shop", Epoch: "e2", Project: "SHOP", MaxParallel: 1})
	require.NoError(t, err)
	_, err = b.hub.Heartbeat(b.ctx, call, domain.Beat{})
	require.ErrorIs(t, err, domain.ErrSuperseded)
	_, err = b.hub.Claim(b.ctx, call, request(t))
	require.ErrorIs(t, err, domain.ErrSuperseded)
	_, err = b.hub.Register(b.ctx, call, domain.Registration{MachineID: "ada.desk.shop", Epoch: "e1", Project: "SHOP", MaxParallel: 1, Again: true})
	require.ErrorIs(t, err, domain.ErrSuperseded, "the older process does not take the place back")
	call.Epoch = "e2"
	_, err = b.hub.Heartbeat(b.ctx, call, domain.Beat{})
	require.NoError(t, err)
}

func TestRegistration(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	reg := domain.Registration{MachineID: "eve.lap.shop", Epoch: "x", Project: "SHOP", MaxParallel: 1}
	stranger := hub.Call{Principal: auth.Principal{Kind: auth.Conductor, Machine: reg.MachineID, Token: [32]byte{1}}}
	_, err := b.hub.Register(b.ctx, stranger, reg)
	require.ErrorIs(t, err, domain.ErrForbidden, "the first registration needs the owner")
	stranger.Peer = true
	_, err = b.hub.Register(b.ctx, stranger, reg)
	require.NoError(t, err)
	thief := hub.Call{Principal: auth.Principal{Kind: auth.Conductor, Machine: reg.MachineID, Token: [32]byte{2}}}
	_, err = b.hub.Register(b.ctx, thief, reg)
	require.ErrorIs(t, err, domain.ErrForbidden, "later ones need the token")
	for field, bad := range map[string]domain.Registration{
		"machine_id":   {MachineID: "no", Epoch: "x", Project: "SHOP", MaxParallel: 1},
		"project":      {MachineID: "a.b.c", Epoch: "x", Project: "NONE", MaxParallel: 1},
		"max_parallel": {MachineID: "a.b.c", Epoch: "x", Project: "SHOP"},
		"states":       {MachineID: "a.b.c", Epoch: "x", Project: "SHOP", MaxParallel: 1, States: []string{"done"}},
		"slots":        {MachineID: "a.b.c", Epoch: "x", Project: "SHOP", MaxParallel: 1, Slots: map[string]int{"coding": -1}},
		"epoch":        {MachineID: "a.b.c", Project: "SHOP", MaxParallel: 1},
	} {
		_, err := b.hub.Register(b.ctx, stranger, bad)
		var fe *domain.FieldError
		require.ErrorAs(t, err, &fe)
		require.Equal(t, field, fe.Field)
	}
}

func TestAProjectIsChangedByItsKey(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	name := "The shop"
	for _, ref := range []string{b.project.ID, "SHOP"} {
		p, err := b.hub.PatchProject(b.ctx, b.owner, ref, domain.ProjectPatch{Name: &name})
		require.NoError(t, err)
		require.Equal(t, b.project.ID, p.ID)
	}
	_, err := b.hub.PatchProject(b.ctx, b.owner, "NONE", domain.ProjectPatch{Name: &name})
	require.ErrorIs(t, err, domain.ErrNotFound)
	require.ErrorContains(t, err, `there is no project "NONE"`)
}

func TestDrainIsStored(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	b.ticket(domain.TicketDraft{Workflow: domain.Chore, State: "coding"})
	_, err := b.hub.Drain(b.ctx, b.owner, "ada.desk.shop", true)
	require.NoError(t, err)
	require.Equal(t, domain.ConductorDraining, b.shop.beat().Conductor.Status)
	require.Nil(t, b.shop.claim())
	r, err := b.hub.Register(b.ctx, b.shop.call, domain.Registration{MachineID: "ada.desk.shop", Epoch: "e1", Project: "SHOP", MaxParallel: 1})
	require.NoError(t, err)
	require.True(t, r.Conductor.Draining, "it survives a restart")
	_, err = b.hub.Drain(b.ctx, b.owner, "ada.desk.shop", false)
	require.NoError(t, err)
	require.NotNil(t, b.shop.claim())
}

func TestWhatARunMayWrite(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	k := b.ticket(domain.TicketDraft{Workflow: domain.Chore, State: "coding", Priority: new(float64)})
	foreign := b.ticket(domain.TicketDraft{Title: "Another"})
	elsewhere, err := b.hub.CreateProject(b.ctx, b.owner, domain.Project{Key: "OTHER", Slug: "other"})
	require.NoError(t, err)
	a := b.shop.mustClaim()
	require.Equal(t, k.ID, a.Ticket.ID)
	b.shop.start(a)
	agent := b.agent(a)

	child, err := b.hub.CreateTicket(b.ctx, agent, domain.TicketDraft{Title: "Part", Parent: domain.Ref(k.ID)})
	require.NoError(t, err)
	_, err = b.hub.PatchTicket(b.ctx, agent, k.ID, domain.TicketPatch{BlockedBy: &[]string{child.ID}})
	require.NoError(t, err)
	title := "Better"
	_, err = b.hub.PatchTicket(b.ctx, agent, child.ID, domain.TicketPatch{Title: &title})
	require.NoError(t, err)

	for name, try := range map[string]func() error{
		"foreign title": func() error {
			_, err := b.hub.PatchTicket(b.ctx, agent, foreign.ID, domain.TicketPatch{Title: &title})
			return err
		},
		"foreign comment": func() error {
			_, err := b.hub.AddComment(b.ctx, agent, domain.Comment{Ticket: foreign.ID, Body: "x"})
			return err
		},
		"foreign blocker": func() error {
			_, err := b.hub.PatchTicket(b.ctx, agent, k.ID, domain.TicketPatch{BlockedBy: &[]string{foreign.ID}})
			return err
		},
		"child's state": func() error { return b.move(agent, child.ID, "human_input") },
		"target": func() error {
			none := domain.Ref("")
			_, err := b.hub.PatchTicket(b.ctx, agent, k.ID, domain.TicketPatch{Target: &none})
			return err
		},
		"another project": func() error {
			_, err := b.hub.CreateTicket(b.ctx, agent, domain.TicketDraft{Title: "x", Project: elsewhere.ID, Parent: domain.Ref(k.ID)})
			return err
		},
		"identifier": func() error {
			_, err := b.hub.CreateTicket(b.ctx, agent, domain.TicketDraft{Title: "x", Identifier: "SHOP-99", Parent: domain.Ref(k.ID)})
			return err
		},
		"a finished child": func() error {
			_, err := b.hub.CreateTicket(b.ctx, agent, domain.TicketDraft{Title: "x", Workflow: domain.Chore, State: "done", Parent: domain.Ref(k.ID)})
			return err
		},
		"hold":   func() error { _, err := b.hub.Hold(b.ctx, agent, k.ID, ""); return err },
		"repair": func() error { _, err := b.hub.Repair(b.ctx, agent, k.ID, "done", "x"); return err },
		"stop":   func() error { _, err := b.hub.StopRun(b.ctx, agent, a.Run.ID, true, ""); return err },
		"orphan": func() error {
			_, err := b.hub.CreateTicket(b.ctx, agent, domain.TicketDraft{Title: "x", Project: b.project.ID, Parent: domain.Ref(foreign.ID)})
			return err
		},
	} {
		require.ErrorIs(t, try(), domain.ErrForbidden, name)
	}
	_, err = b.hub.PatchRunFootprint(b.ctx, agent, a.Run.ID, domain.Footprint{Cost: -1})
	require.ErrorIs(t, err, domain.ErrInvalid)
	require.ErrorIs(t, b.move(agent, k.ID, "done"), domain.ErrInvalid, "blocked tickets are not done")
	require.NoError(t, b.move(agent, k.ID, "review"))
}

func TestCirclesAndLoops(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	x, y := b.ticket(domain.TicketDraft{}), b.ticket(domain.TicketDraft{})
	_, err := b.hub.PatchTicket(b.ctx, b.owner, x.ID, domain.TicketPatch{BlockedBy: &[]string{y.Identifier}})
	require.NoError(t, err)
	_, err = b.hub.PatchTicket(b.ctx, b.owner, y.ID, domain.TicketPatch{BlockedBy: &[]string{x.ID}})
	require.ErrorContains(t, err, "circle: SHOP-2 is blocked by SHOP-1 is blocked by SHOP-2")
	own := domain.Ref(x.ID)
	_, err = b.hub.PatchTicket(b.ctx, b.owner, x.ID, domain.TicketPatch{Parent: &own})
	require.ErrorIs(t, err, domain.ErrInvalid)
}

func TestEnteringAStateAgainAndAgainHolds(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	k := b.ticket(domain.TicketDraft{Workflow: domain.Feature, State: "coding"})
	for i := 0; b.read(k.ID).Hold == nil; i++ {
		require.Less(t, i, 20)
		a := b.shop.mustClaim()
		b.shop.start(a)
		next := map[string]string{"coding": "review", "review": "coding"}[b.read(k.ID).State]
		require.NoError(t, b.move(b.agent(a), k.ID, next))
		b.shop.finalise(a.Run.ID, domain.FinaliseReport{})
	}
	held := b.read(k.ID)
	require.Equal(t, domain.ReasonLoop, held.Hold.Reason)
	require.Equal(t, 6, held.Entries["review"])
	require.Nil(t, b.shop.claim())
}

// A target in a project that the ticket has left would keep everybody from claiming it.
func TestAnotherProjectLiftsTheTarget(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	p, err := b.hub.CreateProject(b.ctx, b.owner, domain.Project{Key: "OTHER", Slug: "other"})
	require.NoError(t, err)
	k := b.ticket(domain.TicketDraft{Target: domain.Ref(b.shop.id)})
	moved, err := b.hub.PatchTicket(b.ctx, b.owner, k.ID, domain.TicketPatch{Project: &b.project.ID})
	require.NoError(t, err)
	require.Equal(t, domain.Ref(b.shop.id), moved.Target)
	moved, err = b.hub.PatchTicket(b.ctx, b.owner, k.ID, domain.TicketPatch{Project: &p.ID})
	require.NoError(t, err)
	require.Empty(t, moved.Target)
}

func TestRepair(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	k := b.ticket(domain.TicketDraft{Workflow: domain.Chore, State: "done"})
	require.Error(t, b.move(b.owner, k.ID, "coding"))
	_, err := b.hub.Repair(b.ctx, b.owner, k.ID, "nowhere", "why")
	require.ErrorIs(t, err, domain.ErrInvalid)
	_, err = b.hub.Repair(b.ctx, b.owner, k.ID, "coding", " ")
	require.ErrorIs(t, err, domain.ErrInvalid)
	fixed, err := b.hub.Repair(b.ctx, b.owner, k.ID, "coding", "closed by mistake")
	require.NoError(t, err)
	require.Equal(t, "coding", fixed.State)
	require.Contains(t, kinds(b.events()), "ticket.repaired")
}

func TestOddIdentifiers(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	for _, id := range []string{"../../etc", "a.b:c/d", "🙂 \"quoted\" $(touch x)", "-rf", "INT:8.1/x"} {
		k := b.ticket(domain.TicketDraft{Identifier: id, Title: id})
		require.Equal(t, id, b.read(id).Identifier)
		require.Equal(t, k.ID, b.read(k.ID).ID)
	}
	_, err := b.hub.CreateTicket(b.ctx, b.owner, domain.TicketDraft{Project: b.project.ID, Title: "x", Identifier: "-rf"})
	require.ErrorIs(t, err, domain.ErrConflict)
	b.ticket(domain.TicketDraft{Identifier: "SHOP-1"})
	require.Equal(t, "SHOP-2", b.ticket(domain.TicketDraft{}).Identifier, "numbers given away by hand are passed over")
}
