package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rs/zerolog"

	"gaia/domain"
	"gaia/registry"
	"gaia/remote"
	"gaia/units"
)

// inRun reports whether the command is called by an agent inside a run.
func (a *app) inRun() bool { return a.getenv("GAIA_RUN") != "" }

func (a *app) home() (registry.Home, error) {
	h, _, err := registry.Open(a.getenv)
	if err != nil {
		return h, usageError{err}
	}
	return h, nil
}

// names are those of this installation's units. A bad prefix is reported by home.
func (a *app) names() units.Names {
	n, err := units.NewNames(a.getenv("GAIA_PREFIX"))
	if err != nil {
		n, _ = units.NewNames("")
	}
	return n
}

// address is where the hub is: --hub, GAIA_HUB, machine.toml, the user's own.
func (a *app) address() (string, error) {
	for _, v := range []string{a.hub, a.getenv("GAIA_HUB")} {
		if v != "" {
			if err := registry.CheckHub(v); err != nil {
				return "", usageError{err}
			}
			return v, nil
		}
	}
	h, err := a.home()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(h.MachineFile()); err == nil {
		m, err := h.Machine()
		if err != nil {
			return "", err
		}
		if m.Hub != "" {
			return m.Hub, nil
		}
	}
	if err := h.NeedRuntime(); err != nil {
		return "", usageError{err}
	}
	return "unix://" + h.HubSocket(), nil
}

// client returns the hub's client: in a run with the run's token, else as the machine's user.
func (a *app) client() (*remote.Client, error) {
	addr, err := a.address()
	if err != nil {
		return nil, err
	}
	a.waiting.start("waiting for the hub")
	o := remote.Options{Hub: addr, Patience: patience, Log: zerolog.Nop()}
	if a.inRun() {
		if a.getenv("GAIA_TOKEN_FILE") == "" {
			return nil, usagef("GAIA_RUN is set, but GAIA_TOKEN_FILE is not: inside a run leave them as they are, and elsewhere unset GAIA_RUN")
		}
		o.TokenFile, o.Patience = a.getenv("GAIA_TOKEN_FILE"), inRunPatience
		return remote.New(o)
	}
	h, err := a.home()
	if err != nil {
		return nil, err
	}
	m, err := h.Machine()
	if err != nil {
		return nil, err
	}
	o.User = m.UserID
	return remote.New(o)
}

// ticketArg takes a ticket's identifier off the front of args where there are more than want, or the run's own.
func (a *app) ticketArg(args []string, want int) (string, []string, error) {
	if len(args) > want {
		return args[0], args[1:], nil
	}
	if own := a.getenv("GAIA_TICKET"); own != "" {
		return own, args, nil
	}
	return "", nil, usagef("which ticket? Give its identifier, such as SHOP-7")
}

// checkout returns the checkout that a folder belongs to: the first one upwards that holds .gaia/conductor.toml.
func (a *app) checkout() (string, registry.Checkout, error) {
	dir, err := a.getwd()
	if err != nil {
		return "", registry.Checkout{}, err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, conductorFile)); err == nil {
			c, err := registry.LoadCheckout(dir)
			return dir, c, err
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", registry.Checkout{}, usagef("neither this folder nor one above it is a checkout with %s (gaia init makes it)", conductorFile)
		}
		dir = parent
	}
}

// project returns the project that is meant: the one with the given key, else the checkout's, else the only one.
func (a *app) project(ctx context.Context, c *remote.Client, key string) (domain.Project, error) {
	if key == "" {
		if _, co, err := a.checkout(); err == nil {
			key = co.Project
		} else if _, usage := err.(usageError); !usage {
			return domain.Project{}, err
		}
	}
	if key != "" {
		p, err := c.ProjectByKey(ctx, key)
		if errors.Is(err, domain.ErrNotFound) {
			return p, fmt.Errorf("the hub has no project %s (gaia init makes it): %w", key, domain.ErrNotFound)
		}
		return p, err
	}
	all, err := c.Projects(ctx, remote.Query{})
	switch {
	case err != nil:
		return domain.Project{}, err
	case len(all) == 1:
		return all[0], nil
	case len(all) == 0:
		return domain.Project{}, usagef("the hub has no project yet: run gaia init in a checkout")
	}
	keys := make([]string, len(all))
	for i, p := range all {
		keys[i] = p.Key
	}
	slices.Sort(keys)
	return domain.Project{}, usagef("which project? Give --project: one of %s", strings.Join(keys, ", "))
}

// conductorByName returns the id of the conductor that a person means: its machine_id, or the instance where only one
// conductor of the hub has it.
func conductorByName(ctx context.Context, c *remote.Client, name string) (domain.Conductor, error) {
	all, err := c.Conductors(ctx, remote.Query{})
	if err != nil {
		return domain.Conductor{}, err
	}
	var found []domain.Conductor
	var known []string
	for _, con := range all {
		known = append(known, con.MachineID)
		if con.MachineID == name || con.ID == name {
			return con, nil
		}
		if strings.HasSuffix(con.MachineID, "."+name) {
			found = append(found, con)
		}
	}
	slices.Sort(known)
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return domain.Conductor{}, fmt.Errorf("the hub knows no conductor %q; it knows: %s: %w", name, cmpOr(strings.Join(known, ", "), "none"), domain.ErrNotFound)
	}
	return domain.Conductor{}, usagef("several conductors are called %q; give the whole machine_id: one of %s", name, strings.Join(known, ", "))
}
