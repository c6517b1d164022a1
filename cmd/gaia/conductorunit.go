package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"gaia/domain"
	"gaia/internal/render"
	"gaia/registry"
	"gaia/units"
)

func (a *app) conductorEnable() *cobra.Command {
	var now, linger, noLinger bool
	cmd := &cobra.Command{
		Use:   "enable [INSTANCE]",
		Short: "Let a conductor start by itself, and take over this PATH for its agents",
		Long: `Let a conductor start with the user manager. Its agents get the PATH that this command is called with, so call it from
a shell in which they are found. Unit files are written where systemd finds none.

Agents end with your last log-out unless lingering is on. Where it is not, a person at a terminal is asked; --linger
turns it on unasked, and --no-linger leaves it as it is.

Worktrees of finished tickets stay until gaia conductor reap. To have that done every day:

    systemctl --user enable --now gaia-reap@INSTANCE.timer`,
		Example: `  gaia conductor enable --now
  gaia conductor enable shop --linger`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeFirst(a.instanceNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if linger && noLinger {
				return usagef("--linger and --no-linger exclude each other")
			}
			home, e, err := a.homeEntry(args)
			if err != nil {
				return err
			}
			if err := a.checkPlaces(home); err != nil {
				return err
			}
			if err := home.PrepareRuntime(); err != nil {
				return usageError{err}
			}
			man, err := a.manager(ctx, home)
			if err != nil {
				return err
			}
			defer man.Close()
			if err := a.install(ctx, man, home); err != nil {
				return err
			}
			if e.Path = a.getenv("PATH"); e.Path == "" {
				return usagef("PATH is not set, so no agent would be found")
			}
			if err := home.Put(ctx, e); err != nil {
				return err
			}
			n := a.names()
			if err := man.Enable(ctx, n.Conductor(e.Instance)); err != nil {
				return fmt.Errorf("enable the conductor: %w", err)
			}
			if now {
				if err := man.Start(ctx, n.Conductor(e.Instance)); err != nil {
					return fmt.Errorf("start the conductor: %w", err)
				}
			}
			if err := a.unitDone(ctx, man, e); err != nil {
				return err
			}
			if err := a.warnHooks(home, e); err != nil {
				return err
			}
			if noLinger {
				return nil
			}
			return a.linger(ctx, linger)
		},
	}
	cmd.Flags().BoolVar(&now, "now", false, "start it, too")
	cmd.Flags().BoolVar(&linger, "linger", false, "let agents survive your log-out, without asking")
	cmd.Flags().BoolVar(&noLinger, "no-linger", false, "leave lingering as it is, without asking")
	return cmd
}

// logind is the machine's.
func (a *app) logind() units.Logind { return units.SystemLogind(a.getenv("DBUS_SYSTEM_BUS_ADDRESS")) }

// linger sees to it that agents survive the log-out, or says that they do not. Only what was asked for and did not come
// to be is an error: the conductor is enabled all the same.
func (a *app) linger(ctx context.Context, unasked bool) error {
	uid := syscall.Getuid()
	command := "loginctl enable-linger"
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		command += " " + render.Command(u.Username)
	}
	on, err := a.logind().Linger(ctx, uid)
	switch {
	case err == nil && on:
		return nil
	case err != nil && !unasked:
		a.say("Whether agents survive your log-out could not be found out: %v", err)
		return nil
	}
	if !unasked {
		const what = "Agents end when you log out of this machine for the last time, and nothing starts at boot."
		if !a.interactive() {
			a.say("%s To let them go on: %s", what, command)
			return nil
		}
		a.say("%s", what)
		yes, err := a.askYes("Let them go on (linger)")
		if err != nil {
			return err
		}
		if !yes {
			a.say("Left as it is. To let them go on: %s", command)
			return nil
		}
	}
	err = a.logind().EnableLinger(ctx, uid, a.interactive())
	switch {
	case err == nil:
		a.say("Linger is on: agents survive your log-out, and what is enabled starts at boot")
		return nil
	case errors.Is(err, units.ErrLingerRefused):
		err = fmt.Errorf("the conductor is enabled, but linger is not: %w; an administrator can: sudo %s", err, command)
	case errors.Is(err, units.ErrNoLogind):
		err = fmt.Errorf("the conductor is enabled, but linger is not: %w; without logind, as in a container, something else must keep the user manager running: man gaia-systemd", err)
	default:
		err = fmt.Errorf("the conductor is enabled, but linger is not: %w; to try again: %s", err, command)
	}
	if unasked {
		return err
	}
	a.say("%v", err)
	return nil
}

func (a *app) warnHooks(home registry.Home, e registry.Entry) error {
	c, err := registry.LoadCheckout(e.Checkout)
	if err != nil {
		return err
	}
	if sha := c.Hooks.SHA256(); sha != "" {
		trusted, err := home.Trusted(e.Checkout, sha)
		if err != nil {
			return err
		}
		if !trusted {
			a.say("Its hooks are not trusted, so it will claim nothing: gaia conductor trust %s", e.Instance)
		}
	}
	return nil
}

