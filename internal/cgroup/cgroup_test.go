package cgroup

import (
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
