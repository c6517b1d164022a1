package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gaia/domain"
	"gaia/internal/render"
	"gaia/remote"
)

func (a *app) ticketCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ticket",
		Aliases: []string{"tickets", "t"},
		Short:   "Create, read and change tickets",
		Long: `Create, read and change tickets.

Inside a run the ticket of the run is meant where no identifier is given.`,
	}
	cmd.AddCommand(
		a.ticketCreate(), a.ticketList(), a.ticketShow(), a.ticketEdit(), a.ticketMove(), a.ticketAssign(),
		a.ticketTarget(), a.ticketTree(), a.ticketBlock(), a.ticketLabel(), a.ticketComment(),
		a.ticketHold(), a.ticketResume(), a.ticketRepair(),
	)
	return cmd
}

// names of the objects of one listing, read once.
type names struct {
	projects   map[string]domain.Project
	conductors map[string]string
}

func readNames(ctx context.Context, c *remote.Client) (names, error) {
	n := names{map[string]domain.Project{}, map[string]string{}}
	projects, err := c.Projects(ctx, remote.Query{})
	if err != nil {
		return n, err
	}
	for _, p := range projects {
		n.projects[p.ID] = p
	}
	cons, err := c.Conductors(ctx, remote.Query{})
	for _, con := range cons {
		n.conductors[con.ID] = con.MachineID
	}
	return n, err
}

// ticketsByID reads tickets, many in one question.
func ticketsByID(ctx context.Context, c *remote.Client, ids []string) (map[string]domain.Ticket, error) {
	ids = slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(ids))), func(id string) bool { return id == "" })
	out := map[string]domain.Ticket{}
	for part := range slices.Chunk(ids, 50) {
		tickets, err := c.Tickets(ctx, remote.Query{Filter: map[string][]string{"id": part}})
		if err != nil {
			return nil, err
		}
		for _, k := range tickets {
			out[k.ID] = k
		}
	}
	return out, nil
}

func priority(p *float64) string {
	if p == nil {
		return "-"
	}
	return strconv.FormatFloat(*p, 'g', -1, 64)
}

// isFinished reports whether a ticket is over.
func isFinished(k domain.Ticket) bool { return domain.Terminal(string(k.Workflow), k.State) }

// openBlockers reads which tickets keep others back: the identifiers of those that are not finished, by the id of the
// ticket that waits.
func openBlockers(ctx context.Context, c *remote.Client, tickets []domain.Ticket) (map[string][]string, error) {
	known := map[string]domain.Ticket{}
	for _, k := range tickets {
		known[k.ID] = k
	}
	var ids []string
	for _, k := range tickets {
		if isFinished(k) {
			continue // and waits for nothing
		}
		for _, id := range k.BlockedBy {
			if _, there := known[id]; !there {
				ids = append(ids, id)
			}
		}
	}
	others, err := ticketsByID(ctx, c, ids)
	if err != nil {
		return nil, err
	}
	maps.Copy(known, others)
	by := map[string][]string{}
	for _, k := range tickets {
		by[k.ID] = openOf(k, known)
	}
	return by, nil
}

// openOf returns the identifiers of the known tickets that keep k back. One that is not known is not for the caller to see.
func openOf(k domain.Ticket, known map[string]domain.Ticket) []string {
	var by []string
	for _, id := range k.BlockedBy {
		if b, there := known[id]; there && !isFinished(k) && !isFinished(b) {
			by = append(by, b.Identifier)
		}
	}
	return by
}

// blockersShown is how many blockers of a ticket are named where there is little room.
const blockersShown = 3

// situation says in a few words what keeps a ticket, if anything does; by are its open blockers.
func situation(k domain.Ticket, by []string, now time.Time) string {
	switch more := len(by) - blockersShown; {
	case k.Hold != nil:
		return "held: " + string(k.Hold.Reason)
	case more > 0:
		return fmt.Sprintf("blocked by %s and %d more", strings.Join(by[:blockersShown], ", "), more)
	case len(by) > 0:
		return "blocked by " + strings.Join(by, ", ")
	case k.RetryAt.After(now):
		return "retry in " + render.Age(k.RetryAt.Time, now)
	case k.NotBefore.After(now):
		return "not before " + k.NotBefore.String()
	}
	return ""
}

// ticketsValue prints tickets, of which by has the open blockers; none is what people are told where there are none.
func (a *app) ticketsValue(tickets []domain.Ticket, by map[string][]string, none string) render.Value {
	v := render.Value{Data: tickets}
	for _, k := range tickets {
		v.Names = append(v.Names, k.Identifier)
	}
	v.Table = func(w io.Writer) error {
		if len(tickets) == 0 {
			_, err := fmt.Fprintln(w, none)
			return err
		}
		now := time.Now()
		rows := make([][]string, len(tickets))
		for i, k := range tickets {
			rows[i] = []string{
				k.Identifier, cmpOr(string(k.Workflow), "-"), k.State, priority(k.Priority), cmpOr(string(k.Assignee), "-"),
				render.Age(now, k.CreatedAt.Time), cmpOr(situation(k, by[k.ID], now), "-"), k.Title,
			}
		}
		return render.Rows(w, a.width(0), []string{"TICKET", "WORKFLOW", "STATE", "PRIORITY", "ASSIGNEE", "AGE", "SITUATION", "TITLE"}, rows)
	}
	return v
}

