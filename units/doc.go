// Package units is Gaia's only door to systemd: the names of its units, the unit files themselves, the transient
// service of each run, and the user manager over D-Bus (jobs awaited, results reported, changes watched, linger).
//
// It talks to the manager's own bus API and never runs systemctl, loginctl or dbus-launch. It knows nothing of tickets,
// hubs or tmux, and it keeps no state: what it says is what the manager says at that moment. A lost connection is an
// error of every call in flight; to connect again is the caller's decision. No secret may be put into a unit's command
// line or environment, since every process of the user can read both.
package units
