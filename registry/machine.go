package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"gaia/domain"
	"gaia/internal/durable"
)

// The permissions that an agent can be given.
const (
	PermissionsAsk   = "ask"   // the agent asks a person
	PermissionsEdits = "edits" // files and shell commands without asking
	PermissionsAll   = "all"   // everything; holds only with the checkout's entry in trust.toml
)

var permissions = oneOf(PermissionsAsk, PermissionsEdits, PermissionsAll)

// Machine is machine.toml: who uses this machine and what agents it has.
//
//	user_id = "ada"              # required
//	host_id = "desk"             # required
//	hub = "https://hub.example"  # default: the user's own hub
//	default_agent = "claude"
//
//	[agents.claude]
//	program = ["claude"]         # a name is looked up in the PATH of a run
//	permissions = "edits"        # default: that of the checkout
//
//	[agents.claude.env]          # for this agent's runs only
//	CLAUDE_CONFIG_DIR = "/home/ada/.claude-work"
//
//	[[route]]                    # the agent with the highest sum over a ticket's labels gets it
//	agent = "codex"
//	label = "backend"
//	score = 10
//
//	[env]
//	pass = ["GOPROXY"]           # names that runs take over from the user manager's environment
type Machine struct {
	UserID       string
	HostID       string
	Hub          string // "" is the user's own
	Agents       map[string]AgentConfig
	Routes       []domain.Route
	DefaultAgent string
	Env          struct{ Pass []string }
}

// AgentConfig is how a machine runs an agent.
type AgentConfig struct {
	Program     []string          // empty where the profile knows it
	Permissions string            // "" is the checkout's
	Env         map[string]string // set in the agent's runs, whatever the user manager has under these names
}

