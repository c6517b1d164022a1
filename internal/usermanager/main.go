//go:build linux

package usermanager

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Main runs the tests of a package where they have a user manager; see the package's documentation. It is called from
// TestMain and does not return.
func Main(m *testing.M) {
	if _, ok := os.LookupEnv(binVar); ok {
		os.Exit(m.Run())
	}
	// Which files to write, and where, is known once the flags are.
	if !flag.Parsed() {
		flag.Parse()
	}
	if listing() {
		os.Exit(m.Run())
	}
	os.Exit(enter(runTests))
}

// Run runs the program that calls it again where it has a user manager, with these arguments. In the first of the two
// processes it returns the exit code of the second; in the second it returns at once, and isInside is true.
func Run(args []string) (code int, isInside bool) {
	if _, ok := os.LookupEnv(binVar); ok {
		return 0, true
	}
	return enter(func() (int, error) { return runProgram(args) }), false
}

// enter runs one of the two ways in, or the part of PID 1 when we are that.
func enter(outside func() (int, error)) int {
	code, err := func() (int, error) {
		text, ok := os.LookupEnv(planVar)
		if !ok {
			return outside()
		}
		var p plan
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			return 1, fmt.Errorf("read the plan in %s: %w", planVar, err)
		}
		return initialise(p)
	}()
	if err != nil {
		fmt.Fprintf(os.Stderr, "usermanager: %v\n", err)
		return max(code, 1)
	}
	return code
}

// where says which way in this machine allows.
func where() (asRoot bool, err error) {
	if os.Geteuid() == 0 {
		comm, err := os.ReadFile("/proc/1/comm")
		if err != nil {
			return false, fmt.Errorf("see what PID 1 is: %w", err)
		}
		if strings.TrimSpace(string(comm)) == "systemd" {
			return false, errors.New("root on a machine that runs systemd: run this as an ordinary user who is logged in")
		}
		return true, nil
	}
	if rootOnly {
		return false, errors.New("tests with the tag root need root on a machine whose PID 1 is not systemd, a container for one")
	}
	if err := managerAnswers(runtimeDir()); err != nil {
		return false, fmt.Errorf("no user manager: %w; log in properly (not by su or sudo), or: sudo apt-get install systemd dbus-user-session && sudo loginctl enable-linger $USER; in a container, run this as root", err)
	}
	return false, nil
}

func runtimeDir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return dir
	}
	return fmt.Sprintf("/run/user/%d", os.Getuid())
}

// managerAnswers tells whether a user manager and its bus listen in a runtime directory.
func managerAnswers(runtimeDir string) error {
	for _, socket := range []string{"systemd/private", "bus"} {
		conn, err := net.DialTimeout("unix", filepath.Join(runtimeDir, socket), 5*time.Second)
		if err != nil {
			return err
		}
		conn.Close()
	}
	return nil
}

// runTests runs this test binary inside, with every file that it shall write ending up where the caller wants it.
func runTests() (int, error) {
	asRoot, err := where()
	if err != nil {
		return 1, err
	}
	if !asRoot {
		return inPlace(os.Args[1:])
	}
	root, rel, err := module()
	if err != nil {
		return 1, err
	}
	folder := filepath.Join(root, rel)
	return private(plan{Root: rootOnly, Dir: filepath.Join("src", rel)}, func(stage string, p *plan) (func() error, error) {
		if err := stageBinaries(root, filepath.Join(stage, "bin")); err != nil {
			return nil, err
		}
		if err := stageSelf(stage, p); err != nil {
			return nil, err
		}
		out := outputs{stage: stage, owner: p.User}
		args, err := out.rewrite()
		if err != nil {
			return nil, err
		}
		p.Args = args
		work := filepath.Join(stage, p.Dir)
		if err := copyPackage(folder, work, p.User); err != nil {
			return nil, fmt.Errorf("copy the package's folder for the ordinary user: %w", err)
		}
		return func() error {
			// Golden files and fuzz inputs are written beside the tests: they go back to the source.
			return errors.Join(out.deliver(), copyBack(filepath.Join(work, "testdata"), filepath.Join(folder, "testdata")))
		}, nil
	})
}

