// Command gaia-session runs inside the unit of one run: host is its main process, exec becomes the agent in the pane, post
// completes the record, hook is what the agent calls to tell what it is doing. It is started by systemd, by itself and by
// agents, never by people.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"gaia/agent"
	"gaia/domain"
	"gaia/internal/log"
	"gaia/remote"
	"gaia/session"
	"gaia/session/host"
)

const (
	exitFailed = 1
	exitUsage  = 2
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	hook := len(args) == 3 && args[0] == "hook"
	if len(args) != 2 && !hook || !filepath.IsAbs(args[1]) {
		fmt.Fprintln(os.Stderr, "usage: gaia-session host|exec|post RUN-FOLDER\n       gaia-session hook RUN-FOLDER AGENT\n\nIt is started by the unit of a run, and by its agent. To see runs: gaia run list")
		return exitUsage
	}
	folder := session.Folder(args[1])
	if hook {
		return tell(folder, args[2], os.Stdin, os.Stdout, os.Stderr)
	}
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

const (
	hookTime  = 15 * time.Second // agents wait for their hooks, and not much longer
	hookInput = 64 << 20         // what a tool returned is a part of it
)

// tell lets the agent's profile write down what the agent tells of itself.
func tell(folder session.Folder, name string, in io.Reader, out, stderr io.Writer) int {
	ctx, cancel := context.WithTimeout(context.Background(), hookTime)
	defer cancel()
	input, err := io.ReadAll(io.LimitReader(in, hookInput))
	if err == nil {
		var answer []byte
		answer, err = agent.Hook(ctx, name, agent.HookCall{
			Folder: folder, Input: input, Now: time.Now,
			Over: func(ctx context.Context) (bool, error) { return over(ctx, folder) },
		})
		if len(answer) > 0 {
			fmt.Fprintln(out, string(answer))
		}
	}
	if err != nil {
		fmt.Fprintln(stderr, "gaia-session hook:", err)
		return exitFailed
	}
	return 0
}

// over asks the hub, as the run, whether the run has ended.
func over(ctx context.Context, folder session.Folder) (bool, error) {
	spec, err := folder.Load()
	if err != nil {
		return false, err
	}
	client, err := remote.New(remote.Options{Hub: spec.Hub, TokenFile: folder.Path(session.FileToken), Log: zerolog.Nop()})
	if err != nil {
		return false, err
	}
	defer client.Close()
	r, err := client.Run(ctx, spec.Run)
	if errors.Is(err, domain.ErrStaleRun) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("asking the hub whether the run is over: %w", err)
	}
	return r.State.Ended(), nil
}
