package auth

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// soPeerPidFD is SO_PEERPIDFD (Linux 6.5), which x/sys does not name for every architecture.
const soPeerPidFD = 77

// Peer is the process at the other end of a connection.
type Peer struct {
	// Owner says that it runs with the hub's own uid, outside of every run.
	Owner bool
	// Why says why it is not the owner, for a person.
	Why string
	PID int32
	UID uint32
}

// Identifier tells who connected. It must be asked while the peer waits for its answer: a process that is gone is not
// taken for the owner.
type Identifier struct {
	uid  uint32
	run  *regexp.Regexp
	proc string
}

// NewIdentifier returns an Identifier for a hub of uid whose runs are units named <prefix>-run-….service.
func NewIdentifier(uid int, prefix string) *Identifier {
	return &Identifier{
		uid:  uint32(uid),
		run:  regexp.MustCompile(`^` + regexp.QuoteMeta(prefix) + `-run-.*\.service$`),
		proc: "/proc",
	}
}

// Of looks at the other end of c.
func (id *Identifier) Of(c net.Conn) Peer {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return Peer{Why: "the connection is not on the unix socket"}
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return Peer{Why: "the connection is closed"}
	}
	var (
		cred *unix.Ucred
		fd   = -1
		got  error
	)
	if err := raw.Control(func(s uintptr) {
		if cred, got = unix.GetsockoptUcred(int(s), unix.SOL_SOCKET, unix.SO_PEERCRED); got != nil {
			return
		}
		// The descriptor holds the process that connected, whatever becomes of its number. Older kernels have
		// none; there the number is pinned now. Any other refusal means that the process is gone, and its number may
		// be somebody else's already.
		if fd, got = unix.GetsockoptInt(int(s), unix.SOL_SOCKET, soPeerPidFD); errors.Is(got, unix.ENOPROTOOPT) {
			fd, got = unix.PidfdOpen(int(cred.Pid), 0)
		}
	}); err != nil {
		return Peer{Why: "the connection is closed"}
	}
	if cred == nil {
		return Peer{Why: fmt.Sprintf("the kernel does not say who it is: %v", got)}
	}
	p := Peer{PID: cred.Pid, UID: cred.Uid}
	if p.UID != id.uid {
		p.Why = fmt.Sprintf("it runs as uid %d and the hub as uid %d", p.UID, id.uid)
		return p
	}
	if got != nil {
		p.Why = fmt.Sprintf("process %d is gone: %v", p.PID, got)
		return p
	}
	defer unix.Close(fd)
	if err := id.outside(p.PID); err != nil {
		p.Why = err.Error()
		return p
	}
	// Alive after the file was read: so it was this process's file.
	if gone, err := ended(fd); err != nil || gone {
		p.Why = fmt.Sprintf("process %d is gone", p.PID)
		return p
	}
	p.Owner = true
	return p
}

// outside returns nil if the process is known to run in no run's unit.
func (id *Identifier) outside(pid int32) error {
	f, err := os.Open(fmt.Sprintf("%s/%d/cgroup", id.proc, pid))
	if err != nil {
		return fmt.Errorf("the cgroup of process %d cannot be read: %w", pid, err)
	}
	defer f.Close()
	lines := 0
	s := bufio.NewScanner(f)
	for s.Scan() {
		_, rest, ok := strings.Cut(s.Text(), ":")
		_, cgroup, ok2 := strings.Cut(rest, ":")
		if !ok || !ok2 || !strings.HasPrefix(cgroup, "/") {
			return fmt.Errorf("the cgroup of process %d cannot be understood", pid)
		}
		lines++
		for _, part := range strings.Split(strings.TrimSuffix(cgroup, " (deleted)"), "/") {
			if id.run.MatchString(part) {
				return fmt.Errorf("process %d belongs to the run %s, which has a token of its own", pid, part)
			}
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("the cgroup of process %d cannot be read: %w", pid, err)
	}
	if lines == 0 {
		return fmt.Errorf("the cgroup of process %d cannot be read: it is empty", pid)
	}
	return nil
}

// ended reports whether the process of a pidfd has ended.
func ended(fd int) (bool, error) {
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return n > 0, err
	}
}

type peerKey struct{}

// WithConn is a http.Server's ConnContext: it lets PeerFrom say who is at the other end of the connection. The look
// itself waits for the first request, when the peer is there to be looked at; it is made once for each connection.
func (id *Identifier) WithConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, sync.OnceValue(func() Peer { return id.Of(c) }))
}

// PeerFrom returns the peer of the connection that a request came by.
func PeerFrom(ctx context.Context) Peer {
	if of, ok := ctx.Value(peerKey{}).(func() Peer); ok {
		return of()
	}
	return Peer{Why: "the connection is not on the unix socket"}
}
