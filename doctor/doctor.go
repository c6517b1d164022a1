// Package doctor looks for what breaks in practice: a user manager that is not there, agents that a run would not find,
// unit files of another version, a full disk, work without a ticket. Each finding says what is wrong and the command
// that mends it, and for some what mends it without a person. To look changes nothing.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gaia/agent"
	"gaia/domain"
	"gaia/journal"
	"gaia/registry"
	"gaia/session"
	"gaia/tmux"
	"gaia/units"
	"gaia/workspace"
)

// Level says how bad a finding is.
type Level string

// The levels. Only Fail keeps Gaia from working, or ends work that is under way; Info is no matter of being well.
const (
	OK   Level = "ok"
	Info Level = "info"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Finding is one look.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Text  string `json:"text"`
	Mend  string `json:"mend"` // command or advice; "" where there is nothing to mend
	Fix   *Fix   `json:"-"`    // nil where mending is a person's matter
}

// Fix mends a finding. What it does can be done at any time: it removes nothing, ends nothing that runs, and is no harm
// where somebody else has done it meanwhile.
type Fix struct {
	Ask string                                    // what a person must say yes to; "" where nothing needs to be asked
	Do  func(ctx context.Context) (string, error) // returns what was done, as a sentence for people
}

// Hub is what doctor asks the hub.
type Hub interface {
	// Health asks once: does it answer, can it read and write.
	Health(ctx context.Context) (live, ready error)
	// Now is the hub's wall clock.
	Now(ctx context.Context) (time.Time, error)
	// Ticket returns a ticket by id; domain.ErrNotFound where there is none.
	Ticket(ctx context.Context, ref string) (domain.Ticket, error)
}

// Config says where to look.
type Config struct {
	Home   registry.Home
	Names  units.Names
	Paths  units.Paths
	Hub    Hub   // nil where it could not even be addressed, with HubErr
	HubErr error // why
	// Elsewhere is the hub's address where it is not the user's own, which systemd would start here.
	Elsewhere string
	UID       int
	Logind    units.Logind
	Path      string // PATH of the shell that asks, to be held against that of runs; "" where nobody does
	Person    bool   // a person is there, whom polkit may ask for a password
	Journal   journal.Reader
	MinFree   uint64 // bytes of disk in the state folder; 0 for the usual
}

// The oldest versions with which Gaia was tried.
var (
	minTmux = [2]int{3, 3}
	minGit  = [2]int{2, 34}
)

// minState is how much disk must be free where hub, run folders and what agents print lie.
const minState = 256 << 20

// checkTimeout bounds one check: nothing here may hang on a wedged program.
const checkTimeout = 20 * time.Second

// clockSkew is by how much this clock may differ from the hub's.
const clockSkew = 5 * time.Second

// Run makes every check and returns the findings in a fixed order.
func Run(ctx context.Context, c Config) []Finding {
	d := &doctor{Config: c}
	for _, check := range []func(context.Context){
		d.runtime, d.places, d.versions, d.bus, d.manager, d.linger, d.journal, d.machine, d.hub, d.checkouts,
	} {
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		check(ctx)
		cancel()
	}
	if d.man != nil {
		d.man.Close()
	}
	return d.found
}

type doctor struct {
	Config
	man      *units.Manager    // nil where there is none
	env      map[string]string // the manager's
	identity *registry.Machine
	found    []Finding
}

func (d *doctor) add(check string, level Level, mend, format string, args ...any) {
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ") // errors that are joined
	d.found = append(d.found, Finding{Check: check, Level: level, Text: text, Mend: mend})
}

// fixable says of the last finding what mends it.
func (d *doctor) fixable(ask string, do func(context.Context) (string, error)) {
	d.found[len(d.found)-1].Fix = &Fix{Ask: ask, Do: do}
}

