package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gaia/domain"
	"gaia/internal/render"
	"gaia/remote"
)

// boardOrder is how columns stand beside each other: as work passes through them, over all workflows.
var boardOrder = []string{
	"qualification", "backlog", "todo", "spec", "diagnose", "coding", "working", "review", "changes_requested",
	"customer_review", "human_input", "done", "cancelled",
}

// finishedShown is how many finished tickets a board shows per column.
const finishedShown = 5

// boardColumn is one column, for JSON and YAML.
type boardColumn struct {
	State   string       `json:"state"`
	Tickets []boardEntry `json:"tickets"`
}

type boardEntry struct {
	domain.Ticket
	Run *domain.Run `json:"run"` // live
}

func (a *app) boardCommand() *cobra.Command {
	var project string
	var all bool
	cmd := &cobra.Command{
		Use:   "board",
		Short: "Show tickets in columns by state, with the live runs in them",
		Long: fmt.Sprintf(`Show tickets in columns by state, with the live runs in them. Of finished tickets the last %d are shown, of cancelled
ones none; --all shows them all.`, finishedShown),
		Example: `  gaia board --watch
  gaia board --project SHOP -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			return a.show(cmd.Context(), c, func(ctx context.Context) (render.Value, error) { return a.board(ctx, c, project, all) })
		},
	}
	cmd.Flags().StringVarP(&project, "project", "p", "", "only the project with this key")
	a.completeFlags(cmd, map[string]completer{"project": a.projectNames})
	cmd.Flags().BoolVarP(&all, "all", "a", false, "every finished and cancelled ticket, too")
	a.watchFlag(cmd)
	return cmd
}

func (a *app) board(ctx context.Context, c *remote.Client, project string, all bool) (render.Value, error) {
	open := remote.Query{Filter: map[string][]string{"state": openStates()}}
	finished := remote.Query{Filter: map[string][]string{"state": {domain.StateDone}}, Sort: []string{"-updated_at"}, Limit: finishedShown + 1}
	if all {
		finished.Filter["state"], finished.Limit = []string{domain.StateDone, domain.StateCancelled}, 0
	}
	if project != "" {
		p, err := c.ProjectByKey(ctx, project)
		if err != nil {
			return render.Value{}, err
		}
		open.Filter["project"], finished.Filter["project"] = []string{p.ID}, []string{p.ID}
	}
	tickets, err := c.Tickets(ctx, open)
	if err != nil {
		return render.Value{}, err
	}
	past, err := c.Tickets(ctx, finished)
	if err != nil {
		return render.Value{}, err
	}
	tickets = append(tickets, past...)
	live, err := c.RunList(ctx, remote.Query{Filter: liveRuns()})
	if err != nil {
		return render.Value{}, err
	}
	snap, err := c.Snapshot(ctx, project)
	if err != nil {
		return render.Value{}, err
	}
	by, err := openBlockers(ctx, c, tickets)
	if err != nil {
		return render.Value{}, err
	}
	away := map[string]bool{}
	for _, k := range snap.Machines {
		away[k.ID] = true
	}
	runs := map[string]*domain.Run{}
	for i := range live {
		runs[live[i].Ticket] = &live[i]
	}
	byState := map[string][]boardEntry{}
	for _, k := range tickets {
		byState[k.State] = append(byState[k.State], boardEntry{k, runs[k.ID]})
	}
	data := []boardColumn{}
	var columns []render.Column
	for _, state := range boardOrder {
		entries := byState[state]
		finished := state == domain.StateDone || state == domain.StateCancelled
		if len(entries) == 0 {
			continue
		}
		slices.SortFunc(entries, func(x, y boardEntry) int {
			if finished { // the latest first
				return y.UpdatedAt.Compare(x.UpdatedAt.Time)
			}
			return domain.CompareClaim(x.Ticket, y.Ticket)
		})
		col := render.Column{Title: state}
		if finished && !all && len(entries) > finishedShown {
			col.More, entries = true, entries[:finishedShown]
		}
		for _, e := range entries {
			col.Cards = append(col.Cards, render.Card{Head: e.Identifier, Text: e.Title, Note: note(e, away[e.ID], by[e.ID])})
		}
		data, columns = append(data, boardColumn{state, entries}), append(columns, col)
	}
	v := render.Value{Data: data, Table: func(w io.Writer) error { return render.Board(w, a.width(120), columns) }}
	for _, col := range data {
		for _, e := range col.Tickets {
			v.Names = append(v.Names, e.Identifier)
		}
	}
	return v, nil
}

// note says on a card what happens to the ticket; by are its open blockers.
func note(e boardEntry, away bool, by []string) string {
	switch {
	case e.Run != nil:
		s := fmt.Sprintf("run %d %s", e.Run.Number, e.Run.State)
		if act := activity(*e.Run); act != "-" {
			s += ", " + act
		}
		if e.Run.Permissions == "all" {
			s += ", all permissions"
		}
		return s
	case away:
		return domain.WaitingForMachine
	}
	return situation(e.Ticket, by, time.Now())
}

func (a *app) whyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "why [TICKET]",
		Short: "Say why a ticket is, or is not, claimed",
		Long:  "Say for each conductor of the ticket's project which gates let the ticket through: by the rules of the claim itself.",
		Example: `  gaia why SHOP-7
  gaia why SHOP-7 -o json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeFirst(a.ticketNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, _, err := a.ticketArg(args, 0)
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			return a.show(cmd.Context(), c, func(ctx context.Context) (render.Value, error) {
				w, err := c.Why(ctx, ref)
				if err != nil {
					return render.Value{}, err
				}
				return render.Value{Data: w, Names: []string{w.Ticket.Identifier}, Table: func(out io.Writer) error {
					return whyText(out, w)
				}}, nil
			})
		},
	}
	a.watchFlag(cmd)
	return cmd
}

