package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"gaia/domain"
	"gaia/internal/render"
	"gaia/registry"
	"gaia/remote"
	"gaia/units"
	"gaia/workspace"
)

func (a *app) conductorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "conductor",
		Aliases: []string{"conductors"},
		Short:   "Set up and look after the conductors of this machine",
		Long: `Set up and look after the conductors of this machine. A conductor is a systemd user unit, one per checkout; it claims
tickets and hosts agents. Where no instance is given, that of the present checkout is meant.`,
	}
	cmd.AddCommand(
		a.conductorInit(), a.conductorEnable(), a.conductorDisable(),
		a.conductorJob("start", "Start a conductor", "", (*units.Manager).Start),
		a.conductorJob("stop", "Stop a conductor; its agents go on", "Agents that are at work go on, and the conductor takes care of them again when it is started.", (*units.Manager).Stop),
		a.conductorJob("restart", "Restart a conductor; its agents go on", "Agents that are at work are not touched.", (*units.Manager).Restart),
		a.conductorList(), a.conductorStatus(), a.conductorDrain(true), a.conductorDrain(false),
		a.conductorLogs(), a.conductorTrust(), a.conductorReap(),
	)
	return cmd
}

// entry returns the conductor that is meant: the named one, else the present checkout's.
func (a *app) entry(home registry.Home, args []string) (registry.Entry, error) {
	if len(args) == 1 {
		e, err := home.Entry(args[0])
		if errors.Is(err, domain.ErrNotFound) {
			all, lerr := home.Entries()
			if lerr != nil {
				return e, lerr
			}
			known := make([]string, len(all))
			for i, v := range all {
				known[i] = v.Instance
			}
			return e, usagef("this machine has no conductor %q; it has: %s (gaia init makes one)", args[0], cmpOr(strings.Join(known, ", "), "none"))
		}
		return e, err
	}
	top, err := a.toplevel()
	if err != nil {
		return registry.Entry{}, usagef("which conductor? Give its instance (gaia conductor list)")
	}
	e, err := home.EntryOf(top)
	if errors.Is(err, domain.ErrNotFound) {
		return e, usagef("%s is not set up: gaia init", top)
	}
	return e, err
}

// machineID is the identity of an entry.
func machineID(home registry.Home, e registry.Entry) (string, error) {
	m, err := home.Machine()
	if err != nil {
		return "", err
	}
	return domain.MachineID(m.UserID, m.HostID, e.Instance)
}

func (a *app) conductorEnable() *cobra.Command {
	var now bool
	cmd := &cobra.Command{
		Use:   "enable [INSTANCE]",
		Short: "Let a conductor start by itself, and take over this PATH for its agents",
		Long: `Let a conductor start with the user manager. Its agents get the PATH that this command is called with, so call it from
a shell in which they are found. Unit files are written where systemd finds none.`,
		Example: `  gaia conductor enable --now
  gaia conductor enable shop`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			home, err := a.home()
			if err != nil {
				return err
			}
			e, err := a.entry(home, args)
			if err != nil {
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
			a.say("%s is enabled%s", n.Conductor(e.Instance), map[bool]string{true: " and started"}[now])
			a.warnLinger(ctx)
			return a.warnHooks(home, e)
		},
	}
	cmd.Flags().BoolVar(&now, "now", false, "start it, too")
	return cmd
}

// warnLinger says what happens at log-out.
func (a *app) warnLinger(ctx context.Context) {
	switch on, err := units.Linger(ctx, syscall.Getuid()); {
	case err != nil:
		a.say("Whether agents survive your log-out could not be found out: %v", err)
	case !on:
		a.say("Agents end when you log out of this machine for the last time. To let them go on: loginctl enable-linger")
	}
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
		Use:     "disable [INSTANCE]",
		Short:   "Let a conductor no longer start by itself",
		Long:    "Let a conductor no longer start by itself; with --now stop it, too. Agents that are at work go on.",
		Example: "  gaia conductor disable --now shop",
		Args:    cobra.MaximumNArgs(1),
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
				a.say("%s is disabled%s", unit, map[bool]string{true: " and stopped"}[now])
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&now, "now", false, "stop it, too")
	return cmd
}

