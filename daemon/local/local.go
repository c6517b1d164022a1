// Package local puts a conductor together from what lies on its machine: the registry's files, the user manager, tmux, git
// and the agents. It decides nothing about runs; that is package daemon.
package local

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"gaia/agent"
	"gaia/daemon"
	"gaia/domain"
	"gaia/internal/clock"
	"gaia/internal/log"
	"gaia/registry"
	"gaia/remote"
	"gaia/session"
	"gaia/tmux"
	"gaia/tmux/executor"
	"gaia/units"
	"gaia/workspace"
)

// ErrConfig marks an error that the next start would meet again: a person must change the configuration.
var ErrConfig = errors.New("bad configuration")

// Options are what a conductor's process is given.
type Options struct {
	Instance string
	Bin      string // folder of the binaries
	Version  string
	Getenv   func(string) string
	Notify   func(state string)
	Watchdog time.Duration
	Log      zerolog.Logger
}

// Conductor is a conductor with what it needs of its machine.
type Conductor struct {
	*daemon.Conductor
	Bus *daemon.BusObject

	manager *Manager
	client  *remote.Client
	person  *remote.Client
	log     zerolog.Logger
}

// WarnOnce says in one line what this machine cannot do with the limits of runs: to say it of each would hide everything
// else. Where the user manager does not answer, that is said elsewhere.
func (c *Conductor) WarnOnce(ctx context.Context) {
	can, err := c.manager.Abilities(ctx)
	if err != nil {
		c.log.Debug().Err(err).Msg("whether limits of runs have an effect is not known")
		return
	}
	if lacks := can.Lacks(); lacks != "" {
		c.log.Warn().Str(log.MessageID, log.LimitsLacking).Int("systemd", can.Systemd).Msgf("%s (gaia doctor says what mends it)", lacks)
	}
	if can.Systemd < units.OldestSystemd {
		c.log.Warn().Str(log.MessageID, log.LimitsLacking).Int("systemd", can.Systemd).
			Msgf("systemd %d is older than %d, the oldest that Gaia was tried with", can.Systemd, units.OldestSystemd)
	}
}

// Close gives back what New took.
func (c *Conductor) Close() {
	c.manager.Close()
	c.client.Close()
	c.person.Close()
}

// configuration is what the files of a machine say of one conductor.
type configuration struct {
	home      registry.Home
	prefix    string
	names     units.Names
	entry     registry.Entry
	machine   registry.Machine
	machineID string
	checkout  registry.Checkout
}

// Check reads the configuration of a conductor, and nothing else, and returns what is wrong with it.
func Check(instance string, getenv func(string) string) error {
	_, err := load(instance, getenv)
	return err
}

// load reads the configuration. Its errors match ErrConfig.
func load(instance string, getenv func(string) string) (c configuration, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrConfig, err)
		}
	}()
	if c.home, c.prefix, err = registry.Open(getenv); err != nil {
		return c, err
	}
	if c.names, err = units.NewNames(c.prefix); err != nil {
		return c, err
	}
	if c.entry, err = c.home.Entry(instance); err != nil {
		return c, err
	}
	if c.machine, err = c.home.Machine(); err != nil {
		return c, err
	}
	if c.machineID, err = domain.MachineID(c.machine.UserID, c.machine.HostID, instance); err != nil {
		return c, err
	}
	c.checkout, err = registry.LoadCheckout(c.entry.Checkout)
	return c, err
}

