//go:build race

package hub_test

// raced: the race detector makes the database many times slower, so the longest test does less under it.
const raced = true
