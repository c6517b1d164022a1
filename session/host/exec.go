package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gaia/session"
	"gaia/workspace"
)

const (
	// execTimeout bounds what Exec does once the host lets it go on: the checks of the tree.
	execTimeout = time.Minute
	// silence is how long the pane stays empty before it says what it waits for.
	silence = time.Second
)

// Exec makes the calling process, which is the pane's, the agent of the run. It returns only if that is not possible, with
// the status to exit with; why stands on the screen and is told to the host.
func Exec(folder session.Folder, stderr io.Writer) int {
	f, err := announce(folder)
	if err != nil {
		fmt.Fprintln(stderr, "gaia-session exec:", err)
		return ExitNoAgent
	}
	err = become(folder)
	fmt.Fprintln(stderr, complaint(folder, err))
	told := agentError{Cause: session.CauseStart, Text: err.Error()}
	var tree *treeError
	if errors.As(err, &tree) {
		told.Cause = session.CauseTree
	}
	_ = json.NewEncoder(f).Encode(told) // if that fails, the host sees the pane end
	_ = f.Close()
	return ExitNoAgent
}

// complaint is what the pane says instead of becoming the agent.
func complaint(folder session.Folder, err error) string {
	spec, specErr := folder.Load()
	if specErr != nil || !errors.Is(err, errNotLetIn) {
		return "gaia-session exec: " + err.Error()
	}
	return fmt.Sprintf("No agent runs here: %v; gaia run show %s/%d says why.", errNotLetIn, spec.Project, spec.Number)
}

func become(folder session.Folder) error {
	if err := stand(folder, os.Stdin, os.Stdout); err != nil {
		return fmt.Errorf("waiting for the host: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), execTimeout)
	defer cancel()
	tree, err := folder.Tree()
	if err != nil {
		return err
	}
	env, err := folder.Env()
	if err != nil {
		return err
	}
	if len(tree.Argv) == 0 || !filepath.IsAbs(tree.Argv[0]) {
		return fmt.Errorf("the agent's program %q has no absolute path", tree.Argv)
	}
	if err := enter(ctx, tree, env); err != nil {
		return &treeError{err}
	}
	if term := os.Getenv("TERM"); term != "" { // tmux knows what its terminal is, nobody else does
		env["TERM"] = term
	}
	if err := syscall.Exec(tree.Argv[0], tree.Argv, environ(env)); err != nil {
		return fmt.Errorf("starting %s: %w", tree.Argv[0], err)
	}
	return nil
}

// stand waits at the gate. A person may be attached meanwhile: the pane says what it waits for, keys that would end or stop
// it do not, and nothing that was typed reaches the agent, which would take it for an answer.
func stand(folder session.Folder, in, out *os.File) error {
	keys := make(chan os.Signal, 1)
	signal.Notify(keys, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTSTP) // execve gives them their ordinary meaning again
	defer neverStopped(in)()
	said := make(chan bool, 1)
	note := time.AfterFunc(silence, func() {
		fmt.Fprintln(out, "The agent starts here as soon as its worktree is ready and the hooks are done.")
		said <- true
	})
	if err := passGate(folder); err != nil {
		return err
	}
	if !note.Stop() && <-said {
		fmt.Fprint(out, "\x1b[H\x1b[2J\x1b[3J")
	}
	_ = unix.IoctlSetInt(int(in.Fd()), unix.TCFLSH, unix.TCIFLUSH) // where it is no terminal, nothing was typed
	return nil
}

// neverStopped keeps the key that stops a terminal's output (Ctrl-S) from doing so, and lets go on what it has stopped. The
// agent would wait at its first word for a key that nobody knows of. The returned function gives the key its meaning back.
func neverStopped(terminal *os.File) func() {
	fd := int(terminal.Fd())
	was, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil { // no terminal
		return func() {}
	}
	flowing := *was
	flowing.Iflag &^= unix.IXON
	_ = unix.IoctlSetTermios(fd, unix.TCSETS, &flowing)
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, was) }
}

// treeError is a worktree that is not what the conductor said.
type treeError struct{ err error }

func (e *treeError) Error() string { return e.err.Error() }
func (e *treeError) Unwrap() error { return e.err }

func environ(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return out
}

// enter changes to the worktree and makes sure that it is one: an agent in the wrong folder works on somebody's own files.
func enter(ctx context.Context, tree session.TreeFile, env map[string]string) error {
	want, err := filepath.EvalSymlinks(tree.Path)
	if err != nil {
		return fmt.Errorf("entering the worktree: %w", err)
	}
	if err := os.Chdir(want); err != nil {
		return fmt.Errorf("entering the worktree: %w", err)
	}
	own, err := filepath.EvalSymlinks(tree.GitDir)
	if err != nil {
		return fmt.Errorf("looking for the worktree's git directory: %w", err)
	}
	if !workspace.Plain(want, own) { // else git would say the same
		if err := belongs(ctx, env, want, own); err != nil {
			return err
		}
	}
	// The tree's own branch counts, not the one that is checked out: an agent may have left another one there, or an
	// unfinished rebase, which the prompt tells the next agent of.
	marker, err := workspace.ReadMarker(own)
	if err != nil {
		return fmt.Errorf("the worktree %s is not complete: %w", want, err)
	}
	if marker.Branch != tree.Branch {
		return fmt.Errorf("the worktree %s is that of the branch %s (%s), not of %s", want, marker.Branch, marker.Identifier, tree.Branch)
	}
	return nil
}

// belongs asks git whether the working directory is the worktree of a git directory.
func belongs(ctx context.Context, env map[string]string, want, own string) error {
	top, err := git(ctx, env, "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	if top != want {
		return fmt.Errorf("%s is not a worktree of its own: git takes it for a part of %s", want, top)
	}
	dir, err := git(ctx, env, "rev-parse", "--absolute-git-dir")
	if err != nil {
		return err
	}
	if dir != own {
		return fmt.Errorf("the worktree %s belongs to %s, not to %s", want, dir, own)
	}
	return nil
}

// git asks git about the working directory, with nothing of the environment that could point it elsewhere.
func git(ctx context.Context, env map[string]string, args ...string) (string, error) {
	path, err := lookPath("git", env["PATH"])
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{"PATH=" + env["PATH"], "HOME=" + env["HOME"], "LC_ALL=C.UTF-8", "GIT_OPTIONAL_LOCKS=0", "GIT_TERMINAL_PROMPT=0"}
	killGroup(cmd)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// lookPath finds a program in the run's PATH, which is not that of this process.
func lookPath(name, path string) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		if p := filepath.Join(dir, name); filepath.IsAbs(p) {
			if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
				return p, nil
			}
		}
	}
	return "", fmt.Errorf("%s is not in the run's PATH (%s)", name, path)
}

// killGroup makes the end of a command's context end everything that the command started.
func killGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
}
