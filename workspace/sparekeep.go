package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gaia/domain"
	"gaia/internal/durable"
)

// KeepSpares sees to it that there are n complete spares at the commit that new trees start from now, and no others: it
// makes, refreshes and removes them. With less than minFree bytes of free disk there are to be none, and one is made only if
// as much is left with it. While the machine is busy none is made or refreshed. It may be ended by ctx at any point, and goes on from there the next time; where there is
// nothing to do it starts no process. It does not fetch.
//
// A spare that somebody has changed is neither used nor touched, and none is made in its place: the error says so.
func (g *Git) KeepSpares(ctx context.Context, n int, minFree uint64, busy bool) error {
	paths := g.sparePaths()
	if n == 0 && len(paths) == 0 {
		return nil
	}
	free, err := g.Free()
	if err != nil {
		return err
	}
	if free < minFree {
		n = 0
	}
	base, err := g.Base(ctx)
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for i := range n {
		path := g.sparePath(i + 1)
		wanted[path] = true
		if !busy && !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	settings := g.treeSettings()
	var failed error
	for _, path := range paths {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if s, err := g.spareAt(path); err == nil && wanted[path] && s.Base == base && s.Settings == settings {
			continue
		}
		if busy && wanted[path] {
			continue
		}
		unlock, ok := g.tryLock(path)
		if !ok {
			continue // it is being taken
		}
		k := keeper{g.spareJob(path)}
		err := k.keep(ctx, wanted[path], base, settings, minFree)
		unlock()
		failed = errors.Join(failed, err)
	}
	return failed
}

// keeper works on one spare, whose lock it holds.
type keeper struct{ *job }

func (g *Git) spareJob(path string) *job {
	key := filepath.Base(path)
	return &job{Git: g, key: key, path: path, lock: g.lockOf(key), request: domain.TreeRequest{Identifier: key, Run: "none"}}
}

// keep makes one spare what it is to be.
func (k keeper) keep(ctx context.Context, wanted bool, base, settings string, minFree uint64) error {
	if wanted && k.unclean(base+settings) {
		return nil // it has been said
	}
	if err := k.settle(k.key); err != nil {
		return err
	}
	s, err := k.spareAt(k.path)
	switch {
	case err == nil && wanted && s.Settings == settings:
		if s.Base == base {
			return nil
		}
		return k.refresh(ctx, s, base)
	case err == nil:
		if err := k.drop(ctx, s); err != nil {
			return err
		}
	case errors.Is(err, domain.ErrNotFound):
		if err := k.clear(ctx); err != nil {
			return err
		}
	default:
		return err
	}
	if !wanted {
		return nil
	}
	return k.make(ctx, base, settings, minFree)
}

func (k keeper) call() call {
	return call{dir: k.path, limit: checkout, hold: []*os.File{k.lock}, idle: true}
}

// make makes a spare where nothing is.
func (k keeper) make(ctx context.Context, base, settings string, minFree uint64) error {
	if room, err := k.room(ctx, base, minFree); err != nil || !room {
		return err
	}
	if err := os.MkdirAll(k.root, 0o700); err != nil {
		return fmt.Errorf("make the workspace root: %w", err)
	}
	a, err := k.register(ctx, base)
	if err != nil {
		return err
	}
	s := spare{admin: a, Base: base, Settings: settings}
	if _, err := k.call().run(ctx, "reset", "--hard", "--quiet"); err != nil {
		return fmt.Errorf("check out a spare worktree: %w", err)
	}
	return k.complete(ctx, s)
}

func (k keeper) register(ctx context.Context, base string) (admin, error) {
	repository, err := k.lockRepository(ctx)
	if err != nil {
		return admin{}, err
	}
	defer unflock(repository)
	a, err := k.add(ctx, repository, spareLock, "--detach", "--", k.path, base)
	if err != nil {
		return admin{}, fmt.Errorf("make a spare worktree: %w", err)
	}
	return a, nil
}

// refresh brings a spare to another commit: only the difference is checked out.
func (k keeper) refresh(ctx context.Context, s spare, base string) error {
	if err := k.asMade(ctx, s, false); err != nil {
		return err
	}
	if err := errors.Join(s.open(spareLock), durable.SyncDir(s.dir)); err != nil {
		return err
	}
	if _, err := k.call().run(ctx, "reset", "--hard", "--quiet", base); err != nil {
		return fmt.Errorf("refresh the spare worktree: %w", err)
	}
	s.Base = base
	return k.complete(ctx, s)
}

// complete writes a spare's marker and takes away its lock, once git finds it as it should be.
func (k keeper) complete(ctx context.Context, s spare) error {
	// Files that were written in the second in which the index was might have changed unseen, so that git would read them
	// again each time it looks. A second later it notes down that they have not.
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(k.racy):
	}
	before, err := fingerprint(ctx, s.path)
	if err != nil {
		return err
	}
	why, err := s.status(ctx, "1")
	if err != nil {
		return err
	}
	if why != "" {
		// So it is with files that differ in case alone, or with filters that do not undo each other.
		k.setUnclean(s.Base + s.Settings)
		return errors.Join(fmt.Errorf("no spare worktree is kept of %s: it would not be clean, even right after its checkout (%s)", short(s.Base), why),
			k.clear(ctx))
	}
	if s.Print, err = s.print(ctx); err != nil || !strings.HasPrefix(s.Print, before) {
		s.Print = "" // git is asked at the claim, since it may not have seen what is there now
	}
	if err := k.syncTree(ctx, 0); err != nil {
		return err
	}
	s.MadeAt = domain.At(time.Now())
	if err := s.write(); err != nil {
		return err
	}
	return unlock(s.admin)
}

