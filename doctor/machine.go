package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gaia/journal"
	"gaia/tmux"
	"gaia/units"
)

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

// busSocket is the unit of the user's bus, whichever program serves it.
const busSocket = "dbus.socket"

func (d *doctor) bus(ctx context.Context) {
	const check = "user bus"
	if d.Home.RuntimeRoot == "" {
		return
	}
	err := units.CheckBus(ctx, d.Home.RuntimeRoot)
	if err == nil {
		d.add(check, OK, "", "%s", filepath.Join(d.Home.RuntimeRoot, "bus"))
		return
	}
	start := "systemctl --user start " + busSocket
	waits := d.busWaits(ctx)
	mend := start
	if !waits {
		mend = "sudo apt-get install dbus-user-session, then: " + start
	}
	d.add(check, Warn, mend, "there is no place for a conductor's object, so less is shown of it: %v", err)
	if waits {
		d.fixable("", d.withManager(d.startBus))
	}
}

// busWaits reports whether the bus is there and merely not started: it was installed after the user manager was started,
// which outlives every log-out where it lingers.
func (d *doctor) busWaits(ctx context.Context) bool {
	man, err := units.Connect(ctx, d.Home.RuntimeRoot)
	if err != nil {
		return false // a finding of its own
	}
	defer man.Close()
	st, err := man.Status(ctx, busSocket)
	return err == nil && st.Load == "loaded" && st.Active == "inactive"
}

// startBus also waits for the user manager, which comes to the bus a moment after the bus is there.
func (d *doctor) startBus(ctx context.Context, man *units.Manager) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if err := man.Start(ctx, busSocket); err != nil {
		return "", err
	}
	for {
		err := units.CheckBus(ctx, d.Home.RuntimeRoot)
		if err == nil {
			return "started " + busSocket + "; conductors that run come to the bus by themselves, within a minute", nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%s is started, but: %w", busSocket, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
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
