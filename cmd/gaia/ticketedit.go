package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gaia/domain"
	"gaia/remote"
)

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
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeFirst(a.ticketNames),
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
			if !changed(cmd) {
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
			return a.one(ctx, c, k)
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
	a.completeFlags(cmd, map[string]completer{"agent": a.agentNames, "parent": a.ticketNames, "project": a.projectNames})
	return cmd
}

// changed reports whether a flag of the command's own was given, rather than one that all commands have.
func changed(cmd *cobra.Command) bool {
	given := false
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { given = given || f.Changed })
	return given
}

// editor lets a person edit a ticket's description.
func (a *app) editor(ctx context.Context, c *remote.Client, ref string) (string, error) {
	if !a.interactive() {
		return "", usagef("nothing to change: give at least one flag (see gaia ticket edit --help)")
	}
	words := []string{"vi"}
	for _, name := range []string{"EDITOR", "VISUAL"} {
		if w := strings.Fields(a.getenv(name)); len(w) > 0 {
			words = w
		}
	}
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
	a.waiting.stop()
	cmd := exec.CommandContext(ctx, words[0], append(words[1:], f.Name())...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w; nothing was changed", words[0], err)
	}
	text, err := a.text("", f.Name())
	if err == nil && text == strings.TrimRight(k.Description, "\n") {
		return "", errors.New("the description is as it was; nothing was changed")
	}
	return text, err
}
