//go:build linux && (boot || vm)

package boot

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// hierarchy is where the unified cgroup hierarchy is mounted, "" for nowhere.
func hierarchy() string {
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir
		}
	}
	return ""
}

// groupOf is the cgroup of a test's folder.
func groupOf(dir string) string {
	return filepath.Join(hierarchy(), "gaia-boot-"+filepath.Base(dir))
}

// forget ends what runs in a test's cgroup and removes it.
func forget(dir string) {
	group := groupOf(dir)
	// What systemd-nspawn makes for a container of that name, and cannot remove when it is killed.
	defer os.Remove(filepath.Join("/run/systemd/nspawn/propagate", filepath.Base(group)))
	if os.WriteFile(filepath.Join(group, "cgroup.kill"), []byte("1"), 0) != nil {
		return
	}
	// The kernel lets go of the processes in its own time.
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var groups []string
		_ = filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				groups = append(groups, path)
			}
			return nil
		})
		for i := len(groups) - 1; i >= 0; i-- {
			_ = unix.Rmdir(groups[i])
		}
		if _, err := os.Stat(group); errors.Is(err, os.ErrNotExist) {
			return
		}
	}
}
