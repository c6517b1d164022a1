package hub

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"gaia/domain"
	"gaia/hub/auth"
	"gaia/hub/store"
	"gaia/internal/log"
)

// Claim picks the first ticket, in claim order, whose gates all pass for the caller, and claims it. A nil Assignment means
// that there is none. A repeat with the same run id gets the run that the first call made.
func (h *Hub) Claim(ctx context.Context, c Call, q domain.ClaimRequest) (*domain.Assignment, error) {
	if id, err := uuid.Parse(q.Run); err != nil || id.Version() != 7 || id.String() != q.Run {
		return nil, invalid("run", "%q is no UUID of version 7", q.Run)
	}
	var hash [32]byte
	if b, err := hex.DecodeString(q.TokenSHA256); err != nil || copy(hash[:], b) != len(hash) || len(b) != len(hash) {
		return nil, invalid("token_sha256", "64 hexadecimal digits are needed")
	}
	// Most claims find nothing, and these must not queue behind each other: so they look without a writing transaction
	// first, but for one that follows a claim that found something.
	h.mu.Lock()
	likely := h.asked[c.Conductor].found
	h.mu.Unlock()
	if !likely {
		if idle, err := h.idle(ctx, c, q); err != nil || idle {
			return nil, err
		}
	}
	// The run id makes a claim repeatable. Its answer holds the whole ticket with every comment: to keep that for a day
	// would only make the store grow, and a repeat is better told how the run stands now.
	c.Key = ""
	a, err := write(ctx, h, c, auth.Lease, func(t *tx) (*domain.Assignment, error) {
		con := t.con
		switch r, err := t.Run(q.Run); {
		case err == nil && r.Conductor != con.ID:
			return nil, check("run", fmt.Errorf("the run id is taken: %w", domain.ErrConflict))
		case err == nil:
			return assignment(t.Tx, r)
		case !errors.Is(err, domain.ErrNotFound):
			return nil, err
		}
		p, k, err := h.pick(t.Tx, con, q.Offer, t.now)
		if err != nil || k == nil {
			return nil, err
		}
		return t.claim(con, p, *k, q, hash)
	})
	if err == nil {
		h.noteClaim(c.Conductor, asked{q.Offer, a != nil})
	}
	return a, err
}

// asked is what the hub remembers of a conductor's last claim.
type asked struct {
	offer domain.Offer
	found bool // whether it got a ticket
}

func (h *Hub) noteClaim(conductor string, a asked) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked[conductor] = a
}

// idle reports, without a writing transaction, that there is nothing to claim. Whatever else it finds is decided again by
// the transaction.
func (h *Hub) idle(ctx context.Context, c Call, q domain.ClaimRequest) (bool, error) {
	if err := c.May(auth.Lease); err != nil {
		return false, err
	}
	idle := false
	err := h.store.View(ctx, func(stx store.Tx) error {
		t := &tx{Tx: stx, h: h, call: c, now: h.now()}
		if err := t.admit(auth.Lease); err != nil {
			return err
		}
		if _, err := t.Run(q.Run); !errors.Is(err, domain.ErrNotFound) {
			return err // a repeat
		}
		_, k, err := h.pick(stx, t.con, q.Offer, t.now)
		idle = err == nil && k == nil
		return err
	})
	if err == nil && idle {
		h.noteClaim(c.Conductor, asked{offer: q.Offer})
	}
	return idle, err
}

// pick returns the first eligible candidate, and the project.
func (h *Hub) pick(tx store.Tx, con domain.Conductor, o domain.Offer, now domain.Time) (domain.Project, *domain.Ticket, error) {
	con.Status = h.status(con, now)
	con.Paused = "" // it asks, so it is not
	p, err := tx.Project(con.Project)
	if err != nil {
		return p, nil, err
	}
	g, err := h.gates(tx, p, con, o, now)
	if err != nil {
		return p, nil, err
	}
	states := con.States
	if len(states) == 0 {
		states = domain.ClaimableStates()
	}
	// A conductor that is full, or a project at its cap, asks again and again: that must not read every ticket.
	if states = g.open(states); len(states) == 0 {
		return p, nil, nil
	}
	var found *domain.Ticket
	whom := store.Claimer{Project: p.ID, States: states, Conductor: con.ID, Owner: con.Owner}
	err = tx.Candidates(whom, now, func(k domain.Ticket) (bool, error) {
		ok, err := g.eligible(k)
		if ok {
			found = &k
		}
		return found == nil, err
	})
	return p, found, err
}

