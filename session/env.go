package session

import (
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gaia/domain"
)

// DefaultPath is the PATH of a run where neither registry nor user manager has one.
const DefaultPath = "/usr/local/bin:/usr/bin:/bin"

// DefaultTerm is the TERM of a run: that of Gaia's tmux panes, whose terminal the agent sees.
const DefaultTerm = "tmux-256color"

// taken are the names that a run takes over from the user manager, besides XDG_*.
var taken = []string{
	"HOME", "USER", "LOGNAME", "SHELL", "TZ", "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS",
	"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy",
	"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY",
}

// gitSettings have the agent's git write each commit to the disk before it says that it is made: by itself it leaves the objects
// to the kernel, and a run that has ended with its ticket in the next state could lose its commits in a power cut.
// See core.fsync in git-config(1).
var gitSettings = map[string]string{"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsync", "GIT_CONFIG_VALUE_0": "committed"}

// EnvInput is what the environment of a run is made of.
type EnvInput struct {
	Manager map[string]string // the user manager's environment, read at each dispatch
	Path    string            // PATH captured by enable; "" is the manager's
	Bin     string            // folder of the gaia binaries; comes first in PATH
	Pass    []string          // `[env] pass` of machine.toml
	Profile []string          // names that the agent's profile wants
	Gaia    map[string]string // GAIA_*; see Folder.Variables
}

// Environment writes the environment of a run. Nothing is inherited: a name that is not listed is not there, so that no
// secret of hub or conductor, and no socket of a supervisor, ever reaches an agent.
func Environment(in EnvInput) map[string]string {
	env := map[string]string{}
	take := func(name string) {
		if v, ok := in.Manager[name]; ok && !reserved(name) && !strings.ContainsRune(v, 0) {
			env[name] = v
		}
	}
	for name := range in.Manager {
		if strings.HasPrefix(name, "XDG_") || slices.Contains(taken, name) {
			take(name)
		}
	}
	for _, name := range slices.Concat(in.Pass, in.Profile) {
		take(name)
	}
	env["LANG"] = "C.UTF-8"
	if lang := in.Manager["LANG"]; utf8Locale(lang) {
		env["LANG"] = lang
	}
	env["TERM"] = DefaultTerm
	env["PATH"] = searchPath(in)
	maps.Copy(env, gitSettings)
	for name, v := range in.Gaia {
		env[name] = v
	}
	return env
}

// utf8Locale reports whether a locale is one of UTF-8: in any other, tmux and agents show other letters as underscores.
func utf8Locale(s string) bool {
	s = strings.ToLower(s)
	return strings.HasSuffix(s, ".utf-8") || strings.HasSuffix(s, ".utf8")
}

// searchPath puts the folder of the gaia binaries first, so that an agent finds the gaia that its run belongs to.
func searchPath(in EnvInput) string {
	p := in.Path
	if p == "" {
		p = in.Manager["PATH"]
	}
	if p == "" {
		p = DefaultPath
	}
	if in.Bin == "" {
		return p
	}
	rest := slices.DeleteFunc(filepath.SplitList(p), func(dir string) bool { return dir == in.Bin })
	return strings.Join(append([]string{in.Bin}, rest...), string(filepath.ListSeparator))
}

// reserved reports whether a name is never taken over, whoever asks for it: what belongs to systemd's contract with
// another process, to the user's own tmux, the settings that a run's git gets, and Gaia's own names, which the run's own values must not be mixed with.
func reserved(name string) bool {
	switch name {
	case "NOTIFY_SOCKET", "INVOCATION_ID", "JOURNAL_STREAM", "MANAGERPID", "SYSTEMD_EXEC_PID", "PATH", "LANG", "TERM", "GIT_CONFIG_COUNT":
		return true
	}
	for _, prefix := range []string{"WATCHDOG_", "LISTEN_", "TMUX", "GAIA_", "GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// Variables returns the GAIA_* of a run. push is the checkout's `[workspace] push`; home is GAIA_HOME, "" where it is not
// set.
func (f Folder) Variables(s Spec, workflow, push string, t domain.Tree, home string) map[string]string {
	v := map[string]string{
		"GAIA_HUB": s.Hub, "GAIA_TICKET": s.Identifier, "GAIA_RUN": s.Run, "GAIA_TOKEN_FILE": f.Path(FileToken),
		"GAIA_PREFIX": s.Prefix, "GAIA_PROMPT": f.Path(FilePrompt), "GAIA_WORKTREE": t.Path,
		"GAIA_BRANCH": t.Branch, "GAIA_BASE": t.Base,
		"GAIA_STATE": s.State, "GAIA_WORKFLOW": workflow, "GAIA_ATTEMPT": strconv.Itoa(s.Attempt),
		"GAIA_PUSH": push,
	}
	if home != "" {
		v["GAIA_HOME"] = home
	}
	return v
}
