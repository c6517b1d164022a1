package session_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gaia/domain"
	"gaia/session"
)

func TestEnvironmentIsWrittenAndNotInherited(t *testing.T) {
	t.Parallel()
	manager := map[string]string{
		"HOME": "/home/ada", "USER": "ada", "LOGNAME": "ada", "SHELL": "/bin/zsh", "TZ": "Europe/Berlin", "PATH": "/manager",
		"LANG": "de_DE.UTF-8", "TERM": "dumb", "SSH_AUTH_SOCK": "/s", "https_proxy": "p", "NO_PROXY": "n",
		"XDG_RUNTIME_DIR": "/run/user/1000", "XDG_CONFIG_HOME": "/c", "DBUS_SESSION_BUS_ADDRESS": "unix:path=/b",
		"CLAUDE_CONFIG_DIR": "/cc", "GOPROXY": "g", "UNLISTED": "x",
		"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "LISTEN_FDS": "1", "LISTEN_PID": "1",
		"INVOCATION_ID": "i", "JOURNAL_STREAM": "j", "TMUX": "t", "TMUX_PANE": "%0", "TMUX_TMPDIR": "/t",
		"GAIA_HUB": "of another", "GAIA_TOKEN_FILE": "of another", "HUB_PASSWORD": "secret",
		"GIT_CONFIG_COUNT": "9", "GIT_CONFIG_KEY_0": "core.editor",
	}
	got := session.Environment(session.EnvInput{
		Manager: manager, Path: "/home/ada/bin:/opt/gaia:/usr/bin", Bin: "/opt/gaia",
		Pass:    []string{"GOPROXY", "ABSENT", "NOTIFY_SOCKET", "GAIA_TOKEN_FILE", "TMUX", "PATH", "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0"},
		Profile: []string{"CLAUDE_CONFIG_DIR", "LISTEN_FDS"},
		Gaia:    map[string]string{"GAIA_HUB": "unix:///h"},
	})
	require.Equal(t, map[string]string{
		"HOME": "/home/ada", "USER": "ada", "LOGNAME": "ada", "SHELL": "/bin/zsh", "TZ": "Europe/Berlin",
		"PATH": "/opt/gaia:/home/ada/bin:/usr/bin", "LANG": "de_DE.UTF-8", "TERM": "tmux-256color", "SSH_AUTH_SOCK": "/s",
		"https_proxy": "p", "NO_PROXY": "n", "XDG_RUNTIME_DIR": "/run/user/1000", "XDG_CONFIG_HOME": "/c",
		"DBUS_SESSION_BUS_ADDRESS": "unix:path=/b", "CLAUDE_CONFIG_DIR": "/cc", "GOPROXY": "g", "GAIA_HUB": "unix:///h",
		"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsync", "GIT_CONFIG_VALUE_0": "committed",
	}, got)
}

func TestPathAndLocaleHaveSafeValuesWhereNothingIsSet(t *testing.T) {
	t.Parallel()
	for lang, want := range map[string]string{
		"": "C.UTF-8", "C": "C.UTF-8", "de_DE": "C.UTF-8", "de_DE.ISO-8859-1": "C.UTF-8", "en_GB.utf8": "en_GB.utf8",
	} {
		env := session.Environment(session.EnvInput{Manager: map[string]string{"LANG": lang}})
		require.Equal(t, want, env["LANG"])
		require.Equal(t, session.DefaultPath, env["PATH"])
	}
	env := session.Environment(session.EnvInput{Manager: map[string]string{"PATH": "/m"}, Bin: "/b"})
	require.Equal(t, "/b:/m", env["PATH"])
}

func TestNoNameComesThroughThatNobodyListed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfN(rapid.SampledFrom([]string{
			"NOTIFY_SOCKET", "WATCHDOG_X", "LISTEN_FDNAMES", "INVOCATION_ID", "JOURNAL_STREAM", "TMUX", "TMUXX", "GAIA_X", "GIT_CONFIG_KEY_1", "A", "B", "C",
		}), 0, 12)
		manager := map[string]string{}
		for _, n := range names.Draw(t, "manager") {
			manager[n] = "v"
		}
		pass := names.Draw(t, "pass")
		for name := range session.Environment(session.EnvInput{Manager: manager, Pass: pass}) {
			switch name {
			case "PATH", "LANG", "TERM", "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0":
				continue
			}
			require.Contains(t, pass, name)
			for _, p := range []string{"NOTIFY", "WATCHDOG", "LISTEN", "INVOCATION", "JOURNAL", "TMUX", "GAIA_"} {
				require.False(t, strings.HasPrefix(name, p), name)
			}
		}
	})
}

func TestVariablesOfARun(t *testing.T) {
	t.Parallel()
	f := session.Folder("/state/runs/0190")
	spec := session.Spec{Run: "0190", Identifier: "SHOP-7", Hub: "unix:///h", Prefix: "gaia", State: "coding", Attempt: 2}
	want := map[string]string{
		"GAIA_HUB": "unix:///h", "GAIA_TICKET": "SHOP-7", "GAIA_RUN": "0190", "GAIA_TOKEN_FILE": "/state/runs/0190/token",
		"GAIA_PREFIX": "gaia", "GAIA_PROMPT": "/state/runs/0190/prompt.md", "GAIA_WORKTREE": "/t", "GAIA_STATE": "coding",
		"GAIA_WORKFLOW": "gaia_bug", "GAIA_ATTEMPT": "2", "GAIA_PUSH": "never", "GAIA_BRANCH": "gaia/SHOP-7", "GAIA_BASE": "1f2e3d",
	}
	tree := domain.Tree{Path: "/t", Branch: "gaia/SHOP-7", Base: "1f2e3d", Head: "a0"}
	require.Equal(t, want, f.Variables(spec, "gaia_bug", "never", tree, ""))
	want["GAIA_HOME"] = "/g"
	require.Equal(t, want, f.Variables(spec, "gaia_bug", "never", tree, "/g"))
}
