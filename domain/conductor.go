package domain

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
)

// ConductorStatus is the hub's view of a conductor.
type ConductorStatus string

// The statuses. Offline is derived from the last heartbeat; draining is stored and survives restarts.
const (
	ConductorOnline   ConductorStatus = "online"
	ConductorDraining ConductorStatus = "draining"
	ConductorOffline  ConductorStatus = "offline"
)

// Conductor is one checkout on one machine that hosts agents.
type Conductor struct {
	ID             string          `json:"id"`         // UUIDv7
	MachineID      string          `json:"machine_id"` // see MachineID
	Epoch          string          `json:"epoch"`      // drawn by each process start
	Label          string          `json:"label"`
	Owner          string          `json:"owner"`   // user id
	Project        string          `json:"project"` // project id
	States         []string        `json:"states"`  // empty: every claimable state
	Status         ConductorStatus `json:"status"`
	Draining       bool            `json:"draining"`
	Paused         string          `json:"paused"` // why the conductor itself does not ask for work; see MachineBusy
	CurrentLoad    int             `json:"current_load"`
	MaxParallel    int             `json:"max_parallel"`
	Slots          map[string]int  `json:"slots"` // per state, on top of max_parallel
	WorkspaceRoot  string          `json:"workspace_root"`
	Version        string          `json:"version"`
	LastSeen       Time            `json:"last_seen"`
	LeaseExpiresAt Time            `json:"lease_expires_at"`
	PartedAt       Time            `json:"parted_at"` // set by a clean stop
	CreatedAt      Time            `json:"created_at"`
}

var machinePart = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9-]+$`) })

// CheckMachinePart returns an error that names what unless s matches [a-z0-9-]+ in at most 63 bytes.
func CheckMachinePart(what, s string) error {
	if !machinePart().MatchString(s) || len(s) > 63 {
		return fmt.Errorf("%s %q must be 1 to 63 of a-z, 0-9 and -", what, s)
	}
	return nil
}

// MachineID composes the identity of a conductor: <user_id>.<host_id>.<instance>. It never guesses a part.
func MachineID(user, host, instance string) (string, error) {
	for _, p := range []struct{ what, val string }{{"user_id", user}, {"host_id", host}, {"instance", instance}} {
		if err := CheckMachinePart(p.what, p.val); err != nil {
			return "", err
		}
	}
	return user + "." + host + "." + instance, nil
}

// SplitMachineID returns the parts of a machine_id.
func SplitMachineID(id string) (user, host, instance string, err error) {
	parts := strings.Split(id, ".")
	if len(parts) != 3 {
		return "", "", "", fmt.Errorf("machine_id %q must be <user_id>.<host_id>.<instance>", id)
	}
	if _, err := MachineID(parts[0], parts[1], parts[2]); err != nil {
		return "", "", "", fmt.Errorf("machine_id %q: %w", id, err)
	}
	return parts[0], parts[1], parts[2], nil
}