var (
	agentName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`) })
	envName   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })
)

func checkEnvName(s string) error {
	if !envName().MatchString(s) {
		return fmt.Errorf("%q is no name of an environment variable", s)
	}
	return nil
}

// environment reads a table of environment variables. Those of Gaia's own names would mix one run up with another.
func (t *table) environment(key string) map[string]string {
	env := t.sub(key)
	var all map[string]string
	for _, name := range slices.Sorted(maps.Keys(env.values)) {
		err := checkEnvName(name)
		if err == nil && strings.HasPrefix(name, "GAIA_") {
			err = fmt.Errorf("%s is set by Gaia", name)
		}
		if err != nil {
			env.known = append(env.known, name)
			env.fail(name, "%w", err)
			continue
		}
		if all == nil {
			all = map[string]string{}
		}
		all[name] = env.str(name, "", func(v string) error {
			if strings.ContainsRune(v, 0) {
				return errors.New("must not hold a zero byte")
			}
			return nil
		})
	}
	env.done()
	return all
}

func checkAgentName(s string) error {
	if !agentName().MatchString(s) {
		return fmt.Errorf("agent name %q must be a lower-case letter and at most 31 more of a-z, 0-9, _ and -", s)
	}
	return nil
}

// CheckHub returns an error unless s is the address of a hub.
func CheckHub(s string) error {
	path, unix := strings.CutPrefix(s, "unix://")
	switch {
	case unix && filepath.IsAbs(path):
		return nil
	case !unix && (strings.HasPrefix(s, "https://") || strings.HasPrefix(s, "http://")) && len(s) > len("https://"):
		return nil
	}
	return fmt.Errorf("%q is no hub: write unix:///path/of/socket or https://host", s)
}

// Machine reads machine.toml. A missing file, user_id or host_id is an error: neither is ever guessed.
func (h Home) Machine() (Machine, error) {
	path := h.MachineFile()
	data, err := h.load(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Machine{}, &ConfigError{File: path, Key: "user_id", Err: errors.New("the file does not exist: gaia init asks for user_id and host_id and writes it")}
	}
	if err != nil {
		return Machine{}, err
	}
	return ParseMachine(path, data)
}

// ParseMachine reads machine.toml; name is the file in errors.
func ParseMachine(name string, data []byte) (Machine, error) {
	t, err := parse(name, data)
	if err != nil {
		return Machine{}, err
	}
	m := Machine{
		UserID: t.identity("user_id"), HostID: t.identity("host_id"),
		Hub: t.str("hub", "", CheckHub), DefaultAgent: t.str("default_agent", "", checkAgentName),
	}
	t.each("agents", func(name string, a *table) {
		if err := checkAgentName(name); err != nil {
			a.fail("", "%w", err)
			return
		}
		c := AgentConfig{
			Program:     a.strings("program", nil),
			Permissions: a.str("permissions", "", permissions),
			Env:         a.environment("env"),
		}
		if a.has("program") && (len(c.Program) == 0 || c.Program[0] == "") {
			a.fail("program", "must name a program")
		}
		a.done()
		if m.Agents == nil {
			m.Agents = map[string]AgentConfig{}
		}
		m.Agents[name] = c
	})
	t.list("route", func(r *table) {
		route := domain.Route{
			Agent: r.str("agent", "", checkAgentName),
			Label: strings.ToLower(r.str("label", "", nil)),
			Score: int(r.integer("score", 1, -1000, 1000)),
		}
		for _, key := range []string{"agent", "label"} {
			if !r.has(key) {
				r.fail(key, "is missing")
			}
		}
		m.Routes = append(m.Routes, route)
	})
	env := t.sub("env")
	m.Env.Pass = env.strings("pass", checkEnvName)
	env.done()
	t.done()
	if err := t.doc.finish(); err != nil {
		return Machine{}, err
	}
	return m, nil
}

// identity reads a part of the machine_id.
func (t *table) identity(key string) string {
	if !t.has(key) {
		t.known = append(t.known, key)
		t.fail(key, "is missing; it names this %s to the hub, never changes by itself and is never guessed: write %s = \"name\" into the file",
			map[string]string{"user_id": "user", "host_id": "machine"}[key], key)
		return ""
	}
	return t.str(key, "", func(s string) error { return domain.CheckMachinePart(key, s) })
}

// WriteMachine creates machine.toml. domain.ErrExists: there is one, and it was not touched.
func (h Home) WriteMachine(m Machine) error {
	var b strings.Builder
	b.WriteString("# What this machine is and has. See gaia-machine.toml(5).\n")
	fmt.Fprintf(&b, "user_id = %s\nhost_id = %s\n", quote(m.UserID), quote(m.HostID))
	if m.Hub != "" {
		fmt.Fprintf(&b, "hub = %s\n", quote(m.Hub))
	}
	if m.DefaultAgent != "" {
		fmt.Fprintf(&b, "default_agent = %s\n", quote(m.DefaultAgent))
	}
	for _, name := range slices.Sorted(maps.Keys(m.Agents)) {
		a := m.Agents[name]
		fmt.Fprintf(&b, "\n[agents.%s]\n", name)
		if len(a.Program) > 0 {
			fmt.Fprintf(&b, "program = %s\n", quoteList(a.Program))
		}
		if a.Permissions != "" {
			fmt.Fprintf(&b, "permissions = %s\n", quote(a.Permissions))
		}
		if len(a.Env) > 0 {
			fmt.Fprintf(&b, "\n[agents.%s.env]\n", name)
			for _, variable := range slices.Sorted(maps.Keys(a.Env)) {
				fmt.Fprintf(&b, "%s = %s\n", variable, quote(a.Env[variable]))
			}
		}
	}
	for _, r := range m.Routes {
		fmt.Fprintf(&b, "\n[[route]]\nagent = %s\nlabel = %s\nscore = %d\n", quote(r.Agent), quote(r.Label), r.Score)
	}
	if len(m.Env.Pass) > 0 {
		fmt.Fprintf(&b, "\n[env]\npass = %s\n", quoteList(m.Env.Pass))
	}
	path := h.MachineFile()
	if _, err := ParseMachine(path, []byte(b.String())); err != nil {
		return fmt.Errorf("not written: %w", err)
	}
	if err := os.MkdirAll(h.Dir, 0o700); err != nil {
		return fmt.Errorf("making %s: %w", h.Dir, err)
	}
	return createNew(path, []byte(b.String()), 0o600)
}

// createNew creates a file; domain.ErrExists if it is there.
func createNew(path string, data []byte, perm fs.FileMode) error {
	err := durable.Create(path, data, perm)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s: %w", path, domain.ErrExists)
	}
	return err
}
