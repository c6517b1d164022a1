// Package house holds no code, only the tests that keep the house in order: which package may import which, that
// every package says what it is for, and the few things that must stand in one place or nowhere.
package house
