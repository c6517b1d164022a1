package workspace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gaia/domain"
)

// flock takes the exclusive lock on a file, which is made where it is missing and never removed. It waits until ctx
// ends; the error then names the process that holds it.
//
// The lock belongs to the open file: a git that got the file keeps the lock if we die before it, so that nobody
// touches what it is still writing.
func flock(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock %s: %w", path, err)
	}
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			holder := holderOf(f)
			f.Close()
			return nil, fmt.Errorf("the lock %s is held%s: %w", path, holder, context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}

// sign writes into a lock who holds it, for the error of those who wait in vain.
func sign(f *os.File) {
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	}
}

func holderOf(f *os.File) string {
	b := make([]byte, 16)
	n, _ := f.ReadAt(b, 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" by process %d%s", pid, command(pid))
}

// unflock gives the lock back, also where a child of ours has inherited it.
func unflock(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	f.Close()
}

// lockRepository takes the repository's lock: over all conductors of it, one process at a time changes the list of
// worktrees, since parallel calls of git fail on each other's locks.
func (g *Git) lockRepository(ctx context.Context) (*os.File, error) {
	f, err := flock(ctx, filepath.Join(g.common, "gaia.lock"))
	if err == nil {
		sign(f)
	}
	return f, err
}

// Lock implements domain.Workspace. The lock's name is made of the key and the workspace root, because conductors of
// several checkouts share the folder of the locks.
func (g *Git) Lock(ctx context.Context, identifier string) (func(), error) {
	if err := domain.CheckIdentifier(identifier); err != nil {
		return nil, err
	}
	return g.lockKey(ctx, domain.WorkspaceKey(identifier))
}

func (g *Git) lockKey(ctx context.Context, key string) (func(), error) {
	if err := os.MkdirAll(g.config.Locks, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the locks: %w", err)
	}
	sum := sha256.Sum256([]byte(g.root))
	f, err := flock(ctx, filepath.Join(g.config.Locks, key+"-"+hex.EncodeToString(sum[:6])+".lock"))
	if err != nil {
		return nil, err
	}
	sign(f)
	g.mu.Lock()
	g.held[key] = f
	g.mu.Unlock()
	done := false
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if done {
			return
		}
		done = true
		delete(g.held, key)
		unflock(f)
	}, nil
}

// lockOf returns the lock of a tree if this process holds it.
func (g *Git) lockOf(key string) *os.File {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held[key]
}
