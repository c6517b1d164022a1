package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"gaia/domain"
	"gaia/internal/usermanager"
	"gaia/remote"
	"gaia/units"
)

const instance = "shop"

// world is one installation with a checkout and an agent that is a shell script.
type world struct {
	env      usermanager.Env
	names    units.Names
	checkout string
	signal   *os.File // what agents and the programs of floors write a line to as their first instruction
	client   *remote.Client
	project  domain.Project
}

// newWorld sets an installation up, with a checkout of some files, and starts a conductor for so many runs, with more lines
// of configuration. The caller closes it.
func newWorld(ctx context.Context, files, parallel int, more ...string) (_ *world, err error) {
	env, err := usermanager.NewEnv()
	if err != nil {
		return nil, err
	}
	w := &world{env: env, checkout: filepath.Join(env.Home, instance)}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	if w.names, err = units.NewNames(env.Prefix); err != nil {
		return nil, err
	}
	if err := w.agent(ctx); err != nil {
		return nil, err
	}
	if err := w.repository(ctx, files); err != nil {
		return nil, err
	}
	if err := os.Mkdir(env.GaiaHome, 0o700); err != nil {
		return nil, fmt.Errorf("make a home for Gaia: %w", err)
	}
	machine := fmt.Sprintf("user_id = \"ada\"\nhost_id = \"desk\"\ndefault_agent = \"script\"\n\n[agents.script]\nprogram = [%q]\n", w.program())
	if err := os.WriteFile(filepath.Join(env.GaiaHome, "machine.toml"), []byte(machine), 0o600); err != nil {
		return nil, fmt.Errorf("write machine.toml: %w", err)
	}
	if _, err := w.run(ctx, "gaia", "init", "--yes", "--key", "SHOP", "--slug", "shop", "--instance", instance, "--agent", "script"); err != nil {
		return nil, err
	}
	// The machine's load is the business of whoever measures; everything else is as it comes.
	conf := fmt.Sprintf("schema = 1\nproject = \"SHOP\"\nslug = \"shop\"\nmax_load = 0\nmax_parallel = %d\n%s\n", parallel, strings.Join(more, "\n"))
	if err := os.WriteFile(filepath.Join(w.checkout, ".gaia", "conductor.toml"), []byte(conf), 0o644); err != nil {
		return nil, fmt.Errorf("write conductor.toml: %w", err)
	}
	for _, step := range [][]string{
		{"git", "add", ".gaia"},
		{"git", "commit", "--quiet", "-m", "Let Gaia work here"},
		{"gaia", "conductor", "enable", "--now", instance},
	} {
		if _, err := w.run(ctx, step[0], step[1:]...); err != nil {
			return nil, err
		}
	}
	if w.client, err = remote.New(remote.Options{
		Hub: "unix://" + filepath.Join(env.Runtime, env.Prefix, "hub.sock"), User: "ada", Log: zerolog.Nop(),
	}); err != nil {
		return nil, err
	}
	w.project, err = w.client.ProjectByKey(ctx, "SHOP")
	return w, err
}

// Close ends everything and removes it.
func (w *world) Close() error {
	if w.client != nil {
		w.client.Close()
	}
	if w.signal != nil {
		w.signal.Close()
	}
	return w.env.Close()
}

func (w *world) program() string { return filepath.Join(w.env.Home, "agent.sh") }

// agent writes the program that is started, by Gaia and by the floors: it says that it is there, and waits.
func (w *world) agent(ctx context.Context) error {
	pipe := filepath.Join(w.env.Home, "signal")
	if _, err := w.run(ctx, "mkfifo", pipe); err != nil {
		return err
	}
	var err error
	// Open for both, so that neither side waits for the other to open it.
	if w.signal, err = os.OpenFile(pipe, os.O_RDWR, 0); err != nil {
		return fmt.Errorf("open the pipe of the agents: %w", err)
	}
	script := fmt.Sprintf("#!/bin/sh\necho >'%s'\nexec sleep 3600\n", pipe)
	if err := os.WriteFile(w.program(), []byte(script), 0o755); err != nil {
		return fmt.Errorf("write the agent: %w", err)
	}
	return nil
}

// first returns when a program has said that it is there.
func (w *world) first(ctx context.Context) error {
	deadline := time.Now().Add(2 * time.Minute)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := w.signal.SetReadDeadline(deadline); err != nil {
		return fmt.Errorf("wait for the program: %w", err)
	}
	if _, err := w.signal.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("wait for the program: %w\n%s", err, w.env.Story())
	}
	return nil
}

// repository makes a checkout of so many small files.
func (w *world) repository(ctx context.Context, files int) error {
	const folder = 100 // files in each
	for i := range files {
		dir := filepath.Join(w.checkout, fmt.Sprintf("d%03d", i/folder))
		if i%folder == 0 {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("make a repository: %w", err)
			}
		}
		text := bytes.Repeat(fmt.Appendf(nil, "line of file %d\n", i), 60)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%05d.txt", i)), text, 0o644); err != nil {
			return fmt.Errorf("make a repository: %w", err)
		}
	}
	for _, step := range [][]string{
		{"init", "--quiet", "--initial-branch=main"},
		{"add", "."},
		{"commit", "--quiet", "-m", "A shop"},
		{"repack", "-a", "-d", "--quiet"},
	} {
		if _, err := w.run(ctx, "git", step...); err != nil {
			return err
		}
	}
	return nil
}

// run runs a command in the checkout, or in the home where there is none yet.
func (w *world) run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := w.env.CommandContext(ctx, name, args...)
	if _, err := os.Stat(w.checkout); err == nil {
		cmd.Dir = w.checkout
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %q: %w\n%s", name, args, err, said.String())
	}
	return string(out), nil
}

// ticket creates a ticket that can be worked on at once, and returns it when the hub has answered.
func (w *world) ticket(ctx context.Context) (domain.Ticket, error) {
	return w.client.CreateTicket(ctx, domain.TicketDraft{Project: w.project.ID, Title: "Sell more"})
}

// cancel ends a ticket's work and returns when its run is closed.
func (w *world) cancel(ctx context.Context, ticket string) error {
	state := domain.StateCancelled
	if _, err := w.client.PatchTicket(ctx, ticket, domain.TicketPatch{State: &state}); err != nil {
		return err
	}
	return w.wait(ctx, "the run is closed", func() (bool, error) {
		runs, err := w.client.RunList(ctx, remote.Query{Filter: map[string][]string{"ticket": {ticket}}})
		for _, r := range runs {
			if r.FinalizedAt.IsZero() {
				return false, err
			}
		}
		return true, err
	})
}

// wait asks for a condition until it holds.
func (w *world) wait(ctx context.Context, what string, cond func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		ok, err := cond()
		if err != nil {
			return fmt.Errorf("wait until %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w\n%s", what, ctx.Err(), w.env.Story())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// load makes so many runs that do nothing, and returns when all of them run.
func (w *world) load(ctx context.Context, n int) error {
	for range n {
		if _, err := w.ticket(ctx); err != nil {
			return err
		}
	}
	for range n {
		if err := w.first(ctx); err != nil {
			return err
		}
	}
	return w.wait(ctx, "the hub knows that all run", func() (bool, error) {
		runs, err := w.client.RunList(ctx, remote.Query{Filter: map[string][]string{"state": {string(domain.RunRunning)}}, Limit: 50})
		return len(runs) == n, err
	})
}
