//go:build linux

package usermanager

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// uid is the ordinary user of the private user manager. It is made when missing.
	uid = 1900
	// planVar carries the plan to the process that becomes PID 1 of the new namespaces.
	planVar = "GAIA_USERMANAGER_PLAN"
	// binVar tells a process inside where the binaries are. That it is set at all says that we are inside.
	binVar = "GAIA_USERMANAGER_BIN"
	// prefixesVar names the folder in which New notes the prefixes in use, for whoever has to clean up after us.
	prefixesVar = "GAIA_USERMANAGER_PREFIXES"
	// inside is where the stage is mounted in the namespaces.
	inside = "/run/gaia"
)

// plan is what the outer process asks of PID 1.
type plan struct {
	Stage  string   // the stage's folder, outside
	Binary string   // the program, below the stage
	Args   []string // its arguments, without the program's name
	Dir    string   // its working directory, below the stage
	Root   bool     // the program stays root and starts the user manager itself
	User   account
}

// account is the ordinary user.
type account struct {
	Name, Home string
	UID, GID   uint32
	Groups     []uint32
}

// private runs the calling program again inside namespaces of its own and returns its exit code. The caller is root.
func private(p plan, prepare func(stage string, p *plan) (after func() error, err error)) (int, error) {
	if err := requirements(); err != nil {
		return 1, err
	}
	acc, err := ensureAccount()
	if err != nil {
		return 1, err
	}
	p.User = acc
	cg, err := openCgroup2()
	if err != nil {
		return 1, err
	}
	defer cg.Close()
	sweep(cg)

	// From here on a signal must not end us before the stage and its cgroup are gone.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer signal.Stop(signals)

	stage, lock, err := newStage()
	if err != nil {
		return 1, err
	}
	defer func() {
		os.RemoveAll(stage)
		lock.Close()
	}()
	p.Stage = stage
	after, err := prepare(stage, &p)
	if err != nil {
		return 1, err
	}
	base := filepath.Base(stage)
	if err := os.Mkdir(cg.path(base), 0o755); err != nil {
		return 1, fmt.Errorf("make the test's cgroup: %w", err)
	}
	defer cg.removeAll(base)
	code, err := spawn(p, cg, base, signals)
	if err != nil {
		return 1, err
	}
	if after != nil {
		if err := after(); err != nil {
			return 1, err
		}
	}
	return code, nil
}

// spawn starts PID 1 of the new namespaces in its cgroup and waits for its end.
func spawn(p plan, cg *cgroup2, base string, signals <-chan os.Signal) (int, error) {
	// The kernel ties the death signal to the thread that forked, not to the process: this thread must stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Whoever ran us (go test, mostly) may be killed without a word to us.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0); err != nil {
		return 1, fmt.Errorf("ask for a signal when the parent dies: %w", err)
	}
	text, err := json.Marshal(p)
	if err != nil {
		return 1, fmt.Errorf("encode the plan: %w", err)
	}
	group, err := os.Open(cg.path(base))
	if err != nil {
		return 1, fmt.Errorf("open the test's cgroup: %w", err)
	}
	defer group.Close()
	self, err := os.Executable()
	if err != nil {
		return 1, fmt.Errorf("find our own binary: %w", err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), planVar+"="+string(text))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC,
		Pdeathsig:   syscall.SIGKILL,
		UseCgroupFD: true,
		CgroupFD:    int(group.Fd()),
	}
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("enter namespaces of our own (this needs a root that may mount and make namespaces; in a container: --privileged): %w", err)
	}
	return supervise(cmd, signals), nil
}

// requirements says everything that is missing at once, and how to get it.
func requirements() error {
	var missing []string
	if _, err := systemdBinary("systemd"); err != nil {
		missing = append(missing, "systemd")
	}
	if _, err := systemdBinary("systemd-journald"); err != nil && len(missing) == 0 {
		missing = append(missing, "systemd")
	}
	if _, err := exec.LookPath("dbus-daemon"); err != nil {
		missing = append(missing, "dbus")
	}
	if !exists("/usr/lib/systemd/user/dbus.socket") {
		missing = append(missing, "dbus-user-session")
	}
	for _, program := range []string{"git", "tmux"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program)
		}
	}
	if len(missing) > 0 {
		list := strings.Join(missing, " ")
		return fmt.Errorf("these Debian packages are missing: %s; install them with: apt-get install --no-install-recommends %s", list, list)
	}
	if id, err := os.ReadFile("/etc/machine-id"); err != nil || len(strings.TrimSpace(string(id))) != 32 {
		return errors.New("/etc/machine-id is missing or not complete, without which D-Bus and journald do not start; make it with: systemd-machine-id-setup")
	}
	return nil
}

