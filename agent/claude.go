package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"sync"

	"gaia/domain"
	"gaia/internal/durable"
	"gaia/registry"
	"gaia/session"
)

// Claude is the name of the profile of Claude Code, which works interactively in the pane.
const Claude = "claude"

// What the profile keeps in a run folder.
const (
	fileClaude         = "claude.json"          // claudeRun
	fileClaudeSettings = "claude-settings.json" // the program's settings for this run alone
	fileTranscript     = "transcript.jsonl"     // copy of the program's own transcript
)

// hookSeconds is how long the program waits for a status hook. One of them asks the hub.
const hookSeconds = 20

// claudeEnv are the names that runs take over from the user manager for this agent: how it reaches its model, and what its
// user has set for it in general. What one session of the program tells the next must not be among them.
var claudeEnv = []string{
	"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_BETAS", "ANTHROPIC_CUSTOM_HEADERS",
	"ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_MODEL",
	"ANTHROPIC_SMALL_FAST_MODEL",
	"API_TIMEOUT_MS", "BASH_DEFAULT_TIMEOUT_MS", "BASH_MAX_OUTPUT_LENGTH", "BASH_MAX_TIMEOUT_MS",
	"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "CLAUDE_CODE_MAX_OUTPUT_TOKENS", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_SUBAGENT_MODEL",
	"CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CONFIG_DIR",
	"DISABLE_ERROR_REPORTING", "DISABLE_TELEMETRY", "MAX_THINKING_TOKENS", "NODE_EXTRA_CA_CERTS",
}

type claude struct{ program []string }

func newClaude(c registry.AgentConfig) (domain.Agent, error) {
	if len(c.Program) == 0 {
		c.Program = []string{"claude"}
	}
	return claude{program: slices.Clone(c.Program)}, nil
}

// Name implements domain.Agent.
func (claude) Name() string { return Claude }

// Check implements domain.Agent.
func (c claude) Check(env map[string]string) error {
	_, err := find(c.program[0], env)
	return err
}

// claudeRun is what the profile must remember of a run until its report: the run's environment is gone by then.
type claudeRun struct {
	Sessions []string `json:"sessions"` // ids of the program's sessions: a person who clears one begins another
	Config   string   `json:"config"`   // folder of the program's transcripts and login
	State    string   `json:"state"`    // the program's own file of projects and costs
}

func readClaude(f session.Folder) (claudeRun, error) {
	var r claudeRun
	data, err := durable.Read(f.Path(fileClaude), maxSmall)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("reading %s: %w", f.Path(fileClaude), err)
	}
	return r, nil
}

func (r claudeRun) write(f session.Folder) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("writing down the agent's session: %w", err)
	}
	return durable.Replace(f.Path(fileClaude), append(data, '\n'), 0o600)
}

const maxSessions = 100

// begun writes down that the program has begun another session.
func (r claudeRun) begun(f session.Folder, id string) error {
	if !sessionID().MatchString(id) || slices.Contains(r.Sessions, id) || len(r.Sessions) >= maxSessions {
		return nil
	}
	r.Sessions = append(r.Sessions, id)
	return r.write(f)
}

