//go:build linux && root

package usermanager

// rootOnly says that the tests take the whole user manager down and up again, for which they stay root.
const rootOnly = true