// one prints a ticket that was made or changed.
func (a *app) one(ctx context.Context, c *remote.Client, k domain.Ticket) error {
	by, _ := openBlockers(ctx, c, []domain.Ticket{k}) // the change is made: not to know them is no failure of it
	v := a.ticketsValue([]domain.Ticket{k}, by, "")
	v.Data = k
	return a.print(v)
}

func (a *app) ticketList() *cobra.Command {
	var project string
	var states, workflows, labels, assignees []string
	var all bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List tickets",
		Long:    "List tickets that are not finished; with --all or --state also those that are.",
		Example: `  gaia ticket list --state coding,review
  gaia ticket list --label ui --all -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkStates(states, workflows); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			return a.show(cmd.Context(), c, func(ctx context.Context) (render.Value, error) {
				q := remote.Query{Filter: map[string][]string{}, Sort: []string{"created_at"}}
				if project != "" {
					p, err := c.ProjectByKey(ctx, project)
					if err != nil {
						return render.Value{}, err
					}
					q.Filter["project"] = []string{p.ID}
				}
				for field, values := range map[string][]string{"state": states, "workflow": workflows, "labels": labels, "assignee": assignees} {
					if len(values) > 0 {
						q.Filter[field] = lower(values)
					}
				}
				if !all && len(states) == 0 {
					q.Filter["state"] = openStates() // the hub sends no more than this; a state may end one workflow and not another
				}
				tickets, err := c.Tickets(ctx, q)
				if err != nil {
					return render.Value{}, err
				}
				if !all && len(states) == 0 {
					tickets = slices.DeleteFunc(tickets, isFinished)
				}
				by, err := openBlockers(ctx, c, tickets)
				if err != nil {
					return render.Value{}, err
				}
				filtered := project != "" || len(states)+len(workflows)+len(labels)+len(assignees) > 0
				return a.ticketsValue(tickets, by, noTickets(filtered, !all && len(states) == 0)), nil
			})
		},
	}
	f := cmd.Flags()
	f.StringVarP(&project, "project", "p", "", "only of the project with this key")
	f.StringSliceVarP(&states, "state", "s", nil, "only in one of these states")
	f.StringSliceVar(&workflows, "workflow", nil, "only of one of these workflows")
	f.StringSliceVarP(&labels, "label", "l", nil, "only with one of these labels")
	f.StringSliceVar(&assignees, "assignee", nil, "only assigned to one of these users")
	f.BoolVarP(&all, "all", "a", false, "also those that are finished")
	a.completeFlags(cmd, map[string]completer{
		"project": a.projectNames, "state": stateNames, "workflow": workflowNames, "label": a.labelNames, "assignee": a.userNames,
	})
	a.watchFlag(cmd)
	return cmd
}

// noTickets says that a list is empty, and where there may be more.
func noTickets(filtered, openOnly bool) string {
	switch {
	case filtered && openOnly:
		return "no open ticket matches (--all shows finished ones)"
	case filtered:
		return "no ticket matches"
	case openOnly:
		return "no open tickets (--all shows finished ones)"
	}
	return "no tickets"
}

// openStates are those in which a ticket of some workflow is not finished.
func openStates() []string {
	set := map[string]bool{}
	for _, w := range domain.Workflows() {
		for _, s := range w.States {
			if !s.Terminal {
				set[s.Name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// checkStates tells a typing mistake from a list that is empty.
func checkStates(states, workflows []string) error {
	known := func(what string, given, all []string) error {
		for _, v := range lower(given) {
			if !slices.Contains(all, v) {
				return usagef("there is no %s %q; there are: %s", what, v, strings.Join(all, ", "))
			}
		}
		return nil
	}
	if err := known("state", states, allStates()); err != nil {
		return err
	}
	return known("workflow", workflows, allWorkflows())
}

func allStates() []string {
	set := map[string]bool{}
	for _, w := range domain.Workflows() {
		for _, s := range w.States {
			set[s.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

func allWorkflows() []string {
	var ids []string
	for _, w := range domain.Workflows() {
		if w.ID != domain.Unqualified {
			ids = append(ids, w.ID)
		}
	}
	return ids
}

func lower(in []string) []string {
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = strings.ToLower(strings.TrimSpace(s))
	}
	return out
}

// ticketView is everything about a ticket, for JSON and YAML.
type ticketView struct {
	domain.Ticket
	Comments []domain.Comment `json:"comments"`
	Runs     []domain.Run     `json:"runs"`
}

func (a *app) ticketShow() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show [TICKET]",
		Short: "Show a ticket with its comments and runs",
		Example: `  gaia ticket show SHOP-7
  gaia ticket show            # inside a run: its own ticket`,
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
				return a.ticketView(ctx, c, ref)
			})
		},
	}
	a.watchFlag(cmd)
	return cmd
}

