//go:build linux

package main

import (
	"encoding/xml"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/introspect"
	"github.com/stretchr/testify/require"

	"gaia/daemon"
	"gaia/domain"
)

// busctl calls what comes with systemd, and nothing of Gaia's.
func (p place) busctl(args ...string) (string, error) {
	p.t.Helper()
	out, err := p.env.Command("busctl", append([]string{"--user"}, args...)...).CombinedOutput()
	return string(out), err
}

// on adds the object and its interface to the words of a call.
func (p place) on(verb string, args ...string) []string {
	return append([]string{verb, p.names.BusName(p.instance), string(p.path()), p.iface()}, args...)
}

func TestTheBusObjectWithBusctlAlone(t *testing.T) {
	p := set(t, `sleep 1000`)
	p.run("gaia", "ticket", "create", "Do it", "--workflow", domain.Task, "--state", "working")
	p.await("the agent to run", func() bool { return strings.Contains(p.property("Runs"), `"running"`) })
	say := func(args ...string) string {
		t.Helper()
		out, err := p.busctl(args...)
		require.NoError(t, err, out)
		return strings.TrimSpace(out)
	}
	refused := func(name string, args ...string) {
		t.Helper()
		out, err := p.busctl(append([]string{"--json=short"}, args...)...)
		require.Error(t, err, out)
		// busctl prints an error's text and not its name.
		conn := p.bus()
		in := make([]any, 0, len(args))
		for _, a := range args[5:] {
			in = append(in, a)
		}
		call := conn.Object(args[1], dbus.ObjectPath(args[2])).Call(args[3]+"."+args[4], 0, in[min(1, len(in)):]...)
		var e dbus.Error
		require.ErrorAs(t, call.Err, &e)
		require.Equal(t, p.iface()+".Error."+name, e.Name)
		require.Contains(t, out, e.Error())
	}

	// The object says of itself what an installation ships.
	shipped, err := daemon.BusDescription(p.env.Prefix)
	require.NoError(t, err)
	var described introspect.Node
	require.NoError(t, xml.Unmarshal(shipped, &described))
	running, err := introspect.Call(p.bus().Object(p.names.BusName("shop"), p.path()))
	require.NoError(t, err)
	require.Contains(t, running.Interfaces, described.Interfaces[0])
	listed := say("introspect", p.names.BusName("shop"), string(p.path()), p.iface())
	for _, want := range []string{".StopRun method s", ".ListRuns method - a(usssss)", ".RunEnded signal ussss -", ".Runs property a(usssss)", ".Version property s"} {
		require.Contains(t, strings.Join(strings.Fields(listed), " "), want)
	}
	require.Contains(t, say("tree", p.names.BusName("shop")), string(p.path()))

	for _, v := range described.Interfaces[0].Properties {
		require.Regexp(t, "^"+regexpQuote(v.Type)+" ", say(p.on("get-property", v.Name)...))
		out, err := p.busctl(p.on("set-property", v.Name, "s", "x")...)
		require.Error(t, err)
		require.Contains(t, out, "can only be read")
	}
	require.Equal(t, `s "ada.desk.shop"`, say(p.on("get-property", "MachineId")...))
	require.Equal(t, `s "SHOP"`, say(p.on("get-property", "Project")...))
	require.Equal(t, `s "ok"`, say(p.on("get-property", "HubState")...))
	require.Contains(t, say(p.on("call", "ListRuns")...), `"SHOP-1" "running" "alive" "`+p.names.Run("shop", 1)+`"`)

	say(p.on("call", "Drain")...)
	p.await("it to drain", func() bool { return strings.HasPrefix(p.property("Status"), "draining, 1/2 running") })
	say(p.on("call", "Resume")...)
	p.await("it to be back", func() bool { return strings.HasPrefix(p.property("Status"), "online, 1/2 running") })
	say(p.on("call", "Tick")...)

	p.configure("max_load = 0\n", "max_load = 0\nmax_paralel = 1\n")
	refused("ConfigRefused", p.on("call", "Reload")...)
	require.Contains(t, say(p.on("get-property", "Status")...), "max_paralel")
	p.configure("max_paralel = 1\n", "")
	say(p.on("call", "Reload")...)
	require.NotContains(t, say(p.on("get-property", "Status")...), "max_paralel")

	refused("NoSuchRun", p.on("call", "StopRun", "s", "99")...)
	out, err := p.busctl(p.on("call", "StopRun", "u", "1")...)
	require.Error(t, err, "a number is written as a string: %s", out)
	say(p.on("call", "StopRun", "s", "SHOP-1")...)
	p.await("the run to be closed", func() bool { return p.property("CurrentLoad") == "@u 0" })
	require.Equal(t, domain.ReasonStopped, p.ticket("SHOP-1").Hold.Reason)

	out, err = p.env.Systemctl("stop", p.names.HubSocket(), p.names.Hub())
	require.NoError(t, err, out)
	refused("HubUnreachable", p.on("call", "Drain")...)
}

func regexpQuote(s string) string { return strings.NewReplacer("(", `\(`, ")", `\)`).Replace(s) }

// follower follows the runs of all conductors of a machine: it asks each conductor once when that comes, and believes
// signals from then on.
type follower struct {
	place
	conn *dbus.Conn

	mu         sync.Mutex
	owners     map[string]string            // unique name to conductor
	runs       map[string]map[string]string // by conductor: state by ticket; none for one that is away
	asked      int
	began      map[string]int // by ticket
	ended      map[string][]string
	unexpected []string
}

