package units

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gaia/internal/cgroup"
)

// OldestSystemd is the oldest version of systemd that Gaia was tried with.
const OldestSystemd = 252

// Abilities are what becomes of the limits of runs, and of what is measured of them, on this machine.
type Abilities struct {
	Systemd int  // version
	Unified bool // the machine has the one hierarchy of control groups that limits need
	// Missing are those of the controllers cpu, memory and pids that the user manager was not given.
	Missing []string
	// Withheld are those of Missing that the whole machine does not have, so that nothing done on it gives them to anybody.
	Withheld []string
	// Peak: the kernel keeps the memory peak of a group that has the memory controller.
	Peak bool
}

// Abilities looks at systemd's version and at the control group of the user manager.
func (m *Manager) Abilities(ctx context.Context) (Abilities, error) {
	version, err := m.SystemdVersion(ctx)
	if err != nil {
		return Abilities{}, err
	}
	var group string
	if err := m.property(ctx, "ControlGroup", &group); err != nil {
		return Abilities{Systemd: version}, err
	}
	return abilities(version, cgroup.Root, group)
}

func abilities(version int, root, group string) (Abilities, error) {
	a := Abilities{Systemd: version}
	offered, err := controllers(root)
	if errors.Is(err, fs.ErrNotExist) {
		return a, nil
	}
	a.Unified = true
	have, err2 := controllers(filepath.Join(root, group))
	if err := cmp.Or(err, err2); err != nil {
		return a, fmt.Errorf("read which limits the user manager can set: %w", err)
	}
	for _, c := range []string{"cpu", "memory", "pids"} {
		if slices.Contains(have, c) {
			continue
		}
		a.Missing = append(a.Missing, c)
		if !slices.Contains(offered, c) {
			a.Withheld = append(a.Withheld, c)
		}
	}
	_, err = os.Stat(filepath.Join(root, group, "memory.peak"))
	a.Peak = err == nil
	return a, nil
}

func controllers(group string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(group, "cgroup.controllers"))
	return strings.Fields(string(data)), err
}

// limits are what a controller is needed for, in the words of conductor.toml.
var limits = map[string]string{"cpu": "cpu_weight", "memory": "memory_max", "pids": "tasks_max"}

// Lacks says what of limits and measures has no effect here and why, in one sentence; "" where nothing is missing.
func (a Abilities) Lacks() string {
	if !a.Unified {
		return "limits of runs have no effect but run_time, and memory peak and memory deaths are not told: this machine has the old hierarchies of control groups"
	}
	peak := "; the memory peak of runs is not known"
	if len(a.Missing) == 0 {
		if !a.Peak {
			return "the memory peak of runs is not known: the kernel is older than 5.19"
		}
		return ""
	}
	names := make([]string, 0, len(a.Missing))
	for _, c := range a.Missing {
		names = append(names, limits[c])
	}
	if !slices.Contains(a.Missing, "memory") {
		peak = ""
	}
	why := "the user manager was not given the controllers " + strings.Join(a.Missing, ", ")
	if len(a.Withheld) == len(a.Missing) {
		why = fmt.Sprintf("this machine itself was not given the controllers %s, by the container or host that it is in, or by its kernel", strings.Join(a.Withheld, ", "))
	}
	return fmt.Sprintf("the limits %s of runs have no effect%s: %s", strings.Join(names, ", "), peak, why)
}

// Mend returns what an administrator does about what Lacks says, "" where that is a newer kernel. What can be done
// here comes first: the rest is left over afterwards.
func (a Abilities) Mend() string {
	switch {
	case !a.Unified:
		return "boot with the kernel's option systemd.unified_cgroup_hierarchy=1"
	case len(a.Missing) > 0 && len(a.Withheld) == len(a.Missing):
		return "no command here helps: have the host give this container the controllers, or start the kernel with them; runs work without"
	case len(a.Missing) > 0:
		return "sudo systemctl edit user@.service, with the lines [Service] and Delegate=cpu cpuset io memory pids; then restart the machine"
	}
	return ""
}
