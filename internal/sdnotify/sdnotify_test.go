package sdnotify_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/internal/sdnotify"
)

func TestAStatusIsOneAssignment(t *testing.T) {
	t.Parallel()
	require.Equal(t, "STATUS=a.toml: b is missing a.toml: MAINPID=1", sdnotify.Status("a.toml: b is missing\na.toml:\r\n\tMAINPID=1\n"))
}
