package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"gaia/domain"
	"gaia/hub/auth"
	"gaia/hub/store"
)

// reader is one reading transaction of one caller.
type reader struct {
	store.Tx
	h       *Hub
	project string // the only project that the caller may see; "" for all
	now     domain.Time
}

// read runs fn on a snapshot, for a caller that may read.
func read[T any](ctx context.Context, h *Hub, p auth.Principal, fn func(*reader) (T, error)) (T, error) {
	var out T
	if err := p.May(auth.Read); err != nil {
		return out, err
	}
	err := h.store.View(ctx, func(stx store.Tx) error {
		r := &reader{Tx: stx, h: h, now: h.now()}
		switch p.Kind {
		case auth.Run:
			if err := stale(stx, p); err != nil {
				return err
			}
			k, err := stx.Ticket(p.Ticket)
			if err != nil {
				return err
			}
			r.project = k.Project
		case auth.Conductor:
			c, err := stx.Conductor(p.Conductor)
			if err != nil {
				return err
			}
			r.project = c.Project
		}
		var err error
		out, err = fn(r)
		return err
	})
	return out, err
}

// page is a part of a collection and the size of the whole.
type page[T any] struct {
	items []T
	total int
}

// list reads one collection; field names the column that holds the project.
func list[T any](ctx context.Context, h *Hub, p auth.Principal, q store.Query, field string,
	of func(store.Tx, store.Query) ([]T, int, error)) ([]T, int, error) {
	out, err := read(ctx, h, p, func(r *reader) (page[T], error) {
		if r.project != "" && field != "" {
			q.Filters = append(slices.Clone(q.Filters), store.Filter{Field: field, Values: []string{r.project}})
		}
		items, total, err := of(r.Tx, q)
		return page[T]{items, total}, err
	})
	return out.items, out.total, err
}

// visible hides objects of other projects as if they did not exist.
func (r *reader) visible(project string) error {
	if r.project != "" && r.project != project {
		return domain.ErrNotFound
	}
	return nil
}

// Projects lists projects.
func (h *Hub) Projects(ctx context.Context, p auth.Principal, q store.Query) ([]domain.Project, int, error) {
	return list(ctx, h, p, q, "id", store.Tx.Projects)
}

// Project returns a project by id or key.
func (h *Hub) Project(ctx context.Context, p auth.Principal, ref string) (domain.Project, error) {
	return read(ctx, h, p, func(r *reader) (domain.Project, error) {
		return r.findProject(ref)
	})
}

func (r *reader) findProject(ref string) (domain.Project, error) {
	p, err := findProject(r.Tx, ref)
	if err == nil && r.visible(p.ID) != nil {
		return domain.Project{}, noProject(ref)
	}
	return p, err
}

// Tickets lists tickets.
func (h *Hub) Tickets(ctx context.Context, p auth.Principal, q store.Query) ([]domain.Ticket, int, error) {
	return list(ctx, h, p, q, "project", store.Tx.Tickets)
}

// Ticket returns a ticket by id or identifier.
func (h *Hub) Ticket(ctx context.Context, p auth.Principal, ref string) (domain.Ticket, error) {
	return read(ctx, h, p, func(r *reader) (domain.Ticket, error) { return r.ticket(ref) })
}

func (r *reader) ticket(ref string) (domain.Ticket, error) {
	k, err := findTicket(r.Tx, ref)
	if err != nil {
		return k, err
	}
	if r.visible(k.Project) != nil {
		return domain.Ticket{}, fmt.Errorf("there is no ticket %q: %w", ref, domain.ErrNotFound)
	}
	return k, nil
}

// Runs lists runs.
func (h *Hub) Runs(ctx context.Context, p auth.Principal, q store.Query) ([]domain.Run, int, error) {
	return list(ctx, h, p, q, "project", store.Tx.Runs)
}

// Run returns a run by id.
func (h *Hub) Run(ctx context.Context, p auth.Principal, id string) (domain.Run, error) {
	return read(ctx, h, p, func(r *reader) (domain.Run, error) {
		run, err := r.Tx.Run(id)
		if err == nil {
			err = r.visible(run.Project)
		}
		if errors.Is(err, domain.ErrNotFound) {
			return domain.Run{}, fmt.Errorf("there is no run %q: %w", id, domain.ErrNotFound)
		}
		return run, err
	})
}