// New reads the configuration and puts the conductor together. It reaches for nothing but files: hub and user manager may
// be away.
func New(ctx context.Context, o Options) (*Conductor, error) {
	config := func(err error) error { return fmt.Errorf("%w: %w", ErrConfig, err) }
	conf, err := load(o.Instance, o.Getenv)
	if err != nil {
		return nil, err
	}
	home, prefix, names, entry := conf.home, conf.prefix, conf.names, conf.entry
	machine, machineID, checkout := conf.machine, conf.machineID, conf.checkout
	notes, err := home.Prepare()
	if err != nil {
		return nil, err
	}
	for _, note := range notes {
		o.Log.Warn().Msg(note)
	}
	if err := home.PrepareRuntime(); err != nil {
		return nil, config(err)
	}
	if err := needToken(home, machineID); err != nil {
		return nil, err
	}
	root := checkout.TreesRoot(home, o.Instance)
	git, err := workspace.New(workspace.Config{
		Checkout: entry.Checkout, Root: root, BranchPrefix: checkout.Workspace.BranchPrefix, Locks: home.LocksDir(),
		FetchTimeout: checkout.Workspace.FetchTimeout, SkipSubmodules: !checkout.Workspace.Submodules,
	})
	if err != nil {
		return nil, config(err)
	}
	epoch := rand.Text()
	hub := hubAddress(o.Getenv("GAIA_HUB"), machine, home)
	logger := o.Log.With().Str(log.Project, checkout.Project).Str(log.Conductor, machineID).Logger()
	client, err := remote.New(remote.Options{
		Hub: hub, TokenFile: home.TokenFile(machineID), User: machine.UserID, MachineID: machineID, Epoch: epoch, Log: logger,
	})
	if err != nil {
		return nil, config(err)
	}
	person, err := remote.New(remote.Options{Hub: hub, User: machine.UserID, Log: logger})
	if err != nil {
		return nil, config(err)
	}
	manager := NewManager(home.RuntimeRoot)
	unitEnv := map[string]string{"GAIA_PREFIX": prefix}
	if h := o.Getenv("GAIA_HOME"); h != "" {
		unitEnv["GAIA_HOME"] = h
	}
	settings := settingsOf(checkout, root)
	d, err := daemon.New(daemon.Config{
		Instance: o.Instance, Prefix: prefix, MachineID: machineID, Epoch: epoch, Label: machine.HostID + ": " + o.Instance,
		Version: o.Version, Runs: home.RunsDir(), GaiaBin: o.Bin, Hub: hub, Home: unitEnv["GAIA_HOME"],
		Names: daemon.Names{
			Unit:   func(number int) string { return names.Run(o.Instance, number) },
			Socket: home.RunSocket,
		},
		Remote: client,
		Executor: executor.New(executor.Config{
			Units: manager, Names: names, Instance: o.Instance, Runs: home.RunsDir(),
			Session: filepath.Join(o.Bin, "gaia-session"), Env: unitEnv,
		}),
		Workspace: checkedOut{git},
		Machine: &machineOf{
			Host: daemon.Host{Proc: "/proc", Disks: []string{root, home.RunsDir()}}, home: home, entry: entry, bin: o.Bin, manager: manager,
		},
		Clock: clock.System{}, Log: logger, Settings: settings, Notify: o.Notify, Watchdog: o.Watchdog,
		Drain: func(ctx context.Context, draining bool) error {
			_, err := person.Drain(ctx, machineID, draining)
			return err
		},
		Reload: func() (daemon.Settings, error) {
			c, err := registry.LoadCheckout(entry.Checkout)
			if err != nil {
				return daemon.Settings{}, err
			}
			if moved := c.TreesRoot(home, o.Instance); moved != root || c.Workspace.BranchPrefix != checkout.Workspace.BranchPrefix ||
				c.Workspace.FetchTimeout != checkout.Workspace.FetchTimeout || c.Workspace.Submodules != checkout.Workspace.Submodules {
				return daemon.Settings{}, errors.New("workspace.root, branch_prefix, fetch_timeout or submodules has changed; that needs a restart (gaia conductor restart)")
			}
			return settingsOf(c, root), nil
		},
	})
	if err != nil {
		return nil, config(err)
	}
	bus := daemon.NewBusObject(d, prefix, names.BusName(o.Instance), home.RuntimeRoot, o.Getenv("DBUS_SESSION_BUS_ADDRESS"))
	return &Conductor{Conductor: d, Bus: bus, manager: manager, client: client, person: person, log: logger}, nil
}

