// Command gaia-conductor hosts the agents of one checkout. systemd starts it as gaia-conductor@INSTANCE.service.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"gaia/daemon"
	"gaia/daemon/local"
	"gaia/internal/log"
	"gaia/internal/sdnotify"
	"gaia/internal/version"
)

// Exit codes. The unit does not start a conductor again that ended with exitConfig.
const (
	exitFailed = 1
	exitUsage  = 2
	exitConfig = 78
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	var (
		debug, check bool
		code         int
	)
	cmd := &cobra.Command{
		Use:   "gaia-conductor INSTANCE",
		Short: "Host the agents of one checkout",
		Long: `gaia-conductor claims tickets from the hub and hosts a coding agent for each. systemd starts it:

    gaia conductor enable INSTANCE
    systemctl --user status gaia-conductor@INSTANCE

Its agents live in units of their own and outlive it. Settings are in .gaia/conductor.toml of the checkout and in
~/.gaia/machine.toml; SIGHUP reads the first again.`,
		Args:          cobra.ExactArgs(1),
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(_ *cobra.Command, args []string) error {
			if check {
				code = checkConfig(args[0])
				return nil
			}
			code = conduct(args[0], debug)
			return nil
		},
	}
	cmd.Flags().BoolVar(&debug, "debug", false, "log more")
	cmd.Flags().BoolVar(&check, "check", false, "read the configuration, say what is wrong with it, and end")
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.SetArgs(args)
	if err := cmd.Execute(); err != nil {
		fmt.Fprintf(os.Stderr, "gaia-conductor: %s\nTry: gaia-conductor --help\n", err)
		return exitUsage
	}
	return code
}

// checkConfig is what the unit asks before it has a conductor read its configuration again.
func checkConfig(instance string) int {
	if err := local.Check(instance, os.Getenv); err != nil {
		fmt.Fprintf(os.Stderr, "gaia-conductor: %v\n", err)
		return exitConfig
	}
	return 0
}

func conduct(instance string, debug bool) int {
	logger := log.New(log.Options{Name: "gaia-conductor", Debug: debug})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	notify := func(state string) {
		if _, err := systemd.SdNotify(false, state); err != nil {
			logger.Debug().Err(err).Msg("the service manager cannot be told")
		}
	}
	watchdog, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		logger.Warn().Err(err).Msg("the service manager's watchdog is not used")
	}
	bin, err := os.Executable()
	if err != nil {
		logger.Error().Str(log.MessageID, log.ConductorFailed).Err(err).Msg("the folder of the binaries cannot be found")
		return exitFailed
	}
	c, err := local.New(ctx, local.Options{
		Instance: instance, Bin: filepath.Dir(bin), Version: version.Get().Version, Getenv: os.Getenv,
		Notify: notify, Watchdog: watchdog, Log: logger,
	})
	if err == nil {
		err = serve(ctx, c)
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, local.ErrConfig), errors.Is(err, daemon.ErrSuperseded):
		logger.Error().Str(log.MessageID, log.ConductorFailed).Err(err).Msg("the conductor ends and is not started again by itself")
		notify(sdnotify.Status(err.Error()))
		return exitConfig
	}
	logger.Error().Str(log.MessageID, log.ConductorFailed).Err(err).Msg("the conductor ended")
	notify(sdnotify.Status(err.Error()))
	return exitFailed
}

// serve runs the conductor, its bus object and the reload by SIGHUP side by side.
func serve(ctx context.Context, c *local.Conductor) error {
	defer c.Close()
	ctx, cancel := context.WithCancel(ctx)
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	var side sync.WaitGroup
	defer side.Wait()
	defer cancel()
	side.Go(func() { c.Bus.Run(ctx) })
	side.Go(func() { c.WarnOnce(ctx) })
	side.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hup:
				_ = c.Reload() // its refusal is in the journal and in the status
			}
		}
	})
	return c.Run(ctx)
}
