//go:build linux

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/internal/codingagent"
	"gaia/internal/usermanager"
)

// TestDemoWithClaude is the demo with the real program. On a machine whose user is logged in nothing may be played, as it
// would cost money: there it is seen that the login is found.
func TestDemoWithClaude(t *testing.T) {
	program := codingagent.Need(t, codingagent.Claude)
	env := usermanager.New(t)
	s := stage{ctx: t.Context(), env: env}
	loggedIn, err := s.loggedIn(program)
	require.NoError(t, err)
	if loggedIn {
		p, err := claudePlayer(s)
		require.NoError(t, err)
		require.Contains(t, p.who, "your login")
		return
	}
	require.Contains(t, plays(t, codingagent.Claude), "The agent is the real claude on a scripted model, since it found no login.")
}

// TestTheLoginIsFound stands in for the program, as no test has a login.
func TestTheLoginIsFound(t *testing.T) {
	codingagent.Need(t, codingagent.Claude)
	s := stage{ctx: t.Context(), env: usermanager.New(t)}
	answers := func(name, script string) string {
		program := filepath.Join(s.env.Home, name)
		require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n[ \"$*\" = 'auth status' ] || exit 9\n"+script), 0o755))
		return program
	}
	in, err := s.loggedIn(answers("in", `echo '{"loggedIn": true, "authMethod": "x"}'`))
	require.NoError(t, err)
	require.True(t, in)
	in, err = s.loggedIn(answers("out", `echo '{"loggedIn": false}'; exit 1`))
	require.NoError(t, err)
	require.False(t, in)
	for _, program := range []string{answers("silent", "exit 0"), answers("broken", "echo no JSON; exit 1"), "/nonexistent/claude"} {
		_, err := s.loggedIn(program)
		require.ErrorContains(t, err, program)
	}
}
