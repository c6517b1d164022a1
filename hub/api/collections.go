package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"gaia/domain"
	"gaia/hub"
	"gaia/hub/auth"
	"gaia/hub/store"
)

// collection is what can be done with one resource type. What is nil cannot be done.
type collection struct {
	res    *resource
	list   func(context.Context, Hub, auth.Principal, store.Query) ([]any, int, error)
	get    func(context.Context, Hub, auth.Principal, string) (any, error)
	whole  whole // where the hub returns the collection as a whole
	create func(context.Context, Hub, hub.Call, input) (any, error)
	patch  func(context.Context, Hub, hub.Call, string, input) (any, error)
}

// listOf and getOf adapt a method of Hub to a collection.
func listOf[T any](f func(Hub, context.Context, auth.Principal, store.Query) ([]T, int, error)) func(context.Context, Hub, auth.Principal, store.Query) ([]any, int, error) {
	return func(ctx context.Context, h Hub, p auth.Principal, q store.Query) ([]any, int, error) {
		items, total, err := f(h, ctx, p, q)
		return anys(items), total, err
	}
}

func getOf[T any](f func(Hub, context.Context, auth.Principal, string) (T, error)) func(context.Context, Hub, auth.Principal, string) (any, error) {
	return func(ctx context.Context, h Hub, p auth.Principal, ref string) (any, error) { return f(h, ctx, p, ref) }
}

func anys[T any](items []T) []any {
	out := make([]any, len(items))
	for i, v := range items {
		out[i] = v
	}
	return out
}

// small adapts a collection that the hub returns as a whole.
func small[T any](f func(Hub, context.Context, auth.Principal) ([]T, error)) func(context.Context, Hub, auth.Principal, store.Query) ([]any, int, error) {
	return func(ctx context.Context, h Hub, p auth.Principal, q store.Query) ([]any, int, error) {
		switch {
		case len(q.Filters) > 0:
			return nil, 0, badParameter("filter", "this collection cannot be filtered")
		case len(q.Sort) > 0:
			return nil, 0, badParameter("sort", "this collection is sorted by id")
		}
		items, err := f(h, ctx, p)
		from := min(q.Offset, len(items))
		to := min(from+q.Limit, len(items))
		return anys(items[from:to]), len(items), err
	}
}

// whole is a collection that the hub returns as a whole, by id.
type whole func(context.Context, Hub, auth.Principal) (map[string]any, error)

func wholeOf[T any](f func(Hub, context.Context, auth.Principal) ([]T, error), id func(T) string) whole {
	return func(ctx context.Context, h Hub, p auth.Principal) (map[string]any, error) {
		items, err := f(h, ctx, p)
		out := make(map[string]any, len(items))
		for _, v := range items {
			out[id(v)] = v
		}
		return out, err
	}
}

var (
	allLabels = wholeOf(Hub.Labels, func(l domain.Label) string { return l.Name })
	allUsers  = wholeOf(Hub.Users, func(u domain.User) string { return u.ID })
)

// among finds one of such a collection.
func among(what string, of whole) func(context.Context, Hub, auth.Principal, string) (any, error) {
	return func(ctx context.Context, h Hub, p auth.Principal, ref string) (any, error) {
		all, err := of(ctx, h, p)
		if err != nil {
			return nil, err
		}
		if v, ok := all[ref]; ok {
			return v, nil
		}
		return nil, fmt.Errorf("there is no %s %q: %w", what, ref, domain.ErrNotFound)
	}
}

// projectInput is what may be given of a new project.
type projectInput struct {
	Customer domain.Ref             `json:"customer"`
	Key      string                 `json:"key"`
	Name     string                 `json:"name"`
	Slug     string                 `json:"slug"`
	Repos    []string               `json:"repos"`
	Members  []string               `json:"members"`
	Settings domain.ProjectSettings `json:"settings"`
}

type commentInput struct {
	Ticket string `json:"ticket"`
	Type   string `json:"type"`
	Body   string `json:"body"`
}

