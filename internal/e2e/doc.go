// Package e2e holds the tests of the whole: a ticket on its way through the real hub, the real conductor, a real user
// manager, tmux and git, with every part of them killed on the way. It has no code but tests.
package e2e
