package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// settleCut takes away what a power cut may leave of a worktree at path that git was making: names of files, with nothing in
// them, for git does not wait until they are on the disk (see admin.sync). Where there is an index or a marker, or anything
// else in the folder, there was time for somebody's work, and it is left to others. The repository is locked.
func (g *Git) settleCut(path string, all []admin) error {
	link := filepath.Join(path, ".git")
	st, err := os.Lstat(link)
	switch {
	case err == nil && (!st.Mode().IsRegular() || st.Size() > 0), err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil
	}
	if _, more, err := contents(path); err != nil && !errors.Is(err, fs.ErrNotExist) || more {
		return nil
	}
	for _, a := range all {
		ours := strings.HasPrefix(a.reason, ourLock)
		switch {
		case a.path == path && (!ours || a.used()):
			return nil
		case a.path == "" && named(a.dir, path) && (ours || a.reason == "") && !a.used() && a.old():
			if err := g.unregister(a); err != nil {
				return err
			}
		}
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove an empty file of git: %w", err)
	}
	return nil
}

// named reports whether dir may be the git directory that git made for a worktree at path. It adds a number to a name that is
// taken.
func named(dir, path string) bool {
	name := filepath.Base(path)
	if rest, dot := strings.CutPrefix(name, "."); dot { // a part of a reference cannot begin with it
		name = "-" + rest
	}
	number, ok := strings.CutPrefix(filepath.Base(dir), name)
	return ok && strings.Trim(number, "0123456789") == ""
}

// old reports whether a registration was begun so long ago that no git is still writing it, one that a person has started
// elsewhere for a worktree of the same name.
func (a admin) old() bool {
	st, err := os.Lstat(filepath.Join(a.dir, "locked"))
	return err == nil && time.Since(st.ModTime()) > time.Minute
}

// used reports whether anything was ever checked out in a worktree.
func (a admin) used() bool {
	for _, name := range []string{"index", markerName, spareMarker} {
		if _, err := os.Lstat(filepath.Join(a.dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// lostIndex makes the index of a complete tree again where a power cut has emptied it: git would refuse to work there, or,
// without one, take every file for deleted. What an operation has begun, such as a merge, stays begun.
func (j *job) lostIndex(ctx context.Context, gitDir string) error {
	index := filepath.Join(gitDir, "index")
	st, err := os.Lstat(index)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("look at the index: %w", err)
	case !st.Mode().IsRegular() || st.Size() > 0:
		return nil
	default:
		if err := os.Remove(index); err != nil {
			return fmt.Errorf("remove an empty index: %w", err)
		}
	}
	if _, err := (call{dir: j.path, limit: checkout}).run(ctx, "reset", "--quiet", "--", "."); err != nil {
		return fmt.Errorf("make a lost index again: %w", err)
	}
	j.find("The index was empty, as after a power cut, and was made again from HEAD; what was staged is not staged any more.")
	return nil
}

// emptied tells of files that a power cut may have emptied: what was written to them in the last seconds before it.
func (j *job) emptied(ctx context.Context) {
	boot, err := bootTime(j.proc)
	var out []byte
	if err == nil {
		out, err = (call{dir: j.path, config: []string{"core.fileMode=false"}}).run(ctx, "diff", "--no-ext-diff", "--ignore-submodules=all", "--name-only", "--diff-filter=M", "-z")
	}
	if err != nil {
		j.find("Whether a power cut has emptied files could not be seen: %v.", err)
		return
	}
	var names []string
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(j.path, name), &st); name == "" || err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > 0 {
			continue
		}
		if time.Unix(st.Ctim.Unix()).Before(boot) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return
	}
	text := strings.Join(names[:min(len(names), 5)], ", ")
	if more := len(names) - 5; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	j.find("Files are empty since before the machine was booted, which git knows otherwise: %s. A power cut may have emptied them; git restore brings one back.", text)
}
