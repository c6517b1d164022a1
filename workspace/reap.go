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

	"gaia/domain"
)

// ReapOptions say how Reap is to decide.
type ReapOptions struct {
	// DryRun only tells what would be done.
	DryRun bool
	// Ticket asks the hub for a ticket by id. An error, or a ticket that is not known, keeps its tree.
	Ticket func(ctx context.Context, ticketID string) (state string, terminal, known bool, err error)
	// BeforeRemove, where not nil, runs the hook before_remove. Its failure is told and keeps nothing.
	BeforeRemove func(ctx context.Context, t TreeInfo) error
}

// Reaped is what became of one tree.
type Reaped struct {
	Path       string
	Identifier string // "" where the tree has no marker
	Removed    bool
	Removable  bool   // nothing keeps it; Removed is false in a dry run, or when the removal failed
	Reason     string // why it is kept, or what was done
	Bytes      int64  // what it takes, or took, on the disk; 0 where Reap did not get as far as counting
}

// Rule is one condition that a tree must meet before Reap removes it.
type Rule struct {
	Name string // one word
	Text string // what must hold
}

type check struct {
	Rule
	// keep returns why the tree is kept, "" to go on. An error keeps it too.
	keep func(ctx context.Context, g *Git, o ReapOptions, t tree) (string, error)
	// again says that the answer may have changed while before_remove ran.
	again bool
}

// checks are the rules in the order in which they are asked; cheap ones come first.
var checks = []check{
	{Rule{"terminal", "the hub knows the ticket, and its state is final"}, keepOpen, false},
	{Rule{"unlocked", "the worktree is not locked, and no git is at work in it"}, keepLocked, true},
	{Rule{"clean", "nothing is uncommitted, hidden from git status, or unfinished; submodules included"}, keepDirty, true},
	{Rule{"pushed", "every commit is on a remote; in a repository without one, on the default branch"}, keepUnpushed, true},
	{Rule{"submodules", "every submodule's HEAD, branches and stash are on its remote"}, keepSubmodules, true},
	{Rule{"refs", "no ref exists in this worktree alone"}, keepRefs, true},
	{Rule{"repositories", "no other repository lies in the tree"}, keepNested, true},
	{Rule{"processes", "no process works in it; one that cannot be looked into counts"}, keepBusy, true},
}

// ReapRules returns the rules that Reap decides by, in order, for the documentation.
func ReapRules() []Rule {
	rules := []Rule{{"ours", "it lies directly in the workspace root, is registered with this repository, and has Gaia's marker"}}
	for _, c := range checks {
		rules = append(rules, c.Rule)
	}
	return rules
}

// Reap removes the trees that meet every rule and returns what became of each one in the workspace root. Before a tree
// is removed its tip is saved under refs/gaia/reaped/; its branch stays. What cannot be known keeps a tree.
func (g *Git) Reap(ctx context.Context, o ReapOptions) ([]Reaped, error) {
	if o.Ticket == nil {
		return nil, fmt.Errorf("without the hub nothing can be said to be over: %w", domain.ErrInvalid)
	}
	paths, err := g.paths()
	if err != nil {
		return nil, err
	}
	var out []Reaped
	for _, p := range paths {
		if ctx.Err() != nil {
			return out, context.Cause(ctx)
		}
		out = append(out, g.reapOne(ctx, o, p))
	}
	return out, nil
}

// lockPatience is how long Reap waits for a tree's lock: who holds it for longer works on the tree.
const lockPatience = 200 * time.Millisecond

