package e2e

import (
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/godbus/dbus/v5"
	"github.com/stretchr/testify/require"
)

// logind plays the part of the real one, which the user manager of a test does not have, for the one user there is.
type logind struct {
	mu     sync.Mutex
	on     bool
	refuse bool
	asked  []bool // whether polkit was allowed to ask, for each time that linger was set
}

// GetUser implements the method of org.freedesktop.login1.Manager.
func (l *logind) GetUser(uid uint32) (dbus.ObjectPath, *dbus.Error) {
	if int(uid) != os.Getuid() {
		return "", dbus.NewError("org.freedesktop.login1.NoSuchUser", nil)
	}
	return "/org/freedesktop/login1/user/self", nil
}

// SetUserLinger implements the method of org.freedesktop.login1.Manager.
func (l *logind) SetUserLinger(_ uint32, on, interactive bool) *dbus.Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, interactive)
	if l.refuse {
		return dbus.NewError("org.freedesktop.DBus.Error.InteractiveAuthorizationRequired", []any{"Interactive authentication required."})
	}
	l.on = on
	return nil
}

// Get implements the method of org.freedesktop.DBus.Properties.
func (l *logind) Get(_, _ string) (dbus.Variant, *dbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return dbus.MakeVariant(l.on), nil
}

func (l *logind) set(on, refuse bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.on, l.refuse, l.asked = on, refuse, nil
}

func (l *logind) is() (on bool, asked []bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.on, append([]bool(nil), l.asked...)
}

// TestLingerIsOffered by enable and doctor, never forced, and a refusal is told from a machine that has no logind.
func TestLingerIsOffered(t *testing.T) {
	t.Parallel()
	w := prepare(t, mover, setting{})
	me, err := user.Current()
	require.NoError(t, err)
	command := "loginctl enable-linger " + me.Username
	address := "unix:path=" + filepath.Join(w.env.Runtime, "bus")
	bus, err := dbus.Connect(address)
	require.NoError(t, err)
	defer bus.Close()
	var l logind
	require.NoError(t, bus.Export(&l, "/org/freedesktop/login1", "org.freedesktop.login1.Manager"))
	require.NoError(t, bus.Export(&l, "/org/freedesktop/login1/user/self", "org.freedesktop.DBus.Properties"))
	reply, err := bus.RequestName("org.freedesktop.login1", dbus.NameFlagDoNotQueue)
	require.NoError(t, err)
	require.Equal(t, dbus.RequestNameReplyPrimaryOwner, reply)
	system := func(address string) func(args ...string) (string, string, int) {
		return func(args ...string) (string, string, int) {
			return w.try("env", append([]string{"DBUS_SYSTEM_BUS_ADDRESS=" + address, "gaia"}, args...)...)
		}
	}
	gaia := system(address)

	// Without a person the command is said, and nothing else done.
	out, said, code := gaia("conductor", "enable", "shop")
	require.Zero(t, code, said)
	require.Contains(t, out, "enabled")
	require.Contains(t, said, "To let them go on: "+command)
	_, said, code = gaia("conductor", "enable", "shop", "--no-linger")
	require.Zero(t, code, said)
	require.NotContains(t, said, "log out")
	_, said, code = gaia("conductor", "enable", "shop", "--no-linger", "--linger")
	require.Equal(t, 2, code, said)
	on, asked := l.is()
	require.False(t, on)
	require.Empty(t, asked)

	// Told to, it does, and polkit is not to ask a script.
	_, said, code = gaia("conductor", "enable", "shop", "--linger")
	require.Zero(t, code, said)
	require.Contains(t, said, "Linger is on")
	on, asked = l.is()
	require.True(t, on)
	require.Equal(t, []bool{false}, asked)
	_, said, code = gaia("conductor", "enable", "shop", "--linger")
	require.Zero(t, code, said)
	require.NotContains(t, strings.ToLower(said), "linger")

	// A person is asked, and an empty answer is a yes.
	enable := func(answer, shows string) {
		x := w.onTerminal(map[string]string{"DBUS_SYSTEM_BUS_ADDRESS": address}, "conductor", "enable", "shop")
		x.shows("Let them go on (linger) (yes or no) [yes]: ")
		x.types(answer + "\n")
		x.shows(shows)
		require.NoError(t, x.ends())
	}
	l.set(false, false)
	enable("no", "Left as it is. To let them go on: "+command)
	on, _ = l.is()
	require.False(t, on)
	enable("", "Linger is on")
	on, asked = l.is()
	require.True(t, on)
	require.Equal(t, []bool{true}, asked)

	// Refused: the conductor is enabled all the same, and only who asked for linger alone gets an error.
	l.set(false, true)
	enable("yes", "an administrator can: sudo "+command)
	out, said, code = gaia("conductor", "enable", "shop", "--linger")
	require.Equal(t, 1, code, said)
	require.Contains(t, out, "enabled")
	require.Contains(t, said, "the conductor is enabled, but linger is not: set linger: it is left to administrators on this machine")
	require.Contains(t, said, "sudo "+command)

	// Doctor, too: a finding with the exact command, mended where a person says so.
	out, _, code = gaia("doctor")
	require.Equal(t, 1, code)
	require.Contains(t, out, "fail  linger              agents end when you log out")
	require.Contains(t, out, "mend: "+command+"\n")
	_, said, _ = gaia("doctor", "--fix", "--yes")
	require.Contains(t, said, "not mended: linger: set linger: it is left to administrators")
	l.set(false, false)
	_, said, _ = gaia("doctor", "--fix")
	require.Contains(t, said, "not mended, since nobody can be asked here (--yes does it unasked): linger")
	_, asked = l.is()
	require.Empty(t, asked)
	out, said, _ = gaia("doctor", "--fix", "--yes")
	require.Contains(t, said, "mended: linger: linger is on")
	require.Contains(t, out, "ok    linger              agents survive your log-out")
	l.set(false, false)
	x := w.onTerminal(map[string]string{"DBUS_SYSTEM_BUS_ADDRESS": address}, "doctor", "--fix")
	x.shows("(linger) (yes or no) [yes]: ")
	x.types("\n")
	x.shows("mended: linger")
	x.shows("agents survive your log-out")
	_ = x.ends() // whether the rest of the machine is well is not the matter here

	// Without logind.
	gaia = system("unix:path=/nonexistent/bus")
	_, said, code = gaia("conductor", "enable", "shop", "--linger")
	if code != 0 { // where the machine's folder says that linger is on, that is known without logind
		require.Contains(t, said, "linger is not: set linger: logind does not answer")
		require.Contains(t, said, "without logind, as in a container")
	}
}
