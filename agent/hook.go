package agent

import (
	"context"
	"fmt"
	"time"

	"gaia/session"
)

// HookCall is one call by which an agent tells what it is doing. It is made in a process of its own, inside the run.
type HookCall struct {
	Folder session.Folder
	Input  []byte // as the agent gave it
	// Over asks the hub whether the run has ended, by its own state write or otherwise.
	Over func(context.Context) (bool, error)
	Now  func() time.Time
}

// Hook writes down for an agent's profile what the agent tells of itself, and returns what the agent is answered.
func Hook(ctx context.Context, agent string, c HookCall) ([]byte, error) {
	call := hooks[agent]
	if call == nil {
		return nil, fmt.Errorf("the agent %q has no status hooks", agent)
	}
	return call(ctx, c)
}

var hooks = map[string]func(context.Context, HookCall) ([]byte, error){Claude: claudeHookCall}

// EnvNames returns the names that runs of an agent take over from the user manager's environment, besides those that
// every run has.
func EnvNames(agent string) []string {
	if agent == Claude {
		return claudeEnv
	}
	return nil
}