func (a *app) ticketView(ctx context.Context, c *remote.Client, ref string) (render.Value, error) {
	k, err := c.Ticket(ctx, ref)
	if err != nil {
		return render.Value{}, err
	}
	view := ticketView{Ticket: k}
	if view.Comments, err = c.Comments(ctx, k.ID); err != nil {
		return render.Value{}, err
	}
	if view.Runs, err = c.RunList(ctx, remote.Query{Filter: map[string][]string{"ticket": {k.ID}}, Sort: []string{"number"}}); err != nil {
		return render.Value{}, err
	}
	n, err := readNames(ctx, c)
	if err != nil {
		return render.Value{}, err
	}
	others, err := ticketsByID(ctx, c, append(slices.Clone(k.BlockedBy), string(k.Parent)))
	if err != nil {
		return render.Value{}, err
	}
	blockers := make([]string, len(k.BlockedBy))
	for i, id := range k.BlockedBy {
		blockers[i] = "a ticket of another project" // which a run does not see
		if b, there := others[id]; there {
			blockers[i] = b.Identifier + " (" + b.State + ")"
		}
	}
	parent, keeps := others[string(k.Parent)].Identifier, situation(k, openOf(k, others), time.Now())
	return render.Value{Data: view, Names: []string{k.Identifier}, Table: func(w io.Writer) error {
		return ticketText(w, view, n, parent, keeps, blockers)
	}}, nil
}

func ticketText(w io.Writer, v ticketView, n names, parent, situation string, blockers []string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s\n\n", render.Clean(v.Identifier), render.Clean(v.Title))
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%-12s %s\n", name+":", render.Clean(value))
		}
	}
	line("project", n.projects[v.Project].Key)
	line("workflow", cmpOr(string(v.Workflow), "none yet"))
	line("state", v.State)
	line("goes to", strings.Join(domain.Open(string(v.Workflow), v.State), ", "))
	line("situation", situation)
	if v.Hold != nil {
		line("hold", v.Hold.Note)
		line("to go on", render.Command("gaia", "ticket", "resume", v.Identifier))
	}
	if v.Priority != nil {
		line("priority", priority(v.Priority))
	}
	line("assignee", string(v.Assignee))
	line("target", n.conductors[string(v.Target)])
	line("tree at", n.conductors[string(v.TreeAt)])
	line("agent", string(v.Agent))
	line("branch", string(v.Branch))
	line("parent", parent)
	line("blocked by", strings.Join(blockers, ", "))
	line("labels", strings.Join(v.Labels, ", "))
	line("origin", string(v.Origin))
	for _, l := range v.Links {
		line("link", strings.TrimSpace(l.URI+" "+l.Title))
	}
	if v.Attempts > 0 {
		line("attempts", strconv.Itoa(v.Attempts))
	}
	line("created", v.CreatedAt.String())
	line("updated", v.UpdatedAt.String())
	if v.Description != "" {
		fmt.Fprintf(&b, "\n%s\n", indented(v.Description))
	}
	for _, r := range v.Runs {
		fmt.Fprintf(&b, "\nrun %-4d  %-13s  %-8s  %s", r.Number, r.StateAtStart, r.State, cmpOr(string(r.Agent), "-"))
		if r.EndReason != "" {
			fmt.Fprintf(&b, "  %s: %s", r.EndReason, render.Clean(r.EndNote))
		}
	}
	if len(v.Runs) > 0 {
		b.WriteByte('\n')
	}
	for _, m := range v.Comments {
		fmt.Fprintf(&b, "\n--- %s, %s: %s\n%s\n", render.Clean(m.Author), m.CreatedAt, render.Clean(m.Type), indented(m.Body))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// indented is a text as it is shown below a line of Gaia's own, which nothing in it can look like: agents go by who wrote
// a comment.
func indented(text string) string {
	var b strings.Builder
	for l := range strings.Lines(render.CleanText(text)) {
		if strings.TrimSpace(l) != "" {
			b.WriteString("  ")
		}
		b.WriteString(l)
	}
	return b.String()
}

// patchTicket changes one ticket and prints it.
func (a *app) patchTicket(ctx context.Context, c *remote.Client, ref string, p domain.TicketPatch) error {
	k, err := c.PatchTicket(ctx, ref, p)
	if err != nil {
		return err
	}
	return a.one(ctx, c, k)
}
