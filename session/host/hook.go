package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"

	"gaia/domain"
	"gaia/session"
)

// hookError is a hook that failed.
type hookError struct {
	name string
	exit *int // nil where it did not exit by itself
	err  error
}

func (e *hookError) Error() string { return "the hook " + e.name + " failed: " + e.err.Error() }
func (e *hookError) Unwrap() error { return e.err }

// HookLog returns the name of the file in the run folder that takes a hook's output.
func HookLog(name string) string { return "hook-" + name + ".log" }

// runHook runs one hook in the worktree: its script is the checkout's own, and values reach it by environment only. When
// the time is over, or ctx ends, everything that it has started in its process group is killed.
func runHook(ctx context.Context, folder session.Folder, tree session.TreeFile, env map[string]string, name string, h domain.Hook) error {
	timeout := h.Timeout
	if timeout <= 0 {
		timeout = domain.DefaultHookTimeout
	}
	hctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// A file and no pipe: a server that the hook leaves in the background must neither be waited for nor lose its output.
	out, err := os.OpenFile(folder.Path(HookLog(name)), os.O_CREATE|os.O_WRONLY|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return &hookError{name: name, err: fmt.Errorf("there is no file for its output: %w", err)}
	}
	defer out.Close()
	env = maps.Clone(env)
	env["GAIA_HOOK"] = name
	env["GAIA_WORKTREE"] = tree.Path
	env["GAIA_BRANCH"] = tree.Branch
	env["GAIA_BASE"] = tree.Base
	env["TERM"] = "dumb"
	cmd := exec.CommandContext(hctx, "/bin/sh", "-c", h.Script)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = tree.Path, environ(env), out, out
	killGroup(cmd)
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case hctx.Err() != nil:
		return &hookError{name: name, err: fmt.Errorf("it took longer than %s and was killed%s", timeout, tail(folder, name))}
	case errors.As(err, &exit) && exit.Exited():
		code := exit.ExitCode()
		return &hookError{name: name, exit: &code, err: fmt.Errorf("%w%s", err, tail(folder, name))}
	}
	return &hookError{name: name, err: fmt.Errorf("%w%s", err, tail(folder, name))}
}

// tail tells the last line of a hook's output and where the rest is.
func tail(folder session.Folder, name string) string {
	path := folder.Path(HookLog(name))
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return ""
	}
	buf := make([]byte, min(st.Size(), 2*maxWords))
	n, _ := f.ReadAt(buf, st.Size()-int64(len(buf)))
	last := lastLine(buf[:n])
	if last == "" {
		return "; it printed nothing"
	}
	return fmt.Sprintf("; its last words: %s (all of them: %s)", last, path)
}

// maxWords bounds what is told of a hook's last line, in bytes: it becomes part of a note.
const maxWords = 300

// escapes are the sequences by which programs colour their output and move the cursor.
var escapes = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("\x1b(\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(\x07|\x1b\\\\)?|[ -/]*[0-Z^-~])")
})

// lastLine is the last line of a program's output that says something, without what a terminal would act on.
func lastLine(out []byte) string {
	last := ""
	for l := range strings.FieldsFuncSeq(escapes().ReplaceAllString(strings.ToValidUTF8(string(out), ""), ""), func(r rune) bool { return r == '\n' || r == '\r' }) {
		l = strings.TrimSpace(strings.Map(func(r rune) rune {
			if unicode.IsControl(r) {
				return -1
			}
			return r
		}, l))
		if l != "" {
			last = l
		}
	}
	if n := len(last) - maxWords; n > 0 {
		last = "…" + strings.ToValidUTF8(last[n:], "")
	}
	return last
}

// BeforeRemove runs the hook before_remove in a worktree that is about to be removed. It is no part of a run: env is the
// caller's, and the hook's output is told only where it fails.
func BeforeRemove(ctx context.Context, h domain.Hook, env []string, tree, branch string) error {
	timeout := h.Timeout
	if timeout <= 0 {
		timeout = domain.DefaultHookTimeout
	}
	hctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(hctx, "/bin/sh", "-c", h.Script)
	cmd.Dir = tree
	cmd.Env = append(slices.Clone(env), "GAIA_HOOK="+domain.HookBeforeRemove, "GAIA_WORKTREE="+tree, "GAIA_BRANCH="+branch)
	killGroup(cmd)
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case hctx.Err() != nil && ctx.Err() == nil:
		return fmt.Errorf("it took longer than %s and was killed; its last words: %s", timeout, lastLine(out))
	}
	return fmt.Errorf("%w; its last words: %s", err, lastLine(out))
}
