package domain

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// The names of the hooks, as conductor.toml and records spell them.
const (
	HookAfterCreate  = "after_create"
	HookBeforeRun    = "before_run"
	HookAfterRun     = "after_run"
	HookBeforeRemove = "before_remove"
)

// DefaultHookTimeout is how long a hook may take that names no timeout.
const DefaultHookTimeout = time.Minute

// Hooks are the scripts that a checkout wants to be run around its runs. Each is run by `sh -c`, in the worktree, with
// values in the environment only. They come from a commit, so none is run before a person has trusted their SHA256.
type Hooks struct {
	AfterCreate  Hook `json:"after_create,omitzero"`
	BeforeRun    Hook `json:"before_run,omitzero"`
	AfterRun     Hook `json:"after_run,omitzero"`
	BeforeRemove Hook `json:"before_remove,omitzero"`
}

// Hook is one script. The zero Hook is none.
type Hook struct {
	Script  string        `json:"script,omitempty"`
	Timeout time.Duration `json:"timeout,omitempty"` // nanoseconds
}

// Set reports whether there is something to run.
func (h Hook) Set() bool { return h.Script != "" }

// Named returns a hook by its name in conductor.toml.
func (h Hooks) Named(name string) (Hook, error) {
	switch name {
	case HookAfterCreate:
		return h.AfterCreate, nil
	case HookBeforeRun:
		return h.BeforeRun, nil
	case HookAfterRun:
		return h.AfterRun, nil
	case HookBeforeRemove:
		return h.BeforeRemove, nil
	}
	return Hook{}, fmt.Errorf("there is no hook %q", name)
}

// SHA256 identifies what the hooks do, in hex: the scripts and their names, not their timeouts nor their place in the
// file. It is "" where there are none, since then there is nothing to trust.
func (h Hooks) SHA256() string {
	scripts := [][2]string{}
	for _, s := range [][2]string{
		{HookAfterCreate, h.AfterCreate.Script}, {HookBeforeRun, h.BeforeRun.Script},
		{HookAfterRun, h.AfterRun.Script}, {HookBeforeRemove, h.BeforeRemove.Script},
	} {
		if s[1] != "" {
			scripts = append(scripts, s)
		}
	}
	if len(scripts) == 0 {
		return ""
	}
	data, err := json.Marshal(scripts)
	if err != nil {
		panic("marshalling strings: " + err.Error()) // strings always marshal
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
