package host

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"gaia/internal/cgroup"
)

// counter reads one number of a control group's file: the value of key, or with key "" the file's only one. What cannot
// be read, since the kernel or the manager's delegation leaves it out, counts as 0.
func counter(group, file, key string) int64 {
	data, err := os.ReadFile(filepath.Join(cgroup.Root, group, file))
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
	n, err := unix.Getxattr(filepath.Join(cgroup.Root, group), name, text[:])
	if err != nil {
		return 0
	}
	count, err := strconv.ParseInt(string(text[:n]), 10, 64)
	if err != nil {
		return 0
	}
	return max(count, 0)
}