// systemdBinary finds one of systemd's own programs, which are not on the PATH.
func systemdBinary(name string) (string, error) {
	for _, dir := range []string{"/usr/lib/systemd", "/lib/systemd"} {
		if path := filepath.Join(dir, name); exists(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not installed; install it with: apt-get install systemd", name)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// ensureAccount returns the ordinary user and makes it when missing.
func ensureAccount() (account, error) {
	id := strconv.Itoa(uid)
	u, err := user.LookupId(id)
	if err != nil {
		out, addErr := exec.Command("useradd", "--uid", id, "--create-home", "--shell", "/bin/bash", "gaia"+id).CombinedOutput()
		// Another package's tests may have made it in the meantime, so what counts is whether it is there now.
		if u, err = user.LookupId(id); err != nil {
			return account{}, fmt.Errorf("make the ordinary user for the tests: useradd: %w: %s", errors.Join(addErr, err), out)
		}
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return account{}, fmt.Errorf("group of the user %s: %w", u.Username, err)
	}
	a := account{Name: u.Username, Home: u.HomeDir, UID: uid, GID: uint32(gid)}
	ids, err := u.GroupIds()
	if err != nil {
		return account{}, fmt.Errorf("groups of the user %s: %w", u.Username, err)
	}
	for _, s := range ids {
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			return account{}, fmt.Errorf("groups of the user %s: %w", u.Username, err)
		}
		a.Groups = append(a.Groups, uint32(n))
	}
	return a, nil
}

const stagePattern = "gaia-usermanager-"

// newStage makes the folder through which the outside and the inside exchange files, and holds its lock: a stage
// whose lock is free belongs to a process that was killed.
func newStage() (string, *os.File, error) {
	dir, err := os.MkdirTemp("", stagePattern)
	if err != nil {
		return "", nil, fmt.Errorf("make a folder for the test: %w", err)
	}
	fail := func(err error) (string, *os.File, error) {
		os.RemoveAll(dir)
		return "", nil, fmt.Errorf("prepare %s: %w", dir, err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return fail(err)
	}
	// Locked before it has its name: nobody sees it unlocked.
	f, err := os.OpenFile(filepath.Join(dir, "lock.new"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fail(err)
	}
	if err := errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), os.Rename(f.Name(), filepath.Join(dir, "lock"))); err != nil {
		f.Close()
		return fail(err)
	}
	return dir, f, nil
}

// sweep removes what runs that were killed with SIGKILL have left behind.
func sweep(cg *cgroup2) {
	stages, _ := filepath.Glob(filepath.Join(os.TempDir(), stagePattern+"*"))
	for _, stage := range stages {
		f, err := os.Open(filepath.Join(stage, "lock"))
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			cg.removeAll(filepath.Base(stage))
			os.RemoveAll(stage)
		}
		f.Close()
	}
}

// cgroup2 is the machine's unified hierarchy, mounted nowhere: it is reachable through a descriptor only, so it does
// not matter where, or whether, this machine has it in its file system.
type cgroup2 struct{ fd int }

func openCgroup2() (*cgroup2, error) {
	fs, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open the cgroup2 hierarchy (needs Linux 5.7 or later, and root): %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("open the cgroup2 hierarchy (in a container this needs --privileged): %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the cgroup2 hierarchy (in a container this needs --privileged): %w", err)
	}
	return &cgroup2{fd: fd}, nil
}

func (c *cgroup2) Close() { unix.Close(c.fd) }

func (c *cgroup2) path(name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", c.fd, name)
}

// removeAll removes a cgroup with everything below it. What is still in use stays.
func (c *cgroup2) removeAll(name string) { removeCgroup(c.path(name)) }

func removeCgroup(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() {
			removeCgroup(filepath.Join(dir, e.Name()))
		}
	}
	_ = unix.Rmdir(dir)
}
