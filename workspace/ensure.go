package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"gaia/domain"
)

// ourLock starts the reason of each lock of Gaia's.
const ourLock = "gaia: "

// makingLock starts the reason of the lock that a worktree of ours has while it is being made. By it, a tree that a
// crash has left half made is told from what a person put there. The reason ends with the commit that the branch
// stood at.
const makingLock = ourLock + "being made for "

func makingReason(key, run, from string) string {
	return makingLock + key + " by run " + run + " from " + from
}

// madeFor reports whether a lock's reason is that of an unfinished tree of a key, and the commit that it started from.
func madeFor(reason, key string) (from string, ok bool) {
	if !strings.HasPrefix(reason, makingLock+key+" ") {
		return "", false
	}
	i := strings.LastIndex(reason, " from ")
	if i < 0 {
		return "", false
	}
	return reason[i+len(" from "):], true
}

var runForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,63}$`) })

// hold returns a failure that only a person can mend.
func hold(format string, a ...any) error {
	return &domain.WorkspaceError{Hold: true, Err: fmt.Errorf(format, a...)}
}

// job is one call of Ensure.
type job struct {
	*Git
	request  domain.TreeRequest
	key      string
	path     string
	branch   string
	lock     *os.File // the tree's lock
	spare    *spare   // that the tree may be made from, nil without one
	findings []string
}

func (j *job) find(format string, a ...any) {
	j.findings = append(j.findings, fmt.Sprintf(format, a...))
}

// Ensure implements domain.Workspace. It fetches first, without any lock of the repository; it holds that lock only
// while the list of worktrees is read and changed, so that the checkouts of several trees go on side by side.
func (g *Git) Ensure(ctx context.Context, r domain.TreeRequest) (domain.Tree, func(context.Context) error, error) {
	t, finish, err := g.ensure(ctx, r)
	if err != nil {
		return domain.Tree{}, nil, workspaceError(err)
	}
	return t, func(ctx context.Context) error { return workspaceError(finish(ctx)) }, nil
}

func workspaceError(err error) error {
	if w := (*domain.WorkspaceError)(nil); err != nil && !errors.As(err, &w) {
		return &domain.WorkspaceError{Err: err}
	}
	return err
}

func (g *Git) ensure(ctx context.Context, r domain.TreeRequest) (domain.Tree, func(context.Context) error, error) {
	if err := domain.CheckIdentifier(r.Identifier); err != nil {
		return domain.Tree{}, nil, err
	}
	if r.Ticket == "" || !runForm().MatchString(r.Run) {
		return domain.Tree{}, nil, fmt.Errorf("a worktree is made for a ticket and a run, not for ticket %q and run %q: %w", r.Ticket, r.Run, domain.ErrInvalid)
	}
	key := domain.WorkspaceKey(r.Identifier)
	j := &job{Git: g, request: r, key: key, path: filepath.Join(g.root, key), branch: r.Branch, lock: g.lockOf(key)}
	if j.lock == nil {
		return domain.Tree{}, nil, fmt.Errorf("the lock of the worktree of %s is not held: %w", r.Identifier, domain.ErrInvalid)
	}
	if j.branch == "" {
		j.branch = g.Branch(r.Identifier)
	}
	if err := g.checkBranchName(ctx, j.branch); err != nil {
		return domain.Tree{}, nil, err
	}
	finding, err := g.fetch(ctx)
	if err != nil {
		return domain.Tree{}, nil, err
	}
	if finding != "" {
		j.find("%s", finding)
	}
	if err := os.MkdirAll(g.root, 0o700); err != nil {
		return domain.Tree{}, nil, fmt.Errorf("make the workspace root: %w", err)
	}
	if real, err := filepath.EvalSymlinks(g.root); err != nil || real != g.root {
		return domain.Tree{}, nil, hold("the workspace root %s leads to %s since the start; restart the conductor", g.root, real)
	}
	if err := g.settle(key); err != nil {
		return domain.Tree{}, nil, err
	}
	var unlock func()
	j.spare, unlock = j.pickSpare(ctx)
	t, made, err := j.place(ctx)
	unlock()
	if err != nil {
		return domain.Tree{}, nil, err
	}
	head, behind := t.start, ""
	if made {
		err = j.fill(ctx, t)
	} else if behind, err = j.adopt(ctx, t); err == nil {
		head, err = Head(ctx, j.path)
	}
	if err != nil {
		return domain.Tree{}, nil, err
	}
	return domain.Tree{Path: j.path, Branch: t.marker.Branch, Base: t.marker.Base, Head: head,
		AfterCreate: !t.marker.AfterCreate, Findings: j.findings, Behind: behind}, func(ctx context.Context) error { return j.finish(ctx, t, made) }, nil
}

// place decides, under the repository's lock, whether there is a complete tree to take (made is false) or registers
// a new, still empty one.
func (j *job) place(ctx context.Context) (t *tree, made bool, err error) {
	repository, err := j.lockRepository(ctx)
	if err != nil {
		return nil, false, err
	}
	defer unflock(repository)
	all, err := j.admins() // once: there may be hundreds
	if err != nil {
		return nil, false, err
	}
	if err := j.settleCut(j.path, all); err != nil {
		return nil, false, err
	}
	if err := j.removeJunk(all); err != nil {
		return nil, false, err
	}
	if err := j.settleSpare(all); err != nil {
		return nil, false, err
	}
	registered := at(all, j.path)
	var before *Marker
	st, err := os.Lstat(j.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if registered != nil {
			if before, err = j.folderGone(ctx, *registered); err != nil {
				return nil, false, err
			}
		}
	case err != nil:
		return nil, false, fmt.Errorf("look at %s: %w", j.path, err)
	case st.Mode()&fs.ModeSymlink != 0:
		return nil, false, hold("%s is a symbolic link, where the worktree of %s should be; remove it: rm %s", j.path, j.request.Identifier, quote(j.path))
	default:
		found, err := j.treeAt(j.path)
		if err == nil {
			return &found, false, j.mayTake(ctx, found)
		}
		if empty, e := isEmpty(j.path); e == nil && empty && registered == nil {
			break
		}
		if registered != nil && registered.locked {
			if from, ours := madeFor(registered.reason, j.key); ours {
				if err := j.discard(ctx, *registered, from); err != nil {
					return nil, false, err
				}
				break
			}
		}
		what := strings.TrimSuffix(err.Error(), ": "+domain.ErrNotFound.Error())
		return nil, false, hold("something else is where the worktree of %s should be: %s; move it away: mv %s %s",
			j.request.Identifier, what, quote(j.path), quote(j.path+".old"))
	}
	t, err = j.register(ctx, repository, before)
	return t, true, err
}

// mayTake refuses a complete tree that is not this ticket's or that a person has locked.
func (j *job) mayTake(ctx context.Context, t tree) error {
	switch m := t.marker; {
	case m.Ticket != j.request.Ticket:
		return hold("the worktree %s belongs to another ticket of that name (id %s); when nothing in it is needed, remove it: git -C %s worktree remove %s",
			j.path, m.Ticket, quote(j.checkout), quote(j.path))
	case j.request.Branch != "" && m.Branch != j.branch:
		return hold("the worktree %s is for the branch %s, the ticket's is %s; when nothing in it is needed, remove it: git -C %s worktree remove %s",
			j.path, m.Branch, j.branch, quote(j.checkout), quote(j.path))
	case !t.locked:
		return nil
	}
	if _, ours := madeFor(t.reason, j.key); !ours {
		return j.lockedBy(t.admin)
	}
	return unlock(t.admin)
}

func (j *job) lockedBy(a admin) error {
	why := a.reason
	if why == "" {
		why = "no reason given"
	}
	return hold("the worktree %s is locked (%s); free it: git -C %s worktree unlock %s", j.path, why, quote(j.checkout), quote(j.path))
}

// unlock takes away our own lock: the tree is complete. It does what git worktree unlock does.
func unlock(a admin) error {
	if err := os.Remove(filepath.Join(a.dir, "locked")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unlock the finished worktree: %w", err)
	}
	return nil
}

// folderGone deals with a registered worktree whose folder is not there: it saves what only the registration still
// holds and takes away this registration, and no other. It returns what was known of the tree.
func (j *job) folderGone(ctx context.Context, a admin) (*Marker, error) {
	var from string
	if a.locked {
		var ours bool
		if from, ours = madeFor(a.reason, j.key); !ours {
			return nil, j.lockedBy(a)
		}
	}
	m, err := ReadMarker(a.dir)
	switch {
	case errors.Is(err, domain.ErrNotFound) && a.locked: // its making was cut short before there was a folder
		return nil, j.discard(ctx, a, from)
	case errors.Is(err, domain.ErrNotFound):
		m = Marker{}
	case err != nil:
		return nil, hold("%w; the folder of the worktree is gone; drop it: git -C %s worktree remove --force %s", err, quote(j.checkout), quote(j.path))
	case m.Ticket != j.request.Ticket:
		return nil, hold("the worktree %s, whose folder is gone, belongs to another ticket of that name (id %s); drop it: git -C %s worktree remove --force %s",
			j.path, m.Ticket, quote(j.checkout), quote(j.path))
	}
	if why, err := modulesUnpushed(ctx, a.dir); err != nil {
		return nil, err
	} else if why != "" {
		return nil, hold("the folder of the worktree %s is gone, but %s; push them, then drop it: git -C %s worktree remove --force %s", j.path, why, quote(j.checkout), quote(j.path))
	}
	ref, _, err := j.save(ctx, place{gitDir: a.dir, key: j.key, run: j.request.Run, hold: j.lock})
	if err != nil {
		return nil, err
	}
	if err := j.unregister(a); err != nil {
		return nil, err
	}
	text := "The folder of this worktree was deleted by somebody; it was made again on its branch. Changes that were neither committed nor staged are lost."
	if ref != "" {
		text += " What git still knew of it is saved in " + ref + "."
	}
	j.find("%s", text)
	return &m, nil
}

// discard takes away a tree of ours that was never finished and so holds nobody's work; unless its branch has moved or
// a process lives in it, which shows that somebody works there after all.
func (j *job) discard(ctx context.Context, a admin, from string) error {
	mend := fmt.Sprintf("look at it and, when nothing in it is needed, drop it: git -C %s worktree remove --force --force %s", quote(j.checkout), quote(j.path))
	tip, err := j.git().commit(ctx, "refs/heads/"+j.branch)
	if err != nil {
		return fmt.Errorf("look at the branch %s: %w", j.branch, err)
	}
	if tip != "" && tip != from {
		return hold("the worktree %s was never finished, but its branch %s has moved from %s to %s; %s", j.path, j.branch, short(from), short(tip), mend)
	}
	begun, err := os.Lstat(filepath.Join(a.dir, "locked"))
	if err != nil {
		return fmt.Errorf("look at the lock of the unfinished worktree: %w", err)
	}
	look, err := j.secure(ctx, a, mend)
	if err != nil {
		return err
	}
	if err := j.takeAway(a, j.path, look); err != nil {
		return err
	}
	return j.branchLock(begun.ModTime())
}

// branchLock removes the lock file of a git that died while it made the branch of an unfinished tree, or nobody could make it
// any more. That git is no more: it had the tree's lock in its hands, which we hold. What is older than the tree is not its.
func (j *job) branchLock(begun time.Time) error {
	lock := filepath.Join(j.common, "refs/heads", j.branch+".lock")
	st, err := os.Lstat(lock)
	if err == nil && !st.ModTime().Before(begun) {
		err = os.Remove(lock)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the lock of a dead git: %w", err)
	}
	return nil
}

// secure is the part of discard that does not depend on a branch: it saves what lies in the tree, and refuses where
// somebody works there. look asks the latter again.
func (j *job) secure(ctx context.Context, a admin, mend string) (look func(path string) error, err error) {
	var begunAt time.Time
	for _, name := range []string{spareMarker, "locked"} {
		if st, err := os.Lstat(filepath.Join(a.dir, name)); err == nil {
			begunAt = st.ModTime()
		}
	}
	busy := func(path string) error {
		folders := []string{path, a.dir}
		if isSpare(j.path) { // whoever makes a tree reads its registration, and nobody works there
			folders = folders[:1]
		}
		who, err := j.lives(begunAt, folders...)
		if err != nil {
			return hold("the worktree %s was never finished, and it cannot be known whether somebody works in it: %w; %s", j.path, err, mend)
		}
		if who != "" {
			return hold("the worktree %s was never finished, but %s works in it; %s", j.path, who, mend)
		}
		return nil
	}
	if err := busy(j.path); err != nil {
		return nil, err
	}
	link, more, err := contents(j.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if link || more {
		if !pointsTo(j.path, a.dir) {
			return nil, hold("the worktree %s was never finished, but files lie in its place; %s", j.path, mend)
		}
	}
	if more {
		ref, notes, err := j.save(ctx, place{path: j.path, gitDir: a.dir, key: strings.TrimPrefix(j.key, "."), run: j.request.Run, hold: j.lock, partial: true})
		if err != nil {
			return nil, err
		}
		if ref != "" {
			j.find("An earlier attempt to make this worktree was cut short; files in it that differed from the commit are saved in %s.%s", ref, sentence(notes))
		}
	}
	return busy, nil
}

// removeJunk takes away registrations of this key that a crash left before they were given a path, and what is left of
// registrations that were being taken away. The repository is locked.
func (j *job) removeJunk(all []admin) error {
	for _, a := range all {
		if _, ours := madeFor(a.reason, j.key); ours && a.path == "" {
			if err := j.unregister(a); err != nil {
				return err
			}
		}
	}
	left, err := fs.Glob(os.DirFS(j.common), goneAdmins+"*")
	for _, name := range left {
		err = errors.Join(err, os.RemoveAll(filepath.Join(j.common, name)))
	}
	return err
}

func isEmpty(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	return len(entries) == 0, err
}

// contents reports whether a folder has a file .git, which is all that there is when git begins to make a worktree, and
// whether there is more.
func contents(dir string) (link, more bool, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.Name() == ".git" && e.Type().IsRegular() {
			link = true
		} else {
			more = true
		}
	}
	return link, more, err
}

// register makes the branch, where it is missing, and a locked worktree without files. The repository is locked.
func (j *job) register(ctx context.Context, repository *os.File, before *Marker) (*tree, error) {
	tip, there, at, err := j.tips(ctx)
	if err != nil {
		return nil, err
	}
	if at != "" && at != j.path {
		return nil, j.checkedOut(at)
	}
	start, base, fresh, err := j.start(ctx, before, tip, there)
	if err != nil {
		return nil, err
	}
	t := &tree{start: start, fresh: fresh, marker: Marker{Ticket: j.request.Ticket, Identifier: j.request.Identifier, Run: j.request.Run,
		Branch: j.branch, Base: base, CreatedAt: domain.At(time.Now())}}
	if j.spare != nil {
		t.from = j.spare.Base
		t.admin, err = j.takeSpare(*j.spare, start)
		return t, err
	}
	to := []string{"--detach", "--", j.path, start}
	if !fresh { // else git would let somebody else have the branch as long as it is being checked out
		to = []string{"--", j.path, j.branch}
	}
	t.admin, err = j.add(ctx, repository, makingReason(j.key, j.request.Run, start), to...)
	return t, err
}

// add registers a locked worktree without files, at what git's command ends with. The repository is locked.
func (j *job) add(ctx context.Context, repository *os.File, reason string, at ...string) (admin, error) {
	c := j.git()
	c.hold = []*os.File{j.lock, repository}
	if _, err := c.run(ctx, append([]string{"worktree", "add", "--no-checkout", "--lock", "--reason", reason}, at...)...); err != nil {
		return admin{}, j.refused(ctx, err, false)
	}
	a, err := readAdmin(gitFile(j.path))
	if err == nil && a.path != j.path {
		err = fmt.Errorf("git says that it made the worktree %s, but has not registered it", j.path)
	}
	if err != nil {
		return admin{}, err
	}
	return a, a.sync()
}

// refused returns what keeps git from checking a branch out, where it is to make it if it is fresh.
func (j *job) refused(ctx context.Context, err error, fresh bool) error {
	if fresh {
		if why := j.nameTaken(ctx); why != nil {
			return why
		}
	}
	text := stderrOf(err)
	if strings.Contains(text, "already checked out at") || strings.Contains(text, "already used by worktree") || strings.Contains(text, "is being rebased") {
		return hold("the branch %s is in use elsewhere: %w; end what is begun there, or see git -C %s worktree list", j.branch, err, quote(j.checkout))
	}
	if lock := staleLock(text, time.Now()); lock != "" {
		return hold("git finds a lock in its way: %s; if no git is at work in the repository, remove it: rm %s", lock, quote(lock))
	}
	return fmt.Errorf("make the worktree: %w", err)
}

func (j *job) checkedOut(path string) error {
	mend := fmt.Sprintf("check out another branch there: git -C %s switch --detach", quote(path))
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		mend = fmt.Sprintf("that folder is gone; drop it: git -C %s worktree remove --force %s", quote(j.checkout), quote(path))
	}
	return hold("the branch %s is checked out at %s; %s", j.branch, path, mend)
}

var lockInWay = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`Unable to create '([^\n]*\.lock)': File exists`) })

// staleLock returns the lock file that git's message complains about, if it is so old that its git has probably died. A
// younger one goes away by itself, and the next attempt succeeds.
func staleLock(text string, now time.Time) string {
	m := lockInWay().FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	if st, err := os.Lstat(m[1]); err != nil || now.Sub(st.ModTime()) < time.Minute {
		return ""
	}
	return m[1]
}

// tips returns the commits of the branch, here and at the remote, "" where it is not, and the worktree that has it
// checked out.
func (j *job) tips(ctx context.Context) (tip, there, at string, err error) {
	local, far := "refs/heads/"+j.branch, "refs/remotes/"+remote+"/"+j.branch
	if j.noRefs(local, far) {
		return "", "", "", nil
	}
	out, err := j.git().run(ctx, "for-each-ref", "--format=%(refname) %(objectname) %(worktreepath)", local, far)
	if err != nil {
		return "", "", "", fmt.Errorf("look for the branch %s: %w", j.branch, err)
	}
	for l := range strings.Lines(string(out)) {
		f := strings.SplitN(strings.TrimSuffix(l, "\n"), " ", 3)
		switch {
		case len(f) != 3:
		case f[0] == local:
			tip, at = f[1], f[2]
		case f[0] == far:
			there = f[1]
		}
	}
	if tip == "" {
		err = j.nameTaken(ctx) // before anything is made
	}
	return tip, there, at, err
}

// nameTaken says which other branch keeps git from making this one, nil where none does.
func (j *job) nameTaken(ctx context.Context) error {
	if err := j.checkParents(ctx, j.branch); err != nil {
		return &domain.WorkspaceError{Hold: true, Err: err}
	}
	out, err := j.git().line(ctx, "for-each-ref", "--count=1", "--format=%(refname:strip=2)", "refs/heads/"+j.branch+"/")
	if err == nil && out != "" {
		return hold("the repository has a branch %s, so git can make no branch %s; rename it: git -C %s branch -m %s NEWNAME", out, j.branch, quote(j.checkout), quote(out))
	}
	return nil
}

// start returns the commit that the tree starts at and its base, and whether the branch, whose commits tips has found, is
// still to be made. A branch that has nothing of its own is brought up to date; it is moved forward only.
func (j *job) start(ctx context.Context, before *Marker, tip, there string) (start, base string, fresh bool, err error) {
	c := j.git()
	if base, err = j.Base(ctx); err != nil {
		return "", "", false, err
	}
	start = tip
	if tip == "" {
		if start, fresh = base, true; there != "" {
			start = there
			j.find("The branch %s was taken from %s, where an earlier run pushed it.", j.branch, remote)
		}
	} else {
		to := there
		if to == "" {
			to = base
		}
		behind, err := c.is(ctx, "merge-base", "--is-ancestor", tip, to)
		if err != nil {
			return "", "", false, err
		}
		if behind && tip != to {
			if _, err := c.run(ctx, "update-ref", "-m", "gaia: forward", "refs/heads/"+j.branch, to, tip); err != nil {
				return "", "", false, fmt.Errorf("bring the branch %s up to date: %w", j.branch, err)
			}
			start = to
		}
	}
	if start == base {
		return start, base, fresh, nil
	}
	// The branch has a story: its base is where it left the default branch, or what was recorded of it.
	if before != nil && before.Base != "" {
		if ok, err := c.is(ctx, "merge-base", "--is-ancestor", before.Base, start); err == nil && ok {
			return start, before.Base, fresh, nil
		}
	}
	fork, err := c.line(ctx, "merge-base", start, base)
	if err != nil && exitCode(err) != 1 {
		return "", "", false, fmt.Errorf("find where %s left the default branch: %w", j.branch, err)
	}
	if fork != "" {
		base = fork
	}
	if !fresh {
		if n, err := c.line(ctx, "rev-list", "--count", start, "^"+base); err == nil && n != "0" {
			j.find("The branch %s was there already, with commits of its own: %s.", j.branch, n)
		}
	}
	return start, base, fresh, nil
}

// fill makes the branch of a tree that register has made, where it is missing, and checks it out.
func (j *job) fill(ctx context.Context, t *tree) error {
	// Anywhere else git would do to somebody's files what it is to do to ours.
	if !pointsTo(j.path, t.dir) {
		return fmt.Errorf("the new worktree %s is not what it should be: it belongs to %s", j.path, gitFile(j.path))
	}
	c := call{dir: j.path, limit: checkout, hold: []*os.File{j.lock}}
	args := []string{"switch", "--quiet", "--no-guess"}
	if t.from == "" {
		args = append(args, "--discard-changes") // git takes the files that are not there yet for deleted ones
	}
	switch {
	case !t.fresh:
		args = append(args, j.branch)
	case t.start == t.from: // git need not even look which files differ
		args = append(args, "--no-track", "-c", j.branch)
	default: // from a spare's commit to that of the branch only the difference is checked out
		args = append(args, "--no-track", "-c", j.branch, t.start)
	}
	if _, err := c.run(ctx, args...); err != nil {
		return j.refused(ctx, err, t.fresh)
	}
	branch := branchIn(t.dir)
	if branch == "" {
		var err error
		if branch, err = c.line(ctx, "symbolic-ref", "HEAD"); err != nil {
			return fmt.Errorf("look at the new worktree: %w", err)
		}
	}
	if branch != "refs/heads/"+j.branch {
		return fmt.Errorf("the new worktree %s is not what it should be: it is on %s", j.path, branch)
	}
	if t.from != "" && !t.fresh {
		if err := j.onlyHere(ctx); err != nil {
			return err
		}
	}
	if j.config.SkipSubmodules {
		return nil
	}
	return j.submodules(ctx, j.path, c.hold)
}

// onlyHere refuses a branch that somebody has checked out elsewhere while it was being checked out here: what is committed in
// the one worktree would look like changes in the other. A spare has no branch by which git would have known.
func (j *job) onlyHere(ctx context.Context) error {
	all, err := j.list(ctx)
	if err != nil {
		return err
	}
	for _, l := range all {
		if l.branch == "refs/heads/"+j.branch && l.path != j.path {
			return j.checkedOut(l.path)
		}
	}
	return nil
}

// finish marks a tree as this run's. One that was made is written to the disk before, and its lock is taken away after: a
// tree with a marker is complete.
func (j *job) finish(ctx context.Context, t *tree, made bool) error {
	if made && t.from != t.start { // else its files are those of a spare, which is on the disk
		if err := j.syncTree(ctx, syncLimit); err != nil {
			return err
		}
	}
	if err := t.marker.write(t.dir); err != nil || !made {
		return err
	}
	return unlock(t.admin)
}

// adopt takes a complete tree as an earlier run left it: nothing that anybody did in it is changed, what is not committed is
// saved, and the agent is told. Where nobody did anything yet, it is brought forward; behind is why it was not.
func (j *job) adopt(ctx context.Context, t *tree) (behind string, err error) {
	c := call{dir: j.path}
	who, unknown := j.lives(t.marker.CreatedAt.Time, j.path, t.dir)
	if err := j.indexLock(t.dir, who, unknown); err != nil {
		return "", err
	}
	if who != "" {
		j.find("%s%s still works in this worktree.", strings.ToUpper(who[:1]), who[1:])
	}
	if err := j.lostIndex(ctx, t.dir); err != nil {
		return "", err
	}
	operation, err := unfinished(t.dir)
	if err != nil {
		return "", err
	}
	if err := t.marker.settle(ctx, j.path); err != nil {
		return "", err
	}
	dirty, err := Dirty(ctx, j.path)
	if err != nil {
		return "", err
	}
	if dirty {
		ref, notes, err := j.save(ctx, place{path: j.path, gitDir: t.dir, key: j.key, run: j.request.Run, hold: j.lock})
		if err != nil {
			return "", err
		}
		text := "The worktree holds changes that are not committed."
		if operation != "" {
			text = fmt.Sprintf("The worktree is in the middle of a %s (see git status).", operation)
		}
		if ref != "" {
			text += " They were left as they are; a copy is saved in " + ref + "."
		}
		j.find("%s%s", text, sentence(notes))
		j.emptied(ctx)
	}
	on, err := c.line(ctx, "symbolic-ref", "--quiet", "HEAD")
	if err != nil && exitCode(err) != 1 {
		return "", fmt.Errorf("look which branch is checked out: %w", err)
	}
	s := standing{who: who, unknown: unknown, dirty: dirty, off: on != "refs/heads/"+t.marker.Branch}
	switch want := "refs/heads/" + t.marker.Branch; {
	case on == want || on == "" && operation != "":
	case on == "":
		j.find("HEAD is detached; the ticket's branch is %s (git switch %s).", t.marker.Branch, t.marker.Branch)
	default:
		j.find("The branch %s is checked out; the ticket's is %s (git switch %s).", strings.TrimPrefix(on, "refs/heads/"), t.marker.Branch, t.marker.Branch)
	}
	there := "refs/remotes/" + remote + "/" + t.marker.Branch
	if sha, err := c.commit(ctx, there); err == nil && sha != "" {
		s.there = true
		if n, err := c.line(ctx, "rev-list", "--count", there, "^HEAD"); err == nil && n != "0" {
			s.lacks = true
			j.find("%s/%s has commits that this worktree lacks: %s.", remote, t.marker.Branch, n)
		}
	}
	if behind, err = j.forward(ctx, t, s); err != nil {
		return "", err
	}
	t.marker.Run = j.request.Run
	return behind, nil
}

// indexLock tells the lock file of a dead git, which would make every git command in the tree fail, from that of a
// living one. No git of ours is at work, since the tree is locked.
func (j *job) indexLock(gitDir, who string, unknown error) error {
	lock := filepath.Join(gitDir, "index.lock")
	if _, err := os.Lstat(lock); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	switch {
	case unknown != nil:
		j.find("%s is there, and it cannot be known whether a git still works here (%v); if none does, remove it: rm %s", lock, unknown, quote(lock))
	case who != "":
		j.find("%s is there: a git may be at work.", lock)
	default:
		if err := os.Remove(lock); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the lock of a dead git: %w", err)
		}
		j.find("A git command had died in this worktree; its index.lock was removed.")
	}
	return nil
}

func sentence(notes []string) string {
	if len(notes) == 0 {
		return ""
	}
	return " Beware: " + strings.Join(notes, "; ") + "."
}
