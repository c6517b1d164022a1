package daemon

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/introspect"
	"github.com/godbus/dbus/v5/prop"

	"gaia/domain"
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

func busInterface(prefix string) string { return "org." + prefix + ".Conductor1" }

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
	changes := &queue{ready: make(chan struct{}, 1)}
	now, forget := b.conductor.onStatus(changes.put)
	defer forget()
	// Everything is exported before the name is asked for: a client that is woken by the name finds the whole object.
	props := &busProperties{iface: busInterface(b.prefix), values: values(now)}
	if err := b.export(conn, props); err != nil {
		return err
	}
	reply, err := conn.RequestName(b.name, dbus.NameFlagDoNotQueue)
	if err != nil {
		return fmt.Errorf("asking for the name %s: %w", b.name, err)
	}
	if reply != dbus.RequestNameReplyPrimaryOwner {
		return fmt.Errorf("the name %s is taken by another process", b.name)
	}
	up()
	for {
		select {
		case <-ctx.Done():
			_, _ = conn.ReleaseName(b.name) // the connection is about to end, which releases it too
			return ctx.Err()
		case <-conn.Context().Done():
			return errors.New("the session bus has gone away")
		case <-changes.ready:
			if c, ok := changes.take(); ok {
				b.tell(conn, props, c)
			}
		}
	}
}

// tell signals a change. The properties come first, so that whoever is woken by a signal reads what it is about. Nobody
// has to hear any of it, and the bus may be gone: errors are dropped.
func (b *BusObject) tell(conn *dbus.Conn, props *busProperties, c change) {
	iface := busInterface(b.prefix)
	if changed := props.set(values(c.Status)); len(changed) > 0 {
		_ = conn.Emit(b.path(), propertiesIface+".PropertiesChanged", iface, changed, []string{})
	}
	for _, r := range c.began {
		_ = conn.Emit(b.path(), iface+".RunStarted", uint32(r.Number), text(r.ID), text(r.Ticket), text(r.Unit))
	}
	for _, r := range c.ended {
		_ = conn.Emit(b.path(), iface+".RunEnded", uint32(r.Number), text(r.ID), text(r.Ticket), text(r.State), text(r.Reason))
	}
}

// queue keeps what has changed until the bus takes it: the latest status, and every run that has come or gone.
type queue struct {
	ready chan struct{} // holds at most one

	mu      sync.Mutex
	full    bool
	waiting change
}