// withConductor calls fn with a connection to systemd and the conductor that is meant.
func (a *app) withConductor(ctx context.Context, args []string, fn func(context.Context, *units.Manager, registry.Entry) error) error {
	home, err := a.home()
	if err != nil {
		return err
	}
	e, err := a.entry(home, args)
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
		Use:     verb + " [INSTANCE]",
		Short:   short,
		Long:    strings.TrimSpace(short + ". " + long),
		Example: "  gaia conductor " + verb + " shop",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withConductor(cmd.Context(), args, func(ctx context.Context, man *units.Manager, e registry.Entry) error {
				unit := a.names().Conductor(e.Instance)
				if err := job(man, ctx, unit); err != nil {
					return err
				}
				st, err := man.Status(ctx, unit)
				if err != nil {
					return err
				}
				a.say("%s is %s", unit, st.Active)
				return nil
			})
		},
	}
}

// conductorView is one conductor as this machine and the hub see it.
type conductorView struct {
	Instance  string            `json:"instance"`
	MachineID string            `json:"machine_id"`
	Checkout  string            `json:"checkout"`
	Project   string            `json:"project"` // key
	Unit      string            `json:"unit"`
	Active    string            `json:"active"` // of the unit: active, inactive, failed
	Enabled   string            `json:"enabled"`
	Text      string            `json:"status_text"` // what the unit says of itself
	PID       uint32            `json:"pid"`
	Restarts  uint32            `json:"restarts"`
	Hub       *domain.Conductor `json:"conductor"` // null where the hub does not know it or does not answer
}

// views describes the conductors of this machine. Where the hub does not answer, that part is missing, and hubErr says why.
func (a *app) views(ctx context.Context, home registry.Home, entries []registry.Entry) (out []conductorView, hubErr, err error) {
	man, err := a.manager(ctx, home)
	if err != nil {
		return nil, nil, err
	}
	defer man.Close()
	atHub := map[string]domain.Conductor{}
	c, hubErr := a.client()
	if hubErr == nil {
		var all []domain.Conductor
		if all, hubErr = c.Conductors(ctx, remote.Query{}); hubErr == nil {
			for _, con := range all {
				atHub[con.MachineID] = con
			}
		}
	}
	for _, e := range entries {
		id, err := machineID(home, e)
		if err != nil {
			return nil, nil, err
		}
		unit := a.names().Conductor(e.Instance)
		st, err := man.Status(ctx, unit)
		if err != nil {
			return nil, nil, err
		}
		v := conductorView{
			Instance: e.Instance, MachineID: id, Checkout: e.Checkout, Project: e.Project, Unit: unit, Active: st.Active,
			Enabled: cmpOr(st.UnitFileState, st.Load), Text: st.StatusText, PID: st.MainPID, Restarts: st.NRestarts,
		}
		if con, ok := atHub[id]; ok {
			v.Hub = &con
		}
		out = append(out, v)
	}
	return out, hubErr, nil
}

