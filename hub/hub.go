// Package hub is the control plane: the only authority for tickets, runs and leases. It turns the rules of domain into
// transactions on a store, appends every change to the event log, and ends leases by its own clock.
//
// It must not know how its callers reach it (that is hub/api), how rows are kept (hub/store) or anything of a machine
// on which runs live.
package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"gaia/domain"
	"gaia/hub/auth"
	"gaia/hub/store"
	"gaia/internal/clock"
	"gaia/internal/log"
)

// AnswerTTL is how long the answer to a write is kept for a repeat.
const AnswerTTL = 24 * time.Hour

// Leases are the lifetimes of leases. All come from hub.toml.
type Leases struct {
	Claim    time.Duration // a claim, after each heartbeat
	ClaimMax time.Duration // a claim, in all
	Running  time.Duration // a running lease, after each heartbeat
	Parting  time.Duration // a live lease, after a clean stop of its conductor
}

// DefaultLeases are the built-in lifetimes.
func DefaultLeases() Leases {
	return Leases{Claim: 2 * time.Minute, ClaimMax: 20 * time.Minute, Running: 5 * time.Minute, Parting: time.Hour}
}

// Options are what a Hub is made of.
type Options struct {
	Store  store.Store
	Clock  clock.Clock
	Limits domain.Limits
	Leases Leases
	Log    zerolog.Logger
}

// Hub is the control plane. Its methods may be called from many goroutines.
type Hub struct {
	store store.Store
	clock clock.Clock
	rules atomic.Pointer[rules]
	log   zerolog.Logger

	mu      sync.Mutex
	changed chan struct{}               // closed when the log has grown
	awake   domain.Time                 // since when the hub has been up and awake without a break
	last    reading                     // of the clocks, at the last sweep
	refused bool                        // a write was refused for lack of a usable store since leases last started anew
	asked   map[string]asked            // by conductor id: its last claim
	tokens  map[[32]byte]auth.Principal // by SHA-256 of a token: whose it is
	tokened int                         // how often tokens was emptied by a registration
	swept   time.Duration               // when stored answers were last dropped, on the monotonic clock
}

// rules are what may be changed while the hub runs.
type rules struct {
	limits domain.Limits
	leases Leases
}

// New returns a hub; call Open before it serves.
func New(o Options) *Hub {
	h := &Hub{
		store: o.Store, clock: o.Clock, log: o.Log,
		changed: make(chan struct{}), asked: map[string]asked{}, tokens: map[[32]byte]auth.Principal{},
	}
	h.SetRules(o.Limits, o.Leases)
	return h
}

// SetRules has other limits and lifetimes hold from now on. Leases that live keep their ends until they are renewed.
func (h *Hub) SetRules(limits domain.Limits, leases Leases) { h.rules.Store(&rules{limits, leases}) }

func (h *Hub) limits() domain.Limits { return h.rules.Load().limits }
func (h *Hub) leases() Leases        { return h.rules.Load().leases }

// Call is who writes, and how a repeat of the same write is known.
type Call struct {
	auth.Principal
	Key     string   // idempotency key, "" for none
	Request [32]byte // SHA-256 over method, path and body
}

// Changed returns a channel that is closed when the event log has grown; ask again after that.
func (h *Hub) Changed() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

func (h *Hub) bump() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.changed)
	h.changed = make(chan struct{})
}

// Ready returns nil if the store can be read and written now.
func (h *Hub) Ready(ctx context.Context) error { return h.store.Ready(ctx) }

// tx is one writing transaction of one caller.
type tx struct {
	store.Tx
	h      *Hub
	call   Call
	now    domain.Time
	con    domain.Conductor // the caller, where it is one
	events int
	tell   []func() // lines of the journal, written once the transaction stands
}

// held tells the journal that a ticket waits for a person from now on.
func (t *tx) held(k domain.Ticket, before *domain.Hold) {
	if before != nil || k.Hold == nil {
		return
	}
	t.tell = append(t.tell, func() {
		t.h.log.Warn().Str(log.MessageID, log.TicketHeld).Str(log.Ticket, k.Identifier).Str(log.Reason, string(k.Hold.Reason)).
			Str("note", k.Hold.Note).Msg("the ticket is held: it waits for a person (gaia ticket resume " + k.Identifier + ")")
	})
}

// committed is called when the transaction stands: the log has grown, and the journal is told.
func (t *tx) committed() {
	if t.events > 0 {
		t.h.bump()
	}
	for _, tell := range t.tell {
		tell()
	}
}

func (h *Hub) now() domain.Time { return domain.At(h.clock.Now()) }

// update is the store's, and notes that it cannot be used: a heartbeat that was refused has renewed nothing.
func (h *Hub) update(ctx context.Context, fn func(store.Tx) error) error {
	err := h.store.Update(ctx, fn)
	if errors.Is(err, store.ErrUnavailable) {
		h.mu.Lock()
		h.refused = true
		h.mu.Unlock()
	}
	return err
}

