package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gaia/domain"
)

// DefaultBranchPrefix is what the branches of tickets start with where nothing else is configured.
const DefaultBranchPrefix = "gaia/"

// DefaultFetchTimeout is how long a fetch may take where nothing else is configured.
const DefaultFetchTimeout = 30 * time.Second

// Config says where worktrees come from and where they go.
type Config struct {
	Checkout     string        // the person's own work tree, or a bare repository
	Root         string        // folder of the worktrees, outside the checkout; made when it is first needed
	BranchPrefix string        // "": DefaultBranchPrefix
	Locks        string        // folder of the tree locks
	FetchTimeout time.Duration // 0: DefaultFetchTimeout
	// SkipSubmodules leaves submodules empty in new trees.
	SkipSubmodules bool
}

// Git makes and removes the worktrees of one checkout. It may be used concurrently, and by several processes.
type Git struct {
	config   Config
	checkout string        // real path
	common   string        // the repository's common git directory, real path
	gitDir   string        // the checkout's own, which differs where that is a worktree itself
	root     string        // real path
	proc     string        // where the kernel shows the processes
	racy     time.Duration // how long git's index takes to be older than the files beside it

	mu   sync.Mutex
	held map[string]*os.File // tree locks by key
	// neverClean is the commit, with its settings, of which a checkout is not clean.
	neverClean string
	spareSize  map[string]uint64 // by commit, of the one that was last asked for

	knownMu sync.Mutex
	known   known
}

var _ domain.Workspace = (*Git)(nil)

// New returns the workspace of a checkout. It changes nothing.
func New(c Config) (*Git, error) {
	if c.BranchPrefix == "" {
		c.BranchPrefix = DefaultBranchPrefix
	}
	if c.FetchTimeout <= 0 {
		c.FetchTimeout = DefaultFetchTimeout
	}
	for what, dir := range map[string]string{"checkout": c.Checkout, "workspace root": c.Root, "folder of the locks": c.Locks} {
		if dir == "" || strings.ContainsAny(dir, "\n\x00") {
			return nil, fmt.Errorf("the %s %q is not a path that can be used: %w", what, dir, domain.ErrInvalid)
		}
	}
	ctx := context.Background() // every call of git below has its own deadline
	real, err := realPath(c.Checkout)
	if err != nil {
		return nil, fmt.Errorf("the checkout %s: %w", c.Checkout, err)
	}
	g := &Git{config: c, checkout: real, proc: "/proc", racy: 1100 * time.Millisecond, held: map[string]*os.File{}}
	dirs, err := call{dir: real}.line(ctx, "rev-parse", "--path-format=absolute", "--git-common-dir", "--git-dir")
	common, own, _ := strings.Cut(dirs, "\n")
	g.gitDir = own
	if err != nil {
		return nil, fmt.Errorf("%s is no git repository that can be used: %w", c.Checkout, err)
	}
	if g.common, err = realPath(common); err != nil {
		return nil, fmt.Errorf("the git directory of %s: %w", c.Checkout, err)
	}
	if g.root, err = realPath(c.Root); err != nil {
		return nil, fmt.Errorf("the workspace root %s: %w", c.Root, err)
	}
	if err := g.checkRoot(ctx); err != nil {
		return nil, err
	}
	if err := g.checkBranchName(ctx, c.BranchPrefix+"X-1"); err != nil {
		return nil, fmt.Errorf("the branch prefix %q cannot start a branch name: %w", c.BranchPrefix, err)
	}
	return g, nil
}

// checkRoot refuses a root that lies in a work tree or the git directory of the repository, or holds the checkout:
// what is in the one must never be taken for the other.
func (g *Git) checkRoot(ctx context.Context) error {
	if within(g.checkout, g.root) {
		return fmt.Errorf("the checkout %s lies in the workspace root %s; choose another root: %w", g.checkout, g.root, domain.ErrInvalid)
	}
	homes := []string{g.common}
	trees, err := g.list(ctx)
	if err != nil {
		return err
	}
	for _, t := range trees {
		if !t.bare && !within(t.path, g.root) {
			homes = append(homes, t.path)
		}
	}
	if top, err := (call{dir: g.checkout}).line(ctx, "rev-parse", "--show-toplevel"); err == nil && top != "" {
		homes = append(homes, top) // in a submodule the list does not name it
	}
	for _, home := range homes {
		if within(g.root, home) {
			return fmt.Errorf("the workspace root %s lies in %s, where the tools of that tree would see it; choose a folder outside: %w", g.root, home, domain.ErrInvalid)
		}
	}
	return nil
}

// realPath returns the absolute path of p without symbolic links; the end of p need not exist yet.
func realPath(p string) (string, error) {
	abs, err := filepath.Abs(p)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(abs)
	if err == nil || !errors.Is(err, fs.ErrNotExist) || abs == "/" {
		return real, err
	}
	if _, err := os.Lstat(abs); err == nil {
		return "", fmt.Errorf("%s is a symbolic link that leads nowhere", abs)
	}
	dir, err := realPath(filepath.Dir(abs))
	return filepath.Join(dir, filepath.Base(abs)), err
}

