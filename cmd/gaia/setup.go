package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gaia/agent"
	"gaia/domain"
	"gaia/internal/render"
	"gaia/registry"
	"gaia/remote"
	"gaia/units"
	"gaia/workspace"
)

// conductorFile is where a checkout's configuration lies.
const conductorFile = registry.CheckoutFile

// setup is what init is told and asks for.
type setup struct {
	user, host, key, slug, name, customer, instance, agent string
	trust, yes                                             bool
}

func (a *app) initCommand() *cobra.Command {
	var s setup
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Set up this checkout, this machine and its project at the hub",
		Long: `Set up this checkout: what the machine is called (~/.gaia/machine.toml), what the project is (.gaia/conductor.toml, to be
committed), the checkout's place in the machine's registry, and project and user at the hub.

It asks for what it needs and takes every answer as a flag; --yes takes its proposals. What is there already is
kept, so it may be run again.`,
		Example: `  gaia init
  gaia init --user-id ada --host-id desk --key SHOP --agent script --yes`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.setUp(cmd.Context(), s, true) },
	}
	a.setupFlags(cmd, &s)
	f := cmd.Flags()
	f.StringVar(&s.name, "name", "", "name of the project for people")
	f.StringVar(&s.customer, "customer", "", "whom the project is for")
	return cmd
}

func (a *app) conductorInit() *cobra.Command {
	var s setup
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Enter this checkout of a known project into the registry",
		Long: `Enter this checkout into the machine's registry. It is the part of gaia init that a second machine or a second clone
needs: .gaia/conductor.toml must be there, and the project at the hub.`,
		Example: "  gaia conductor init --instance shop-two",
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.setUp(cmd.Context(), s, false) },
	}
	a.setupFlags(cmd, &s)
	return cmd
}

func (a *app) setupFlags(cmd *cobra.Command, s *setup) {
	f := cmd.Flags()
	f.StringVar(&s.user, "user-id", "", "what the hub calls you: a-z, 0-9 and -")
	f.StringVar(&s.host, "host-id", "", "what the hub calls this machine: a-z, 0-9 and -")
	f.StringVar(&s.key, "key", "", "key of the project, such as SHOP; it starts every identifier")
	f.StringVar(&s.slug, "slug", "", "short name of the project in lower case")
	f.StringVar(&s.instance, "instance", "", "name of this checkout's conductor on this machine")
	f.StringVar(&s.agent, "agent", "", "agent of tickets that name none")
	f.BoolVar(&s.trust, "trust", false, "trust the hooks of this checkout as they are now")
	f.BoolVarP(&s.yes, "yes", "y", false, "take every proposal without asking")
	a.completeFlags(cmd, map[string]completer{"agent": a.agentNames})
}

// need returns an answer: the flag's, else the proposal with --yes, else a person's.
func (a *app) need(s setup, given, flag, question, proposal string, check func(string) error) (string, error) {
	answer := given
	if answer == "" && s.yes {
		answer = proposal
	}
	if answer == "" && (s.yes || !a.interactive()) {
		return "", usagef("give --%s: there is nothing to propose", flag)
	}
	for answer == "" {
		var err error
		if answer, err = a.ask(question, proposal); err != nil {
			return "", err
		}
		if check(answer) != nil {
			a.say("%v", check(answer))
			answer = ""
		}
	}
	if err := check(answer); err != nil {
		return "", usagef("--%s: %w", flag, err)
	}
	return answer, nil
}

// setUp does what both kinds of init do, each step only where it is still to be done.
func (a *app) setUp(ctx context.Context, s setup, whole bool) error {
	home, err := a.home()
	if err != nil {
		return err
	}
	top, err := a.toplevel()
	if err != nil {
		return err
	}
	if err := a.checkPlaces(home); err != nil {
		return err
	}
	if path := filepath.Join(top, conductorFile); !whole && !there(path) {
		return usagef("%s does not exist: gaia init makes it", path)
	}
	if err := s.check(); err != nil {
		return err
	}
	if err := a.unanswered(home, top, s); err != nil {
		return err
	}
	notes, err := home.Prepare()
	if err != nil {
		return err
	}
	for _, n := range notes {
		a.say("%s", n)
	}
	machine, err := a.machine(home, s)
	if err != nil {
		return err
	}
	checkout, err := a.checkoutFile(top, s)
	if err != nil {
		return err
	}
	entry, err := a.enter(ctx, home, top, checkout, s)
	if err != nil {
		return err
	}
	g, err := tree(home, entry, checkout)
	if err != nil {
		return err
	}
	if err := g.CheckPrefix(ctx); err != nil { // now, and not at the first ticket
		return err
	}
	if err := a.initHooks(ctx, home, top, checkout, s); err != nil {
		return err
	}
	if err := a.hubUnits(ctx, home, machine); err != nil {
		return err
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	if err := a.projectAtHub(ctx, c, checkout, machine, s, whole); err != nil {
		return err
	}
	id, err := domain.MachineID(machine.UserID, machine.HostID, entry.Instance)
	if err != nil {
		return err
	}
	view := setupView{entry.Instance, id, entry.Checkout, checkout.Project, c.Hub()}
	if err := a.print(render.Value{Data: view, Names: []string{view.Instance}, Table: func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s is set up as the conductor %s of the project %s\n", render.Clean(top), view.Instance, view.Project)
		return err
	}}); err != nil {
		return err
	}
	// As enable takes it over for runs, where it has not yet.
	a.sayAgent(home, top, cmpOr(entry.Path, a.getenv("PATH")), machine, checkout, s)
	if committed(ctx, g) {
		a.say("Next: gaia conductor enable --now %s", entry.Instance)
	} else {
		a.say("Next: commit %s, then gaia conductor enable --now %s", conductorFile, entry.Instance)
	}
	return nil
}

