// Package host is what runs inside the unit of a run: Host is its main process, Exec becomes the agent in the pane, and
// Post is called when the unit has ended. The three share nothing but the run folder.
//
// They outlive conductor and hub and must not need either: what a run is, what it may see and how it ended lies in the
// folder. No data reaches a shell, an argument vector that others can read, or a unit's own limits through them.
package host

// The exit statuses of the three programs that are not the agent's own.
const (
	ExitFailed  = 1  // what the record or the journal tells
	ExitStarted = 75 // the run was started before; nothing was done
	ExitConfig  = 78 // the run folder is not usable
	ExitNoAgent = 126
)
