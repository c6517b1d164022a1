package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gaia/domain"
	"gaia/internal/render"
	"gaia/remote"
	"gaia/workspace"
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

func priority(p *float64) string {
	if p == nil {
		return "-"
	}
	return strconv.FormatFloat(*p, 'g', -1, 64)
}

// situation says in a word or two what keeps a ticket, if anything does.
func situation(k domain.Ticket, now time.Time) string {
	switch {
	case k.Hold != nil:
		return "held: " + string(k.Hold.Reason)
	case k.RetryAt.After(now):
		return "retry in " + render.Age(k.RetryAt.Time, now)
	case k.NotBefore.After(now):
		return "not before " + k.NotBefore.String()
	}
	return ""
}

func (a *app) ticketsValue(tickets []domain.Ticket) render.Value {
	v := render.Value{Data: tickets}
	for _, k := range tickets {
		v.Names = append(v.Names, k.Identifier)
	}
	v.Table = func(w io.Writer) error {
		if len(tickets) == 0 {
			_, err := fmt.Fprintln(w, "no tickets")
			return err
		}
		now := time.Now()
		rows := make([][]string, len(tickets))
		for i, k := range tickets {
			rows[i] = []string{
				k.Identifier, cmpOr(string(k.Workflow), "-"), k.State, priority(k.Priority), cmpOr(string(k.Assignee), "-"),
				render.Age(now, k.CreatedAt.Time), cmpOr(situation(k, now), "-"), k.Title,
			}
		}
		return render.Rows(w, a.width(0), []string{"TICKET", "WORKFLOW", "STATE", "PRIORITY", "ASSIGNEE", "AGE", "SITUATION", "TITLE"}, rows)
	}
	return v
}

// one prints a ticket that was made or changed.
func (a *app) one(k domain.Ticket) error {
	v := a.ticketsValue([]domain.Ticket{k})
	v.Data = k
	return a.print(v)
}

// textFlags adds -F to a command with a long text.
func textFlag(cmd *cobra.Command, file *string, what string) {
	cmd.Flags().StringVarP(file, "file", "F", "", "read the "+what+" from this file, - for standard input")
}

func parseLinks(given []string) []domain.Link {
	var links []domain.Link
	for _, l := range given {
		links = append(links, domain.Link{URI: l, Kind: "reference"})
	}
	return links
}

func parsePriority(s string) (*float64, error) {
	if s == "" || s == "none" {
		return nil, nil
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return nil, usagef("priority %q is neither a number nor none", s)
	}
	return &v, nil
}

