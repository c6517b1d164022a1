package workspace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gaia/domain"
	"gaia/internal/durable"
)

// A spare is a worktree that is made in idle time, detached at the commit that new trees start from, so that a ticket's
// tree need not be checked out while somebody waits for it: it is moved into place, and only the difference is. It is
// locked while it is being made or changed, and complete when its own git directory holds its marker.

// sparePrefix starts the names of spares in the workspace root, with a number behind it; no key starts with a dot.
const sparePrefix = ".spare-"

// spareLock is the reason of the lock of a spare that is not complete.
const spareLock = ourLock + "a spare worktree is being made"

// spareMarker is the file in a spare's own git directory that says that the spare is complete. It is not the marker of a
// ticket's tree, so neither is ever taken for the other.
const spareMarker = "gaia-spare.json"

// spareNote tells people what a spare is.
const spareNote = "a spare worktree for the next ticket; [workspace] spares in conductor.toml says how many are kept"

// spare is a complete spare worktree, as its marker describes it.
type spare struct {
	admin
	Base     string      `json:"base"`     // the commit that it is checked out at
	Settings string      `json:"settings"` // what else has decided what its files are
	Print    string      `json:"print"`    // of all files, when git had found them right
	MadeAt   domain.Time `json:"made_at"`
}

func isSpare(path string) bool { return strings.HasPrefix(filepath.Base(path), sparePrefix) }

func (g *Git) sparePath(n int) string { return filepath.Join(g.root, sparePrefix+strconv.Itoa(n)) }

// spareAt returns the complete spare at a path; domain.ErrNotFound where there is no such one.
func (g *Git) spareAt(path string) (spare, error) {
	missing := func(why string) (spare, error) {
		return spare{}, fmt.Errorf("the spare worktree %s %s: %w", path, why, domain.ErrNotFound)
	}
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !st.IsDir() {
		return missing("is not there")
	}
	if err != nil {
		return spare{}, fmt.Errorf("look at %s: %w", path, err)
	}
	dir := gitFile(path)
	if filepath.Dir(dir) != filepath.Join(g.common, "worktrees") {
		return missing("belongs to no worktree of the repository")
	}
	var s spare
	b, err := os.ReadFile(filepath.Join(dir, spareMarker))
	if errors.Is(err, fs.ErrNotExist) || err == nil && json.Unmarshal(b, &s) != nil {
		return missing("is incomplete")
	}
	if err != nil {
		return spare{}, fmt.Errorf("read what Gaia knows of the spare worktree: %w", err)
	}
	if s.admin, err = readAdmin(dir); err != nil {
		return spare{}, err
	}
	switch {
	case s.path != path:
		return missing("is not where git has it registered")
	case s.locked:
		return missing("is locked: " + s.reason)
	}
	return s, nil
}

func (s spare) write() error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return durable.Replace(filepath.Join(s.dir, spareMarker), append(b, '\n'), 0o600)
}

// open makes a complete spare an incomplete one for that reason, the lock first: so it is never taken for complete and
// changed at once.
func (s spare) open(reason string) error {
	err := replace(s.dir, "locked", reason)
	if err == nil {
		err = os.Remove(filepath.Join(s.dir, spareMarker))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("lock the spare worktree: %w", err)
	}
	return nil
}

// replace gives a file of git's another line. A process that dies, or a power cut, leaves the old one or the new one: a lock
// without its reason would be taken for a person's.
func replace(dir, name, line string) error {
	return durable.Write(filepath.Join(dir, name), []byte(line+"\n"), 0o644)
}

