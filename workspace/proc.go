package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lives returns who has its working directory, root, program or an open file in one of the folders, "" if nobody. What
// cannot be known is an error, never an answer. Entries that belong to other users are beyond us, and left out.
//
// A process of our own user that forbids looking into it (ssh-agent, sshd's session, the user manager's helper) is
// unknown, unless it cannot have come from a run: it started before since (the tree's beginning), or another user's
// process is its parent, or it belongs to a service that is not Gaia's.
func (g *Git) lives(since time.Time, folders ...string) (string, error) {
	if err := checkProc(g.proc); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(g.proc)
	if err != nil {
		return "", fmt.Errorf("list the processes: %w", err)
	}
	inside := func(link string) bool {
		link = strings.TrimSuffix(link, " (deleted)")
		for _, f := range folders {
			if within(link, f) {
				return true
			}
		}
		return false
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(g.proc, e.Name())
		found, err := looksInto(dir, inside)
		// Whoever works there stays. Others pass: an ls, a program that watches files, and each child of ours, which has all the
		// files that we have open until it is its own program.
		for wait := time.Millisecond; found && wait < time.Second; wait *= 2 {
			time.Sleep(wait)
			found, err = looksInto(dir, inside)
		}
		for wait := time.Millisecond; errors.Is(err, fs.ErrPermission) && wait < time.Second; wait *= 2 {
			// While a process begins or ends it forbids it for a moment, and when it has ended there is nothing to see.
			own, e := g.mayBeOurs(dir, since)
			if e == nil && !own || e != nil && gone(e) {
				err = e
				break
			}
			if e != nil {
				return "", fmt.Errorf("look at process %d: %w", pid, e)
			}
			time.Sleep(wait)
			found, err = looksInto(dir, inside)
		}
		switch {
		case found:
			return fmt.Sprintf("process %d%s", pid, command(pid)), nil
		case errors.Is(err, fs.ErrPermission):
			return "", fmt.Errorf("process %d%s forbids to look where it works", pid, command(pid))
		case err != nil && !gone(err):
			return "", fmt.Errorf("look into process %d: %w", pid, err)
		}
	}
	return "", nil
}

// stands reports whether a process has its working directory in a folder, as far as that can be seen. It is a part of what
// lives looks for, and much quicker.
func (g *Git) stands(folder string) bool {
	proc, err := os.Open(g.proc)
	if err != nil {
		return false
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1)
	return slices.ContainsFunc(names, func(name string) bool {
		if name[0] < '0' || name[0] > '9' {
			return false
		}
		to, err := os.Readlink(filepath.Join(g.proc, name, "cwd"))
		return err == nil && within(strings.TrimSuffix(to, " (deleted)"), folder)
	})
}

// checkProc returns an error unless dir shows every process of the machine.
func checkProc(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("the processes of this machine cannot be seen: %s: %w", dir, err)
	}
	if st.Type != unix.PROC_SUPER_MAGIC {
		return fmt.Errorf("the processes of this machine cannot be seen: %s is no proc file system", dir)
	}
	for _, p := range []string{"self", "1"} { // the second is missing where the mount option hidepid hides others
		if _, err := os.Lstat(filepath.Join(dir, p)); err != nil {
			return fmt.Errorf("the processes of this machine are hidden: %w", err)
		}
	}
	return nil
}

func looksInto(dir string, inside func(string) bool) (bool, error) {
	for _, name := range []string{"cwd", "root", "exe"} {
		link, err := os.Readlink(filepath.Join(dir, name))
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) { // a kernel thread has no program
				continue
			}
			return false, err
		}
		if inside(link) {
			return true, nil
		}
	}
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return false, err
	}
	for _, fd := range fds {
		link, err := os.Readlink(filepath.Join(dir, "fd", fd.Name()))
		if err != nil {
			if gone(err) {
				continue
			}
			return false, err
		}
		if inside(link) {
			return true, nil
		}
	}
	return false, nil
}

func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// mayBeOurs reports whether a process that cannot be looked into belongs to our user and may have come from a run.
func (g *Git) mayBeOurs(dir string, since time.Time) (bool, error) {
	status, err := readStatus(dir)
	if err != nil {
		return false, err
	}
	if state := status["State"]; strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X") {
		return false, nil // dead, and only waited for
	}
	uid := strconv.Itoa(os.Getuid())
	if f := strings.Fields(status["Uid"]); len(f) > 0 && f[0] != uid { // the owner of the entry is root for these
		return false, nil
	}
	if parent, err := readStatus(filepath.Join(g.proc, strings.TrimSpace(status["PPid"]))); err == nil {
		pid := strings.TrimSpace(status["PPid"])
		if f := strings.Fields(parent["Uid"]); pid != "1" && len(f) > 0 && f[0] != uid {
			return false, nil
		}
	}
	if !since.IsZero() && startedBefore(g.proc, dir, since) {
		return false, nil
	}
	b, err := os.ReadFile(filepath.Join(dir, "cgroup"))
	if err != nil {
		return false, err
	}
	for l := range strings.Lines(string(b)) {
		if _, path, ok := strings.Cut(strings.TrimSpace(l), "::"); ok {
			last := filepath.Base(path)
			if last == "init.scope" || strings.HasSuffix(last, ".service") && !strings.Contains(last, "-run-") {
				return false, nil
			}
		}
	}
	return true, nil
}

func readStatus(dir string) (map[string]string, error) {
	b, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return nil, err
	}
	m := map[string]string{}
	for l := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(l, ":"); ok {
			m[k] = strings.TrimSpace(v)
		}
	}
	return m, nil
}

// startedBefore reports whether a process surely began before t.
func startedBefore(proc, dir string, t time.Time) bool {
	b, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return false
	}
	i := strings.LastIndexByte(string(b), ')') // the name before it may hold anything
	f := strings.Fields(string(b[i+1:]))
	if i < 0 || len(f) < 20 {
		return false
	}
	ticks, err := strconv.ParseInt(f[19], 10, 64) // field 22, in hundredths of a second since the boot
	if err != nil {
		return false
	}
	boot, err := bootTime(proc)
	if err != nil {
		return false
	}
	return boot.Add(time.Duration(ticks) * 10 * time.Millisecond).Add(2 * time.Second).Before(t)
}

// bootTime returns when the machine was booted, to a few hundredths of a second.
func bootTime(proc string) (time.Time, error) {
	up, err := os.ReadFile(filepath.Join(proc, "uptime"))
	if err != nil {
		return time.Time{}, fmt.Errorf("ask when the machine was booted: %w", err)
	}
	seconds, _, _ := strings.Cut(string(up), " ")
	age, err := strconv.ParseFloat(seconds, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("ask when the machine was booted: %w", err)
	}
	return time.Now().Add(-time.Duration(age * float64(time.Second))), nil
}

// command returns the short name of a process in brackets, or "".
func command(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return " (" + strings.TrimSpace(string(b)) + ")"
}

// walk calls fn for everything in a folder, the folder itself included. It follows no link.
func walk(ctx context.Context, dir string, fn func(path string, st fs.FileInfo) error) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		st, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return fn(path, st)
	})
}

// blocks returns what a file takes on the disk.
func blocks(st fs.FileInfo) int64 {
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		return s.Blocks * 512
	}
	return st.Size()
}