func (g *Git) reapOne(ctx context.Context, o ReapOptions, path string) Reaped {
	r := Reaped{Path: path}
	kept := func(format string, a ...any) Reaped {
		r.Reason = fmt.Sprintf(format, a...)
		return r
	}
	if isSpare(path) {
		return kept("%s", spareNote)
	}
	key := filepath.Base(path)
	if _, err := g.treeAt(path); err != nil {
		if k, ok := strings.CutPrefix(key, remains); ok {
			return g.reapRemains(ctx, o, r, k)
		}
		return kept("%s", strings.TrimSuffix(err.Error(), ": "+domain.ErrNotFound.Error()))
	}
	limited, cancel := context.WithTimeoutCause(ctx, lockPatience, errors.New("it is in use"))
	defer cancel()
	unlock, err := g.lockKey(limited, key)
	if err != nil {
		return kept("%v", err)
	}
	defer unlock()
	t, err := g.treeAt(path) // again: only now nobody changes it
	if err != nil {
		return kept("%v", err)
	}
	r.Identifier = t.marker.Identifier
	if why := g.keep(ctx, o, t, false); why != "" {
		return kept("%s", why)
	}
	if r.Bytes, err = Size(ctx, path); err != nil {
		return kept("its size cannot be told: %v", err)
	}
	r.Removable = true
	if o.DryRun {
		return kept("it is clean, and what it holds is pushed or merged")
	}
	note := ""
	if o.BeforeRemove != nil {
		head, err := Head(ctx, path)
		if err == nil {
			err = o.BeforeRemove(ctx, TreeInfo{Marker: t.marker, Path: path, GitDir: t.dir, Head: head, Complete: true})
		}
		if err != nil {
			note = fmt.Sprintf("; before_remove failed: %v", err)
		}
		r.Removable = false
		if again, err := g.treeAt(path); err != nil || again != t {
			return kept("before_remove has changed what the tree is%s", note)
		}
		if why := g.keep(ctx, o, t, true); why != "" {
			return kept("after before_remove: %s%s", why, note)
		}
		r.Removable = true
	}
	ref, err := g.remove(ctx, t)
	if err != nil {
		return kept("not removed: %v%s", err, note)
	}
	r.Removed = true
	return kept("removed; its tip is saved in %s%s", ref, note)
}

// reapRemains ends a removal that was cut short after everything had been checked and saved.
func (g *Git) reapRemains(ctx context.Context, o ReapOptions, r Reaped, key string) Reaped {
	r.Reason = "what is left of a removal that was cut short"
	if _, err := os.Lstat(filepath.Join(r.Path, goingMark)); err == nil {
		r.Removable = true
	}
	if o.DryRun {
		return r
	}
	limited, cancel := context.WithTimeoutCause(ctx, lockPatience, errors.New("it is in use"))
	defer cancel()
	unlock, err := g.lockKey(limited, key)
	if err == nil {
		defer unlock()
		err = g.settle(key)
	}
	if err != nil {
		r.Reason = err.Error()
		return r
	}
	r.Removed = r.Removable
	return r
}

// keep asks the rules and returns the first reason to keep the tree, or "".
func (g *Git) keep(ctx context.Context, o ReapOptions, t tree, again bool) string {
	for _, c := range checks {
		if again && !c.again {
			continue
		}
		why, err := c.keep(ctx, g, o, t)
		if err != nil {
			return fmt.Sprintf("%s: it cannot be known whether %s: %v", c.Name, c.Text, err)
		}
		if why != "" {
			return why
		}
	}
	return ""
}

func keepOpen(ctx context.Context, _ *Git, o ReapOptions, t tree) (string, error) {
	state, terminal, known, err := o.Ticket(ctx, t.marker.Ticket)
	switch {
	case err != nil:
		return "", err
	case !known:
		return fmt.Sprintf("the hub does not know the ticket %s", t.marker.Identifier), nil
	case !terminal:
		return fmt.Sprintf("the ticket %s is in %s", t.marker.Identifier, state), nil
	}
	return "", nil
}

func keepLocked(_ context.Context, _ *Git, _ ReapOptions, t tree) (string, error) {
	a, err := readAdmin(t.dir)
	if err != nil {
		return "", err
	}
	if a.locked {
		return strings.TrimSuffix("the worktree is locked: "+a.reason, ": "), nil
	}
	if _, err := os.Lstat(filepath.Join(t.dir, "index.lock")); !errors.Is(err, fs.ErrNotExist) {
		return "a git is at work in it, or died there (index.lock)", err
	}
	return "", nil
}

