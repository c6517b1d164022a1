//go:build linux

package usermanager

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Env is one test's own place under the user manager: nothing that is made with its names meets another test's, or an
// installation's.
type Env struct {
	Prefix   string // GAIA_PREFIX: the first part of every unit's name
	Home     string // the home of the test's user, empty but for a git identity
	GaiaHome string // GAIA_HOME, not yet there
	Runtime  string // XDG_RUNTIME_DIR, the user manager's
	Bin      string // the folder of the binaries
}

// New makes a place for one test. When the test ends, every unit of its prefix is stopped and forgotten and its
// folders are removed; when it failed, the units' status and their journal are in its output.
func New(t testing.TB) Env {
	t.Helper()
	e, err := newEnv()
	if err != nil {
		t.Fatalf("usermanager: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(e.Story())
		}
		if err := e.Close(); err != nil {
			t.Errorf("usermanager: %v", err)
		}
	})
	return e
}

// NewEnv is New for a program that is no test; its caller must Close the result.
func NewEnv() (Env, error) { return newEnv() }

func newEnv() (Env, error) {
	bin, ok := os.LookupEnv(binVar)
	if !ok {
		return Env{}, errors.New("not inside a user manager: call usermanager.Main from TestMain")
	}
	var random [5]byte
	rand.Read(random[:])
	e := Env{Prefix: "t" + hex.EncodeToString(random[:]), Runtime: runtimeDir(), Bin: bin}
	if dir := os.Getenv(prefixesVar); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, e.Prefix), nil, 0o600); err != nil {
			return Env{}, fmt.Errorf("note the prefix: %w", err)
		}
	}
	home, err := os.MkdirTemp("", e.Prefix+"-")
	if err != nil {
		return Env{}, fmt.Errorf("make a home: %w", err)
	}
	e.Home, e.GaiaHome = home, filepath.Join(home, ".gaia")
	identity := "[user]\n\tname = Gaia Test\n\temail = test@gaia.invalid\n[init]\n\tdefaultBranch = main\n"
	if err := os.WriteFile(filepath.Join(home, ".gitconfig"), []byte(identity), 0o600); err != nil {
		return Env{}, fmt.Errorf("make a home: %w", err)
	}
	return e, nil
}

// Bin returns the folder with the freshly built gaia, gaia-hub, gaia-conductor and gaia-session.
func Bin(t testing.TB) string {
	t.Helper()
	bin, ok := os.LookupEnv(binVar)
	if !ok {
		t.Fatal("usermanager: not inside a user manager: call usermanager.Main from TestMain")
	}
	return bin
}

// Environ is the environment of the test's user, written from nothing but what is needed: no variable of the caller's
// gets in. XDG_CONFIG_HOME is the user manager's own, because units are found there and nowhere else.
func (e Env) Environ() []string {
	return []string{
		"GAIA_PREFIX=" + e.Prefix, "GAIA_HOME=" + e.GaiaHome,
		"HOME=" + e.Home, "XDG_CONFIG_HOME=" + configHome(), "XDG_RUNTIME_DIR=" + e.Runtime,
		"DBUS_SESSION_BUS_ADDRESS=unix:path=" + filepath.Join(e.Runtime, "bus"),
		"GIT_CONFIG_GLOBAL=" + filepath.Join(e.Home, ".gitconfig"), "GIT_CONFIG_SYSTEM=/dev/null",
		"PATH=" + e.Bin + ":/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
		"USER=" + os.Getenv("USER"), "LOGNAME=" + os.Getenv("LOGNAME"), "SHELL=/bin/sh", "LANG=C.UTF-8", "TERM=xterm-256color", "NO_COLOR=1",
	}
}

// Command is a command of the test's user in the test's home: one of Gaia's own binaries by its name, or any other.
func (e Env) Command(name string, args ...string) *exec.Cmd {
	return e.CommandContext(context.Background(), name, args...)
}

