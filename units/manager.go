package units

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	sdbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"gaia/domain"
)

// Names of errors that systemd returns and that mean something here.
const (
	errNoSuchUnit   = "org.freedesktop.systemd1.NoSuchUnit"
	errUnitExists   = "org.freedesktop.systemd1.UnitExists"
	errLoadFailed   = "org.freedesktop.systemd1.LoadFailed"
	errBadSetting   = "org.freedesktop.systemd1.BadUnitSetting"
	errUnitMasked   = "org.freedesktop.systemd1.UnitMasked"
	errFileNotFound = "org.freedesktop.DBus.Error.FileNotFound"
)

// Manager is a connection to the user manager. It is safe for concurrent use. When the connection is lost, every call
// in flight and every later one fails; the caller connects anew.
type Manager struct {
	link       *link
	jobs       *jobs
	runtimeDir string
}

// Connect connects to the user manager whose runtime folder ($XDG_RUNTIME_DIR) is given. It gives up after connectTimeout,
// whatever ctx allows: a bus that accepts and does not answer must not hold up who shares the connection.
func Connect(ctx context.Context, runtimeDir string) (*Manager, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	j := newJobs()
	l, err := dialUser(ctx, runtimeDir, j)
	if err != nil {
		return nil, err
	}
	for _, opts := range [][]dbus.MatchOption{
		{dbus.WithMatchSender(systemdName), dbus.WithMatchInterface(managerIface), dbus.WithMatchMember("JobRemoved")},
		ownerChanged,
	} {
		if err := l.match(ctx, opts...); err != nil {
			_ = l.Close()
			return nil, fmt.Errorf("ask the bus for the ends of jobs: %w", err)
		}
	}
	return &Manager{link: l, jobs: j, runtimeDir: runtimeDir}, nil
}

// Close ends the connection. Calls in flight fail.
func (m *Manager) Close() { _ = m.link.Close() }

// Lost is closed when the connection has ended.
func (m *Manager) Lost() <-chan struct{} { return m.link.Context().Done() }

// Reload makes the manager read its unit files anew.
func (m *Manager) Reload(ctx context.Context) error {
	if err := m.link.call(ctx, "Reload").Err; err != nil {
		return fmt.Errorf("reload the unit files: %w", err)
	}
	return nil
}

// Enable makes units start by themselves, as their [Install] sections say, and reloads. A unit that is not there is
// domain.ErrNotFound.
func (m *Manager) Enable(ctx context.Context, units ...string) error {
	if err := m.toggle(ctx, "EnableUnitFiles", units, false, true); err != nil {
		return fmt.Errorf("enable %s: %w", strings.Join(units, ", "), err)
	}
	return m.Reload(ctx)
}

// Disable undoes Enable and reloads. Running units go on.
func (m *Manager) Disable(ctx context.Context, units ...string) error {
	if err := m.toggle(ctx, "DisableUnitFiles", units, false); err != nil {
		return fmt.Errorf("disable %s: %w", strings.Join(units, ", "), err)
	}
	return m.Reload(ctx)
}

func (m *Manager) toggle(ctx context.Context, method string, units []string, flags ...any) error {
	for _, u := range units {
		if err := checkUnit(u); err != nil {
			return err
		}
	}
	return known(m.link.call(ctx, method, append([]any{units}, flags...)...).Err)
}

// ResetFailed makes the manager forget that a unit has failed. It is no error if the unit is not loaded.
func (m *Manager) ResetFailed(ctx context.Context, unit string) error {
	if err := checkUnit(unit); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	if err := m.link.call(ctx, "ResetFailedUnit", unit).Err; err != nil && errName(err) != errNoSuchUnit {
		return fmt.Errorf("reset %s: %w", unit, err)
	}
	return nil
}

// Kill sends a signal to every process of a unit. A unit that is not loaded is domain.ErrNotFound.
func (m *Manager) Kill(ctx context.Context, unit string, sig int) error {
	if err := checkUnit(unit); err != nil {
		return fmt.Errorf("signal: %w", err)
	}
	if err := m.link.call(ctx, "KillUnit", unit, "all", int32(sig)).Err; err != nil {
		return fmt.Errorf("send signal %d to %s: %w", sig, unit, known(err))
	}
	return nil
}

