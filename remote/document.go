package remote

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// The resource types, and what the hub calls fields that have another name in the domain.
const (
	typeProject   = "gaia_project--gaia_project"
	typeTicket    = "gaia_ticket--gaia_ticket"
	typeRun       = "gaia_run--gaia_run"
	typeConductor = "gaia_conductor--gaia_conductor"
	typeComment   = "gaia_comment--gaia_comment"
	typeLabel     = "gaia_term--gaia_labels"
	typeUser      = "user--user"
)

var (
	ticketNames    = map[string]string{"project_id": "project", "assignee_user_id": "assignee", "parent_id": "parent"}
	runNames       = map[string]string{"project_id": "project", "ticket_id": "ticket", "conductor_id": "conductor"}
	conductorNames = map[string]string{"owner_user_id": "owner", "project_id": "project"}
	commentNames   = map[string]string{"ticket_id": "ticket", "comment_type": "type"}
)

// kind is a resource type as this client sees it.
type kind struct {
	typ   string
	names map[string]string // wire name -> JSON name of the domain type
	// refs are the relationships that can be written, by the JSON name of the domain type.
	refs map[string]ref
}

type ref struct {
	wire, typ string
	many      bool
}

var (
	projects = kind{typ: typeProject, refs: map[string]ref{"members": {"members", typeUser, true}}}
	tickets  = kind{typ: typeTicket, names: ticketNames, refs: map[string]ref{
		"project": {"project_id", typeProject, false}, "assignee": {"assignee_user_id", typeUser, false},
		"target": {"target", typeConductor, false}, "parent": {"parent_id", typeTicket, false},
		"blocked_by": {"blocked_by", typeTicket, true}, "labels": {"labels", typeLabel, true},
	}}
	runs       = kind{typ: typeRun, names: runNames}
	conductors = kind{typ: typeConductor, names: conductorNames}
	comments   = kind{typ: typeComment, names: commentNames, refs: map[string]ref{"ticket": {"ticket_id", typeTicket, false}}}
	labels     = kind{typ: typeLabel}
	users      = kind{typ: typeUser}
)

func (k kind) path() string { return "/jsonapi/" + strings.Replace(k.typ, "--", "/", 1) }

// wire returns what the hub calls a field of the domain type.
func (k kind) wire(field string) string {
	for wire, f := range k.names {
		if f == field {
			return wire
		}
	}
	return field
}

type object struct {
	Type          string                     `json:"type"`
	ID            string                     `json:"id,omitempty"`
	Attributes    map[string]json.RawMessage `json:"attributes,omitempty"`
	Relationships map[string]relationship    `json:"relationships,omitempty"`
}

type relationship struct {
	Data json.RawMessage `json:"data"`
}

type identifier struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

// decode reads a resource into v, a pointer to its domain type.
func (k kind) decode(o object, v any) error {
	if o.Type != k.typ {
		return fmt.Errorf("the hub sent a %q where a %q belongs", o.Type, k.typ)
	}
	field := func(wire string) string {
		if f, ok := k.names[wire]; ok {
			return f
		}
		return wire
	}
	flat := map[string]any{"id": o.ID}
	for name, raw := range o.Attributes {
		flat[field(name)] = raw
	}
	for name, rel := range o.Relationships {
		var (
			one  identifier
			many []identifier
		)
		switch {
		case string(rel.Data) == "null":
			flat[field(name)] = nil
		case json.Unmarshal(rel.Data, &many) == nil:
			ids := make([]string, len(many))
			for i, id := range many {
				ids[i] = id.ID
			}
			flat[field(name)] = ids
		case json.Unmarshal(rel.Data, &one) == nil:
			flat[field(name)] = one.ID
		default:
			return fmt.Errorf("the hub sent a relationship %q that cannot be understood", name)
		}
	}
	raw, err := json.Marshal(flat)
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	if err != nil {
		return fmt.Errorf("read a %s of the hub: %w", k.typ, err)
	}
	return nil
}

// encode writes v, a domain draft or patch, as a resource. Fields named in drop are left out.
func (k kind) encode(id string, v any, drop ...string) (map[string]object, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write a %s: %w", k.typ, err)
	}
	flat := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &flat); err != nil {
		return nil, fmt.Errorf("write a %s: %w", k.typ, err)
	}
	for _, name := range drop {
		delete(flat, name)
	}
	o := object{Type: k.typ, ID: id, Attributes: map[string]json.RawMessage{}, Relationships: map[string]relationship{}}
	for name, raw := range maps.All(flat) {
		r, ok := k.refs[name]
		if !ok {
			o.Attributes[k.wire(name)] = raw
			continue
		}
		data, err := r.data(raw)
		if err != nil {
			return nil, fmt.Errorf("write a %s: %s: %w", k.typ, name, err)
		}
		if id == "" && string(data) == "null" {
			continue // a new resource without it: there is nothing to take away
		}
		o.Relationships[r.wire] = relationship{data}
	}
	return map[string]object{"data": o}, nil
}

// data turns an id, a list of ids or null into resource identifiers.
func (r ref) data(raw json.RawMessage) (json.RawMessage, error) {
	if r.many {
		var ids []string
		if err := json.Unmarshal(raw, &ids); err != nil {
			return nil, err
		}
		out := make([]identifier, len(ids))
		for i, id := range ids {
			out[i] = identifier{r.typ, id}
		}
		return json.Marshal(out)
	}
	var id string
	if err := json.Unmarshal(raw, &id); err != nil {
		return nil, err
	}
	if id == "" {
		return json.RawMessage("null"), nil
	}
	return json.Marshal(identifier{r.typ, id})
}
