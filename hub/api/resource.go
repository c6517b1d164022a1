package api

import (
	"encoding/json"
	"fmt"
	"net/url"
	"reflect"
	"strings"

	"gaia/domain"
)

// relation is a reference from one resource to others.
type relation struct {
	name  string // on the wire
	field string // JSON name in the domain type, which holds an id or a list of ids
	typ   string // resource type
	many  bool
}

// resource says how a domain type looks as a JSON:API resource. Everything that is neither its id nor a relation is
// an attribute of the same name, unless renamed.
type resource struct {
	typ, path string
	id        string // JSON name of the id, "id" where empty
	of        reflect.Type
	rels      []relation
	rename    map[string]string // attribute -> JSON name, where JSON:API reserves the latter

	names map[string]string // wire name -> JSON name
	wire  map[string]string // the other way round
}

const (
	typeProject   = "gaia_project--gaia_project"
	typeTicket    = "gaia_ticket--gaia_ticket"
	typeRun       = "gaia_run--gaia_run"
	typeConductor = "gaia_conductor--gaia_conductor"
	typeComment   = "gaia_comment--gaia_comment"
	typeLabel     = "gaia_term--gaia_labels"
	typeUser      = "user--user"
)

func define(r resource) *resource {
	r.path = "/jsonapi/" + strings.Replace(r.typ, "--", "/", 1)
	if r.id == "" {
		r.id = "id"
	}
	r.names, r.wire = map[string]string{"id": r.id}, map[string]string{r.id: "id"}
	other := map[string]string{}
	for _, rel := range r.rels {
		other[rel.field] = rel.name
	}
	for attr, field := range r.rename {
		other[field] = attr
	}
	for field := range jsonFields(r.of) {
		name := field
		if o, ok := other[field]; ok {
			name = o
		}
		if field == "id" {
			continue
		}
		r.names[name] = field
		if field != r.id {
			r.wire[field] = name
		}
	}
	return &r
}

var resources = []*resource{
	define(resource{typ: typeProject, of: reflect.TypeFor[domain.Project](), rels: []relation{
		{"members", "members", typeUser, true},
	}}),
	define(resource{typ: typeTicket, of: reflect.TypeFor[domain.Ticket](), rels: []relation{
		{"project_id", "project", typeProject, false},
		{"assignee_user_id", "assignee", typeUser, false},
		{"target", "target", typeConductor, false},
		{"tree_at", "tree_at", typeConductor, false},
		{"parent_id", "parent", typeTicket, false},
		{"blocked_by", "blocked_by", typeTicket, true},
		{"labels", "labels", typeLabel, true},
	}}),
	define(resource{typ: typeRun, of: reflect.TypeFor[domain.Run](), rels: []relation{
		{"project_id", "project", typeProject, false},
		{"ticket_id", "ticket", typeTicket, false},
		{"conductor_id", "conductor", typeConductor, false},
	}}),
	define(resource{typ: typeConductor, of: reflect.TypeFor[domain.Conductor](), rels: []relation{
		{"owner_user_id", "owner", typeUser, false},
		{"project_id", "project", typeProject, false},
	}}),
	define(resource{typ: typeComment, of: reflect.TypeFor[domain.Comment](), rename: map[string]string{"comment_type": "type"},
		rels: []relation{{"ticket_id", "ticket", typeTicket, false}}}),
	define(resource{typ: typeLabel, of: reflect.TypeFor[domain.Label](), id: "name"}),
	define(resource{typ: typeUser, of: reflect.TypeFor[domain.User]()}),
}

func resourceByType(typ string) *resource {
	for _, r := range resources {
		if r.typ == typ {
			return r
		}
	}
	return nil
}

// field returns the JSON name of a wire name.
func (r *resource) field(wire string) (string, bool) { f, ok := r.names[wire]; return f, ok }

// pointer returns where a document for this resource holds a field.
func (r *resource) pointer(field string) string {
	if field == r.id {
		return "/data/id"
	}
	for _, rel := range r.rels {
		if rel.field == field {
			return "/data/relationships/" + rel.name
		}
	}
	name := field
	if w, ok := r.wire[field]; ok {
		name = w
	}
	return "/data/attributes/" + escape(name)
}

