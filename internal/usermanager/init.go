//go:build linux

package usermanager

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	// startTimeout bounds the start of journald and of the user manager. Both take a tenth of a second on an idle
	// machine; a busy one is no failure.
	startTimeout = 30 * time.Second
)

// initialise is PID 1 of the new namespaces: it prepares them, starts what a machine would have running, runs the
// program and ends with its exit code. The kernel then ends everything else in the namespaces.
func initialise(p plan) (int, error) {
	// A thread's namespaces are its own: everything is done, and every child started, from this one.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return 1, fmt.Errorf("enter a cgroup namespace: %w", err)
	}
	if err := mounts(p); err != nil {
		return 1, err
	}
	if err := cgroups(p.User); err != nil {
		return 1, err
	}
	k := &kernel{user: p.User}
	argv := append([]string{filepath.Join(inside, p.Binary)}, p.Args...)
	proc := process{
		argv: argv,
		dir:  filepath.Join(inside, p.Dir),
		env:  append(p.User.environment(), passedOn()...),
	}
	if p.Root {
		proc.cgroup = "system.slice/harness.service"
	} else {
		if err := k.start(); err != nil {
			return 1, err
		}
		proc.cgroup, proc.user = p.User.managerCgroup()+"/harness", &p.User
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGQUIT)
	pid, err := proc.start()
	if err != nil {
		return 1, err
	}
	go func() {
		for s := range signals {
			_ = unix.Kill(pid, s.(syscall.Signal))
		}
	}()
	// As PID 1 we inherit every orphan, and a dead one that nobody waits for would look alive to the tests.
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(-1, &status, 0, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return 1, fmt.Errorf("wait for %s: %w", argv[0], err)
		}
		if got != pid {
			continue
		}
		if status.Signaled() {
			fmt.Fprintf(os.Stderr, "usermanager: %s was ended by signal %v\n", filepath.Base(argv[0]), status.Signal())
			return 128 + int(status.Signal()), nil
		}
		return status.ExitStatus(), nil
	}
}