func (d *doctor) runtime(context.Context) {
	const check = "runtime folder"
	if err := d.Home.NeedRuntime(); err != nil {
		d.add(check, Fail, fmt.Sprintf("sudo loginctl enable-linger %d", d.UID), "%v", err)
		return
	}
	var st unix.Stat_t
	err := unix.Stat(d.Home.RuntimeRoot, &st)
	socket := tmux.Server{Socket: d.Home.RunSocket(strings.Repeat("0", 12))}
	switch {
	case err != nil:
		d.add(check, Fail, "log in as this user (ssh or machinectl shell, not su)", "XDG_RUNTIME_DIR is %s: %v", d.Home.RuntimeRoot, err)
	case int(st.Uid) != d.UID:
		d.add(check, Fail, "log in as this user (ssh or machinectl shell, not su or sudo)", "XDG_RUNTIME_DIR is %s, which belongs to the user %d, and you are %d", d.Home.RuntimeRoot, st.Uid, d.UID)
	case st.Mode&0o077 != 0:
		d.add(check, Warn, "chmod 0700 "+d.Home.RuntimeRoot, "%s is open to others (%04o), and it holds the sockets of your agents' terminals", d.Home.RuntimeRoot, st.Mode&0o777)
	case socket.CheckSocket() != nil:
		d.add(check, Fail, "set XDG_RUNTIME_DIR to a shorter path", "%v", socket.CheckSocket())
	default:
		d.add(check, OK, "", "%s", d.Home.RuntimeRoot)
	}
}

// places looks whether systemd can start what lies where this installation keeps it.
func (d *doctor) places(context.Context) {
	if err := d.Paths.Check(); err != nil {
		d.add("binaries", Fail, "install Gaia in another folder", "%v", err)
	}
	if err := units.CheckArgument(d.Home.RunsDir()); err != nil {
		d.add("state folder", Fail, "set XDG_STATE_HOME, or GAIA_HOME, to another folder, then: gaia init", "runs lie in %s: %v", d.Home.RunsDir(), err)
		return
	}
	if open := openToOthers(d.Home.Dir, d.Home.State, filepath.Join(d.Home.Dir, "credentials")); open != "" {
		d.add("state folder", Warn, "chmod go= "+open, "%s is open to others, and what lies there is yours alone", open)
		d.fixable("", func(context.Context) (string, error) {
			notes, err := d.Home.Prepare()
			return strings.Join(notes, "; "), err
		})
	}
	var st unix.Statfs_t
	switch err := unix.Statfs(d.Home.State, &st); {
	case errors.Is(err, fs.ErrNotExist): // nothing was set up yet
		d.add("state folder", OK, "", "%s, which is not there yet", d.Home.State)
	case err != nil:
		d.add("state folder", Warn, "df "+d.Home.State, "how much disk is free in %s cannot be seen: %v", d.Home.State, err)
	case st.Bavail*uint64(st.Bsize) < cmp.Or(d.MinFree, minState):
		d.add("state folder", Fail, "df -h "+d.Home.State+", and make room", "%d MiB of disk are free in %s, where hub and runs write", st.Bavail*uint64(st.Bsize)>>20, d.Home.State)
	default:
		d.add("state folder", OK, "", "%s", d.Home.State)
	}
}

// openToOthers returns the first of some folders that group or others may look into.
func openToOthers(dirs ...string) string {
	for _, dir := range dirs {
		if st, err := os.Stat(dir); err == nil && st.Mode().Perm()&0o077 != 0 {
			return dir
		}
	}
	return ""
}

func (d *doctor) bus(ctx context.Context) {
	if d.Home.RuntimeRoot == "" {
		return
	}
	if err := units.CheckBus(ctx, d.Home.RuntimeRoot); err != nil {
		d.add("user bus", Warn, "sudo apt-get install dbus-user-session, then log in anew", "there is no place for a conductor's object, so less is shown of it: %v", err)
		return
	}
	d.add("user bus", OK, "", "%s", filepath.Join(d.Home.RuntimeRoot, "bus"))
}

func (d *doctor) versions(ctx context.Context) {
	major, minor, err := tmux.Version(ctx)
	switch {
	case err != nil:
		d.add("tmux", Fail, "sudo apt-get install tmux", "%v", err)
	case before(major, minor, minTmux):
		d.add("tmux", Fail, "sudo apt-get install tmux", "version %d.%d is older than %d.%d", major, minor, minTmux[0], minTmux[1])
	default:
		d.add("tmux", OK, "", "%d.%d", major, minor)
	}
	out, err := exec.CommandContext(ctx, "git", "--version").Output()
	major, minor, ok := gitVersion(string(out))
	switch {
	case err != nil:
		d.add("git", Fail, "sudo apt-get install git", "git --version failed: %v", err)
	case !ok:
		d.add("git", Fail, "sudo apt-get install git", "git --version says no version: %q", strings.TrimSpace(string(out)))
	case before(major, minor, minGit):
		d.add("git", Fail, "sudo apt-get install git", "version %d.%d is older than %d.%d", major, minor, minGit[0], minGit[1])
	default:
		d.add("git", OK, "", "%d.%d", major, minor)
	}
}

