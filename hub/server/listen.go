package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"
)

// listeners are the open sockets of a hub.
type listeners struct {
	all   []net.Listener
	locks []*flock.Flock
}

func (ls *listeners) String() string {
	var out []string
	for _, l := range ls.all {
		out = append(out, l.Addr().Network()+"://"+l.Addr().String())
	}
	return strings.Join(out, ", ")
}

// close closes what serving has not closed, and gives sockets free.
func (ls *listeners) close() {
	for _, l := range ls.all {
		_ = l.Close() // closed by the server already, as a rule
	}
	for _, lock := range ls.locks {
		_ = lock.Close() // the process ends; so does the lock
	}
}

// listen opens the sockets that were not inherited.
func listen(want []string, inherited []net.Listener) (_ *listeners, err error) {
	ls := &listeners{}
	defer func() {
		if err != nil {
			ls.close()
		}
	}()
	var have []string
	for _, l := range inherited {
		if l != nil { // a hole is something that is no stream socket
			have = append(have, l.Addr().Network()+"://"+l.Addr().String())
			ls.all = append(ls.all, l)
		}
	}
	for _, addr := range want {
		if slices.Contains(have, addr) {
			continue
		}
		network, rest, _ := strings.Cut(addr, "://")
		var l net.Listener
		if network == "unix" {
			l, err = ls.listenUnix(rest)
		} else {
			l, err = listenTCP(rest)
		}
		if err != nil {
			return ls, err
		}
		ls.all = append(ls.all, l)
	}
	if len(ls.all) == 0 {
		return ls, fmt.Errorf("%w: there is nothing to listen on: XDG_RUNTIME_DIR is not set, and hub.toml names no listener", ErrConfig)
	}
	return ls, nil
}

// listenUnix opens a socket that only its owner may use. One that a dead hub left is replaced, one that a live hub
// serves never is; a lock beside it keeps two that start at once from taking each other for dead.
func (ls *listeners) listenUnix(path string) (net.Listener, error) {
	if len(path) > 107 {
		return nil, fmt.Errorf("%w: the socket's path %s has %d bytes, and at most 107 are possible", ErrConfig, path, len(path))
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the socket: %w", err)
	}
	lock := flock.New(path + ".lock")
	if ok, err := lock.TryLock(); err != nil {
		return nil, fmt.Errorf("lock the socket: %w", err)
	} else if !ok {
		return nil, inUse(path)
	}
	ls.locks = append(ls.locks, lock)
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("look at the socket: %w", err)
	case st.Mode().Type() != os.ModeSocket:
		return nil, fmt.Errorf("%w: %s is there already and is no socket; it is left as it is", ErrConfig, path)
	default:
		c, err := net.DialTimeout("unix", path, 2*time.Second)
		if err == nil {
			_ = c.Close()
			return nil, inUse(path)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("cannot tell whether a hub serves %s: %w", path, err)
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("remove the socket that a dead hub left: %w", err)
		}
	}
	old := unix.Umask(0o177)
	l, err := net.Listen("unix", path)
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

func inUse(path string) error {
	return fmt.Errorf("another hub, or its socket unit, serves %s already (gaia hub status)", path)
}

// listenTCP opens a port of the loopback interface. Tokens would cross any other network in the clear.
func listenTCP(addr string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("%w: listen: %w", ErrConfig, err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("%w: tcp://%s is open to the network, where tokens would travel in the clear: listen on 127.0.0.1 and put a TLS proxy before it", ErrConfig, addr)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}