// mounts makes a machine of its own out of the caller's: an empty /run, /tmp, /var/log, /var/lib/systemd and home, its
// own /proc and cgroups, and the rest of the file system as it is.
func mounts(p plan) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	mount := func(source, target, fstype string, flags uintptr, data string) error {
		if err := unix.Mount(source, target, fstype, flags, data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", fstype, target, err)
		}
		return nil
	}
	if err := errors.Join(
		mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""),
		mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"),
		// What systemd asks for to see whether it may run at all.
		os.MkdirAll("/run/systemd/system", 0o755),
		os.MkdirAll("/run/lock", 0o755),
		os.Mkdir(inside, 0o755),
	); err != nil {
		return err
	}
	// The stage may lie below /tmp: it is mounted before its own path is hidden.
	if err := mount(p.Stage, inside, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if err := errors.Join(
		mount("tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"),
		mount("tmpfs", "/var/log", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"),
		mount("tmpfs", "/var/lib/systemd", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"),
		mount("cgroup2", cgroupRoot, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""),
	); err != nil {
		return err
	}
	// A user manager that nobody has logged in for is one that lingers.
	const linger = "/var/lib/systemd/linger"
	if err := errors.Join(os.Mkdir(linger, 0o755), os.WriteFile(filepath.Join(linger, p.User.Name), nil, 0o644)); err != nil {
		return fmt.Errorf("let the user linger: %w", err)
	}
	if !exists(p.User.Home) {
		return fmt.Errorf("the home %s of the user %s does not exist; make it with: install -d -o %s %s", p.User.Home, p.User.Name, p.User.Name, p.User.Home)
	}
	return mount("tmpfs", p.User.Home, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("mode=700,uid=%d,gid=%d", p.User.UID, p.User.GID))
}

// cgroups builds the part of the tree that PID 1 of a real machine would have built.
func cgroups(u account) error {
	for _, name := range []string{"init.scope", "system.slice/harness.service", "system.slice/systemd-journald.service"} {
		if err := os.MkdirAll(filepath.Join(cgroupRoot, name), 0o755); err != nil {
			return fmt.Errorf("make the cgroup %s: %w", name, err)
		}
	}
	// A cgroup with processes in it cannot hand controllers down.
	if err := os.WriteFile(filepath.Join(cgroupRoot, "init.scope/cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("move to the cgroup init.scope: %w", err)
	}
	return delegate(u)
}

// delegate makes the user manager's cgroup, with one below it for the tests, and gives both to the user.
func delegate(u account) error {
	manager := u.managerCgroup()
	if err := os.MkdirAll(filepath.Join(cgroupRoot, manager), 0o755); err != nil {
		return fmt.Errorf("make the cgroup of the user manager: %w", err)
	}
	dir := cgroupRoot
	for _, part := range strings.Split(manager, "/") {
		for _, controller := range []string{"cpu", "memory", "pids"} {
			// A machine with the old hierarchies has no controllers to hand down here, and runs without limits.
			_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0)
		}
		dir = filepath.Join(dir, part)
	}
	if err := os.MkdirAll(filepath.Join(dir, "harness"), 0o755); err != nil {
		return fmt.Errorf("make the cgroup of the tests: %w", err)
	}
	for _, d := range []string{dir, filepath.Join(dir, "harness")} {
		for _, f := range []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} {
			if err := os.Chown(filepath.Join(d, f), int(u.UID), int(u.GID)); err != nil {
				return fmt.Errorf("delegate a cgroup to %s: %w", u.Name, err)
			}
		}
	}
	return nil
}

func (u account) managerCgroup() string {
	return fmt.Sprintf("user.slice/user-%d.slice/user@%d.service", u.UID, u.UID)
}

func (u account) runtimeDir() string { return fmt.Sprintf("/run/user/%d", u.UID) }

// environment is what a login would set.
func (u account) environment() []string {
	return []string{
		"HOME=" + u.Home, "USER=" + u.Name, "LOGNAME=" + u.Name, "SHELL=/bin/bash", "LANG=C.UTF-8", "TERM=xterm-256color",
		"XDG_RUNTIME_DIR=" + u.runtimeDir(), "DBUS_SESSION_BUS_ADDRESS=unix:path=" + u.runtimeDir() + "/bus",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		binVar + "=" + filepath.Join(inside, "bin"),
	}
}

// passedOn are the caller's variables that steer the Go runtime or a test, and nothing else.
func passedOn() []string {
	var env []string
	for _, name := range []string{"GODEBUG", "GOMAXPROCS", "GOGC", "GORACE", "GOTRACEBACK", "NO_COLOR"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "GAIA_TEST_") {
			env = append(env, kv)
		}
	}
	return env
}

// process is a program to start in a cgroup, as root or as the ordinary user.
type process struct {
	argv   []string
	env    []string
	dir    string
	cgroup string
	user   *account
	quiet  bool
}

func (p process) start() (int, error) {
	group, err := os.Open(filepath.Join(cgroupRoot, p.cgroup))
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", p.argv[0], err)
	}
	defer group.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", p.argv[0], err)
	}
	defer null.Close()
	attr := &syscall.ProcAttr{
		Dir: p.dir, Env: p.env,
		Files: []uintptr{null.Fd(), os.Stdout.Fd(), os.Stderr.Fd()},
		Sys:   &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())},
	}
	if p.quiet {
		attr.Files = []uintptr{null.Fd(), null.Fd(), null.Fd()}
	}
	if p.user != nil {
		attr.Sys.Credential = &syscall.Credential{Uid: p.user.UID, Gid: p.user.GID, Groups: p.user.Groups}
	}
	pid, err := syscall.ForkExec(p.argv[0], p.argv, attr)
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", p.argv[0], err)
	}
	return pid, nil
}

