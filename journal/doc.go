// Package journal reads what Gaia and systemd have logged, by the program journalctl: the format of journal files is
// systemd's own, and its library would need cgo. It must not write to the journal, which is the matter of
// gaia/internal/log, and knows no hub: what is looked for is given to it.
package journal
