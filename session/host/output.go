package host

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"gaia/session"
)

// outputLimit bounds a file of what the pane or a hook printed. A program that redraws its screen writes without end; when
// the file is full it becomes the older of two.
const outputLimit = 8 << 20

// output takes what the pane prints and keeps the latest of it in the run folder.
type output struct {
	*pipe
	file *rotating
}

func openOutput(folder session.Folder) (*output, error) {
	file, err := openRotating(folder.Path(session.FileOutput))
	if err != nil {
		return nil, err
	}
	p, err := openPipe(file)
	if err != nil {
		return nil, err
	}
	return &output{pipe: p, file: file}, nil
}

// pipe takes what programs print to where it is kept.
type pipe struct {
	r, w  *os.File
	to    io.WriteCloser
	ended chan struct{} // closed when nothing is read any more
}

// openPipe reads until Close, which closes to as well.
func openPipe(to io.WriteCloser) (*pipe, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening the pipe for what is printed: %w", err), to.Close())
	}
	p := &pipe{r: r, w: w, to: to, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		p.copy()
	}()
	return p, nil
}

// copy reads until nobody can print any more, or the time for it is over.
func (p *pipe) copy() {
	// A file that cannot be written (a full disk) must not stop who prints, so the rest is read and dropped.
	if _, err := io.Copy(p.to, p.r); err != nil {
		_, _ = io.Copy(io.Discard, p.r)
	}
}

// Close returns when everything that was printed is in the file, which is soon after the end of the tmux server.
func (p *pipe) Close() error {
	err := p.w.Close()
	_ = p.r.SetReadDeadline(time.Now().Add(2 * time.Second)) // a process of the agent's may hold the pipe open
	<-p.ended
	return errors.Join(err, p.r.Close(), p.to.Close())
}

// leave returns when everything that was printed up to now is in the file, and waits for nobody who may still print: what
// they print is read until the last of them has ended, for whoever prints into a pipe that nobody reads is killed by it.
func (p *pipe) leave() {
	_ = p.w.Close()
	_ = p.r.SetReadDeadline(time.Now())
	<-p.ended
	_ = p.r.SetReadDeadline(time.Time{})
	p.copyPrinted()
	go func() {
		p.copy()
		_, _ = p.r.Close(), p.to.Close()
	}()
}

// copyPrinted copies what is in the pipe and no more, so that it need not wait. Nobody else may read meanwhile.
func (p *pipe) copyPrinted() {
	raw, err := p.r.SyscallConn()
	if err != nil {
		return
	}
	n := 0
	if err := raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err == nil {
		_, _ = io.CopyN(p.to, p.r, int64(n)) // what cannot be written is dropped
	}
}

// runInto runs a command whose output goes to to. It returns at the command's end, with what was printed by then in to,
// and does not wait for what the command has left in the background, which goes on printing.
func runInto(cmd *exec.Cmd, to io.WriteCloser) error {
	p, err := openPipe(to)
	if err != nil {
		return err
	}
	defer p.leave()
	cmd.Stdout, cmd.Stderr = p.w, p.w
	return cmd.Run()
}

// latest holds the last of what is printed, for a note.
type latest struct {
	mu   sync.Mutex
	text []byte
}

func (l *latest) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	l.text = slices.Delete(l.text, 0, max(0, len(l.text)-noteBytes))
	return len(p), nil
}

func (l *latest) Close() error { return nil }

// words is the last line.
func (l *latest) words() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return lastLine(l.text)
}

// rotating is a file that is moved to path.1 when it has reached its limit.
type rotating struct {
	path  string
	limit int64
	f     *os.File
	size  int64

	written atomic.Int64 // to all files
}

func openRotating(path string) (*rotating, error) {
	r := &rotating{path: path, limit: outputLimit}
	if err := r.open(); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *rotating) open() error {
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("opening the run's output: %w", err)
	}
	r.f, r.size = f, 0
	return nil
}

// Write writes p whole to one file.
func (r *rotating) Write(p []byte) (int, error) {
	if r.size > 0 && r.size+int64(len(p)) > r.limit {
		if err := errors.Join(r.f.Close(), os.Rename(r.path, r.path+".1")); err != nil {
			return 0, fmt.Errorf("rotating the run's output: %w", err)
		}
		if err := r.open(); err != nil {
			return 0, err
		}
	}
	n, err := r.f.Write(p)
	r.size += int64(n)
	r.written.Add(int64(n))
	return n, err
}

// Close closes the file.
func (r *rotating) Close() error { return r.f.Close() }
