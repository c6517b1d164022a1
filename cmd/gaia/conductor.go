package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gaia/doctor"
	"gaia/domain"
	"gaia/internal/render"
	"gaia/registry"
	"gaia/remote"
	"gaia/units"
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
		a.conductorInit(), a.conductorEnable(), a.conductorDisable(), a.conductorRemove(),
		a.conductorJob("start", "Start a conductor", "", (*units.Manager).Start),
		a.conductorJob("stop", "Stop a conductor; its agents go on", "It takes care of them again when it is started.", (*units.Manager).Stop),
		a.conductorJob("restart", "Restart a conductor; its agents go on", "", (*units.Manager).Restart),
		a.conductorList(), a.conductorStatus(), a.conductorDrain(true), a.conductorDrain(false),
		a.conductorLogs(), a.conductorTrust(), a.conductorReap(),
	)
	return cmd
}

// homeEntry returns the machine's registry and the conductor in it that args or the folder name.
func (a *app) homeEntry(args []string) (registry.Home, registry.Entry, error) {
	home, err := a.home()
	if err != nil {
		return home, registry.Entry{}, err
	}
	e, err := a.entry(home, args)
	return home, e, err
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
	Replaced  bool              `json:"replaced"` // its program on the disk is another one by now
	Differs   string            `json:"differs"`  // what units or disk say otherwise than the registry, "" for nothing
	Mend      string            `json:"mend"`     // the command that puts that right
	gone      bool              // its checkout
	Hub       *domain.Conductor `json:"conductor"` // null where the hub does not know it or does not answer
}

// viewOf is what systemd says of a conductor.
func viewOf(st units.Status) conductorView {
	v := conductorView{
		Unit: st.Name, Active: st.Active, Enabled: cmpOr(st.UnitFileState, st.Load), PID: st.MainPID, Restarts: st.NRestarts, Replaced: st.Replaced(),
	}
	if st.Running() { // systemd keeps the last words of one that has ended
		v.Text = st.StatusText
	}
	return v
}

// views describes conductors of this machine. Where the hub does not answer, that part is missing, and hubErr says why.
func (a *app) views(ctx context.Context, home registry.Home, man *units.Manager, c *remote.Client, entries []registry.Entry) (out []conductorView, hubErr, err error) {
	out = []conductorView{}
	atHub := map[string]domain.Conductor{}
	all, hubErr := c.Conductors(ctx, remote.Query{})
	for _, con := range all {
		atHub[con.MachineID] = con
	}
	differs, err := doctor.Differences(ctx, man, a.names(), entries)
	if err != nil {
		return nil, nil, err
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
		v := viewOf(st)
		v.Instance, v.MachineID, v.Checkout, v.Project = e.Instance, id, e.Checkout, e.Project
		if con, ok := atHub[id]; ok {
			v.Hub = &con
		}
		for _, d := range differs {
			if d.Instance == e.Instance {
				v.Differs, v.Mend, v.gone = d.Text, d.Mend, d.Gone
			}
		}
		out = append(out, v)
	}
	return out, hubErr, nil
}

// strangers describes the units that belong to no conductor of the registry.
func (a *app) strangers(ctx context.Context, man *units.Manager, entries []registry.Entry) ([]conductorView, error) {
	all, err := doctor.Strangers(ctx, man, a.names(), entries)
	if err != nil {
		return nil, err
	}
	var out []conductorView
	for _, d := range all {
		v := viewOf(d.Status)
		v.Instance, v.Differs, v.Mend = d.Instance, d.Text, d.Mend
		out = append(out, v)
	}
	return out, nil
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
				man, err := a.manager(ctx, home)
				if err != nil {
					return render.Value{}, err
				}
				defer man.Close()
				views, hubErr, err := a.views(ctx, home, man, c, entries)
				if err != nil {
					return render.Value{}, err
				}
				unknown, err := a.strangers(ctx, man, entries)
				if err != nil {
					return render.Value{}, err
				}
				views = append(views, unknown...)
				if hubErr != nil && !a.watch {
					a.say("the hub does not answer, so its view is missing: %v", hubErr)
				}
				for _, v := range views {
					if v.Differs != "" && !a.watch {
						a.say("%s: %s (%s)", v.Instance, v.Differs, v.Mend)
					}
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
		if c.MachineID != "" {
			v.Names = append(v.Names, c.Instance)
		}
		status, load := "-", "-"
		if c.Hub != nil {
			status, load = string(c.Hub.Status), strconv.Itoa(c.Hub.CurrentLoad)+"/"+strconv.Itoa(c.Hub.MaxParallel)
		}
		unit := c.Active
		if c.Replaced {
			unit += ", replaced"
		}
		checkout := c.Checkout
		switch {
		case checkout == "":
			checkout = "not in the registry"
		case c.gone:
			checkout += " (gone)"
		}
		rows[i] = []string{c.Instance, cmpOr(c.Project, "-"), unit, c.Enabled, status, load, cmpOr(c.MachineID, "-"), checkout}
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
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeFirst(a.instanceNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			home, e, err := a.homeEntry(args)
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			man, err := a.manager(cmd.Context(), home)
			if err != nil {
				return err
			}
			defer man.Close()
			views, hubErr, err := a.views(cmd.Context(), home, man, c, []registry.Entry{e})
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
			if err == nil && v.Replaced {
				a.say("Its program has been replaced since it was started: gaia conductor restart %s (its agents go on)", v.Instance)
			}
			if err == nil && v.Differs != "" {
				a.say("It is not as it should be: %s (%s)", v.Differs, v.Mend)
			}
			if err == nil && v.Active != "active" && v.Differs != "" {
				return errUnhealthy
			}
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
		Use:               verb + " [CONDUCTOR]",
		Short:             short,
		Long:              short + ". It holds until it is changed, over restarts.\n\nCONDUCTOR is an instance of this machine or any machine_id.",
		Example:           "  gaia conductor " + verb + " shop",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeFirst(a.instanceNames),
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
