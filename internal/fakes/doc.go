// Package fakes has deterministic stand-ins for the ports of the domain, for tests of what uses a port. Each passes the
// conformance suite of its port. It is for tests only and must not be imported by anything that is installed.
package fakes