func workflowCompletion(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var ids []string
	for _, w := range domain.Workflows() {
		ids = append(ids, w.ID)
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) ticketCreate() *cobra.Command {
	var d domain.TicketDraft
	var project, prio, file, assignee, target, parent, workflow, agent, origin, notBefore string
	var links []string
	cmd := &cobra.Command{
		Use:   "create TITLE",
		Short: "Create a ticket",
		Long: `Create a ticket. Without --workflow it starts in qualification, where an agent finds out what it is.

Inside a run the ticket becomes a sub-ticket of the run's own.`,
		Example: `  gaia ticket create "Add a dark mode" -F idea.md --label ui --priority 2
  gaia ticket create "Rotate the keys" --workflow gaia_task
  git log -1 --format=%B | gaia ticket create "Port this to v1" -F -`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			var err error
			d.Title = args[0]
			if d.Description, err = a.text(d.Description, file); err != nil {
				return err
			}
			if d.Priority, err = parsePriority(prio); err != nil {
				return err
			}
			if d.NotBefore, err = domain.ParseTime(notBefore); err != nil {
				return usagef("--not-before: %w", err)
			}
			d.Links = parseLinks(links)
			d.Assignee, d.Target, d.Parent = domain.Ref(assignee), domain.Ref(target), domain.Ref(parent)
			d.Workflow, d.Agent, d.Origin = domain.Ref(workflow), domain.Ref(agent), domain.Ref(origin)
			c, err := a.client()
			if err != nil {
				return err
			}
			switch {
			case a.inRun():
				if d.Parent == "" {
					d.Parent = domain.Ref(a.getenv("GAIA_TICKET"))
				}
				own, err := c.Ticket(ctx, string(d.Parent))
				if err != nil {
					return err
				}
				d.Parent, d.Project = domain.Ref(own.ID), own.Project
			default:
				p, err := a.project(ctx, c, project)
				if err != nil {
					return err
				}
				d.Project = p.ID
				if d.Target != "" {
					con, err := conductorByName(ctx, c, target)
					if err != nil {
						return err
					}
					d.Target = domain.Ref(con.ID)
				}
				if d.Parent != "" {
					k, err := c.Ticket(ctx, parent)
					if err != nil {
						return err
					}
					d.Parent = domain.Ref(k.ID)
				}
			}
			if d.BlockedBy, err = ticketIDs(ctx, c, d.BlockedBy); err != nil {
				return err
			}
			k, err := c.CreateTicket(ctx, d)
			if err != nil {
				return err
			}
			return a.one(k)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&project, "project", "p", "", "key of the project (default: the checkout's, or the only one)")
	f.StringVarP(&d.Description, "description", "d", "", "description in Markdown, - for standard input")
	textFlag(cmd, &file, "description")
	f.StringVar(&workflow, "workflow", "", "workflow (default: to be qualified)")
	f.StringVar(&d.State, "state", "", "first state (default: the workflow's; owners only)")
	f.StringVar(&d.Identifier, "identifier", "", "identifier (default: the project's key and the next number; owners only)")
	f.StringVar(&prio, "priority", "", "a number; lower is claimed earlier, none is claimed last")
	f.StringSliceVarP(&d.Labels, "label", "l", nil, "label; may be repeated")
	f.StringVar(&parent, "parent", "", "identifier of the ticket that this one is part of")
	f.StringSliceVar(&d.BlockedBy, "blocked-by", nil, "identifier of a ticket to wait for; may be repeated")
	f.StringVar(&assignee, "assignee", "", "user whose conductors alone may claim it")
	f.StringVar(&target, "target", "", "the one conductor that may claim it: its instance or machine_id")
	f.StringVar(&agent, "agent", "", "agent that works on it")
	f.StringVar(&origin, "origin", "", "URL that it comes from; one ticket of the project at most has it")
	f.StringSliceVar(&links, "link", nil, "URL to keep with it; may be repeated")
	f.StringVar(&notBefore, "not-before", "", "time before which it is not claimed, RFC 3339")
	_ = cmd.RegisterFlagCompletionFunc("workflow", workflowCompletion)
	return cmd
}

// ticketIDs turns identifiers into ids.
func ticketIDs(ctx context.Context, c *remote.Client, identifiers []string) ([]string, error) {
	ids := make([]string, 0, len(identifiers))
	for _, i := range identifiers {
		k, err := c.Ticket(ctx, i)
		if err != nil {
			return nil, err
		}
		ids = append(ids, k.ID)
	}
	return ids, nil
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
				tickets, err := c.Tickets(ctx, q)
				if err != nil {
					return render.Value{}, err
				}
				if !all && len(states) == 0 {
					tickets = slices.DeleteFunc(tickets, func(k domain.Ticket) bool {
						return domain.Terminal(string(k.Workflow), k.State)
					})
				}
				return a.ticketsValue(tickets), nil
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
	a.watchFlag(cmd)
	return cmd
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
		Args: cobra.MaximumNArgs(1),
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
	blockers := make([]string, len(k.BlockedBy))
	for i, id := range k.BlockedBy {
		b, err := c.Ticket(ctx, id)
		if err != nil {
			return render.Value{}, err
		}
		blockers[i] = b.Identifier + " (" + b.State + ")"
	}
	parent := ""
	if k.Parent != "" {
		p, err := c.Ticket(ctx, string(k.Parent))
		if err != nil {
			return render.Value{}, err
		}
		parent = p.Identifier
	}
	return render.Value{Data: view, Names: []string{k.Identifier}, Table: func(w io.Writer) error {
		return ticketText(w, view, n, parent, blockers)
	}}, nil
}

func ticketText(w io.Writer, v ticketView, n names, parent string, blockers []string) error {
	var b strings.Builder
	now := time.Now()
	fmt.Fprintf(&b, "%s  %s\n\n", render.Clean(v.Identifier), render.Clean(v.Title))
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%-12s %s\n", name+":", render.Clean(value))
		}
	}
	line("project", n.projects[v.Project].Key)
	line("workflow", cmpOr(string(v.Workflow), "none yet"))
	line("state", v.State)
	line("open", strings.Join(domain.Open(string(v.Workflow), v.State), ", "))
	line("situation", situation(v.Ticket, now))
	if v.Hold != nil {
		line("hold", v.Hold.Note)
	}
	line("priority", priority(v.Priority))
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
		fmt.Fprintf(&b, "\n%s\n", render.CleanText(v.Description))
	}
	for _, r := range v.Runs {
		fmt.Fprintf(&b, "\nrun %d  %s  %s  %s", r.Number, r.StateAtStart, r.State, cmpOr(string(r.Agent), "-"))
		if r.EndReason != "" {
			fmt.Fprintf(&b, "  %s: %s", r.EndReason, render.Clean(r.EndNote))
		}
	}
	if len(v.Runs) > 0 {
		b.WriteByte('\n')
	}
	for _, m := range v.Comments {
		fmt.Fprintf(&b, "\n--- %s by %s, %s\n%s\n", render.Clean(m.Type), render.Clean(m.Author), m.CreatedAt, render.CleanText(m.Body))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// patchTicket changes one ticket and prints it.
func (a *app) patchTicket(ctx context.Context, ref string, p domain.TicketPatch) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	k, err := c.PatchTicket(ctx, ref, p)
	if err != nil {
		return err
	}
	return a.one(k)
}

