package host

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroupOf returns the control group of a process, as the unified hierarchy names it.
func cgroupOf(pid string) (string, error) {
	data, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
	if err != nil {
		return "", fmt.Errorf("reading the control group of process %s: %w", pid, err)
	}
	return parseCgroup(data)
}

func parseCgroup(data []byte) (string, error) {
	sc := bufio.NewScanner(bytes.NewReader(data))
	for sc.Scan() {
		if path, ok := strings.CutPrefix(sc.Text(), "0::"); ok {
			return path, nil
		}
	}
	return "", fmt.Errorf("/proc/…/cgroup names no group of the unified hierarchy")
}

// counter reads one number of a control group's file: the value of key, or with key "" the file's only one. What cannot
// be read, since the kernel or the manager's delegation leaves it out, counts as 0.
func counter(group, file, key string) int64 {
	data, err := os.ReadFile(filepath.Join(cgroupRoot, group, file))
	if err != nil {
		return 0
	}
	return parseCounter(data, key)
}

func parseCounter(data []byte, key string) int64 {
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if key == "" && len(f) == 1 {
			f = []string{"", f[0]}
		}
		if len(f) == 2 && f[0] == key {
			if n, err := strconv.ParseInt(f[1], 10, 64); err == nil && n >= 0 {
				return n
			}
		}
	}
	return 0
}

// oomKills returns how many processes of the group were killed for memory: by the kernel, or, as far as that is known, by
// systemd-oomd.
func oomKills(group string) int64 {
	return counter(group, "memory.events", "oom_kill") + max(mark(group, "user.oomd_ooms"), mark(group, "user.oomd_kill"))
}

// mark reads a number that systemd-oomd leaves on a group that it has ended: the first of the two before the signals, the
// second after them. The service's own result knows nothing of it, as the kernel has killed nobody.
func mark(group, name string) int64 {
	var text [32]byte
	n, err := unix.Getxattr(filepath.Join(cgroupRoot, group), name, text[:])
	if err != nil {
		return 0
	}
	count, err := strconv.ParseInt(string(text[:n]), 10, 64)
	if err != nil {
		return 0
	}
	return max(count, 0)
}