// Status is what the manager knows of a unit.
type Status struct {
	Name        string
	Description string
	Load        string // loaded, not-found, masked, bad-setting, error
	Active      string // active, reloading, inactive, failed, activating, deactivating
	Sub         string // finer than Active, depends on the unit's kind: running, dead, start, stop-post, …

	Result         string // success, exit-code, signal, core-dump, watchdog, timeout, oom-kill, protocol, start-limit-hit, …
	StatusText     string // what the service says of itself
	InvocationID   string // 32 hex digits, "" if it never ran
	FragmentPath   string // the unit file
	UnitFileState  string // enabled, disabled, static, transient, …
	ControlGroup   string
	MainPID        uint32
	NRestarts      uint32
	ExecMainCode   int32 // CLD_EXITED (1), CLD_KILLED (2), CLD_DUMPED (3); 0 while it runs
	ExecMainStatus int32 // exit status, or the signal's number
	// NeedDaemonReload: the unit's file has changed since it was read.
	NeedDaemonReload bool
	ActiveSince      time.Time // zero unless it is, or was, active
	MemoryCurrent    uint64    // bytes, 0 where not known
	CPUTime          time.Duration

	mainStart time.Duration // when the latest main process was started, on CLOCK_MONOTONIC
}

// Running reports whether the unit has, or may still have, processes.
func (s Status) Running() bool { return !resting(s.Active) }

// Status returns what is known of a unit. One that is not there is Status{Load: "not-found"} without an error: only the
// manager's own word is one, a failed call never is.
func (m *Manager) Status(ctx context.Context, unit string) (Status, error) {
	if err := checkUnit(unit); err != nil {
		return Status{}, fmt.Errorf("status: %w", err)
	}
	s, err := m.status(ctx, unit)
	if err != nil {
		return Status{}, fmt.Errorf("status of %s: %w", unit, err)
	}
	return s, nil
}

func (m *Manager) status(ctx context.Context, unit string) (Status, error) {
	gone := Status{Name: unit, Load: "not-found", Active: "inactive", Sub: "dead"}
	var path dbus.ObjectPath
	err := m.link.call(ctx, "GetUnit", unit).Store(&path)
	switch {
	case errName(err) == errNoSuchUnit:
		// To ask for the properties of a unit that is not loaded loads it, and its unloading is again a signal. So a
		// unit without a file is told from its file's state alone.
		var state string
		err := m.link.call(ctx, "GetUnitFileState", unit).Store(&state)
		if n := errName(err); n == errNoSuchUnit || n == errFileNotFound {
			return gone, nil
		}
		if err != nil {
			return Status{}, err
		}
		path = objectPath(unit)
	case err != nil:
		return Status{}, err
	}
	var p props
	err = m.link.callOn(ctx, path, propsIface+".GetAll", "").Store(&p)
	if n := errName(err); n == errNoSuchUnit || n == "org.freedesktop.DBus.Error.UnknownObject" {
		return gone, nil // collected in between
	}
	if err != nil {
		return Status{}, err
	}
	s := Status{
		Name: p.str("Id"), Description: p.str("Description"),
		Load: p.str("LoadState"), Active: p.str("ActiveState"), Sub: p.str("SubState"),
		Result: p.str("Result"), StatusText: p.str("StatusText"),
		FragmentPath: p.str("FragmentPath"), UnitFileState: p.str("UnitFileState"), ControlGroup: p.str("ControlGroup"),
		MainPID: value[uint32](p, "MainPID"), NRestarts: value[uint32](p, "NRestarts"),
		ExecMainCode: value[int32](p, "ExecMainCode"), ExecMainStatus: value[int32](p, "ExecMainStatus"),
		NeedDaemonReload: value[bool](p, "NeedDaemonReload"),
		MemoryCurrent:    p.amount("MemoryCurrent"),
		CPUTime:          time.Duration(p.amount("CPUUsageNSec")),
		mainStart:        time.Duration(value[uint64](p, "ExecMainStartTimestampMonotonic")) * time.Microsecond,
	}
	if id := value[[]byte](p, "InvocationID"); len(id) > 0 {
		s.InvocationID = fmt.Sprintf("%x", id)
	}
	if us := value[uint64](p, "ActiveEnterTimestamp"); us > 0 {
		s.ActiveSince = time.UnixMicro(int64(us))
	}
	return s, nil
}