// within reports whether p is dir or lies in it; both are clean and absolute.
func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

func (g *Git) git() call { return call{dir: g.checkout} }

// Path returns where the worktree of a ticket is or would be.
func (g *Git) Path(identifier string) string {
	return filepath.Join(g.root, domain.WorkspaceKey(identifier))
}

// Branch returns the branch that a ticket gets when none is frozen yet.
func (g *Git) Branch(identifier string) string {
	return g.config.BranchPrefix + domain.WorkspaceKey(identifier)
}

// Free returns how many bytes are free where the worktrees lie.
func (g *Git) Free() (uint64, error) {
	for dir := g.root; ; dir = filepath.Dir(dir) {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err == nil {
			return st.Bavail * uint64(st.Bsize), nil
		}
		if !errors.Is(err, unix.ENOENT) || dir == "/" {
			return 0, fmt.Errorf("ask for the free space of %s: %w", dir, err)
		}
	}
}

// plainBranch is a name of which it is plain that git takes it.
var plainBranch = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]*(/[A-Za-z0-9_-]+)*$`) })

func (g *Git) checkBranchName(ctx context.Context, branch string) error {
	if plainBranch().MatchString(branch) && branch != "HEAD" {
		return nil
	}
	if strings.HasPrefix(branch, "-") || branch == "HEAD" {
		return fmt.Errorf("%q is no branch name: %w", branch, domain.ErrInvalid)
	}
	ok, err := g.git().is(ctx, "check-ref-format", "refs/heads/"+branch)
	if err == nil && !ok {
		err = fmt.Errorf("%q is no branch name: %w", branch, domain.ErrInvalid)
	}
	return err
}

// CheckPrefix returns an error if a branch of the repository keeps branches with the configured prefix from being
// made: git cannot have a branch `gaia` and a branch `gaia/SHOP-1`.
func (g *Git) CheckPrefix(ctx context.Context) error {
	return g.checkParents(ctx, g.config.BranchPrefix+"X-1")
}

// checkParents returns an error that names the branch that is a parent folder of branch.
func (g *Git) checkParents(ctx context.Context, branch string) error {
	for dir := path.Dir(branch); dir != "."; dir = path.Dir(dir) {
		taken, err := g.git().is(ctx, "show-ref", "--verify", "--quiet", "refs/heads/"+dir)
		if err != nil {
			return fmt.Errorf("look for a branch %s: %w", dir, err)
		}
		if taken {
			return fmt.Errorf("the repository has a branch %q, so git can make no branch %q: rename it (git -C %s branch -m %s %s-old) or choose another [workspace] branch_prefix: %w",
				dir, branch, quote(g.checkout), quote(dir), quote(dir), domain.ErrConflict)
		}
	}
	return nil
}

// remote is the remote that new trees start from.
const remote = "origin"

// DefaultBranch returns the name of the branch that new trees start from.
func (g *Git) DefaultBranch(ctx context.Context) (string, error) {
	_, name, err := defaultBranch(ctx, g.git())
	return name, err
}

// Base returns the commit that a new tree would start from now. It does not fetch.
func (g *Git) Base(ctx context.Context) (string, error) {
	k, err := g.ask(ctx)
	return k.sha, err
}

// defaultBranch returns the full ref and the short name of the default branch: the remote's where it is known, else
// the local one. The ref exists.
func defaultBranch(ctx context.Context, c call) (ref, name string, err error) {
	exists := func(ref string) bool {
		sha, e := c.commit(ctx, ref)
		if e != nil {
			err = e
		}
		return sha != ""
	}
	head, _ := c.line(ctx, "symbolic-ref", "--quiet", "HEAD")
	current := strings.TrimPrefix(head, "refs/heads/")
	likely := []string{"main", "master", "trunk"}
	if configured, e := c.line(ctx, "config", "--get", "init.defaultBranch"); e == nil && configured != "" {
		likely = append([]string{configured}, likely...)
	}
	spaces := []string{"refs/remotes/" + remote + "/", "refs/heads/"}
	for _, space := range spaces {
		if space != "refs/heads/" {
			// The remote says it itself, unless it was never asked or the branch has been renamed since.
			if to, e := c.line(ctx, "symbolic-ref", "--quiet", space+"HEAD"); e == nil && strings.HasPrefix(to, space) && exists(to) {
				return to, strings.TrimPrefix(to, space), nil
			}
		}
		for _, n := range likely {
			if exists(space + n) {
				return space + n, n, nil
			}
		}
		if current != "" && exists(space+current) {
			return space + current, current, nil
		}
		out, e := c.line(ctx, "for-each-ref", "--count=2", "--format=%(refname)", space)
		if e != nil {
			return "", "", fmt.Errorf("list the branches: %w", e)
		}
		if out != "" && !strings.Contains(out, "\n") {
			return out, strings.TrimPrefix(out, space), nil
		}
	}
	if err != nil {
		return "", "", fmt.Errorf("look for the default branch: %w", err)
	}
	if sha, e := c.commit(ctx, "HEAD"); e == nil && sha == "" {
		return "", "", fmt.Errorf("the repository %s has no commit yet, so no worktree can start from it; make one: git -C %s commit --allow-empty -m 'First commit'", c.dir, quote(c.dir))
	}
	return "", "", fmt.Errorf("it is not clear which branch of %s is the default; say it: git -C %s remote set-head %s --auto, or git -C %s config init.defaultBranch NAME",
		c.dir, quote(c.dir), remote, quote(c.dir))
}

// maxFile is the largest file that Files reads: hooks, skills and WORKFLOW.md are text that people write.
const maxFile = 4 << 20

// Files implements domain.Workspace. Symbolic links are followed within the commit; one that leads elsewhere is left out.
func (g *Git) Files(ctx context.Context, commit string, paths ...string) (map[string][]byte, error) {
	sha, err := g.git().commit(ctx, commit)
	if err != nil {
		return nil, fmt.Errorf("look for the commit %q: %w", commit, err)
	}
	if sha == "" {
		return nil, fmt.Errorf("the commit %q is not in %s: %w", commit, g.checkout, domain.ErrNotFound)
	}
	args := []string{"ls-tree", "-r", "-z", "--full-tree", sha, "--"}
	for _, p := range paths {
		clean := path.Clean(p)
		if !fs.ValidPath(clean) || clean == "." {
			return nil, fmt.Errorf("%q is no path within the repository: %w", p, domain.ErrInvalid)
		}
		args = append(args, clean)
	}
	files := map[string][]byte{}
	if len(paths) == 0 {
		return files, nil
	}
	out, err := g.git().run(ctx, args...)
	if err != nil {
		return nil, fmt.Errorf("list files of %s: %w", short(sha), err)
	}
	var names []string
	var ask bytes.Buffer
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		meta, name, ok := strings.Cut(entry, "\t")
		field := strings.Fields(meta) // mode, type, object
		if !ok || len(field) != 3 || field[1] != "blob" || strings.Contains(name, "\n") {
			continue
		}
		names = append(names, name)
		if field[0] == "120000" {
			fmt.Fprintf(&ask, "%s:%s\n", sha, name)
		} else {
			fmt.Fprintf(&ask, "%s\n", field[2])
		}
	}
	if len(names) == 0 {
		return files, nil
	}
	batch := g.git()
	batch.stdin = ask.Bytes()
	sizes, err := batch.run(ctx, "cat-file", "--batch-check", "--follow-symlinks")
	if err != nil {
		return nil, fmt.Errorf("ask for the size of files of %s: %w", short(sha), err)
	}
	for rest := sizes; len(rest) > 0; {
		header, after, _ := bytes.Cut(rest, []byte("\n"))
		rest = after
		if kind, size, ok := object(header); ok {
			if kind == "blob" && size > maxFile {
				return nil, fmt.Errorf("a file among %s in %s is larger than %d bytes: %w", strings.Join(paths, ", "), short(sha), maxFile, domain.ErrInvalid)
			}
		} else if n := oddity(header); n >= 0 && n < len(rest) {
			rest = rest[n+1:]
		}
	}
	content, err := batch.run(ctx, "cat-file", "--batch", "--follow-symlinks")
	if err != nil {
		return nil, fmt.Errorf("read files of %s: %w", short(sha), err)
	}
	for _, name := range names {
		header, rest, ok := bytes.Cut(content, []byte("\n"))
		if !ok {
			return nil, fmt.Errorf("read %s of %s: git's answer ends early", name, short(sha))
		}
		content = rest
		kind, size, found := object(header)
		if !found {
			size = oddity(header)
		}
		if size < 0 {
			continue // missing
		}
		if size >= len(content) {
			return nil, fmt.Errorf("read %s of %s: git's answer ends early", name, short(sha))
		}
		if found && kind == "blob" {
			files[name] = bytes.Clone(content[:size])
		}
		content = content[size+1:]
	}
	return files, nil
}

// object reads a header of git cat-file for an object that is there.
func object(header []byte) (kind string, size int, ok bool) {
	f := strings.Fields(string(header))
	if len(f) != 3 {
		return "", 0, false
	}
	n, err := strconv.Atoi(f[2])
	return f[1], n, err == nil
}

// oddity reads a header of git cat-file for a link that leads nowhere, out of the commit, or round in circles, and
// returns how many bytes follow; -1: none.
func oddity(header []byte) int {
	kind, size, ok := strings.Cut(string(header), " ")
	if n, err := strconv.Atoi(size); ok && err == nil {
		switch kind {
		case "dangling", "symlink", "loop", "notdir":
			return n
		}
	}
	return -1
}
