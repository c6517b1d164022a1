package daemon

import "gaia/domain"

// action is what a tick does about one run.
type action int

const (
	actNothing  action = iota
	actDispatch        // begin or go on with what leads to a running agent
	actStarted         // tell the hub that the agent runs
	actReport          // tell the hub that the run has failed
	actStall           // the agent does nothing more, or waits for an answer that nobody gives: fail the run unless somebody is attached
	actQuestion        // the agent has told nothing new for long: ask its profile what it waits for
	actFinalise        // stop what is left, look at the tree, close the run at the hub
	actClose           // the hub is done with the run: clean up here
	actDiscard         // a reservation whose claim came to nothing
	actKeep            // something lives here that the hub does not know: say so, touch nothing
)

// view is all that is known of one run at one moment. It is made of answers, never of memory: so a new process decides
// as the old one would have.
type view struct {
	// The hub.
	answered bool // it has answered in this tick
	known    bool // it knows the run
	fate     domain.Fate

	// The session. Unknown where the listing failed.
	session   domain.SessionState
	goneTwice bool // a second complete listing has not found it either

	// The run folder.
	folder    bool // there is one
	spec      bool // the claim was answered
	started   bool // a host has begun
	otherBoot bool // …before the last boot
	tree      bool // the host has been let on
	record    bool // how it ended is written down
	verdict   bool // this conductor has decided that the run is to fail
	old       bool // reserved long ago

	// The moment.
	busy      bool // a worker is at it
	waits     bool // an earlier run of the ticket is to be closed first
	graceOver bool // the time to end its turn after the state write is over
	idle      bool // the agent has ended its turn
	stalled   bool // the agent has waited too long for a person, or says itself that it does nothing more
	mute      bool // the agent has told nothing for long, and its profile was not asked lately
}

// decide is the whole policy of reconciliation.
func decide(v view) action {
	switch {
	case v.busy || !v.answered:
		// Without the hub's word nothing is ended and nothing begun. What happened meanwhile waits in the run folder.
		return actNothing
	case !v.known:
		return decideUnknown(v)
	case v.fate.State.Ended():
		return decideEnded(v)
	}
	return decideLive(v)
}

func decideUnknown(v view) action {
	switch {
	case v.folder && !v.spec && v.session != domain.SessionAlive:
		if v.old {
			return actDiscard
		}
		return actNothing // the claim is asked again
	case v.session == domain.SessionAlive:
		return actKeep
	}
	return actNothing
}

func decideEnded(v view) action {
	switch {
	case v.fate.Finalized:
		return actClose
	case v.fate.State == domain.RunDone && v.session != domain.SessionGone && !v.graceOver && !v.idle:
		// Where the session could not be looked at, its agent may be in the middle of its turn.
		return actNothing
	}
	return actFinalise
}

func decideLive(v view) action {
	claimed := v.fate.State == domain.RunClaimed
	switch {
	case v.verdict:
		return actReport
	case v.session == domain.SessionUnknown:
		return actNothing
	case v.session == domain.SessionAlive && !v.folder:
		return actKeep
	case v.session == domain.SessionAlive && !v.tree:
		return dispatchUnless(v.waits)
	case v.session == domain.SessionAlive && v.stalled:
		return actStall
	case v.session == domain.SessionAlive && claimed:
		return actStarted
	case v.session == domain.SessionAlive && v.mute:
		return actQuestion
	case v.session == domain.SessionAlive:
		return actNothing
	}
	// No session.
	switch {
	case v.record:
		return actReport
	case v.started && (v.otherBoot || v.goneTwice):
		return actReport
	case v.started:
		return actNothing
	case v.folder && claimed:
		return dispatchUnless(v.waits)
	case v.goneTwice:
		return actReport
	}
	return actNothing
}

func dispatchUnless(waits bool) action {
	if waits {
		return actNothing
	}
	return actDispatch
}