// List returns the loaded units that match any of the patterns, in any state, in one call. Only Name, Description, Load,
// Active and Sub are filled.
func (m *Manager) List(ctx context.Context, patterns ...string) ([]Status, error) {
	for _, p := range patterns {
		if !clean(p) {
			return nil, fmt.Errorf("list units: %w: pattern %q", domain.ErrInvalid, p)
		}
	}
	return list(ctx, m.link, patterns)
}

// ListRuns returns the loaded units of the runs of exactly this instance.
func (m *Manager) ListRuns(ctx context.Context, n Names, instance string) ([]Status, error) {
	all, err := m.List(ctx, n.RunPattern(instance))
	if err != nil {
		return nil, err
	}
	out := all[:0]
	for _, s := range all {
		if n.IsRun(instance, s.Name) {
			out = append(out, s)
		}
	}
	return out, nil
}

func list(ctx context.Context, l *link, patterns []string) ([]Status, error) {
	var rows []sdbus.UnitStatus
	if patterns == nil {
		patterns = []string{}
	}
	if err := l.call(ctx, "ListUnitsByPatterns", []string{}, patterns).Store(&rows); err != nil {
		return nil, fmt.Errorf("list units: %w", err)
	}
	out := make([]Status, len(rows))
	for i, r := range rows {
		out[i] = Status{Name: r.Name, Description: r.Description, Load: r.LoadState, Active: r.ActiveState, Sub: r.SubState}
	}
	return out, nil
}

// Environment returns the environment that the manager gives to its services.
func (m *Manager) Environment(ctx context.Context) (map[string]string, error) {
	var lines []string
	if err := m.property(ctx, "Environment", &lines); err != nil {
		return nil, err
	}
	env := make(map[string]string, len(lines))
	for _, l := range lines {
		if k, v, ok := strings.Cut(l, "="); ok {
			env[k] = v
		}
	}
	return env, nil
}

// SystemdVersion returns the manager's major version, such as 252.
func (m *Manager) SystemdVersion(ctx context.Context) (int, error) {
	var text string
	if err := m.property(ctx, "Version", &text); err != nil {
		return 0, err
	}
	return parseVersion(text)
}

func parseVersion(text string) (int, error) {
	digits := strings.TrimLeft(text, "v ")
	if i := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		digits = digits[:i]
	}
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0, fmt.Errorf("systemd's version %q starts with no number", text)
	}
	return n, nil
}

func (m *Manager) property(ctx context.Context, name string, to any) error {
	var v dbus.Variant
	if err := m.link.callOn(ctx, systemdPath, propsIface+".Get", managerIface, name).Store(&v); err != nil {
		return fmt.Errorf("read the user manager's %s: %w", name, err)
	}
	if err := v.Store(to); err != nil {
		return fmt.Errorf("read the user manager's %s: %w", name, err)
	}
	return nil
}

// known adds the domain's sentinel to an error that has one.
func known(err error) error {
	switch errName(err) {
	case errNoSuchUnit, errFileNotFound:
		return errors.Join(domain.ErrNotFound, err)
	case errUnitExists:
		return errors.Join(domain.ErrExists, err)
	}
	return err
}

// resting reports whether a unit in this ActiveState has no process and no job to come.
func resting(active string) bool { return active == "" || active == "inactive" || active == "failed" }

// clean reports whether text may go over the bus.
func clean(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

func objectPath(unit string) dbus.ObjectPath {
	return unitPath + dbus.ObjectPath(sdbus.PathBusEscape(unit))
}

// unitOf is the inverse of objectPath, "" for any other object.
func unitOf(path dbus.ObjectPath) string {
	s, ok := strings.CutPrefix(string(path), string(unitPath))
	if !ok || strings.Contains(s, "/") {
		return ""
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '_' && i+2 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
				b.WriteByte(byte(c))
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// props are the properties of an object. A property that is missing, or of another type in another version of systemd,
// reads as its zero value.
type props map[string]dbus.Variant

func value[T any](p props, name string) T {
	v, _ := p[name].Value().(T)
	return v
}

func (p props) str(name string) string { return value[string](p, name) }

// amount reads a measure for which systemd writes "not known" as the largest number.
func (p props) amount(name string) uint64 {
	if v := value[uint64](p, name); v != ^uint64(0) {
		return v
	}
	return 0
}
