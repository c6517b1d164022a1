// Package cgroup says where the kernel shows the control groups of the unified hierarchy, and in which one a process is.
// systemd makes and removes them and says who is in which; nothing here does.
package cgroup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Root is where systemd mounts the unified hierarchy. The path of a group follows it.
const Root = "/sys/fs/cgroup"

// Of returns the control group of a process, by its number or as "self", as the unified hierarchy names it.
func Of(pid string) (string, error) {
	data, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
	if err != nil {
		return "", fmt.Errorf("reading the control group of process %s: %w", pid, err)
	}
	return parse(data)
}

// parse reads the form that cgroups(7) describes.
func parse(data []byte) (string, error) {
	sc := bufio.NewScanner(bytes.NewReader(data))
	for sc.Scan() {
		if path, ok := strings.CutPrefix(sc.Text(), "0::"); ok {
			return path, nil
		}
	}
	return "", fmt.Errorf("/proc/…/cgroup names no group of the unified hierarchy")
}

// Rejoin moves this process to the control group that it is in.
func Rejoin() error {
	group, err := Of("self")
	if err != nil {
		return err
	}
	return rejoin(filepath.Join(Root, group))
}

// rejoin writes to a file that must be there: where other hierarchies are mounted beside the unified one, Root is an ordinary
// folder, which a file of that name would stay in.
func rejoin(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, "cgroup.procs"), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("joining the own control group: %w", err)
	}
	_, err = f.WriteString("0")
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("joining the own control group: %w", err)
	}
	return nil
}
