package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gaia/domain"
)

// Hub is hub.toml. Every key has a default.
//
//	listen = ["unix:///run/gaia/hub.sock", "tcp://127.0.0.1:7420"]
//	store = "sqlite:///var/lib/gaia/hub.db"
//
//	[leases]
//	claim = "2m"                 # of a claimed run, renewed by heartbeats
//	claim_max = "20m"            # however often renewed
//	running = "5m"               # of a running one
//	parting = "1h"               # after a clean stop of the conductor
//
//	[limits]
//	max_attempts = 3             # failures in one state before a ticket is held
//	max_infra = 10               # failures of the machinery within infra_window before it is held
//	infra_window = "24h"
//	max_entries = 5              # how often runs may enter one state
//	backoff_base = "10s"         # wait after the first failure, doubled by each further one
//	backoff_max = "5m"
//	limited_wait = "15m"         # where an agent's usage limit names no time
//	finalise_grace = "5m"
//	offline_after = "1m"         # without a heartbeat
//	waiting_after = "30m"        # offline for that long, a ticket shows as waiting for its machine
type Hub struct {
	Listen []string // unix:///path or tcp://host:port
	Store  string   // sqlite:///path or postgres://…
	Leases Leases
	Limits domain.Limits
}

// Leases are how long leases live.
type Leases struct{ Claim, ClaimMax, Running, Parting time.Duration }

// DefaultLeases are the built-in times.
func DefaultLeases() Leases {
	return Leases{Claim: 2 * time.Minute, ClaimMax: 20 * time.Minute, Running: 5 * time.Minute, Parting: time.Hour}
}

// Hub reads the user's hub.toml and fills in the user's own socket and database.
func (h Home) Hub() (Hub, error) {
	hub, err := LoadHub(h.HubFile())
	if err != nil {
		return Hub{}, err
	}
	if hub.Store == "" {
		hub.Store = "sqlite://" + h.HubDB()
	}
	if len(hub.Listen) == 0 && h.Runtime != "" {
		hub.Listen = []string{"unix://" + h.HubSocket()}
	}
	return hub, nil
}

// LoadHub reads a hub.toml; one that does not exist is all defaults. Listen and Store are empty where the file does not
// name them.
func LoadHub(path string) (Hub, error) {
	data, err := readConfig(path)
	if errors.Is(err, fs.ErrNotExist) {
		return ParseHub(path, nil)
	}
	if err != nil {
		return Hub{}, err
	}
	return ParseHub(path, data)
}

func checkListen(s string) error {
	if path, ok := strings.CutPrefix(s, "unix://"); ok && filepath.IsAbs(path) {
		return nil
	}
	if addr, ok := strings.CutPrefix(s, "tcp://"); ok {
		if _, port, err := net.SplitHostPort(addr); err == nil {
			if n, err := strconv.ParseUint(port, 10, 16); err == nil && n <= 65535 {
				return nil
			}
		}
	}
	return fmt.Errorf("%q is no listener: write unix:///path/of/socket or tcp://host:port", s)
}

func checkStore(s string) error {
	if path, ok := strings.CutPrefix(s, "sqlite://"); ok && filepath.IsAbs(path) {
		return nil
	}
	if strings.HasPrefix(s, "postgres://") {
		return nil
	}
	return errors.New("must be sqlite:///path/of/database or postgres://…") // not quoted: it may hold a password
}

// ParseHub reads hub.toml; name is the file in errors.
func ParseHub(name string, data []byte) (Hub, error) {
	t, err := parse(name, data)
	if err != nil {
		return Hub{}, err
	}
	h := Hub{Leases: DefaultLeases(), Limits: domain.DefaultLimits()}
	h.Listen = t.strings("listen", checkListen)
	if t.has("listen") && len(h.Listen) == 0 {
		t.fail("listen", "is empty, so nobody could reach the hub")
	}
	h.Store = t.str("store", "", checkStore)

	const least, most = 10 * time.Millisecond, 30 * 24 * time.Hour
	l := t.sub("leases")
	h.Leases.Claim = l.duration("claim", h.Leases.Claim, least, most)
	h.Leases.ClaimMax = l.duration("claim_max", h.Leases.ClaimMax, least, most)
	h.Leases.Running = l.duration("running", h.Leases.Running, least, most)
	h.Leases.Parting = l.duration("parting", h.Leases.Parting, least, most)
	if h.Leases.ClaimMax < h.Leases.Claim {
		l.fail("claim_max", "%s is shorter than claim, which is %s", short(h.Leases.ClaimMax), short(h.Leases.Claim))
	}
	l.done()

	m := t.sub("limits")
	h.Limits.MaxAttempts = int(m.integer("max_attempts", int64(h.Limits.MaxAttempts), 1, 1000))
	h.Limits.MaxInfra = int(m.integer("max_infra", int64(h.Limits.MaxInfra), 1, 1000))
	h.Limits.InfraWindow = m.duration("infra_window", h.Limits.InfraWindow, least, most)
	h.Limits.MaxEntries = int(m.integer("max_entries", int64(h.Limits.MaxEntries), 1, 1000))
	h.Limits.BackoffBase = m.duration("backoff_base", h.Limits.BackoffBase, time.Millisecond, most)
	h.Limits.BackoffMax = m.duration("backoff_max", h.Limits.BackoffMax, time.Millisecond, most)
	if h.Limits.BackoffMax < h.Limits.BackoffBase {
		m.fail("backoff_max", "%s is shorter than backoff_base, which is %s", short(h.Limits.BackoffMax), short(h.Limits.BackoffBase))
	}
	h.Limits.LimitedWait = m.duration("limited_wait", h.Limits.LimitedWait, least, most)
	h.Limits.FinaliseGrace = m.duration("finalise_grace", h.Limits.FinaliseGrace, least, most)
	h.Limits.OfflineAfter = m.duration("offline_after", h.Limits.OfflineAfter, least, most)
	h.Limits.WaitingAfter = m.duration("waiting_after", h.Limits.WaitingAfter, least, most)
	m.done()
	t.done()
	if err := t.doc.finish(); err != nil {
		return Hub{}, err
	}
	return h, nil
}