type userInput struct {
	Name string `json:"name"`
}

type footprintInput struct {
	Footprint *domain.Footprint `json:"footprint"`
}

var collections = []collection{
	{
		res: resourceByType(typeProject), list: listOf(Hub.Projects), get: getOf(Hub.Project),
		create: func(ctx context.Context, h Hub, c hub.Call, in input) (any, error) {
			var p projectInput
			if err := in.into(&p, false, nil); err != nil {
				return nil, err
			}
			return h.CreateProject(ctx, c, domain.Project{
				Customer: p.Customer, Key: p.Key, Name: p.Name, Slug: p.Slug, Repos: p.Repos, Members: p.Members, Settings: p.Settings,
			})
		},
		patch: func(ctx context.Context, h Hub, c hub.Call, ref string, in input) (any, error) {
			var p domain.ProjectPatch
			if err := in.into(&p, true, nil); err != nil {
				return nil, err
			}
			return h.PatchProject(ctx, c, ref, p)
		},
	},
	{
		res: resourceByType(typeTicket), list: listOf(Hub.Tickets), get: getOf(Hub.Ticket),
		create: func(ctx context.Context, h Hub, c hub.Call, in input) (any, error) {
			var d domain.TicketDraft
			if err := in.into(&d, false, nil); err != nil {
				return nil, err
			}
			return h.CreateTicket(ctx, c, d)
		},
		patch: func(ctx context.Context, h Hub, c hub.Call, ref string, in input) (any, error) {
			var p domain.TicketPatch
			if err := in.into(&p, true, map[string]string{"links": "add_links"}); err != nil {
				return nil, err
			}
			return h.PatchTicket(ctx, c, ref, p)
		},
	},
	{
		res: resourceByType(typeRun), list: listOf(Hub.Runs), get: getOf(Hub.Run),
		patch: func(ctx context.Context, h Hub, c hub.Call, ref string, in input) (any, error) {
			var f footprintInput
			if err := in.into(&f, true, nil); err != nil {
				return nil, err
			}
			if f.Footprint == nil {
				return nil, invalidAt("/data/attributes/footprint", "is needed: it is all of a run that can be changed")
			}
			return h.PatchRunFootprint(ctx, c, ref, *f.Footprint)
		},
	},
	{res: resourceByType(typeConductor), list: listOf(Hub.Conductors), get: getOf(Hub.Conductor)},
	{
		res: resourceByType(typeComment), list: listOf(Hub.Comments), get: getOf(Hub.Comment),
		create: func(ctx context.Context, h Hub, c hub.Call, in input) (any, error) {
			var m commentInput
			if err := in.into(&m, false, nil); err != nil {
				return nil, err
			}
			if m.Ticket == "" {
				return nil, invalidAt(in.res.pointer("ticket"), "is needed: a comment belongs to a ticket")
			}
			return h.AddComment(ctx, c, domain.Comment{Ticket: m.Ticket, Type: m.Type, Body: m.Body})
		},
	},
	{
		res: resourceByType(typeLabel), list: small(Hub.Labels),
		get: among("label", allLabels), whole: allLabels,
	},
	{
		res: resourceByType(typeUser), list: small(Hub.Users),
		get: among("user", allUsers), whole: allUsers,
		create: func(ctx context.Context, h Hub, c hub.Call, in input) (any, error) {
			return putUser(ctx, h, c, in.id, in, false)
		},
		patch: func(ctx context.Context, h Hub, c hub.Call, ref string, in input) (any, error) {
			return putUser(ctx, h, c, ref, in, true)
		},
	},
}

func putUser(ctx context.Context, h Hub, c hub.Call, id string, in input, patch bool) (any, error) {
	var u userInput
	if err := in.into(&u, patch, nil); err != nil {
		return nil, err
	}
	return h.PutUser(ctx, c, domain.User{ID: id, Name: u.Name})
}

func collectionOf(typ string) collection {
	for _, c := range collections {
		if c.res.typ == typ {
			return c
		}
	}
	return collection{}
}

