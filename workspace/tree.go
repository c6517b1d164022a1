package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"gaia/domain"
	"gaia/internal/durable"
)

// listed is one entry of `git worktree list`.
type listed struct {
	path, branch string // branch: full ref, "" if detached
	bare         bool
}

// list returns the repository's worktrees as git knows them, the main one first.
func (g *Git) list(ctx context.Context) ([]listed, error) {
	out, err := g.git().run(ctx, "worktree", "list", "--porcelain")
	if _, text, ok := strings.Cut(stderrOf(err), "failed to read "); ok {
		if dir, _, ok := strings.Cut(text, "/commondir"); ok && filepath.Base(filepath.Dir(dir)) == "worktrees" {
			return nil, fmt.Errorf("a worktree of %s is registered without content, as after a power cut, and git fails: %w; remove it: rm -r %s",
				g.checkout, err, quote(filepath.Join(g.common, "worktrees", filepath.Base(dir))))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list the worktrees of %s: %w", g.checkout, err)
	}
	var trees []listed
	for l := range strings.Lines(string(out)) {
		key, val, _ := strings.Cut(strings.TrimSuffix(l, "\n"), " ")
		switch {
		case key == "worktree":
			trees = append(trees, listed{path: val})
		case len(trees) == 0:
		case key == "branch":
			trees[len(trees)-1].branch = val
		case key == "bare":
			trees[len(trees)-1].bare = true
		}
	}
	return trees, nil
}

// admin is one worktree's own git directory, <common>/worktrees/<id>. It is read from the files, since git itself
// refuses or skips those that a crash has left half made.
type admin struct {
	dir    string
	path   string // where the worktree should be, "" if that was never written
	locked bool
	reason string // of the lock
}

// sync makes a new registration outlive a power cut. Git leaves these files to the kernel, which may lose what is in them and
// keep their names: then nobody could tell that what lies there is ours and unfinished.
func (a admin) sync() error {
	steps := [][]string{
		// Side by side, since the disk has as little to do for all of them as for one.
		{filepath.Join(a.dir, "commondir"), filepath.Join(a.dir, "HEAD"), filepath.Join(a.dir, "locked")},
		// With gitdir git takes notice of the worktree, and then fails everywhere in the repository if commondir is empty.
		{filepath.Join(a.dir, "gitdir")},
		// The folders last, each of which makes the names in it last. A .git that leads to a registration without gitdir would be
		// taken for a tree that somebody has moved.
		{filepath.Join(a.path, ".git"), a.dir, filepath.Dir(a.dir), a.path, filepath.Dir(a.path)},
	}
	for _, paths := range steps {
		var group errgroup.Group
		for _, path := range paths {
			group.Go(func() error { return durable.SyncDir(path) })
		}
		if err := group.Wait(); err != nil {
			return fmt.Errorf("write the new worktree %s to the disk: %w", a.path, err)
		}
	}
	return nil
}

// admins returns the git directories of all worktrees.
func (g *Git) admins() ([]admin, error) {
	folder := filepath.Join(g.common, "worktrees")
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the worktrees of %s: %w", g.checkout, err)
	}
	var out []admin
	for _, e := range entries {
		a, err := readAdmin(filepath.Join(folder, e.Name()))
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}

func readAdmin(dir string) (admin, error) {
	a := admin{dir: dir}
	link, err := readLine(filepath.Join(dir, "gitdir"))
	if err != nil {
		return a, err
	}
	if link != "" {
		if !filepath.IsAbs(link) { // worktree.useRelativePaths
			link = filepath.Join(dir, link)
		}
		a.path = filepath.Dir(filepath.Clean(link))
	}
	if _, err := os.Lstat(filepath.Join(dir, "locked")); err == nil {
		a.locked = true
		if a.reason, err = readLine(filepath.Join(dir, "locked")); err != nil {
			return a, err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return a, fmt.Errorf("read the lock of a worktree: %w", err)
	}
	return a, nil
}

// readLine returns a small file without white space around it; "" if there is none.
func readLine(path string) (string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read a file of git: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// adminOf returns the git directory that is registered for a path, or nil.
func (g *Git) adminOf(path string) (*admin, error) {
	all, err := g.admins()
	return at(all, path), err
}

// at returns the one of them that is registered for a path, or nil.
func at(all []admin, path string) *admin {
	for _, a := range all {
		if a.path == path {
			return &a
		}
	}
	return nil
}

// pointsTo reports whether the folder path is the worktree of the git directory dir, by its file .git.
func pointsTo(path, dir string) bool {
	return gitFile(path) == dir
}

// gitFile returns where the file .git of a worktree leads, "" if there is none.
func gitFile(path string) string {
	name := filepath.Join(path, ".git")
	st, err := os.Lstat(name)
	if err != nil || !st.Mode().IsRegular() || st.Size() > 1<<16 {
		return ""
	}
	l, err := readLine(name)
	to, ok := strings.CutPrefix(l, "gitdir: ")
	if err != nil || !ok {
		return ""
	}
	if !filepath.IsAbs(to) {
		to = filepath.Join(path, to)
	}
	return filepath.Clean(to)
}

// branchIn returns the branch that is checked out by the HEAD of a git directory; "" where that is no branch, or the
// repository keeps it elsewhere.
func branchIn(gitDir string) string {
	head, err := readLine(filepath.Join(gitDir, "HEAD"))
	ref, ok := strings.CutPrefix(head, "ref: ")
	if err != nil || !ok || ref == "refs/heads/.invalid" { // which is what reftable leaves there
		return ""
	}
	return ref
}

// Plain reports whether the files of a worktree alone show that it is one of its own and that gitDir is its git directory.
// Where they do not, git may still find so, by means that are not looked at here.
func Plain(path, gitDir string) bool {
	if gitDir == "" || gitFile(path) != gitDir {
		return false
	}
	back, err := readLine(filepath.Join(gitDir, "gitdir"))
	if err != nil || back != filepath.Join(path, ".git") {
		return false
	}
	_, err = os.Lstat(filepath.Join(gitDir, "config.worktree")) // it may name another work tree
	return errors.Is(err, fs.ErrNotExist)
}

// tree is a complete worktree of ours.
type tree struct {
	admin
	marker Marker
	start  string // the commit that a new one is made at
	fresh  bool   // its branch is to be made
	from   string // the commit of the spare that a new one was, "" where it is made from nothing
}

// treeAt returns the complete worktree at a path below the root. Everything must fit together: a real folder, its
// file .git, the git directory in our repository that points back, and our marker for this path. Otherwise the error
// says what does not, and matches domain.ErrNotFound.
func (g *Git) treeAt(path string) (tree, error) {
	missing := func(format string, a ...any) (tree, error) {
		return tree{}, fmt.Errorf("%s %s: %w", path, fmt.Sprintf(format, a...), domain.ErrNotFound)
	}
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return missing("is not there")
	case err != nil:
		return tree{}, fmt.Errorf("look at %s: %w", path, err)
	case st.Mode()&fs.ModeSymlink != 0:
		return missing("is a symbolic link, not a worktree of Gaia")
	case !st.IsDir():
		return missing("is no folder")
	}
	if real, err := filepath.EvalSymlinks(path); err != nil || real != path || filepath.Dir(path) != g.root {
		return missing("is not below the workspace root %s", g.root)
	}
	dir := gitFile(path)
	if dir == "" {
		return missing("is no git worktree")
	}
	if filepath.Dir(dir) != filepath.Join(g.common, "worktrees") {
		return missing("belongs to another repository")
	}
	a, err := readAdmin(dir)
	if err != nil {
		return tree{}, err
	}
	if a.path != path {
		return missing("is not where git has it registered; mend it: git -C %s worktree repair %s", quote(g.checkout), quote(path))
	}
	m, err := ReadMarker(dir)
	if errors.Is(err, domain.ErrNotFound) {
		return missing("was never finished, or Gaia did not make it")
	}
	if err != nil {
		return tree{}, err
	}
	if domain.WorkspaceKey(m.Identifier) != filepath.Base(path) {
		return missing("is marked as the worktree of %q", m.Identifier)
	}
	return tree{admin: a, marker: m}, nil
}

// TreeInfo describes one worktree below the root.
type TreeInfo struct {
	Marker
	Path     string
	GitDir   string
	Head     string
	Locked   bool
	Reason   string // of the lock
	Complete bool   // false: the marker is missing or does not fit; Note says so
	Spare    bool   // it is no ticket's, but kept for the next one
	Note     string
}

// Trees returns what lies in the workspace root, by path, and the registered worktrees there whose folder is gone.
func (g *Git) Trees(ctx context.Context) ([]TreeInfo, error) {
	paths, err := g.paths()
	if err != nil {
		return nil, err
	}
	var out []TreeInfo
	for _, p := range paths {
		info := TreeInfo{Path: p}
		if isSpare(p) {
			info.Spare, info.Note = true, spareNote
			out = append(out, info)
			continue
		}
		t, err := g.treeAt(p)
		if err != nil {
			info.Note = err.Error()
			out = append(out, info)
			continue
		}
		info.Marker, info.GitDir, info.Locked, info.Reason, info.Complete = t.marker, t.dir, t.locked, t.reason, true
		if info.Head, err = Head(ctx, p); err != nil {
			info.Note = err.Error()
		}
		out = append(out, info)
	}
	return out, nil
}

func (g *Git) paths() ([]string, error) {
	entries, err := os.ReadDir(g.root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the workspace root: %w", err)
	}
	var paths []string
	for _, e := range entries {
		paths = append(paths, filepath.Join(g.root, e.Name()))
	}
	all, err := g.admins()
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		if filepath.Dir(a.path) == g.root {
			paths = append(paths, a.path)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths), nil
}

// Size returns how many bytes a folder takes on the disk. It ends early with ctx.
func Size(ctx context.Context, path string) (int64, error) {
	var sum int64
	err := walk(ctx, path, func(_ string, st fs.FileInfo) error {
		sum += blocks(st)
		return nil
	})
	return sum, err
}

// Verify returns an error unless the folder is the worktree that Ensure returned: its own toplevel, a worktree of ours
// for that branch. It is asked right before an agent starts, so that none ever works in the parent checkout by
// accident. That the earlier run left another branch checked out is no error: Ensure has told the agent.
func Verify(ctx context.Context, t domain.Tree) error {
	out, err := call{dir: t.Path}.line(ctx, "rev-parse", "--show-toplevel", "--absolute-git-dir")
	if err != nil {
		return fmt.Errorf("the worktree %s cannot be used: %w", t.Path, err)
	}
	top, dir, _ := strings.Cut(out, "\n")
	if top != t.Path || !pointsTo(t.Path, filepath.Clean(dir)) {
		return fmt.Errorf("%s is no worktree of its own: git takes it for a part of %s: %w", t.Path, top, domain.ErrConflict)
	}
	m, err := ReadMarker(dir)
	if err != nil {
		return fmt.Errorf("the worktree %s cannot be used: %w", t.Path, err)
	}
	if m.Branch != t.Branch {
		return fmt.Errorf("the worktree %s is for the branch %s, not %s: %w", t.Path, m.Branch, t.Branch, domain.ErrConflict)
	}
	return nil
}