func runProgram(args []string) (int, error) {
	asRoot, err := where()
	if err != nil {
		return 1, err
	}
	if !asRoot {
		return inPlace(args)
	}
	root, _, err := module()
	if err != nil {
		return 1, err
	}
	return private(plan{Dir: "work", Args: args}, func(stage string, p *plan) (func() error, error) {
		if err := stageBinaries(root, filepath.Join(stage, "bin")); err != nil {
			return nil, err
		}
		if err := stageSelf(stage, p); err != nil {
			return nil, err
		}
		work := filepath.Join(stage, p.Dir)
		return nil, errors.Join(os.Mkdir(work, 0o755), os.Chown(work, int(p.User.UID), int(p.User.GID)))
	})
}

// stageSelf makes our own binary, which may lie where only root can read, the program of the plan.
func stageSelf(stage string, p *plan) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find our own binary: %w", err)
	}
	p.Binary = filepath.Join("program", filepath.Base(self))
	if err := os.Mkdir(filepath.Join(stage, "program"), 0o755); err != nil {
		return fmt.Errorf("copy our own binary: %w", err)
	}
	if err := copyFile(self, filepath.Join(stage, p.Binary), 0o755); err != nil {
		return fmt.Errorf("copy our own binary: %w", err)
	}
	return nil
}

// inPlace runs this program again under the user's own manager. The process that stays behind outlives whatever may
// happen to the other and then stops the units that it left.
func inPlace(args []string) (int, error) {
	root, _, err := module()
	if err != nil {
		return 1, err
	}
	stage, lock, err := newStage()
	if err != nil {
		return 1, err
	}
	defer lock.Close()
	defer os.RemoveAll(stage)
	bin, prefixes := filepath.Join(stage, "bin"), filepath.Join(stage, "prefixes")
	if err := stageBinaries(root, bin); err != nil {
		return 1, err
	}
	if err := os.Mkdir(prefixes, 0o700); err != nil {
		return 1, fmt.Errorf("prepare the tests: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return 1, fmt.Errorf("find our own binary: %w", err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer signal.Stop(signals)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0); err != nil {
		return 1, fmt.Errorf("ask for a signal when the parent dies: %w", err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), binVar+"="+bin, prefixesVar+"="+prefixes, "XDG_RUNTIME_DIR="+runtimeDir())
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("start %s: %w", self, err)
	}
	code := supervise(cmd, signals)
	left, err := os.ReadDir(prefixes)
	if err != nil {
		return max(code, 1), fmt.Errorf("see what the tests have left: %w", err)
	}
	for _, prefix := range left {
		err = errors.Join(err, clear(prefix.Name()))
	}
	return code, err
}

// supervise waits for a child and hands signals on: a request for a dump as it is, everything else as its end.
func supervise(cmd *exec.Cmd, signals <-chan os.Signal) int {
	ended := make(chan struct{})
	go func() {
		// Its result is read from ProcessState, which also knows the ends that are no error.
		_ = cmd.Wait()
		close(ended)
	}()
	asked := 0
	var kill <-chan time.Time
	for {
		select {
		case sig := <-signals:
			s := sig.(syscall.Signal)
			if asked == 0 {
				asked = 128 + int(s)
			}
			if s == unix.SIGQUIT {
				_ = cmd.Process.Signal(s)
				kill = time.After(5 * time.Second)
				continue
			}
			_ = cmd.Process.Kill()
		case <-kill:
			_ = cmd.Process.Kill()
		case <-ended:
			if asked != 0 {
				return asked
			}
			if code := cmd.ProcessState.ExitCode(); code >= 0 {
				return code
			}
			return 1
		}
	}
}

// listing tells whether the tests are asked for their names only, which needs no user manager.
func listing() bool {
	f := flag.Lookup("test.list")
	return f != nil && f.Value.String() != ""
}
