//go:build linux && !root

package usermanager

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestItIsAnOrdinaryUserOfARunningManager(t *testing.T) {
	require.NotZero(t, os.Geteuid())
	out, err := exec.Command("systemctl", "--user", "is-system-running", "--wait").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "running\n", string(out))
}

func TestTheWorkingDirectoryIsThePackage(t *testing.T) {
	dir, err := os.Getwd()
	require.NoError(t, err)
	require.Equal(t, "usermanager", filepath.Base(dir))
	require.FileExists(t, "usermanager_test.go")
}

func TestAUnitRunsAndIsGoneWithItsTest(t *testing.T) {
	var e Env
	t.Run("inner", func(t *testing.T) {
		e = New(t)
		out, err := e.Command("systemd-run", "--user", "--unit="+e.Prefix+"-run-a-1.service", "--slice="+e.Prefix+".slice", "sleep", "1000").CombinedOutput()
		require.NoError(t, err, "%s", out)
		dir := filepath.Join(configHome(), "systemd", "user")
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, e.Prefix+"-hub.service"), []byte("[Service]\nExecStart=sleep 1000\n"), 0o644))
		out, err = e.Command("systemctl", "--user", "start", e.Prefix+"-hub.service").CombinedOutput()
		require.NoError(t, err, "%s", out)
	})
	out, err := systemctl("list-units", "--all", "--plain", "--no-legend", e.Prefix+"*")
	require.NoError(t, err)
	require.Empty(t, strings.TrimSpace(out))
	require.NoDirExists(t, e.Home)
	require.NoFileExists(t, filepath.Join(configHome(), "systemd", "user", e.Prefix+"-hub.service"))
}

func TestTheJournalOfAUnitIsReadable(t *testing.T) {
	e := New(t)
	out, err := e.Command("systemd-run", "--user", "--wait", "--unit="+e.Prefix+"-run-a-1.service", "echo", "a word for the journal").CombinedOutput()
	require.NoError(t, err, "%s", out)
	e.WaitFor(t, func() bool { return strings.Contains(e.Story(), "a word for the journal") }, 10*time.Second, "the unit's line in the journal")
}