func (r *resource) url(id string) string { return r.path + "/" + url.PathEscape(id) }

type version struct {
	Version string `json:"version"`
}

type identifier struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

type relationship struct {
	Data any `json:"data"` // nil, identifier or []identifier
}

type links struct {
	Self string `json:"self,omitempty"`
	Next string `json:"next,omitempty"`
	Prev string `json:"prev,omitempty"`
}

type object struct {
	Type          string                     `json:"type"`
	ID            string                     `json:"id"`
	Attributes    map[string]json.RawMessage `json:"attributes,omitempty"`
	Relationships map[string]relationship    `json:"relationships,omitempty"`
	Links         links                      `json:"links"`
}

type meta struct {
	Count int `json:"count"`
}

type document struct {
	JSONAPI  version  `json:"jsonapi"`
	Data     any      `json:"data"`
	Included []object `json:"included,omitempty"`
	Links    links    `json:"links"`
	Meta     *meta    `json:"meta,omitempty"`
}

// encode writes v, which is of the resource's domain type. only, where not nil, names the fields to keep.
func (r *resource) encode(v any, only []string) (object, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return object{}, fmt.Errorf("write a %s: %w", r.typ, err)
	}
	flat, err := members(raw, "")
	if err != nil {
		return object{}, fmt.Errorf("write a %s: %w", r.typ, err)
	}
	o := object{Type: r.typ, Attributes: map[string]json.RawMessage{}, Relationships: map[string]relationship{}}
	if err := json.Unmarshal(flat[r.id], &o.ID); err != nil {
		return object{}, fmt.Errorf("write a %s: its id: %w", r.typ, err)
	}
	o.Links.Self = r.url(o.ID)
	keep := func(name string) bool {
		if only == nil {
			return true
		}
		for _, f := range only {
			if f == name {
				return true
			}
		}
		return false
	}
	for _, rel := range r.rels {
		ids, err := rel.ids(flat[rel.field])
		if err != nil {
			return object{}, fmt.Errorf("write a %s: %w", r.typ, err)
		}
		delete(flat, rel.field)
		if !keep(rel.name) {
			continue
		}
		var data any
		if rel.many {
			list := make([]identifier, len(ids))
			for i, id := range ids {
				list[i] = identifier{rel.typ, id}
			}
			data = list
		} else if len(ids) > 0 {
			data = identifier{rel.typ, ids[0]}
		}
		o.Relationships[rel.name] = relationship{data}
	}
	for field, raw := range flat {
		name, ok := r.wire[field]
		if field == r.id {
			if field == "id" {
				continue
			}
			name = field
		} else if !ok {
			continue
		}
		if keep(name) {
			o.Attributes[name] = raw
		}
	}
	return o, nil
}

// ids reads the ids that a field of the domain type holds.
func (rel relation) ids(raw json.RawMessage) ([]string, error) {
	if rel.many {
		var ids []string
		return ids, json.Unmarshal(raw, &ids)
	}
	var id domain.Ref
	if err := json.Unmarshal(raw, &id); err != nil || id == "" {
		return nil, err
	}
	return []string{string(id)}, nil
}

// input is a resource that a caller sent, as far as it can be understood without knowing what it is for.
type input struct {
	res  *resource
	id   string // "" where none was given
	flat map[string]json.RawMessage
}

