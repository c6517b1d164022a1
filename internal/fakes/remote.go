package fakes

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"gaia/domain"
	"gaia/internal/clock"
)

// Hub is the hub as a conductor meets it, in memory and on one clock: claims, leases, fates. It decides by the rules of
// package domain where there are some, and leaves out what a conductor cannot see.
type Hub struct {
	Clock clock.Clock
	// ClaimTTL, RunningTTL and PartingTTL are the lives of leases.
	ClaimTTL, RunningTTL, PartingTTL time.Duration

	mu        sync.Mutex
	down      bool
	project   domain.Project
	conductor domain.Conductor
	epoch     string
	tickets   []*domain.Ticket
	runs      []*domain.Run
	leases    map[string]time.Duration // Boot
	heads     map[string]domain.Ref
	late      map[string][]string
	claims    map[string]*domain.Assignment // answers by run id; asked again, they are given again
	parted    int
	beats     []domain.Beat
	registers int
	wakeup    chan struct{}
	events    []domain.Event
}

// NewHub returns a hub with one project, SHOP, and no ticket.
func NewHub(c clock.Clock) *Hub {
	return &Hub{
		Clock: c, ClaimTTL: 2 * time.Minute, RunningTTL: 5 * time.Minute, PartingTTL: time.Hour,
		project: domain.Project{ID: "project-1", Key: "SHOP", Name: "Shop", Slug: "shop"},
		leases:  map[string]time.Duration{}, heads: map[string]domain.Ref{}, late: map[string][]string{},
		claims: map[string]*domain.Assignment{},
		wakeup: make(chan struct{}),
	}
}

// AddTicket adds a ticket of the workflow gaia_task in the state todo, which is claimable.
func (h *Hub) AddTicket(identifier string) domain.Ticket {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := &domain.Ticket{
		ID: fmt.Sprintf("ticket-%d", len(h.tickets)+1), Identifier: identifier, Project: h.project.ID, Workflow: domain.Task,
		State: "todo", Title: "Title of " + identifier, CreatedAt: domain.At(h.Clock.Now()),
	}
	h.tickets = append(h.tickets, t)
	h.logLocked("user/someone", "ticket.created", t.ID)
	return *t
}

// SetDown makes every call fail as a hub does that is not there.
func (h *Hub) SetDown(down bool) { h.mu.Lock(); defer h.mu.Unlock(); h.down = down }

// SetDraining drains the conductor, or ends that.
func (h *Hub) SetDraining(draining bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conductor.Draining = draining
}

// Move is a run's own state write.
func (h *Hub) Move(run, state, head string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sweepLocked()
	r := h.runLocked(run)
	if r == nil || !r.State.Live() {
		return domain.ErrStaleRun
	}
	t := h.ticketLocked(r.Ticket)
	t.Enter(state, true, domain.DefaultLimits(), domain.At(h.Clock.Now()))
	r.EndSHA = domain.Ref(head)
	h.endLocked(r, domain.RunDone, "", "")
	h.logLocked("run/"+run, "ticket.moved", t.ID)
	return nil
}

// End ends a run as a person or the hub itself does.
func (h *Hub) End(run string, state domain.RunState, reason domain.Reason) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.runLocked(run); r != nil && r.State.Live() {
		h.endLocked(r, state, reason, "")
		h.ticketLocked(r.Ticket).HoldBy("ended by the test", domain.At(h.Clock.Now()))
		h.logLocked("user/someone", "run."+string(state), run)
	}
}

// Stop ends a live run as a person does who wants it to be tried again.
func (h *Hub) Stop(run string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.runLocked(run); r != nil && r.State.Live() {
		h.endLocked(r, domain.RunFailed, domain.ReasonStopped, "")
	}
}

// ResumeAll lifts every hold and every wait.
func (h *Hub) ResumeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.tickets {
		t.Resume()
	}
}

// Forget makes the hub know a run no more, as after a restore from an old copy.
func (h *Hub) Forget(run string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.runs = slices.DeleteFunc(h.runs, func(r *domain.Run) bool { return r.ID == run })
}

// Sweep expires what is due.
func (h *Hub) Sweep() { h.mu.Lock(); defer h.mu.Unlock(); h.sweepLocked() }

