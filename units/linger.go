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

	"github.com/godbus/dbus/v5"
)

// login is where logind is asked: the system bus, and the folder in which it keeps its answer.
type login struct{ socket, folder string }

// Linger reports whether the user's manager, and with it every agent, outlives the user's last log-out. It is an error
// if that cannot be known: to guess yes would lose work, to guess no would cry wolf.
func Linger(ctx context.Context, uid int) (bool, error) {
	return login{"/run/dbus/system_bus_socket", "/var/lib/systemd/linger"}.linger(ctx, uid)
}

func (g login) linger(ctx context.Context, uid int) (bool, error) {
	on, busErr := g.ask(ctx, uid)
	if busErr == nil {
		return on, nil
	}
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return false, fmt.Errorf("is linger on for uid %d: %w", uid, errors.Join(busErr, err))
	}
	_, err = os.Stat(filepath.Join(g.folder, u.Username))
	if err == nil {
		return true, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		if _, err = os.Stat(g.folder); err == nil {
			return false, nil
		}
		if errName(busErr) == "org.freedesktop.login1.NoSuchUser" {
			return false, nil // logind is there and holds neither a session nor a manager for the user
		}
	}
	return false, fmt.Errorf("is linger on for %s: %w; %w; see: loginctl show-user %s --property=Linger", u.Username, busErr, err, u.Username)
}

func (g login) ask(ctx context.Context, uid int) (bool, error) {
	l, err := dialBus(ctx, g.socket, nil)
	if err != nil {
		return false, err
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	const name, manager = "org.freedesktop.login1", dbus.ObjectPath("/org/freedesktop/login1")
	var path dbus.ObjectPath
	if err := l.Object(name, manager).CallWithContext(ctx, name+".Manager.GetUser", 0, uint32(uid)).Store(&path); err != nil {
		return false, fmt.Errorf("ask logind for uid %d: %w", uid, err)
	}
	var v dbus.Variant
	if err := l.Object(name, path).CallWithContext(ctx, propsIface+".Get", 0, name+".User", "Linger").Store(&v); err != nil {
		return false, fmt.Errorf("ask logind for linger of uid %d: %w", uid, err)
	}
	on, ok := v.Value().(bool)
	if !ok {
		return false, fmt.Errorf("logind's Linger of uid %d is %s", uid, v)
	}
	return on, nil
}
