package workspace

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
)

func TestMain(m *testing.M) {
	// The machine's own configuration of git must not decide about the tests.
	os.Setenv("GIT_CONFIG_GLOBAL", "/dev/null")
	os.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	if spec := os.Getenv("GAIA_TEST_ENSURE"); spec != "" {
		os.Exit(ensureProcess(spec))
	}
	if spec := os.Getenv("GAIA_TEST_SPARES"); spec != "" {
		os.Exit(sparesProcess(spec))
	}
	if spec := os.Getenv("GAIA_TEST_REAP"); spec != "" {
		if err := reapProcess(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv("GAIA_TEST_HIDE") != "" {
		os.Exit(hide())
	}
	// Each check of the property is a story of some hundred git commands; the usual 100 would take minutes.
	flag.Parse()
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "rapid.checks" })
	if !asked {
		_ = flag.Set("rapid.checks", "20")
	}
	os.Exit(m.Run())
}

// ensureProcess is a process of its own that makes worktrees; spec is checkout, root, locks, first and last number.
func ensureProcess(spec string) int {
	f := strings.Split(spec, "\n")
	var first, last int
	if _, err := fmt.Sscan(f[3], &first, &last); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	g, err := New(Config{Checkout: f[0], Root: f[1], Locks: f[2]})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	errs := make(chan error)
	for n := first; n <= last; n++ {
		go func() { _, err := ensureOnce(g, fmt.Sprintf("SHOP-%d", n), "run-"+fmt.Sprint(n)); errs <- err }()
	}
	code := 0
	for n := first; n <= last; n++ {
		if err := <-errs; err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// sparesProcess is a process of its own that keeps spares; spec is checkout, root, locks and how many.
func sparesProcess(spec string) int {
	f := strings.Split(spec, "\n")
	var n int
	_, err := fmt.Sscan(f[3], &n)
	var g *Git
	if err == nil {
		g, err = New(Config{Checkout: f[0], Root: f[1], Locks: f[2]})
	}
	if err == nil {
		g.racy = 0
		err = g.KeepSpares(context.Background(), n, 0, false)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func ensureOnce(g *Git, identifier, run string) (domain.Tree, error) {
	return ensureRequest(g, domain.TreeRequest{Ticket: "id-" + identifier, Identifier: identifier, Run: run})
}

func ensureRequest(g *Git, r domain.TreeRequest) (domain.Tree, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	unlock, err := g.Lock(ctx, r.Identifier)
	if err != nil {
		return domain.Tree{}, err
	}
	defer unlock()
	t, finish, err := g.Ensure(ctx, r)
	if err != nil {
		return t, err
	}
	return t, finish(ctx)
}

// fixture is a person's checkout with one commit, cloned from a bare repository or not.
type fixture struct {
	t        testing.TB
	base     string
	origin   string // bare repository, "" if there is none
	checkout string
	*Git
}

func newFixture(t testing.TB) *fixture { return fixtureIn(t, t.TempDir(), true) }

func fixtureIn(t testing.TB, base string, cloned bool) *fixture {
	f := &fixture{t: t, base: base, checkout: filepath.Join(base, "shop")}
	require.NoError(t, os.MkdirAll(base, 0o755))
	if cloned {
		f.origin = filepath.Join(base, "origin.git")
		f.git(base, "init", "-q", "--bare", "-b", "main", f.origin)
		f.git(base, "clone", "-q", f.origin, f.checkout)
		f.git(f.checkout, "checkout", "-q", "-B", "main")
	} else {
		f.git(base, "init", "-q", "-b", "main", f.checkout)
	}
	f.write(f.checkout, "README.md", "shop\n")
	f.write(f.checkout, ".gitignore", "ignored/\n")
	f.commit(f.checkout, "first")
	if cloned {
		f.git(f.checkout, "push", "-q", "-u", "origin", "main")
		f.git(f.checkout, "remote", "set-head", "origin", "main")
	}
	f.Git = f.open()
	return f
}

func (f *fixture) config() Config {
	return Config{Checkout: f.checkout, Root: filepath.Join(f.base, "trees"), Locks: filepath.Join(f.base, "locks")}
}

func (f *fixture) open() *Git {
	g, err := New(f.config())
	require.NoError(f.t, err)
	return g
}

func (f *fixture) git(dir string, args ...string) string {
	out, err := f.tryGit(dir, args...)
	require.NoError(f.t, err, "git %v in %s: %s", args, dir, out)
	return out
}

func (f *fixture) tryGit(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "protocol.file.allow=always"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_EDITOR=true")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (f *fixture) write(dir, name, content string) {
	p := filepath.Join(dir, name)
	require.NoError(f.t, os.MkdirAll(filepath.Dir(p), 0o755))
	require.NoError(f.t, os.WriteFile(p, []byte(content), 0o644))
}

func (f *fixture) commit(dir, message string) string {
	f.git(dir, "add", "-A")
	f.git(dir, "commit", "-q", "--allow-empty", "-m", message)
	return f.git(dir, "rev-parse", "HEAD")
}

// pushElsewhere makes a commit on main from another clone, which the checkout does not have yet.
func (f *fixture) pushElsewhere(message string) string {
	other := filepath.Join(f.base, "other")
	if _, err := os.Stat(other); err != nil {
		f.git(f.base, "clone", "-q", f.origin, other)
	}
	f.git(other, "pull", "-q", "--ff-only")
	sha := f.commit(other, message)
	f.git(other, "push", "-q")
	return sha
}

func (f *fixture) ensure(identifier, run string) domain.Tree {
	f.t.Helper()
	tree, err := ensureOnce(f.Git, identifier, run)
	require.NoError(f.t, err)
	require.NoError(f.t, Verify(context.Background(), tree))
	return tree
}

func (f *fixture) refused(identifier string, contains ...string) {
	f.t.Helper()
	_, err := ensureOnce(f.Git, identifier, "run-x")
	f.isHold(err, contains...)
}

func (f *fixture) isHold(err error, contains ...string) {
	f.t.Helper()
	var w *domain.WorkspaceError
	require.ErrorAs(f.t, err, &w)
	require.True(f.t, w.Hold, "%v", err)
	for _, c := range contains {
		require.Contains(f.t, err.Error(), c)
	}
}

func (f *fixture) gitDir(tree string) string {
	dir, err := GitDir(context.Background(), tree)
	require.NoError(f.t, err)
	return dir
}

// everyTicket is a hub in which every ticket is in that state.
func everyTicket(state string, terminal bool) func(context.Context, string) (string, bool, bool, error) {
	return func(context.Context, string) (string, bool, bool, error) { return state, terminal, true, nil }
}

func (f *fixture) reap(o ReapOptions) map[string]Reaped {
	f.t.Helper()
	if o.Ticket == nil {
		o.Ticket = everyTicket("done", true)
	}
	list, err := f.Reap(context.Background(), o)
	require.NoError(f.t, err)
	m := map[string]Reaped{}
	for _, r := range list {
		m[filepath.Base(r.Path)] = r
	}
	return m
}

func (f *fixture) kept(key string, reason string) {
	f.t.Helper()
	r := f.reap(ReapOptions{})[key]
	require.False(f.t, r.Removed, "%+v", r)
	require.Contains(f.t, r.Reason, reason)
	_, err := os.Lstat(r.Path)
	require.NoError(f.t, err)
}

func (f *fixture) reaped(key string) {
	f.t.Helper()
	r := f.reap(ReapOptions{})[key]
	require.True(f.t, r.Removed, "%+v", r)
	require.NoDirExists(f.t, filepath.Join(f.root, key))
}
