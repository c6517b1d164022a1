// Package registry is what a machine knows of itself and of its checkouts: the files of ~/.gaia (machine.toml,
// conductors.json, trust.toml, hub.toml, credentials) and conductor.toml of a checkout. Every parser is strict: what it
// does not know is an error with file, line and key, because a misspelt key that is passed over is a limit that does
// not hold.
//
// It must not derive an identity from the machine (host name, user name): a part that is missing is an error, since a
// derived name changes under people's feet and takes the tickets that are bound to it along.
package registry
