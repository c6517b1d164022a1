package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/internal/codingagent"
	"gaia/internal/usermanager"
	"gaia/units"
)

func TestMain(m *testing.M) {
	codingagent.Install()
	usermanager.Main(m)
}

// patience is how long a test waits for what must come. It is far more than an idle machine needs.
const patience = 3 * time.Minute

// world is one installation: a hub, a checkout with its conductor, and an agent that is a shell script of the test's.
type world struct {
	t        *testing.T
	env      usermanager.Env
	names    units.Names
	checkout string
	instance string
}

// setting changes a world before it is set up.
type setting struct {
	hub       string              // hub.toml
	conductor string              // lines put in front of conductor.toml's first table
	tables    string              // lines put behind conductor.toml
	instance  string              // default shop
	agent     string              // the agent of machine.toml, default script
	machine   func(*world) string // its table there
	repo      func(*world)
}

// quickHub scales leases and waits down, so that a test sees them pass.
const quickHub = `[leases]
claim = "10s"
claim_max = "60s"
running = "12s"
parting = "60s"

[limits]
backoff_base = "200ms"
backoff_max = "1s"
offline_after = "6s"
finalise_grace = "10s"
`

// slowHub leaves the leases as they are and only shortens the wait after a failure.
const slowHub = `[limits]
backoff_base = "200ms"
backoff_max = "1s"
`

// newWorld sets an installation up and starts it. agent is the body of a POSIX shell script that works on every ticket.
func newWorld(t *testing.T, agent string, s setting) *world {
	t.Helper()
	w := prepare(t, agent, s)
	w.gaia("conductor", "enable", "--now", w.instance)
	return w
}

// prepare is newWorld without starting the conductor.
func prepare(t *testing.T, agent string, s setting) *world {
	t.Helper()
	return prepareIn(t, usermanager.New(t), agent, s)
}

// prepareIn is prepare in a place that is there already.
func prepareIn(t *testing.T, env usermanager.Env, agent string, s setting) *world {
	t.Helper()
	names, err := units.NewNames(env.Prefix)
	require.NoError(t, err)
	w := &world{t: t, env: env, names: names, instance: s.instance}
	if w.instance == "" {
		w.instance = "shop"
	}
	w.checkout = filepath.Join(env.Home, w.instance)
	w.mkdir(w.checkout, 0o755)
	w.git("init", "--quiet", "--initial-branch=main")
	w.git("config", "user.name", "Test")
	w.git("config", "user.email", "test@gaia.invalid")
	w.write(filepath.Join(w.checkout, "README.md"), "# A shop\n", 0o644)
	w.git("add", ".")
	w.git("commit", "--quiet", "-m", "A shop")
	if s.repo != nil {
		s.repo(w)
	}
	w.mkdir(env.GaiaHome, 0o700)
	w.setAgent(agent)
	if s.agent == "" {
		s.agent = "script"
		s.machine = func(w *world) string { return fmt.Sprintf("[agents.script]\nprogram = [%q]\n", w.agentFile()) }
	}
	w.write(filepath.Join(env.GaiaHome, "machine.toml"),
		fmt.Sprintf("user_id = \"ada\"\nhost_id = \"desk\"\ndefault_agent = %q\n\n%s", s.agent, s.machine(w)), 0o600)
	if s.hub == "" {
		s.hub = slowHub
	}
	w.write(filepath.Join(env.GaiaHome, "hub.toml"), s.hub, 0o600)
	w.gaia("init", "--yes", "--key", "SHOP", "--slug", "shop", "--instance", w.instance, "--agent", s.agent)
	w.configure(s.conductor, s.tables)
	return w
}

// configure rewrites conductor.toml for a quick conductor on a busy machine, and commits it.
func (w *world) configure(lines, tables string) {
	w.t.Helper()
	if !strings.Contains(lines, "max_parallel") {
		lines += "\nmax_parallel = 4\n"
	}
	if !strings.Contains(tables, "[timing]") {
		tables += "\n[timing]\ntick = \"500ms\"\ngrace = \"2s\"\n"
	}
	w.write(filepath.Join(w.checkout, ".gaia", "conductor.toml"),
		"schema = 1\nproject = \"SHOP\"\nslug = \"shop\"\nmax_load = 0\n"+lines+"\n"+tables, 0o644)
	w.git("add", ".gaia")
	w.git("commit", "--quiet", "--allow-empty", "-m", "Let Gaia work here")
}

