package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"gaia/domain"
	"gaia/internal/clock"
)

// ErrSuperseded is what Run returns when a newer process has registered as this conductor. The process must exit with a
// status that systemd does not restart: two processes would otherwise take the identity from each other for ever.
var ErrSuperseded = errors.New("a newer process has registered as this conductor; this one stops and leaves its runs to that one")

// Workspace is what the conductor needs of the checkout: the port, and the commit that a new tree would start from.
type Workspace interface {
	domain.Workspace
	// Base returns that commit, without a fetch.
	Base(ctx context.Context) (string, error)
	// GitDir returns the git directory of a worktree.
	GitDir(ctx context.Context, tree string) (string, error)
	// KeepSpares sees to it that n spare worktrees are ready, none where less than minFree bytes of disk are free. While the
	// machine is busy none is made, but what is too many goes. ctx may end it at any point.
	KeepSpares(ctx context.Context, n int, minFree uint64, busy bool) error
}

// Agents is what a machine can start at one moment.
type Agents struct {
	Available   map[string]domain.Agent
	Unavailable map[string]error // why not, by name
	Default     string
	Routes      []domain.Route
}

// Machine is what the conductor asks of the machine at each dispatch, since people install agents and change their
// environment while it runs.
type Machine interface {
	Agents(ctx context.Context) (Agents, error)
	// Environment composes the environment of a run; gaia holds the GAIA_* values.
	Environment(ctx context.Context, agent string, gaia map[string]string) (map[string]string, error)
	// Trusted reports whether a person has trusted hooks of that SHA-256 for this checkout.
	Trusted(sha string) (bool, error)
	// Permissions returns what an agent may do where the checkout wants that. refused: the checkout, which comes from
	// the repository, wants more than a person has allowed on this machine.
	Permissions(agent, want string) (granted string, refused bool, err error)
	// Pressure returns why the machine should not take on more work, or "". What passes by itself begins with
	// domain.MachineBusy. maxLoad is the load average per processor; 0 is no limit.
	Pressure(minFreeDisk uint64, maxLoad int) string
	// BootID identifies the time since the last boot.
	BootID() (string, error)
	// Attached reports whether a person looks at the run whose tmux server has that socket.
	Attached(ctx context.Context, socket string) (bool, error)
}

// Settings are the values of conductor.toml that hold for the conductor itself.
type Settings struct {
	Project       string // key
	States        []string
	MaxParallel   int
	Slots         map[string]int
	Agent         string // of tickets for which nothing else names one; "" leaves it to the machine
	Permissions   string // ask, edits or all
	Push          string // when an agent may push: never or agent
	WorkspaceRoot string
	MinFreeDisk   uint64
	Spares        int // worktrees that are kept ready
	MaxLoad       int // per processor; 0 is no limit
	Limits        domain.RunLimits
	Tick          time.Duration // between two ticks that nothing has hastened
	Grace         time.Duration // for a run to end its turn after its own state write
	Blocked       time.Duration // for an agent to wait for a person who does not come
	TreeTimeout   time.Duration // for the tree to be made
}

// The times that hold where Settings name none.
const (
	DefaultTick    = 15 * time.Second
	DefaultGrace   = 20 * time.Second
	DefaultBlocked = 15 * time.Minute
)

// Names are how the machine's objects are called.
type Names struct {
	Unit   func(number int) string // of a run
	Socket func(run string) string // of a run's tmux server
}

// Config is what a conductor consists of.
type Config struct {
	Instance, Prefix string
	MachineID        string
	Epoch            string // drawn by each process start
	Label, Version   string
	Runs             string // folder of the run folders
	GaiaBin          string // folder of the binaries
	Hub              string // address, for the runs
	Home             string // GAIA_HOME where that is set, for the runs
	Names            Names

	Remote    domain.Remote
	Executor  domain.Executor
	Workspace Workspace
	Machine   Machine
	Clock     clock.Clock
	Log       zerolog.Logger

	Settings Settings
	// Reload reads the settings again.
	Reload func() (Settings, error)
	// Drain has the hub give this conductor no new work, or work again. It is asked for by people on the bus, and is theirs to
	// ask: the conductor's own token does not allow it.
	Drain func(ctx context.Context, draining bool) error
	// Notify speaks to the service manager; nil speaks to nobody.
	Notify func(state string)
	// Watchdog is the service manager's limit between two signs of life, 0 without one.
	Watchdog time.Duration

	// step is called before each step of the loop and of a run's work. Tests interrupt there.
	step func(name string) error
}

// Deadlines of calls. Each is far below the watchdog's limit where the loop itself waits.
const (
	callDeadline    = 10 * time.Second // one question to hub, units or git that the loop waits for
	hookDeadline    = 30 * time.Minute // on top of the time for the tree: hooks run before the agent does
	stopDeadline    = 5 * time.Minute  // a session that ends: after_run extends it
	reportDeadline  = time.Minute
	partingDeadline = 8 * time.Second  // at a stop: for the workers to end, and for the hub to hear of it
	undoDeadline    = 20 * time.Second // at a stop: for claims to be taken back, with hosts that end first
)

func (c *Config) check() error {
	for _, p := range []struct {
		name    string
		missing bool
	}{
		{"instance", c.Instance == ""}, {"machine_id", c.MachineID == ""}, {"epoch", c.Epoch == ""},
		{"project", c.Settings.Project == ""}, {"runs folder", c.Runs == ""}, {"remote", c.Remote == nil},
		{"executor", c.Executor == nil}, {"workspace", c.Workspace == nil}, {"machine", c.Machine == nil},
		{"clock", c.Clock == nil}, {"names", c.Names.Unit == nil || c.Names.Socket == nil}, {"drain", c.Drain == nil},
	} {
		if p.missing {
			return fmt.Errorf("conductor: %s is missing", p.name)
		}
	}
	if c.Settings.MaxParallel < 1 {
		return fmt.Errorf("conductor: max_parallel is %d and must be at least 1", c.Settings.MaxParallel)
	}
	return nil
}
