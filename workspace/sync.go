package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// syncLimit is how long a run waits until its new tree is on the disk. A large tree takes longer, and so does any where another
// program has given the file system much to write: the disk goes on, and an agent waits for no more than this.
const syncLimit = 500 * time.Millisecond

// syncTree writes a new tree to the disk, with what is written of it in the repository, before it is marked as complete: git
// does not, and what a power cut leaves of its files would look like somebody's changes.
func (g *Git) syncTree(ctx context.Context, limit time.Duration) error {
	return syncAll(ctx, limit, g.root, g.common) // not the tree, which an open file would keep
}

// Sync writes a worktree and its repository to the disk, so that a power cut leaves them as they are now. After the limit,
// 0 for none, the kernel is left to itself, and that is no error.
func Sync(ctx context.Context, limit time.Duration, tree string) error {
	gitDir, err := GitDir(ctx, tree)
	if err != nil {
		return err
	}
	return syncAll(ctx, limit, tree, gitDir)
}

// syncAll writes the file systems of some folders to the disk. One call for everything is many times quicker than one for each
// file.
func syncAll(ctx context.Context, limit time.Duration, dirs ...string) error {
	done := make(chan error, 1)
	go func() {
		var err error
		for _, dir := range dirs {
			err = errors.Join(err, syncfs(dir))
		}
		done <- err
	}()
	var late <-chan time.Time
	if limit > 0 {
		late = time.After(limit)
	}
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("write the worktree to the disk: %w", err)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-late:
		return nil
	}
}

// syncfs writes the file system to the disk that a folder is on.
func syncfs(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}