// Runs returns every run that was ever claimed, oldest first.
func (h *Hub) Runs() []domain.Run {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []domain.Run
	for _, r := range h.runs {
		out = append(out, *r)
	}
	return out
}

// Ticket returns a ticket by its identifier.
func (h *Hub) Ticket(identifier string) domain.Ticket {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.tickets {
		if t.Identifier == identifier {
			return *t
		}
	}
	return domain.Ticket{}
}

// LateWork returns what finalise reported as made after the state write.
func (h *Hub) LateWork(run string) []string { h.mu.Lock(); defer h.mu.Unlock(); return h.late[run] }

// LastBeat returns the last heartbeat.
func (h *Hub) LastBeat() domain.Beat {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.beats) == 0 {
		return domain.Beat{}
	}
	return h.beats[len(h.beats)-1]
}

// Parted returns how often the conductor has said that it stops.
func (h *Hub) Parted() int { h.mu.Lock(); defer h.mu.Unlock(); return h.parted }

// Registrations returns how often a conductor has registered.
func (h *Hub) Registrations() int { h.mu.Lock(); defer h.mu.Unlock(); return h.registers }

func (h *Hub) logLocked(actor, kind, object string) {
	h.events = append(h.events, domain.Event{Seq: int64(len(h.events) + 1), Kind: kind, Actor: actor, Object: object, Time: domain.At(h.Clock.Now())})
	close(h.wakeup)
	h.wakeup = make(chan struct{})
}

func (h *Hub) runLocked(id string) *domain.Run {
	for _, r := range h.runs {
		if r.ID == id {
			return r
		}
	}
	return nil
}

func (h *Hub) ticketLocked(id string) *domain.Ticket {
	for _, t := range h.tickets {
		if t.ID == id {
			return t
		}
	}
	return nil
}

func (h *Hub) endLocked(r *domain.Run, state domain.RunState, reason domain.Reason, note string) {
	r.State, r.EndReason, r.EndNote, r.EndedAt = state, reason, note, domain.At(h.Clock.Now())
	delete(h.leases, r.ID)
}

func (h *Hub) sweepLocked() {
	for _, r := range h.runs {
		if until, ok := h.leases[r.ID]; ok && h.Clock.Boot() >= until {
			h.endLocked(r, domain.RunExpired, domain.ReasonMachineLost, "")
			h.ticketLocked(r.Ticket).Fail(domain.Failure{Reason: domain.ReasonMachineLost}, domain.DefaultLimits(), domain.At(h.Clock.Now()))
		}
	}
}

func (h *Hub) assignmentLocked(r *domain.Run) *domain.Assignment {
	a := &domain.Assignment{Run: *r, Ticket: *h.ticketLocked(r.Ticket), Project: h.project}
	for _, o := range h.runs {
		if o.Ticket == r.Ticket && o.Number < r.Number {
			last := *o
			a.LastRun = &last
		}
	}
	return a
}

// Client is one conductor process's Remote. It is superseded when another one registers.
type Client struct {
	hub *Hub
	// Call is asked around each call; what it returns before a call keeps it from happening, and after a call loses
	// its answer.
	Call  func(name string, after bool) error
	epoch string
	mu    sync.Mutex
}

var _ domain.Remote = (*Client)(nil)

// Client returns the Remote of a new process.
func (h *Hub) Client() *Client { return &Client{hub: h} }

func call[T any](c *Client, name string, fn func(h *Hub) (T, error)) (T, error) {
	var none T
	if c.Call != nil {
		if err := c.Call(name, false); err != nil {
			return none, err
		}
	}
	c.mu.Lock()
	epoch := c.epoch
	c.mu.Unlock()
	h := c.hub
	h.mu.Lock()
	if h.down {
		h.mu.Unlock()
		return none, fmt.Errorf("%s: %w", name, domain.ErrUnreachable)
	}
	if name != "Register" && epoch != h.epoch {
		h.mu.Unlock()
		if epoch == "" {
			return none, domain.ErrUnauthenticated
		}
		return none, domain.ErrSuperseded
	}
	h.sweepLocked()
	out, err := fn(h)
	h.mu.Unlock()
	if c.Call != nil {
		if err := c.Call(name, true); err != nil {
			return none, err
		}
	}
	return out, err
}

