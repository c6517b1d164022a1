//go:build linux && !root

package usermanager

import "os/exec"

// rootOnly says that the tests take the whole user manager down and up again, for which they stay root.
const rootOnly = false

// asUser makes a command the ordinary user's, whom we are already.
func asUser(*exec.Cmd) {}

// Own gives files that a test has made to the test's user.
func (Env) Own(...string) error { return nil }
