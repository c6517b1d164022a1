package domain

// Why says for each conductor of a ticket's project which gates let the ticket through.
type Why struct {
	Ticket     Ticket         `json:"ticket"`
	Project    Project        `json:"project"`
	Conductors []WhyConductor `json:"conductors"`
}

// WhyConductor is one conductor's part of a Why.
type WhyConductor struct {
	MachineID string       `json:"machine_id"`
	Eligible  bool         `json:"eligible"`
	Gates     []GateResult `json:"gates"`
}

// Snapshot is the state of a project, or of all, at one moment.
type Snapshot struct {
	At         Time           `json:"at"`
	Running    []SnapshotRun  `json:"running"`
	Waiting    []Ticket       `json:"waiting"`             // to be retried, or not before a time
	Blocked    []Ticket       `json:"blocked"`             // by tickets that are not finished
	Held       []Ticket       `json:"held"`                // by a person or a limit
	Machines   []Ticket       `json:"waiting_for_machine"` // their conductor has been away for long
	Conductors []Conductor    `json:"conductors"`
	Totals     SnapshotTotals `json:"totals"`
	Limits     SnapshotLimits `json:"limits"`
}

// SnapshotRun is a live run with its ticket.
type SnapshotRun struct {
	Run    Run    `json:"run"`
	Ticket Ticket `json:"ticket"`
}

// SnapshotTotals are sums over all runs ever.
type SnapshotTotals struct {
	Runs      int       `json:"runs"`
	Footprint Footprint `json:"footprint"`
}

// SnapshotLimits are what bounds dispatch now.
type SnapshotLimits struct {
	Live        int `json:"live"`
	Slots       int `json:"slots"` // over the conductors that are online
	MaxAttempts int `json:"max_attempts"`
	ClusterCap  int `json:"cluster_cap"` // of the project; 0 for none or for all projects
}
