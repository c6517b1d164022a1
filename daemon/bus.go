package daemon

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/introspect"
	"github.com/godbus/dbus/v5/prop"
)

// BusObject is the conductor as the session bus shows it: what is local and live, for people and desktop tools. Nothing
// of the conductor's own work depends on it.
type BusObject struct {
	conductor *Conductor
	prefix    string
	name      string
	address   string
}

// busRun is one run as the bus shows it: number, run id, ticket, state, session, unit.
type busRun struct {
	Number  uint32
	ID      string
	Ticket  string
	State   string
	Session string
	Unit    string
}

// NewBusObject returns the object of a conductor. address is that of the user's bus; an empty one is read from
// runtimeDir, the folder of the user's runtime files.
func NewBusObject(d *Conductor, prefix, name, runtimeDir, address string) *BusObject {
	if address == "" && runtimeDir != "" {
		address = "unix:path=" + filepath.Join(runtimeDir, "bus")
	}
	return &BusObject{conductor: d, prefix: prefix, name: name, address: address}
}

func (b *BusObject) iface() string { return "org." + b.prefix + ".Conductor1" }
func (b *BusObject) path() dbus.ObjectPath {
	return dbus.ObjectPath("/org/" + b.prefix + "/Conductor1")
}

// Run shows the conductor on the bus until ctx ends. Without a bus it warns once and tries again: the bus may come, or
// come back.
func (b *BusObject) Run(ctx context.Context) {
	warned := false
	for pause := time.Second; ctx.Err() == nil; pause = min(2*pause, time.Minute) {
		err := b.serve(ctx, func() { warned, pause = false, time.Second })
		if ctx.Err() != nil {
			return
		}
		if !warned {
			warned = true
			b.conductor.cfg.Log.Warn().Err(err).Msg("the conductor is not on the session bus: it works, but `gaia conductor status` shows less; it is tried again")
		}
		if b.conductor.cfg.Clock.Sleep(ctx, pause) != nil {
			return
		}
	}
}

func (b *BusObject) serve(ctx context.Context, up func()) error {
	if b.address == "" {
		return errors.New("no address of a session bus is known (DBUS_SESSION_BUS_ADDRESS, XDG_RUNTIME_DIR)")
	}
	conn, err := dbus.Dial(b.address, dbus.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", b.address, err)
	}
	defer conn.Close()
	if err := conn.Auth(nil); err != nil {
		return fmt.Errorf("session bus: %w", err)
	}
	if err := conn.Hello(); err != nil {
		return fmt.Errorf("session bus: %w", err)
	}
	// Everything is exported before the name is asked for: a client that is woken by the name finds the whole object.
	signals := &signaller{conn: conn, iface: b.iface(), path: b.path()}
	props, err := b.export(conn)
	if err != nil {
		return err
	}
	update := make(chan Status, 1)
	forget := b.conductor.onStatus(func(s Status) {
		select {
		case <-update:
		default:
		}
		update <- s
	})
	defer forget()
	reply, err := conn.RequestName(b.name, dbus.NameFlagDoNotQueue)
	if err != nil {
		return fmt.Errorf("asking for the name %s: %w", b.name, err)
	}
	if reply != dbus.RequestNameReplyPrimaryOwner {
		return fmt.Errorf("the name %s is taken by another process", b.name)
	}
	up()
	shown := b.conductor.Status()
	b.show(props, shown)
	for {
		select {
		case <-ctx.Done():
			_, _ = conn.ReleaseName(b.name) // the connection is about to end, which releases it too
			return ctx.Err()
		case <-conn.Context().Done():
			return errors.New("the session bus has gone away")
		case s := <-update:
			b.show(props, s)
			signals.compare(shown.Runs, s.Runs)
			shown = s
		}
	}
}

func (b *BusObject) export(conn *dbus.Conn) (*prop.Properties, error) {
	props, err := prop.Export(conn, b.path(), prop.Map{b.iface(): b.properties(b.conductor.Status())})
	if err != nil {
		return nil, fmt.Errorf("exporting the properties: %w", err)
	}
	if err := conn.Export(busMethods{b.conductor}, b.path(), b.iface()); err != nil {
		return nil, fmt.Errorf("exporting the methods: %w", err)
	}
	node := &introspect.Node{
		Name:       string(b.path()),
		Interfaces: []introspect.Interface{introspect.IntrospectData, prop.IntrospectData, b.describe()},
	}
	if err := conn.Export(introspect.NewIntrospectable(node), b.path(), "org.freedesktop.DBus.Introspectable"); err != nil {
		return nil, fmt.Errorf("exporting the description: %w", err)
	}
	return props, nil
}

// BusDescription returns the description of the interface that every conductor has on the bus, in the format of D-Bus
// introspection; the running objects answer with the same.
func BusDescription(prefix string) ([]byte, error) {
	b := &BusObject{prefix: prefix}
	text, err := xml.MarshalIndent(introspect.Node{Interfaces: []introspect.Interface{b.describe()}}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("describing the interface %s: %w", b.iface(), err)
	}
	doctype := strings.NewReplacer("\n\t", "\n").Replace(introspect.IntrospectDeclarationString)
	return slices.Concat([]byte(strings.TrimPrefix(doctype, "\n")), text, []byte("\n")), nil
}