func (a *app) ticketEdit() *cobra.Command {
	var title, description, file, prio, agent, parent, project, notBefore string
	var links []string
	cmd := &cobra.Command{
		Use:   "edit [TICKET]",
		Short: "Change a ticket's text and other fields",
		Long:  "Change a ticket's text and other fields. Without a flag the description is opened in $EDITOR.",
		Example: `  gaia ticket edit SHOP-7 --title "Add a dark mode switch" --priority 1
  gaia ticket edit SHOP-7 -F description.md
  gaia ticket edit SHOP-7 --priority none --not-before ""`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, _, err := a.ticketArg(args, 0)
			if err != nil {
				return err
			}
			ctx, f := cmd.Context(), cmd.Flags()
			var p domain.TicketPatch
			if f.Changed("title") {
				p.Title = &title
			}
			if f.Changed("description") || file != "" {
				text, err := a.text(description, file)
				if err != nil {
					return err
				}
				p.Description = &text
			}
			if f.Changed("priority") {
				v, err := parsePriority(prio)
				if err != nil {
					return err
				}
				p.Priority = &v
			}
			if f.Changed("agent") {
				r := domain.Ref(agent)
				p.Agent = &r
			}
			if f.Changed("not-before") {
				t, err := domain.ParseTime(notBefore)
				if err != nil {
					return usagef("--not-before: %w", err)
				}
				p.NotBefore = &t
			}
			p.AddLinks = parseLinks(links)
			c, err := a.client()
			if err != nil {
				return err
			}
			if f.Changed("parent") {
				var r domain.Ref
				if parent != "" {
					k, err := c.Ticket(ctx, parent)
					if err != nil {
						return err
					}
					r = domain.Ref(k.ID)
				}
				p.Parent = &r
			}
			if f.Changed("project") {
				pr, err := c.ProjectByKey(ctx, project)
				if err != nil {
					return err
				}
				p.Project = &pr.ID
			}
			if f.NFlag() == 0 {
				text, err := a.editor(ctx, c, ref)
				if err != nil {
					return err
				}
				p.Description = &text
			}
			k, err := c.PatchTicket(ctx, ref, p)
			if err != nil {
				return err
			}
			return a.one(k)
		},
	}
	f := cmd.Flags()
	f.StringVar(&title, "title", "", "title")
	f.StringVarP(&description, "description", "d", "", "description in Markdown, - for standard input")
	textFlag(cmd, &file, "description")
	f.StringVar(&prio, "priority", "", "a number, or none")
	f.StringVar(&agent, "agent", "", `agent that works on it, "" for the default`)
	f.StringVar(&parent, "parent", "", `identifier of the ticket that this one is part of, "" for none`)
	f.StringVar(&project, "project", "", "key of the project to move it to; the identifier stays")
	f.StringVar(&notBefore, "not-before", "", `time before which it is not claimed, RFC 3339; "" for none`)
	f.StringSliceVar(&links, "link", nil, "URL to add; may be repeated")
	return cmd
}

