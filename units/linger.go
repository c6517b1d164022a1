package units

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

// Logind is where logind is asked.
type Logind struct {
	Socket string // of the system bus
	Folder string // in which logind keeps its answer, for where it is not running
}

var (
	// ErrNoLogind is the cause where this machine has no logind that answers: a container, mostly, or another init.
	ErrNoLogind = errors.New("logind does not answer")
	// ErrLingerRefused is the cause where logind has refused to set linger: polkit leaves it to administrators here.
	ErrLingerRefused = errors.New("it is left to administrators on this machine")
)

// SystemLogind is the machine's own, on the system bus at address as DBUS_SYSTEM_BUS_ADDRESS has it; "" is the usual one.
func SystemLogind(address string) Logind {
	l := Logind{Socket: "/run/dbus/system_bus_socket", Folder: "/var/lib/systemd/linger"}
	for _, a := range strings.Split(address, ";") {
		kind, rest, _ := strings.Cut(a, ":")
		for _, kv := range strings.Split(rest, ",") {
			if path, ok := strings.CutPrefix(kv, "path="); ok && kind == "unix" {
				if path, err := dbus.UnescapeBusAddressValue(path); err == nil {
					l.Socket = path
					return l
				}
			}
		}
	}
	return l
}

// Linger reports whether the user's manager, and with it every agent, outlives the user's last log-out. It is an error
// if that cannot be known: to guess yes would lose work, to guess no would cry wolf.
func (g Logind) Linger(ctx context.Context, uid int) (bool, error) {
	on, busErr := g.ask(ctx, uid)
	if busErr == nil {
		return on, nil
	}
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return false, fmt.Errorf("is linger on for uid %d: %w", uid, errors.Join(busErr, err))
	}
	_, err = os.Stat(filepath.Join(g.Folder, u.Username))
	if err == nil {
		return true, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		if _, err = os.Stat(g.Folder); err == nil {
			return false, nil
		}
		if errName(busErr) == login1+".NoSuchUser" {
			return false, nil // logind is there and holds neither a session nor a manager for the user
		}
	}
	return false, fmt.Errorf("is linger on for %s: %w; %w; see: loginctl show-user %s --property=Linger", u.Username, busErr, err, u.Username)
}

// The names of logind on the bus.
const (
	login1     = "org.freedesktop.login1"
	login1Path = dbus.ObjectPath("/org/freedesktop/login1")
)

func (g Logind) ask(ctx context.Context, uid int) (bool, error) {
	l, err := g.dial(ctx)
	if err != nil {
		return false, err
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var path dbus.ObjectPath
	if err := l.Object(login1, login1Path).CallWithContext(ctx, login1+".Manager.GetUser", 0, uint32(uid)).Store(&path); err != nil {
		return false, fmt.Errorf("ask logind for uid %d: %w", uid, absent(err))
	}
	var v dbus.Variant
	if err := l.Object(login1, path).CallWithContext(ctx, propsIface+".Get", 0, login1+".User", "Linger").Store(&v); err != nil {
		return false, fmt.Errorf("ask logind for linger of uid %d: %w", uid, err)
	}
	on, ok := v.Value().(bool)
	if !ok {
		return false, fmt.Errorf("logind's Linger of uid %d is %s", uid, v)
	}
	return on, nil
}

// lingerTimeout bounds the setting of linger. A person may have to type a password meanwhile.
const lingerTimeout = 2 * time.Minute

// EnableLinger lets the user's manager outlive the last log-out and start at boot. interactive allows polkit to ask the
// person, where a desktop is there that can. See ErrNoLogind and ErrLingerRefused.
func (g Logind) EnableLinger(ctx context.Context, uid int, interactive bool) error {
	l, err := g.dial(ctx)
	if err != nil {
		return fmt.Errorf("set linger: %w", err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(ctx, lingerTimeout)
	defer cancel()
	var flags dbus.Flags
	if interactive {
		flags = dbus.FlagAllowInteractiveAuthorization
	}
	err = l.Object(login1, login1Path).CallWithContext(ctx, login1+".Manager.SetUserLinger", flags, uint32(uid), true, interactive).Err
	switch errName(err) {
	case busName + ".Error.AccessDenied", busName + ".Error.InteractiveAuthorizationRequired", busName + ".Error.AuthFailed",
		"org.freedesktop.PolicyKit1.Error.NotAuthorized", "System.Error.EACCES", "System.Error.EPERM":
		return fmt.Errorf("set linger: %w (%w)", ErrLingerRefused, err)
	}
	if err != nil {
		return fmt.Errorf("set linger: %w", absent(err))
	}
	return nil
}

func (g Logind) dial(ctx context.Context) (*link, error) {
	l, err := dialBus(ctx, g.Socket, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoLogind, err)
	}
	return l, nil
}

// absent says that logind is not there where the bus says so.
func absent(err error) error {
	switch errName(err) {
	case busName + ".Error.ServiceUnknown", busName + ".Error.NameHasNoOwner", busName + ".Error.Disconnected",
		busName + ".Error.NoReply", "org.freedesktop.systemd1.NoSuchUnit":
		return fmt.Errorf("%w: %w", ErrNoLogind, err)
	}
	if strings.HasPrefix(errName(err), busName+".Error.Spawn.") {
		return fmt.Errorf("%w: %w", ErrNoLogind, err)
	}
	return err
}
