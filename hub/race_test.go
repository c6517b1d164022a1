//go:build race

package hub_test

// raced: the race detector makes the database many times slower, so the longest tests do less under it.
const raced = true
