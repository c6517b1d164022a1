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
	getwd  func() (string, error)
	// journalctl is the program that reads the journal where it is another than the one in PATH.
	journalctl string

	hub    string // --hub
	output string // -o
	format render.Format
	watch  bool // --watch, where a command has it

	waiting *progress // the line that says what a slow command waits for
}

// usageError is a wrong call or wrong configuration.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// unhealthy is what a check that found something ends with; what it found is printed already.
var errUnhealthy = errors.New("unhealthy")

func (a *app) run(ctx context.Context, args []string) int {
	a.waiting = a.newProgress()
	defer a.waiting.stop()
	cmd := a.root()
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	a.waiting.stop()
	if err == nil {
		return exitOK
	}
	if !errors.Is(err, errUnhealthy) {
		fmt.Fprintln(a.err, "gaia: "+render.CleanText(explain(err)))
	}
	return exitCode(err)
}

// explain adds to a refusal the command that shows what could be done instead, where the error does not name one.
func explain(err error) string {
	text := strings.TrimSuffix(err.Error(), ": "+domain.ErrNotFound.Error()) // they say already that there is none
	if strings.Contains(text, "gaia ") || strings.Contains(text, "systemctl ") {
		return text
	}
	switch {
	case errors.Is(err, domain.ErrUnauthenticated):
		text += "\nThe hub does not know who calls: gaia doctor says more"
	case errors.Is(err, domain.ErrStaleRun):
		text += "\nThe run is over, and nothing of it is read or written any more: stop here"
	case errors.Is(err, domain.ErrStorage):
		text += "\nThe hub's disk may be full: gaia hub status says more"
	case errors.Is(err, domain.ErrNotFound):
		for _, v := range [][2]string{
			{"no ticket", "gaia ticket list --all"}, {"no run", "gaia run list"}, {"no project", "gaia snapshot"}, {"no conductor", "gaia snapshot"},
		} {
			if strings.Contains(text, v[0]) {
				return text + "\nSee what there is: " + v[1]
			}
		}
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
		Version:       version.Get().String(), // for --version
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			f, err := render.ParseFormat(a.output)
			if err != nil {
				return usageError{err}
			}
			a.format = f
			return nil
		},
	}
	root.SetIn(a.in)
	root.SetOut(a.out) // before the completion commands are made, which keep it
	root.SetErr(a.err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w\nSee %s --help", err, cmd.CommandPath())
	})
	root.SetVersionTemplate("gaia {{.Version}}\n")
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
	root.AddCommand(a.agentHookCommand())
	root.SetCompletionCommandGroupID("machine")
	root.InitDefaultCompletionCmd()
	a.describeCompletion(root)
	root.SetHelpCommand(a.helpCommand())
	strict(root)
	return root
}

// helpCommand is cobra's, but it fails on a command that is not there.
func (a *app) helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND ...]",
		GroupID: "machine",
		Short:   "Help about any command",
		Example: "  gaia help ticket create",
		Args:    cobra.ArbitraryArgs,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			at, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var names []string
			for _, c := range at.Commands() {
				if c.IsAvailableCommand() {
					names = append(names, cobra.CompletionWithDesc(c.Name(), c.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			at, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usagef("there is no command %q\nSee gaia --help", strings.Join(args, " "))
			}
			at.InitDefaultHelpFlag()
			return at.Help()
		},
	}
}

// describeCompletion gives cobra's completion commands what the others have.
func (a *app) describeCompletion(root *cobra.Command) {
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		c.Example = "  gaia completion bash > ~/.local/share/bash-completion/completions/gaia"
		for _, shell := range c.Commands() {
			shell.Example = "  gaia completion " + shell.Name()
		}
	}
}

// strict makes a command that only groups others fail on an unknown word, instead of printing its help and claiming
// success, and makes every wrong call a usage error.
func strict(cmd *cobra.Command) {
	if cmd.HasSubCommands() {
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				text += "; did you mean " + strings.Join(near, " or ") + "?"
			}
			return usagef("%s\nSee %s --help", text, cmd.CommandPath())
		}
	}
	if cmd.SuggestionsMinimumDistance == 0 {
		cmd.SuggestionsMinimumDistance = 2
	}
	args := cmd.Args
	if args == nil {
		args = cobra.NoArgs
	}
	cmd.Args = func(cmd *cobra.Command, words []string) error {
		if err := args(cmd, words); err != nil {
			return usagef("%w\nUsage: %s", err, cmd.UseLine())
		}
		return nil
	}
	for _, c := range cmd.Commands() {
		strict(c)
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