func (a *app) conductorList() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the conductors of this machine",
		Example: `  gaia conductor list
  gaia conductor list -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			home, err := a.home()
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			return a.show(cmd.Context(), c, func(ctx context.Context) (render.Value, error) {
				entries, err := home.Entries()
				if err != nil {
					return render.Value{}, err
				}
				views, hubErr, err := a.views(ctx, home, entries)
				if err != nil {
					return render.Value{}, err
				}
				if hubErr != nil && !a.watch {
					a.say("the hub does not answer, so its view is missing: %v", hubErr)
				}
				return a.conductorsValue(views), nil
			})
		},
	}
	a.watchFlag(cmd)
	return cmd
}

func (a *app) conductorsValue(views []conductorView) render.Value {
	v := render.Value{Data: views}
	rows := make([][]string, len(views))
	for i, c := range views {
		v.Names = append(v.Names, c.Instance)
		status, load := "-", "-"
		if c.Hub != nil {
			status, load = string(c.Hub.Status), strconv.Itoa(c.Hub.CurrentLoad)+"/"+strconv.Itoa(c.Hub.MaxParallel)
		}
		rows[i] = []string{c.Instance, c.Project, c.Active, c.Enabled, status, load, c.MachineID, c.Checkout}
	}
	v.Table = func(w io.Writer) error {
		if len(views) == 0 {
			_, err := fmt.Fprintln(w, "no conductors; gaia init sets one up")
			return err
		}
		return render.Rows(w, a.width(0), []string{"INSTANCE", "PROJECT", "UNIT", "ENABLED", "HUB", "LOAD", "MACHINE ID", "CHECKOUT"}, rows)
	}
	return v
}

func (a *app) conductorStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status [INSTANCE]",
		Short: "Show how a conductor is",
		Long:  "Show how a conductor is, as systemd and the hub see it. Exits 1 where it does not run.",
		Example: `  gaia conductor status
  gaia conductor status shop -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			home, err := a.home()
			if err != nil {
				return err
			}
			e, err := a.entry(home, args)
			if err != nil {
				return err
			}
			views, hubErr, err := a.views(cmd.Context(), home, []registry.Entry{e})
			if err != nil {
				return err
			}
			v := views[0]
			err = a.print(render.Value{Data: v, Names: []string{v.Instance}, Table: func(w io.Writer) error {
				hub := "not registered"
				switch {
				case hubErr != nil:
					hub = hubErr.Error()
				case v.Hub != nil:
					hub = fmt.Sprintf("%s, %d of %d slots in use", v.Hub.Status, v.Hub.CurrentLoad, v.Hub.MaxParallel)
					if v.Hub.Paused != "" {
						hub += ", paused: " + v.Hub.Paused
					}
				}
				var b strings.Builder
				for _, l := range [][2]string{
					{"conductor", v.Instance}, {"machine id", v.MachineID}, {"checkout", v.Checkout}, {"project", v.Project}, {"unit", v.Unit},
					{"state", strings.TrimSpace(v.Active + ", " + v.Enabled)}, {"says", v.Text}, {"hub", hub},
				} {
					if l[1] != "" {
						fmt.Fprintf(&b, "%-12s %s\n", l[0]+":", render.Clean(l[1]))
					}
				}
				_, err := io.WriteString(w, b.String())
				return err
			}})
			if err == nil && v.Active != "active" {
				a.say("It does not run: gaia conductor start %s", v.Instance)
				return errUnhealthy
			}
			return err
		},
	}
}

func (a *app) conductorDrain(drain bool) *cobra.Command {
	verb, short, done := "resume", "Let a drained conductor claim tickets again", "claims tickets again"
	if drain {
		verb, short, done = "drain", "Let a conductor finish its runs and claim nothing new", "finishes its runs and claims nothing new"
	}
	return &cobra.Command{
		Use:     verb + " [CONDUCTOR]",
		Short:   short,
		Long:    short + ". It holds until it is changed, over restarts. CONDUCTOR is an instance of this machine or any machine_id.",
		Example: "  gaia conductor " + verb + " shop",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			home, err := a.home()
			if err != nil {
				return err
			}
			id := ""
			if len(args) == 1 && strings.Contains(args[0], ".") {
				id = args[0]
			} else {
				e, err := a.entry(home, args)
				if err != nil {
					return err
				}
				if id, err = machineID(home, e); err != nil {
					return err
				}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			con, err := c.Drain(cmd.Context(), id, drain)
			if err != nil {
				return err
			}
			return a.print(render.Value{Data: con, Names: []string{con.MachineID}, Table: func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s %s\n", con.MachineID, done)
				return err
			}})
		},
	}
}

