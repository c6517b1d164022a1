package doctor

import (
	"context"
	"time"

	"gaia/units"
)

func (d *doctor) hub(ctx context.Context) {
	// Not start, which does nothing where the unit is active and its socket was removed by hand.
	start := "systemctl --user restart " + d.Names.HubSocket()
	if d.Elsewhere != "" {
		start = "see on its machine whether the hub at " + d.Elsewhere + " is up"
	}
	if d.Hub == nil {
		if d.identity == nil { // a client needs to know who it is
			start = "gaia init"
		}
		d.add("hub", Fail, start, "%v", d.HubErr)
		return
	}
	live, ready := d.Hub.Health(ctx)
	switch {
	case live != nil:
		d.add("hub", Fail, start, "%v", live)
		if d.Elsewhere == "" && d.man != nil {
			d.startHub(ctx)
		}
		return
	case ready != nil && d.Elsewhere != "":
		d.add("hub", Fail, start, "it answers, but cannot read and write: %v", ready)
		return
	case ready != nil:
		d.add("hub", Fail, "journalctl --user -u "+d.Names.Hub(), "it answers, but cannot read and write: %v", ready)
		return
	}
	if mend := d.replacedHub(ctx); mend != "" {
		d.add("hub", Warn, mend, "it answers, but is a program that has been replaced since, by an upgrade for one")
	} else {
		d.add("hub", OK, "", "answers, and can read and write")
	}
	asked := time.Now()
	now, err := d.Hub.Now(ctx)
	if err != nil {
		d.add("clock", Warn, "", "the hub's clock cannot be read: %v", err)
		return
	}
	if skew := now.Sub(asked); skew.Abs() > clockSkew+time.Since(asked) {
		d.add("clock", Warn, "timedatectl set-ntp true", "this clock differs from the hub's by %s", skew.Round(time.Second))
		return
	}
	d.add("clock", OK, "", "agrees with the hub's")
}

// startHub says how the user's own hub is started, where its socket is merely not up. One that has failed, or is up and
// silent, is for a person to look at.
func (d *doctor) startHub(ctx context.Context) {
	socket := d.Names.HubSocket()
	if st, err := d.man.Status(ctx, socket); err != nil || st.Load != "loaded" || st.Active != "inactive" {
		return
	}
	d.fixable("", d.withManager(func(ctx context.Context, man *units.Manager) (string, error) {
		return "started " + socket, man.Start(ctx, socket)
	}))
}

// replacedHub returns the command that puts the present program in the place of a hub that was started before an upgrade,
// and "" where nothing is known of such a hub.
func (d *doctor) replacedHub(ctx context.Context) string {
	if d.man == nil || d.Elsewhere != "" {
		return ""
	}
	st, err := d.man.Status(ctx, d.Names.Hub())
	if err != nil || !st.Replaced() {
		return ""
	}
	mend := "systemctl --user restart " + d.Names.Hub()
	if st.NeedDaemonReload {
		return "systemctl --user daemon-reload, then: " + mend
	}
	return mend
}
