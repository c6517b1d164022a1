package host

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"gaia/session"
)

// outputLimit bounds the file of what the pane printed. A program that redraws its screen writes without end; when the
// file is full it becomes the older of two.
const outputLimit = 8 << 20

// output takes what the pane prints and keeps the latest of it in the run folder.
type output struct {
	r, w  *os.File
	file  *rotating
	ended chan struct{}
}

func openOutput(folder session.Folder) (*output, error) {
	file := &rotating{path: folder.Path(session.FileOutput), limit: outputLimit}
	if err := file.open(); err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening the pane's pipe: %w", err), file.Close())
	}
	o := &output{r: r, w: w, file: file, ended: make(chan struct{})}
	go func() {
		defer close(o.ended)
		// A file that cannot be written (a full disk) must not stop the agent, so the rest is read and dropped.
		if _, err := io.Copy(file, r); err != nil {
			_, _ = io.Copy(io.Discard, r)
		}
	}()
	return o, nil
}

// Close returns when everything that was printed is in the file, which is soon after the end of the tmux server.
func (o *output) Close() error {
	err := o.w.Close()
	_ = o.r.SetReadDeadline(time.Now().Add(2 * time.Second)) // a process of the agent's may hold the pipe open
	<-o.ended
	return errors.Join(err, o.r.Close(), o.file.Close())
}

// rotating is a file that is moved to path.1 when it has reached its limit.
type rotating struct {
	path  string
	limit int64
	f     *os.File
	size  int64

	written atomic.Int64 // to all files
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
