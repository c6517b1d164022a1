package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"

	"gaia/domain"
)

// operations are the files in a git directory that show that something was begun and not ended.
var operations = []struct{ file, name string }{
	{"rebase-merge", "rebase"}, {"rebase-apply", "rebase or am"}, {"MERGE_HEAD", "merge"}, {"CHERRY_PICK_HEAD", "cherry-pick"},
	{"REVERT_HEAD", "revert"}, {"sequencer", "cherry-pick or revert"}, {"BISECT_LOG", "bisect"},
}

// unfinished returns what was begun in a git directory and not ended, or "".
func unfinished(gitDir string) (string, error) {
	for _, op := range operations {
		_, err := os.Lstat(filepath.Join(gitDir, op.file))
		if err == nil {
			return op.name, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", nil
}

// Head returns the commit that a work tree stands at, "" before the first one.
func Head(ctx context.Context, dir string) (string, error) {
	sha, err := call{dir: dir}.commit(ctx, "HEAD")
	if err != nil {
		return "", fmt.Errorf("read HEAD of %s: %w", dir, err)
	}
	return sha, nil
}

// Dirty reports whether a work tree holds anything that is not committed: changed or new files, also in submodules, or
// an unfinished rebase, merge, cherry-pick, revert or bisect. Ignored files do not count.
func Dirty(ctx context.Context, dir string) (bool, error) {
	gitDir, err := GitDir(ctx, dir)
	if err != nil {
		return false, err
	}
	op, err := unfinished(gitDir)
	if err != nil {
		return false, fmt.Errorf("look for an unfinished operation in %s: %w", dir, err)
	}
	if op != "" {
		return true, nil
	}
	out, err := call{dir: dir}.run(ctx, "status", "--porcelain=v2", "-z", "--untracked-files=normal", "--ignore-submodules=none")
	if err != nil {
		return false, fmt.Errorf("ask for the state of %s: %w", dir, err)
	}
	return len(out) > 0, nil
}

// Pushed reports whether a remote has every commit of a work tree: those of HEAD and, in a tree of ours, those of the
// ticket's branch. In a repository without a remote it reports whether the default branch has them.
func Pushed(ctx context.Context, dir string) (bool, error) {
	c := call{dir: dir}
	revs := []string{"HEAD"}
	if gitDir, err := GitDir(ctx, dir); err != nil {
		return false, err
	} else if m, err := ReadMarker(gitDir); err == nil {
		revs = append(revs, "refs/heads/"+m.Branch)
	}
	args := []string{"rev-list", "--max-count=1"}
	any := false
	for _, rev := range revs {
		sha, err := c.commit(ctx, rev)
		if err != nil {
			return false, fmt.Errorf("look for %s in %s: %w", rev, dir, err)
		}
		if sha != "" {
			args, any = append(args, sha), true
		}
	}
	if !any {
		return true, nil
	}
	remotes, err := c.line(ctx, "remote")
	if err != nil {
		return false, fmt.Errorf("list the remotes of %s: %w", dir, err)
	}
	if remotes != "" {
		args = append(args, "--not", "--remotes")
	} else {
		ref, _, err := defaultBranch(ctx, c)
		if err != nil {
			return false, err
		}
		args = append(args, "--not", ref)
	}
	out, err := c.line(ctx, args...)
	if err != nil {
		return false, fmt.Errorf("look for commits in %s that are nowhere else: %w", dir, err)
	}
	return out == "", nil
}

// Unpushed reports whether a work tree holds work that is nowhere else: it is dirty, or HEAD, the ticket's branch or an
// initialised submodule has commits that no remote has. `gaia ticket move`, finalise and Reap all decide by it.
func Unpushed(ctx context.Context, dir string) (bool, error) {
	dirty, err := Dirty(ctx, dir)
	if dirty || err != nil {
		return dirty, err
	}
	pushed, err := Pushed(ctx, dir)
	if !pushed || err != nil {
		return err == nil, err
	}
	why, err := submodulesUnpushed(ctx, dir)
	return why != "", err
}

// maxLate bounds how many commits Inspect lists.
const maxLate = 100

// Inspect implements domain.Workspace.
func (g *Git) Inspect(ctx context.Context, identifier, since string, after time.Time) (domain.TreeStatus, error) {
	if err := domain.CheckIdentifier(identifier); err != nil {
		return domain.TreeStatus{}, err
	}
	path := g.Path(identifier)
	t, err := g.treeAt(path)
	if err != nil {
		return domain.TreeStatus{}, err
	}
	s := domain.TreeStatus{Path: path, Branch: t.marker.Branch}
	if s.Head, err = Head(ctx, path); err != nil {
		return s, err
	}
	if s.Dirty, err = Dirty(ctx, path); err != nil {
		return s, err
	}
	if s.Unpushed, err = Unpushed(ctx, path); err != nil {
		return s, err
	}
	s.Late, err = late(ctx, path, s.Head, t.marker.Base, since, after)
	return s, err
}

// late returns one line per commit of head that is not in since or, without since, that was made after a time.
func late(ctx context.Context, dir, head, base, since string, after time.Time) ([]string, error) {
	c := call{dir: dir}
	if since != "" {
		known, err := c.commit(ctx, since)
		if err != nil {
			return nil, fmt.Errorf("look for the commit %q: %w", since, err)
		}
		since = known // one that the repository does not have tells nothing
	}
	if head == "" || since == "" && after.IsZero() {
		return nil, nil
	}
	from, bytime := since, since == ""
	if bytime {
		var err error
		if from, err = c.commit(ctx, base); err != nil {
			return nil, fmt.Errorf("look for the base %q: %w", base, err)
		}
	}
	args := []string{"log", "--reverse", "--no-show-signature", "--format=%ct %h %s", head}
	if from != "" {
		args = append(args, "^"+from)
	}
	out, err := c.line(ctx, append(args, "--")...)
	if err != nil {
		return nil, fmt.Errorf("list the late commits of %s: %w", dir, err)
	}
	var lines []string
	for l := range strings.SplitSeq(out, "\n") {
		at, text, ok := strings.Cut(l, " ")
		sec, err := strconv.ParseInt(at, 10, 64)
		if !ok || err != nil || bytime && sec <= after.Unix() {
			continue
		}
		lines = append(lines, strings.Map(func(r rune) rune {
			if unicode.IsControl(r) {
				return ' '
			}
			return r
		}, strings.ToValidUTF8(text, "�")))
	}
	if n := len(lines); n > maxLate {
		lines = append(lines[:maxLate], fmt.Sprintf("… and %d more", n-maxLate))
	}
	return lines, nil
}
