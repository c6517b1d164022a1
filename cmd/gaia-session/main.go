// Command gaia-session runs inside the unit of one run: host is its main process, exec becomes the agent in the pane, post
// completes the record. It is started by systemd and by itself, never by people.
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

const exitUsage = 2

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
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