// Register implements domain.Remote.
func (c *Client) Register(_ context.Context, r domain.Registration) (domain.Registered, error) {
	c.mu.Lock()
	c.epoch = r.Epoch
	c.mu.Unlock()
	return call(c, "Register", func(h *Hub) (domain.Registered, error) {
		if r.Project != h.project.Key {
			return domain.Registered{}, fmt.Errorf("project %s: %w", r.Project, domain.ErrNotFound)
		}
		h.epoch = r.Epoch
		h.registers++
		h.conductor = domain.Conductor{
			ID: "conductor-1", MachineID: r.MachineID, Epoch: r.Epoch, Project: h.project.ID, States: r.States,
			MaxParallel: r.MaxParallel, Slots: r.Slots, Status: domain.ConductorOnline, Draining: h.conductor.Draining,
		}
		return domain.Registered{Conductor: h.conductor, Project: h.project, LeaseTTL: h.RunningTTL}, nil
	})
}

// Heartbeat implements domain.Remote.
func (c *Client) Heartbeat(_ context.Context, b domain.Beat) (domain.Pulse, error) {
	return call(c, "Heartbeat", func(h *Hub) (domain.Pulse, error) {
		h.beats = append(h.beats, b)
		h.conductor.CurrentLoad, h.conductor.Paused, h.conductor.LastSeen = b.CurrentLoad, b.Paused, domain.At(h.Clock.Now())
		p := domain.Pulse{Conductor: h.conductor, LeaseTTL: h.RunningTTL}
		for _, r := range h.runs {
			if r.State.Live() {
				ttl := h.RunningTTL
				if r.State == domain.RunClaimed {
					ttl = h.ClaimTTL
				}
				h.leases[r.ID] = h.Clock.Boot() + ttl
				r.ClaimExpiresAt = domain.At(h.Clock.Now().Add(ttl))
			}
			named := slices.ContainsFunc(b.Runs, func(rb domain.RunBeat) bool { return rb.Run == r.ID })
			if named || r.State.Live() || r.FinalizedAt.IsZero() {
				p.Fates = append(p.Fates, domain.FateOf(*r))
			}
		}
		return p, nil
	})
}

// Parting implements domain.Remote.
func (c *Client) Parting(context.Context) error {
	_, err := call(c, "Parting", func(h *Hub) (struct{}, error) {
		h.parted++
		for id := range h.leases {
			h.leases[id] = h.Clock.Boot() + h.PartingTTL
		}
		return struct{}{}, nil
	})
	return err
}

// Claim implements domain.Remote.
func (c *Client) Claim(_ context.Context, q domain.ClaimRequest) (*domain.Assignment, error) {
	return call(c, "Claim", func(h *Hub) (*domain.Assignment, error) {
		if a := h.claims[q.Run]; a != nil {
			return a, nil
		}
		var best *domain.Ticket
		live := 0
		for _, r := range h.runs {
			if r.State.Live() {
				live++
			}
		}
		for _, t := range h.tickets {
			in := domain.GateInput{
				Ticket: *t, Project: h.project, Conductor: h.conductor, Offer: q.Offer, Limits: domain.DefaultLimits(),
				Now: domain.At(h.Clock.Now()), LiveHere: live, LastConductor: domain.ConductorOnline,
			}
			for _, r := range h.runs {
				if r.Ticket != t.ID {
					continue
				}
				if r.State.Live() {
					in.LiveRun = r
				} else {
					in.LastRun = r
				}
			}
			if domain.Eligible(in) && (best == nil || domain.CompareClaim(*t, *best) < 0) {
				best = t
			}
		}
		if best == nil {
			return nil, nil
		}
		now := h.Clock.Now()
		r := &domain.Run{
			ID: q.Run, Number: len(h.runs) + 1, Project: h.project.ID, Ticket: best.ID, Conductor: h.conductor.ID,
			Mode: domain.ModeAgent, State: domain.RunClaimed, Attempt: best.Attempts + 1, ClaimedAt: domain.At(now),
			ClaimExpiresAt: domain.At(now.Add(h.ClaimTTL)), StateAtStart: best.State,
		}
		h.runs = append(h.runs, r)
		h.leases[r.ID] = h.Clock.Boot() + h.ClaimTTL
		h.claims[q.Run] = h.assignmentLocked(r)
		h.logLocked("conductor/"+h.conductor.MachineID, "run.claimed", r.ID)
		return h.claims[q.Run], nil
	})
}