func before(major, minor int, least [2]int) bool {
	return major < least[0] || major == least[0] && minor < least[1]
}

var versionForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(\d+)\.(\d+)`) })

func gitVersion(out string) (major, minor int, ok bool) {
	m := versionForm().FindStringSubmatch(out)
	if m == nil {
		return 0, 0, false
	}
	major, err1 := strconv.Atoi(m[1])
	minor, err2 := strconv.Atoi(m[2])
	return major, minor, err1 == nil && err2 == nil
}

func (d *doctor) manager(ctx context.Context) {
	if d.Home.RuntimeRoot == "" {
		return
	}
	man, err := units.Connect(ctx, d.Home.RuntimeRoot)
	if err != nil {
		d.add("user manager", Fail, "log in as this user (ssh or machinectl shell, not su), or: sudo loginctl enable-linger "+strconv.Itoa(d.UID), "%v", err)
		return
	}
	d.man = man
	version, err := man.SystemdVersion(ctx)
	switch {
	case err != nil:
		d.add("user manager", Fail, "systemctl --user status", "%v", err)
		return
	case version < units.OldestSystemd:
		d.add("user manager", Warn, "", "systemd %d is older than %d, the oldest that Gaia was tried with", version, units.OldestSystemd)
	default:
		d.add("user manager", OK, "", "systemd %d", version)
	}
	if d.env, err = man.Environment(ctx); err != nil {
		d.add("user manager", Warn, "systemctl --user show-environment", "its environment cannot be read: %v", err)
	}
	d.controllers(ctx)
	drifts, err := units.FindDrift(ctx, man, d.Names, d.Paths)
	if err != nil {
		d.add("unit files", Warn, "", "%v", err)
		return
	}
	for _, f := range drifts {
		d.add("unit files", Warn, "gaia doctor --fix", "%s", f)
		d.fixable("", d.withManager(func(ctx context.Context, man *units.Manager) (string, error) {
			text := "put right: " + f.String()
			if f.Kind == units.DriftEdited {
				text += "; the edited file is kept beside it"
			}
			return text, units.Mend(ctx, man, []units.Drift{f})
		}))
	}
	if len(drifts) == 0 {
		d.add("unit files", OK, "", "as this version ships them")
	}
}

// withManager is a fix that needs the user manager, in a connection of its own: it is done after the look.
func (d *doctor) withManager(fn func(context.Context, *units.Manager) (string, error)) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		man, err := units.Connect(ctx, d.Home.RuntimeRoot)
		if err != nil {
			return "", err
		}
		defer man.Close()
		return fn(ctx, man)
	}
}

// controllers looks which limits of runs have an effect at all.
func (d *doctor) controllers(ctx context.Context) {
	const check = "controllers"
	can, err := d.man.Abilities(ctx)
	switch {
	case err != nil:
		d.add(check, Warn, "log in as this user (ssh or machinectl shell, not su)", "it cannot be seen whether limits of runs have an effect: %v", err)
	case can.Lacks() != "":
		d.add(check, Warn, can.Mend(), "%s", can.Lacks())
	default:
		d.add(check, OK, "", "cpu, memory and pids")
	}
}

func (d *doctor) linger(ctx context.Context) {
	const check = "linger"
	command := "loginctl enable-linger " + userName(d.UID)
	switch on, err := d.Logind.Linger(ctx, d.UID); {
	case errors.Is(err, units.ErrNoLogind):
		d.add(check, Warn, "systemctl status systemd-logind", "whether agents survive your log-out could not be found out: %v", err)
	case err != nil:
		d.add(check, Warn, command, "whether agents survive your log-out could not be found out: %v", err)
	case on:
		d.add(check, OK, "", "agents survive your log-out")
	default:
		d.add(check, Fail, command, "agents end when you log out of this machine for the last time, and nothing starts at boot")
		d.fixable("Let agents go on after your log-out, and start at boot (linger)", func(ctx context.Context) (string, error) {
			err := d.Logind.EnableLinger(ctx, d.UID, d.Person)
			if errors.Is(err, units.ErrLingerRefused) {
				err = fmt.Errorf("%w; an administrator can: sudo %s", err, command)
			}
			return "linger is on: agents survive your log-out", err
		})
	}
}

// userName is the name of a user, or the number where it has none.
func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return strconv.Itoa(uid)
}

func (d *doctor) journal(ctx context.Context) {
	err := d.Journal.Readable(ctx)
	var access *journal.AccessError
	switch {
	case err == nil:
		d.add("journal", OK, "", "can be read")
	case errors.As(err, &access):
		d.add("journal", Warn, access.Mend, "gaia run logs shows nothing: %s", access.Said)
	default:
		d.add("journal", Warn, "journalctl --header", "gaia run logs shows nothing: %v", err)
	}
}

func (d *doctor) machine(context.Context) {
	m, err := d.Home.Machine()
	if err != nil {
		mend := "edit " + d.Home.MachineFile()
		if _, err := os.Stat(d.Home.MachineFile()); errors.Is(err, fs.ErrNotExist) {
			mend = "gaia init"
		}
		d.add("machine.toml", Fail, mend, "%v", err)
		return
	}
	d.identity = &m
	d.add("machine.toml", OK, "", "%s on %s", m.UserID, m.HostID)
}

func (d *doctor) hub(ctx context.Context) {
	// Not start, which does nothing where the unit is active and its socket was removed by hand.
	start := "systemctl --user restart " + d.Names.HubSocket()
	if d.Elsewhere != "" {
		start = "see on its machine whether the hub at " + d.Elsewhere + " is up"
	}
	if d.Hub == nil {
		if d.identity == nil { // a client needs to know who it is
			start = "gaia init"
		}
		d.add("hub", Fail, start, "%v", d.HubErr)
		return
	}
	live, ready := d.Hub.Health(ctx)
	switch {
	case live != nil:
		d.add("hub", Fail, start, "%v", live)
		if d.Elsewhere == "" && d.man != nil {
			d.startHub(ctx)
		}
		return
	case ready != nil && d.Elsewhere != "":
		d.add("hub", Fail, start, "it answers, but cannot read and write: %v", ready)
		return
	case ready != nil:
		d.add("hub", Fail, "journalctl --user -u "+d.Names.Hub(), "it answers, but cannot read and write: %v", ready)
		return
	}
	if mend := d.replacedHub(ctx); mend != "" {
		d.add("hub", Warn, mend, "it answers, but is a program that has been replaced since, by an upgrade for one")
	} else {
		d.add("hub", OK, "", "answers, and can read and write")
	}
	asked := time.Now()
	now, err := d.Hub.Now(ctx)
	if err != nil {
		d.add("clock", Warn, "", "the hub's clock cannot be read: %v", err)
		return
	}
	if skew := now.Sub(asked); skew.Abs() > clockSkew+time.Since(asked) {
		d.add("clock", Warn, "timedatectl set-ntp true", "this clock differs from the hub's by %s", skew.Round(time.Second))
		return
	}
	d.add("clock", OK, "", "agrees with the hub's")
}

// startHub says how the user's own hub is started, where its socket is merely not up. One that has failed, or is up and
// silent, is for a person to look at.
func (d *doctor) startHub(ctx context.Context) {
	socket := d.Names.HubSocket()
	if st, err := d.man.Status(ctx, socket); err != nil || st.Load != "loaded" || st.Active != "inactive" {
		return
	}
	d.fixable("", d.withManager(func(ctx context.Context, man *units.Manager) (string, error) {
		return "started " + socket, man.Start(ctx, socket)
	}))
}

// replacedHub returns the command that puts the present program in the place of a hub that was started before an upgrade,
// and "" where nothing is known of such a hub.
func (d *doctor) replacedHub(ctx context.Context) string {
	if d.man == nil || d.Elsewhere != "" {
		return ""
	}
	st, err := d.man.Status(ctx, d.Names.Hub())
	if err != nil || !st.Replaced() {
		return ""
	}
	mend := "systemctl --user restart " + d.Names.Hub()
	if st.NeedDaemonReload {
		return "systemctl --user daemon-reload, then: " + mend
	}
	return mend
}

func (d *doctor) checkouts(ctx context.Context) {
	entries, err := d.Home.Entries()
	if err != nil {
		d.add("registry", Fail, "look at the copy that the text names, then: gaia init, in each checkout", "%v", err)
		return
	}
	if len(entries) == 0 {
		d.add("registry", Warn, "gaia init", "no checkout is set up on this machine")
	}
	differs := map[string]Difference{}
	if d.man != nil {
		known, err := Differences(ctx, d.man, d.Names, entries)
		strangers, err2 := Strangers(ctx, d.man, d.Names, entries)
		if err := errors.Join(err, err2); err != nil {
			d.add("registry", Warn, "", "it cannot be compared with the units: %v", err)
		}
		for _, f := range known {
			differs[f.Instance] = f
		}
		for _, f := range strangers {
			d.add("registry", Warn, f.Mend, "%s", f.Text)
		}
	}
	for _, e := range entries {
		d.checkout(ctx, e, differs[e.Instance])
	}
}

func (d *doctor) checkout(ctx context.Context, e registry.Entry, differs Difference) {
	check := "conductor " + e.Instance
	switch {
	case differs.Gone:
		d.add(check, Fail, differs.Mend, "%s", differs.Text)
		return
	case differs.Text != "":
		d.add(check, Warn, differs.Mend, "%s", differs.Text)
	}
	co, err := registry.LoadCheckout(e.Checkout)
	if err != nil {
		d.add(check, Fail, "edit "+filepath.Join(e.Checkout, registry.CheckoutFile), "%v", err)
		return
	}
	if differs.Status.Load == "" || differs.Status.Load == "loaded" {
		d.unit(ctx, check, e)
	}
	d.agents(check, e, co)
	d.hooks(check, e, co)
	g, err := workspace.New(workspace.Config{
		Checkout: e.Checkout, Root: co.TreesRoot(d.Home, e.Instance), BranchPrefix: co.Workspace.BranchPrefix, Locks: d.Home.LocksDir(),
	})
	if err != nil {
		d.add(check, Fail, "git -C "+e.Checkout+" status", "%v", err)
		return
	}
	if err := g.CheckPrefix(ctx); err != nil {
		d.add(check, Fail, "rename that branch, or change branch_prefix in "+filepath.Join(e.Checkout, registry.CheckoutFile), "%v", err)
	}
	switch free, err := g.Free(); {
	case err != nil:
		d.add(check, Warn, "", "how much disk is free cannot be seen: %v", err)
	case free < co.Workspace.MinFreeDisk:
		d.add(check, Fail, "gaia conductor reap "+e.Instance, "%d MiB of disk are free, and with less than %d MiB nothing is claimed", free>>20, co.Workspace.MinFreeDisk>>20)
	}
	d.trees(ctx, check, e, g)
}

func (d *doctor) unit(ctx context.Context, check string, e registry.Entry) {
	if d.man == nil {
		return
	}
	unit := d.Names.Conductor(e.Instance)
	st, err := d.man.Status(ctx, unit)
	switch {
	case err != nil:
		d.add(check, Warn, "", "%v", err)
	case st.Active == "failed":
		d.add(check, Fail, "journalctl --user -u "+unit, "%s has failed: %s", unit, st.Result)
	case st.Active != "active":
		d.add(check, Warn, "gaia conductor start "+e.Instance, "%s is %s", unit, st.Active)
	case st.Replaced():
		d.add(check, Warn, "gaia conductor restart "+e.Instance, "%s runs a program that has been replaced since, by an upgrade for one; its agents outlive a restart", unit)
	case st.NeedDaemonReload:
		d.add(check, Warn, "systemctl --user daemon-reload", "the file of %s has changed since it was read", unit)
		d.fixable("", d.withManager(func(ctx context.Context, man *units.Manager) (string, error) {
			return "let the user manager read its files anew", man.Reload(ctx)
		}))
	default:
		d.add(check, OK, "", "%s", st.StatusText)
	}
}

// agents looks for the agents as a run would: in its environment, and not in this one.
func (d *doctor) agents(check string, e registry.Entry, co registry.Checkout) {
	if d.identity == nil {
		return
	}
	if e.Path == "" {
		d.add(check, Warn, "gaia conductor enable "+e.Instance, "no PATH was taken over for its agents, so they get the user manager's")
	}
	env := session.Environment(session.EnvInput{Manager: d.env, Path: e.Path, Bin: d.Paths.Bin, Pass: d.identity.Env.Pass})
	used := map[string]string{} // the agents that tickets get, and who says so
	name := cmp.Or(co.Agent.Default, d.identity.DefaultAgent)
	if name != "" {
		used[name] = "tickets that name no agent are for " + name
	}
	for _, r := range d.identity.Routes {
		if used[r.Agent] == "" {
			used[r.Agent] = fmt.Sprintf("the route of the label %s leads to %s", r.Label, r.Agent)
		}
	}
	available, missing := agent.Available(*d.identity, env)
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		mend := fmt.Sprintf("gaia conductor enable %s, from a shell in which it is found; or change [agents.%s] in %s", e.Instance, name, d.Home.MachineFile())
		if used[name] == "" && len(available) > 0 {
			d.add(check, Info, mend, "agent %s, which only tickets that name it would use: %v", name, missing[name])
			continue
		}
		d.add(check, Fail, mend, "agent %s: %v", name, missing[name])
	}
	if len(available)+len(missing) == 0 {
		d.add(check, Fail, "edit "+d.Home.MachineFile(), "the machine has no agent, so nothing can be claimed: add a section [agents.NAME]")
		return
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		if _, there := d.identity.Agents[name]; !there {
			d.add(check, Warn, fmt.Sprintf("add a section [agents.%s] to %s", name, d.Home.MachineFile()), "%s, which this machine does not have", used[name])
		}
	}
	d.tools(check, e, env["PATH"])
}

// tools are programs of which a machine often has several versions, and of which an agent's work depends on the right one.
var tools = []string{"git", "node", "npm", "python3", "go", "cargo", "ruby", "java", "php", "docker", "make"}

// tools says where runs get another program than the shell that asks: what works here would not work there.
func (d *doctor) tools(check string, e registry.Entry, path string) {
	if d.Path == "" || e.Path == "" {
		return
	}
	var differ []string
	for _, tool := range tools {
		here, there := lookup(tool, d.Path), lookup(tool, path)
		switch {
		case here == "" || here == there:
		case there == "":
			differ = append(differ, tool+" (not at all, and not "+here+")")
		default:
			differ = append(differ, fmt.Sprintf("%s (%s, and not %s)", tool, there, here))
		}
	}
	if len(differ) > 0 {
		d.add(check, Warn, "gaia conductor enable "+e.Instance+", from this shell if it is right", "runs get other programs than this shell: %s", strings.Join(differ, ", "))
	}
}

// lookup returns the program that a PATH leads to, with links resolved; "" for none.
func lookup(program, path string) string {
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		file := filepath.Join(dir, program)
		if st, err := os.Stat(file); err != nil || !st.Mode().IsRegular() || st.Mode().Perm()&0o111 == 0 {
			continue
		}
		if real, err := filepath.EvalSymlinks(file); err == nil {
			return real
		}
		return file
	}
	return ""
}

func (d *doctor) hooks(check string, e registry.Entry, co registry.Checkout) {
	sha := co.Hooks.SHA256()
	if sha == "" {
		return
	}
	switch trusted, err := d.Home.Trusted(e.Checkout, sha); {
	case err != nil:
		d.add(check, Fail, "edit "+d.Home.TrustFile(), "%v", err)
	case !trusted:
		d.add(check, Fail, "gaia conductor trust "+e.Instance, "its hooks are not trusted, so it claims nothing")
	}
}

// trees finds worktrees that no ticket of the hub stands behind.
func (d *doctor) trees(ctx context.Context, check string, e registry.Entry, g *workspace.Git) {
	trees, err := g.Trees(ctx)
	if err != nil {
		d.add(check, Warn, "", "its worktrees cannot be listed: %v", err)
		return
	}
	for _, t := range trees {
		name := filepath.Base(t.Path)
		if t.Spare {
			continue // the conductor's, which says in its journal what is wrong with it
		}
		if !t.Complete {
			d.add(check, Warn, "gaia conductor reap --dry-run "+e.Instance+" says what becomes of it", "the tree %s is incomplete: %s", name, t.Note)
			continue
		}
		if d.Hub == nil {
			continue
		}
		if _, err := d.Hub.Ticket(ctx, t.Ticket); errors.Is(err, domain.ErrNotFound) {
			d.add(check, Warn, "look at "+t.Path+", and remove it with git worktree remove if it is of no use", "the tree %s belongs to no ticket of this hub; reap keeps it", name)
		}
	}
}
