// Package daemon is the conductor: the loop that claims tickets from the hub, hosts their runs, watches them and closes
// them. It knows the world through the four ports of package domain and the run folders alone, and it holds no state that
// a new process could not rebuild from hub, units and run folders; so it may die at any point.
//
// It must not write ticket content, and it must not end a session because a probe failed or the hub is silent: a
// session is ended when the hub says that its run is over, or when a person asks for it.
package daemon
