package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"gaia/domain"
	"gaia/hub/auth"
	"gaia/hub/store"
)

// maxRefs bounds the lists of one ticket, so that no ticket grows without end.
const maxRefs = 200

// maxURI bounds a ticket's origin and the address of each of its links, in bytes.
const maxURI = 4096

// findTicket returns a ticket by id or identifier.
func findTicket(tx store.Tx, ref string) (domain.Ticket, error) {
	k, err := tx.Ticket(ref)
	if errors.Is(err, domain.ErrNotFound) {
		k, err = tx.TicketByIdentifier(ref)
	}
	if errors.Is(err, domain.ErrNotFound) {
		return k, fmt.Errorf("there is no ticket %q: %w", ref, domain.ErrNotFound)
	}
	return k, err
}

// findConductor returns a conductor by id or machine_id.
func findConductor(tx store.Tx, ref string) (domain.Conductor, error) {
	c, err := tx.Conductor(ref)
	if errors.Is(err, domain.ErrNotFound) {
		c, err = tx.ConductorByMachineID(ref)
	}
	if errors.Is(err, domain.ErrNotFound) {
		return c, fmt.Errorf("there is no conductor %q: %w", ref, domain.ErrNotFound)
	}
	return c, err
}

// within reports whether ticket is root or one of its descendants.
func (t *tx) within(ticket, root string) (bool, error) {
	for seen := map[string]bool{}; ticket != "" && !seen[ticket]; {
		if ticket == root {
			return true, nil
		}
		seen[ticket] = true
		k, err := t.Ticket(ticket)
		if errors.Is(err, domain.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		ticket = string(k.Parent)
	}
	return false, nil
}

// scope refuses a run that writes outside its ticket and that ticket's descendants.
func (t *tx) scope(ticket string) error {
	if t.call.Kind != auth.Run {
		return nil
	}
	ok, err := t.within(ticket, t.call.Ticket)
	if err == nil && !ok {
		err = fmt.Errorf("a run writes only its own ticket and the sub-tickets of that: %w", domain.ErrForbidden)
	}
	return err
}

// CreateTicket makes a ticket. A run makes sub-tickets of its own ticket.
func (h *Hub) CreateTicket(ctx context.Context, c Call, d domain.TicketDraft) (domain.Ticket, error) {
	return write(ctx, h, c, auth.TicketCreate, func(t *tx) (domain.Ticket, error) {
		k, err := t.draft(d)
		if err != nil {
			return k, err
		}
		return k, t.saveTicket(&k, "ticket.created")
	})
}

func (t *tx) draft(d domain.TicketDraft) (domain.Ticket, error) {
	var k domain.Ticket
	if d.Identifier != "" || d.State != "" {
		if err := t.call.May(auth.TicketIdentify); err != nil {
			return k, fmt.Errorf("the hub numbers a sub-ticket, and its workflow says where it begins: %w", err)
		}
	}
	if t.call.Kind == auth.Run {
		if d.Target != "" || d.Assignee != "" {
			return k, fmt.Errorf("a run chooses neither target nor assignee of a sub-ticket: %w", domain.ErrForbidden)
		}
		if d.Parent == "" {
			return k, invalid("parent", "a run makes sub-tickets only: give its own ticket as the parent")
		}
		own, err := t.Ticket(t.call.Ticket)
		if err != nil {
			return k, err
		}
		if d.Project != "" && d.Project != own.Project {
			return k, fmt.Errorf("a run makes sub-tickets in its own project only: %w", domain.ErrForbidden)
		}
		d.Project = own.Project
	}
	p, err := t.Project(d.Project)
	if err != nil {
		return k, check("project", err)
	}
	w, ok := domain.WorkflowByID(string(d.Workflow))
	if !ok {
		return k, check("workflow", domain.UnknownWorkflow(string(d.Workflow)))
	}
	state := domain.NormaliseState(d.State)
	if state == "" {
		state = w.First
	}
	if _, ok := w.State(state); !ok {
		return k, invalid("state", "%s has no state %q", cmpOr(w.ID, "a ticket without a workflow"), state)
	}
	id, err := newID()
	if err != nil {
		return k, err
	}
	if d.Identifier == "" {
		n, err := t.NextTicketNumber(p.ID)
		if err != nil {
			return k, err
		}
		d.Identifier = fmt.Sprintf("%s-%d", p.Key, n)
	} else if err := domain.CheckIdentifier(d.Identifier); err != nil {
		return k, check("identifier", err)
	} else if _, err := t.TicketByIdentifier(d.Identifier); err == nil {
		return k, check("identifier", fmt.Errorf("%s exists already: %w", d.Identifier, domain.ErrConflict))
	}
	if len(d.Origin) > maxURI || strings.ContainsFunc(string(d.Origin), unicode.IsControl) {
		return k, invalid("origin", "an origin is one line of at most %d bytes", maxURI)
	}
	k = domain.Ticket{
		ID: id, Identifier: d.Identifier, Project: p.ID, Workflow: d.Workflow, State: state, Origin: d.Origin,
		CreatedAt: t.now, BlockedBy: []string{}, Labels: []string{}, Links: []domain.Link{},
	}
	return k, t.apply(&k, domain.TicketPatch{
		Title: &d.Title, Description: &d.Description, Assignee: &d.Assignee, Target: &d.Target, Priority: &d.Priority,
		Parent: &d.Parent, BlockedBy: &d.BlockedBy, Labels: &d.Labels, AddLinks: d.Links, Agent: &d.Agent, NotBefore: &d.NotBefore,
	})
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// PatchTicket changes a ticket. A state that differs from the present one is a transition and ends the ticket's live
// run in the same transaction; no other change ends it.
func (h *Hub) PatchTicket(ctx context.Context, c Call, ref string, p domain.TicketPatch) (domain.Ticket, error) {
	action := auth.TicketContent
	if p.State != nil || p.Workflow != nil {
		action = auth.TicketState
	}
	if routing(p) {
		action = auth.TicketRouting
	}
	return write(ctx, h, c, action, func(t *tx) (domain.Ticket, error) {
		k, err := findTicket(t.Tx, ref)
		if err != nil {
			return k, err
		}
		if err := t.scope(k.ID); err != nil {
			return k, err
		}
		before := k
		if err := t.apply(&k, p); err != nil {
			return k, err
		}
		return k, t.transition(before, &k, p)
	})
}

// routing reports whether p changes what only people may change.
func routing(p domain.TicketPatch) bool {
	return p.Assignee != nil || p.Target != nil || p.Project != nil || p.Priority != nil || p.Parent != nil ||
		p.Agent != nil || p.NotBefore != nil
}

// transition finishes a patch: it decides whether the state changes, saves the ticket and ends its live run.
func (t *tx) transition(before domain.Ticket, k *domain.Ticket, p domain.TicketPatch) error {
	state := before.State
	if p.State != nil {
		state = domain.NormaliseState(*p.State)
	}
	sameWorkflow := p.Workflow == nil || *p.Workflow == string(before.Workflow)
	if state == before.State && sameWorkflow {
		return t.saveTicket(k, "ticket.changed")
	}
	if t.call.Kind == auth.Run && k.ID != t.call.Ticket {
		return fmt.Errorf("a run moves its own ticket only: %w", domain.ErrForbidden)
	}
	workflow, next, err := domain.Transition(before, p.Workflow, state)
	if err != nil {
		var te *domain.TransitionError
		if errors.As(err, &te) {
			return fmt.Errorf("%w", te)
		}
		return check("workflow", err)
	}
	if next == domain.StateDone {
		open, err := t.openBlockers(*k)
		if err != nil {
			return err
		}
		if len(open) > 0 {
			return invalid("state", "%s cannot be done while it is blocked by %s", k.Identifier, strings.Join(open, ", "))
		}
	}
	k.Workflow = domain.Ref(workflow)
	k.Enter(next, t.call.Kind == auth.Run, t.h.limits(), t.now)
	t.held(*k, before.Hold)
	head := ""
	if p.Head != nil {
		head = *p.Head
	}
	return t.moved(k, "ticket.moved", head)
}

// moved saves a ticket whose state was changed and ends its live run: done where that run wrote it, failed where
// somebody else did.
func (t *tx) moved(k *domain.Ticket, kind, head string) error {
	r, err := t.LiveRun(k.ID)
	live := err == nil
	if err != nil && !errors.Is(err, domain.ErrNotFound) {
		return err
	}
	if err := t.saveTicket(k, kind); err != nil || !live {
		return err
	}
	r.EndedAt = t.now
	if t.call.Kind == auth.Run && t.call.Run == r.ID {
		r.State, r.EndSHA = domain.RunDone, domain.Ref(head)
		return t.saveRun(&r, "run.done")
	}
	r.State, r.EndReason = domain.RunFailed, domain.ReasonSuperseded
	r.EndNote = fmt.Sprintf("%s moved the ticket to %s", t.call.Principal, k.State)
	return t.saveRun(&r, "run.failed")
}

func (t *tx) openBlockers(k domain.Ticket) ([]string, error) {
	blockers, err := blockersOf(t.Tx, k)
	if err != nil {
		return nil, err
	}
	var open []string
	for _, b := range blockers {
		if !domain.Terminal(string(b.Workflow), b.State) {
			open = append(open, b.Identifier)
		}
	}
	return open, nil
}

func blockersOf(tx store.Tx, k domain.Ticket) ([]domain.Ticket, error) {
	out := make([]domain.Ticket, 0, len(k.BlockedBy))
	for _, id := range k.BlockedBy {
		b, err := tx.Ticket(id)
		if err != nil {
			return nil, fmt.Errorf("read the blocker %s of %s: %w", id, k.Identifier, err)
		}
		out = append(out, b)
	}
	return out, nil
}

// apply checks and sets every field of a patch but state and workflow.
func (t *tx) apply(k *domain.Ticket, p domain.TicketPatch) error {
	if p.Title != nil {
		if err := domain.CheckTitle(*p.Title); err != nil {
			return check("title", err)
		}
		k.Title = *p.Title
	}
	if p.Description != nil {
		if err := domain.CheckText("a description", *p.Description, domain.MaxDescription); err != nil {
			return check("description", err)
		}
		k.Description = *p.Description
	}
	if p.Assignee != nil {
		if *p.Assignee != "" {
			if err := t.ensureUser(string(*p.Assignee)); err != nil {
				return check("assignee", err)
			}
		}
		k.Assignee = *p.Assignee
	}
	if p.Project != nil {
		pr, err := t.Project(*p.Project)
		if err != nil {
			return check("project", err)
		}
		if k.Project != pr.ID {
			// No conductor of the project that it leaves may claim it any more.
			k.Project, k.Target = pr.ID, ""
		}
	}
	if p.Target != nil {
		if err := t.setTarget(k, *p.Target); err != nil {
			return err
		}
	}
	if p.Priority != nil {
		if v := *p.Priority; v != nil && (*v != *v || *v > 1e9 || *v < -1e9) {
			return invalid("priority", "%v is no priority: give a number, or null", *v)
		}
		k.Priority = *p.Priority
	}
	if p.Agent != nil {
		if *p.Agent != "" {
			if err := domain.CheckMachinePart("agent", string(*p.Agent)); err != nil {
				return check("agent", err)
			}
		}
		k.Agent = *p.Agent
	}
	if p.NotBefore != nil {
		k.NotBefore = *p.NotBefore
	}
	if p.Labels != nil {
		labels, err := domain.NormaliseLabels(*p.Labels)
		if err == nil && len(labels) > maxRefs {
			err = fmt.Errorf("a ticket has at most %d labels", maxRefs)
		}
		if err != nil {
			return check("labels", err)
		}
		k.Labels = labels
	}
	for _, l := range p.AddLinks {
		if strings.TrimSpace(l.URI) == "" || len(l.URI) > maxURI || len(l.Title) > domain.MaxTitle || len(l.Kind) > domain.MaxLabel {
			return invalid("links", "a link needs a uri of at most %d bytes and a short title and kind", maxURI)
		}
		if !slices.Contains(k.Links, l) {
			k.Links = append(slices.Clone(k.Links), l)
		}
	}
	if len(k.Links) > maxRefs {
		return invalid("links", "a ticket has at most %d links", maxRefs)
	}
	if p.Parent != nil {
		if err := t.setParent(k, *p.Parent); err != nil {
			return err
		}
	}
	if p.BlockedBy != nil {
		return t.setBlockers(k, *p.BlockedBy)
	}
	return nil
}

// setTarget says which conductor a ticket is for. Where its work lies with another one that has been away for long, a
// person who gives it to this one starts afresh: otherwise neither could claim it.
func (t *tx) setTarget(k *domain.Ticket, ref domain.Ref) error {
	k.Target = ""
	if ref == "" {
		return nil
	}
	c, err := findConductor(t.Tx, string(ref))
	if err != nil {
		return check("target", err)
	}
	if c.Project != k.Project {
		return invalid("target", "%s works for another project", c.MachineID)
	}
	k.Target = domain.Ref(c.ID)
	if k.TreeAt == "" || k.TreeAt == k.Target {
		return nil
	}
	holder, err := optional(t.Conductor(string(k.TreeAt)))
	if err != nil {
		return err
	}
	if holder == nil || t.h.away(*holder, t.now) >= t.h.limits().WaitingAfter {
		k.TreeAt = ""
	}
	return nil
}

func (t *tx) setParent(k *domain.Ticket, ref domain.Ref) error {
	k.Parent = ""
	if ref == "" {
		return nil
	}
	parent, err := findTicket(t.Tx, string(ref))
	if err != nil {
		return check("parent", err)
	}
	if err := t.scope(parent.ID); err != nil {
		return err
	}
	if under, err := t.within(parent.ID, k.ID); err != nil {
		return err
	} else if under {
		return invalid("parent", "%s is %s itself or one of its sub-tickets", parent.Identifier, k.Identifier)
	}
	k.Parent = domain.Ref(parent.ID)
	return nil
}

func (t *tx) setBlockers(k *domain.Ticket, refs []string) error {
	if len(refs) > maxRefs {
		return invalid("blocked_by", "a ticket has at most %d blockers", maxRefs)
	}
	ids := make([]string, 0, len(refs))
	for _, ref := range refs {
		b, err := findTicket(t.Tx, ref)
		if err != nil {
			return check("blocked_by", err)
		}
		if !slices.Contains(ids, b.ID) {
			ids = append(ids, b.ID)
		}
		// A run may add blockers from its subtree only; those that are there already may stay.
		if !slices.Contains(k.BlockedBy, b.ID) {
			if err := t.scope(b.ID); err != nil {
				return err
			}
		}
	}
	if t.call.Kind == auth.Run {
		for _, old := range k.BlockedBy {
			if slices.Contains(ids, old) {
				continue
			}
			if err := t.scope(old); err != nil {
				return err
			}
		}
	}
	cycle, err := domain.BlockCycle(k.ID, ids, func(id string) ([]string, error) {
		b, err := t.Ticket(id)
		return b.BlockedBy, err
	})
	if err != nil {
		return err
	}
	if cycle != nil {
		names := make([]string, len(cycle))
		for i, id := range cycle {
			names[i] = k.Identifier
			if id != k.ID {
				b, err := t.Ticket(id)
				if err != nil {
					return err
				}
				names[i] = b.Identifier
			}
		}
		return invalid("blocked_by", "that would make a circle: %s", strings.Join(names, " is blocked by "))
	}
	k.BlockedBy = ids
	return nil
}

// AddComment adds a comment. Author is set to the caller.
func (h *Hub) AddComment(ctx context.Context, c Call, m domain.Comment) (domain.Comment, error) {
	return write(ctx, h, c, auth.CommentAdd, func(t *tx) (domain.Comment, error) {
		k, err := findTicket(t.Tx, m.Ticket)
		if err != nil {
			return m, err
		}
		if err := t.scope(k.ID); err != nil {
			return m, err
		}
		return t.comment(k, m.Type, m.Body)
	})
}

func (t *tx) comment(k domain.Ticket, typ, body string) (domain.Comment, error) {
	m := domain.Comment{Ticket: k.ID, Type: cmpOr(strings.TrimSpace(typ), domain.DefaultCommentType), Body: body, CreatedAt: t.now}
	if strings.TrimSpace(body) == "" {
		return m, invalid("body", "a comment must not be blank")
	}
	if err := domain.CheckText("a comment", body, domain.MaxComment); err != nil {
		return m, check("body", err)
	}
	if err := domain.CheckTitle(m.Type); err != nil || len(m.Type) > domain.MaxLabel {
		return m, invalid("type", "a comment's type is one short line")
	}
	var err error
	if m.ID, err = newID(); err != nil {
		return m, err
	}
	m.Author = t.call.Principal.String()
	switch t.call.Kind {
	case auth.Owner:
		m.Author = t.call.User
	case auth.Run:
		r, err := t.Run(t.call.Run)
		if err != nil {
			return m, err
		}
		m.Author = fmt.Sprintf("run/%d", r.Number)
	}
	return m, t.saveComment(m, k.Project)
}

// change is a write to one ticket by a person.
func (h *Hub) change(ctx context.Context, c Call, a auth.Action, ref, kind string, fn func(*tx, *domain.Ticket) error) (domain.Ticket, error) {
	return write(ctx, h, c, a, func(t *tx) (domain.Ticket, error) {
		k, err := findTicket(t.Tx, ref)
		if err != nil {
			return k, err
		}
		if err := fn(t, &k); err != nil {
			return k, err
		}
		return k, t.saveTicket(&k, kind)
	})
}

// Hold keeps a ticket from being claimed until it is resumed. A live run goes on.
func (h *Hub) Hold(ctx context.Context, c Call, ref, note string) (domain.Ticket, error) {
	return h.change(ctx, c, auth.TicketHold, ref, "ticket.held", func(t *tx, k *domain.Ticket) error {
		k.HoldBy(note, t.now)
		return check("note", domain.CheckText("a note", note, domain.MaxTitle))
	})
}

// Resume lifts hold, attempts, waits after failures and the loop count of a ticket.
func (h *Hub) Resume(ctx context.Context, c Call, ref string) (domain.Ticket, error) {
	return h.change(ctx, c, auth.TicketHold, ref, "ticket.resumed", func(_ *tx, k *domain.Ticket) error {
		k.Resume()
		return nil
	})
}

// ClearTree forgets where a ticket's unpushed work lies, so that any conductor may start afresh.
func (h *Hub) ClearTree(ctx context.Context, c Call, ref string) (domain.Ticket, error) {
	return h.change(ctx, c, auth.TicketHold, ref, "ticket.tree_cleared", func(t *tx, k *domain.Ticket) error {
		if r, err := t.LiveRun(k.ID); err == nil {
			return fmt.Errorf("run %d of %s is live; stop it first (gaia run stop %d): %w", r.Number, k.Identifier, r.Number, domain.ErrConflict)
		} else if !errors.Is(err, domain.ErrNotFound) {
			return err
		}
		k.TreeAt = ""
		return nil
	})
}

// Repair assigns a state directly, past the workflow's transitions. It needs a reason, which is kept as a comment.
func (h *Hub) Repair(ctx context.Context, c Call, ref, state, reason string) (domain.Ticket, error) {
	return write(ctx, h, c, auth.TicketRepair, func(t *tx) (domain.Ticket, error) {
		k, err := findTicket(t.Tx, ref)
		if err != nil {
			return k, err
		}
		if strings.TrimSpace(reason) == "" {
			return k, invalid("reason", "a repair needs a reason")
		}
		w, ok := domain.WorkflowByID(string(k.Workflow))
		if !ok {
			return k, check("workflow", domain.UnknownWorkflow(string(k.Workflow)))
		}
		state = domain.NormaliseState(state)
		if _, ok := w.State(state); !ok {
			return k, invalid("state", "%s has no state %q", cmpOr(w.ID, "a ticket without a workflow"), state)
		}
		from := k.State
		k.Enter(state, false, t.h.limits(), t.now)
		if err := t.moved(&k, "ticket.repaired", ""); err != nil {
			return k, err
		}
		_, err = t.comment(k, "repair", fmt.Sprintf("State set from %s to %s: %s", from, state, reason))
		return k, err
	})
}