func (a *app) conductorDisable() *cobra.Command {
	var now bool
	cmd := &cobra.Command{
		Use:               "disable [INSTANCE]",
		Short:             "Let a conductor no longer start by itself",
		Long:              "Let a conductor no longer start by itself; with --now stop it, too. Agents that are at work go on.",
		Example:           "  gaia conductor disable --now shop",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeFirst(a.instanceNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withConductor(cmd.Context(), args, func(ctx context.Context, man *units.Manager, e registry.Entry) error {
				unit := a.names().Conductor(e.Instance)
				if err := man.Disable(ctx, unit); err != nil {
					return fmt.Errorf("disable the conductor: %w", err)
				}
				if now {
					if err := man.Stop(ctx, unit); err != nil {
						return fmt.Errorf("stop the conductor: %w", err)
					}
				}
				return a.unitDone(ctx, man, e)
			})
		},
	}
	cmd.Flags().BoolVar(&now, "now", false, "stop it, too")
	return cmd
}

func (a *app) conductorRemove() *cobra.Command {
	return &cobra.Command{
		Use:   "remove INSTANCE",
		Short: "Take a conductor out of this machine's registry",
		Long: `Take a conductor out of this machine's registry, as for a checkout that is gone or has been moved: it is stopped and
disabled, and its spare worktrees are removed if the checkout is there. Worktrees of tickets, branches, run folders and what the hub knows
stay. gaia init, in a checkout of the project, makes one again; with the same --instance it goes on with the same worktrees.

It is refused while one of its runs is at work.`,
		Example:           "  gaia conductor remove shop",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeFirst(a.instanceNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withConductor(cmd.Context(), args, a.remove)
		},
	}
}

func (a *app) remove(ctx context.Context, man *units.Manager, e registry.Entry) error {
	home, err := a.home()
	if err != nil {
		return err
	}
	n := a.names()
	conductor, timer := n.Conductor(e.Instance), n.ReapTimer(e.Instance)
	working := func() error {
		runs, err := man.ListRuns(ctx, n, e.Instance)
		if err != nil {
			return err
		}
		for _, r := range runs {
			if r.Running() {
				return fmt.Errorf("%w: %s is at work (gaia conductor drain %s, or gaia run stop)", domain.ErrConflict, r.Name, e.Instance)
			}
		}
		return nil
	}
	if err := working(); err != nil {
		return err
	}
	var stopped []string
	for _, unit := range []string{timer, conductor} {
		st, err := man.Status(ctx, unit)
		if err != nil {
			return err
		}
		if st.Running() {
			stopped = append(stopped, unit)
		}
		if err := man.Stop(ctx, unit); err != nil {
			return err
		}
	}
	if err := working(); err != nil { // it may have begun one until just now, whose lease somebody must renew
		for _, unit := range stopped {
			err = errors.Join(err, man.Start(ctx, unit))
		}
		return err
	}
	if err := man.Disable(ctx, conductor, timer); err != nil {
		return fmt.Errorf("disable the conductor: %w", err)
	}
	if err := man.ResetFailed(ctx, conductor); err != nil {
		return err
	}
	if err := dropSpares(ctx, home, e); err != nil {
		a.say("the spare worktrees of %s stay: %v", e.Instance, err)
	}
	if err := home.Remove(ctx, e.Instance); err != nil {
		return err
	}
	return a.print(render.Value{Data: e, Names: []string{e.Instance}, Table: func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s is no conductor of this machine any more; its worktrees and runs stay\n", e.Instance)
		return err
	}})
}

// dropSpares removes the spare worktrees of a conductor, which hold nothing of anybody's.
func dropSpares(ctx context.Context, home registry.Home, e registry.Entry) error {
	if _, err := os.Lstat(e.Checkout); errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(home.TreesDir(e.Instance)); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("the checkout %s is not there any more; look at what is in %s", e.Checkout, home.TreesDir(e.Instance))
	}
	c, err := registry.LoadCheckout(e.Checkout)
	if err != nil {
		return err
	}
	g, err := tree(home, e, c)
	if err != nil {
		return err
	}
	return g.KeepSpares(ctx, 0, 0, false)
}

// unitView is how a conductor's unit is after it was changed.
type unitView struct {
	Instance string `json:"instance"`
	Unit     string `json:"unit"`
	Active   string `json:"active"`
	Enabled  string `json:"enabled"`
}

// unitDone prints how a conductor's unit is now.
func (a *app) unitDone(ctx context.Context, man *units.Manager, e registry.Entry) error {
	unit := a.names().Conductor(e.Instance)
	st, err := man.Status(ctx, unit)
	if err != nil {
		return err
	}
	v := unitView{e.Instance, unit, st.Active, cmpOr(st.UnitFileState, st.Load)}
	return a.print(render.Value{Data: v, Names: []string{v.Instance}, Table: func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s is %s and %s\n", v.Unit, v.Active, v.Enabled)
		return err
	}})
}

// withConductor calls fn with a connection to systemd and the conductor that is meant.
func (a *app) withConductor(ctx context.Context, args []string, fn func(context.Context, *units.Manager, registry.Entry) error) error {
	home, e, err := a.homeEntry(args)
	if err != nil {
		return err
	}
	man, err := a.manager(ctx, home)
	if err != nil {
		return err
	}
	defer man.Close()
	return fn(ctx, man, e)
}

func (a *app) conductorJob(verb, short, long string, job func(*units.Manager, context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use:               verb + " [INSTANCE]",
		Short:             short,
		Long:              strings.TrimSpace(short + ". " + long),
		Example:           "  gaia conductor " + verb + " shop",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeFirst(a.instanceNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withConductor(cmd.Context(), args, func(ctx context.Context, man *units.Manager, e registry.Entry) error {
				unit := a.names().Conductor(e.Instance)
				if err := job(man, ctx, unit); err != nil {
					return err
				}
				return a.unitDone(ctx, man, e)
			})
		},
	}
}
