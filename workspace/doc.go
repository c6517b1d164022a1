// Package workspace gives each ticket a git worktree of its own, outside the checkout, and takes it away again when
// nothing in it can be lost. It implements domain.Workspace on the git command line.
//
// It must never destroy work: nothing is forced on a tree that an agent or a person may have touched, a branch is
// never deleted, the repository is never pruned, and what cannot be known counts as a reason to keep. What lies in a
// tree after a crash is saved under refs/gaia/saved/ without touching index or files; the tip of a tree that Reap
// removes is saved under refs/gaia/reaped/.
//
// It runs no hooks: neither the repository's own (every call of git switches them off) nor those of conductor.toml,
// which belong to the session.
package workspace