func (q *queue) put(c change) {
	q.mu.Lock()
	c.began, c.ended = append(q.waiting.began, c.began...), append(q.waiting.ended, c.ended...)
	q.waiting, q.full = c, true
	q.mu.Unlock()
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

func (q *queue) take() (change, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c, ok := q.waiting, q.full
	q.waiting, q.full = change{}, false
	return c, ok
}

func (b *BusObject) export(conn *dbus.Conn, props *busProperties) error {
	node := &introspect.Node{
		Name:       string(b.path()),
		Interfaces: []introspect.Interface{introspect.IntrospectData, prop.IntrospectData, describe(b.prefix)},
	}
	for iface, object := range map[string]any{
		busInterface(b.prefix):                busMethods{b.conductor, b.prefix},
		propertiesIface:                       props,
		"org.freedesktop.DBus.Introspectable": introspect.NewIntrospectable(node),
	} {
		if err := conn.Export(object, b.path(), iface); err != nil {
			return fmt.Errorf("exporting the interface %s: %w", iface, err)
		}
	}
	return nil
}

// BusDescription returns the description of the interface that every conductor has on the bus, in the format of D-Bus
// introspection; the running objects answer with the same.
func BusDescription(prefix string) ([]byte, error) {
	text, err := xml.MarshalIndent(introspect.Node{Interfaces: []introspect.Interface{describe(prefix)}}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("describing the interface %s: %w", busInterface(prefix), err)
	}
	doctype := strings.NewReplacer("\n\t", "\n").Replace(introspect.IntrospectDeclarationString)
	return slices.Concat([]byte(strings.TrimPrefix(doctype, "\n")), text, []byte("\n")), nil
}

// describe returns the interface in a fixed order.
func describe(prefix string) introspect.Interface {
	arg := func(name, kind, direction string) introspect.Arg {
		return introspect.Arg{Name: name, Type: kind, Direction: direction}
	}
	d := introspect.Interface{
		Name: busInterface(prefix),
		Methods: []introspect.Method{
			{Name: "Tick"},
			{Name: "Drain"},
			{Name: "Resume"},
			{Name: "Reload"},
			{Name: "ListRuns", Args: []introspect.Arg{arg("runs", signature([]busRun{}), "out")}},
			{Name: "StopRun", Args: []introspect.Arg{arg("run", "s", "in")}},
		},
		Signals: []introspect.Signal{
			{Name: "RunStarted", Args: []introspect.Arg{arg("number", "u", ""), arg("id", "s", ""), arg("ticket", "s", ""), arg("unit", "s", "")}},
			{Name: "RunEnded", Args: []introspect.Arg{
				arg("number", "u", ""), arg("id", "s", ""), arg("ticket", "s", ""), arg("state", "s", ""), arg("reason", "s", ""),
			}},
		},
	}
	all := values(Status{})
	for _, name := range slices.Sorted(maps.Keys(all)) {
		p := introspect.Property{Name: name, Type: signature(all[name]), Access: "read"}
		emits := "true"
		if constant[name] {
			emits = "const"
		}
		p.Annotations = []introspect.Annotation{{Name: "org.freedesktop.DBus.Property.EmitsChangedSignal", Value: emits}}
		d.Properties = append(d.Properties, p)
	}
	return d
}

func signature(v any) string { return dbus.SignatureOf(v).String() }

// constant are the properties that stay what they are for as long as the object is there.
var constant = map[string]bool{"MachineId": true, "Project": true, "Version": true}

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

const propertiesIface = "org.freedesktop.DBus.Properties"

// busProperties are the properties of the object. A change of several is one change, for GetAll and in the signal: a run
// and the load that it makes are never seen one without the other, which package prop does not offer.
type busProperties struct {
	iface string

	mu     sync.Mutex
	values map[string]any
}

// set takes over all values and returns those that are new.
func (p *busProperties) set(values map[string]any) map[string]dbus.Variant {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := map[string]dbus.Variant{}
	for name, v := range values {
		if !reflect.DeepEqual(p.values[name], v) {
			changed[name] = dbus.MakeVariant(v)
		}
	}
	p.values = values
	return changed
}

// Get implements org.freedesktop.DBus.Properties.
func (p *busProperties) Get(iface, name string) (dbus.Variant, *dbus.Error) {
	all, err := p.GetAll(iface)
	if err != nil {
		return dbus.Variant{}, err
	}
	v, ok := all[name]
	if !ok {
		return v, busError("org.freedesktop.DBus.Error.UnknownProperty", "there is no property "+name)
	}
	return v, nil
}

// GetAll implements org.freedesktop.DBus.Properties.
func (p *busProperties) GetAll(iface string) (map[string]dbus.Variant, *dbus.Error) {
	if iface != p.iface && iface != "" {
		return nil, busError("org.freedesktop.DBus.Error.UnknownInterface", "there are no properties of "+iface)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[string]dbus.Variant, len(p.values))
	for name, v := range p.values {
		out[name] = dbus.MakeVariant(v)
	}
	return out, nil
}

// Set implements org.freedesktop.DBus.Properties.
func (p *busProperties) Set(iface, name string, _ dbus.Variant) *dbus.Error {
	if _, err := p.Get(iface, name); err != nil {
		return err
	}
	return busError("org.freedesktop.DBus.Error.PropertyReadOnly", name+" can only be read")
}

func busError(name, message string) *dbus.Error { return dbus.NewError(name, []any{text(message)}) }

// The errors of the methods, below the interface's name.
const (
	errNoSuchRun      = "NoSuchRun"
	errAmbiguousRun   = "AmbiguousRun"
	errConfigRefused  = "ConfigRefused"
	errHubUnreachable = "HubUnreachable"
	errHubRefused     = "HubRefused"
	errFailed         = "Failed"
)

// busMethods are what may be called over the bus.
type busMethods struct {
	conductor *Conductor
	prefix    string
}

func (m busMethods) failure(name string, err error) *dbus.Error {
	return busError(busInterface(m.prefix)+".Error."+name, err.Error())
}

// Tick asks for a tick now.
func (m busMethods) Tick() *dbus.Error { m.conductor.Wake(); return nil }

// Drain has the conductor go on with its runs and claim nothing more, until Resume.
func (m busMethods) Drain() *dbus.Error { return m.drain(true) }

// Resume ends Drain.
func (m busMethods) Resume() *dbus.Error { return m.drain(false) }

func (m busMethods) drain(draining bool) *dbus.Error {
	ctx, cancel := context.WithTimeout(context.Background(), callDeadline)
	defer cancel()
	err := m.conductor.cfg.Drain(ctx, draining)
	switch {
	case errors.Is(err, domain.ErrUnreachable), errors.Is(err, context.DeadlineExceeded):
		return m.failure(errHubUnreachable, err)
	case err != nil:
		return m.failure(errHubRefused, err)
	}
	m.conductor.Wake() // the next heartbeat's answer says so
	return nil
}

// Reload reads conductor.toml again.
func (m busMethods) Reload() *dbus.Error {
	if err := m.conductor.Reload(); err != nil {
		return m.failure(errConfigRefused, err)
	}
	return nil
}

// ListRuns returns what the property Runs holds.
func (m busMethods) ListRuns() ([]busRun, *dbus.Error) {
	return busRuns(m.conductor.Status().Runs), nil
}

// StopRun ends a run of this conductor, named by number, run id, ticket or unit; its ticket is held.
func (m busMethods) StopRun(which string) *dbus.Error {
	err := m.conductor.StopRun(which)
	switch {
	case errors.Is(err, domain.ErrNotFound):
		return m.failure(errNoSuchRun, err)
	case errors.Is(err, domain.ErrConflict):
		return m.failure(errAmbiguousRun, err)
	case err != nil:
		return m.failure(errFailed, err)
	}
	return nil
}
