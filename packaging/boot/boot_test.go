//go:build linux && boot

package boot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// container is a Debian that systemd-nspawn boots. It and everything in it lives in a cgroup of its own, which is the
// handle by which it is found and ended.
type container struct {
	machine
	root    string // its file system
	group   string
	leader  string // its PID 1, as seen from outside
	ended   chan struct{}
	console bytes.Buffer
}

// boot starts the container and waits until it is up.
func (c *container) boot() {
	c.t.Helper()
	err := os.Mkdir(c.group, 0o755)
	need(c.t, !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.EACCES), "cgroups cannot be made (%v); in a container this needs --privileged", err)
	require.NoError(c.t, err)
	group, err := os.Open(c.group)
	require.NoError(c.t, err)
	defer group.Close()
	cmd := exec.Command("systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", "--console=pipe", "--private-network",
		"--machine="+filepath.Base(c.group), "--directory="+c.root)
	cmd.Env = append(os.Environ(), "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1")
	cmd.Stdout, cmd.Stderr = &c.console, &c.console
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd()), Pdeathsig: syscall.SIGKILL}
	c.ended = make(chan struct{})
	started := make(chan error)
	go func() {
		// The kernel ties the death signal to the thread that forked: it stays as long as the container.
		runtime.LockOSThread()
		defer close(c.ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	require.NoError(c.t, <-started)
	c.wait("the container's PID 1 is there", func() bool {
		select {
		case <-c.ended:
			c.t.Fatalf("systemd-nspawn ended:\n%s", &c.console)
		default:
		}
		pids, err := os.ReadFile(filepath.Join(c.group, "payload", "init.scope", "cgroup.procs"))
		c.leader, _, _ = strings.Cut(string(pids), "\n")
		return err == nil && c.leader != ""
	})
	c.booted()
}

// cut ends every process of the container at once.
func (c *container) cut() {
	c.t.Helper()
	require.NoError(c.t, os.WriteFile(filepath.Join(c.group, "cgroup.kill"), []byte("1"), 0))
	<-c.ended
	forget(filepath.Dir(c.root))
}

func (c *container) enter(cmd command) (result, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer cancel()
	enter := exec.CommandContext(ctx, "nsenter", append([]string{"--target=" + c.leader, "--all", "--"}, cmd.args()...)...)
	// The container's logind answers only whom it can see in its own tree of cgroups.
	path := filepath.Join(c.group, "payload", "entered")
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return result{}, err
	}
	group, err := os.Open(path)
	if err != nil {
		return result{}, err
	}
	defer group.Close()
	enter.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	enter.Stdin = strings.NewReader(cmd.stdin)
	enter.WaitDelay = 10 * time.Second
	var out, said bytes.Buffer
	enter.Stdout, enter.Stderr = &out, &said
	err = enter.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		err = nil
	}
	return result{out.String(), said.String(), enter.ProcessState.ExitCode()}, err
}

// files describes every file below a folder of the container, but for those named in without.
func (c *container) files(dir string, without ...string) map[string]string {
	c.t.Helper()
	found := map[string]string{}
	require.NoError(c.t, filepath.WalkDir(filepath.Join(c.root, dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(c.root, path)
		if err != nil {
			return err
		}
		if slices.Contains(without, rel) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		owner := info.Sys().(*syscall.Stat_t)
		found[rel] = fmt.Sprintf("%s %d:%d", info.Mode(), owner.Uid, owner.Gid)
		switch {
		case d.Type().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(data)
			found[rel] += " " + hex.EncodeToString(sum[:])
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			found[rel] += " " + target
		}
		return nil
	}))
	return found
}

// differences names the files that are not as they were.
func differences(before, now map[string]string) (names []string) {
	for name, is := range now {
		if was := before[name]; was != is {
			names = append(names, fmt.Sprintf("%s: was %q, is %q", name, was, is))
		}
	}
	for name := range before {
		if _, ok := now[name]; !ok {
			names = append(names, name+": is gone")
		}
	}
	return names
}

// installed are the files that a package may bring or change: all but homes, what dpkg, apt and systemd note for
// themselves, and what is gone at the next boot.
func (c *container) installed() map[string]string {
	c.t.Helper()
	return c.files("/", "home", "proc", "sys", "dev", "run", "tmp", "var/tmp", "var/log", "var/cache", "var/lib/apt", "var/lib/dpkg",
		"var/lib/systemd/random-seed", "var/lib/systemd/timers", "var/lib/systemd/catalog", "root")
}

// install installs a deb with apt, as an administrator who has downloaded it.
func (c *container) install(deb string) {
	c.t.Helper()
	data, err := os.ReadFile(deb)
	require.NoError(c.t, err)
	name := "/var/cache/" + filepath.Base(deb)
	require.NoError(c.t, os.WriteFile(filepath.Join(c.root, name), data, 0o644))
	c.asRoot("apt-get", "-q", "--yes", "--no-install-recommends", "install", name)
}

func newContainer(t *testing.T, debs [2]string, mirror string) *container {
	t.Helper()
	dir := workspace(t)
	c := &container{root: filepath.Join(dir, "root"), group: groupOf(dir)}
	c.machine = machine{t, c.enter}
	system(t, "boot", c.root, debs[0], mirror)
	t.Cleanup(func() {
		if t.Failed() {
			journal, err := exec.Command("journalctl", "--root="+c.root, "--merge", "--no-pager", "--output=short-precise", "--lines=600").CombinedOutput()
			t.Logf("the container's console:\n%s\nits journal (%v):\n%s", &c.console, err, journal)
		}
	})
	return c
}