// asMade returns an error unless a spare holds nothing of anybody's and nobody works in it. Whether a process does that
// forbids to be looked at counts only if surely none may.
func (k keeper) asMade(ctx context.Context, s spare, surely bool) error {
	why, err := s.differs(ctx)
	if err == nil && why == "" {
		why, err = keepRefs(ctx, k.Git, ReapOptions{}, tree{admin: s.admin})
	}
	if err == nil && why == "" {
		why, err = k.lives(s.MadeAt.Time, s.path)
		if why != "" {
			why += " works in it"
		} else if !surely {
			err = nil
		}
	}
	if err == nil && why == "" {
		return nil
	}
	if err != nil {
		why = err.Error()
	}
	return fmt.Errorf("the spare worktree %s is left alone: %s; when nothing in it is needed, drop it: git -C %s worktree remove --force --force %s",
		s.path, why, quote(k.checkout), quote(s.path))
}

// drop removes a complete spare that nobody has touched.
func (k keeper) drop(ctx context.Context, s spare) error {
	if err := k.asMade(ctx, s, true); err != nil {
		return err
	}
	if err := s.open(spareLock); err != nil {
		return err
	}
	return k.clear(ctx)
}

// clear makes room where an incomplete spare is, or what is left of one. What in it differs from its commit is saved
// before; while it was incomplete nobody had a reason to write there.
func (k keeper) clear(ctx context.Context) error {
	a, err := k.settleMoved(ctx)
	if err != nil {
		return err
	}
	if a == nil {
		err := os.Remove(k.path) // an empty folder at most
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("something else is where a spare worktree should be; move it away: mv %s %s", quote(k.path), quote(filepath.Join(k.root, strings.TrimPrefix(k.key, ".")+".old")))
	}
	mend := fmt.Sprintf("look at it and, when nothing in it is needed, drop it: git -C %s worktree remove --force --force %s", quote(k.checkout), quote(k.path))
	_, err = os.Lstat(filepath.Join(a.dir, spareMarker))
	switch {
	case a.locked && !strings.HasPrefix(a.reason, ourLock):
		return fmt.Errorf("the spare worktree %s is locked (%s); free it: git -C %s worktree unlock %s", k.path, a.reason, quote(k.checkout), quote(k.path))
	case !a.locked && err != nil:
		return fmt.Errorf("the worktree %s is in the place of a spare, but Gaia did not make it; %s", k.path, mend)
	}
	if _, err := os.Lstat(filepath.Join(a.dir, "modules")); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, fmt.Errorf("the spare worktree %s is left alone: it has submodules; %s", k.path, mend))
	}
	look, err := k.secure(ctx, *a, mend)
	if err != nil {
		return err
	}
	if _, more, err := contents(k.path); err == nil && more {
		if err := k.saveTip(ctx); err != nil {
			return err
		}
	}
	aside, err := k.setAside(ctx, *a, look)
	if err != nil || aside == "" {
		return err
	}
	return deleteAside(aside)
}