func (s *Server) resource(c collection) {
	all := methods{http.MethodGet: {serve: func(s *Server, w http.ResponseWriter, r *http.Request) error { return s.list(w, r, c) }}}
	one := methods{http.MethodGet: {serve: func(s *Server, w http.ResponseWriter, r *http.Request) error { return s.get(w, r, c) }}}
	if c.create != nil {
		all[http.MethodPost] = endpoint{func(s *Server, w http.ResponseWriter, r *http.Request) error { return s.create(w, r, c) }, c.res.pointer}
	}
	if c.patch != nil {
		one[http.MethodPatch] = endpoint{func(s *Server, w http.ResponseWriter, r *http.Request) error { return s.patch(w, r, c) }, c.res.pointer}
	}
	s.handle(c.res.path, all)
	s.handle(c.res.path+"/{id}", one)
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, c collection) error {
	if err := acceptable(r, mediaType); err != nil {
		return err
	}
	p, err := s.principal(r)
	if err != nil {
		return err
	}
	q, err := parseQuery(r.URL.RawQuery, c.res, true)
	if err != nil {
		return err
	}
	items, total, err := c.list(r.Context(), s.hub, p, q.Query)
	if err != nil {
		return queryError(err, c.res)
	}
	doc := document{JSONAPI: version{"1.1"}, Meta: &meta{Count: total}, Links: pageLinks(r.URL, q.Query, len(items), total)}
	objects := make([]object, len(items))
	for i, v := range items {
		if objects[i], err = c.res.encode(v, q.fields[c.res.typ]); err != nil {
			return err
		}
	}
	doc.Data = objects
	if doc.Included, err = s.included(r.Context(), p, c.res, q, items); err != nil {
		return err
	}
	return answer(w, http.StatusOK, mediaType, doc)
}

// queryError turns the store's refusal of a field into one of the parameter.
func queryError(err error, res *resource) error {
	var p *problem
	if errors.As(err, &p) || errors.Is(err, domain.ErrStorage) || !errors.Is(err, domain.ErrInvalid) {
		return err
	}
	var fe *domain.FieldError
	if errors.As(err, &fe) {
		name, ok := res.wire[fe.Field]
		if !ok {
			name = fe.Field
		}
		return badParameter(name, "%s", fe.Err)
	}
	return badParameter("filter", "%s", err)
}

// pageLinks keeps every other parameter of the request.
func pageLinks(u *url.URL, q store.Query, n, total int) links {
	at := func(offset int) string {
		v := u.Query()
		v.Set("page[offset]", strconv.Itoa(offset))
		v.Set("page[limit]", strconv.Itoa(q.Limit))
		return u.EscapedPath() + "?" + v.Encode()
	}
	l := links{Self: u.RequestURI()}
	if n > 0 && q.Offset+n < total {
		l.Next = at(q.Offset + n)
	}
	if q.Offset > 0 {
		l.Prev = at(max(0, q.Offset-q.Limit))
	}
	return l
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, c collection) error {
	if err := acceptable(r, mediaType); err != nil {
		return err
	}
	p, err := s.principal(r)
	if err != nil {
		return err
	}
	q, err := parseQuery(r.URL.RawQuery, c.res, false)
	if err != nil {
		return err
	}
	v, err := c.get(r.Context(), s.hub, p, r.PathValue("id"))
	if err != nil {
		return err
	}
	return s.one(r.Context(), w, http.StatusOK, p, c, v, q)
}

func (s *Server) one(ctx context.Context, w http.ResponseWriter, status int, p auth.Principal, c collection, v any, q query) error {
	o, err := c.res.encode(v, q.fields[c.res.typ])
	if err != nil {
		return err
	}
	doc := document{JSONAPI: version{"1.1"}, Data: o, Links: links{Self: o.Links.Self}}
	if doc.Included, err = s.included(ctx, p, c.res, q, []any{v}); err != nil {
		return err
	}
	if status == http.StatusCreated {
		w.Header().Set("Location", o.Links.Self)
	}
	return answer(w, status, mediaType, doc)
}

