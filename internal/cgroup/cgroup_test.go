package cgroup

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := parse([]byte("12:memory:/other\n1:name=systemd:/x\n0::/user.slice/a b.service\n"))
	require.NoError(t, err)
	require.Equal(t, "/user.slice/a b.service", got)
	_, err = parse([]byte("1:name=systemd:/x\n"))
	require.Error(t, err)
}

func TestRejoin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	procs := filepath.Join(dir, "cgroup.procs")
	require.ErrorIs(t, rejoin(dir), fs.ErrNotExist)
	require.NoFileExists(t, procs, "an ordinary folder stays as it is")
	require.NoError(t, os.WriteFile(procs, nil, 0o600))
	require.NoError(t, rejoin(dir))
	data, err := os.ReadFile(procs)
	require.NoError(t, err)
	require.Equal(t, "0", string(data))
}