func (t *tx) claim(con domain.Conductor, p domain.Project, k domain.Ticket, q domain.ClaimRequest, token [32]byte) (*domain.Assignment, error) {
	n, err := t.NextRunNumber(k.Project)
	if err != nil {
		return nil, err
	}
	r := domain.Run{
		ID: q.Run, Number: n, Project: k.Project, Ticket: k.ID, Conductor: con.ID, Mode: domain.ModeAgent,
		State: domain.RunClaimed, Attempt: k.Attempts + 1, ClaimedAt: t.now, StateAtStart: k.State,
		Branch: k.Branch, Agent: domain.Ref(q.Offer.AgentFor(k, p)),
	}
	r.ClaimExpiresAt = t.h.lease(r, t.now)
	if err := t.saveRun(&r, "run.claimed"); err != nil {
		return nil, err
	}
	if err := t.PutToken(store.Token{Hash: token, Kind: store.TokenRun, Holder: r.ID}); err != nil {
		return nil, err
	}
	return gather(t.Tx, &domain.Assignment{Run: r, Ticket: k, Project: p})
}

// assignment is what a conductor needs to work on a run.
func assignment(tx store.Tx, r domain.Run) (*domain.Assignment, error) {
	k, err := tx.Ticket(r.Ticket)
	if err != nil {
		return nil, err
	}
	p, err := tx.Project(r.Project)
	if err != nil {
		return nil, err
	}
	return gather(tx, &domain.Assignment{Run: r, Ticket: k, Project: p})
}

// gather adds what lies around the ticket.
func gather(tx store.Tx, a *domain.Assignment) (_ *domain.Assignment, err error) {
	k := a.Ticket
	if a.Comments, _, err = tx.Comments(store.Query{
		Filters: []store.Filter{{Field: "ticket", Values: []string{k.ID}}},
		Sort:    []store.Sort{{Field: "created_at"}},
	}); err != nil {
		return nil, err
	}
	if a.Blockers, err = blockersOf(tx, k); err != nil {
		return nil, err
	}
	if a.Children, _, err = tx.Tickets(store.Query{
		Filters: []store.Filter{{Field: "parent", Values: []string{k.ID}}},
		Sort:    []store.Sort{{Field: "created_at"}},
	}); err != nil {
		return nil, err
	}
	switch last, err := tx.LastEndedRun(k.ID); {
	case err == nil && last.ID != a.Run.ID:
		a.LastRun = &last
	case err != nil && !errors.Is(err, domain.ErrNotFound):
		return nil, err
	}
	return a, nil
}

// own returns a run of the calling conductor.
func own(tx store.Tx, p auth.Principal, id string) (domain.Run, error) {
	r, err := tx.Run(id)
	if err != nil {
		return r, err
	}
	if r.Conductor != p.Conductor {
		return r, fmt.Errorf("run %d belongs to another conductor: %w", r.Number, domain.ErrForbidden)
	}
	return r, nil
}

// Start marks a claimed run running. An ended run stays as it is.
func (h *Hub) Start(ctx context.Context, c Call, id string, s domain.StartReport) (domain.Fate, error) {
	return write(ctx, h, c, auth.Lease, func(t *tx) (domain.Fate, error) {
		r, err := own(t.Tx, c.Principal, id)
		if err != nil || r.State != domain.RunClaimed {
			return domain.FateOf(r), err
		}
		k, err := t.Ticket(r.Ticket)
		if err != nil {
			return domain.Fate{}, err
		}
		branch := k.Branch
		if branch == "" {
			branch = domain.Ref(s.Branch)
		}
		if at := domain.Ref(c.Conductor); k.TreeAt != at || k.Branch != branch {
			k.TreeAt, k.Branch = at, branch
			if err := t.saveTicket(&k, "ticket.tree_set"); err != nil {
				return domain.Fate{}, err
			}
		}
		r.State, r.StartedAt = domain.RunRunning, t.now
		r.WorktreePath, r.Branch, r.BaseSHA = domain.Ref(s.WorktreePath), domain.Ref(s.Branch), domain.Ref(s.BaseSHA)
		r.Unit, r.Permissions, r.Log = domain.Ref(s.Unit), domain.Ref(s.Permissions), domain.Ref(s.Log)
		if s.Agent != "" {
			r.Agent = domain.Ref(s.Agent)
		}
		r.ClaimExpiresAt = h.lease(r, t.now)
		return domain.FateOf(r), t.saveRun(&r, "run.started")
	})
}

// Fail ends a live run of the caller. An ended run stays as it is.
func (h *Hub) Fail(ctx context.Context, c Call, id string, f domain.Failure) (domain.Fate, error) {
	return write(ctx, h, c, auth.Lease, func(t *tx) (domain.Fate, error) {
		if !f.Reason.EndsRun() {
			return domain.Fate{}, invalid("reason", "%q is none of %v", f.Reason, domain.Reasons())
		}
		r, err := own(t.Tx, c.Principal, id)
		if err != nil || r.State.Ended() {
			return domain.FateOf(r), err
		}
		f.Note = cut(f.Note, domain.MaxTitle)
		err = t.fail(&r, domain.RunFailed, f)
		return domain.FateOf(r), err
	})
}

// cut shortens text for a person to at most n bytes, on a character's boundary.
func cut(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "")
}

