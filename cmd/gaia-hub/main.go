// Command gaia-hub is the only authority for tickets, runs and leases. It is started by systemd, on its first caller.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"gaia/hub/server"
	"gaia/internal/log"
	"gaia/internal/sdnotify"
	"gaia/registry"
)

// Exit codes. The unit does not start a hub again that ended with exitConfig.
const (
	exitFailed = 1
	exitUsage  = 2
	exitConfig = 78
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	var (
		config       string
		debug, check bool
		code         int
	)
	cmd := &cobra.Command{
		Use:   "gaia-hub",
		Short: "Serve tickets, runs and leases",
		Long: `gaia-hub is the control plane of Gaia. systemd starts it when somebody connects to its socket:

    systemctl --user enable --now gaia-hub.socket

By hand it listens by itself. Settings are in ~/.gaia/hub.toml; all have defaults. SIGHUP reads leases and limits again.`,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(*cobra.Command, []string) error {
			if check {
				code = checkConfig(config)
				return nil
			}
			code = serve(config, debug)
			return nil
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "read this hub.toml instead of ~/.gaia/hub.toml")
	cmd.Flags().BoolVar(&debug, "debug", false, "log every request")
	cmd.Flags().BoolVar(&check, "check", false, "read the configuration, say what is wrong with it, and end")
	cmd.AddCommand(verifyCommand(&code), backupCommand(&code))
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.SetArgs(args)
	if err := cmd.Execute(); err != nil {
		fmt.Fprintf(os.Stderr, "gaia-hub: %s\nTry: gaia-hub --help\n", err)
		return exitUsage
	}
	return code
}

// checkConfig is what the unit asks before it has a hub read its configuration again.
func checkConfig(config string) int {
	home, _, err := registry.Open(os.Getenv)
	if err == nil {
		err = server.Check(server.Options{Home: home, Config: config})
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "gaia-hub: %v\n", err)
		return exitConfig
	}
	return 0
}

func serve(config string, debug bool) int {
	logger := log.New(log.Options{Name: "gaia-hub", Debug: debug})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	notify := func(state string) {
		if _, err := daemon.SdNotify(false, state); err != nil {
			logger.Debug().Err(err).Msg("the service manager cannot be told")
		}
	}
	home, prefix, err := registry.Open(os.Getenv)
	if err != nil {
		err = fmt.Errorf("%w: %w", server.ErrConfig, err)
	} else if inherited, e := activation.Listeners(); e != nil {
		err = fmt.Errorf("take over the sockets that systemd opened: %w", e)
	} else {
		err = server.Run(ctx, server.Options{
			Home: home, Prefix: prefix, Config: config, Inherited: inherited, Notify: notify, Reload: hup, Log: logger,
		})
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, server.ErrConfig):
		logger.Error().Str(log.MessageID, log.HubFailed).Err(err).Msg("the hub cannot start")
		notify(sdnotify.Status(err.Error()))
		return exitConfig
	}
	logger.Error().Str(log.MessageID, log.HubFailed).Err(err).Msg("the hub ended")
	notify(sdnotify.Status(err.Error()))
	return exitFailed
}
