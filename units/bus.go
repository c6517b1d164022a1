package units

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	systemdName  = "org.freedesktop.systemd1"
	systemdPath  = dbus.ObjectPath("/org/freedesktop/systemd1")
	unitPath     = systemdPath + "/unit/"
	managerIface = "org.freedesktop.systemd1.Manager"
	unitIface    = "org.freedesktop.systemd1.Unit"
	busName      = "org.freedesktop.DBus"
	propsIface   = "org.freedesktop.DBus.Properties"

	dialTimeout = 10 * time.Second
	// connectTimeout bounds a whole connection: the bus, the manager's own socket where that is silent, the first questions.
	connectTimeout = 3 * dialTimeout
	// callTimeout bounds every call that does not wait for a job. A daemon-reload of a machine with many units takes seconds.
	callTimeout = 60 * time.Second
)

// link is one authenticated connection: to the user bus, or (direct) straight to the manager, which speaks D-Bus
// without Hello, names and matches and sends every signal to everyone.
type link struct {
	*dbus.Conn
	direct bool
}

// dialUser connects to the user manager: by the user bus where the manager is on it, else by its private socket, which
// also works where no bus daemon runs. signals may be nil.
func dialUser(ctx context.Context, runtimeDir string, signals dbus.SignalHandler) (*link, error) {
	if runtimeDir == "" {
		return nil, errors.New("cannot connect to the user manager: XDG_RUNTIME_DIR is not set; log in with a real session (ssh, machinectl shell), or: loginctl enable-linger")
	}
	l, busErr := dialBus(ctx, filepath.Join(runtimeDir, "bus"), signals)
	if busErr == nil {
		owned := false
		busErr = l.BusObject().CallWithContext(ctx, busName+".NameHasOwner", 0, systemdName).Store(&owned)
		if busErr == nil && owned {
			return l, nil
		}
		if busErr == nil {
			busErr = errors.New("the user manager is not on this bus")
		}
		_ = l.Close()
	}
	l, err := dialDirect(ctx, filepath.Join(runtimeDir, "systemd", "private"), signals)
	if err == nil {
		return l, nil
	}
	if errors.Is(busErr, fs.ErrNotExist) && errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no user manager of systemd is running for %s (neither bus nor systemd/private is there); start it with: loginctl enable-linger", runtimeDir)
	}
	return nil, fmt.Errorf("cannot connect to the user manager in %s: %w", runtimeDir, errors.Join(busErr, err))
}

// CheckBus returns an error unless the user's bus answers and the user manager is on it: without it the manager is still
// reached, but a conductor has no place for its object.
func CheckBus(ctx context.Context, runtimeDir string) error {
	l, err := dialBus(ctx, filepath.Join(runtimeDir, "bus"), nil)
	if err != nil {
		return err
	}
	defer l.Close()
	owned := false
	if err := l.BusObject().CallWithContext(ctx, busName+".NameHasOwner", 0, systemdName).Store(&owned); err != nil {
		return fmt.Errorf("ask the user bus: %w", err)
	}
	if !owned {
		return errors.New("the user manager is not on the user bus")
	}
	return nil
}

// dialBus connects to a bus daemon's socket and says Hello.
func dialBus(ctx context.Context, socket string, signals dbus.SignalHandler) (*link, error) {
	conn, err := dialSocket(ctx, socket, signals)
	if err != nil {
		return nil, err
	}
	if err := conn.BusObject().CallWithContext(ctx, busName+".Hello", 0).Err; err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("greet %s: %w", socket, err)
	}
	return &link{Conn: conn}, nil
}

// dialDirect connects to the manager's own socket. When the first message arrives together with the end of the
// authentication, the manager (252 at least) reads both at once and looks at the message only when more data arrives. So
// it is pinged until it answers.
func dialDirect(ctx context.Context, socket string, signals dbus.SignalHandler) (*link, error) {
	conn, err := dialSocket(ctx, socket, signals)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	// Each time it is waited for longer: on a busy machine the answer itself takes a while.
	for wait := 100 * time.Millisecond; ; wait *= 2 {
		again, stop := context.WithTimeout(ctx, wait)
		err := conn.Object(systemdName, systemdPath).CallWithContext(again, "org.freedesktop.DBus.Peer.Ping", 0).Err
		stop()
		if err == nil {
			return &link{Conn: conn, direct: true}, nil
		}
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			_ = conn.Close()
			return nil, fmt.Errorf("greet %s: %w", socket, err)
		}
	}
}

// dialSocket connects and authenticates, and gives up with the context: the library's own steps know no deadline. It is
// never asked for "the session bus", since it would start a bus by dbus-launch where there is none.
func dialSocket(ctx context.Context, socket string, signals dbus.SignalHandler) (*dbus.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if _, err := os.Stat(socket); err != nil {
		return nil, err
	}
	var opts []dbus.ConnOption
	if signals != nil {
		opts = append(opts, dbus.WithSignalHandler(signals))
	}
	conn, err := dbus.Dial("unix:path="+dbus.EscapeBusAddressValue(socket), opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", socket, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	// The uid as a number: no look-up of a name that may hang on a directory service.
	err = conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Getuid()))})
	if !stop() {
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("authenticate on %s: %w", socket, err)
	}
	return conn, nil
}

// call invokes a method of the manager under callTimeout.
func (l *link) call(ctx context.Context, method string, args ...any) *dbus.Call {
	return l.callOn(ctx, systemdPath, managerIface+"."+method, args...)
}

func (l *link) callOn(ctx context.Context, path dbus.ObjectPath, method string, args ...any) *dbus.Call {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return l.Object(systemdName, path).CallWithContext(ctx, method, dbus.FlagNoAutoStart, args...)
}

// match asks the bus for signals. A direct connection gets them all unasked.
func (l *link) match(ctx context.Context, opts ...dbus.MatchOption) error {
	if l.direct {
		return nil
	}
	return l.AddMatchSignalContext(ctx, opts...)
}

// errName returns the D-Bus name of an error that the other side returned, or "".
func errName(err error) string {
	var e dbus.Error
	if errors.As(err, &e) {
		return e.Name
	}
	return ""
}
