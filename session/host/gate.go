package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gaia/domain"
	"gaia/session"
)

// fileExec is how Exec and Host see each other. It is there, and locked by Exec, from the moment that the pane has come up;
// the lock goes when Exec has become the agent or has died, and an agentError in the file says why it died.
const fileExec = "exec"

const gatePoll = 2 * time.Millisecond

// gate keeps the pane from becoming the agent until the host lets it: it is an exclusive lock on the start mark, which
// the kernel takes back if the host dies.
type gate struct{ f *os.File }

func closeGate(folder session.Folder) (*gate, error) {
	f, err := os.Open(folder.Path(session.FileStarted))
	if err != nil {
		return nil, fmt.Errorf("opening the start mark: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("locking the start mark: %w", err), f.Close())
	}
	return &gate{f}, nil
}

// open lets the pane in.
func (g *gate) open(folder session.Folder) error {
	if err := folder.MarkBegun(domain.At(time.Now())); err != nil {
		return err
	}
	g.close()
	return nil
}

// close gives the lock back. The pane is not let in by that alone.
func (g *gate) close() { _ = g.f.Close() } // a second time is no harm

// errNotLetIn: the run ended before the pane could become the agent.
var errNotLetIn = errors.New("the run ended before its agent was started, while its worktree was made or its hooks ran")

// passGate waits until the host lets the pane go on, which may be as long as worktree and hooks take.
func passGate(folder session.Folder) error {
	f, err := os.Open(folder.Path(session.FileStarted))
	if err != nil {
		return fmt.Errorf("no host has started this run: %w", err)
	}
	defer f.Close()
	for {
		// The kernel wakes this process at once; to ask again and again would cost every waiting run some of the machine.
		err := unix.Flock(int(f.Fd()), unix.LOCK_SH)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		_, err = os.Lstat(folder.Path(session.FileGate))
		if errors.Is(err, fs.ErrNotExist) {
			return errNotLetIn
		}
		if err != nil {
			return fmt.Errorf("looking whether the agent may start: %w", err)
		}
		return nil
	}
}

func lock(ctx context.Context, f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil || !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(gatePoll):
		}
	}
}

// announce makes the file by which the host sees this process. The file is locked before it has its name. It is made
// only once, so that a second agent in the same tree is refused.
func announce(folder session.Folder) (*os.File, error) {
	f, err := os.CreateTemp(string(folder), "."+fileExec+"-")
	if err != nil {
		return nil, fmt.Errorf("announcing the pane: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	err = errors.Join(err, os.Link(f.Name(), folder.Path(fileExec)), os.Remove(f.Name()))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("announcing the pane: %w", err), f.Close())
	}
	return f, nil
}

// errEnded: the pane's process ended without a word.
var errEnded = errors.New("the pane's process ended before it became the agent")

// awaitPane waits until the pane has come up and stands before the gate.
func awaitPane(ctx context.Context, folder session.Folder, ended <-chan struct{}) (*os.File, error) {
	for {
		f, err := os.Open(folder.Path(fileExec))
		if err == nil || !errors.Is(err, os.ErrNotExist) {
			return f, err
		}
		select {
		case <-ended:
			return nil, errEnded
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(gatePoll):
		}
	}
}

// awaitAgent waits until the process behind f has become the agent, and returns why it did not.
func awaitAgent(ctx context.Context, f *os.File) error {
	if err := lock(ctx, f, unix.LOCK_SH); err != nil {
		return fmt.Errorf("waiting for the agent's program: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return fmt.Errorf("reading why the agent did not start: %w", err)
	}
	if len(data) == 0 {
		return nil
	}
	var e agentError
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf("reading why the agent did not start: %w", err)
	}
	return &e
}

// agentError is why the pane did not become the agent, as Exec tells the host.
type agentError struct {
	Cause string `json:"cause"` // session.CauseTree or session.CauseStart
	Text  string `json:"text"`
}

func (e *agentError) Error() string { return e.Text }