// Conductors lists conductors, each with its status as of now.
func (h *Hub) Conductors(ctx context.Context, p auth.Principal, q store.Query) ([]domain.Conductor, int, error) {
	return list(ctx, h, p, q, "project", func(tx store.Tx, q store.Query) ([]domain.Conductor, int, error) {
		cons, total, err := tx.Conductors(q)
		for i := range cons {
			cons[i].Status = h.status(cons[i], h.now())
		}
		return cons, total, err
	})
}

// Conductor returns a conductor by id or machine_id, with its status as of now.
func (h *Hub) Conductor(ctx context.Context, p auth.Principal, ref string) (domain.Conductor, error) {
	return read(ctx, h, p, func(r *reader) (domain.Conductor, error) {
		c, err := findConductor(r.Tx, ref)
		if err != nil {
			return c, err
		}
		if r.visible(c.Project) != nil {
			return domain.Conductor{}, fmt.Errorf("there is no conductor %q: %w", ref, domain.ErrNotFound)
		}
		c.Status = h.status(c, r.now)
		return c, nil
	})
}

// Comments lists the comments of the ticket that a filter on "ticket" names; such a filter is needed.
func (h *Hub) Comments(ctx context.Context, p auth.Principal, q store.Query) ([]domain.Comment, int, error) {
	out, err := read(ctx, h, p, func(r *reader) (page[domain.Comment], error) {
		i := slices.IndexFunc(q.Filters, func(f store.Filter) bool { return f.Field == "ticket" })
		if i < 0 || len(q.Filters[i].Values) != 1 {
			return page[domain.Comment]{}, invalid("filter", "comments are listed for one ticket: filter by it")
		}
		k, err := r.ticket(q.Filters[i].Values[0])
		if err != nil {
			return page[domain.Comment]{}, err
		}
		q.Filters = slices.Clone(q.Filters)
		q.Filters[i].Values = []string{k.ID}
		items, total, err := r.Tx.Comments(q)
		return page[domain.Comment]{items, total}, err
	})
	return out.items, out.total, err
}

// Comment returns one comment.
func (h *Hub) Comment(ctx context.Context, p auth.Principal, id string) (domain.Comment, error) {
	return read(ctx, h, p, func(r *reader) (domain.Comment, error) {
		m, err := r.Tx.Comment(id)
		if err != nil {
			return m, err
		}
		_, err = r.ticket(m.Ticket)
		return m, err
	})
}

// Labels returns every label in use, as far as the caller may see the tickets.
func (h *Hub) Labels(ctx context.Context, p auth.Principal) ([]domain.Label, error) {
	return read(ctx, h, p, func(r *reader) ([]domain.Label, error) { return r.Tx.Labels(r.project) })
}

// Users returns every user.
func (h *Hub) Users(ctx context.Context, p auth.Principal) ([]domain.User, error) {
	return read(ctx, h, p, func(r *reader) ([]domain.User, error) { return r.Tx.Users() })
}

// Assignment returns a run of the calling conductor in the form that its claim had.
func (h *Hub) Assignment(ctx context.Context, p auth.Principal, run string) (*domain.Assignment, error) {
	if err := p.May(auth.Lease); err != nil {
		return nil, err
	}
	return read(ctx, h, p, func(r *reader) (*domain.Assignment, error) {
		v, err := own(r.Tx, p, run)
		if err != nil {
			return nil, err
		}
		return assignment(r.Tx, v)
	})
}

// OwnRuns returns the calling conductor's runs that are live or not finalised, oldest first.
func (h *Hub) OwnRuns(ctx context.Context, p auth.Principal) ([]domain.Run, error) {
	if err := p.May(auth.Lease); err != nil {
		return nil, err
	}
	return read(ctx, h, p, func(r *reader) ([]domain.Run, error) { return r.UnfinishedRuns(p.Conductor) })
}