func (a *app) conductorLogs() *cobra.Command {
	var follow bool
	var since string
	var lines int
	cmd := &cobra.Command{
		Use:     "logs [INSTANCE]",
		Short:   "Show a conductor's journal",
		Example: "  gaia conductor logs shop --follow\n  gaia conductor logs --since '10 min ago'",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			home, err := a.home()
			if err != nil {
				return err
			}
			e, err := a.entry(home, args)
			if err != nil {
				return err
			}
			words := []string{"--user", "--unit=" + a.names().Conductor(e.Instance), "--lines=" + strconv.Itoa(lines)}
			if since != "" {
				words = append(words, "--since="+since)
			}
			if follow {
				words = append(words, "--follow")
			} else {
				words = append(words, "--no-pager")
			}
			journal := exec.CommandContext(cmd.Context(), "journalctl", words...)
			journal.Stdout, journal.Stderr = a.out, a.err
			if err := journal.Run(); err != nil && cmd.Context().Err() == nil {
				return fmt.Errorf("read the journal: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until interrupted")
	cmd.Flags().StringVar(&since, "since", "", "only from this time on, as journalctl understands it")
	cmd.Flags().IntVarP(&lines, "lines", "n", 200, "at most so many lines to begin with")
	return cmd
}

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
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			home, err := a.home()
			if err != nil {
				return err
			}
			e, err := a.entry(home, args)
			if err != nil {
				return err
			}
			if all {
				if err := a.confirm(yes, "Allow the agents of "+e.Checkout+" to do anything without asking"); err != nil {
					return err
				}
				return home.TrustAll(ctx, e.Checkout)
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
			a.say("trusted")
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
func baseHooks(ctx context.Context, home registry.Home, e registry.Entry) (registry.Hooks, error) {
	c, err := registry.LoadCheckout(e.Checkout)
	if err != nil {
		return registry.Hooks{}, err
	}
	g, err := tree(home, e, c)
	if err != nil {
		return registry.Hooks{}, err
	}
	base, err := g.Base(ctx)
	if err != nil {
		return registry.Hooks{}, err
	}
	files, err := g.Files(ctx, base, conductorFile)
	if err != nil {
		return registry.Hooks{}, err
	}
	data, ok := files[conductorFile]
	if !ok {
		return registry.Hooks{}, fmt.Errorf("%s is not in %.12s, from which new trees start: commit it, and push it where the checkout has a remote", conductorFile, base)
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
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if instance != "" {
				args = []string{instance}
			}
			return a.reap(cmd.Context(), args, dry)
		},
	}
	cmd.Flags().BoolVarP(&dry, "dry-run", "n", false, "say what would be done, and do nothing")
	cmd.Flags().StringVar(&instance, "instance", "", "the same as the argument")
	return cmd
}

func (a *app) reap(ctx context.Context, args []string, dry bool) error {
	home, err := a.home()
	if err != nil {
		return err
	}
	e, err := a.entry(home, args)
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
		DryRun: dry,
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
	v := render.Value{Data: reaped}
	var rows [][]string
	var freed int64
	for _, r := range reaped {
		what := "kept"
		if r.Removed {
			what, freed = "removed", freed+r.Bytes
			if dry {
				what = "would be removed"
			}
			v.Names = append(v.Names, r.Identifier)
		}
		rows = append(rows, []string{cmpOr(r.Identifier, "-"), what, render.Bytes(r.Bytes), r.Path, r.Reason})
	}
	v.Table = func(w io.Writer) error {
		if len(rows) == 0 {
			_, err := fmt.Fprintln(w, "no worktrees")
			return err
		}
		return render.Rows(w, a.width(0), []string{"TICKET", "", "SIZE", "TREE", "WHY"}, rows)
	}
	return a.print(v)
}
