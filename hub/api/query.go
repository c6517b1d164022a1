package api

import (
	"net/url"
	"slices"
	"strconv"
	"strings"

	"gaia/hub/store"
)

// maxPage is the largest page, as in Drupal: a larger limit is cut to it.
const maxPage = 50

// query is what a reader asks for besides the path.
type query struct {
	store.Query
	include []string
	fields  map[string][]string // by resource type
}

// parseQuery reads the query parameters of a read of res. Without list, only include and fields have a meaning. It
// knows the resource's names, the store knows which of them it can select by.
func parseQuery(raw string, res *resource, list bool) (query, error) {
	q := query{fields: map[string][]string{}}
	q.Limit = maxPage
	values, err := url.ParseQuery(raw)
	if err != nil {
		return q, newProblem(400, "bad_request", nil, "the query cannot be read: %s", err)
	}
	filters := map[string]*filter{}
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names) // so that the same query always gives the same answer
	for _, name := range names {
		vals := values[name]
		family, path := splitName(name)
		var err error
		switch {
		case family == "include" && path == nil:
			q.include, err = includes(name, vals, res)
		case family == "fields" && len(path) == 1:
			q.fields[path[0]], err = fieldset(name, path[0], vals)
		case list && family == "filter" && len(path) > 0:
			err = addFilter(filters, name, path, vals, res)
		case list && family == "sort" && path == nil:
			q.Sort, err = sorts(name, vals, res)
		case list && family == "page" && len(path) == 1 && (path[0] == "limit" || path[0] == "offset"):
			err = page(&q.Query, name, path[0], vals)
		default:
			err = badParameter(name, "the parameter %s has no meaning here", name)
		}
		if err != nil {
			return q, err
		}
	}
	for _, field := range slices.Sorted(mapKeys(filters)) {
		f := filters[field]
		if f.null {
			f.values = append(f.values, "")
		} else if len(f.values) == 0 {
			return q, badParameter(f.name, "the filter has no value")
		}
		q.Filters = append(q.Filters, store.Filter{Field: field, Values: f.values})
	}
	return q, nil
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// splitName splits a[b][c] into a and b, c. A name that is not of that form is its own family.
func splitName(name string) (family string, path []string) {
	family, rest, ok := strings.Cut(name, "[")
	if !ok {
		return name, nil
	}
	if !strings.HasSuffix(rest, "]") {
		return name, nil
	}
	path = strings.Split(strings.TrimSuffix(rest, "]"), "][")
	for _, p := range path {
		if strings.ContainsAny(p, "[]") {
			return name, nil
		}
	}
	return family, path
}

type filter struct {
	name   string
	values []string
	null   bool
}

func addFilter(filters map[string]*filter, name string, path, vals []string, res *resource) error {
	field, ok := res.field(strings.TrimSuffix(path[0], ".id"))
	if !ok {
		return badParameter(name, "%s has no field %q to filter by", res.typ, path[0])
	}
	f := filters[field]
	if f == nil {
		f = &filter{name: name}
		filters[field] = f
	}
	switch rest := strings.Join(path[1:], "/"); {
	case len(path) == 1, rest == "", rest == "value", rest == "value/":
		f.values = append(f.values, vals...)
	case rest == "operator":
		for _, op := range vals {
			switch op {
			case "=", "IN":
			case "IS NULL":
				f.null = true
			default:
				return badParameter(name, "there is no operator %q; there are =, IN and IS NULL", op)
			}
		}
	default:
		return badParameter(name, "write filter[field]=value")
	}
	return nil
}

func sorts(name string, vals []string, res *resource) ([]store.Sort, error) {
	var out []store.Sort
	for _, part := range strings.Split(strings.Join(vals, ","), ",") {
		wire, down := strings.CutPrefix(part, "-")
		field, ok := res.field(wire)
		if !ok {
			return nil, badParameter(name, "%s has no field %q to sort by", res.typ, wire)
		}
		out = append(out, store.Sort{Field: field, Descending: down})
	}
	return out, nil
}

func page(q *store.Query, name, what string, vals []string) error {
	n, err := strconv.ParseInt(vals[len(vals)-1], 10, 32)
	switch {
	case err != nil || n < 0:
		return badParameter(name, "%q is not a number of resources", vals[len(vals)-1])
	case what == "offset":
		q.Offset = int(n)
	case n == 0:
		return badParameter(name, "a page holds at least one resource")
	default:
		q.Limit = min(int(n), maxPage)
	}
	return nil
}

func includes(name string, vals []string, res *resource) ([]string, error) {
	var out []string
	for _, rel := range strings.Split(strings.Join(vals, ","), ",") {
		if rel == "" {
			continue
		}
		if !slices.ContainsFunc(res.rels, func(r relation) bool { return r.name == rel }) {
			return nil, badParameter(name, "%s has no relationship %q to include", res.typ, rel)
		}
		if !slices.Contains(out, rel) {
			out = append(out, rel)
		}
	}
	return out, nil
}

func fieldset(name, typ string, vals []string) ([]string, error) {
	of := resourceByType(typ)
	if of == nil {
		return nil, badParameter(name, "there is no resource type %q", typ)
	}
	out := []string{}
	for _, f := range strings.Split(strings.Join(vals, ","), ",") {
		if f == "" {
			continue
		}
		if _, ok := of.field(f); !ok || f == "id" {
			return nil, badParameter(name, "%s has no field %q", typ, f)
		}
		out = append(out, f)
	}
	return out, nil
}