// editor lets a person edit a ticket's description.
func (a *app) editor(ctx context.Context, c *remote.Client, ref string) (string, error) {
	if !a.interactive() {
		return "", usagef("nothing to change: give at least one flag (see gaia ticket edit --help)")
	}
	words := strings.Fields(cmpOr(a.getenv("VISUAL"), cmpOr(a.getenv("EDITOR"), "vi")))
	k, err := c.Ticket(ctx, ref)
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp("", "gaia-*.md")
	if err != nil {
		return "", fmt.Errorf("make a file to edit: %w", err)
	}
	defer os.Remove(f.Name())
	if _, err := f.WriteString(k.Description); err != nil {
		return "", fmt.Errorf("write the description to edit: %w", err)
	}
	if err := f.Close(); err != nil {
		return "", fmt.Errorf("write the description to edit: %w", err)
	}
	cmd := exec.CommandContext(ctx, words[0], append(words[1:], f.Name())...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w; nothing was changed", words[0], err)
	}
	text, err := os.ReadFile(f.Name())
	return strings.TrimRight(string(text), "\n"), err
}

func (a *app) ticketMove() *cobra.Command {
	var workflow string
	var anyway bool
	cmd := &cobra.Command{
		Use:   "move [TICKET] STATE",
		Short: "Move a ticket to its next state",
		Long: `Move a ticket to its next state. This ends the ticket's live run: it is how an agent says that it is done, and
its last command.

Inside a run it refuses while the worktree has changes that are not committed or, where the checkout asks for
it, a branch that is not pushed. If the hub does not answer it waits up to 10 minutes.`,
		Example: `  gaia ticket move SHOP-7 todo
  gaia ticket move --workflow gaia_bug diagnose     # inside a run, at the end of its qualification
  gaia ticket move review`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, rest, err := a.ticketArg(args, 1)
			if err != nil {
				return err
			}
			p := domain.TicketPatch{State: &rest[0]}
			if cmd.Flags().Changed("workflow") {
				p.Workflow = &workflow
			}
			if a.inRun() && ref == a.getenv("GAIA_TICKET") {
				head, err := a.checkTree(cmd.Context(), anyway)
				if err != nil {
					return err
				}
				p.Head = &head
			}
			return a.patchTicket(cmd.Context(), ref, p)
		},
	}
	cmd.Flags().StringVar(&workflow, "workflow", "", "set the workflow as well; possible while the ticket is qualified")
	cmd.Flags().BoolVar(&anyway, "anyway", false, "move even if work in the tree is not committed or not pushed")
	_ = cmd.RegisterFlagCompletionFunc("workflow", workflowCompletion)
	return cmd
}

// checkTree returns the commit that the run's worktree stands at, or says what is still to be done there.
func (a *app) checkTree(ctx context.Context, anyway bool) (string, error) {
	tree := a.getenv("GAIA_WORKTREE")
	if tree == "" {
		return "", nil
	}
	head, err := workspace.Head(ctx, tree)
	if err != nil || anyway {
		return head, err
	}
	dirty, err := workspace.Dirty(ctx, tree)
	if err != nil {
		return "", err
	}
	if dirty {
		return "", fmt.Errorf("the worktree has changes that are not committed: commit them first (git status shows them), or move with --anyway")
	}
	if a.getenv("GAIA_PUSH") != "agent" {
		return head, nil
	}
	unpushed, err := workspace.Unpushed(ctx, tree)
	if err == nil && unpushed {
		err = fmt.Errorf("the branch is not pushed: git push -u origin HEAD, or move with --anyway")
	}
	return head, err
}

func (a *app) ticketAssign() *cobra.Command {
	return a.refCommand("assign", "USER", "Assign a ticket to a user, whose conductors alone may then claim it", "gaia ticket assign SHOP-7 ada",
		func(_ context.Context, _ *remote.Client, value domain.Ref) (domain.TicketPatch, error) {
			return domain.TicketPatch{Assignee: &value}, nil
		})
}