// describe returns the interface in a fixed order.
func (b *BusObject) describe() introspect.Interface {
	d := introspect.Interface{
		Name: b.iface(),
		Methods: []introspect.Method{
			{Name: "Tick"},
			{Name: "Drain"},
			{Name: "Resume"},
			{Name: "Reload"},
			{Name: "ListRuns", Args: []introspect.Arg{{Name: "runs", Type: busRunsSignature, Direction: "out"}}},
			{Name: "StopRun", Args: []introspect.Arg{{Name: "run", Type: "s", Direction: "in"}}},
		},
		Signals: []introspect.Signal{
			{Name: "RunStarted", Args: []introspect.Arg{{Name: "number", Type: "u"}, {Name: "id", Type: "s"}, {Name: "ticket", Type: "s"}}},
			{Name: "RunEnded", Args: []introspect.Arg{{Name: "number", Type: "u"}, {Name: "id", Type: "s"}, {Name: "ticket", Type: "s"}}},
		},
	}
	properties := b.properties(Status{})
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		d.Properties = append(d.Properties, properties[name].Introspection(name))
	}
	return d
}

const busRunsSignature = "a(usssss)"

func (b *BusObject) properties(s Status) map[string]*prop.Prop {
	out := map[string]*prop.Prop{}
	for name, value := range values(s) {
		out[name] = &prop.Prop{Value: value, Emit: prop.EmitTrue}
	}
	return out
}

func values(s Status) map[string]any {
	return map[string]any{
		"Status": text(s.Text), "Runs": busRuns(s.Runs), "CurrentLoad": uint32(s.CurrentLoad), "MaxParallel": uint32(s.MaxParallel),
		"HubState": text(s.Hub), "MachineId": text(s.MachineID), "Project": text(s.Project), "Version": text(s.Version),
	}
}

// text makes a string that the bus takes: it ends the connection of whoever sends anything but UTF-8 without NUL.
func text(s string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "\uFFFD")
}

func busRuns(runs []RunStatus) []busRun {
	out := make([]busRun, 0, len(runs))
	for _, r := range runs {
		out = append(out, busRun{uint32(r.Number), text(r.ID), text(r.Ticket), text(r.State), text(r.Session), text(r.Unit)})
	}
	return out
}

// show sets the properties that have changed; each change is signalled.
func (b *BusObject) show(props *prop.Properties, s Status) {
	for name, value := range values(s) {
		if have, err := props.Get(b.iface(), name); err == nil && have.String() == dbus.MakeVariant(value).String() {
			continue
		}
		props.SetMust(b.iface(), name, value)
	}
}

// signaller tells of runs that have begun or ended.
type signaller struct {
	conn  *dbus.Conn
	iface string
	path  dbus.ObjectPath
}

func (s *signaller) compare(before, after []RunStatus) {
	index := func(runs []RunStatus) map[string]RunStatus {
		m := map[string]RunStatus{}
		for _, r := range runs {
			m[r.ID] = r
		}
		return m
	}
	old, now := index(before), index(after)
	for id, r := range now {
		if _, ok := old[id]; !ok {
			s.emit("RunStarted", r)
		}
	}
	for id, r := range old {
		if _, ok := now[id]; !ok {
			s.emit("RunEnded", r)
		}
	}
}

func (s *signaller) emit(name string, r RunStatus) {
	_ = s.conn.Emit(s.path, s.iface+"."+name, uint32(r.Number), text(r.ID), text(r.Ticket)) // a hint; the property is the truth
}

// busMethods are what may be called over the bus.
type busMethods struct{ conductor *Conductor }

// Tick asks for a tick now.
func (m busMethods) Tick() *dbus.Error { m.conductor.Wake(); return nil }

// Drain has the conductor go on with its runs and claim nothing more, until Resume.
func (m busMethods) Drain() *dbus.Error { return m.drain(true) }

// Resume ends Drain.
func (m busMethods) Resume() *dbus.Error { return m.drain(false) }

func (m busMethods) drain(draining bool) *dbus.Error {
	ctx, cancel := context.WithTimeout(context.Background(), callDeadline)
	defer cancel()
	if err := m.conductor.cfg.Drain(ctx, draining); err != nil {
		return dbus.MakeFailedError(err)
	}
	m.conductor.Wake() // the next heartbeat's answer says so
	return nil
}

// Reload reads conductor.toml again. A refusal is in Status.
func (m busMethods) Reload() *dbus.Error { m.conductor.Reload(); return nil }

// ListRuns returns what the property Runs holds.
func (m busMethods) ListRuns() ([]busRun, *dbus.Error) {
	return busRuns(m.conductor.Status().Runs), nil
}

// StopRun ends a run of this conductor, named by number, run id, ticket or unit; its ticket is held.
func (m busMethods) StopRun(which string) *dbus.Error {
	ctx, cancel := context.WithTimeout(context.Background(), stopDeadline)
	defer cancel()
	if err := m.conductor.StopRun(ctx, which); err != nil {
		return dbus.MakeFailedError(err)
	}
	return nil
}

// onStatus has fn called at each change of the status, from whoever makes it, until the returned function is called.
func (d *Conductor) onStatus(fn func(Status)) (forget func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := &watcher{fn: fn}
	d.watchers[w] = true
	return func() {
		d.mu.Lock()
		delete(d.watchers, w)
		d.mu.Unlock()
		w.mu.Lock() // after this no call is under way
		w.fn = func(Status) {}
		w.mu.Unlock()
	}
}

type watcher struct {
	mu sync.Mutex
	fn func(Status)
}

func (w *watcher) tell(s Status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fn(s)
}
