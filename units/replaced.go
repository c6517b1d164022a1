package units

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// Replaced reports whether the unit's main process runs a program that is no longer on the disk where it was started from:
// an upgrade has put another one there, or it was removed. Such a process goes on as it is until it is restarted. Where
// this cannot be seen it is false.
func (s Status) Replaced() bool {
	if s.MainPID == 0 {
		return false
	}
	exe := fmt.Sprintf("/proc/%d/exe", s.MainPID)
	path, err := os.Readlink(exe)
	if err != nil {
		return false
	}
	running, err := os.Stat(exe) // the file itself, whatever has become of its name
	if err != nil {
		return false
	}
	there, err := os.Stat(strings.TrimSuffix(path, " (deleted)"))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return !os.SameFile(running, there)
}
