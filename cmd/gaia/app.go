package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"gaia/domain"
	"gaia/internal/render"
	"gaia/internal/version"
	"gaia/registry"
	"gaia/remote"
	"gaia/units"
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
	if errors.Is(err, domain.ErrStorage) && !strings.Contains(text, "gaia ") {
		text += "\nThe hub answers but cannot write to its database, so nothing was changed; it goes on by itself once it can. See why: gaia hub status"
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

// inRun reports whether the command is called by an agent inside a run.
func (a *app) inRun() bool { return a.getenv("GAIA_RUN") != "" }

func (a *app) print(v render.Value) error { return render.Print(a.out, a.format, v) }

// say prints a sentence for a person, never mixed with output.
func (a *app) say(format string, args ...any) {
	fmt.Fprintln(a.err, render.CleanText(fmt.Sprintf(format, args...)))
}

func (a *app) home() (registry.Home, error) {
	h, _, err := registry.Open(a.getenv)
	if err != nil {
		return h, usageError{err}
	}
	return h, nil
}

// names are those of this installation's units. A bad prefix is reported by home.
func (a *app) names() units.Names {
	n, err := units.NewNames(a.getenv("GAIA_PREFIX"))
	if err != nil {
		n, _ = units.NewNames("")
	}
	return n
}

// address is where the hub is: --hub, GAIA_HUB, machine.toml, the user's own.
func (a *app) address() (string, error) {
	for _, v := range []string{a.hub, a.getenv("GAIA_HUB")} {
		if v != "" {
			if err := registry.CheckHub(v); err != nil {
				return "", usageError{err}
			}
			return v, nil
		}
	}
	h, err := a.home()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(h.MachineFile()); err == nil {
		m, err := h.Machine()
		if err != nil {
			return "", err
		}
		if m.Hub != "" {
			return m.Hub, nil
		}
	}
	if err := h.NeedRuntime(); err != nil {
		return "", usageError{err}
	}
	return "unix://" + h.HubSocket(), nil
}

// client returns the hub's client: in a run with the run's token, else as the machine's user.
func (a *app) client() (*remote.Client, error) {
	addr, err := a.address()
	if err != nil {
		return nil, err
	}
	o := remote.Options{Hub: addr, Patience: patience, Log: zerolog.Nop()}
	if a.inRun() {
		o.TokenFile, o.Patience = a.getenv("GAIA_TOKEN_FILE"), inRunPatience
		return remote.New(o)
	}
	h, err := a.home()
	if err != nil {
		return nil, err
	}
	m, err := h.Machine()
	if err != nil {
		return nil, err
	}
	o.User = m.UserID
	return remote.New(o)
}

// ticketArg takes a ticket's identifier off the front of args where there are more than want, or the run's own.
func (a *app) ticketArg(args []string, want int) (string, []string, error) {
	if len(args) > want {
		return args[0], args[1:], nil
	}
	if own := a.getenv("GAIA_TICKET"); own != "" {
		return own, args, nil
	}
	return "", nil, usagef("which ticket? Give its identifier, such as SHOP-7")
}

// checkout returns the checkout that a folder belongs to: the first one upwards that holds .gaia/conductor.toml.
func (a *app) checkout() (string, registry.Checkout, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", registry.Checkout{}, err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, conductorFile)); err == nil {
			c, err := registry.LoadCheckout(dir)
			return dir, c, err
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", registry.Checkout{}, usagef("neither this folder nor one above it is a checkout with %s (gaia init makes it)", conductorFile)
		}
		dir = parent
	}
}

// project returns the project that is meant: the one with the given key, else the checkout's, else the only one.
func (a *app) project(ctx context.Context, c *remote.Client, key string) (domain.Project, error) {
	if key == "" {
		if _, co, err := a.checkout(); err == nil {
			key = co.Project
		} else if _, usage := err.(usageError); !usage {
			return domain.Project{}, err
		}
	}
	if key != "" {
		p, err := c.ProjectByKey(ctx, key)
		if errors.Is(err, domain.ErrNotFound) {
			return p, fmt.Errorf("the hub has no project %s (gaia init makes it): %w", key, domain.ErrNotFound)
		}
		return p, err
	}
	all, err := c.Projects(ctx, remote.Query{})
	switch {
	case err != nil:
		return domain.Project{}, err
	case len(all) == 1:
		return all[0], nil
	case len(all) == 0:
		return domain.Project{}, usagef("the hub has no project yet: run gaia init in a checkout")
	}
	keys := make([]string, len(all))
	for i, p := range all {
		keys[i] = p.Key
	}
	return domain.Project{}, usagef("which project? Give --project: one of %s", strings.Join(keys, ", "))
}

