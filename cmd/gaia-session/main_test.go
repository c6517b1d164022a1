package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/session"
)

// call calls a program with something on its standard input.
func call(t *testing.T, in, program string, args ...string) (out, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	var o, e strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &o, &e
	if err := cmd.Run(); err != nil {
		require.IsType(t, &exec.ExitError{}, err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

// TestWhatIsNotLinked: a run waits for two starts of this program, and each of these is a part of a millisecond of it.
func TestWhatIsNotLinked(t *testing.T) {
	t.Parallel()
	out, stderr, code := call(t, "", "go", "list", "-deps", ".")
	require.Zero(t, code, stderr)
	linked := strings.Fields(out)
	require.Contains(t, linked, "gaia/session/host")
	for _, not := range []string{
		"net/http", "crypto/tls", "text/template", "github.com/godbus/dbus/v5", "go.yaml.in/yaml/v3", "github.com/BurntSushi/toml",
		"gaia/remote", "gaia/registry", "gaia/units", "gaia/agent",
	} {
		require.NotContains(t, linked, not, "go list -deps ./cmd/gaia-session; who imports it: go mod why, or go list -f '{{.ImportPath}} {{.Imports}}' -deps")
	}
}

// A run that was started before an upgrade has an agent whose settings have it call this program. A status of 2 would keep
// it from using any tool.
func TestAnAgentThatStillCallsThisProgram(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	_, stderr, code := call(t, "", "go", "build", "-o", bin, ".", "../gaia")
	require.Zero(t, code, stderr)
	folder, err := session.Create(filepath.Join(t.TempDir(), "it's %H"), session.Spec{Run: "r"}, "token")
	require.NoError(t, err)
	program := filepath.Join(bin, "gaia-session")

	out, stderr, code := call(t, `{"hook_event_name":"PreToolUse","tool_name":"Bash"}`, program, "hook", string(folder), "claude")
	require.Zero(t, code, stderr)
	require.Empty(t, out+stderr)
	activity, err := folder.Activity()
	require.NoError(t, err)
	require.Equal(t, domain.ActivityWorking, activity.Status)

	out, stderr, code = call(t, "nothing", program, "hook", string(folder), "claude")
	require.Equal(t, exitFailed, code)
	require.Empty(t, out)
	require.Contains(t, stderr, "cannot be read")

	require.NoError(t, os.Remove(filepath.Join(bin, "gaia")))
	out, stderr, code = call(t, "{}", program, "hook", string(folder), "claude")
	require.Equal(t, exitFailed, code)
	require.Empty(t, out)
	require.Contains(t, stderr, "starting "+filepath.Join(bin, "gaia"))
}
