package domain

import "encoding/json"

// Event is one entry of the hub's log: what changed, by whom, and the changed object as it is now. Kinds are
// <type>.<verb>, such as ticket.moved, run.claimed or conductor.registered.
type Event struct {
	Seq     int64           `json:"seq"` // from 1, without gaps
	Time    Time            `json:"time"`
	Kind    string          `json:"kind"`
	Actor   string          `json:"actor"`   // user/ID, conductor/MACHINE_ID, run/ID or hub
	Project string          `json:"project"` // project id, "" where there is none
	Type    string          `json:"type"`    // project, ticket, run, conductor, comment, label, user
	Object  string          `json:"object"`  // id of the changed object
	Ticket  Ref             `json:"ticket"`  // ticket id, where one is concerned
	Data    json.RawMessage `json:"data"`    // the object after the change, flat
}
