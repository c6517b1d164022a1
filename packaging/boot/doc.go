// Package boot holds the tests of Gaia on a whole Debian that is started and loses its power: as a container (make
// boot-test) and as a virtual machine (make vm-test). Its tests know Gaia by its packages and commands only, as an
// administrator and a developer do. It has no code but tests.
package boot
