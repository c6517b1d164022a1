// Package codingagent brings tests and the demo the real programs of coding agents, in the versions that
// packaging/agents pins, installed outside the tree by packaging/agents.sh. It must not be imported by anything that is
// installed, and it never uses an agent that happens to be on the machine.
package codingagent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Claude is the program of Claude Code.
const Claude = "claude"

const (
	// dirVar is the folder of the programs, and failedVar why there is none; both empty where there is no npm. The prefix
	// has them handed on to whoever runs under a user manager of its own.
	dirVar    = "GAIA_TEST_AGENTS"
	failedVar = "GAIA_TEST_AGENTS_FAILED"
)

// noNpm is the exit status of agents.sh where it would have to install something and has no npm.
const noNpm = 69

// Install makes sure that the programs are there, for this process and those that it starts. A TestMain calls it before it
// enters a user manager, where there may be no network. That it went wrong is told by Program.
func Install() {
	if _, ok := os.LookupEnv(dirVar); ok {
		return
	}
	dir, err := install()
	os.Setenv(dirVar, dir)
	if err != nil {
		os.Setenv(failedVar, err.Error())
	}
}

func install() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find packaging/agents.sh: %w", err)
	}
	script := filepath.Join("packaging", "agents.sh")
	for {
		if _, err := os.Stat(filepath.Join(dir, script)); err == nil {
			break
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find %s: run this from inside the source tree", script)
		}
		dir = filepath.Dir(dir)
	}
	var said bytes.Buffer
	cmd := exec.Command(filepath.Join(dir, script))
	cmd.Stderr = &said
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return strings.TrimSpace(string(out)), nil
	case errors.As(err, &exit) && exit.ExitCode() == noNpm:
		return "", nil
	}
	return "", fmt.Errorf("%s: %w\n%s", script, err, &said)
}

// ErrNoNpm says that the programs are not there because nothing can install them.
var ErrNoNpm = errors.New("npm, which installs the coding agents, is not here: sudo apt-get install npm")

// Program returns the path of an agent's program.
func Program(name string) (string, error) {
	dir := os.Getenv(dirVar)
	switch failed := os.Getenv(failedVar); {
	case failed != "":
		return "", errors.New(failed)
	case dir == "":
		return "", ErrNoNpm
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("the agent's program is not where it was installed: %w", err)
	}
	return path, nil
}

// Need is Program for a test, which is skipped only where there is no npm: packaging/test.sh then names it.
func Need(t testing.TB, name string) string {
	t.Helper()
	path, err := Program(name)
	if errors.Is(err, ErrNoNpm) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}