// differs says what shows that a spare is not exactly as it was made, "" if nothing does. Files that a power cut has
// emptied are among it, since git knows their sizes.
func (s spare) differs(ctx context.Context) (string, error) {
	for _, name := range []string{"modules", "index.lock"} {
		if _, err := os.Lstat(filepath.Join(s.dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return filepath.Join(s.dir, name) + " is there", err
		}
	}
	if op, err := unfinished(s.dir); op != "" || err != nil {
		return "a " + op + " was begun in it", err
	}
	if now, err := s.print(ctx); err == nil && now == s.Print {
		return "", nil
	}
	return s.status(ctx, "0") // which knows what the change means, if anything
}

// print identifies the state of all files, and of what git keeps for the worktree alone.
func (s spare) print(ctx context.Context) (string, error) {
	head, err := readLine(filepath.Join(s.dir, "HEAD"))
	if err != nil || head != s.Base {
		return "", fmt.Errorf("HEAD is at %s: %w", head, domain.ErrConflict)
	}
	index, err := os.Stat(filepath.Join(s.dir, "index"))
	if err != nil {
		return "", err
	}
	files, err := fingerprint(ctx, s.path)
	return fmt.Sprintf("%s %d %d", files, index.Size(), index.ModTime().UnixNano()), err
}

// status is git's part of differs. optionalLocks says whether git may write down in the index what it has seen.
func (s spare) status(ctx context.Context, optionalLocks string) (string, error) {
	c := call{dir: s.path, limit: checkout, env: []string{"GIT_OPTIONAL_LOCKS=" + optionalLocks}}
	out, err := c.run(ctx, "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal", "--ignored=matching", "--ignore-submodules=none")
	if err != nil {
		return "", fmt.Errorf("ask for the state of the spare worktree: %w", err)
	}
	for l := range strings.SplitSeq(string(out), "\x00") {
		switch l {
		case "", "# branch.oid " + s.Base, "# branch.head (detached)":
		default:
			return "git status says: " + strings.ToValidUTF8(l, "?"), nil
		}
	}
	return "", nil
}

// tryLock takes the lock of a spare if nobody holds it.
func (g *Git) tryLock(path string) (unlock func(), ok bool) {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	unlock, err := g.lockKey(now, filepath.Base(path))
	return unlock, err == nil
}

// pickSpare returns a spare that is exactly as it was made, nil where there is none, for the one who then takes it or lets
// it be; unlock is called in both cases. The tree is made in the ordinary way where anything is odd: so nothing here is
// an error.
func (j *job) pickSpare(ctx context.Context) (s *spare, unlock func()) {
	nothing := func() {}
	if _, err := os.Lstat(j.path); !errors.Is(err, fs.ErrNotExist) {
		return nil, nothing
	}
	for _, path := range j.sparePaths() {
		unlock, ok := j.tryLock(path)
		if !ok {
			continue
		}
		found, err := j.spareAt(path)
		if err == nil && found.Settings == j.treeSettings() && !j.stands(path) {
			if why, err := found.differs(ctx); err == nil && why == "" {
				return &found, unlock
			}
		}
		unlock()
	}
	return nil, nothing
}

// takeSpare makes a spare the worktree of this ticket: locked, without a branch yet, at its place. It does what git
// worktree move does, but the registration goes first, so that settleSpare can end it after a crash. The repository is
// locked, and so is the spare.
func (j *job) takeSpare(s spare, start string) (admin, error) {
	reason := makingReason(j.key, j.request.Run, start)
	if err := s.open(reason); err != nil {
		return admin{}, err
	}
	if err := j.point(s.dir); err != nil {
		return admin{}, err
	}
	if err := os.Rename(s.path, j.path); err != nil {
		return admin{}, fmt.Errorf("move the spare worktree into place: %w", err)
	}
	return admin{dir: s.dir, path: j.path, locked: true, reason: reason}, nil
}

// point registers a worktree at the ticket's path. Both lie in the root, so a relative path stays right in its first part,
// and so does the worktree's own file .git.
func (j *job) point(dir string) error {
	link, err := readLine(filepath.Join(dir, "gitdir"))
	if err == nil {
		err = replace(dir, "gitdir", filepath.Join(filepath.Dir(filepath.Dir(link)), j.key, ".git"))
	}
	if err != nil {
		return fmt.Errorf("register the spare worktree at its new place: %w", err)
	}
	return nil
}

// settleSpare deals with a spare that was being taken for this ticket when its conductor died: one that was still at its
// place is an incomplete spare, one that was registered at the ticket's path is moved there. The repository is locked.
func (j *job) settleSpare(all []admin) error {
	for _, a := range all {
		if _, ours := madeFor(a.reason, j.key); !ours {
			continue
		}
		if filepath.Dir(a.path) == j.root && isSpare(a.path) {
			if err := (spare{admin: a}).open(spareLock); err != nil {
				return err
			}
		} else if a.path == j.path {
			if err := j.endMove(a); err != nil {
				return err
			}
		}
	}
	return nil
}

// endMove moves the folder of a worktree that was being taken to where the worktree is registered. The repository is locked.
func (g *Git) endMove(a admin) error {
	if _, err := os.Lstat(a.path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, path := range g.sparePaths() {
		if pointsTo(path, a.dir) {
			return os.Rename(path, a.path)
		}
	}
	return nil
}

// sparePaths returns where there are spares, or something in their place.
func (g *Git) sparePaths() []string {
	names, _ := filepath.Glob(filepath.Join(escapeGlob(g.root), sparePrefix+"*"))
	return names
}

// escapeGlob returns a path as a pattern that matches it alone.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// treeSettings identifies what decides, apart from the commit, which files a tree has and what is in them: the parts of
// the configuration that a checkout may go by. Where a file includes another one, a change in that alone is not seen.
func (g *Git) treeSettings() string {
	sum := sha256.New()
	paths := append(g.configFiles(), filepath.Join(g.gitDir, "info/sparse-checkout"), filepath.Join(g.common, "config"), filepath.Join(g.common, "info/attributes"))
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		fmt.Fprintf(sum, "%s\n", p)
		skip := false
		for l := range strings.Lines(string(b)) {
			if t := strings.TrimSpace(l); strings.HasPrefix(t, "[") { // these change with every push and pull
				skip = strings.HasPrefix(t, "[branch ") || strings.HasPrefix(t, "[remote ")
			}
			if !skip {
				sum.Write([]byte(l))
			}
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}