func (a *app) ticketTarget() *cobra.Command {
	return a.refCommand("target", "CONDUCTOR", "Choose the one conductor that may claim a ticket", "gaia ticket target SHOP-7 shop",
		func(ctx context.Context, c *remote.Client, value domain.Ref) (domain.TicketPatch, error) {
			if value != "" {
				con, err := conductorByName(ctx, c, string(value))
				if err != nil {
					return domain.TicketPatch{}, err
				}
				value = domain.Ref(con.ID)
			}
			return domain.TicketPatch{Target: &value}, nil
		})
}

// refCommand is a command that sets one reference of a ticket, or clears it with --none.
func (a *app) refCommand(verb, what, short, example string,
	patch func(context.Context, *remote.Client, domain.Ref) (domain.TicketPatch, error)) *cobra.Command {
	var none bool
	cmd := &cobra.Command{
		Use:     verb + " TICKET {" + what + " | --none}",
		Short:   short,
		Long:    short + ".\n\nA live run is not ended by it.",
		Example: "  " + example + "\n  gaia ticket " + verb + " SHOP-7 --none",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if none == (len(args) == 2) {
				return usagef("give either %s or --none", what)
			}
			var value domain.Ref
			if !none {
				value = domain.Ref(args[1])
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			p, err := patch(cmd.Context(), c, value)
			if err != nil {
				return err
			}
			return a.patchTicket(cmd.Context(), args[0], p)
		},
	}
	cmd.Flags().BoolVar(&none, "none", false, "clear it")
	return cmd
}

func (a *app) ticketTree() *cobra.Command {
	var clear bool
	cmd := &cobra.Command{
		Use:   "tree TICKET",
		Short: "Show where a ticket's unpushed work lies, or forget it",
		Long: `Show which conductor holds work of the ticket that lies nowhere else. While there is one, no other conductor may
claim the ticket. --clear forgets it, so that any conductor may start afresh; the tree itself is left alone.`,
		Example: `  gaia ticket tree SHOP-7
  gaia ticket tree SHOP-7 --clear`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			c, err := a.client()
			if err != nil {
				return err
			}
			if clear {
				k, err := c.ClearTree(ctx, args[0])
				if err != nil {
					return err
				}
				return a.one(k)
			}
			k, err := c.Ticket(ctx, args[0])
			if err != nil {
				return err
			}
			n, err := readNames(ctx, c)
			if err != nil {
				return err
			}
			at := struct {
				Identifier string     `json:"identifier"`
				TreeAt     domain.Ref `json:"tree_at"`
				MachineID  domain.Ref `json:"machine_id"`
				Branch     domain.Ref `json:"branch"`
			}{k.Identifier, k.TreeAt, domain.Ref(n.conductors[string(k.TreeAt)]), k.Branch}
			return a.print(render.Value{Data: at, Names: []string{string(at.MachineID)}, Table: func(w io.Writer) error {
				return render.Rows(w, a.width(0), []string{"TICKET", "TREE AT", "BRANCH"}, [][]string{
					{k.Identifier, cmpOr(string(at.MachineID), "-"), cmpOr(string(k.Branch), "-")}})
			}})
		},
	}
	cmd.Flags().BoolVar(&clear, "clear", false, "forget where the work lies")
	return cmd
}

func (a *app) ticketBlock() *cobra.Command {
	var by, remove []string
	cmd := &cobra.Command{
		Use:   "block [TICKET] --by OTHER",
		Short: "Let a ticket wait for others, or no longer",
		Example: `  gaia ticket block SHOP-7 --by SHOP-3,SHOP-4
  gaia ticket block SHOP-7 --remove SHOP-3`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, _, err := a.ticketArg(args, 0)
			if err != nil {
				return err
			}
			if len(by)+len(remove) == 0 {
				return usagef("give --by or --remove")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			k, err := c.Ticket(ctx, ref)
			if err != nil {
				return err
			}
			add, err := ticketIDs(ctx, c, by)
			if err != nil {
				return err
			}
			drop, err := ticketIDs(ctx, c, remove)
			if err != nil {
				return err
			}
			ids := slices.DeleteFunc(append(slices.Clone(k.BlockedBy), add...), func(id string) bool { return slices.Contains(drop, id) })
			return a.patchTicket(ctx, k.ID, domain.TicketPatch{BlockedBy: &ids})
		},
	}
	cmd.Flags().StringSliceVar(&by, "by", nil, "ticket to wait for; may be repeated")
	cmd.Flags().StringSliceVar(&remove, "remove", nil, "ticket to wait for no longer; may be repeated")
	return cmd
}