// saveTip keeps the commit that the spare stands at, should somebody have committed there: no branch has it.
func (k keeper) saveTip(ctx context.Context) error {
	head, err := Head(ctx, k.path)
	if err != nil || head == "" {
		return err
	}
	only, err := k.git().line(ctx, "rev-list", "--max-count=1", head, "--not", "--branches", "--remotes", "--glob="+savedRefs)
	if err == nil && only != "" {
		_, err = k.git().keep(ctx, savedRefs+strings.TrimPrefix(k.key, ".")+"/tip", head)
	}
	if err != nil {
		return fmt.Errorf("save the commits of the spare worktree: %w", err)
	}
	return nil
}

func (k keeper) setAside(ctx context.Context, a admin, look func(string) error) (aside string, err error) {
	repository, err := k.lockRepository(ctx)
	if err != nil {
		return "", err
	}
	defer unflock(repository) // before the files are deleted, which takes its time
	return k.Git.setAside(a, k.path, look)
}

// settleMoved returns the registration of the spare, nil where there is none. One whose taking was cut short after the
// registration had gone to the ticket's path is moved there, for whoever makes that ticket's tree.
func (k keeper) settleMoved(ctx context.Context) (*admin, error) {
	repository, err := k.lockRepository(ctx)
	if err != nil {
		return nil, err
	}
	defer unflock(repository)
	all, err := k.admins()
	if err != nil {
		return nil, err
	}
	if err := k.settleCut(k.path, all); err != nil {
		return nil, err
	}
	dir := gitFile(k.path)
	for _, a := range all {
		if a.path == k.path {
			return &a, nil
		}
		if a.dir == dir && filepath.Dir(a.path) == k.root && strings.HasPrefix(a.reason, makingLock) {
			return nil, k.endMove(a)
		}
	}
	return nil, nil
}

// room reports whether minFree bytes are left with one more spare. The size of a commit is asked for once.
func (k keeper) room(ctx context.Context, base string, minFree uint64) (bool, error) {
	k.mu.Lock()
	size, known := k.spareSize[base]
	k.mu.Unlock()
	if !known {
		var err error
		if size, err = k.estimate(ctx); err != nil {
			return false, err
		}
		k.mu.Lock()
		k.spareSize = map[string]uint64{base: size}
		k.mu.Unlock()
	}
	free, err := k.Free()
	return free >= minFree+size, err
}

// estimate returns how many bytes a spare will take on the disk: as many as the files of the checkout, by its index. That of
// a bare repository, which has none, is not known beforehand.
func (k keeper) estimate(ctx context.Context) (uint64, error) {
	const block = 4096
	c := k.git()
	c.idle = true
	out, err := c.run(ctx, "ls-files", "--debug")
	if err != nil {
		if exitCode(err) > 0 {
			return 0, nil
		}
		return 0, fmt.Errorf("ask for the size of the checkout: %w", err)
	}
	var sum uint64
	for l := range strings.Lines(string(out)) {
		if f, ok := strings.CutPrefix(l, "  size: "); ok {
			digits, _, _ := strings.Cut(f, "\t")
			if n, err := strconv.ParseUint(digits, 10, 64); err == nil {
				sum += (n + block - 1) / block * block
			}
		}
	}
	return sum, nil
}

func (g *Git) unclean(what string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.neverClean == what
}

func (g *Git) setUnclean(what string) { g.mu.Lock(); defer g.mu.Unlock(); g.neverClean = what }