// CommandContext is Command, and the command is killed when ctx ends.
func (e Env) CommandContext(ctx context.Context, name string, args ...string) *exec.Cmd {
	path := name
	if slices.Contains(binaries, name) {
		path = filepath.Join(e.Bin, name)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Dir = e.Environ(), e.Home
	asUser(cmd)
	// A child that keeps the output open must not keep the test.
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// least is how long WaitFor waits at the least: a time-out that is right for an idle machine is no reason to fail on one
// that runs other tests as well. Waiting longer costs nothing where the condition comes to hold.
const least = time.Minute

// WaitFor asks for a condition until it holds, and fails the test when it does not within the time-out. The message
// says what was waited for, as for Logf.
func (e Env) WaitFor(t testing.TB, cond func() bool, timeout time.Duration, message ...any) {
	t.Helper()
	timeout = max(timeout, least)
	deadline := time.Now().Add(timeout)
	for !cond() {
		if time.Now().After(deadline) {
			what := "the condition"
			if len(message) > 0 {
				what = fmt.Sprintf(fmt.Sprint(message[0]), message[1:]...)
			}
			t.Fatalf("waited %s in vain for %s", timeout, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Systemctl runs systemctl --user and returns what it printed.
func (e Env) Systemctl(args ...string) (string, error) { return systemctl(args...) }

// Story is what the user manager and the journal know about the test's units.
func (e Env) Story() string {
	status, _ := systemctl("status", "--no-pager", "--lines=0", "--all", e.Prefix+"-*")
	journal, err := ask("journalctl", "--user", "--no-pager", "--output=short-precise", "--lines=400", "--user-unit="+e.Prefix+"-*")
	if err != nil {
		journal += fmt.Sprintf("journalctl: %v\n", err)
	}
	return fmt.Sprintf("units of %s:\n%s\ntheir journal:\n%s", e.Prefix, status, journal)
}

// Close stops and forgets every unit of the prefix and removes the folders.
func (e Env) Close() error {
	err := errors.Join(clear(e.Prefix), os.RemoveAll(e.Home))
	if dir := os.Getenv(prefixesVar); dir != "" && err == nil {
		err = os.Remove(filepath.Join(dir, e.Prefix))
	}
	return err
}

// clear ends everything that the user manager has under a prefix, by force where asking is not enough.
func clear(prefix string) error {
	patterns := []string{prefix + "-*", prefix + ".slice"}
	_, _ = systemctl(append([]string{"stop", "--job-mode=replace-irreversibly"}, patterns...)...)
	left := ""
	for attempt := 0; attempt < 50; attempt++ {
		_, _ = systemctl(append([]string{"reset-failed"}, patterns...)...)
		out, err := systemctl(append([]string{"list-units", "--all", "--plain", "--no-legend", "--no-pager"}, patterns...)...)
		if err != nil {
			return fmt.Errorf("list the units of %s: %w", prefix, err)
		}
		left = ""
		for _, line := range strings.Split(out, "\n") {
			// UNIT LOAD ACTIVE SUB DESCRIPTION; an inactive one is merely remembered.
			if f := strings.Fields(line); len(f) >= 3 && f[2] != "inactive" && f[2] != "failed" {
				left += line + "\n"
			}
		}
		if left == "" {
			return errors.Join(removeUnitFiles(prefix), os.RemoveAll(filepath.Join(runtimeDir(), prefix)))
		}
		_, _ = systemctl(append([]string{"kill", "--signal=SIGKILL"}, patterns...)...)
		_, _ = systemctl(append([]string{"stop", "--job-mode=replace-irreversibly"}, patterns...)...)
	}
	return fmt.Errorf("these units do not stop:\n%s", left)
}

// removeUnitFiles removes the prefix's unit files, and the links that enabling them made.
func removeUnitFiles(prefix string) error {
	dir := filepath.Join(configHome(), "systemd", "user")
	var found []string
	for _, pattern := range []string{prefix + `[.\-]*`, filepath.Join("*.wants", prefix+`[.\-]*`)} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return fmt.Errorf("find the unit files of %s: %w", prefix, err)
		}
		found = append(found, files...)
	}
	for _, f := range found {
		if err := os.RemoveAll(f); err != nil {
			return fmt.Errorf("remove a unit file: %w", err)
		}
	}
	if len(found) == 0 {
		return nil
	}
	if out, err := systemctl("daemon-reload"); err != nil {
		return fmt.Errorf("reload the user manager: %w: %s", err, out)
	}
	return nil
}

// configHome is where the user manager itself looks for units.
func configHome() string {
	if dir := os.Getenv("XDG_CONFIG_HOME"); dir != "" {
		return dir
	}
	return filepath.Join(os.Getenv("HOME"), ".config")
}

func systemctl(args ...string) (string, error) {
	return ask("systemctl", append([]string{"--user"}, args...)...)
}

// ask runs a command as the user of the user manager.
func ask(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+runtimeDir())
	asUser(cmd)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
