package units

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	sdbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"gaia/domain"
)

// runStopTimeout is how long a run has between SIGTERM and SIGKILL; its host extends it while it saves what is there.
const runStopTimeout = 10 * time.Second

var envName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })

// lostInCommands: systemd 252 escapes these in a transient unit's file in a way that it does not read back, so that after a
// daemon-reload the command would have another argument. A path with them is refused rather than lost then.
const lostInCommands = "$;"

// CheckArgument returns an error unless a can be an argument of a run's command. The path of its folder is one, so whoever
// chooses where run folders lie can ask before.
func CheckArgument(a string) error {
	if !clean(a) || strings.ContainsAny(a, lostInCommands) {
		return fmt.Errorf("%w: systemd does not keep the argument %q: it may have no $, no ; and must be text", domain.ErrInvalid, a)
	}
	return nil
}

// RunUnit describes the transient service of one run. Everybody who may read the user's bus or /proc can read it, so it
// carries no secret: what is secret lies in a 0600 file of the run folder that ExecStart names.
type RunUnit struct {
	Name, Description, Slice string
	ExecStart, ExecStopPost  []string // argument vectors with an absolute program, passed literally
	Environment              map[string]string
	Limits                   domain.RunLimits
}

// StartTransient makes and starts the unit of a run and waits until its host has said READY. If a unit of that name is
// loaded, nothing happens and the error is domain.ErrExists: the name is the lock that keeps one run from being started
// twice. When ctx ends first, the unit goes on starting.
func (m *Manager) StartTransient(ctx context.Context, u RunUnit) error {
	if err := u.check(); err != nil {
		return fmt.Errorf("start %s: %w", u.Name, err)
	}
	type aux struct {
		Name       string
		Properties []sdbus.Property
	}
	return m.await(ctx, "start", u.Name, func() *dbus.Call {
		return m.link.call(ctx, "StartTransientUnit", u.Name, "fail", u.properties(), []aux{})
	})
}

func (u RunUnit) check() error {
	if err := errors.Join(checkUnit(u.Name), checkUnit(u.Slice)); err != nil {
		return err
	}
	for _, c := range []struct {
		what string
		argv []string
	}{{"ExecStart", u.ExecStart}, {"ExecStopPost", u.ExecStopPost}} {
		if len(c.argv) == 0 && c.what == "ExecStopPost" {
			continue
		}
		if len(c.argv) == 0 || !filepath.IsAbs(c.argv[0]) {
			return fmt.Errorf("%w: %s needs a program with an absolute path", domain.ErrInvalid, c.what)
		}
		for _, a := range c.argv {
			if err := CheckArgument(a); err != nil {
				return fmt.Errorf("%s: %w", c.what, err)
			}
		}
	}
	if !clean(u.Description) {
		return fmt.Errorf("%w: the description is no text: %q", domain.ErrInvalid, u.Description)
	}
	for k, v := range u.Environment {
		if !envName().MatchString(k) || !clean(v) {
			return fmt.Errorf("%w: environment variable %q", domain.ErrInvalid, k)
		}
	}
	if l := u.Limits; l.CPUWeight > 10000 || l.Time < 0 {
		return fmt.Errorf("%w: limits: cpu weight %d (1 to 10000), time %s", domain.ErrInvalid, l.CPUWeight, l.Time)
	}
	return nil
}

// execCommand is systemd's a(sasb). The newer a(sasas) is of no use: systemd 252 writes it to the transient unit's file
// under a key that it does not know itself, and the next daemon-reload makes the running unit one with a bad setting,
// without its ExecStopPost.
type execCommand struct {
	Path          string
	Args          []string
	IgnoreFailure bool
}

func execProp(name string, argv []string) sdbus.Property {
	return prop(name, []execCommand{{Path: argv[0], Args: argv}})
}

func prop(name string, v any) sdbus.Property {
	return sdbus.Property{Name: name, Value: dbus.MakeVariant(v)}
}

const infinity = uint64(math.MaxUint64)

func (u RunUnit) properties() []sdbus.Property {
	l := u.Limits
	runtime := l.Time
	if runtime == 0 {
		runtime = domain.DefaultRunTime
	}
	p := []sdbus.Property{
		sdbus.PropDescription(u.Description),
		sdbus.PropSlice(u.Slice),
		sdbus.PropType("notify"),
		prop("NotifyAccess", "main"),
		prop("KillMode", "mixed"), // SIGTERM to the host alone, which ends tmux in order; SIGKILL to whatever is left
		prop("TimeoutStopUSec", micro(runStopTimeout)),
		prop("TimeoutStartUSec", infinity), // the host has its own limit for the tree
		prop("RuntimeMaxUSec", micro(runtime)),
		prop("Restart", "no"),         // the conductor decides, by a new run
		prop("OOMPolicy", "continue"), // the kernel's victim may be a compiler; the agent goes on
		prop("CollectMode", "inactive"),
		prop("MemoryMax", orInfinity(l.MemoryMax)),
		prop("TasksMax", orInfinity(l.TasksMax)), // else the manager's default would be a limit that nobody set
		execProp("ExecStart", u.ExecStart),
	}
	if l.CPUWeight > 0 {
		p = append(p, prop("CPUWeight", l.CPUWeight))
	}
	if len(u.ExecStopPost) > 0 {
		p = append(p, execProp("ExecStopPost", u.ExecStopPost))
	}
	if len(u.Environment) > 0 {
		env := make([]string, 0, len(u.Environment))
		for _, k := range slices.Sorted(maps.Keys(u.Environment)) {
			env = append(env, k+"="+u.Environment[k])
		}
		p = append(p, prop("Environment", env))
	}
	return p
}

func micro(d time.Duration) uint64 { return uint64(d.Microseconds()) }

func orInfinity(v uint64) uint64 {
	if v == 0 {
		return infinity
	}
	return v
}