// sayAgent says why no agent, or another than was asked for, would be started in a run, whose PATH is path.
func (a *app) sayAgent(home registry.Home, top, path string, machine registry.Machine, checkout registry.Checkout, s setup) {
	name, file := checkout.Agent.Default, filepath.Join(top, conductorFile)
	if name == "" {
		name, file = machine.DefaultAgent, home.MachineFile()
	}
	if s.agent != "" && s.agent != name {
		a.say("The agent stays %s, as %s has it: edit it there to have %s", cmpOr(name, "none"), file, s.agent)
	}
	if _, has := machine.Agents[name]; !has {
		a.say("This machine does not have that agent yet: add [agents.%s] to %s; gaia-machine.toml(5) has an example", cmpOr(name, "NAME"), home.MachineFile())
		return
	}
	if _, missing := agent.Available(machine, map[string]string{"PATH": path}); missing[name] != nil {
		a.say("The agent %s cannot be started: %v; install it, or name its program in [agents.%s] of %s", name, missing[name], name, home.MachineFile())
	}
}

// setupView is what init has set up.
type setupView struct {
	Instance  string `json:"instance"`
	MachineID string `json:"machine_id"`
	Checkout  string `json:"checkout"`
	Project   string `json:"project"` // key
	Hub       string `json:"hub"`
}

// checkPlaces refuses an installation whose runs systemd could not start, before anything is written to it.
func (a *app) checkPlaces(home registry.Home) error {
	if _, err := a.paths(); err != nil {
		return err
	}
	if err := units.CheckArgument(home.RunsDir()); err != nil {
		return usagef("runs would lie in %s, from where systemd cannot start them: %w\nSet XDG_STATE_HOME, or GAIA_HOME, to another folder", home.RunsDir(), err)
	}
	return nil
}

// check looks at the answers that were given as flags, before anything is written.
func (s setup) check() error {
	for _, v := range []struct {
		flag, answer string
		check        func(string) error
	}{
		{"user-id", s.user, func(v string) error { return domain.CheckMachinePart("user_id", v) }},
		{"host-id", s.host, func(v string) error { return domain.CheckMachinePart("host_id", v) }},
		{"key", s.key, domain.CheckProjectKey}, {"slug", s.slug, domain.CheckSlug}, {"instance", s.instance, domain.CheckSlug},
		{"agent", s.agent, func(v string) error { _, err := agent.New(v, registry.AgentConfig{Program: []string{v}}); return err }},
	} {
		if v.answer == "" {
			continue
		}
		if err := v.check(v.answer); err != nil {
			return usagef("--%s: %w", v.flag, err)
		}
	}
	return nil
}

