// Package usermanager gives tests, and the demo, a real systemd user manager to work against.
//
// A test package that needs one calls Main from its TestMain. As root on a machine whose PID 1 is not systemd (a
// container, mostly) the test binary is run again as an ordinary user inside namespaces of its own, with a systemd
// user manager, a D-Bus daemon and journald that nobody else sees; whatever the test starts ends with it, however it
// ends. As an ordinary user who has a user manager already, the tests use that one under prefixes of their own. On
// any other machine Main fails and says what is missing: a test that needs a user manager never skips.
//
// New gives one test a prefix, a home and freshly built binaries. Built with the tag root, the test binary stays root
// inside the namespaces and may take the whole user manager down and up again: see Machine.
//
// It is for tests and the demo only and must not be imported by anything that is installed.
package usermanager
