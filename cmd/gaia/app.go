package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gaia/domain"
	"gaia/internal/render"
	"gaia/internal/version"
	"gaia/registry"
)

// The exit codes. dropsh, bus, factory, digest and operator have codes of their own.
const (
	exitOK          = 0
	exitRefused     = 1 // refused, or unhealthy
	exitUsage       = 2 // usage or configuration
	exitAuth        = 3
	exitValidation  = 4
	exitUnreachable = 5
)

// inRunPatience is how long a write from inside a run waits for an absent hub; patience is that of a person.
const (
	inRunPatience = 10 * time.Minute
	patience      = 3 * time.Second
)

// app is one run of the command.
type app struct {
	in     io.Reader
	out    io.Writer
	err    io.Writer
	getenv func(string) string

	hub    string // --hub
	output string // -o
	format render.Format
	watch  bool // --watch, where a command has it
}

// usageError is a wrong call or wrong configuration.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// unhealthy is what a check that found something ends with; what it found is printed already.
var errUnhealthy = errors.New("unhealthy")

func (a *app) run(ctx context.Context, args []string) int {
	cmd := a.root()
	cmd.SetArgs(args)
	cmd.SetIn(a.in)
	cmd.SetOut(a.out)
	cmd.SetErr(a.err)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if !errors.Is(err, errUnhealthy) {
		fmt.Fprintln(a.err, "gaia: "+render.CleanText(a.explain(err)))
	}
	return exitCode(err)
}

// explain adds to an error what a person can do about it, where the error does not say so itself.
func (a *app) explain(err error) string {
	text := err.Error()
	if errors.Is(err, domain.ErrUnreachable) && !strings.Contains(text, "gaia ") {
		if a.getenv("GAIA_RUN") == "" {
			text += "\nIs it running? gaia hub status, or start it: systemctl --user start " + a.names().HubSocket()
		}
	}
	if errors.Is(err, domain.ErrStorage) {
		text += "\nThe hub answers but cannot write to its database, so nothing was changed; it goes on by itself once it can. See why: journalctl --user -u " + a.names().Hub()
	}
	return text
}

func exitCode(err error) int {
	var usage usageError
	var transition *domain.TransitionError
	var config *registry.ConfigError
	switch {
	case errors.As(err, &usage), errors.As(err, &config):
		return exitUsage
	case errors.Is(err, domain.ErrUnreachable):
		return exitUnreachable
	case errors.Is(err, domain.ErrUnauthenticated):
		return exitAuth
	case errors.Is(err, domain.ErrConflict), errors.Is(err, domain.ErrNotFound):
		return exitRefused
	case errors.Is(err, domain.ErrInvalid), errors.As(err, &transition):
		return exitValidation
	case strings.HasPrefix(err.Error(), "unknown command"), strings.HasPrefix(err.Error(), "unknown flag"):
		return exitUsage
	}
	return exitRefused
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "gaia",
		Short: "Hand tickets to coding agents and get the result back",
		Long: `gaia hands tickets to coding agents and gets the result back.

A hub owns the tickets. A conductor, one per checkout, claims a ticket, makes a git worktree and hosts the agent
in a tmux session that you can attach to. The agent ends its run by writing the ticket's next state.

Exit codes: 0 ok, 1 refused or unhealthy, 2 usage or configuration, 3 authentication, 4 validation,
5 hub unreachable.`,
		Example: `  gaia init                                  # set up this checkout
  gaia conductor enable --now                # let its conductor run
  gaia ticket create "Add a dark mode"
  gaia board --watch
  gaia attach SHOP-1`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) error {
			f, err := render.ParseFormat(a.output)
			if err != nil {
				return usageError{err}
			}
			a.format = f
			return nil
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w\nSee %s --help", err, cmd.CommandPath())
	})
	flags := root.PersistentFlags()
	flags.StringVar(&a.hub, "hub", "", "address of the hub: unix:///path or https://host (default: GAIA_HUB, machine.toml, the user's own)")
	flags.StringVarP(&a.output, "output", "o", string(render.Table), "output form: "+strings.Join(render.Formats, ", "))
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(render.Formats, cobra.ShellCompDirectiveNoFileComp))
	root.AddGroup(
		&cobra.Group{ID: "work", Title: "Work:"},
		&cobra.Group{ID: "look", Title: "Look:"},
		&cobra.Group{ID: "machine", Title: "Set up and look after:"},
	)
	for group, commands := range map[string][]*cobra.Command{
		"work":    {a.ticketCommand(), a.runCommand(), a.attachCommand()},
		"look":    {a.boardCommand(), a.whyCommand(), a.snapshotCommand()},
		"machine": {a.initCommand(), a.conductorCommand(), a.hubCommand(), a.doctorCommand(), a.versionCommand()},
	} {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	root.SetHelpCommandGroupID("machine")
	root.SetCompletionCommandGroupID("machine")
	groupsOnly(root)
	return root
}

// groupsOnly makes a command that only groups others fail on an unknown word, instead of printing its help and
// claiming success.
func groupsOnly(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		if c.HasSubCommands() && c.Run == nil && c.RunE == nil {
			c.RunE = func(cmd *cobra.Command, args []string) error {
				if len(args) > 0 {
					return usagef("unknown command %q for %q\nSee %s --help", args[0], cmd.CommandPath(), cmd.CommandPath())
				}
				return cmd.Help()
			}
		}
		args := c.Args
		if args == nil {
			args = cobra.NoArgs
			if c.HasSubCommands() {
				args = cobra.ArbitraryArgs
			}
		}
		c.Args = func(cmd *cobra.Command, words []string) error {
			if err := args(cmd, words); err != nil {
				return usagef("%w\nUsage: %s", err, cmd.UseLine())
			}
			return nil
		}
		groupsOnly(c)
	}
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print version, commit and date of this binary",
		Example: "  gaia version -o json",
		RunE: func(*cobra.Command, []string) error {
			v := version.Get()
			return a.print(render.Value{Data: v, Names: []string{v.Version}, Table: func(w io.Writer) error {
				_, err := fmt.Fprintln(w, "gaia "+v.String())
				return err
			}})
		},
	}
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