// Assignment implements domain.Remote.
func (c *Client) Assignment(_ context.Context, run string) (*domain.Assignment, error) {
	return call(c, "Assignment", func(h *Hub) (*domain.Assignment, error) {
		r := h.runLocked(run)
		if r == nil {
			return nil, domain.ErrNotFound
		}
		return h.assignmentLocked(r), nil
	})
}

// Start implements domain.Remote.
func (c *Client) Start(_ context.Context, run string, s domain.StartReport) (domain.Fate, error) {
	return call(c, "Start", func(h *Hub) (domain.Fate, error) {
		r := h.runLocked(run)
		if r == nil {
			return domain.Fate{}, domain.ErrNotFound
		}
		if r.State == domain.RunClaimed {
			r.State, r.StartedAt = domain.RunRunning, domain.At(h.Clock.Now())
			r.WorktreePath, r.Branch, r.BaseSHA, r.Unit = domain.Ref(s.WorktreePath), domain.Ref(s.Branch), domain.Ref(s.BaseSHA), domain.Ref(s.Unit)
			r.Agent, r.Permissions, r.Log = domain.Ref(s.Agent), domain.Ref(s.Permissions), domain.Ref(s.Log)
			h.leases[r.ID] = h.Clock.Boot() + h.RunningTTL
		}
		return domain.FateOf(*r), nil
	})
}

// Fail implements domain.Remote.
func (c *Client) Fail(_ context.Context, run string, f domain.Failure) (domain.Fate, error) {
	return call(c, "Fail", func(h *Hub) (domain.Fate, error) {
		r := h.runLocked(run)
		if r == nil {
			return domain.Fate{}, domain.ErrNotFound
		}
		if !f.Reason.EndsRun() {
			return domain.Fate{}, fmt.Errorf("reason %q: %w", f.Reason, domain.ErrInvalid)
		}
		if r.State.Live() {
			h.endLocked(r, domain.RunFailed, f.Reason, f.Note)
			h.ticketLocked(r.Ticket).Fail(f, domain.DefaultLimits(), domain.At(h.Clock.Now()))
		}
		return domain.FateOf(*r), nil
	})
}

// Finalise implements domain.Remote.
func (c *Client) Finalise(_ context.Context, run string, f domain.FinaliseReport) error {
	_, err := call(c, "Finalise", func(h *Hub) (struct{}, error) {
		r := h.runLocked(run)
		if r == nil {
			return struct{}{}, domain.ErrNotFound
		}
		if !r.State.Ended() {
			return struct{}{}, fmt.Errorf("run %d is %s: %w", r.Number, r.State, domain.ErrConflict)
		}
		if r.FinalizedAt.IsZero() {
			r.FinalizedAt, r.EndSHA, r.Footprint = domain.At(h.Clock.Now()), domain.Ref(f.EndSHA), f.Footprint
			h.late[run] = f.LateWork
		}
		return struct{}{}, nil
	})
	return err
}

// Runs implements domain.Remote.
func (c *Client) Runs(context.Context) ([]domain.Run, error) {
	return call(c, "Runs", func(h *Hub) ([]domain.Run, error) {
		var out []domain.Run
		for _, r := range h.runs {
			if r.State.Live() || r.FinalizedAt.IsZero() {
				out = append(out, *r)
			}
		}
		return out, nil
	})
}

// Follow implements domain.Remote.
func (c *Client) Follow(ctx context.Context, after int64, fn func(domain.Event)) error {
	h := c.hub
	if after < 0 {
		h.mu.Lock()
		after = int64(len(h.events))
		h.mu.Unlock()
	}
	stands := false
	for {
		h.mu.Lock()
		if h.down {
			h.mu.Unlock()
			return domain.ErrUnreachable
		}
		wake := h.wakeup
		var news []domain.Event
		for _, e := range h.events {
			if e.Seq > after {
				news = append(news, e)
				after = e.Seq
			}
		}
		h.mu.Unlock()
		if !stands {
			stands = true
			fn(domain.Event{})
		}
		for _, e := range news {
			fn(e)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-wake:
		}
	}
}
