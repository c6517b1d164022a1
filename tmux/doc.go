// Package tmux drives tmux: one server per run on a socket of its own, with Gaia's configuration and nobody else's.
//
// The package never touches a server that it was not given by socket, never names a process, never hands data to a
// shell or to tmux's own command parser, and gives every call a deadline.
package tmux
