package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// What a dispatch may take, as a multiple of what the shell script takes. A large tree is checked out by all processors,
// which the script does not do.
const (
	smallBudget = 1.5
	largeBudget = 0.7
	// From a spare worktree, which is there before the ticket is.
	smallWarmBudget = 1.0
	largeWarmBudget = 0.1
)

func dispatchSmall(ctx context.Context) ([]result, error) {
	return dispatch(ctx, "dispatch_small", 50, 15, 0, smallBudget)
}

func dispatchSmallWarm(ctx context.Context) ([]result, error) {
	return dispatch(ctx, "dispatch_small_warm", 50, 15, 1, smallWarmBudget)
}

func dispatch30k(ctx context.Context) ([]result, error) {
	return dispatch(ctx, "dispatch_30k", 30_000, 5, 0, largeBudget)
}

func dispatch30kWarm(ctx context.Context) ([]result, error) {
	return dispatch(ctx, "dispatch_30k_warm", 30_000, 5, 1, largeWarmBudget)
}

// byHand is what a person would do: a worktree, a look at it, a session with the program. The tmux server is up already.
const byHand = `#!/bin/sh
set -eu
git -C "$1" worktree add --quiet --no-track -b "floor/$2" "$3" main
git -C "$3" status >/dev/null
tmux -S "$4" new-session -d -x 200 -y 50 -s "$2" -c "$3" "$5"
`

// dispatch compares the time from the ticket's write to the agent's first instruction with the script's. Before each round
// it waits until the spare worktrees are there.
func dispatch(ctx context.Context, name string, files, rounds, spares int, budget float64) (_ []result, err error) {
	w, err := newWorld(ctx, files, 1, "[workspace]", fmt.Sprintf("spares = %d", spares))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	socket := filepath.Join(w.env.Home, "tmux")
	if _, err := w.run(ctx, "tmux", "-S", socket, "new-session", "-d", "-s", "mine", "sleep 3600"); err != nil {
		return nil, err
	}
	defer func() {
		_, killErr := w.run(context.WithoutCancel(ctx), "tmux", "-S", socket, "kill-server")
		err = errors.Join(err, killErr)
	}()
	var runs, floor sample
	for i := range rounds + 1 {
		if err := w.wait(ctx, "the spare worktrees are there", func() (bool, error) {
			n, err := w.spares(ctx)
			return n >= spares, err
		}); err != nil {
			return nil, err
		}
		byScript, err := w.floor(ctx, socket, i)
		if err != nil {
			return nil, err
		}
		byGaia, err := w.dispatch(ctx, i)
		if err != nil {
			return nil, err
		}
		if i > 0 { // the first one warms the caches
			runs, floor = append(runs, byGaia), append(floor, byScript)
		}
	}
	return []result{times(name, runs, floor, budget)}, nil
}

// settle is how long the machine is left alone before a time is taken, so that the end of the one before is over.
const settle = 300 * time.Millisecond

func (w *world) floor(ctx context.Context, socket string, i int) (time.Duration, error) {
	script := filepath.Join(w.env.Home, "floor.sh")
	if err := os.WriteFile(script, []byte(byHand), 0o755); err != nil {
		return 0, fmt.Errorf("write the floor's script: %w", err)
	}
	tree, name := filepath.Join(w.env.Home, "floor", fmt.Sprint(i)), fmt.Sprintf("n%d", i)
	if err := os.MkdirAll(filepath.Dir(tree), 0o755); err != nil {
		return 0, fmt.Errorf("make a folder: %w", err)
	}
	time.Sleep(settle)
	begun := time.Now()
	if _, err := w.run(ctx, script, w.checkout, name, tree, socket, w.program()); err != nil {
		return 0, err
	}
	if err := w.first(ctx); err != nil {
		return 0, err
	}
	took := time.Since(begun)
	if _, err := w.run(ctx, "tmux", "-S", socket, "kill-session", "-t", "="+name); err != nil {
		return 0, err
	}
	return took, w.retire(ctx, tree, i)
}

// retire takes a worktree out of the repository. Its files stay until the end: where many were removed, ext4 without a journal
// is slow to make others for minutes.
func (w *world) retire(ctx context.Context, tree string, i int) error {
	aside := filepath.Join(w.env.Home, "retired", fmt.Sprint(i), filepath.Base(tree))
	if err := os.MkdirAll(filepath.Dir(aside), 0o755); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	if err := os.Rename(tree, aside); err != nil {
		return fmt.Errorf("set a worktree aside: %w", err)
	}
	_, err := w.run(ctx, "git", "worktree", "prune", "--expire=now")
	return err
}

// spares counts the spare worktrees that are complete.
func (w *world) spares(ctx context.Context) (int, error) {
	trees, err := w.run(ctx, "git", "worktree", "list", "--porcelain")
	n := 0
	for tree := range strings.SplitSeq(trees, "\n\n") {
		path, rest, _ := strings.Cut(tree, "\n")
		if strings.HasPrefix(filepath.Base(path), ".spare-") && !strings.Contains(rest, "locked") {
			n++
		}
	}
	return n, err
}

func (w *world) dispatch(ctx context.Context, i int) (time.Duration, error) {
	time.Sleep(settle)
	t, err := w.ticket(ctx)
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	if err := w.first(ctx); err != nil {
		return 0, err
	}
	took := time.Since(begun)
	if err := w.cancel(ctx, t.ID); err != nil {
		return 0, err
	}
	trees, err := w.run(ctx, "git", "worktree", "list", "--porcelain")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(trees) {
		if tree, ok := strings.CutPrefix(strings.TrimSpace(line), "worktree "); ok && filepath.Base(tree) == t.Identifier {
			err = w.retire(ctx, tree, i)
		}
	}
	return took, err
}
