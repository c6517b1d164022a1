// Command gaia-session runs inside the unit of one run: host is its main process, exec becomes the agent in the pane, and post
// completes the record. It is started by systemd and by itself, never by people. Each run waits for two starts of it, and has
// one in memory to its end: it must not link what only the command gaia needs.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"gaia/internal/log"
	"gaia/session"
	"gaia/session/host"
)

const (
	exitFailed = 1
	exitUsage  = 2
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	if len(args) == 3 && args[0] == "hook" {
		fmt.Fprintln(os.Stderr, "gaia-session hook:", becomeHook(args[1:]))
		return exitFailed
	}
	if len(args) != 2 || !filepath.IsAbs(args[1]) {
		fmt.Fprintln(os.Stderr, "usage: gaia-session host|exec|post RUN-FOLDER\n\nIt is started by the unit of a run. To see runs: gaia run list")
		return exitUsage
	}
	folder := session.Folder(args[1])
	logger := log.New(log.Options{Name: "gaia-session"})
	switch args[0] {
	case "host":
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		return host.Host(ctx, folder, logger)
	case "exec":
		return host.Exec(folder, os.Stderr)
	case "post":
		return host.Post(folder, logger)
	}
	fmt.Fprintf(os.Stderr, "gaia-session: there is no %q; host, exec and post are what there is\n", args[0])
	return exitUsage
}

// becomeHook becomes `gaia agent-hook`, of which the settings of runs that were started before there was one do not know:
// their agents still call this program, and would take a wrong usage for a refusal of each of their tools. It returns only
// where that is not possible.
func becomeHook(args []string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	gaia := filepath.Join(filepath.Dir(self), "gaia")
	if err := syscall.Exec(gaia, append([]string{gaia, "agent-hook"}, args...), os.Environ()); err != nil {
		return fmt.Errorf("starting %s: %w", gaia, err)
	}
	return nil
}
