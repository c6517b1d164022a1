package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gaia/domain"
	"gaia/internal/render"
	"gaia/registry"
	"gaia/session/host"
	"gaia/workspace"
)

func (a *app) conductorTrust() *cobra.Command {
	var yes, all bool
	cmd := &cobra.Command{
		Use:   "trust [INSTANCE]",
		Short: "Look at the hooks of a checkout and trust them",
		Long: `Show the hooks of a checkout, as its conductor would run them for a new tree, and trust exactly these after a
question. Hooks that nobody trusted are never run, and their conductor claims nothing.

--all-permissions allows the checkout's agents to be given all permissions, if its configuration asks for that.`,
		Example: `  gaia conductor trust
  gaia conductor trust shop --yes`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeFirst(a.instanceNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			home, e, err := a.homeEntry(args)
			if err != nil {
				return err
			}
			if all {
				if err := a.confirm(yes, "Allow the agents of "+e.Checkout+" to do anything without asking"); err != nil {
					return err
				}
				if err := home.TrustAll(ctx, e.Checkout); err != nil {
					return err
				}
				a.say("trusted")
				return nil
			}
			hooks, err := baseHooks(ctx, home, e)
			if err != nil {
				return err
			}
			sha := hooks.SHA256()
			if sha == "" {
				a.say("%s has no hooks; there is nothing to trust", e.Checkout)
				return nil
			}
			for _, name := range []string{"after_create", "before_run", "after_run", "before_remove"} {
				if h, err := hooks.Named(name); err == nil && h.Set() {
					a.say("%s (%s):\n    %s", name, h.Timeout, strings.ReplaceAll(h.Script, "\n", "\n    "))
				}
			}
			if err := a.confirm(yes, "Trust these hooks"); err != nil {
				return err
			}
			if err := home.Trust(ctx, e.Checkout, sha); err != nil {
				return err
			}
			a.say("trusted; the conductor %s takes notice within half a minute", e.Instance)
			return nil
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&all, "all-permissions", false, "trust the checkout's agents with all permissions, instead of its hooks")
	return cmd
}

// confirm asks a person; anything but yes is a refusal.
func (a *app) confirm(yes bool, question string) error {
	if yes {
		return nil
	}
	if !a.interactive() {
		return usagef("nobody can be asked here: give --yes")
	}
	answer, err := a.ask(question+" (yes or no)", "no")
	if err != nil {
		return err
	}
	if !slices.Contains([]string{"y", "yes"}, strings.ToLower(answer)) {
		return errors.New("nothing was changed")
	}
	return nil
}

// baseHooks reads the hooks as they stand in the commit from which a new tree would start.
func baseHooks(ctx context.Context, home registry.Home, e registry.Entry) (domain.Hooks, error) {
	c, err := registry.LoadCheckout(e.Checkout)
	if err != nil {
		return domain.Hooks{}, err
	}
	g, err := tree(home, e, c)
	if err != nil {
		return domain.Hooks{}, err
	}
	base, err := g.Base(ctx)
	if err != nil {
		return domain.Hooks{}, err
	}
	files, err := g.Files(ctx, base, conductorFile)
	if err != nil {
		return domain.Hooks{}, err
	}
	data, ok := files[conductorFile]
	if !ok {
		return domain.Hooks{}, fmt.Errorf("%s is not in %.12s, from which new trees start: commit it, and push it where the checkout has a remote", conductorFile, base)
	}
	committed, err := registry.ParseCheckout(conductorFile, data)
	return committed.Hooks, err
}

func (a *app) conductorReap() *cobra.Command {
	var dry bool
	var instance string
	cmd := &cobra.Command{
		Use:   "reap [INSTANCE]",
		Short: "Remove worktrees of finished tickets",
		Long: `Remove worktrees whose ticket is finished, and only those that are clean, pushed or merged, unlocked and in nobody's use.
Everything else is kept and listed with its reason. The tip is saved under refs/gaia/reaped/ before, and no branch is
ever deleted.`,
		Example: `  gaia conductor reap --dry-run
  gaia conductor reap shop`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeFirst(a.instanceNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if instance != "" {
				if len(args) == 1 && args[0] != instance {
					return usagef("%s is not %s: give the instance once", args[0], instance)
				}
				args = []string{instance}
			}
			return a.reap(cmd.Context(), args, dry)
		},
	}
	cmd.Flags().BoolVarP(&dry, "dry-run", "n", false, "say what would be done, and do nothing")
	cmd.Flags().StringVar(&instance, "instance", "", "the same as the argument")
	a.completeFlags(cmd, map[string]completer{"instance": a.instanceNames})
	return cmd
}

// reapView is what became of a worktree.
type reapView struct {
	Path       string `json:"path"`
	Identifier string `json:"identifier"`
	Removed    bool   `json:"removed"`
	Removable  bool   `json:"removable"`
	Reason     string `json:"reason"`
	Bytes      int64  `json:"bytes"`
}

// beforeRemove runs the hook of the commit from which new trees start, if a person has trusted it. Its failure keeps no tree.
func beforeRemove(home registry.Home, e registry.Entry) func(context.Context, workspace.TreeInfo) error {
	return func(ctx context.Context, t workspace.TreeInfo) error {
		hooks, err := baseHooks(ctx, home, e)
		if err != nil || !hooks.BeforeRemove.Set() {
			return err
		}
		trusted, err := home.Trusted(e.Checkout, hooks.SHA256())
		if err != nil {
			return err
		}
		if !trusted {
			return fmt.Errorf("the hooks are not trusted, so it was not run (gaia conductor trust %s)", e.Instance)
		}
		return host.BeforeRemove(ctx, hooks.BeforeRemove, os.Environ(), t.Path, t.Branch)
	}
}

func (a *app) reap(ctx context.Context, args []string, dry bool) error {
	home, e, err := a.homeEntry(args)
	if err != nil {
		return err
	}
	co, err := registry.LoadCheckout(e.Checkout)
	if err != nil {
		return err
	}
	g, err := tree(home, e, co)
	if err != nil {
		return err
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	reaped, err := g.Reap(ctx, workspace.ReapOptions{
		DryRun:       dry,
		BeforeRemove: beforeRemove(home, e),
		Ticket: func(ctx context.Context, id string) (state string, terminal, known bool, err error) {
			k, err := c.Ticket(ctx, id)
			if errors.Is(err, domain.ErrNotFound) {
				return "", false, false, nil
			}
			if err != nil {
				return "", false, false, err
			}
			return k.State, domain.Terminal(string(k.Workflow), k.State), true, nil
		},
	})
	if err != nil {
		return err
	}
	var v render.Value
	views := []reapView{}
	var rows [][]string
	for _, r := range reaped {
		views = append(views, reapView(r))
		what := "kept"
		switch {
		case r.Removed:
			what = "removed"
		case r.Removable && dry:
			what = "would be removed"
		}
		size := "-" // of what is kept it is not measured
		if r.Removable {
			v.Names = append(v.Names, r.Identifier)
			size = render.Bytes(r.Bytes)
		}
		rows = append(rows, []string{cmpOr(r.Identifier, "-"), what, size, r.Path, r.Reason})
	}
	v.Data = views
	v.Table = func(w io.Writer) error {
		if len(rows) == 0 {
			_, err := fmt.Fprintln(w, "no worktrees")
			return err
		}
		return render.RowsNoted(w, a.width(0), []string{"TICKET", "", "SIZE", "TREE", "WHY"}, rows)
	}
	return a.print(v)
}