// sessionID is what a session may be called, since files are named by it.
var sessionID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-fA-F-]{36}$`) })

// Prepare implements domain.Agent. The first session has the run's id, so that its transcript is found whatever the program calls
// the rest.
func (c claude) Prepare(ctx context.Context, r domain.AgentRequest) (domain.AgentCommand, error) {
	program, err := find(c.program[0], r.Env)
	if err != nil {
		return domain.AgentCommand{}, err
	}
	folder := session.Folder(r.Folder)
	spec, err := folder.Load()
	if err != nil {
		return domain.AgentCommand{}, err
	}
	tree, err := filepath.EvalSymlinks(r.Tree.Path)
	if err != nil {
		return domain.AgentCommand{}, fmt.Errorf("looking for the worktree: %w", err)
	}
	mode, settings, err := claudeSettings(r, filepath.Join(spec.GaiaBin, "gaia"))
	if err != nil {
		return domain.AgentCommand{}, err
	}
	config, state, err := claudeState(r.Env)
	if err != nil {
		return domain.AgentCommand{}, err
	}
	trusted, err := trustClaude(ctx, state, tree, r.Env["ANTHROPIC_API_KEY"])
	if err != nil {
		return domain.AgentCommand{}, err
	}
	if err := (claudeRun{Sessions: []string{r.Run.ID}, Config: config, State: state}).write(folder); err != nil {
		return domain.AgentCommand{}, err
	}
	if err := durable.Replace(folder.Path(fileClaudeSettings), append(settings, '\n'), 0o600); err != nil {
		return domain.AgentCommand{}, err
	}
	argv := append([]string{program}, c.program[1:]...)
	argv = append(argv, "--session-id", r.Run.ID, "--settings", folder.Path(fileClaudeSettings), "--permission-mode", mode)
	if main := mainTree(tree); r.Permissions != registry.PermissionsAll && (main == "" || !claudeTrusts(trusted, main)) {
		// That the worktree is trusted was Gaia's answer, not that of a person. What the repository would have the program run
		// or allow counts only where its user has trusted the repository.
		argv = append(argv, "--setting-sources", "user")
	}
	// An option before it that takes several values would swallow the sentence.
	argv = append(argv, "--", "Read the file "+r.PromptFile+" and do what it says.")
	return domain.AgentCommand{Argv: argv, Env: map[string]string{
		// A program that replaces itself in the middle of a run is another one than its user has tried.
		"DISABLE_AUTOUPDATER": "1",
	}}, nil
}

// claudeHook is one call of the program's hooks: a program with arguments, no line for a shell.
type claudeHook struct {
	Type    string   `json:"type"`
	Command string   `json:"command"`
	Args    []string `json:"args"`
	Timeout int      `json:"timeout"`
}

type claudeHooks struct {
	Hooks []claudeHook `json:"hooks"`
}

type claudePermissions struct {
	Allow []string `json:"allow"`
}

type claudeOptions struct {
	Hooks       map[string][]claudeHooks `json:"hooks"`
	Permissions claudePermissions        `json:"permissions"`
	SkipBypass  bool                     `json:"skipDangerousModePermissionPrompt,omitempty"`
}

// claudeSettings returns the program's permission mode and its settings for one run. hooks is the program that they call.
func claudeSettings(r domain.AgentRequest, hooks string) (mode string, settings []byte, err error) {
	o := claudeOptions{
		Hooks: map[string][]claudeHooks{},
		// The prompt lies outside of the worktree, and what a ticket may be written to is the hub's to decide.
		Permissions: claudePermissions{Allow: []string{"Read(/" + r.PromptFile + ")", "Bash(gaia ticket:*)"}},
	}
	switch r.Permissions {
	case registry.PermissionsAsk:
		mode = "default"
	case registry.PermissionsEdits:
		mode = "acceptEdits"
		o.Permissions.Allow = append(o.Permissions.Allow, "Bash")
	case registry.PermissionsAll:
		mode = "bypassPermissions"
		o.SkipBypass = true // a person has allowed it for this checkout, and the program would ask again
	default:
		return "", nil, fmt.Errorf("the permissions %q are none that %s knows", r.Permissions, Claude)
	}
	for _, event := range claudeEvents {
		o.Hooks[event] = []claudeHooks{{Hooks: []claudeHook{{
			Type: "command", Command: hooks, Args: []string{"agent-hook", r.Folder, Claude}, Timeout: hookSeconds,
		}}}}
	}
	settings, err = json.MarshalIndent(o, "", "  ")
	if err != nil {
		return "", nil, fmt.Errorf("writing the settings of %s: %w", Claude, err)
	}
	return mode, settings, nil
}
