package workspace

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// forward brings a tree in which nobody has begun yet to the commit that new trees start from: hooks and skills come from
// the commit where a tree starts, and a person who has corrected a hook expects the corrected one to be run. It changes
// only a tree whose after_create has not finished, whose branch has no commit of its own, which is clean and in which
// nobody works; and the branch is moved forward only. Any other tree stays as it is, and behind says why and what helps.
func (j *job) forward(ctx context.Context, t *tree, s standing) (behind string, err error) {
	m, c := &t.marker, call{dir: j.path, limit: checkout, hold: []*os.File{j.lock}}
	head, err := Head(ctx, j.path)
	if err != nil {
		return "", err
	}
	if m.Next != "" { // an earlier call was cut short
		if s.dirty && !s.off && s.who == "" && s.unknown == nil && !m.AfterCreate && head == m.Base {
			if s.dirty, err = j.undo(ctx, c, m.Next); err != nil {
				return "", err
			}
			if !s.dirty {
				j.find("They were what a git had left that was cut short before anybody had begun here, and have been taken away since.")
			}
		}
		m.Next = ""
	}
	base, err := j.Base(ctx)
	if err != nil || base == m.Base {
		return "", nil // a tree that is there needs no base
	}
	if older, err := c.is(ctx, "merge-base", "--is-ancestor", m.Base, base); err != nil || !older {
		return "", nil // the default branch was made anew, or its last commits were taken back
	}
	own := head != m.Base
	why, err := j.stays(ctx, t, &s, own, base)
	if err != nil {
		return "", err
	}
	if why == "" {
		// A crash from here on leaves the note, by which the next run knows whose commit the tree stands at, and whose changes
		// are in it.
		m.Next = base
		if err := m.write(t.dir); err != nil {
			return "", err
		}
		_, failed := c.run(ctx, "merge", "--quiet", "--no-stat", "--ff-only", "--no-squash", "--no-verify-signatures", "--no-overwrite-ignore", base)
		if head, err = Head(ctx, j.path); err != nil {
			return "", err
		}
		switch head {
		case base:
			m.Base = base
			err = j.syncTree(ctx, syncLimit)
		case m.Base:
			s.dirty, err = j.undo(ctx, c, base)
		}
		if err != nil {
			return "", err
		}
		m.Next = ""
		if err := m.write(t.dir); err != nil || m.Base == base {
			return "", err
		}
		why = "git does not bring it forward (" + strings.Join(strings.Fields(tail(fmt.Sprint(failed), 300)), " ") + ")"
	}
	return fmt.Sprintf("the hook is that of the commit %s, where this worktree starts, and new ones start from %s: %s. If it was corrected since, %s",
		short(m.Base), short(base), why, j.mend(s, own, base)), nil
}

// settle says at which of its two commits a tree stands that a call of forward was bringing to another one when it was cut
// short. Next is then the one at which it does not.
func (m *Marker) settle(ctx context.Context, path string) error {
	if m.Next == "" {
		return nil
	}
	head, err := Head(ctx, path)
	if err == nil && head == m.Next {
		m.Base, m.Next = m.Next, m.Base
	}
	return err
}

// undo takes away what a git has left in a tree that was clean when it began to bring it from HEAD to another commit, or
// from that one to HEAD, and did not come to the end, for want of space, say, or which a power cut has kept in part. It
// touches nothing where a file differs that is the same in both commits, and so somebody's. It reports whether the tree is
// still dirty.
func (j *job) undo(ctx context.Context, c call, other string) (dirty bool, err error) {
	fail := func(err error) (bool, error) {
		return true, fmt.Errorf("take away what a git that was cut short has left in %s: %w", j.path, err)
	}
	out, err := c.run(ctx, "diff-tree", "-r", "-z", "--no-renames", "--name-only", other, "HEAD")
	if err != nil {
		return fail(err)
	}
	differ := map[string]bool{}
	for name := range strings.SplitSeq(string(out), "\x00") {
		differ[name] = true
	}
	if out, err = c.run(ctx, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignore-submodules=none"); err != nil {
		return fail(err)
	}
	var made []string
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		name := entry[min(len("XY "), len(entry)):]
		if !differ[name] {
			return true, nil
		}
		if strings.HasPrefix(entry, "??") {
			made = append(made, name)
		}
	}
	for _, name := range made {
		if err := os.Remove(filepath.Join(j.path, name)); err != nil {
			return fail(err)
		}
	}
	if _, err := c.run(ctx, "reset", "--hard", "--quiet"); err != nil {
		return fail(err)
	}
	return Dirty(ctx, j.path)
}

// standing is what adopt has found out of a tree.
type standing struct {
	who     string // works in it
	unknown error  // why that cannot be known
	dirty   bool
	off     bool // another branch than the ticket's is checked out, or none
	there   bool // the remote has the branch
	lacks   bool // and commits in it that the tree lacks
	modules bool // the tree has submodules, or would get some
}

// stays says why a tree is not to be brought forward, "" if it is.
func (j *job) stays(ctx context.Context, t *tree, s *standing, own bool, base string) (string, error) {
	for _, commit := range []string{t.marker.Base, base} {
		out, err := call{dir: j.path}.line(ctx, "ls-tree", "--name-only", "--full-tree", commit, "--", ".gitmodules")
		if err != nil {
			return "", fmt.Errorf("look for submodules in %s: %w", short(commit), err)
		}
		s.modules = s.modules || out != ""
	}
	switch {
	case s.off:
		return "another branch than the ticket's is checked out in it", nil
	case own:
		return "its branch has commits of its own", nil
	case s.lacks:
		return remote + " has commits of its branch that it lacks", nil
	case s.dirty:
		return "it holds changes that are not committed", nil
	case s.who != "":
		return s.who + " works in it", nil
	case s.unknown != nil:
		return fmt.Sprintf("it cannot be known whether somebody works in it (%v)", s.unknown), nil
	case t.marker.AfterCreate:
		return "after_create has finished in it", nil
	case s.modules:
		return "it has submodules", nil
	}
	why, err := keepDirty(ctx, j.Git, ReapOptions{}, *t) // also files that git was told not to look at
	s.dirty = why != ""
	return why, err
}

// mend is what a person does so that a tree which stays as it is starts from the newest commit after all.
func (j *job) mend(s standing, own bool, base string) string {
	resume := "gaia ticket resume " + quote(j.request.Identifier)
	switch {
	case s.off:
		return fmt.Sprintf("check out the ticket's branch: git -C %s switch %s, then %s", quote(j.path), j.branch, resume)
	case s.who != "" && !own && !s.dirty && !s.lacks:
		return "end it, then " + resume
	}
	var b strings.Builder
	force := ""
	if s.dirty {
		b.WriteString("keep what is needed of its changes, then ")
	}
	if s.dirty || s.modules {
		force = "--force " // else git does not remove it
	}
	if s.lacks {
		fmt.Fprintf(&b, "git -C %s merge %s/%s, then ", quote(j.path), remote, j.branch)
	}
	if own || s.there { // else the branch, which stays, would still start where it does
		fmt.Fprintf(&b, "git -C %s merge %s, then ", quote(j.path), short(base))
	}
	fmt.Fprintf(&b, "have it made again: git -C %s worktree remove %s%s, then %s", quote(j.checkout), force, quote(j.path), resume)
	return b.String()
}
