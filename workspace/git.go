package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// How long a call of git may take. A checkout may take as long as the session waits for its tree.
const (
	quick    = 2 * time.Minute
	checkout = 20 * time.Minute
)

// settings are given to every call of git: no hook, monitor or maintenance of the user's repository is ours to start
// (`gc --auto` would even prune worktrees), and no preference of the user may change what a command means.
var settings = []string{
	"core.hooksPath=/dev/null", "core.fsmonitor=false", "core.splitIndex=false", "core.quotePath=false",
	"gc.auto=0", "maintenance.auto=false", "color.ui=false", "advice.addEmbeddedRepo=false",
	"submodule.recurse=false", "fetch.recurseSubmodules=false", "branch.autoSetupMerge=false",
	"worktree.guessRemote=false", "checkout.workers=0",
	// By itself git leaves new references and objects to the kernel, and a power cut leaves empty files in their places.
	"core.fsync=committed",
}

// kept are the variables of git's own that a person may have set for the whole machine. All others, such as GIT_DIR or
// GIT_INDEX_FILE of a hook that we may have been started from, would lead git elsewhere.
var kept = []string{
	"GIT_SSH", "GIT_SSH_VARIANT", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_ATTR_NOSYSTEM",
	"GIT_EXEC_PATH", "GIT_PROXY_COMMAND", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_SSL_CERT", "GIT_SSL_KEY",
	"GIT_SSL_NO_VERIFY", "GIT_HTTP_USER_AGENT",
}

// environment returns env as git gets it.
func environment(env []string, extra ...string) []string {
	var out []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case strings.HasPrefix(name, "GIT_") && !slices.Contains(kept, name):
		case strings.HasPrefix(name, "LC_"), name == "LANGUAGE", name == "SSH_ASKPASS", name == "SSH_ASKPASS_REQUIRE":
		default:
			out = append(out, kv)
		}
	}
	out = append(out, "LC_ALL=C", "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=", "SSH_ASKPASS_REQUIRE=never",
		"GIT_OPTIONAL_LOCKS=0", "GIT_EDITOR=false", "GIT_PAGER=cat", "GIT_LITERAL_PATHSPECS=1",
		// Saved states are commits, and need an author where the machine has none.
		"GIT_AUTHOR_NAME=Gaia", "GIT_AUTHOR_EMAIL=gaia@localhost", "GIT_COMMITTER_NAME=Gaia", "GIT_COMMITTER_EMAIL=gaia@localhost")
	return append(out, extra...)
}

// call is one place and manner of calling git.
type call struct {
	dir    string
	env    []string      // added to the environment
	config []string      // added to the settings, as name=value
	stdin  []byte        // fed to git
	limit  time.Duration // 0: quick
	hold   []*os.File    // locks that are to last until git has ended, should this process die before it
	idle   bool          // whatever else the machine has to do comes first
}

// gitError is a call of git that failed.
type gitError struct {
	args   []string
	stderr string
	code   int // exit status, -1 where there is none
	err    error
}

func (e *gitError) Error() string {
	text := strings.TrimSpace(e.stderr)
	if text == "" {
		text = e.err.Error()
	} else if e.code < 0 {
		text = e.err.Error() + ": " + text
	}
	return "git " + e.args[0] + ": " + text
}

func (e *gitError) Unwrap() error { return e.err }

// exitCode returns the exit status of a failed call of git, or -1.
func exitCode(err error) int {
	var g *gitError
	if errors.As(err, &g) {
		return g.code
	}
	return -1
}

func stderrOf(err error) string {
	var g *gitError
	if errors.As(err, &g) {
		return g.stderr
	}
	return ""
}

// run calls git and returns what it wrote to its standard output. At the deadline git and all that it started are
// asked to end, so that they remove their lock files, and killed two seconds later.
func (c call) run(ctx context.Context, args ...string) ([]byte, error) {
	limit := c.limit
	if limit == 0 {
		limit = quick
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done within %s", limit))
	defer cancel()
	var argv []string
	for _, s := range append(slices.Clone(settings), c.config...) {
		argv = append(argv, "-c", s)
	}
	cmd := exec.CommandContext(ctx, "git", append(argv, args...)...)
	cmd.Dir = c.dir
	cmd.Env = environment(os.Environ(), c.env...)
	cmd.Stdin = bytes.NewReader(c.stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.ExtraFiles = c.hold
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 4 * time.Second
	var kill *time.Timer
	cmd.Cancel = func() error {
		group := -cmd.Process.Pid
		kill = time.AfterFunc(2*time.Second, func() { _ = syscall.Kill(group, syscall.SIGKILL) })
		return syscall.Kill(group, syscall.SIGTERM)
	}
	err := cmd.Start()
	if err == nil {
		if c.idle {
			_ = unix.Setpriority(unix.PRIO_PGRP, cmd.Process.Pid, 19)
		}
		err = cmd.Wait()
	}
	if kill != nil && kill.Stop() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if err == nil {
		return stdout.Bytes(), nil
	}
	code := -1
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		code = exit.ExitCode()
	}
	if cause := context.Cause(ctx); cause != nil {
		err, code = cause, -1
	}
	return stdout.Bytes(), &gitError{args: args, stderr: tail(stderr.String(), 4096), code: code, err: err}
}

// line calls git and returns its output without the last newline.
func (c call) line(ctx context.Context, args ...string) (string, error) {
	out, err := c.run(ctx, args...)
	return strings.TrimSuffix(string(out), "\n"), err
}

// is calls git for a yes (exit status 0) or no (exit status 1).
func (c call) is(ctx context.Context, args ...string) (bool, error) {
	_, err := c.run(ctx, args...)
	if err != nil && exitCode(err) == 1 {
		return false, nil
	}
	return err == nil, err
}

// commit returns the commit that rev names, or "" if there is none.
func (c call) commit(ctx context.Context, rev string) (string, error) {
	sha, err := c.line(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", rev+"^{commit}")
	if err != nil && exitCode(err) == 1 {
		return "", nil
	}
	return sha, err
}

// GitDir returns the absolute git directory of the work tree dir: for a worktree, the one of its own.
func GitDir(ctx context.Context, dir string) (string, error) {
	if to := gitFile(dir); Plain(dir, to) {
		if real, err := filepath.EvalSymlinks(to); err == nil && real == to {
			return to, nil
		}
	}
	out, err := call{dir: dir}.line(ctx, "rev-parse", "--absolute-git-dir")
	if err != nil {
		return "", fmt.Errorf("find the git directory of %s: %w", dir, err)
	}
	return filepath.Clean(out), nil
}

func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return "…" + strings.ToValidUTF8(s[len(s)-n:], "")
}

// quote returns s as one word of a shell command that a person can paste.
func quote(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:@%,", r))
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// short returns the first 12 digits of a commit.
func short(sha string) string { return sha[:min(len(sha), 12)] }