func (a *app) ticketLabel() *cobra.Command {
	var remove []string
	cmd := &cobra.Command{
		Use:   "label TICKET [LABEL ...]",
		Short: "Add labels to a ticket, or take them off",
		Example: `  gaia ticket label SHOP-7 ui needs-design
  gaia ticket label SHOP-7 --remove needs-design`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && len(remove) == 0 {
				return usagef("give a label to add, or --remove")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			k, err := c.Ticket(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			drop := lower(remove)
			labels := slices.DeleteFunc(append(slices.Clone(k.Labels), lower(args[1:])...), func(l string) bool { return slices.Contains(drop, l) })
			return a.patchTicket(cmd.Context(), k.ID, domain.TicketPatch{Labels: &labels})
		},
	}
	cmd.Flags().StringSliceVar(&remove, "remove", nil, "label to take off; may be repeated")
	return cmd
}

func (a *app) ticketComment() *cobra.Command {
	var typ, file string
	cmd := &cobra.Command{
		Use:   "comment [TICKET] {TEXT | -F FILE}",
		Short: "Add a comment to a ticket",
		Long: `Add a comment to a ticket. The type tells readers what it is; these are usual: comment, qualification, spec, plan,
debug_diagnose, summary, acceptance, scenario, test.`,
		Example: `  gaia ticket comment SHOP-7 "Please keep the old colours as the default"
  gaia ticket comment --type spec -F spec.md        # inside a run`,
		Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			want := 1
			if file != "" {
				want = 0
			}
			ref, rest, err := a.ticketArg(args, want)
			if err != nil {
				return err
			}
			if len(rest) != want {
				return usagef("give the text either as an argument or with -F\nUsage: %s", cmd.UseLine())
			}
			body := ""
			if want == 1 {
				body = rest[0]
			}
			if body, err = a.text(body, file); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			k, err := c.Ticket(cmd.Context(), ref)
			if err != nil {
				return err
			}
			m, err := c.AddComment(cmd.Context(), domain.Comment{Ticket: k.ID, Type: typ, Body: body})
			if err != nil {
				return err
			}
			return a.print(render.Value{Data: m, Names: []string{m.ID}, Table: func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s: %s added\n", render.Clean(k.Identifier), render.Clean(m.Type))
				return err
			}})
		},
	}
	cmd.Flags().StringVarP(&typ, "type", "t", domain.DefaultCommentType, "what it is")
	textFlag(cmd, &file, "text")
	return cmd
}

func (a *app) ticketHold() *cobra.Command {
	var note string
	cmd := &cobra.Command{
		Use:     "hold TICKET",
		Short:   "Keep a ticket from being claimed until it is resumed",
		Long:    "Keep a ticket from being claimed until it is resumed. A live run goes on.",
		Example: `  gaia ticket hold SHOP-7 --note "waiting for the new logo"`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			k, err := c.Hold(cmd.Context(), args[0], note)
			if err != nil {
				return err
			}
			return a.one(k)
		},
	}
	cmd.Flags().StringVar(&note, "note", "", "why")
	return cmd
}

func (a *app) ticketResume() *cobra.Command {
	return &cobra.Command{
		Use:     "resume TICKET",
		Short:   "Lift a ticket's hold and forget its failures",
		Example: "  gaia ticket resume SHOP-7",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			k, err := c.Resume(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.one(k)
		},
	}
}

func (a *app) ticketRepair() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "repair TICKET STATE --reason TEXT",
		Short: "Set a ticket's state past its workflow's transitions",
		Long: `Set a ticket's state past its workflow's transitions, to mend what went wrong. The reason is kept as a comment, and
a live run ends. For all else there is gaia ticket move.`,
		Example: `  gaia ticket repair SHOP-7 coding --reason "was closed by mistake"`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(reason) == "" {
				return usagef("give --reason: it is kept with the ticket")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			k, err := c.Repair(cmd.Context(), args[0], args[1], reason)
			if err != nil {
				return err
			}
			return a.one(k)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why; kept with the ticket")
	return cmd
}
