// Package session is what one run is given and what it leaves: the run folder with its files, the environment, and the reason
// that follows from a run's record. Everything in it works on files and values alone: it must not start a process, ask the
// hub or look at units. What an agent is told is written by the package prompt.
package session