// needToken draws the conductor's token where there is none yet. It is on disk before the hub hears of it, so that a lost
// answer to the first registration loses nothing.
func needToken(home registry.Home, machineID string) error {
	_, err := home.Token(machineID)
	if !errors.Is(err, domain.ErrNotFound) {
		return err
	}
	b := make([]byte, 32)
	if _, err := rand.Read(b); err != nil {
		return fmt.Errorf("drawing the conductor's token: %w", err)
	}
	return home.WriteToken(machineID, hex.EncodeToString(b))
}

func hubAddress(env string, m registry.Machine, home registry.Home) string {
	switch {
	case env != "":
		return env
	case m.Hub != "":
		return m.Hub
	}
	return "unix://" + home.HubSocket()
}

func settingsOf(c registry.Checkout, root string) daemon.Settings {
	return daemon.Settings{
		Project: c.Project, States: c.States, MaxParallel: c.MaxParallel, Slots: c.Slots, Agent: c.Agent.Default,
		Permissions: c.Agent.Permissions, Push: c.Workspace.Push, WorkspaceRoot: root, MinFreeDisk: c.Workspace.MinFreeDisk, Spares: c.Workspace.Spares, MaxLoad: c.MaxLoad,
		Limits: c.Limits, Tick: c.Timing.Tick, Grace: c.Timing.Grace, Blocked: c.Timing.Blocked, TreeTimeout: c.Timing.TreeTimeout,
	}
}

// checkedOut is the checkout's git with what else the conductor asks of it.
type checkedOut struct{ *workspace.Git }

// GitDir implements daemon.Workspace.
func (checkedOut) GitDir(ctx context.Context, tree string) (string, error) {
	return workspace.GitDir(ctx, tree)
}

// machineOf is the machine of one checkout. It reads machine.toml, the PATH that was taken over and the user manager's
// environment each time.
type machineOf struct {
	daemon.Host
	home    registry.Home
	entry   registry.Entry
	bin     string
	manager *Manager
}

// Agents implements daemon.Machine.
func (m *machineOf) Agents(ctx context.Context) (daemon.Agents, error) {
	conf, err := m.home.Machine()
	if err != nil {
		return daemon.Agents{}, err
	}
	env, err := m.environment(ctx, conf, "", nil)
	if err != nil {
		return daemon.Agents{}, err
	}
	a := daemon.Agents{Default: conf.DefaultAgent, Routes: conf.Routes}
	a.Available, a.Unavailable = agent.Available(conf, env)
	return a, nil
}

// Environment implements daemon.Machine.
func (m *machineOf) Environment(ctx context.Context, name string, gaia map[string]string) (map[string]string, error) {
	conf, err := m.home.Machine()
	if err != nil {
		return nil, err
	}
	return m.environment(ctx, conf, name, gaia)
}

func (m *machineOf) environment(ctx context.Context, conf registry.Machine, name string, gaia map[string]string) (map[string]string, error) {
	entry, err := m.home.Entry(m.entry.Instance)
	if err != nil {
		return nil, err
	}
	env, err := m.manager.Environment(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the user manager's environment: %w", err)
	}
	return session.Environment(session.EnvInput{
		Manager: env, Path: entry.Path, Bin: m.bin, Pass: conf.Env.Pass, Profile: agent.EnvNames(name), Gaia: gaia,
	}), nil
}

// Trusted implements daemon.Machine.
func (m *machineOf) Trusted(sha string) (bool, error) { return m.home.Trusted(m.entry.Checkout, sha) }

// Permissions implements daemon.Machine.
func (m *machineOf) Permissions(name, want string) (granted string, refused bool, err error) {
	conf, err := m.home.Machine()
	if err != nil {
		return "", false, err
	}
	if p := conf.Agents[name].Permissions; p != "" {
		want = p
	}
	if want == "" {
		want = registry.PermissionsEdits
	}
	return m.home.Permissions(m.entry.Checkout, want)
}

// Attached implements daemon.Machine.
func (m *machineOf) Attached(ctx context.Context, socket string) (bool, error) {
	out, err := tmux.Server{Socket: socket}.Command(ctx, "list-clients", "-F", "#{client_name}").Output()
	if err != nil {
		return false, fmt.Errorf("asking who is attached to %s: %w", socket, err)
	}
	return strings.TrimSpace(string(out)) != "", nil
}
