package e2e

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// TestConductorCommandsForPrograms: what the commands that look after units print on stdout is for programs alone.
func TestConductorCommandsForPrograms(t *testing.T) {
	t.Parallel()
	w := prepare(t, "gaia ticket move --workflow gaia_chore backlog", setting{})
	unit := w.names.Conductor(w.instance)
	var u struct{ Instance, Unit, Active, Enabled string }
	read := func(args ...string) {
		t.Helper()
		require.NoError(t, json.Unmarshal([]byte(w.gaia(append(args, "-o", "json")...)), &u))
		require.Equal(t, w.instance, u.Instance)
		require.Equal(t, unit, u.Unit)
	}
	read("conductor", "enable", w.instance)
	require.Equal(t, "inactive", u.Active)
	require.Equal(t, "enabled", u.Enabled)
	read("conductor", "start", w.instance)
	require.Equal(t, "active", u.Active)
	read("conductor", "restart", w.instance)
	require.Equal(t, "active", u.Active)

	var list, again []struct {
		Instance  string `json:"instance" yaml:"instance"`
		MachineID string `json:"machine_id" yaml:"machine_id"`
		Active    string `json:"active" yaml:"active"`
		PID       int    `json:"pid" yaml:"pid"`
		Conductor *struct {
			Status string `json:"status" yaml:"status"`
		} `json:"conductor" yaml:"conductor"`
	}
	require.NoError(t, json.Unmarshal([]byte(w.gaia("conductor", "list", "-o", "json")), &list))
	require.Len(t, list, 1)
	require.Equal(t, "ada.desk."+w.instance, list[0].MachineID)
	require.Equal(t, "active", list[0].Active)
	require.NotZero(t, list[0].PID)
	require.NotNil(t, list[0].Conductor)
	require.Equal(t, "online", list[0].Conductor.Status)
	require.NoError(t, yaml.Unmarshal([]byte(w.gaia("conductor", "list", "-o", "yaml")), &again))
	require.Equal(t, list, again)
	require.Equal(t, w.instance+"\n", w.gaia("conductor", "list", "-o", "name"))
	require.Equal(t, w.instance+"\n", w.gaia("conductor", "status", w.instance, "-o", "name"))
	status := w.gaia("conductor", "status", w.instance)
	require.Contains(t, status, "active, enabled")
	require.Contains(t, status, "says:")

	read("conductor", "disable", "--now", w.instance)
	require.Equal(t, "inactive", u.Active)
	require.Equal(t, "disabled", u.Enabled)
	out, err := w.env.Command("gaia", "conductor", "status", w.instance, "-o", "name").Output()
	require.Error(t, err, "it does not run")
	require.Equal(t, w.instance+"\n", string(out))
	out, err = w.env.Command("gaia", "conductor", "status", w.instance).Output()
	require.Error(t, err)
	require.Contains(t, string(out), "inactive, disabled")
	require.NotContains(t, string(out), "says:", "its last words are of another time")
}
