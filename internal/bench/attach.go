package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/creack/pty"

	"gaia/remote"
)

const attachBudget = 1.5

// attach compares the time from `gaia attach` to the first screen with that of plain tmux on the same session.
func attach(ctx context.Context) (_ []result, err error) {
	w, err := newWorld(ctx, 5, 1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	t, err := w.ticket(ctx)
	if err != nil {
		return nil, err
	}
	if err := w.first(ctx); err != nil {
		return nil, err
	}
	runs, err := w.client.RunList(ctx, remote.Query{Filter: map[string][]string{"ticket": {t.ID}}})
	if err != nil {
		return nil, err
	}
	if len(runs) != 1 {
		return nil, fmt.Errorf("%s has %d runs and not one", t.Identifier, len(runs))
	}
	id := strings.ReplaceAll(runs[0].ID, "-", "")
	socket := filepath.Join(w.env.Runtime, w.env.Prefix, "r", id[len(id)-12:]+".sock")
	var byGaia, plain sample
	for i := range 22 {
		a, err := firstScreen(w.env.CommandContext(ctx, "tmux", "-u", "-N", "-S", socket, "attach-session"))
		if err != nil {
			return nil, err
		}
		b, err := firstScreen(w.env.CommandContext(ctx, "gaia", "attach", t.Identifier))
		if err != nil {
			return nil, err
		}
		if i > 0 {
			plain, byGaia = append(plain, a), append(byGaia, b)
		}
	}
	return []result{times("attach", byGaia, plain, attachBudget)}, nil
}

// firstScreen returns how long a command takes until it has drawn tmux's status line, and ends it.
func firstScreen(cmd *exec.Cmd) (took time.Duration, err error) {
	time.Sleep(settle / 3)
	begun := time.Now()
	f, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 50, Cols: 200})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", cmd.Args[0], err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // its end is that of the kill
		f.Close()
	}()
	if err := f.SetReadDeadline(begun.Add(30 * time.Second)); err != nil {
		return 0, fmt.Errorf("read what %s draws: %w", cmd.Args[0], err)
	}
	var screen strings.Builder
	buf := make([]byte, 32<<10)
	for !strings.Contains(screen.String(), "SHOP-") { // in the status line, which is drawn last
		n, err := f.Read(buf)
		screen.Write(buf[:n])
		if err != nil {
			return 0, fmt.Errorf("read what %s draws: %w\n%s", cmd.Args[0], err, screen.String())
		}
	}
	return time.Since(begun), nil
}
