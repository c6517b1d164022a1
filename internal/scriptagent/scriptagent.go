// Package scriptagent is an agent without a model: a shell script that takes a ticket from qualification to done with the
// gaia command and real commits. The demo and the tests hand tickets to it where people would run a coding agent. It
// must not do anything that a real agent could not.
package scriptagent

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
)

//go:embed agent.sh
var script []byte

// What the agent does to a ticket that it takes from qualification to done.
const (
	Runs    = 4 // qualification, spec, coding, review
	Commits = 2 // both in coding
)

// CommentTypes are the types of the comments that it writes, in their order.
var CommentTypes = []string{"qualification", "spec", "summary", "acceptance"}

// Write writes the agent into a folder and returns its path, for the program of the profile script.
func Write(dir string) (string, error) {
	path := filepath.Join(dir, "script-agent")
	if err := os.WriteFile(path, script, 0o755); err != nil {
		return "", fmt.Errorf("write the script agent: %w", err)
	}
	return path, nil
}
