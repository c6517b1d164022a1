package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The refs under which Gaia keeps what could otherwise be lost: the state of a tree as a run found it, and the tip of a
// tree that Reap removed. They are outside refs/heads, so nobody works on them, and keep their commits from git's gc.
const (
	savedRefs  = "refs/gaia/saved/"
	reapedRefs = "refs/gaia/reaped/"
)

// begun are the files of an unfinished operation that name commits which might be reachable from nowhere else.
var begun = []string{
	"MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge/orig-head", "rebase-apply/orig-head",
	"rebase-merge/stopped-sha", "rebase-merge/autostash", "rebase-apply/autostash", "MERGE_AUTOSTASH",
}

// place is a worktree whose state is to be saved.
type place struct {
	path   string // "": the folder is gone, and only the index is left
	gitDir string
	key    string
	run    string
	hold   *os.File
	// partial says that a checkout was cut short: a missing file is no deletion, and the index is not there yet.
	partial bool
}

// save keeps the state of a worktree as a commit and returns its ref, "" if there is nothing that HEAD does not have.
// It works on a copy of the index, so that index and files stay as they are, also in the middle of a conflict: what is
// staged becomes the second parent, what an unfinished operation began from the further ones, and the tree holds all
// files that are not ignored. notes name what could not be saved.
func (g *Git) save(ctx context.Context, p place) (ref string, notes []string, err error) {
	fail := func(err error) (string, []string, error) {
		return "", nil, fmt.Errorf("save the state of the worktree %s: %w", p.key, err)
	}
	index, err := copyIndex(p.gitDir)
	if err != nil {
		return fail(err)
	}
	defer os.Remove(index + ".lock")
	defer os.Remove(index)
	c := call{dir: p.path, limit: checkout, env: []string{"GIT_DIR=" + p.gitDir, "GIT_INDEX_FILE=" + index}}
	if p.hold != nil {
		c.hold = []*os.File{p.hold}
	}
	if p.path == "" {
		c.dir = g.common
	} else {
		c.env = append(c.env, "GIT_WORK_TREE="+p.path)
	}
	head, err := c.commit(ctx, "HEAD")
	if err != nil {
		return fail(err)
	}
	var parents []string
	headTree := ""
	if head != "" {
		parents = append(parents, head)
		if headTree, err = c.line(ctx, "rev-parse", head+"^{tree}"); err != nil {
			return fail(err)
		}
	}
	if p.partial {
		if _, err := c.run(ctx, "read-tree", "HEAD"); err != nil {
			return fail(err)
		}
	}
	before, err := gitlinks(ctx, c)
	if err != nil {
		return fail(err)
	}
	// An index with conflicts is no tree; what it has staged is in the operation's commits and in the files.
	tree, err := c.line(ctx, "write-tree")
	if err == nil && tree != headTree {
		// Without a time of its own, the same index is the same commit, and saved once.
		timeless := c
		timeless.env = append(slices.Clone(c.env), "GIT_AUTHOR_DATE=@0 +0000", "GIT_COMMITTER_DATE=@0 +0000")
		staged, err := timeless.commitTree(ctx, tree, parents, "The index of "+p.key+" as run "+p.run+" found it")
		if err != nil {
			return fail(err)
		}
		parents = append(parents, staged)
	} else if err != nil && exitCode(err) < 0 {
		return fail(err)
	}
	if p.path != "" {
		add := []string{"add", "--all", "--ignore-errors", "--sparse"}
		if p.partial {
			add = []string{"add", "--ignore-removal", "--ignore-errors", "--sparse", "--", "."}
		}
		if _, err := c.run(ctx, add...); err != nil {
			if exitCode(err) != 1 {
				return fail(err)
			}
			notes = append(notes, "some files could not be read: "+strings.Join(strings.Fields(tail(stderrOf(err), 500)), " "))
		}
		if tree, err = c.line(ctx, "write-tree"); err != nil {
			return fail(err)
		}
		after, err := gitlinks(ctx, c)
		if err != nil {
			return fail(err)
		}
		for _, l := range after {
			if !slices.Contains(before, l) {
				notes = append(notes, fmt.Sprintf("%s is a repository of its own, whose files are not in the saved state", l))
			} else if sub := filepath.Join(p.path, l); initialised(sub) {
				if dirty, err := Dirty(ctx, sub); err != nil || dirty {
					notes = append(notes, fmt.Sprintf("the submodule %s has changes, which are not in the saved state", l))
				}
			}
		}
	}
	if p.partial && tree != headTree {
		// Where git was killed while it wrote a file, there is the beginning of it.
		if cut, err := c.cutShort(ctx, headTree, tree); err != nil {
			return fail(err)
		} else if cut {
			tree = headTree
		}
	}
	operation, err := unfinished(p.gitDir)
	if err != nil {
		return fail(err)
	}
	for _, name := range begun {
		l, err := readLine(filepath.Join(p.gitDir, name))
		if err != nil {
			return fail(err)
		}
		for rev := range strings.FieldsSeq(l) {
			if sha, err := c.commit(ctx, rev); err == nil && sha != "" && !slices.Contains(parents, sha) {
				parents = append(parents, sha)
			}
		}
	}
	if tree == "" {
		tree = headTree
	}
	if tree == headTree && len(parents) < 2 && operation == "" {
		if p.path != "" || head == "" {
			return "", notes, nil
		}
		// The folder is gone and with it HEAD: its commits must be on some branch or remote.
		lost, err := c.line(ctx, "rev-list", "--max-count=1", head, "--not", "--branches", "--remotes", "--glob="+savedRefs)
		if err != nil {
			return fail(err)
		}
		if lost == "" {
			return "", notes, nil
		}
	}
	if tree == "" {
		return "", notes, nil // neither commit nor index
	}
	what := "The worktree"
	if operation != "" {
		what += ", in the middle of a " + operation + ","
	}
	commit, err := c.commitTree(ctx, tree, parents, fmt.Sprintf("%s of %s as run %s found it", what, p.key, p.run))
	if err != nil {
		return fail(err)
	}
	if ref, err = c.keep(ctx, savedRefs+p.key+"/"+p.run, commit); err != nil {
		return fail(err)
	}
	return ref, notes, nil
}

