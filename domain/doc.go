// Package domain holds Gaia's vocabulary and its rules: projects, tickets, runs and conductors, the workflows,
// the dispatch gates, the claim order, attempts and back-off, and the four ports through which a conductor
// reaches the world (Remote, Executor, Workspace, Agent).
//
// It is pure: it imports the standard library only, does no I/O, reads no clock and draws no randomness. Every
// rule that both the hub and a person must agree on (`gaia why` and the claim, for one) lives here once.
package domain
