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

// HookLogs returns the names of the files in the run folder that hold a hook's output: the latest of it, and what came
// before where that was too much for one file.
func HookLogs(name string) (older, newer string) {
	newer = "hook-" + name + ".log"
	return newer + ".1", newer
}

// runHook runs one hook in the worktree: its script is the checkout's own, and values reach it by environment only. When
// the time is over, or ctx ends, everything that it has started in its process group is killed.
func runHook(ctx context.Context, folder session.Folder, tree session.TreeFile, env map[string]string, name string, h domain.Hook) error {
	timeout := h.Timeout
	if timeout <= 0 {
		timeout = domain.DefaultHookTimeout
	}
	hctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, log := HookLogs(name)
	out, err := openRotating(folder.Path(log))
	if err != nil {
		return &hookError{name: name, err: err}
	}
	env = maps.Clone(env)
	env["GAIA_HOOK"] = name
	env["GAIA_WORKTREE"] = tree.Path
	env["GAIA_BRANCH"] = tree.Branch
	env["GAIA_BASE"] = tree.Base
	env["TERM"] = "dumb"
	cmd := exec.CommandContext(hctx, "/bin/sh", "-c", h.Script)
	cmd.Dir, cmd.Env = tree.Path, environ(env)
	killGroup(cmd)
	err = runInto(cmd, out)
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
	older, newer := HookLogs(name)
	// The newer file may have begun with the end of the last line.
	last := lastLine(slices.Concat(ending(folder.Path(older)), ending(folder.Path(newer))))
	if last == "" {
		return "; it printed nothing"
	}
	return fmt.Sprintf("; its last words: %s (all of them: %s)", last, folder.Path(newer))
}

// ending is the end of a file, of which nothing is known where it cannot be read.
func ending(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil
	}
	buf := make([]byte, min(st.Size(), noteBytes))
	n, _ := f.ReadAt(buf, st.Size()-int64(len(buf)))
	return buf[:n]
}

// maxWords bounds what is told of a hook's last line, in bytes: it becomes part of a note. It is looked for in the last
// noteBytes of the output.
const (
	maxWords  = 300
	noteBytes = 2 * maxWords
)

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
	var out latest
	err := runInto(cmd, &out)
	switch {
	case err == nil:
		return nil
	case hctx.Err() != nil && ctx.Err() == nil:
		return fmt.Errorf("it took longer than %s and was killed; its last words: %s", timeout, out.words())
	}
	return fmt.Errorf("%w; its last words: %s", err, out.words())
}