func whyText(w io.Writer, why domain.Why) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s  %s\n", render.Clean(why.Ticket.Identifier), why.Ticket.State, render.Clean(why.Ticket.Title))
	if len(why.Conductors) == 0 {
		fmt.Fprintf(&b, "\nThe project %s has no conductor: run gaia init and gaia conductor enable --now in its checkout.\n", why.Project.Key)
	}
	for _, c := range why.Conductors {
		verdict := "does not take it"
		if c.Eligible {
			verdict = "may take it now"
		} else if !slices.ContainsFunc(c.Gates, func(g domain.GateResult) bool { return !g.Pass && !g.Waits }) {
			verdict = "does not take it yet"
		}
		fmt.Fprintf(&b, "\n%s %s\n", c.MachineID, verdict)
		for _, g := range c.Gates {
			mark := "pass"
			if g.Waits {
				mark = "wait"
			} else if !g.Pass {
				mark = "FAIL"
			}
			fmt.Fprintf(&b, "  %s  %-16s  %s\n", mark, g.Gate, render.Clean(g.Reason))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (a *app) snapshotCommand() *cobra.Command {
	var project string
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Show what runs, waits, is blocked and is held, and the totals",
		Example: `  gaia snapshot
  gaia snapshot --project SHOP -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			return a.show(cmd.Context(), c, func(ctx context.Context) (render.Value, error) {
				s, err := c.Snapshot(ctx, project)
				if err != nil {
					return render.Value{}, err
				}
				by, err := openBlockers(ctx, c, s.Blocked)
				if err != nil {
					return render.Value{}, err
				}
				v := render.Value{Data: s, Table: func(w io.Writer) error { return snapshotText(w, s, by) }}
				for _, r := range s.Running {
					v.Names = append(v.Names, r.Ticket.Identifier)
				}
				return v, nil
			})
		},
	}
	cmd.Flags().StringVarP(&project, "project", "p", "", "only the project with this key")
	a.completeFlags(cmd, map[string]completer{"project": a.projectNames})
	a.watchFlag(cmd)
	return cmd
}

func snapshotText(w io.Writer, s domain.Snapshot, by map[string][]string) error {
	var b strings.Builder
	now := time.Now()
	fmt.Fprintf(&b, "%d of %d slots in use, runs so far: %d\n", s.Limits.Live, s.Limits.Slots, s.Totals.Runs)
	for _, l := range footprintLines(&s.Totals.Footprint) {
		fmt.Fprintf(&b, "%-12s %s\n", l[0]+":", l[1])
	}
	section := func(title string, n int) {
		if n > 0 {
			fmt.Fprintf(&b, "\n%s (%d)\n", title, n)
		}
	}
	section("running", len(s.Running))
	for _, r := range s.Running {
		fmt.Fprintf(&b, "  %s  run %d for %s, %s, since %s\n", render.Clean(r.Ticket.Identifier), r.Run.Number, r.Run.StateAtStart,
			r.Run.State, render.Age(now, r.Run.ClaimedAt.Time))
	}
	for _, part := range []struct {
		title   string
		tickets []domain.Ticket
	}{{"waiting", s.Waiting}, {"blocked", s.Blocked}, {"held", s.Held}, {domain.WaitingForMachine, s.Machines}} {
		section(part.title, len(part.tickets))
		for _, k := range part.tickets {
			fmt.Fprintf(&b, "  %s  %s  %s\n", render.Clean(k.Identifier), k.State, render.Clean(situation(k, by[k.ID], now)))
		}
	}
	section("conductors", len(s.Conductors))
	for _, c := range s.Conductors {
		fmt.Fprintf(&b, "  %s  %s  load %d of %d", c.MachineID, c.Status, c.CurrentLoad, c.MaxParallel)
		if c.Paused != "" {
			fmt.Fprintf(&b, "  paused: %s", render.Clean(c.Paused))
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}
