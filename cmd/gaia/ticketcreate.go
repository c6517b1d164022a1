package main

import (
	"context"
	"math"
	"strconv"

	"github.com/spf13/cobra"

	"gaia/domain"
	"gaia/remote"
)

// textFlag adds -F to a command with a long text.
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
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return nil, usagef("priority %q is neither a number nor none", s)
	}
	return &v, nil
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
			d.Assignee = domain.Ref(assignee)
			d.Workflow, d.Agent, d.Origin = domain.Ref(workflow), domain.Ref(agent), domain.Ref(origin)
			c, err := a.client()
			if err != nil {
				return err
			}
			if a.inRun() && parent == "" {
				parent = a.getenv("GAIA_TICKET")
			}
			if parent != "" {
				k, err := c.Ticket(ctx, parent)
				if err != nil {
					return err
				}
				d.Parent, d.Project = domain.Ref(k.ID), k.Project
			}
			if d.Project == "" || project != "" {
				p, err := a.project(ctx, c, project)
				if err != nil {
					return err
				}
				d.Project = p.ID
			}
			if target != "" {
				con, err := conductorByName(ctx, c, target)
				if err != nil {
					return err
				}
				d.Target = domain.Ref(con.ID)
			}
			if d.BlockedBy, err = ticketIDs(ctx, c, d.BlockedBy); err != nil {
				return err
			}
			k, err := c.CreateTicket(ctx, d)
			if err != nil {
				return err
			}
			return a.one(ctx, c, k)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&project, "project", "p", "", "key of the project (default: that of the parent, of the checkout, or the only one)")
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
	a.completeFlags(cmd, map[string]completer{
		"project": a.projectNames, "workflow": workflowNames, "label": a.labelNames, "parent": a.ticketNames,
		"blocked-by": a.ticketNames, "assignee": a.userNames, "target": a.conductorNames, "agent": a.agentNames,
	})
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