func (w *world) write(path, text string, mode os.FileMode) {
	w.t.Helper()
	w.mkdir(filepath.Dir(path), 0o755)
	require.NoError(w.t, os.WriteFile(path, []byte(text), mode))
	require.NoError(w.t, w.env.Own(path))
}

// mkdir makes a folder below the test's home, with those above it.
func (w *world) mkdir(path string, mode os.FileMode) {
	w.t.Helper()
	if _, err := os.Stat(path); err == nil {
		return
	}
	w.mkdir(filepath.Dir(path), mode)
	require.NoError(w.t, os.MkdirAll(path, mode))
	require.NoError(w.t, w.env.Own(path))
}

func (w *world) agentFile() string { return filepath.Join(w.env.Home, "agent.sh") }

// setAgent replaces the agent; runs that are under way keep the old one.
func (w *world) setAgent(body string) {
	w.t.Helper()
	tmp := w.agentFile() + ".new"
	w.write(tmp, "#!/bin/sh\nset -eu\n"+body, 0o755)
	require.NoError(w.t, os.Chmod(tmp, 0o755))
	require.NoError(w.t, os.Rename(tmp, w.agentFile()))
}

// try runs a command in the checkout and returns what it printed and its exit code.
func (w *world) try(name string, args ...string) (stdout, stderr string, code int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := w.env.CommandContext(ctx, name, args...)
	cmd.Dir = w.checkout
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(w.t, err, "%s %q", name, args)
	}
	return out.String(), said.String(), cmd.ProcessState.ExitCode()
}

func (w *world) must(name string, args ...string) string {
	w.t.Helper()
	out, said, code := w.try(name, args...)
	require.Zero(w.t, code, "%s %q\n%s%s", name, args, out, said)
	return out
}

// gaia runs a gaia command that must succeed.
func (w *world) gaia(args ...string) string { w.t.Helper(); return w.must("gaia", args...) }

// git runs git in the checkout.
func (w *world) git(args ...string) string {
	w.t.Helper()
	return strings.TrimSpace(w.must("git", args...))
}

// ticket creates a ticket and returns its identifier.
func (w *world) ticket(title string, flags ...string) string {
	w.t.Helper()
	args := append([]string{"ticket", "create", "-o", "name"}, flags...)
	return strings.TrimSuffix(w.gaia(append(args, "--", title)...), "\n")
}

// view is what `gaia ticket show -o json` prints.
type view struct {
	domain.Ticket
	Comments []domain.Comment `json:"comments"`
	Runs     []domain.Run     `json:"runs"`
}

func (w *world) show(identifier string) view {
	w.t.Helper()
	var v view
	require.NoError(w.t, json.Unmarshal([]byte(w.gaia("ticket", "show", "-o", "json", "--", identifier)), &v))
	return v
}

// waitFor waits until a ticket is as wanted, and returns it.
func (w *world) waitFor(identifier, what string, ok func(view) bool) view {
	w.t.Helper()
	var v view
	w.wait(identifier+" "+what, func() bool { v = w.show(identifier); return ok(v) })
	return v
}

func (w *world) wait(what string, cond func() bool) {
	w.t.Helper()
	w.env.WaitFor(w.t, cond, patience, "%s", what)
}

// waitState waits until a ticket is in a state and none of its runs is left to be finalised.
func (w *world) waitState(identifier, state string) view {
	w.t.Helper()
	return w.waitFor(identifier, "reaches "+state, func(v view) bool { return v.State == state && v.settled() })
}

// settled reports whether every run has ended and is finalised.
func (v view) settled() bool {
	for _, r := range v.Runs {
		if r.FinalizedAt.IsZero() {
			return false
		}
	}
	return true
}

// live returns the ticket's live run.
func (v view) live() *domain.Run {
	for i := range v.Runs {
		if v.Runs[i].State.Live() {
			return &v.Runs[i]
		}
	}
	return nil
}

