package units

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// Replaced reports whether the unit's main process runs a program that is no longer on the disk where it was started from:
// an upgrade has put another one there, or it was removed. Such a process goes on as it is until it is restarted.
func (s Status) Replaced() (bool, error) {
	if s.MainPID == 0 {
		return false, nil
	}
	exe := fmt.Sprintf("/proc/%d/exe", s.MainPID)
	path, err := os.Readlink(exe)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // it has just ended
	}
	if err != nil {
		return false, fmt.Errorf("which program %s runs: %w", s.Name, err)
	}
	running, err := os.Stat(exe) // the file itself, whatever has become of its name
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("which program %s runs: %w", s.Name, err)
	}
	there, err := os.Stat(strings.TrimSuffix(path, " (deleted)"))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("whether the program of %s was replaced: %w", s.Name, err)
	}
	return !os.SameFile(running, there), nil
}
