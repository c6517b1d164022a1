package main

import (
	"context"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"gaia/domain"
	"gaia/internal/render"
	"gaia/remote"
)

func (a *app) ticketAssign() *cobra.Command {
	return a.refCommand("assign", "USER", "Assign a ticket to a user, whose conductors alone may then claim it", "gaia ticket assign SHOP-7 ada", a.userNames,
		func(_ context.Context, _ *remote.Client, value domain.Ref) (domain.TicketPatch, error) {
			return domain.TicketPatch{Assignee: &value}, nil
		})
}

func (a *app) ticketTarget() *cobra.Command {
	return a.refCommand("target", "CONDUCTOR", "Choose the one conductor that may claim a ticket", "gaia ticket target SHOP-7 shop", a.conductorNames,
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
func (a *app) refCommand(verb, what, short, example string, names completer,
	patch func(context.Context, *remote.Client, domain.Ref) (domain.TicketPatch, error)) *cobra.Command {
	var none bool
	cmd := &cobra.Command{
		Use:     verb + " [TICKET] {" + what + " | --none}",
		Short:   short,
		Long:    short + ".\n\nA live run is not ended by it.",
		Example: "  " + example + "\n  gaia ticket " + verb + " SHOP-7 --none",
		Args:    cobra.MaximumNArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 && !none {
				return a.completeFirst(names)(cmd, nil, word)
			}
			return a.completeFirst(a.ticketNames)(cmd, args, word)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			want := 1
			if none {
				want = 0
			}
			ref, rest, err := a.ticketArg(args, want)
			if err != nil {
				return err
			}
			if len(rest) != want {
				return usagef("give either %s or --none\nUsage: %s", what, cmd.UseLine())
			}
			var value domain.Ref
			if !none {
				value = domain.Ref(rest[0])
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			p, err := patch(cmd.Context(), c, value)
			if err != nil {
				return err
			}
			return a.patchTicket(cmd.Context(), c, ref, p)
		},
	}
	cmd.Flags().BoolVar(&none, "none", false, "clear it")
	return cmd
}

func (a *app) ticketTree() *cobra.Command {
	var clear bool
	cmd := &cobra.Command{
		Use:   "tree [TICKET]",
		Short: "Show where a ticket's unpushed work lies, or forget it",
		Long: `Show which conductor holds work of the ticket that lies nowhere else. While there is one, no other conductor may
claim the ticket. --clear forgets it, so that any conductor may start afresh; the tree itself is left alone.`,
		Example: `  gaia ticket tree SHOP-7
  gaia ticket tree SHOP-7 --clear`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeFirst(a.ticketNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			ref, _, err := a.ticketArg(args, 0)
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			if clear {
				k, err := c.ClearTree(ctx, ref)
				if err != nil {
					return err
				}
				return a.one(ctx, c, k)
			}
			k, err := c.Ticket(ctx, ref)
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
			return a.print(render.Value{Data: at, Names: []string{k.Identifier}, Table: func(w io.Writer) error {
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
		Use:   "block [TICKET] {--by OTHER | --remove OTHER}",
		Short: "Let a ticket wait for others, or no longer",
		Example: `  gaia ticket block SHOP-7 --by SHOP-3,SHOP-4
  gaia ticket block SHOP-7 --remove SHOP-3`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeFirst(a.ticketNames),
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
			return a.patchTicket(ctx, c, k.ID, domain.TicketPatch{BlockedBy: &ids})
		},
	}
	cmd.Flags().StringSliceVar(&by, "by", nil, "ticket to wait for; may be repeated")
	cmd.Flags().StringSliceVar(&remove, "remove", nil, "ticket to wait for no longer; may be repeated")
	a.completeFlags(cmd, map[string]completer{"by": a.ticketNames, "remove": a.ticketNames})
	return cmd
}

func (a *app) ticketLabel() *cobra.Command {
	var add, remove []string
	cmd := &cobra.Command{
		Use:   "label [TICKET [LABEL ...]]",
		Short: "Add labels to a ticket, or take them off",
		Long: `Add labels to a ticket, or take them off. A first word is always the ticket; inside a run give labels with --add to
mean its own.`,
		Example: `  gaia ticket label SHOP-7 ui needs-design
  gaia ticket label SHOP-7 --remove needs-design
  gaia ticket label --add needs-design        # inside a run`,
		Args: cobra.ArbitraryArgs,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return a.completeFirst(a.labelNames)(cmd, nil, word)
			}
			return a.completeFirst(a.ticketNames)(cmd, args, word)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, labels, err := a.ticketArg(args, 0)
			if err != nil {
				return err
			}
			if labels = append(labels, add...); len(labels)+len(remove) == 0 {
				return usagef("give a label to add, with --add where no ticket is named, or --remove")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			k, err := c.Ticket(cmd.Context(), ref)
			if err != nil {
				return err
			}
			drop := lower(remove)
			labels = slices.DeleteFunc(append(slices.Clone(k.Labels), lower(labels)...), func(l string) bool { return slices.Contains(drop, l) })
			return a.patchTicket(cmd.Context(), c, k.ID, domain.TicketPatch{Labels: &labels})
		},
	}
	cmd.Flags().StringSliceVar(&add, "add", nil, "label to add; may be repeated")
	cmd.Flags().StringSliceVar(&remove, "remove", nil, "label to take off; may be repeated")
	a.completeFlags(cmd, map[string]completer{"add": a.labelNames, "remove": a.labelNames})
	return cmd
}
