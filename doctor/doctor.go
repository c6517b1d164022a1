// Package doctor looks for what breaks in practice: a user manager that is not there, agents that a run would not find,
// unit files of another version, a full disk, work without a ticket. Each finding says what is wrong and the command
// that mends it, and for some what mends it without a person. To look changes nothing.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"gaia/domain"
	"gaia/journal"
	"gaia/registry"
	"gaia/units"
)

// Level says how bad a finding is.
type Level string

// The levels. Only Fail keeps Gaia from working, or ends work that is under way; Info is no matter of being well.
const (
	OK   Level = "ok"
	Info Level = "info"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Finding is one look.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Text  string `json:"text"`
	Mend  string `json:"mend"` // command or advice; "" where there is nothing to mend
	Fix   *Fix   `json:"-"`    // nil where mending is a person's matter
}

// Fix mends a finding. What it does can be done at any time: it removes nothing, ends nothing that runs, and is no harm
// where somebody else has done it meanwhile.
type Fix struct {
	Ask string                                    // what a person must say yes to; "" where nothing needs to be asked
	Do  func(ctx context.Context) (string, error) // returns what was done, as a sentence for people
}

// Hub is what doctor asks the hub.
type Hub interface {
	// Health asks once: does it answer, can it read and write.
	Health(ctx context.Context) (live, ready error)
	// Now is the hub's wall clock.
	Now(ctx context.Context) (time.Time, error)
	// Ticket returns a ticket by id; domain.ErrNotFound where there is none.
	Ticket(ctx context.Context, ref string) (domain.Ticket, error)
}

// Config says where to look.
type Config struct {
	Home   registry.Home
	Names  units.Names
	Paths  units.Paths
	Hub    Hub   // nil where it could not even be addressed, with HubErr
	HubErr error // why
	// Elsewhere is the hub's address where it is not the user's own, which systemd would start here.
	Elsewhere string
	UID       int
	Logind    units.Logind
	Path      string // PATH of the shell that asks, to be held against that of runs; "" where nobody does
	Person    bool   // a person is there, whom polkit may ask for a password
	Journal   journal.Reader
	MinFree   uint64 // bytes of disk in the state folder; 0 for the usual
}

// The oldest versions with which Gaia was tried.
var (
	minTmux = [2]int{3, 3}
	minGit  = [2]int{2, 34}
)

// minState is how much disk must be free where hub, run folders and what agents print lie.
const minState = 256 << 20

// checkTimeout bounds one check: nothing here may hang on a wedged program.
const checkTimeout = 20 * time.Second

// clockSkew is by how much this clock may differ from the hub's.
const clockSkew = 5 * time.Second

// Run makes every check and returns the findings in a fixed order.
func Run(ctx context.Context, c Config) []Finding {
	d := &doctor{Config: c}
	for _, check := range []func(context.Context){
		d.runtime, d.places, d.versions, d.bus, d.manager, d.linger, d.journal, d.machine, d.hub, d.checkouts,
	} {
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		check(ctx)
		cancel()
	}
	if d.man != nil {
		d.man.Close()
	}
	return d.found
}

type doctor struct {
	Config
	man      *units.Manager    // nil where there is none
	env      map[string]string // the manager's
	identity *registry.Machine
	found    []Finding
}

func (d *doctor) add(check string, level Level, mend, format string, args ...any) {
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ") // errors that are joined
	d.found = append(d.found, Finding{Check: check, Level: level, Text: text, Mend: mend})
}

// fixable says of the last finding what mends it.
func (d *doctor) fixable(ask string, do func(context.Context) (string, error)) {
	d.found[len(d.found)-1].Fix = &Fix{Ask: ask, Do: do}
}

func (d *doctor) machine(context.Context) {
	m, err := d.Home.Machine()
	if err != nil {
		mend := "edit " + d.Home.MachineFile()
		if _, err := os.Stat(d.Home.MachineFile()); errors.Is(err, fs.ErrNotExist) {
			mend = "gaia init"
		}
		d.add("machine.toml", Fail, mend, "%v", err)
		return
	}
	d.identity = &m
	d.add("machine.toml", OK, "", "%s on %s", m.UserID, m.HostID)
}