// kernel runs what a booted machine runs for its user: journald and the user manager with its bus.
type kernel struct {
	user              account
	journald, systemd int
}

// start returns when both are ready for work.
func (k *kernel) start() error {
	runtimeDir := k.user.runtimeDir()
	conf := "/run/systemd/journald.conf.d"
	journal := "/var/log/journal"
	id, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		return fmt.Errorf("read the machine's id: %w", err)
	}
	err = errors.Join(
		os.MkdirAll(filepath.Dir(runtimeDir), 0o755),
		os.MkdirAll(runtimeDir, 0o700),
		os.Chown(runtimeDir, int(k.user.UID), int(k.user.GID)),
		os.MkdirAll(conf, 0o755),
		// Only a persistent journal is split by user, and only a split one can be read by its user. A limit on the
		// rate would lose what a failing test has to show.
		os.WriteFile(filepath.Join(conf, "gaia.conf"), []byte("[Journal]\nStorage=persistent\nRateLimitIntervalSec=0\nReadKMsg=no\nAudit=no\n"), 0o644),
		os.MkdirAll(filepath.Join(journal, strings.TrimSpace(string(id))), 0o755),
		os.MkdirAll("/run/systemd/journal", 0o755),
		os.WriteFile("/run/systemd/journal/flushed", nil, 0o644),
	)
	if err != nil {
		return fmt.Errorf("prepare the start of the user manager: %w", err)
	}
	if err := k.startJournal(); err != nil {
		return err
	}
	k.systemd, err = startNotify("systemd", process{
		argv: []string{"--user", "--log-target=journal"}, env: k.user.environment(), dir: k.user.Home,
		cgroup: k.user.managerCgroup(), user: &k.user, quiet: true,
	})
	return err
}

// startJournal starts journald; start has prepared its folders.
func (k *kernel) startJournal() (err error) {
	k.journald, err = startNotify("systemd-journald", process{
		env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, cgroup: "system.slice/systemd-journald.service", quiet: true,
	})
	return err
}

// startNotify starts one of systemd's programs and waits until it says that it is ready.
func startNotify(program string, p process) (int, error) {
	path, err := systemdBinary(program)
	if err != nil {
		return 0, err
	}
	p.argv = append([]string{path}, p.argv...)
	address := "/run/" + program + ".notify"
	_ = os.Remove(address)
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		return 0, fmt.Errorf("listen for the readiness of %s: %w", program, err)
	}
	defer conn.Close()
	if err := os.Chmod(address, 0o666); err != nil {
		return 0, fmt.Errorf("listen for the readiness of %s: %w", program, err)
	}
	// Without variables of the caller's own in it: those of the tests are theirs, not the machine's.
	env := make([]string, 0, len(p.env)+1)
	for _, kv := range p.env {
		if !strings.HasPrefix(kv, "GAIA_") {
			env = append(env, kv)
		}
	}
	p.env = append(env, "NOTIFY_SOCKET="+address)
	pid, err := p.start()
	if err != nil {
		return 0, err
	}
	deadline := time.Now().Add(startTimeout)
	buf := make([]byte, 4096)
	for time.Now().Before(deadline) {
		// Short, to see a process that died instead of becoming ready.
		if err := conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			return 0, fmt.Errorf("wait for %s: %w", program, err)
		}
		n, err := conn.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			var status syscall.WaitStatus
			if got, _ := syscall.Wait4(pid, &status, syscall.WNOHANG, nil); got == pid {
				return 0, fmt.Errorf("%s ended with status %d instead of becoming ready", program, status.ExitStatus())
			}
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("wait for %s: %w", program, err)
		}
		for _, line := range strings.Split(string(buf[:n]), "\n") {
			if line == "READY=1" {
				return pid, nil
			}
		}
	}
	return 0, fmt.Errorf("%s did not become ready within %s", program, startTimeout)
}
