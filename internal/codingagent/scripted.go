package codingagent

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync"

	"gaia/internal/model"
)

// claudeFile is what Claude Code keeps of a user who has started it once and answered its questions, with a key of whom
// nobody knows what it is for.
const claudeFile = `{"hasCompletedOnboarding": true, "theme": "dark", "aKeyOfALaterVersion": {"kept": "as it is"}}`

// ScriptedClaude makes a folder the place where Claude Code finds its user logged in, and returns the part of machine.toml
// by which it runs with that folder and with the model at a URL. Nothing of whoever runs this is read or changed.
func ScriptedClaude(program, url, folder string) (table string, err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", fmt.Errorf("make a place for the agent's settings: %w", err)
	}
	if err := os.WriteFile(filepath.Join(folder, ".claude.json"), []byte(claudeFile), 0o600); err != nil {
		return "", fmt.Errorf("write the agent's settings: %w", err)
	}
	// The login is that of a subscriber, to whom the program shows the limits of the subscription.
	return fmt.Sprintf(`[agents.claude]
program = [%q]

[agents.claude.env]
ANTHROPIC_BASE_URL = %q
CLAUDE_CODE_OAUTH_TOKEN = "sk-ant-oat01-scripted"
CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC = "1"
CLAUDE_CODE_MAX_RETRIES = "2"
CLAUDE_CONFIG_DIR = %q
`, program, url, folder), nil
}

var (
	promptFile  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\S+/prompt\.md`) })
	promptState = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("in the state `([a-z_]+)`") })
)

// Work is what a model does in a run: it reads the file that its first message names, as it is told to, and then follows
// the script of the state that it has read of there.
func Work(states map[string]model.Script) model.Script {
	return func(turn int, r model.Request) model.Step {
		if turn == 0 {
			path := promptFile().FindString(r.Opening())
			if path == "" {
				return model.Refused("the first message names no prompt")
			}
			return model.Use("Read", map[string]string{"file_path": path})
		}
		for _, m := range r.Messages {
			if found := promptState().FindStringSubmatch(m.Text()); found != nil && states[found[1]] != nil {
				return states[found[1]](turn-1, r)
			}
		}
		return model.Refused("the prompt tells of no state that has a script")
	}
}