// cutShort reports whether all that differs between two trees are files that end early in the second one. Of more than git
// writes at the same time it says no.
func (c call) cutShort(ctx context.Context, whole, tree string) (bool, error) {
	out, err := c.line(ctx, "diff-tree", "-r", "--no-renames", whole, tree)
	if err != nil {
		return false, err
	}
	lines := strings.Split(out, "\n")
	if len(lines) > 64 {
		return false, nil
	}
	for _, l := range lines {
		f := strings.Fields(l)   // modes, objects, status, name
		const gitlink = "160000" // a submodule's commit, which is not in this repository
		if len(f) < 6 || f[4] != "M" || f[1] == gitlink {
			return false, nil
		}
		before, err := c.run(ctx, "cat-file", "-p", f[2])
		if err != nil {
			return false, err
		}
		after, err := c.run(ctx, "cat-file", "-p", f[3])
		if err != nil || !bytes.HasPrefix(before, after) {
			return false, err
		}
	}
	return true, nil
}

// copyIndex copies the index of a git directory and returns the copy's path, where nothing is if there is no index. The
// copy has always the same name, since the tree is locked: so one that a crash has left is replaced.
func copyIndex(gitDir string) (string, error) {
	index := filepath.Join(gitDir, "gaia-index")
	for _, old := range []string{index, index + ".lock"} {
		if err := os.Remove(old); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("copy the index: %w", err)
		}
	}
	b, err := os.ReadFile(filepath.Join(gitDir, "index"))
	if errors.Is(err, fs.ErrNotExist) {
		return index, nil
	}
	if err == nil {
		err = os.WriteFile(index, b, 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("copy the index: %w", err)
	}
	return index, nil
}

func (c call) commitTree(ctx context.Context, tree string, parents []string, message string) (string, error) {
	args := []string{"commit-tree", tree, "-F", "-"}
	for _, p := range parents {
		args = append(args, "-p", p)
	}
	c.stdin = []byte(message + "\n")
	return c.line(ctx, args...)
}

// keep makes a new ref for a commit and returns its name: ref itself or, where that is taken, ref with a number. A ref
// that holds the same is good enough.
func (c call) keep(ctx context.Context, ref, commit string) (string, error) {
	content := func(rev string) (string, error) { return c.line(ctx, "rev-parse", rev+"^{tree}", rev+"^@") }
	want, err := content(commit)
	if err != nil {
		return "", err
	}
	for n, name := 1, ref; ; n, name = n+1, ref+"-"+strconv.Itoa(n+1) {
		old, err := c.commit(ctx, name)
		if err != nil {
			return "", err
		}
		if old == "" {
			_, err := c.run(ctx, "update-ref", name, commit, "")
			return name, err
		}
		if have, err := content(old); err == nil && have == want {
			return name, nil
		}
	}
}