// fail ends a live run, the ticket's change first.
func (t *tx) fail(r *domain.Run, state domain.RunState, f domain.Failure) error {
	k, err := t.Ticket(r.Ticket)
	if err != nil {
		return err
	}
	if f.Reason != domain.ReasonUndone || f.Hold {
		before := k.Hold
		k.Fail(f, t.h.limits(), t.now)
		t.held(k, before)
		if err := t.saveTicket(&k, "ticket.failed"); err != nil {
			return err
		}
	}
	r.State, r.EndReason, r.EndNote, r.EndedAt = state, f.Reason, f.Note, t.now
	return t.saveRun(r, "run."+string(state))
}

// Finalise closes an ended run with what its conductor found. A repeat changes nothing.
func (h *Hub) Finalise(ctx context.Context, c Call, id string, f domain.FinaliseReport) error {
	done, err := write(ctx, h, c, auth.Lease, func(t *tx) (bool, error) {
		r, err := own(t.Tx, c.Principal, id)
		if err != nil || !r.FinalizedAt.IsZero() {
			return false, err
		}
		if !r.State.Ended() {
			return false, fmt.Errorf("run %d is %s and cannot be finalised: %w", r.Number, r.State, domain.ErrConflict)
		}
		if f.Footprint != nil {
			if n := f.Footprint.Negative(); n != "" {
				return false, invalid("footprint", "%s is negative", n)
			}
			r.Footprint = f.Footprint
		}
		if err := t.finaliseTicket(r, f); err != nil {
			return false, err
		}
		if f.EndSHA != "" {
			r.EndSHA = domain.Ref(f.EndSHA)
		}
		r.FinalizedAt = t.now
		return true, t.saveRun(&r, "run.finalised")
	})
	if err != nil || !done {
		return err
	}
	// The head in the journal is an anchor outside the database: a log whose tail was cut no longer reaches it. It is in the
	// message, too, as that is what journalctl shows and what is copied elsewhere.
	seq, head, err := h.store.Head(ctx)
	if err != nil {
		return nil //nolint:nilerr // the run is finalised; only the anchor is missing
	}
	h.log.Info().Str(log.MessageID, log.Anchor).Str(log.Run, id).Int64("seq", seq).Hex("head", head[:]).
		Msgf("run finalised; head of the event log: entry %d, hash %x", seq, head)
	return nil
}

// finaliseTicket notes on the ticket where its unpushed work lies, if r is its last run, and what came late.
func (t *tx) finaliseTicket(r domain.Run, f domain.FinaliseReport) error {
	k, err := t.Ticket(r.Ticket)
	if err != nil {
		return err
	}
	last, err := t.LastEndedRun(k.ID)
	if err != nil {
		return err
	}
	_, err = t.LiveRun(k.ID)
	if err != nil && !errors.Is(err, domain.ErrNotFound) {
		return err
	}
	if newest := err != nil && last.ID == r.ID; newest {
		at := domain.Ref("")
		if f.Unpushed {
			at = domain.Ref(r.Conductor)
		}
		if k.TreeAt != at {
			k.TreeAt = at
			if err := t.saveTicket(&k, "ticket.tree_set"); err != nil {
				return err
			}
		}
	}
	if len(f.LateWork) == 0 {
		return nil
	}
	body := fmt.Sprintf("Run %d committed after it had written the ticket's state:\n\n- %s", r.Number, strings.Join(f.LateWork, "\n- "))
	_, err = t.comment(k, "late_work", cut(body, domain.MaxComment))
	return err
}

// StopRun ends a live run for a person and holds its ticket, unless it is to be retried. An ended run stays as it is.
func (h *Hub) StopRun(ctx context.Context, c Call, id string, retry bool, note string) (domain.Run, error) {
	return write(ctx, h, c, auth.RunStop, func(t *tx) (domain.Run, error) {
		r, err := t.Run(id)
		if err != nil || r.State.Ended() {
			return r, err
		}
		if note == "" {
			note = "stopped by " + c.User
		}
		err = t.fail(&r, domain.RunFailed, domain.Failure{Reason: domain.ReasonStopped, Note: cut(note, domain.MaxTitle), Hold: !retry})
		return r, err
	})
}

// PatchRunFootprint sets what a run says that it has used. It is a run's own write, and liveness rather than content.
func (h *Hub) PatchRunFootprint(ctx context.Context, c Call, id string, f domain.Footprint) (domain.Run, error) {
	return write(ctx, h, c, auth.RunFootprint, func(t *tx) (domain.Run, error) {
		if n := f.Negative(); n != "" {
			return domain.Run{}, invalid("footprint", "%s is negative", n)
		}
		if id != c.Run {
			return domain.Run{}, fmt.Errorf("a run writes its own footprint only: %w", domain.ErrForbidden)
		}
		r, err := t.Run(id)
		if err != nil {
			return r, err
		}
		r.Footprint = &f
		return r, t.PutRun(r)
	})
}
