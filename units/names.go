package units

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"gaia/domain"
)

// DefaultPrefix is the prefix of a real installation.
const DefaultPrefix = "gaia"

var (
	// No dash: slices nest at dashes, and gaia-x.slice would be a child of gaia.slice.
	prefixForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z][a-z0-9]{0,15}$`) })
	unitForm   = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[A-Za-z0-9:_.\\-]+(@[A-Za-z0-9:_.\\-]*)?\.(service|socket|slice|timer|target|scope)$`)
	})
)

// Names derives the name of every unit and bus object of one installation from its prefix, so that a demo or a test
// never meets a real installation.
type Names struct{ Prefix string }

// NewNames returns the names under a prefix of [a-z][a-z0-9]{0,15}; an empty prefix is DefaultPrefix.
func NewNames(prefix string) (Names, error) {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	if !prefixForm().MatchString(prefix) {
		return Names{}, fmt.Errorf("%w: GAIA_PREFIX %q must be a lower-case letter and up to 15 lower-case letters or digits", domain.ErrInvalid, prefix)
	}
	return Names{Prefix: prefix}, nil
}

// Conductor returns the unit of a checkout's conductor.
func (n Names) Conductor(instance string) string {
	return n.Prefix + "-conductor@" + instance + ".service"
}

// Hub returns the hub's service.
func (n Names) Hub() string { return n.Prefix + "-hub.service" }

// HubSocket returns the socket that starts the hub.
func (n Names) HubSocket() string { return n.Prefix + "-hub.socket" }

// Slice returns the slice that every run lives in.
func (n Names) Slice() string { return n.Prefix + ".slice" }

// Reap returns the service that removes a checkout's finished worktrees.
func (n Names) Reap(instance string) string { return n.Prefix + "-reap@" + instance + ".service" }

// ReapTimer returns the timer that starts Reap once a day.
func (n Names) ReapTimer(instance string) string { return n.Prefix + "-reap@" + instance + ".timer" }

// Run returns the unit of a run.
func (n Names) Run(instance string, number int) string {
	return n.Prefix + "-run-" + instance + "-" + strconv.Itoa(number) + ".service"
}

// RunPattern returns a glob that matches every run of instance. Globs cannot say "digits only": that of shop also
// matches shop-12's run 3. So whoever lists by it filters with IsRun, as ListRuns does.
func (n Names) RunPattern(instance string) string {
	return n.Prefix + "-run-" + instance + "-[1-9]*.service"
}

// IsRun reports whether unit is a run of exactly this instance.
func (n Names) IsRun(instance, unit string) bool {
	got, _, ok := n.ParseRun(unit)
	return ok && got == instance
}

// ParseRun returns instance and number of a run's unit. It accepts exactly the names that Run makes of a slug and a
// number from 1, so that no unit belongs to two instances.
func (n Names) ParseRun(unit string) (instance string, number int, ok bool) {
	rest, ok := cut(unit, n.Prefix+"-run-", ".service")
	if !ok {
		return "", 0, false
	}
	i := strings.LastIndexByte(rest, '-') // an instance may end in digits itself; the number is always the last part
	if i < 0 {
		return "", 0, false
	}
	instance = rest[:i]
	number, err := strconv.Atoi(rest[i+1:])
	if err != nil || number < 1 || strconv.Itoa(number) != rest[i+1:] || domain.CheckSlug(instance) != nil {
		return "", 0, false
	}
	return instance, number, true
}

// BusName returns the well-known bus name of a conductor. Slugs have no underscore, so two instances never share one.
func (n Names) BusName(instance string) string {
	return "org." + n.Prefix + ".Conductor1." + strings.ReplaceAll(instance, "-", "_")
}

func cut(s, prefix, suffix string) (string, bool) {
	s, a := strings.CutPrefix(s, prefix)
	s, b := strings.CutSuffix(s, suffix)
	return s, a && b
}

// checkUnit refuses a name that systemd would refuse, or take for something else, before it reaches the bus: the bus
// drops the whole connection of a client that sends text which is no UTF-8.
func checkUnit(unit string) error {
	if len(unit) > 255 || !unitForm().MatchString(unit) {
		return fmt.Errorf("%w: %q is no unit name", domain.ErrInvalid, unit)
	}
	return nil
}
