//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/internal/codingagent"
	"gaia/internal/scriptagent"
	"gaia/internal/usermanager"
)

func TestMain(m *testing.M) {
	codingagent.Install()
	usermanager.Main(m)
}

// TestDemo takes a ticket from its creation to done through the installed commands and real units.
func TestDemo(t *testing.T) { plays(t, "script") }

// plays has an agent play the demo and returns what the audience sees.
func plays(t *testing.T, agent string) string {
	t.Setenv("TMPDIR", t.TempDir())
	var out bytes.Buffer
	require.NoError(t, demo(&out, agent), "%s", &out)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Equal(t, fmt.Sprintf("demo: DEMO-1 done, %d runs, %d commits, log verified", scriptagent.Runs, scriptagent.Commits), lines[len(lines)-1])
	require.Contains(t, out.String(), "\n$ gaia ticket create 'Greet whoever reads this repository'\n")
	for _, kind := range scriptagent.CommentTypes {
		require.Contains(t, out.String(), "  "+kind+":")
	}
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Empty(t, left, "the demo leaves nothing behind")
	return out.String()
}
