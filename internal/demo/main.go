// Command demo shows Gaia at work: a hub and a conductor as systemd units, a sample repository, and one ticket that an
// agent takes from its creation to done. It uses nothing but the gaia command, as a person would, under a prefix and a
// home of its own, and leaves nothing behind. Where PID 1 is not systemd it brings a user manager of its own.
//
// Its argument names the agent: script, which needs no model, or claude, the real program. That one uses the login of its
// user where it finds one, and a scripted model otherwise. With a login the program's own files about the session, its
// transcript among them, are the user's and stay.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gaia/domain"
	"gaia/internal/codingagent"
	"gaia/internal/render"
	"gaia/internal/usermanager"
)

// limit is far more than the demo needs on a slow machine, or a model that thinks.
const limit = 30 * time.Minute

func main() {
	agent := "script"
	if len(os.Args) > 1 {
		agent = os.Args[1]
	}
	if players[agent] == nil || len(os.Args) > 2 {
		fmt.Fprintf(os.Stderr, "usage: demo [%s]\n", strings.Join(slices.Sorted(maps.Keys(players)), "|"))
		os.Exit(2)
	}
	if agent == codingagent.Claude {
		codingagent.Install()
	}
	code, isInside := usermanager.Run(os.Args[1:])
	if !isInside {
		os.Exit(code)
	}
	if err := demo(os.Stdout, agent); err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

// demo writes what happens to out; its last line is the result, and is there only if all went well and nothing is left.
func demo(out io.Writer, agent string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	env, err := usermanager.NewEnv()
	if err != nil {
		return err
	}
	s := stage{ctx: ctx, env: env, out: out, checkout: filepath.Join(env.Home, "demo")}
	result := ""
	defer func() {
		if err != nil {
			fmt.Fprintln(out, env.Story())
		}
		if err = errors.Join(err, env.Close()); err == nil {
			fmt.Fprintln(out, result)
		}
	}()
	if err := s.repository(); err != nil {
		return err
	}
	player, err := players[agent](s)
	if err != nil {
		return err
	}
	defer player.leave()
	fmt.Fprintln(out, "The agent is "+player.who+".")
	if err := s.machine(agent, player.table); err != nil {
		return err
	}
	for _, step := range [][]string{
		{"gaia", "init", "--yes", "--user-id", "demo", "--host-id", "here", "--key", "DEMO", "--slug", "demo", "--instance", "demo", "--agent", agent},
		{"git", "add", ".gaia"},
		{"git", "commit", "--quiet", "-m", "Let Gaia work on this repository"},
		{"gaia", "conductor", "enable", "--now"},
		{"gaia", "ticket", "create", "Greet whoever reads this repository"},
	} {
		if err := s.show(step...); err != nil {
			return err
		}
	}
	runs, err := s.follow("DEMO-1")
	if err != nil {
		return err
	}
	for _, step := range [][]string{
		{"gaia", "run", "list"},
		{"git", "log", "--oneline", "main..gaia/DEMO-1"},
		{"gaia", "hub", "verify"},
	} {
		if err := s.show(step...); err != nil {
			return err
		}
	}
	commits, err := s.output("git", "rev-list", "--count", "main..gaia/DEMO-1")
	if err != nil {
		return err
	}
	result = fmt.Sprintf("demo: DEMO-1 done, %d runs, %s commits, log verified", runs, strings.TrimSpace(commits))
	return nil
}

// stage is where the demo plays.
type stage struct {
	ctx      context.Context
	env      usermanager.Env
	out      io.Writer
	checkout string
}

// repository makes a small repository to work on.
func (s stage) repository() error {
	if err := os.MkdirAll(s.checkout, 0o755); err != nil {
		return fmt.Errorf("make the sample repository: %w", err)
	}
	for name, text := range map[string]string{
		"README.md":   "# Demo\n\nA repository for Gaia to work on.\n",
		"WORKFLOW.md": "# How we work\n\nOne greeting a file, in `greetings/`. Every greeting is named in `greetings/INDEX`.\n",
	} {
		if err := os.WriteFile(filepath.Join(s.checkout, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("make the sample repository: %w", err)
		}
	}
	for _, step := range [][]string{
		{"git", "init", "--quiet", "--initial-branch=main"},
		// Runs get the user manager's home, where there may be no identity.
		{"git", "config", "user.name", "Gaia Demo"},
		{"git", "config", "user.email", "demo@gaia.invalid"},
		{"git", "add", "."},
		{"git", "commit", "--quiet", "-m", "A repository for Gaia to work on"},
	} {
		if _, err := s.output(step...); err != nil {
			return err
		}
	}
	return nil
}

// machine says which agent this machine has.
func (s stage) machine(agent, table string) error {
	if err := os.Mkdir(s.env.GaiaHome, 0o700); err != nil {
		return fmt.Errorf("make a home for Gaia: %w", err)
	}
	text := fmt.Sprintf("user_id = \"demo\"\nhost_id = \"here\"\ndefault_agent = %q\n\n%s", agent, table)
	if err := os.WriteFile(filepath.Join(s.env.GaiaHome, "machine.toml"), []byte(text), 0o600); err != nil {
		return fmt.Errorf("write machine.toml: %w", err)
	}
	return nil
}

// ticket is the part of `gaia ticket show -o json` that the demo looks at.
type ticket struct {
	domain.Ticket
	Comments []domain.Comment `json:"comments"`
	Runs     []domain.Run     `json:"runs"`
}

// follow tells a ticket's story until it is done and its last run is closed. It returns the number of runs.
func (s stage) follow(identifier string) (int, error) {
	var state, shown string
	comments := 0
	for {
		text, err := s.output("gaia", "ticket", "show", identifier, "-o", "json")
		if err != nil {
			return 0, err
		}
		var t ticket
		if err := json.Unmarshal([]byte(text), &t); err != nil {
			return 0, fmt.Errorf("read what gaia ticket show prints: %w", err)
		}
		for ; comments < len(t.Comments); comments++ {
			fmt.Fprintf(s.out, "  %-14s %s\n", t.Comments[comments].Type+":", t.Comments[comments].Body)
		}
		state = t.State
		now := state
		for _, r := range t.Runs {
			if r.State.Live() {
				now = fmt.Sprintf("%s, run %d", state, r.Number)
			}
		}
		if now != shown {
			shown = now
			if err := s.show("gaia", "board"); err != nil {
				return 0, err
			}
		}
		open := 0
		for _, r := range t.Runs {
			if r.EndReason != "" {
				return 0, fmt.Errorf("run %d failed: %s %s", r.Number, r.EndReason, r.EndNote)
			}
			if r.FinalizedAt.IsZero() {
				open++
			}
		}
		switch {
		case state == "done" && open == 0:
			return len(t.Runs), nil
		case state == "human_input" || t.Hold != nil:
			return 0, fmt.Errorf("%s waits for a person, which was not planned", identifier)
		}
		select {
		case <-s.ctx.Done():
			return 0, fmt.Errorf("%s is in %s and was not done within %s", identifier, state, limit)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (s stage) command(words ...string) *exec.Cmd {
	cmd := s.env.CommandContext(s.ctx, words[0], words[1:]...)
	cmd.Dir = s.checkout
	return cmd
}

// output runs a command and returns what it prints.
func (s stage) output(words ...string) (string, error) {
	cmd := s.command(words...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(words, " "), err, said.String())
	}
	return string(out), nil
}

// show runs a command as a person would see it.
func (s stage) show(words ...string) error {
	fmt.Fprintln(s.out, "$ "+render.Command(words...))
	cmd := s.command(words...)
	cmd.Stdout, cmd.Stderr = s.out, s.out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(words, " "), err)
	}
	return nil
}
