package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gaia/session"
)

func TestParseCounter(t *testing.T) {
	t.Parallel()
	events := []byte("low 0\nhigh 3\nmax 12\noom 2\noom_kill 1\noom_group_kill 0\n")
	require.EqualValues(t, 1, parseCounter(events, "oom_kill"))
	require.EqualValues(t, 2, parseCounter(events, "oom"))
	require.EqualValues(t, 1048576, parseCounter([]byte("1048576\n"), ""))
	for _, bad := range []string{"", "max\n", "oom_kill -4", "oom_kill x", "oom_kill 99999999999999999999", "oom_kill"} {
		require.Zero(t, parseCounter([]byte(bad), "oom_kill"), bad)
		require.Zero(t, parseCounter([]byte(bad), ""), bad)
	}
}

func FuzzParseCounter(f *testing.F) {
	f.Add([]byte("oom_kill 1\n"), "oom_kill")
	f.Fuzz(func(t *testing.T, data []byte, key string) {
		if parseCounter(data, key) < 0 {
			t.Fatal("a count below zero")
		}
	})
}

// Whatever is written, two files hold its end, and neither is larger than the limit unless one write was.
func TestRotating(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "g")
		require.NoError(t, err)
		defer os.RemoveAll(dir)
		const limit = 64
		r := &rotating{path: filepath.Join(dir, "out"), limit: limit}
		require.NoError(t, r.open())
		var all strings.Builder
		for _, p := range rapid.SliceOf(rapid.StringMatching(`[a-z]{0,40}`)).Draw(t, "writes") {
			n, err := r.Write([]byte(p))
			require.NoError(t, err)
			require.Equal(t, len(p), n)
			all.WriteString(p)
		}
		require.NoError(t, r.Close())
		require.EqualValues(t, all.Len(), r.written.Load())
		older, err := os.ReadFile(r.path + ".1")
		if err != nil {
			require.ErrorIs(t, err, os.ErrNotExist)
		}
		newer, err := os.ReadFile(r.path)
		require.NoError(t, err)
		require.LessOrEqual(t, max(len(older), len(newer)), limit)
		kept := string(older) + string(newer)
		require.True(t, strings.HasSuffix(all.String(), kept))
		require.True(t, len(kept) == all.Len() || len(kept) > limit/3)
	})
}

// A program is looked for where the run looks for it, and nowhere else.
func TestLookPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "git"), []byte("#!/bin/sh\n"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "text"), nil, 0o600))
	got, err := lookPath("git", "/nowhere:"+dir)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "git"), got)
	for _, c := range [][2]string{{"git", "/nowhere"}, {"git", ""}, {"git", "."}, {"text", dir}} {
		_, err := lookPath(c[0], c[1])
		require.ErrorContains(t, err, c[0]+" is not in the run's PATH ("+c[1]+")")
	}
}

// What everybody who attaches can read is a short list of harmless names.
func TestServerEnv(t *testing.T) {
	t.Parallel()
	got := serverEnv(map[string]string{
		"HOME": "/h", "PATH": "/p", "LANG": "de_DE.UTF-8", "XDG_RUNTIME_DIR": "/run/user/1", "DBUS_SESSION_BUS_ADDRESS": "x",
		"GAIA_TOKEN_FILE": "/t", "API_KEY": "secret", "SSH_AUTH_SOCK": "/s", "TMUX": "x", "NOTIFY_SOCKET": "x",
	})
	require.Equal(t, map[string]string{"HOME": "/h", "LANG": "de_DE.UTF-8", "PATH": "/p"}, got)
}

// The gate is passed by nobody before it is opened, and a second pane is refused.
func TestGate(t *testing.T) {
	t.Parallel()
	folder := session.Folder(t.TempDir())
	require.Error(t, passGate(folder), "nothing was started")
	keep, err := folder.MarkStarted(session.Started{Run: "r"})
	require.NoError(t, err)
	require.NoError(t, keep())
	g, err := closeGate(folder)
	require.NoError(t, err)
	_, err = closeGate(folder)
	require.Error(t, err, "one host at a time")
	passed := make(chan error, 1)
	f, err := announce(folder)
	require.NoError(t, err)
	_, err = announce(folder)
	require.ErrorIs(t, err, os.ErrExist)
	go func() { passed <- passGate(folder) }()
	seen, err := awaitPane(t.Context(), folder, nil)
	require.NoError(t, err)
	require.Empty(t, passed)
	require.NoError(t, g.open(folder))
	require.NoError(t, <-passed)
	told := make(chan error, 1)
	go func() { told <- awaitAgent(t.Context(), seen) }()
	require.Empty(t, told, "the lock is still held")
	_, err = f.WriteString(`{"cause":"tree","text":"the wrong branch"}`)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	err = <-told
	require.EqualError(t, err, "the wrong branch")
	ended := make(chan struct{})
	close(ended)
	_, err = awaitPane(t.Context(), session.Folder(t.TempDir()), ended)
	require.ErrorIs(t, err, errEnded)
}

// The death of the host lets nobody in.
func TestGateOfADeadHost(t *testing.T) {
	t.Parallel()
	folder := session.Folder(t.TempDir())
	keep, err := folder.MarkStarted(session.Started{Run: "r"})
	require.NoError(t, err)
	require.NoError(t, keep())
	g, err := closeGate(folder)
	require.NoError(t, err)
	passed := make(chan error, 1)
	go func() { passed <- passGate(folder) }()
	g.close() // as the kernel does
	require.ErrorIs(t, <-passed, errNotLetIn)
}