// waitRunning waits until an agent works on a ticket, and returns the run.
func (w *world) waitRunning(identifier string) domain.Run {
	w.t.Helper()
	v := w.waitFor(identifier, "runs", func(v view) bool { r := v.live(); return r != nil && r.State == domain.RunRunning })
	return *v.live()
}

// property is one property of a unit, as systemctl shows it.
func (w *world) property(unit, name string) string {
	w.t.Helper()
	out, err := w.env.Systemctl("show", "--value", "--property="+name, unit)
	require.NoError(w.t, err)
	return strings.TrimSpace(out)
}

// mainPID is the main process of a unit, 0 for none.
func (w *world) mainPID(unit string) int {
	w.t.Helper()
	pid, err := strconv.Atoi(w.property(unit, "MainPID"))
	require.NoError(w.t, err)
	return pid
}

// killMain sends SIGKILL to the main process of a unit, which must have one.
func (w *world) killMain(unit string) {
	w.t.Helper()
	pid := w.mainPID(unit)
	require.Positive(w.t, pid, "%s has no main process", unit)
	require.NoError(w.t, syscall.Kill(pid, syscall.SIGKILL))
}

func (w *world) conductorUnit() string { return w.names.Conductor(w.instance) }

func (w *world) runUnit(r domain.Run) string { return w.names.Run(w.instance, r.Number) }

// pids are the processes of a unit.
func (w *world) pids(unit string) []int {
	w.t.Helper()
	group := w.property(unit, "ControlGroup")
	if group == "" {
		return nil
	}
	data, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", group, "cgroup.procs"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	require.NoError(w.t, err)
	var out []int
	for _, f := range strings.Fields(string(data)) {
		pid, err := strconv.Atoi(f)
		require.NoError(w.t, err)
		out = append(out, pid)
	}
	return out
}

// alive reports whether a process is there and no zombie.
func alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	rest := string(data[bytes.LastIndexByte(data, ')')+1:])
	return !strings.HasPrefix(strings.TrimSpace(rest), "Z")
}

// lines returns the lines of a file that an agent writes; none where it is not there.
func (w *world) lines(name string) []string {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(w.env.Home, name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	require.NoError(w.t, err)
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// verifyLog checks the hub's event log.
func (w *world) verifyLog() {
	w.t.Helper()
	require.Contains(w.t, w.gaia("hub", "verify"), "whole")
}

// note is a line of an agent's script that leaves its run's id in a file of the test's home, once for each start.
func (w *world) note(file string) string {
	return fmt.Sprintf("echo \"$GAIA_RUN\" >>'%s'\n", filepath.Join(w.env.Home, file))
}

// carry is an agent that takes a ticket through qualification, spec, coding and review with commits and comments.
const carry = `
case "$GAIA_STATE" in
qualification) gaia ticket comment --type qualification "A feature."; exec gaia ticket move --workflow gaia_feature spec ;;
spec) echo "# Spec" >spec.md; git add .; git commit -qm Spec; gaia ticket comment --type spec "See spec.md"; exec gaia ticket move coding ;;
coding) echo work >work.txt; git add .; git commit -qm Work; gaia ticket comment --type summary Done; exec gaia ticket move review ;;
review) gaia ticket comment --type acceptance OK; exec gaia ticket move done ;;
*) echo "what is $GAIA_STATE?"; exit 9 ;;
esac
`

func TestOneTicketEndToEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, carry, setting{})
	k := w.ticket("Add a dark mode")
	v := w.waitState(k, "done")
	require.Len(t, v.Runs, 4)
	for _, r := range v.Runs {
		require.Equal(t, domain.RunDone, r.State)
		require.Empty(t, r.EndReason)
	}
	var types []string
	for _, c := range v.Comments {
		types = append(types, c.Type)
	}
	require.Equal(t, []string{"qualification", "spec", "summary", "acceptance"}, types)
	require.Equal(t, "2", w.git("rev-list", "--count", "main..gaia/"+k))
	w.verifyLog()
	w.wait("every unit of the runs is gone", func() bool {
		out, err := w.env.Systemctl("list-units", "--all", "--plain", "--no-legend", w.env.Prefix+"-run-*")
		return err == nil && strings.TrimSpace(out) == ""
	})
}
