package daemon

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"gaia/domain"
)

// Host looks at the machine that the conductor runs on.
type Host struct {
	Proc  string   // "/proc"
	Disks []string // folders on the file systems that runs write to: of the worktrees, of the run folders
}

// The limits beyond which a machine takes on no more work. They are far from where an ordinary busy machine stands:
// the point is not to tune the load but to keep agents from making the machine unusable for each other.
const (
	maxMemoryStall   = 20.0 // percent of the last 10 s in which every task waited for memory
	minMemoryPercent = 3.0  // available memory
)

// Pressure returns why the machine should not take on more work, or "". What cannot be read is no pressure. Memory and
// load come back as the work ends that takes them, a disk does not.
func (h Host) Pressure(minFreeDisk uint64, maxLoad int) string {
	for _, dir := range h.Disks {
		if free, err := freeDisk(dir); err == nil && free < minFreeDisk {
			return fmt.Sprintf("%s has %s free, less than min_free_disk (%s)", dir, size(free), size(minFreeDisk))
		}
	}
	if data, err := os.ReadFile(filepath.Join(h.Proc, "pressure", "memory")); err == nil {
		if stall, ok := fullAvg10(data); ok && stall > maxMemoryStall {
			return fmt.Sprintf(domain.MachineBusy+"memory pressure: all tasks waited %.0f%% of the last 10 s", stall)
		}
	}
	if data, err := os.ReadFile(filepath.Join(h.Proc, "meminfo")); err == nil {
		total, avail := meminfo(data, "MemTotal:"), meminfo(data, "MemAvailable:")
		if total > 0 && avail >= 0 && 100*float64(avail)/float64(total) < minMemoryPercent {
			return fmt.Sprintf(domain.MachineBusy+"memory: %s available of %s", size(uint64(avail)<<10), size(uint64(total)<<10))
		}
	}
	if data, err := os.ReadFile(filepath.Join(h.Proc, "loadavg")); err == nil {
		if f := strings.Fields(string(data)); len(f) > 0 {
			if load, err := strconv.ParseFloat(f[0], 64); err == nil && maxLoad > 0 && load > float64(maxLoad*runtime.NumCPU()) {
				return fmt.Sprintf(domain.MachineBusy+"load average %.1f on %d processors", load, runtime.NumCPU())
			}
		}
	}
	return ""
}

// BootID identifies the time since the last boot.
func (h Host) BootID() (string, error) {
	data, err := os.ReadFile(filepath.Join(h.Proc, "sys/kernel/random/boot_id"))
	if err != nil {
		return "", fmt.Errorf("reading the boot id: %w", err)
	}
	return string(bytes.TrimSpace(data)), nil
}

// freeDisk returns what an ordinary user can still write below dir, or below the nearest folder above it that is there.
func freeDisk(dir string) (uint64, error) {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err == nil {
			return st.Bavail * uint64(st.Bsize), nil
		}
		if up := filepath.Dir(dir); err == unix.ENOENT && up != dir {
			dir = up
			continue
		}
		return 0, fmt.Errorf("asking for free space at %s: %w", dir, err)
	}
}

func fullAvg10(data []byte) (float64, bool) {
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "full" {
			continue
		}
		v, ok := strings.CutPrefix(f[1], "avg10=")
		n, err := strconv.ParseFloat(v, 64)
		return n, ok && err == nil
	}
	return 0, false
}

// meminfo returns a value in KiB, or -1.
func meminfo(data []byte, key string) int64 {
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) >= 2 && f[0] == key {
			if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				return n
			}
		}
	}
	return -1
}

func size(n uint64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n)/1024, 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	return fmt.Sprintf("%.1f %ciB", v, units[i])
}