func keepDirty(ctx context.Context, _ *Git, _ ReapOptions, t tree) (string, error) {
	dirty, err := Dirty(ctx, t.path)
	if err != nil {
		return "", err
	}
	if dirty {
		return "it holds changes that are not committed", nil
	}
	// git status is silent on files that were marked as unchanged or as not checked out, although they are there.
	out, err := call{dir: t.path}.run(ctx, "ls-files", "-v", "-z")
	if err != nil {
		return "", err
	}
	for e := range strings.SplitSeq(string(out), "\x00") {
		if len(e) < 3 || !(e[0] == 'S' || e[0] >= 'a' && e[0] <= 'z') {
			continue
		}
		if _, err := os.Lstat(filepath.Join(t.path, e[2:])); err == nil {
			return fmt.Sprintf("git was told not to look at %s", e[2:]), nil
		}
	}
	return "", nil
}

func keepUnpushed(ctx context.Context, _ *Git, _ ReapOptions, t tree) (string, error) {
	unpushed, err := Unpushed(ctx, t.path)
	if unpushed {
		return "it holds commits that are nowhere else: neither pushed nor merged", nil
	}
	return "", err
}

func keepSubmodules(ctx context.Context, _ *Git, _ ReapOptions, t tree) (string, error) {
	why, err := submodulesUnpushed(ctx, t.path)
	if why != "" || err != nil {
		return why, err
	}
	return modulesUnpushed(ctx, t.dir)
}

func keepRefs(ctx context.Context, _ *Git, _ ReapOptions, t tree) (string, error) {
	out, err := call{dir: t.path}.line(ctx, "for-each-ref", "--count=1", "--format=%(refname)", "refs/worktree/", "refs/bisect/", "refs/rewritten/")
	if out != "" {
		return fmt.Sprintf("the ref %s exists in this worktree alone", out), nil
	}
	return "", err
}

// keepNested looks for repositories that git status does not tell of, because they lie in ignored folders.
func keepNested(ctx context.Context, _ *Git, _ ReapOptions, t tree) (string, error) {
	known := map[string]bool{filepath.Join(t.path, ".git"): true}
	if err := knownRepositories(ctx, t.path, known); err != nil {
		return "", err
	}
	why := ""
	err := walk(ctx, t.path, func(path string, st fs.FileInfo) error {
		if st.Name() == ".git" && !known[path] {
			why = fmt.Sprintf("another repository lies in it: %s", filepath.Dir(path))
			return fs.SkipAll
		}
		return nil
	})
	return why, err
}

func knownRepositories(ctx context.Context, dir string, known map[string]bool) error {
	links, err := gitlinks(ctx, call{dir: dir})
	if err != nil {
		return err
	}
	for _, l := range links {
		if sub := filepath.Join(dir, l); initialised(sub) {
			known[filepath.Join(sub, ".git")] = true
			if err := knownRepositories(ctx, sub, known); err != nil {
				return err
			}
		}
	}
	return nil
}

func keepBusy(_ context.Context, g *Git, _ ReapOptions, t tree) (string, error) {
	who, err := g.lives(t.marker.CreatedAt.Time, t.path, t.dir)
	if who != "" {
		who += " works in it"
	}
	return who, err
}

// remove saves the tip and takes the tree away.
func (g *Git) remove(ctx context.Context, t tree) (ref string, err error) {
	key := filepath.Base(t.path)
	repository, err := g.lockRepository(ctx)
	if err != nil {
		return "", err
	}
	defer unflock(repository)
	c := g.git()
	head, err := Head(ctx, t.path)
	if err != nil {
		return "", err
	}
	ref, err = c.keep(ctx, reapedRefs+key+"/"+time.Now().UTC().Format("20060102T150405Z"), head)
	if err != nil {
		return "", fmt.Errorf("save the tip: %w", err)
	}
	err = g.takeAway(t.admin, t.path, func(path string) error {
		who, err := g.lives(t.marker.CreatedAt.Time, t.path, path, t.dir)
		if err == nil && who != "" {
			err = fmt.Errorf("%s works in it", who)
		}
		return err
	})
	return ref, err
}
