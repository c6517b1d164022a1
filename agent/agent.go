// Package agent holds the closed profiles of the coding agents: for each, how to find its program, what to write into a
// run folder before it is started, and how to read what it left. A profile never runs a shell and never puts prompt text
// or a secret into an argument.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gaia/domain"
	"gaia/registry"
	"gaia/session"
)

// profiles makes an agent of each kind that Gaia knows.
var profiles = map[string]func(registry.AgentConfig) (domain.Agent, error){
	Claude: newClaude,
	Script: newScript,
}

// Known returns the names of the profiles, sorted.
func Known() []string { return slices.Sorted(maps.Keys(profiles)) }

// New returns the profile of an agent with a machine's settings for it.
func New(name string, c registry.AgentConfig) (domain.Agent, error) {
	make, ok := profiles[name]
	if !ok {
		return nil, fmt.Errorf("there is no agent %q; there are %s", name, strings.Join(Known(), ", "))
	}
	a, err := make(c)
	if err != nil {
		return nil, fmt.Errorf("agent %s: %w", name, err)
	}
	if len(c.Env) > 0 {
		a = withEnv{a, c.Env}
	}
	return a, nil
}

// withEnv is an agent whose runs have variables of their own, which its profile sees as it sees the others.
type withEnv struct {
	domain.Agent
	env map[string]string
}

func (a withEnv) over(env map[string]string) map[string]string {
	all := make(map[string]string, len(env)+len(a.env))
	maps.Copy(all, env)
	maps.Copy(all, a.env)
	return all
}

// Check implements domain.Agent.
func (a withEnv) Check(env map[string]string) error { return a.Agent.Check(a.over(env)) }

// Prepare implements domain.Agent.
func (a withEnv) Prepare(ctx context.Context, r domain.AgentRequest) (domain.AgentCommand, error) {
	r.Env = a.over(r.Env)
	cmd, err := a.Agent.Prepare(ctx, r)
	if err != nil {
		return domain.AgentCommand{}, err
	}
	// What the profile sets is a matter of the run and not of the machine.
	all := maps.Clone(a.env)
	maps.Copy(all, cmd.Env)
	cmd.Env = all
	return cmd, nil
}

// Available returns the agents of a machine whose program is found in the environment of a run, and why the others are
// not.
func Available(m registry.Machine, env map[string]string) (available map[string]domain.Agent, unavailable map[string]error) {
	available, unavailable = map[string]domain.Agent{}, map[string]error{}
	for name, c := range m.Agents {
		a, err := New(name, c)
		if err == nil {
			err = a.Check(env)
		}
		if err != nil {
			unavailable[name] = err
			continue
		}
		available[name] = a
	}
	return available, unavailable
}

// find returns the absolute path of a program in the PATH of a run. The conductor's own PATH and the present folder play
// no part.
func find(program string, env map[string]string) (string, error) {
	if strings.ContainsRune(program, '/') {
		if !filepath.IsAbs(program) {
			return "", fmt.Errorf("the program %s must be a name or an absolute path", program)
		}
		if err := executable(program); err != nil {
			return "", fmt.Errorf("the program %s: %w", program, err)
		}
		return program, nil
	}
	var denied error
	for _, dir := range filepath.SplitList(env["PATH"]) {
		if !filepath.IsAbs(dir) {
			continue
		}
		p := filepath.Join(dir, program)
		err := executable(p)
		if err == nil {
			return p, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && denied == nil {
			denied = fmt.Errorf("; %s: %w", p, err)
		}
	}
	e := fmt.Errorf("the program %s: %w; the PATH of a run is %q (gaia conductor enable captures that of your shell)", program, domain.ErrNotFound, env["PATH"])
	if denied != nil {
		e = fmt.Errorf("%w%w", e, denied)
	}
	return "", e
}

func executable(path string) error {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !st.Mode().IsRegular():
		return errors.New("is no program but something else")
	case st.Mode().Perm()&0o111 == 0:
		return errors.New("is not executable")
	}
	return nil
}

// Script is the name of the profile of plain commands: a program of any kind that reads GAIA_PROMPT and ends its run by
// `gaia ticket move`.
const Script = "script"

type script struct{ program []string }

func newScript(c registry.AgentConfig) (domain.Agent, error) {
	if len(c.Program) == 0 || c.Program[0] == "" {
		return nil, fmt.Errorf("machine.toml must name its program: [agents.%s] program = [\"/path/of/program\"]", Script)
	}
	return script{program: slices.Clone(c.Program)}, nil
}

// Name implements domain.Agent.
func (script) Name() string { return Script }

// Check implements domain.Agent.
func (s script) Check(env map[string]string) error {
	_, err := find(s.program[0], env)
	return err
}

// Prepare implements domain.Agent. The arguments are exactly those of machine.toml: what differs from run to run is in
// the environment.
func (s script) Prepare(_ context.Context, r domain.AgentRequest) (domain.AgentCommand, error) {
	program, err := find(s.program[0], r.Env)
	if err != nil {
		return domain.AgentCommand{}, err
	}
	return domain.AgentCommand{
		Argv: append([]string{program}, s.program[1:]...),
		Env:  map[string]string{"GAIA_PROMPT": r.PromptFile},
	}, nil
}

// Report implements domain.Agent. Of a plain command nothing is known but what it printed.
func (script) Report(_ context.Context, folder string) (domain.AgentReport, error) {
	out := session.Folder(folder).Path(session.FileOutput)
	if _, err := os.Stat(out); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return domain.AgentReport{}, nil
		}
		return domain.AgentReport{}, fmt.Errorf("looking for what the agent printed: %w", err)
	}
	return domain.AgentReport{Transcript: out}, nil
}
