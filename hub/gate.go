package hub

import (
	"errors"
	"fmt"

	"gaia/domain"
	"gaia/hub/store"
)

// gates gathers what the gates look at, for the claim and for `why` alike. It is for one conductor and one transaction:
// what is the same for every ticket is read once.
type gates struct {
	tx       store.Tx
	h        *Hub
	base     domain.GateInput
	here     map[string]int            // live runs of the conductor, by state
	blockers map[string]domain.Blocker // by ticket id: a long queue often waits for the same few
}

func (h *Hub) gates(tx store.Tx, p domain.Project, con domain.Conductor, o domain.Offer, now domain.Time) (*gates, error) {
	g := &gates{
		tx: tx, h: h, blockers: map[string]domain.Blocker{},
		base: domain.GateInput{Project: p, Conductor: con, Offer: o, Limits: h.limits(), Now: now},
	}
	var err error
	if g.base.LiveInProject, err = tx.CountLive(p.ID); err != nil {
		return nil, err
	}
	if g.here, err = tx.LiveByState(con.ID); err != nil {
		return nil, err
	}
	for _, n := range g.here {
		g.base.LiveHere += n
	}
	return g, nil
}

// cheap is the input without what must be read for the ticket.
func (g *gates) cheap(k domain.Ticket) domain.GateInput {
	in := g.base
	in.Ticket, in.LiveHereState = k, g.here[k.State]
	return in
}

// open keeps the states in which the conductor could claim anything.
func (g *gates) open(states []string) []string {
	var out []string
	for _, s := range states {
		if domain.OpenState(g.cheap(domain.Ticket{State: s})) {
			out = append(out, s)
		}
	}
	return out
}

// eligible reports whether k passes every gate. It reads no more than it needs to know that one fails.
func (g *gates) eligible(k domain.Ticket) (bool, error) {
	in := g.cheap(k)
	if !domain.Eligible(in) {
		return false, nil
	}
	if len(k.BlockedBy) > 0 {
		if err := g.block(&in); err != nil || !domain.Eligible(in) {
			return false, err
		}
	}
	if err := g.rest(&in); err != nil {
		return false, err
	}
	return domain.Eligible(in), nil
}

// full is the whole input.
func (g *gates) full(k domain.Ticket) (domain.GateInput, error) {
	in := g.cheap(k)
	if err := g.block(&in); err != nil {
		return in, err
	}
	return in, g.rest(&in)
}

func (g *gates) block(in *domain.GateInput) error {
	for _, id := range in.Ticket.BlockedBy {
		b, known := g.blockers[id]
		if !known {
			k, err := g.tx.Ticket(id)
			if err != nil {
				return fmt.Errorf("read the blocker %s of %s: %w", id, in.Ticket.Identifier, err)
			}
			b = domain.Blocker{Identifier: k.Identifier, State: k.State, Terminal: domain.Terminal(string(k.Workflow), k.State)}
			g.blockers[id] = b
		}
		in.Blockers = append(in.Blockers, b)
	}
	return nil
}

func (g *gates) rest(in *domain.GateInput) error {
	k, now, err := in.Ticket, in.Now, error(nil)
	if in.LiveRun, err = optional(g.tx.LiveRun(k.ID)); err != nil {
		return err
	}
	if in.LastRun, err = optional(g.tx.LastEndedRun(k.ID)); err != nil {
		return err
	}
	if in.LastRun != nil {
		last, err := optional(g.tx.Conductor(in.LastRun.Conductor))
		if err != nil {
			return err
		}
		// A conductor that restarts is not away: its last run is finalised in a moment.
		if last == nil || g.h.away(*last, now) > g.h.limits().OfflineAfter {
			in.LastConductor = domain.ConductorOffline
		}
	}
	if k.TreeAt != "" {
		if in.TreeConductor, err = optional(g.tx.Conductor(string(k.TreeAt))); err != nil {
			return err
		}
		if in.TreeConductor != nil {
			in.TreeAway = g.h.away(*in.TreeConductor, now)
		}
	}
	if k.Target != "" {
		target, err := optional(g.tx.Conductor(string(k.Target)))
		if err != nil {
			return err
		}
		if target != nil {
			in.TargetName = target.MachineID
		}
	}
	if s := in.Project.Settings; s.BudgetTokens > 0 || s.BudgetCost > 0 {
		in.Used, err = g.tx.UsedByTicket(k.ID)
	}
	return err
}

// optional turns "not found" into nil.
func optional[T any](v T, err error) (*T, error) {
	if errors.Is(err, domain.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &v, nil
}
