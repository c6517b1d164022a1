package units

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReplaced(t *testing.T) {
	t.Parallel()
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	program, err := os.ReadFile(sleep)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "daemon")
	put := func() { // as a package manager does
		require.NoError(t, os.WriteFile(path+".new", program, 0o755))
		require.NoError(t, os.Rename(path+".new", path))
	}
	put()
	cmd := exec.CommandContext(t.Context(), path, "1000")
	require.NoError(t, cmd.Start())
	replaced := func(pid int) bool {
		return Status{MainPID: uint32(pid)}.Replaced()
	}
	require.False(t, replaced(cmd.Process.Pid))
	put()
	require.True(t, replaced(cmd.Process.Pid))
	require.NoError(t, os.Remove(path))
	require.True(t, replaced(cmd.Process.Pid))
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.False(t, replaced(cmd.Process.Pid), "one that has ended")
	require.False(t, replaced(0))
}