// width is the terminal's width, or fallback where the output is none.
func (a *app) width(fallback int) int {
	if f, ok := a.out.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
			return w
		}
	}
	return fallback
}

func (a *app) terminal() bool {
	f, ok := a.out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// interactive reports whether a person can be asked.
func (a *app) interactive() bool {
	f, ok := a.in.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && !a.inRun()
}

// ask asks a person for a line; proposal is the answer to an empty one.
func (a *app) ask(question, proposal string) (string, error) {
	if proposal != "" {
		fmt.Fprintf(a.err, "%s [%s]: ", question, proposal)
	} else {
		fmt.Fprintf(a.err, "%s: ", question)
	}
	line, err := bufio.NewReader(unbuffered{a.in}).ReadString('\n')
	if err != nil && line == "" {
		return "", usagef("no answer to %q", question)
	}
	if line = strings.TrimSpace(line); line == "" {
		return proposal, nil
	}
	return line, nil
}

// unbuffered gives one byte at a time, so that a later question finds its answer.
type unbuffered struct{ r io.Reader }

func (u unbuffered) Read(p []byte) (int, error) {
	if len(p) > 1 {
		p = p[:1]
	}
	return u.r.Read(p)
}

// text returns a long text: from a file, from standard input for "-", or as given.
func (a *app) text(given, file string) (string, error) {
	if file == "" && given == "-" {
		file = "-"
	}
	if file == "" {
		return given, nil
	}
	var b []byte
	var err error
	if file == "-" {
		b, err = io.ReadAll(io.LimitReader(a.in, domain.MaxDescription+1))
	} else {
		b, err = os.ReadFile(file)
	}
	if err != nil {
		return "", usagef("read the text: %w", err)
	}
	return string(bytes.TrimRight(b, "\n")), nil
}

// show prints once or, with --watch, again whenever the hub says that something has changed.
func (a *app) show(ctx context.Context, c *remote.Client, frame func(context.Context) (render.Value, error)) error {
	if !a.watch {
		v, err := frame(ctx)
		if err != nil {
			return err
		}
		return a.print(v)
	}
	wake := make(chan struct{}, 1)
	go func() {
		for ctx.Err() == nil {
			_ = c.Follow(ctx, remote.FromNow, func(domain.Event) {
				select {
				case wake <- struct{}{}:
				default:
				}
			})
			pause(ctx, time.Second)
		}
	}()
	last := ""
	for {
		v, err := frame(ctx)
		if ctx.Err() != nil {
			return nil
		}
		var b bytes.Buffer
		if err != nil {
			fmt.Fprintln(&b, render.CleanText(a.explain(err)))
		} else if err := render.Print(&b, a.format, v); err != nil {
			return err
		}
		if s := b.String(); s != last {
			last = s
			if a.terminal() {
				s = "\x1b[H\x1b[2J" + s
			} else {
				s += "\n"
			}
			if _, err := io.WriteString(a.out, s); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-time.After(2 * time.Second): // ages and waits change without an event
		}
	}
}

// pause waits, or returns earlier when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (a *app) watchFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&a.watch, "watch", "w", false, "print again whenever something changes, until interrupted")
}

// conductorByName returns the id of the conductor that a person means: its machine_id, or the instance where only one
// conductor of the hub has it.
func conductorByName(ctx context.Context, c *remote.Client, name string) (domain.Conductor, error) {
	all, err := c.Conductors(ctx, remote.Query{})
	if err != nil {
		return domain.Conductor{}, err
	}
	var found []domain.Conductor
	var known []string
	for _, con := range all {
		known = append(known, con.MachineID)
		if con.MachineID == name || con.ID == name {
			return con, nil
		}
		if strings.HasSuffix(con.MachineID, "."+name) {
			found = append(found, con)
		}
	}
	slices.Sort(known)
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return domain.Conductor{}, fmt.Errorf("the hub knows no conductor %q; it knows: %s: %w", name, cmpOr(strings.Join(known, ", "), "none"), domain.ErrNotFound)
	}
	return domain.Conductor{}, usagef("several conductors are called %q; give the whole machine_id: one of %s", name, strings.Join(known, ", "))
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
