package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gaia/domain"
	"gaia/remote"
	"gaia/workspace"
)

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
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completeMove,
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, rest, err := a.ticketArg(args, 1)
			if err != nil {
				return err
			}
			p := domain.TicketPatch{State: &rest[0]}
			if cmd.Flags().Changed("workflow") {
				p.Workflow = &workflow
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			own, err := a.ownTicket(cmd.Context(), c, ref)
			if err != nil {
				return err
			}
			if own {
				head, err := a.checkTree(cmd.Context(), anyway)
				if err != nil {
					return err
				}
				if head != "" {
					p.Head = &head
				}
				if err := a.syncTree(cmd.Context()); err != nil && !anyway {
					return err
				}
			}
			err = a.patchTicket(cmd.Context(), c, ref, p)
			var refused *domain.TransitionError
			if errors.As(err, &refused) && refused.Workflow == domain.Unqualified && workflow == "" {
				return fmt.Errorf("%w\nTo qualify it, give its workflow, too: gaia ticket move --workflow {%s}", err, strings.Join(allWorkflows(), "|"))
			}
			return err
		},
	}
	cmd.Flags().StringVar(&workflow, "workflow", "", "set the workflow as well; possible while the ticket is qualified")
	cmd.Flags().BoolVar(&anyway, "anyway", false, "move even if work in the tree is not committed or not pushed")
	a.completeFlags(cmd, map[string]completer{"workflow": workflowNames})
	return cmd
}

// ownTicket reports whether ref, an identifier or an id, is the ticket of the run that calls.
func (a *app) ownTicket(ctx context.Context, c *remote.Client, ref string) (bool, error) {
	own := a.getenv("GAIA_TICKET")
	if !a.inRun() || ref == own {
		return a.inRun(), nil
	}
	k, err := c.Ticket(ctx, ref)
	return k.Identifier == own, err
}

// checkTree returns the commit that the run's worktree stands at, or says what is still to be done there.
func (a *app) checkTree(ctx context.Context, anyway bool) (string, error) {
	tree := a.getenv("GAIA_WORKTREE")
	if tree == "" {
		return "", nil
	}
	head, err := workspace.Head(ctx, tree)
	if anyway {
		return head, nil // without it where the tree is not to be read
	}
	if err != nil {
		return "", fmt.Errorf("%w\nTo move without looking at the tree: --anyway", err)
	}
	dirty, err := workspace.Dirty(ctx, tree)
	if err != nil {
		return "", err
	}
	if dirty {
		return "", errors.New("the worktree has changes that are not committed: commit them first (git status shows them), or move with --anyway")
	}
	if a.getenv("GAIA_PUSH") != "agent" {
		return head, nil
	}
	unpushed, err := workspace.Unpushed(ctx, tree)
	if err != nil {
		return "", err
	}
	if unpushed {
		return "", errors.New("the branch is not pushed: git push -u origin HEAD, or move with --anyway")
	}
	return head, nil
}

// syncTree has the disk keep what the run leaves in its worktree, before the hub is told that it is done: whoever goes on after a
// power cut would else find a ticket in its next state, and files that are empty.
func (a *app) syncTree(ctx context.Context) error {
	tree := a.getenv("GAIA_WORKTREE")
	if tree == "" {
		return nil
	}
	return workspace.Sync(ctx, 10*time.Second, tree)
}

func (a *app) ticketHold() *cobra.Command {
	var note string
	cmd := &cobra.Command{
		Use:               "hold [TICKET]",
		Short:             "Keep a ticket from being claimed until it is resumed",
		Long:              "Keep a ticket from being claimed until it is resumed. A live run goes on.",
		Example:           `  gaia ticket hold SHOP-7 --note "waiting for the new logo"`,
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
			k, err := c.Hold(cmd.Context(), ref, note)
			if err != nil {
				return err
			}
			return a.one(cmd.Context(), c, k)
		},
	}
	cmd.Flags().StringVar(&note, "note", "", "why")
	return cmd
}

func (a *app) ticketResume() *cobra.Command {
	return &cobra.Command{
		Use:               "resume [TICKET]",
		Short:             "Lift a ticket's hold and forget its failures",
		Example:           "  gaia ticket resume SHOP-7",
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
			k, err := c.Resume(cmd.Context(), ref)
			if err != nil {
				return err
			}
			return a.one(cmd.Context(), c, k)
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
		Example:           `  gaia ticket repair SHOP-7 coding --reason "was closed by mistake"`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.completeFirst(a.ticketNames),
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
			return a.one(cmd.Context(), c, k)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why; kept with the ticket")
	return cmd
}