// TestBoot is a machine's life with Gaia: it is installed, works, loses its power, comes back by itself, gets another version while
// agents are at work, and is purged.
func TestBoot(t *testing.T) {
	need(t, os.Geteuid() == 0, "root is needed, who boots containers")
	needPrograms(t, "boot", "debootstrap", "systemd-nspawn", "nsenter")
	need(t, hierarchy() != "", "no unified cgroup hierarchy is mounted at /sys/fs/cgroup or /sys/fs/cgroup/unified")
	from := mirror(t)
	packages := debs(t)
	c := newContainer(t, packages, from)

	step := time.Now()
	done := func(what string) {
		t.Logf("%5.1f s  %s", time.Since(step).Seconds(), what)
		step = time.Now()
	}
	c.boot()
	done("booted")
	c.asRoot("useradd", "--create-home", "--shell", "/bin/bash", user)
	c.asRoot("apt-get", "-q", "--yes", "--no-install-recommends", "satisfy", strings.TrimSpace(output(t, "dpkg-deb", "--field", packages[0], "Depends")))
	before := c.installed()
	c.install(packages[0])
	require.Empty(t, c.asRoot("dpkg", "--verify", "gaia"))
	require.Contains(t, c.asRoot("journalctl", "--list-catalog"), "Gaia")
	done("installed, beside " + c.versions())

	c.moveIn("", "")
	first := c.ticket("A greeting")
	c.release(first)
	c.onlyLost(c.done(first), none)
	done(first + " done")

	second := c.ticket("Another greeting")
	lost := c.coding(second)
	boot := c.bootID()
	c.cut()
	done("power cut while an agent was at work on " + second)
	// Nobody logs in or calls gaia: the file is put where the agent looks for it, and what the agent notes is read there.
	require.NoError(t, os.WriteFile(filepath.Join(c.root, home, "go-"+second), nil, 0o644))
	c.boot()
	require.NotEqual(t, boot, c.bootID())
	c.wait(second+" is taken to its end by itself", func() bool {
		noted, err := os.ReadFile(filepath.Join(c.root, home, "noted"))
		require.NoError(t, err)
		for _, line := range lines(string(noted)) {
			if f := strings.Fields(line); len(f) == 4 && f[0] == second && f[1] == "review" && f[3] == "ended" {
				return true
			}
		}
		return false
	})
	for _, session := range lines(c.asRoot("loginctl", "--no-legend", "list-sessions")) { // systemd 257 lists the user manager, too
		require.Contains(t, session, " manager ", "nobody has logged in")
	}
	c.onlyLost(c.done(second), lost)
	require.Equal(t, boot, strings.TrimSpace(c.ada("git", "show", "gaia/"+second+":boot")), "the work goes on where it was")
	done(second + " done")

	third := c.ticket("A third greeting")
	run := c.coding(third)
	unit, conductor := string(run.Unit), "gaia-conductor@shop.service"
	host, daemon, hub := c.property(unit, "MainPID"), c.property(conductor, "MainPID"), c.property("gaia-hub.service", "MainPID")
	require.NotContains(t, c.status(), "replaced")
	c.install(packages[1])
	require.Contains(t, c.asRoot("gaia", "version"), "gaia 1.1.0")
	require.Equal(t, [3]string{host, daemon, hub},
		[3]string{c.property(unit, "MainPID"), c.property(conductor, "MainPID"), c.property("gaia-hub.service", "MainPID")}, "an upgrade ends nothing")
	require.Contains(t, c.status(), "gaia conductor restart shop")
	c.ada("gaia", "conductor", "restart", "shop")
	c.ada("systemctl", "--user", "daemon-reload")
	c.ada("systemctl", "--user", "restart", "gaia-hub.service")
	require.NotContains(t, c.status(), "replaced")
	for _, unit := range []string{conductor, "gaia-hub.service"} {
		exe := c.asRoot("readlink", "/proc/"+c.property(unit, "MainPID")+"/exe")
		require.NotContains(t, exe, "deleted", "%s runs the new program", unit)
	}
	require.Equal(t, host, c.property(unit, "MainPID"), "the agent lives on")
	c.release(third)
	v := c.done(third)
	c.onlyLost(v, none)
	require.NotEqual(t, daemon, c.property(conductor, "MainPID"))
	done("upgraded while an agent was at work on " + third + ", and it is done")

	// Units belong to users, so it is they who disable them.
	c.ada("gaia", "conductor", "disable", "--now", "shop")
	c.ada("systemctl", "--user", "disable", "--now", "gaia-hub.socket")
	c.ada("systemctl", "--user", "stop", "gaia-hub.service")
	c.asRoot("loginctl", "disable-linger", user)
	c.wait("no process of "+user+" is left", func() bool {
		return c.try(command{user: "root", dir: "/", argv: []string{"ps", "-u", user, "-o", "args"}}).code != 0
	})
	homes := c.files("home")
	c.asRoot("apt-get", "-q", "--yes", "purge", "gaia")
	require.Empty(t, differences(homes, c.files("home")), "homes are their users'")
	require.Empty(t, differences(before, c.installed()), "nothing is left")
	require.NotContains(t, c.asRoot("journalctl", "--list-catalog"), "Gaia")
	require.NotContains(t, c.asRoot("dpkg-query", "--show", "--showformat=${Package}\n"), "gaia\n")
	done("purged")
}
