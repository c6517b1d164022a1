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

	"gaia/domain"
)

// gitlinks returns the paths of the index that are repositories of their own.
func gitlinks(ctx context.Context, c call) ([]string, error) {
	out, err := c.run(ctx, "ls-files", "--stage", "-z")
	if err != nil {
		return nil, fmt.Errorf("list the submodules: %w", err)
	}
	var links []string
	for e := range strings.SplitSeq(string(out), "\x00") {
		if meta, path, ok := strings.Cut(e, "\t"); ok && strings.HasPrefix(meta, "160000 ") {
			links = append(links, path)
		}
	}
	return slices.Compact(links), nil // one with a conflict is there several times
}

// initialised reports whether a submodule's folder holds its files.
func initialised(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, ".git"))
	return err == nil
}

// submodulesUnpushed says which initialised submodule of a work tree, at any depth, is not clean or has commits of
// HEAD, branches or stash that are not on its remote; "" if there is none.
func submodulesUnpushed(ctx context.Context, dir string) (string, error) {
	links, err := gitlinks(ctx, call{dir: dir})
	if err != nil {
		return "", err
	}
	for _, l := range links {
		sub := filepath.Join(dir, l)
		if !initialised(sub) {
			continue
		}
		dirty, err := Dirty(ctx, sub)
		if err != nil {
			return "", err
		}
		if dirty {
			return fmt.Sprintf("the submodule %s is dirty", l), nil
		}
		only, err := (call{dir: sub}).onlyHere(ctx)
		if err != nil {
			return "", fmt.Errorf("the submodule %s: %w", l, err)
		}
		if only {
			return fmt.Sprintf("the submodule %s has commits that its remote lacks", l), nil
		}
		if why, err := submodulesUnpushed(ctx, sub); why != "" || err != nil {
			return why, err
		}
	}
	return "", nil
}

// onlyHere reports whether a submodule's repository has commits that no remote has.
func (c call) onlyHere(ctx context.Context) (bool, error) {
	args := []string{"rev-list", "--max-count=1", "--branches", "--glob=refs/gaia/"}
	for _, rev := range []string{"HEAD", "refs/stash"} {
		sha, err := c.commit(ctx, rev)
		if err != nil {
			return false, err
		}
		if sha != "" {
			args = append(args, sha)
		}
	}
	out, err := c.line(ctx, append(args, "--not", "--remotes")...)
	return out != "", err
}

// modulesUnpushed says which submodule's repository below a worktree's own git directory holds commits that no remote
// has, whether the tree still has that submodule or not; "" if there is none.
func modulesUnpushed(ctx context.Context, gitDir string) (string, error) {
	root := filepath.Join(gitDir, "modules")
	why := ""
	err := walk(ctx, root, func(path string, st fs.FileInfo) error {
		if !st.IsDir() || filepath.Base(path) != "objects" || path == root {
			return nil
		}
		module := filepath.Dir(path)
		if _, err := os.Lstat(filepath.Join(module, "HEAD")); err != nil {
			return nil
		}
		// Its own work tree may be gone, and git would insist on going there.
		only, err := (call{dir: module, env: []string{"GIT_DIR=" + module, "GIT_WORK_TREE=" + module}}).onlyHere(ctx)
		if err != nil {
			return err
		}
		if only {
			why = fmt.Sprintf("the submodule's repository %s has commits that its remote lacks", module)
			return fs.SkipAll
		}
		return fs.SkipDir
	})
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return why, err
}

// submodules fills the submodules of a new tree. What git forbids by default, local paths as a submodule's URL, is
// allowed only for one that the person has cloned in the checkout: a repository must not be able to have any folder of
// the machine copied into a tree.
func (g *Git) submodules(ctx context.Context, path string, hold []*os.File) error {
	if _, err := os.Lstat(filepath.Join(path, ".gitmodules")); errors.Is(err, fs.ErrNotExist) {
		return nil // nothing says where a submodule would come from
	}
	tree := call{dir: path, limit: checkout, hold: hold}
	links, err := gitlinks(ctx, tree)
	if err != nil || len(links) == 0 {
		return err
	}
	out, err := tree.run(ctx, "config", "--file", ".gitmodules", "-z", "--get-regexp", `^submodule\..*\.path$`)
	if err != nil && exitCode(err) != 1 {
		return fmt.Errorf("read .gitmodules: %w", err)
	}
	var all, trusted []string
	for e := range strings.SplitSeq(string(out), "\x00") {
		key, sub, ok := strings.Cut(e, "\n")
		if !ok || !slices.Contains(links, sub) {
			continue
		}
		all = append(all, sub)
		name := strings.TrimSuffix(strings.TrimPrefix(key, "submodule."), ".path")
		if fs.ValidPath(name) {
			if _, err := os.Lstat(filepath.Join(g.common, "modules", name, "HEAD")); err == nil {
				trusted = append(trusted, sub)
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	repository, err := g.lockRepository(ctx) // init writes the configuration that all worktrees share
	if err != nil {
		return err
	}
	first := tree
	first.hold = append(slices.Clone(hold), repository)
	_, err = first.run(ctx, append([]string{"submodule", "--quiet", "init", "--"}, all...)...)
	unflock(repository)
	if err != nil {
		return fmt.Errorf("initialise the submodules: %w", err)
	}
	tree.env = g.sshEnvironment(ctx)
	if len(trusted) > 0 {
		local := tree
		local.config = []string{"protocol.file.allow=always"}
		if _, err := local.run(ctx, append([]string{"submodule", "--quiet", "update", "--"}, trusted...)...); err != nil {
			return fmt.Errorf("fill the submodules: %w", err)
		}
	}
	if _, err := tree.run(ctx, append([]string{"submodule", "--quiet", "update", "--recursive", "--"}, all...)...); err != nil {
		if strings.Contains(stderrOf(err), "transport 'file' not allowed") {
			return &domain.WorkspaceError{Hold: true, Err: fmt.Errorf("a submodule's URL is a path of this machine, which git refuses; if it is right, clone it in the checkout once: git -C %s -c protocol.file.allow=always submodule update --init --recursive: %w", quote(g.checkout), err)}
		}
		return fmt.Errorf("fill the submodules: %w", err)
	}
	return nil
}
