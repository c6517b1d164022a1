package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"gaia/agent"
	"gaia/domain"
	"gaia/remote"
	"gaia/session"
)

// agentHook is the name of the command, which stands in the settings of agents.
const agentHook = "agent-hook"

const (
	hookTime  = 15 * time.Second // agents wait for their hooks, and not much longer
	hookInput = 64 << 20         // what a tool returned is a part of it
)

// agentHookCommand is what agents call, not people. It looks at the run folder alone, whatever the flags and the machine's files say.
func (a *app) agentHookCommand() *cobra.Command {
	return &cobra.Command{
		Use:   agentHook + " RUN-FOLDER AGENT",
		Short: "Take from the agent of a run what it tells of itself",
		Long: `Take from the agent of a run what it tells of itself. Agents call it by the settings that their run has given to them, and what they
tell comes on standard input. It is not for people: they use gaia run and gaia attach.`,
		Example:           `  gaia agent-hook "$RUN_FOLDER" claude <event.json`,
		Hidden:            true,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error {
			if !filepath.IsAbs(args[0]) {
				return usagef("%s is no absolute path", args[0])
			}
			if a.tell(session.Folder(args[0]), args[1]) != exitOK {
				return errUnhealthy // it is said already
			}
			return nil
		},
	}
}

// agentHookAtOnce is the command without the command tree, which takes as long to set up as the rest: an agent waits for its
// hook at each use of a tool. Calls of another form are the command's to refuse.
func (a *app) agentHookAtOnce(args []string) (code int, called bool) {
	if len(args) != 3 || args[0] != agentHook || !filepath.IsAbs(args[1]) {
		return 0, false
	}
	return a.tell(session.Folder(args[1]), args[2]), true
}

// tell lets the agent's profile write down what the agent tells of itself. It fails with one exit code, whatever has failed:
// an agent takes some others for a refusal of what it was about to do.
func (a *app) tell(folder session.Folder, name string) int {
	ctx, cancel := context.WithTimeout(context.Background(), hookTime)
	defer cancel()
	input, err := io.ReadAll(io.LimitReader(a.in, hookInput))
	if err == nil {
		var answer []byte
		answer, err = agent.Hook(ctx, name, agent.HookCall{
			Folder: folder, Input: input, Now: time.Now,
			Over: func(ctx context.Context) (bool, error) { return over(ctx, folder) },
		})
		if len(answer) > 0 {
			fmt.Fprintln(a.out, string(answer))
		}
	}
	if err != nil {
		fmt.Fprintln(a.err, "gaia "+agentHook+":", err)
		return exitRefused
	}
	return exitOK
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