// parse reads a document that holds one resource.
func (r *resource) parse(body []byte) (input, error) {
	in := input{res: r, flat: map[string]json.RawMessage{}}
	if err := checkJSON(body); err != nil {
		return in, err
	}
	top, err := only(body, "", "data")
	if err != nil {
		return in, err
	}
	data, err := only(top["data"], "/data", "type", "id", "attributes", "relationships")
	if err != nil {
		return in, err
	}
	var typ string
	if json.Unmarshal(data["type"], &typ) != nil || typ != r.typ {
		return in, newProblem(409, "conflict", &source{Pointer: "/data/type"}, "the type here is %q", r.typ)
	}
	if raw, ok := data["id"]; ok {
		if json.Unmarshal(raw, &in.id) != nil || in.id == "" {
			return in, invalidAt("/data/id", "must be a string that is not empty")
		}
	}
	if raw, ok := data["attributes"]; ok {
		attrs, err := members(raw, "/data/attributes")
		if err != nil {
			return in, err
		}
		for name, v := range attrs {
			at := "/data/attributes/" + escape(name)
			for _, rel := range r.rels {
				if rel.name == name {
					return in, invalidAt(at, "is a relationship, not an attribute")
				}
				if rel.field == name {
					return in, invalidAt(at, "there is no member %q here; the relationship is %s", name, rel.name)
				}
			}
			if name == "id" || name == "type" {
				return in, invalidAt(at, "there is no member %q here", name)
			}
			if f, ok := r.rename[name]; ok {
				name = f
			}
			in.flat[name] = v
		}
	}
	if raw, ok := data["relationships"]; ok {
		rels, err := members(raw, "/data/relationships")
		if err != nil {
			return in, err
		}
		for name, v := range rels {
			if err := in.relationship(name, v); err != nil {
				return in, err
			}
		}
	}
	return in, nil
}

// only splits an object that may hold no other members than those named; the first is needed.
func only(raw json.RawMessage, at string, names ...string) (map[string]json.RawMessage, error) {
	m, err := members(raw, at)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, n := range names {
		known[n] = true
	}
	for name := range m {
		if !known[name] {
			return nil, invalidAt(at+"/"+escape(name), "there is no member %q here", name)
		}
	}
	if _, ok := m[names[0]]; !ok {
		return nil, invalidAt(at+"/"+names[0], "is needed")
	}
	return m, nil
}

func (in *input) relationship(name string, raw json.RawMessage) error {
	at := "/data/relationships/" + escape(name)
	for _, rel := range in.res.rels {
		if rel.name != name {
			continue
		}
		m, err := only(raw, at, "data")
		if err != nil {
			return err
		}
		at += "/data"
		if !rel.many {
			if string(m["data"]) == "null" {
				in.flat[rel.field] = m["data"]
				return nil
			}
			id, err := rel.identifier(m["data"], at)
			if err != nil {
				return err
			}
			in.flat[rel.field], err = json.Marshal(id)
			return err
		}
		var items []json.RawMessage
		if string(m["data"]) == "null" || json.Unmarshal(m["data"], &items) != nil {
			return invalidAt(at, "must be a list of resource identifiers")
		}
		ids := make([]string, len(items))
		for i, item := range items {
			if ids[i], err = rel.identifier(item, fmt.Sprintf("%s/%d", at, i)); err != nil {
				return err
			}
		}
		in.flat[rel.field], err = json.Marshal(ids)
		return err
	}
	return invalidAt(at, "there is no relationship %q here", name)
}

func (rel relation) identifier(raw json.RawMessage, at string) (string, error) {
	m, err := only(raw, at, "type", "id")
	if err != nil {
		return "", err
	}
	var v identifier
	if json.Unmarshal(m["type"], &v.Type) != nil || v.Type != rel.typ {
		return "", invalidAt(at+"/type", "the type here is %q", rel.typ)
	}
	if json.Unmarshal(m["id"], &v.ID) != nil || v.ID == "" {
		return "", invalidAt(at+"/id", "must be a string that is not empty")
	}
	return v.ID, nil
}

// into decodes the fields into the struct that v points at. rename maps JSON names of the resource to other ones of v.
func (in input) into(v any, patch bool, rename map[string]string) error {
	flat := make(map[string]json.RawMessage, len(in.flat))
	back := map[string]string{}
	for from, to := range rename {
		back[to] = from
	}
	for name, raw := range in.flat {
		if from, ok := back[name]; ok {
			return invalidAt(in.res.pointer(name), "there is no member %q here; it is %s", name, from)
		}
		if to, ok := rename[name]; ok {
			name = to
		}
		flat[name] = raw
	}
	d := decoder{patch: patch}
	return d.fields(flat, reflect.ValueOf(v).Elem(), func(field string) string {
		if from, ok := back[field]; ok {
			field = from
		}
		return in.res.pointer(field)
	}, patch)
}