// ByToken returns whose token has that SHA-256. The token of an ended run is still its token: what it may do is
// decided by the call, since a repeat of the run's last write must get the answer of the first.
func (h *Hub) ByToken(ctx context.Context, hash [32]byte) (auth.Principal, error) {
	h.mu.Lock()
	p, known := h.tokens[hash]
	emptied := h.tokened
	h.mu.Unlock()
	if known {
		return p, nil
	}
	p.Token = hash
	err := h.store.View(ctx, func(tx store.Tx) error {
		t, err := tx.TokenByHash(hash)
		if errors.Is(err, domain.ErrNotFound) {
			return fmt.Errorf("the token is not known: %w", domain.ErrUnauthenticated)
		}
		if err != nil {
			return err
		}
		if t.Kind == store.TokenConductor {
			c, err := tx.Conductor(t.Holder)
			p.Kind, p.Conductor, p.Machine = auth.Conductor, c.ID, c.MachineID
			return err
		}
		r, err := tx.Run(t.Holder)
		p.Kind, p.Run, p.Ticket = auth.Run, r.ID, r.Ticket
		return err
	})
	if err != nil {
		return auth.Principal{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tokened == emptied { // else it may have been replaced since it was looked up
		if len(h.tokens) >= maxTokens {
			clear(h.tokens)
		}
		h.tokens[hash] = p
	}
	return p, nil
}

// maxTokens bounds how many tokens are remembered with whom they belong to. That never changes while a token is known, so
// that only a registration, which may replace one, makes the hub forget them.
const maxTokens = 4096

func (h *Hub) forgetTokens() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tokened++
	clear(h.tokens)
}

// Events returns entries of the log after a sequence number that p may read, and the sequence number that was looked
// at last, which is where to go on.
func (h *Hub) Events(ctx context.Context, p auth.Principal, after int64, limit int) ([]domain.Event, int64, error) {
	project, err := read(ctx, h, p, func(r *reader) (string, error) { return r.project, nil })
	if err != nil {
		return nil, after, err
	}
	sealed, err := h.store.Events(ctx, after, limit)
	if err != nil {
		return nil, after, err
	}
	out := make([]domain.Event, 0, len(sealed))
	for _, s := range sealed {
		after = s.Seq
		var e domain.Event
		if err := json.Unmarshal(s.Bytes, &e); err != nil {
			return nil, after, fmt.Errorf("read entry %d of the event log: %w", s.Seq, err)
		}
		if project == "" || e.Project == project {
			out = append(out, e)
		}
	}
	return out, after, nil
}

// Head returns the newest entry's sequence number and hash.
func (h *Hub) Head(ctx context.Context, p auth.Principal) (int64, [32]byte, error) {
	if err := p.May(auth.Verify); err != nil {
		return 0, [32]byte{}, err
	}
	return h.store.Head(ctx)
}

// Newest returns the newest entry's sequence number, which whoever may read events sees anyway.
func (h *Hub) Newest(ctx context.Context, p auth.Principal) (int64, error) {
	if err := p.May(auth.Read); err != nil {
		return 0, err
	}
	seq, _, err := h.store.Head(ctx)
	return seq, err
}

// Why explains why a ticket is, or is not, claimed: by the rules of the claim itself.
func (h *Hub) Why(ctx context.Context, p auth.Principal, ref string) (domain.Why, error) {
	return read(ctx, h, p, func(r *reader) (domain.Why, error) {
		k, err := r.ticket(ref)
		if err != nil {
			return domain.Why{}, err
		}
		w := domain.Why{Ticket: k, Conductors: []domain.WhyConductor{}}
		if w.Project, err = r.Tx.Project(k.Project); err != nil {
			return w, err
		}
		cons, _, err := r.Tx.Conductors(store.Query{
			Filters: []store.Filter{{Field: "project", Values: []string{k.Project}}},
			Sort:    []store.Sort{{Field: "machine_id"}},
		})
		if err != nil {
			return w, err
		}
		for _, c := range cons {
			c.Status = h.status(c, r.now)
			h.mu.Lock()
			last, asked := h.asked[c.ID]
			h.mu.Unlock()
			g, err := h.gates(r.Tx, w.Project, c, last.offer, r.now)
			if err != nil {
				return w, err
			}
			in, err := g.full(k)
			if err != nil {
				return w, err
			}
			gates := domain.Gates(in)
			if !asked {
				i := slices.IndexFunc(gates, func(g domain.GateResult) bool { return g.Gate == domain.GateServable })
				gates[i].Reason = "the conductor has not asked for work since the hub came up, so it is not known what it can serve"
			}
			w.Conductors = append(w.Conductors, domain.WhyConductor{
				MachineID: c.MachineID, Gates: gates,
				Eligible: !slices.ContainsFunc(gates, func(g domain.GateResult) bool { return !g.Pass }),
			})
		}
		return w, nil
	})
}

// Snapshot returns the state of a project by id or key, or of every project for "".
func (h *Hub) Snapshot(ctx context.Context, p auth.Principal, project string) (domain.Snapshot, error) {
	return read(ctx, h, p, func(r *reader) (domain.Snapshot, error) {
		s := domain.Snapshot{At: r.now, Running: []domain.SnapshotRun{}, Waiting: []domain.Ticket{}, Blocked: []domain.Ticket{}, Held: []domain.Ticket{}, Machines: []domain.Ticket{}}
		s.Limits.MaxAttempts = h.limits().MaxAttempts
		only := r.project
		if project != "" {
			pr, err := r.findProject(project)
			if err != nil {
				return s, err
			}
			only, s.Limits.ClusterCap = pr.ID, pr.Settings.ClusterCap
		}
		var q store.Query
		if only != "" {
			q.Filters = []store.Filter{{Field: "project", Values: []string{only}}}
		}
		return s, r.snapshot(&s, q, only)
	})
}

func (r *reader) snapshot(s *domain.Snapshot, q store.Query, only string) error {
	cons, _, err := r.Tx.Conductors(q)
	if err != nil {
		return err
	}
	away := map[string]bool{}
	for i := range cons {
		cons[i].Status = r.h.status(cons[i], r.now)
		if cons[i].Status == domain.ConductorOnline {
			s.Limits.Slots += cons[i].MaxParallel
		}
		if r.h.away(cons[i], r.now) >= r.h.limits().WaitingAfter {
			away[cons[i].ID] = true
		}
	}
	s.Conductors = cons
	if s.Totals.Runs, s.Totals.Footprint, err = r.Used(only); err != nil {
		return err
	}
	live, err := r.LiveRuns("")
	if err != nil {
		return err
	}
	for _, run := range live {
		if only != "" && run.Project != only {
			continue
		}
		s.Limits.Live++
		k, err := r.Tx.Ticket(run.Ticket)
		if err != nil {
			return err
		}
		s.Running = append(s.Running, domain.SnapshotRun{Run: run, Ticket: k})
	}
	blocked, err := r.blocked(only)
	if err != nil {
		return err
	}
	tickets, err := r.Parked(only, domain.OpenStates(), slices.Collect(maps.Keys(away)), r.now)
	if err != nil {
		return err
	}
	still := map[string]bool{} // blocked, and shown as nothing else
	for _, k := range blocked {
		still[k.ID] = true
	}
	for _, run := range s.Running {
		delete(still, run.Ticket.ID)
	}
	for _, k := range tickets {
		switch {
		case k.Hold != nil:
			s.Held = append(s.Held, k)
			delete(still, k.ID)
		case away[string(k.TreeAt)]:
			s.Machines = append(s.Machines, k)
			delete(still, k.ID)
		case !still[k.ID]: // a block lasts longer than a wait
			s.Waiting = append(s.Waiting, k)
		}
	}
	for _, k := range blocked {
		if still[k.ID] {
			s.Blocked = append(s.Blocked, k)
		}
	}
	return nil
}

// blocked returns the tickets that wait for one that is not finished. What the store counts as that is what some workflow
// does.
func (r *reader) blocked(only string) ([]domain.Ticket, error) {
	tickets, err := r.Blocked(only, domain.OpenStates())
	if err != nil {
		return nil, err
	}
	open := func(k domain.Ticket) bool { return !domain.Terminal(string(k.Workflow), k.State) }
	var out []domain.Ticket
	for _, k := range tickets {
		by, err := blockersOf(r.Tx, k)
		if err != nil {
			return nil, err
		}
		if open(k) && slices.ContainsFunc(by, open) {
			out = append(out, k)
		}
	}
	return out, nil
}