func (p place) follow() *follower {
	p.t.Helper()
	f := &follower{
		place: p, conn: p.bus(), owners: map[string]string{}, runs: map[string]map[string]string{}, began: map[string]int{}, ended: map[string][]string{},
	}
	signals := make(chan *dbus.Signal, 1000)
	f.conn.Signal(signals)
	require.NoError(p.t, f.conn.AddMatchSignal(dbus.WithMatchInterface("org.freedesktop.DBus"), dbus.WithMatchMember("NameOwnerChanged"),
		dbus.WithMatchOption("arg0namespace", p.iface())))
	require.NoError(p.t, f.conn.AddMatchSignal(dbus.WithMatchObjectPath(p.path())))
	var names []string
	require.NoError(p.t, f.conn.BusObject().Call("org.freedesktop.DBus.ListNames", 0).Store(&names))
	for _, name := range names {
		var owner string
		if strings.HasPrefix(name, p.iface()+".") && f.conn.BusObject().Call("org.freedesktop.DBus.GetNameOwner", 0, name).Store(&owner) == nil {
			f.come(name, owner)
		}
	}
	go func() {
		for s := range signals {
			f.hear(s)
		}
	}()
	return f
}

func (f *follower) come(name, owner string) {
	var v dbus.Variant
	err := f.conn.Object(owner, f.path()).Call("org.freedesktop.DBus.Properties.Get", 0, f.iface(), "Runs").Store(&v)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	if err != nil {
		f.unexpected = append(f.unexpected, err.Error())
		return
	}
	f.owners[owner] = name
	f.take(name, v)
}

func (f *follower) take(name string, v dbus.Variant) {
	f.runs[name] = map[string]string{}
	for _, r := range v.Value().([][]any) {
		f.runs[name][r[2].(string)] = r[3].(string)
	}
}

func (f *follower) hear(s *dbus.Signal) {
	if s.Name == "org.freedesktop.DBus.NameOwnerChanged" {
		name, before, after := s.Body[0].(string), s.Body[1].(string), s.Body[2].(string)
		if before != "" {
			f.mu.Lock()
			delete(f.owners, before)
			delete(f.runs, name)
			f.mu.Unlock()
		}
		if after != "" {
			f.come(name, after)
		}
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	name, known := f.owners[s.Sender]
	switch {
	case s.Path != f.path() || !known:
	case s.Name == f.iface()+".RunStarted":
		f.began[s.Body[2].(string)]++
	case s.Name == f.iface()+".RunEnded":
		ticket := s.Body[2].(string)
		f.ended[ticket] = append(f.ended[ticket], strings.TrimSpace(s.Body[3].(string)+" "+s.Body[4].(string)))
	case s.Name == "org.freedesktop.DBus.Properties.PropertiesChanged":
		if v, ok := s.Body[1].(map[string]dbus.Variant)["Runs"]; ok {
			f.take(name, v)
		}
	}
}

// picture is what is known of the conductors that are there.
func (f *follower) picture() map[string]map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]map[string]string{}
	for name, runs := range f.runs {
		out[strings.TrimPrefix(name, f.iface()+".")] = maps.Clone(runs)
	}
	return out
}

func (f *follower) shows(want map[string]map[string]string) {
	f.t.Helper()
	f.await("the picture to be right", func() bool {
		have := f.picture()
		return len(have) == len(want) && !slices.ContainsFunc(slices.Collect(maps.Keys(want)), func(name string) bool {
			runs, there := have[name]
			return !there || !maps.Equal(runs, want[name])
		})
	})
}

func TestSignalsAreEnoughToFollowAllRunsOfAMachine(t *testing.T) {
	type picture = map[string]map[string]string
	shop := set(t, `case $GAIA_TICKET in
SHOP-1) gaia ticket move done --anyway;;
SHOP-2) exit 3;;
*) while ! test -e @HOME@/go; do sleep 0.1; done; gaia ticket move done --anyway;;
esac
`)
	task := []string{"ticket", "create", "Do it", "--workflow", domain.Task, "--state", "working"}
	f := shop.follow()
	f.shows(picture{"shop": {}})
	shop.run("gaia", task...)
	f.await("the first run to be told of to its end", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.ended["SHOP-1"]) == 1 })

	blog := shop.another("BLOG", "big-blog") // comes while it is followed
	f.shows(picture{"shop": {}, "big_blog": {}})
	blog.run("gaia", task...)
	f.shows(picture{"shop": {}, "big_blog": {"BLOG-1": "running"}})

	for _, verb := range []string{"stop", "start"} { // goes and comes back; its agent is at work all the time
		out, err := blog.env.Systemctl(verb, blog.unit)
		require.NoError(t, err, out)
		if verb == "stop" {
			f.shows(picture{"shop": {}})
		}
	}
	f.shows(picture{"shop": {}, "big_blog": {"BLOG-1": "running"}})
	shop.run("gaia", task...)
	f.await("a failed run to be told of", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.ended["SHOP-2"]) > 0 })
	shop.run("gaia", "ticket", "hold", "SHOP-2")
	out, err := shop.env.Systemctl("kill", "-s", "KILL", shop.unit) // without a word of farewell
	require.NoError(t, err, out)
	require.NoError(t, os.WriteFile(filepath.Join(blog.env.Home, "go"), nil, 0o644))
	f.shows(picture{"shop": {}, "big_blog": {}})

	f.mu.Lock()
	defer f.mu.Unlock()
	require.Equal(t, []string{"done"}, f.ended["SHOP-1"])
	require.Equal(t, []string{"done"}, f.ended["BLOG-1"])
	require.Equal(t, "failed agent_exit", f.ended["SHOP-2"][0])
	require.Equal(t, 1, f.began["SHOP-1"])
	require.Empty(t, f.unexpected)
	require.Equal(t, 4, f.asked, "each conductor at each of its starts, and never again")
}
