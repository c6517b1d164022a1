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
func (g *Git) settleCut(path string) error {
	link := filepath.Join(path, ".git")
	st, err := os.Lstat(link)
	switch {
	case err == nil && (!st.Mode().IsRegular() || st.Size() > 0), err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil
	}
	if _, more, err := contents(path); err != nil && !errors.Is(err, fs.ErrNotExist) || more {
		return nil
	}
	all, err := g.admins()
	if err != nil {
		return err
	}
	for _, a := range all {
		switch {
		case a.path != path && (a.path != "" || filepath.Base(a.dir) != adminName(path)):
		case a.reason != "" && !strings.HasPrefix(a.reason, "gaia: "), a.used():
			return nil
		case a.locked && a.reason == "":
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

// adminName is how git calls the git directory of a worktree, unless one of that name is there already.
func adminName(path string) string {
	name := filepath.Base(path)
	if rest, dot := strings.CutPrefix(name, "."); dot { // a part of a reference cannot begin with it
		return "-" + rest
	}
	return name
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

// syncLimit is how long a run waits until its new tree is on the disk: the whole file system is written, and another program
// may have given it much to write.
const syncLimit = 2 * time.Second

// syncTree writes a new tree to the disk, before it is marked as complete: git does not, and what a power cut leaves of its
// files would look like somebody's changes. One call for all files is many times quicker than one for each.
func syncTree(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("write the new worktree to the disk: %w", err)
	}
	done := make(chan error, 1)
	go func() {
		defer f.Close()
		done <- unix.Syncfs(int(f.Fd()))
	}()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("write the new worktree to the disk: %w", err)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(syncLimit): // the kernel goes on with it
		return nil
	}
}

// emptyIndex makes the index of a complete tree again where a power cut has emptied it, since git would refuse to work there.
func (j *job) emptyIndex(ctx context.Context, gitDir string) error {
	index := filepath.Join(gitDir, "index")
	if st, err := os.Lstat(index); err != nil || !st.Mode().IsRegular() || st.Size() > 0 {
		return nil
	}
	if err := os.Remove(index); err != nil {
		return fmt.Errorf("remove an empty index: %w", err)
	}
	if _, err := (call{dir: j.path, limit: checkout}).run(ctx, "reset", "--quiet"); err != nil {
		return fmt.Errorf("make an empty index again: %w", err)
	}
	j.find("The index was empty, as after a power cut, and was made again from HEAD; what was staged is not staged any more.")
	return nil
}

// emptied tells of files that a power cut may have emptied: what was written to them in the last seconds before it.
func (j *job) emptied(ctx context.Context) error {
	boot, err := bootTime(j.proc)
	if err != nil {
		return err
	}
	out, err := (call{dir: j.path}).run(ctx, "diff-files", "--name-only", "--diff-filter=M", "-z")
	if err != nil {
		return fmt.Errorf("look for files that a power cut has emptied: %w", err)
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
		return nil
	}
	text := strings.Join(names[:min(len(names), 5)], ", ")
	if more := len(names) - 5; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	j.find("Files are empty since before the machine was booted, which git knows otherwise: %s. A power cut may have emptied them; git restore brings one back.", text)
	return nil
}