func there(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// unanswered names all flags at once that are missing where nobody can be asked, before anything is written.
func (a *app) unanswered(home registry.Home, top string, s setup) error {
	if s.yes || a.interactive() {
		return nil
	}
	var flags []string
	want := func(present bool, answers ...[2]string) {
		for _, v := range answers {
			if !present && v[1] == "" {
				flags = append(flags, "--"+v[0])
			}
		}
	}
	_, err := home.EntryOf(top)
	if err != nil && !errors.Is(err, domain.ErrNotFound) {
		return err
	}
	want(there(home.MachineFile()), [2]string{"user-id", s.user}, [2]string{"host-id", s.host})
	want(there(filepath.Join(top, conductorFile)), [2]string{"key", s.key}, [2]string{"slug", s.slug})
	want(err == nil, [2]string{"instance", s.instance})
	if len(flags) == 0 {
		return nil
	}
	return usagef("nobody can be asked here: give %s, or --yes to take the proposals", strings.Join(flags, ", "))
}

// committed reports whether conductor.toml is in the commit from which new trees start.
func committed(ctx context.Context, g *workspace.Git) bool {
	base, err := g.Base(ctx)
	if err != nil {
		return false
	}
	files, err := g.Files(ctx, base, conductorFile)
	return err == nil && len(files) == 1
}

// toplevel is the checkout that this folder is in.
func (a *app) toplevel() (string, error) {
	dir, err := a.getwd()
	if err != nil {
		return "", err
	}
	top, err := registry.FindCheckout(dir)
	if err != nil {
		return "", usageError{err}
	}
	if _, err := os.Stat(filepath.Join(top, ".git")); err != nil {
		return "", usagef("%s is in no git checkout: cd into one, or make one with git init", dir)
	}
	return top, nil
}

func (a *app) machine(home registry.Home, s setup) (registry.Machine, error) {
	_, err := os.Stat(home.MachineFile())
	if err == nil {
		m, err := home.Machine()
		if err == nil && (s.user != "" && s.user != m.UserID || s.host != "" && s.host != m.HostID) {
			return m, usagef("%s says user_id %s and host_id %s; these never change by themselves: edit the file if they must", home.MachineFile(), m.UserID, m.HostID)
		}
		return m, err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return registry.Machine{}, err
	}
	part := func(what string) func(string) error {
		return func(v string) error { return domain.CheckMachinePart(what, v) }
	}
	host, _ := os.Hostname()
	host, _, _ = strings.Cut(host, ".")
	var m registry.Machine
	if m.UserID, err = a.need(s, s.user, "user-id", "What shall the hub call you", slugOf(a.userName()), part("user_id")); err != nil {
		return m, err
	}
	if m.HostID, err = a.need(s, s.host, "host-id", "What shall the hub call this machine", slugOf(host), part("host_id")); err != nil {
		return m, err
	}
	m.DefaultAgent = s.agent
	if s.agent != "" && s.agent != agent.Script { // whose program only its user can name
		m.Agents = map[string]registry.AgentConfig{s.agent: {}}
	}
	if err := home.WriteMachine(m); err != nil {
		return m, fmt.Errorf("write %s: %w", home.MachineFile(), err)
	}
	a.say("wrote %s", home.MachineFile())
	return m, nil
}

func (a *app) checkoutFile(top string, s setup) (registry.Checkout, error) {
	path := filepath.Join(top, conductorFile)
	_, err := os.Stat(path)
	if err == nil {
		c, err := registry.LoadCheckout(top)
		if err == nil && s.key != "" && s.key != c.Project {
			return c, usagef("%s says project %s, not %s: edit it if it is wrong", path, c.Project, s.key)
		}
		return c, err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return registry.Checkout{}, err
	}
	name := filepath.Base(top)
	key, err := a.need(s, s.key, "key", "Key of the project; it starts every identifier", proposeKey(name), domain.CheckProjectKey)
	if err != nil {
		return registry.Checkout{}, err
	}
	slug, err := a.need(s, s.slug, "slug", "Short name of the project in lower case", slugOf(strings.ToLower(name)), domain.CheckSlug)
	if err != nil {
		return registry.Checkout{}, err
	}
	c := registry.DefaultCheckout(key, slug)
	c.Agent.Default = s.agent
	if err := registry.InitCheckout(top, c); err != nil {
		return c, err
	}
	a.say("wrote %s", path)
	return c, nil
}

// userName is what the machine calls the user.
func (a *app) userName() string {
	if name := a.getenv("USER"); name != "" {
		return name
	}
	u, err := user.Current()
	if err != nil {
		return ""
	}
	return u.Username
}

// slugOf is a name as a slug; where there is none, nothing is proposed.
func slugOf(name string) string {
	if name == "" {
		return ""
	}
	return domain.Slug(name, nil)
}

// proposeKey makes a project key of a folder's name.
func proposeKey(name string) string {
	key := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return -1
	}, name)
	key = strings.TrimLeft(key, "0123456789")
	key = key[:min(len(key), 10)]
	if key == "" {
		return "WORK"
	}
	return key
}

func (a *app) enter(ctx context.Context, home registry.Home, top string, c registry.Checkout, s setup) (registry.Entry, error) {
	entry, err := home.EntryOf(top)
	if err == nil {
		if s.instance != "" && s.instance != entry.Instance {
			return entry, usagef("%s is registered as %q already, and that never changes by itself", top, entry.Instance)
		}
		return entry, nil
	}
	if !errors.Is(err, domain.ErrNotFound) {
		return entry, err
	}
	proposal, err := home.ProposeInstance(top)
	if err != nil {
		return entry, err
	}
	instance, err := a.need(s, s.instance, "instance", "Name of this checkout's conductor on this machine", proposal, domain.CheckSlug)
	if err != nil {
		return entry, err
	}
	entry = registry.Entry{Instance: instance, Checkout: top, Project: c.Project, CreatedAt: time.Now().UTC()}
	return entry, home.Put(ctx, entry)
}

