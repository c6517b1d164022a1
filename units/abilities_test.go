package units

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAbilities(t *testing.T) {
	t.Parallel()
	const group = "/user.slice/user-1000.slice/user@1000.service"
	for name, c := range map[string]struct {
		offered     string // by the root
		controllers string // "" for the old hierarchies
		peak        bool
		lacks, mend string
	}{
		"all":           {"cpuset cpu io memory pids\n", "cpuset cpu io memory pids\n", true, "", ""},
		"an old kernel": {"cpuset cpu io memory pids\n", "cpuset cpu io memory pids\n", false, "the memory peak of runs is not known: the kernel is older than 5.19", ""},
		"systemd before 252": {"cpu memory pids\n", "memory pids\n", true,
			"the limits cpu_weight of runs have no effect: the user manager was not given the controllers cpu", "Delegate="},
		"nothing": {"cpu memory pids\n", "\n", false,
			"the limits cpu_weight, memory_max, tasks_max of runs have no effect; the memory peak of runs is not known: the user manager was not given the controllers cpu, memory, pids", "Delegate="},
		"a container that has none": {"\n", "\n", false,
			"the limits cpu_weight, memory_max, tasks_max of runs have no effect; the memory peak of runs is not known: this machine itself was not given the controllers cpu, memory, pids, by the container", "no command here helps"},
		"a kernel without one": {"cpu pids\n", "cpu pids\n", false,
			"the limits memory_max of runs have no effect; the memory peak of runs is not known: this machine itself was not given the controllers memory,", "no command here helps"},
		"one that the machine has, too": {"cpu pids\n", "pids\n", false,
			"the limits cpu_weight, memory_max of runs have no effect; the memory peak of runs is not known: the user manager was not given the controllers cpu, memory", "Delegate="},
		"old hierarchies": {"", "", false, "limits of runs have no effect but run_time", "unified_cgroup_hierarchy"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			dir := filepath.Join(root, group)
			require.NoError(t, os.MkdirAll(dir, 0o755))
			if c.controllers != "" {
				require.NoError(t, os.WriteFile(filepath.Join(root, "cgroup.controllers"), []byte(c.offered), 0o644))
				require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte(c.controllers), 0o644))
			}
			if c.peak {
				require.NoError(t, os.WriteFile(filepath.Join(dir, "memory.peak"), []byte("1\n"), 0o644))
			}
			a, err := abilities(252, root, group)
			require.NoError(t, err)
			require.Equal(t, 252, a.Systemd)
			if c.lacks == "" {
				require.Empty(t, a.Lacks())
			}
			require.True(t, strings.HasPrefix(a.Lacks(), c.lacks), a.Lacks())
			require.Contains(t, a.Mend(), c.mend)
		})
	}
	root := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(root, "cgroup.controllers"), nil, 0o644))
	_, err := abilities(257, root, group)
	require.ErrorContains(t, err, "which limits the user manager can set")
}
