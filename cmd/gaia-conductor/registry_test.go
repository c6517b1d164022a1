//go:build linux

package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What was done behind Gaia's back is seen, and the command that is named puts it right.
func TestTheListTellsTheTruth(t *testing.T) {
	p := set(t, `sleep 1000`)
	type view struct {
		Instance, Active, Enabled, Differs, Mend string
	}
	list := func() map[string]view {
		t.Helper()
		cmd := p.env.Command("gaia", "conductor", "list", "-o", "json")
		cmd.Dir = p.env.Home
		out, err := cmd.Output()
		require.NoError(t, err)
		var all []view
		require.NoError(t, json.Unmarshal(out, &all))
		views := map[string]view{}
		for _, v := range all {
			views[v.Instance] = v
		}
		return views
	}
	mend := func(instance string) {
		t.Helper()
		words := strings.Fields(list()[instance].Mend)
		require.NotEmpty(t, words)
		cmd := p.env.Command(words[0], words[1:]...)
		cmd.Dir = p.env.Home
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", words, out)
	}
	systemctl := func(args ...string) {
		t.Helper()
		out, err := p.env.Systemctl(args...)
		require.NoError(t, err, out)
	}
	require.Equal(t, map[string]view{"shop": {"shop", "active", "enabled", "", ""}}, list())

	systemctl("disable", p.unit)
	v := list()["shop"]
	require.Equal(t, "disabled", v.Enabled)
	require.Contains(t, v.Differs, "does not start by itself")
	mend("shop")
	require.Equal(t, "enabled", list()["shop"].Enabled)
	require.Empty(t, list()["shop"].Differs)

	systemctl("mask", p.unit)
	require.Contains(t, list()["shop"].Differs, "masked")
	mend("shop")
	require.Empty(t, list()["shop"].Differs)

	ghost := p.names.Conductor("ghost")
	systemctl("enable", ghost, p.names.ReapTimer("ghost"))
	_, err := p.env.Systemctl("start", ghost)
	require.Error(t, err)
	for range 3 {
		if v, there := list()["ghost"]; there {
			require.Contains(t, v.Differs, "the registry has no such conductor")
			mend("ghost")
		}
	}
	require.NotContains(t, list(), "ghost")

	require.NoError(t, os.Rename(p.checkout, p.checkout+".moved"))
	require.Contains(t, list()["shop"].Differs, p.checkout+" is gone")
	mend("shop")
	require.Empty(t, list())
	out, err := p.env.Systemctl("is-active", p.unit)
	require.Error(t, err)
	require.Equal(t, "inactive", strings.TrimSpace(out))
	out, err = p.env.Systemctl("is-enabled", p.unit)
	require.Error(t, err)
	require.Equal(t, "disabled", strings.TrimSpace(out))

	// Moved, and set up again under its name.
	require.NoError(t, os.Rename(p.checkout+".moved", p.checkout))
	p.run("gaia", "init", "--instance", "shop", "--yes")
	p.run("gaia", "conductor", "enable", "--now")
	require.Empty(t, list()["shop"].Differs)
}