// tree returns the workspace of an entry.
func tree(home registry.Home, e registry.Entry, c registry.Checkout) (*workspace.Git, error) {
	return workspace.New(workspace.Config{
		Checkout: e.Checkout, Root: c.TreesRoot(home, e.Instance), BranchPrefix: c.Workspace.BranchPrefix,
		Locks: home.LocksDir(), FetchTimeout: c.Workspace.FetchTimeout, SkipSubmodules: !c.Workspace.Submodules,
	})
}

// initHooks asks a person to trust the hooks of the checkout.
func (a *app) initHooks(ctx context.Context, home registry.Home, top string, c registry.Checkout, s setup) error {
	sha := c.Hooks.SHA256()
	if sha == "" {
		return nil
	}
	trusted, err := home.Trusted(top, sha)
	if err != nil || trusted {
		return err
	}
	if !s.trust {
		a.say("The hooks of this checkout are not trusted yet, so its conductor will claim nothing: gaia conductor trust")
		return nil
	}
	return home.Trust(ctx, top, sha)
}

// hubUnits makes the user's own hub available, where that is the one that is used and systemd is there to run it.
func (a *app) hubUnits(ctx context.Context, home registry.Home, m registry.Machine) error {
	if a.hub != "" || a.getenv("GAIA_HUB") != "" || m.Hub != "" {
		return nil
	}
	if err := home.PrepareRuntime(); err != nil {
		return usageError{err}
	}
	man, err := a.manager(ctx, home)
	if err != nil {
		return err
	}
	defer man.Close()
	if err := a.install(ctx, man, home); err != nil {
		return err
	}
	n := a.names()
	if err := man.Enable(ctx, n.HubSocket()); err != nil {
		return fmt.Errorf("enable the hub: %w", err)
	}
	if err := man.Start(ctx, n.HubSocket()); err != nil {
		return fmt.Errorf("start the hub: %w", err)
	}
	return nil
}

// manager connects to the user's systemd.
func (a *app) manager(ctx context.Context, home registry.Home) (*units.Manager, error) {
	if err := home.NeedRuntime(); err != nil {
		return nil, usageError{err}
	}
	a.waiting.start("waiting for systemd")
	m, err := units.Connect(ctx, home.RuntimeRoot)
	if err != nil {
		if !strings.Contains(err.Error(), "loginctl ") {
			err = fmt.Errorf("%w\nIs there a user manager? systemctl --user status", err)
		}
		return nil, err
	}
	return m, nil
}

// paths says where this installation lives.
func (a *app) paths() (units.Paths, error) {
	bin, err := self()
	if err != nil {
		return units.Paths{}, err
	}
	p := units.Paths{Bin: bin, Env: map[string]string{}}
	for _, name := range []string{"GAIA_PREFIX", "GAIA_HOME"} {
		if v := a.getenv(name); v != "" {
			p.Env[name] = v
		}
	}
	if err := p.Check(); err != nil {
		return p, usageError{err}
	}
	return p, nil
}

// install writes the unit files that systemd does not find.
func (a *app) install(ctx context.Context, m *units.Manager, home registry.Home) error {
	p, err := a.paths()
	if err != nil {
		return err
	}
	written, err := units.Install(ctx, m, a.names(), p)
	if err != nil {
		return fmt.Errorf("install the units: %w", err)
	}
	for _, w := range written {
		a.say("wrote %s", w)
	}
	return nil
}

func (a *app) projectAtHub(ctx context.Context, c *remote.Client, co registry.Checkout, m registry.Machine, s setup, whole bool) error {
	_, err := c.ProjectByKey(ctx, co.Project)
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, domain.ErrNotFound):
		return err
	case !whole:
		return fmt.Errorf("the hub has no project %s: gaia init makes it: %w", co.Project, err)
	}
	if _, err := c.PutUser(ctx, domain.User{ID: m.UserID}); err != nil {
		return fmt.Errorf("make the user %s known to the hub: %w", m.UserID, err)
	}
	p, err := c.CreateProject(ctx, domain.Project{
		Key: co.Project, Slug: co.Slug, Name: cmpOr(s.name, co.Project), Customer: domain.Ref(s.customer), Members: []string{m.UserID},
	})
	if err != nil {
		return fmt.Errorf("make the project %s at the hub: %w", co.Project, err)
	}
	a.say("made the project %s at the hub", p.Key)
	return nil
}