// write runs fn in a transaction, once for each idempotency key: a repeat gets the stored answer before anything else
// is looked at.
func write[T any](ctx context.Context, h *Hub, c Call, a auth.Action, fn func(*tx) (T, error)) (T, error) {
	var out T
	if err := c.May(a); err != nil {
		return out, err
	}
	t := &tx{h: h, call: c}
	err := h.update(ctx, func(stx store.Tx) error {
		t.Tx, t.now = stx, h.now()
		who := c.Principal.String()
		if c.Key != "" {
			switch stored, err := stx.Answer(who, c.Key, t.now.Add(-AnswerTTL)); {
			case err == nil && stored.Request != c.Request:
				return &domain.FieldError{Field: "idempotency_key", Err: errors.New("the key was used before with another request")}
			case err == nil:
				return json.Unmarshal(stored.Body, &out)
			case !errors.Is(err, domain.ErrNotFound):
				return err
			}
		}
		if err := t.admit(a); err != nil {
			return err
		}
		var err error
		if out, err = fn(t); err != nil {
			return err
		}
		if c.Key == "" || t.events == 0 {
			return nil // nothing happened that a repeat could do twice
		}
		body, err := json.Marshal(out)
		if err != nil {
			return fmt.Errorf("keep the answer: %w", err)
		}
		return stx.PutAnswer(store.Answer{Principal: who, Key: c.Key, Request: c.Request, Body: body, At: t.now.Time})
	})
	if err != nil {
		var zero T
		return zero, err
	}
	t.committed()
	return out, nil
}

// admit checks what can be known of the caller only inside the transaction.
func (t *tx) admit(a auth.Action) error {
	switch t.call.Kind {
	case auth.Run:
		return stale(t.Tx, t.call.Principal)
	case auth.Conductor:
		if a == auth.Register {
			return nil
		}
		var err error
		if t.con, err = t.Conductor(t.call.Conductor); err != nil {
			return err
		}
		if t.con.Epoch != t.call.Epoch {
			return fmt.Errorf("%s was registered by a newer process: %w", t.con.MachineID, domain.ErrSuperseded)
		}
	case auth.Owner:
		return t.ensureUser(t.call.User)
	}
	return nil
}

// stale refuses an ended run's token.
func stale(tx store.Tx, p auth.Principal) error {
	r, err := tx.Run(p.Run)
	if err != nil {
		return err
	}
	if r.State.Ended() {
		return fmt.Errorf("run %d has ended (%s): %w", r.Number, ended(r), domain.ErrStaleRun)
	}
	return nil
}

func ended(r domain.Run) string {
	if r.EndReason == "" {
		return string(r.State)
	}
	return string(r.State) + ", " + string(r.EndReason)
}

// ensureUser makes a user known at its first use: an owner names itself, and there is nobody to ask.
func (t *tx) ensureUser(id string) error {
	if err := domain.CheckMachinePart("user id", id); err != nil {
		return &domain.FieldError{Field: "user", Err: err}
	}
	_, err := t.User(id)
	if !errors.Is(err, domain.ErrNotFound) {
		return err
	}
	return t.saveUser(domain.User{ID: id, Name: id, CreatedAt: t.now}, "user.created")
}

func newID() (string, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("draw an id: %w", err)
	}
	return id.String(), nil
}

// event appends to the log what an object is now.
func (t *tx) event(kind, typ, id, project string, ticket domain.Ref, object any) error {
	data, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("write the event %s: %w", kind, err)
	}
	t.events++
	actor := t.call.Principal.String()
	if t.call.Kind == auth.Nobody {
		actor = "hub" // the hub's own sweep
	}
	return t.Append(domain.Event{
		Time: t.now, Kind: kind, Actor: actor, Project: project, Type: typ, Object: id, Ticket: ticket, Data: data,
	})
}

func (t *tx) saveUser(u domain.User, kind string) error {
	if err := t.PutUser(u); err != nil {
		return err
	}
	return t.event(kind, "user", u.ID, "", "", u)
}

func (t *tx) saveProject(p *domain.Project, kind string) error {
	p.UpdatedAt = t.now
	if err := t.PutProject(*p); err != nil {
		return err
	}
	return t.event(kind, "project", p.ID, p.ID, "", p)
}

func (t *tx) saveTicket(k *domain.Ticket, kind string) error {
	k.UpdatedAt = t.now
	if err := t.PutTicket(*k); err != nil {
		return err
	}
	return t.event(kind, "ticket", k.ID, k.Project, domain.Ref(k.ID), k)
}

func (t *tx) saveRun(r *domain.Run, kind string) error {
	if err := t.PutRun(*r); err != nil {
		return err
	}
	return t.event(kind, "run", r.ID, r.Project, domain.Ref(r.Ticket), r)
}

func (t *tx) saveConductor(c *domain.Conductor, kind string) error {
	if err := t.PutConductor(*c); err != nil {
		return err
	}
	return t.event(kind, "conductor", c.ID, c.Project, "", c)
}

func (t *tx) saveComment(c domain.Comment, project string) error {
	if err := t.PutComment(c); err != nil {
		return err
	}
	return t.event("comment.added", "comment", c.ID, project, domain.Ref(c.Ticket), c)
}

func invalid(field, format string, a ...any) error {
	return &domain.FieldError{Field: field, Err: fmt.Errorf(format, a...)}
}

// check turns a domain check's error into one that names the field.
func check(field string, err error) error {
	if err == nil {
		return nil
	}
	return &domain.FieldError{Field: field, Err: err}
}
