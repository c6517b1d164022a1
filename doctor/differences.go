package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"gaia/registry"
	"gaia/units"
)

// Difference is what systemd and the disk say otherwise of a conductor than the registry. Whether a unit is enabled, and
// how it is, is systemd's to say alone: the registry keeps no copy that could be wrong.
type Difference struct {
	Instance string
	Unit     string
	Status   units.Status // of the unit
	Gone     bool         // its checkout is not there
	Text     string       // one sentence
	Mend     string       // the command
}

// Differences compares conductors of the registry with their units and checkouts.
func Differences(ctx context.Context, man *units.Manager, n units.Names, entries []registry.Entry) ([]Difference, error) {
	var out []Difference
	for _, e := range entries {
		st, err := man.Status(ctx, n.Conductor(e.Instance))
		if err != nil {
			return nil, err
		}
		d := Difference{Instance: e.Instance, Unit: st.Name, Status: st}
		_, err = os.Stat(e.Checkout)
		d.Gone = errors.Is(err, fs.ErrNotExist)
		if d.judge(e); d.Text != "" {
			out = append(out, d)
		}
	}
	return out, nil
}

func (d *Difference) judge(e registry.Entry) {
	st := d.Status
	enabled := st.UnitFileState == "enabled" || st.UnitFileState == "enabled-runtime"
	switch {
	case d.Gone:
		d.Text = fmt.Sprintf("its checkout %s is gone", e.Checkout)
		d.Mend = "gaia conductor remove " + e.Instance
	case st.Load == "masked":
		d.Text, d.Mend = st.Name+" is masked, so it cannot be started", "systemctl --user unmask "+st.Name
	case st.Load == "not-found":
		d.Text, d.Mend = "there is no unit file for "+st.Name, "gaia conductor enable "+e.Instance
	case enabled && e.Path == "":
		d.Text = st.Name + " was enabled by other means than gaia conductor enable, so its agents get the user manager's PATH"
		d.Mend = "gaia conductor enable " + e.Instance
	case !enabled && e.Path != "" && st.Running():
		d.Text, d.Mend = st.Name+" runs, but is not enabled: it does not start by itself", "gaia conductor enable "+e.Instance
	}
}

// Strangers returns the units of Gaia's that belong to none of the conductors of the registry, entries. What is enabled is
// loaded, as default.target and timers.target want it.
func Strangers(ctx context.Context, man *units.Manager, n units.Names, entries []registry.Entry) ([]Difference, error) {
	conductor, timer := n.Conductor("*"), n.ReapTimer("*")
	loaded, err := man.List(ctx, conductor, timer)
	if err != nil {
		return nil, err
	}
	var out []Difference
	for _, u := range loaded {
		instance := ""
		for _, pattern := range []string{conductor, timer} {
			before, after, _ := strings.Cut(pattern, "*")
			if rest, ok := strings.CutPrefix(u.Name, before); ok && strings.HasSuffix(rest, after) {
				instance = strings.TrimSuffix(rest, after)
			}
		}
		if slices.ContainsFunc(entries, func(e registry.Entry) bool { return e.Instance == instance }) {
			continue
		}
		st, err := man.Status(ctx, u.Name)
		if err != nil {
			return nil, err
		}
		d := Difference{Instance: instance, Unit: u.Name, Status: st}
		switch {
		case st.UnitFileState == "enabled" || st.UnitFileState == "enabled-runtime":
			d.Text, d.Mend = u.Name+" is enabled, but the registry has no such conductor", "systemctl --user disable --now "+u.Name
		case st.Running():
			d.Text, d.Mend = u.Name+" runs, but the registry has no such conductor", "systemctl --user stop "+u.Name
		case st.Active == "failed":
			d.Text, d.Mend = u.Name+" has failed, and the registry has no such conductor", "systemctl --user reset-failed "+u.Name
		default:
			continue // systemd forgets it by itself
		}
		out = append(out, d)
	}
	return out, nil
}
