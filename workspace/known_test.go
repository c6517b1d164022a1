package workspace

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What is asked at every tick starts no process while nothing changes, and a change is seen by the next question.
func TestBaseStartsNoGit(t *testing.T) {
	f := newFixture(t)
	path := os.Getenv("PATH")
	quiet := func() (string, error) {
		t.Setenv("PATH", t.TempDir())
		defer t.Setenv("PATH", path)
		return f.Base(t.Context())
	}
	var was string
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		sha, err := f.Base(t.Context())
		require.NoError(t, err)
		if was, err = quiet(); err == nil {
			require.Equal(t, sha, was)
			break
		}
		require.True(t, time.Now().Before(end), "what is known is never kept: %v", err)
	}
	f.git(f.checkout, "commit", "--quiet", "--allow-empty", "-m", "On")
	f.git(f.checkout, "push", "--quiet")
	now, err := f.Base(t.Context())
	require.NoError(t, err)
	require.Equal(t, f.git(f.checkout, "rev-parse", "HEAD"), now)
	require.NotEqual(t, was, now)
}