// included reads what the resources refer to, each once. What is gone, or hidden from the caller, is left out.
func (s *Server) included(ctx context.Context, p auth.Principal, res *resource, q query, items []any) ([]object, error) {
	var out []object
	seen := map[identifier]bool{}
	for _, v := range items {
		if o, err := res.encode(v, nil); err == nil {
			seen[identifier{o.Type, o.ID}] = true // the primary data is not repeated
		}
	}
	for _, name := range q.include {
		for _, rel := range res.rels {
			if rel.name != name {
				continue
			}
			c := collectionOf(rel.typ)
			get := func(id string) (any, error) { return c.get(ctx, s.hub, p, id) }
			if c.whole != nil { // read once, and not for each of perhaps thousands of references
				all, err := c.whole(ctx, s.hub, p)
				if err != nil {
					return nil, err
				}
				get = func(id string) (any, error) {
					if v, ok := all[id]; ok {
						return v, nil
					}
					return nil, domain.ErrNotFound
				}
			}
			for _, v := range items {
				raw, err := json.Marshal(v)
				if err != nil {
					return nil, err
				}
				flat, err := members(raw, "")
				if err != nil {
					return nil, err
				}
				ids, err := rel.ids(flat[rel.field])
				if err != nil {
					return nil, err
				}
				for _, id := range ids {
					if seen[identifier{rel.typ, id}] {
						continue
					}
					seen[identifier{rel.typ, id}] = true
					v, err := get(id)
					if errors.Is(err, domain.ErrNotFound) {
						continue
					}
					if err != nil {
						return nil, err
					}
					o, err := c.res.encode(v, q.fields[rel.typ])
					if err != nil {
						return nil, err
					}
					out = append(out, o)
				}
			}
		}
	}
	return out, nil
}

func (s *Server) create(w http.ResponseWriter, r *http.Request, c collection) error {
	in, call, err := s.write(w, r, c)
	if err != nil {
		return err
	}
	switch user := c.res.typ == typeUser; {
	case user && in.id == "":
		return invalidAt("/data/id", "is needed: a user is known by it")
	case !user && in.id != "":
		return newProblem(http.StatusForbidden, "forbidden", &source{Pointer: "/data/id"}, "the hub draws the id")
	}
	v, err := c.create(r.Context(), s.hub, call, in)
	if err != nil {
		return err
	}
	return s.one(r.Context(), w, http.StatusCreated, call.Principal, c, v, query{})
}

func (s *Server) patch(w http.ResponseWriter, r *http.Request, c collection) error {
	in, call, err := s.write(w, r, c)
	if err != nil {
		return err
	}
	ref := r.PathValue("id")
	if in.id != ref {
		return newProblem(http.StatusConflict, "conflict", &source{Pointer: "/data/id"}, "the id must be that of the path, %q", ref)
	}
	v, err := c.patch(r.Context(), s.hub, call, ref, in)
	if err != nil {
		return err
	}
	return s.one(r.Context(), w, http.StatusOK, call.Principal, c, v, query{})
}

func (s *Server) write(w http.ResponseWriter, r *http.Request, c collection) (input, hub.Call, error) {
	var in input
	if err := acceptable(r, mediaType); err != nil {
		return in, hub.Call{}, err
	}
	if r.URL.RawQuery != "" {
		return in, hub.Call{}, newProblem(http.StatusBadRequest, "bad_request", nil, "a write has no query parameters")
	}
	b, err := body(w, r, mediaType)
	if err != nil {
		return in, hub.Call{}, err
	}
	call, err := s.call(r, b)
	if err != nil {
		return in, call, err
	}
	in, err = c.res.parse(b)
	return in, call, err
}

// answer writes v as JSON. It is encoded first, so that no half of an answer goes out.
func answer(w http.ResponseWriter, status int, media string, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	w.Header().Set("Content-Type", media)
	w.WriteHeader(status)
	w.Write(b.Bytes())
	return nil
}
