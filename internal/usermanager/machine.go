//go:build linux && root

package usermanager

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// rootOnly says that the tests take the whole user manager down and up again, for which they stay root.
const rootOnly = true

const bootIDFile = "/proc/sys/kernel/random/boot_id"

// asUser makes a command the ordinary user's: it is root who runs the tests.
func asUser(cmd *exec.Cmd) {
	u, err := ensureAccount()
	if err != nil {
		cmd.Err = err
		return
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}}
}

// Own gives files that a test has made to the test's user.
func (Env) Own(paths ...string) error {
	u, err := ensureAccount()
	if err != nil {
		return err
	}
	for _, path := range paths {
		if err := os.Lchown(path, int(u.UID), int(u.GID)); err != nil {
			return fmt.Errorf("give a file to the user of the tests: %w", err)
		}
	}
	return nil
}

// Machine is a machine with one user, for tests that need to see it go down and come up again. The test stays root
// and outlives every boot; disks (the user's home, /tmp, the journal) survive a boot, the runtime directory does not.
// There is one machine in a test process, so its tests are not parallel.
type Machine struct {
	BootID string

	kernel kernel
	up     bool
	bound  bool
}

// NewMachine boots a machine, which loses its power at the end of the test.
func NewMachine(t testing.TB) *Machine {
	t.Helper()
	u, err := ensureAccount()
	if err != nil {
		t.Fatalf("usermanager: %v", err)
	}
	m := &Machine{kernel: kernel{user: u}}
	t.Cleanup(func() {
		if err := errors.Join(m.Crash(), m.unbind()); err != nil {
			t.Errorf("usermanager: %v", err)
		}
	})
	if err := m.Boot(); err != nil {
		t.Fatalf("usermanager: %v", err)
	}
	return m
}

// Boot starts the machine with a new boot id.
func (m *Machine) Boot() error {
	if m.up {
		return errors.New("the machine is up already")
	}
	if err := m.unbind(); err != nil {
		return err
	}
	m.BootID = uuid.NewString()
	const file = "/run/boot_id"
	if err := os.WriteFile(file, []byte(m.BootID+"\n"), 0o444); err != nil {
		return fmt.Errorf("write a boot id: %w", err)
	}
	if err := unix.Mount(file, bootIDFile, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("put the boot id in place: %w", err)
	}
	m.bound = true
	return m.Login()
}

// Login starts the user manager in the boot that is: after Shutdown, this is a user who comes back.
func (m *Machine) Login() error {
	if m.up {
		return errors.New("the user manager is up already")
	}
	if err := os.RemoveAll(m.kernel.user.runtimeDir()); err != nil {
		return fmt.Errorf("empty the runtime directory: %w", err)
	}
	if err := delegate(m.kernel.user); err != nil {
		return err
	}
	m.up = true // even when it comes up by half, there is something to kill
	return m.kernel.start()
}

// Shutdown stops the user manager as a logout or a shutdown does: it stops every unit, and what remains is killed.
func (m *Machine) Shutdown() error {
	if !m.up {
		return nil
	}
	if err := unix.Kill(m.kernel.systemd, unix.SIGTERM); err != nil {
		return fmt.Errorf("stop the user manager: %w", err)
	}
	// As the system manager does, after the same time.
	if !gone(m.kernel.systemd, 2*time.Minute) {
		return errors.Join(errors.New("the user manager did not stop within two minutes"), m.Crash())
	}
	m.kernel.systemd = 0
	return m.Crash()
}

// Crash ends every process of the user at once, as a loss of power does.
func (m *Machine) Crash() error {
	if !m.up {
		return nil
	}
	m.up = false
	slice := filepath.Join(cgroupRoot, "user.slice")
	if err := os.WriteFile(filepath.Join(slice, "cgroup.kill"), []byte("1"), 0); err != nil {
		return fmt.Errorf("kill the user's processes: %w", err)
	}
	for _, pid := range []int{m.kernel.systemd, m.kernel.journald} {
		if pid == 0 {
			continue
		}
		_ = unix.Kill(pid, unix.SIGKILL)
		if !gone(pid, 10*time.Second) {
			return fmt.Errorf("the process %d does not end", pid)
		}
	}
	m.kernel.systemd, m.kernel.journald = 0, 0
	deadline := time.Now().Add(10 * time.Second)
	for {
		events, err := os.ReadFile(filepath.Join(slice, "cgroup.events"))
		if err != nil {
			return fmt.Errorf("see whether the user's processes have ended: %w", err)
		}
		if strings.Contains(string(events), "populated 0") {
			// Linux 6.18 goes on killing what is started directly in a cgroup that was once told to kill: the next
			// boot gets a new one.
			removeCgroup(slice)
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("the user's processes do not end")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// KillJournal ends journald; nobody starts it anew but StartJournal.
func (m *Machine) KillJournal() error {
	if err := unix.Kill(m.kernel.journald, unix.SIGKILL); err != nil {
		return fmt.Errorf("kill journald: %w", err)
	}
	if !gone(m.kernel.journald, 10*time.Second) {
		return errors.New("journald does not end")
	}
	m.kernel.journald = 0
	return nil
}

// StartJournal starts journald after KillJournal.
func (m *Machine) StartJournal() error { return m.kernel.startJournal() }

// New is the package's New on this machine. Nothing is cleared when the machine is down at the end of the test.
func (m *Machine) New(t testing.TB) Env {
	t.Helper()
	e, err := newEnv()
	if err != nil {
		t.Fatalf("usermanager: %v", err)
	}
	if err := e.Own(e.Home, filepath.Join(e.Home, ".gitconfig")); err != nil {
		t.Fatalf("usermanager: %v", err)
	}
	t.Cleanup(func() {
		if !m.up {
			return
		}
		if t.Failed() {
			t.Log(e.Story())
		}
		if err := e.Close(); err != nil {
			t.Errorf("usermanager: %v", err)
		}
	})
	return e
}

func (m *Machine) unbind() error {
	if !m.bound {
		return nil
	}
	m.bound = false
	if err := unix.Unmount(bootIDFile, 0); err != nil {
		return fmt.Errorf("take the old boot id away: %w", err)
	}
	return nil
}

// gone waits for a child's end.
func gone(pid int, timeout time.Duration) bool {
	deadline := time.Now().Add(timeout)
	for {
		got, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		if got == pid || errors.Is(err, syscall.ECHILD) {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(5 * time.Millisecond)
	}
}
