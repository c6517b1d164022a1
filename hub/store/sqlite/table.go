package sqlite

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gaia/domain"
	"gaia/hub/store"
)

// kind is how a field's values are compared.
type kind int

const (
	text kind = iota
	number
	boolean
	moment
	hidden // a column that no query may name
)

// column is one column of a table and, unless hidden, the field of the same name that a query may name.
type column[T any] struct {
	name  string
	kind  kind
	value func(*T) any
}

// table says how objects of one type are kept: all of it in doc, and what must be found in columns.
type table[T any] struct {
	name    string // of the table
	what    string // of one object, for people
	id      func(*T) string
	columns []column[T]
	lists   map[string]list // fields that hold several values
	sides   []side[T]       // the side tables of lists
	upsert  string
}

// side is a side table with the columns ticket and value, and what it holds.
type side[T any] struct {
	name string
	of   func(*T) []string
}

// list is where the values of a list field are.
type list struct {
	side string // a side table with the columns ticket and value
	doc  string // or a path in doc
}

func newTable[T any](name, what string, id func(*T) string, lists map[string]list, columns ...column[T]) *table[T] {
	t := &table[T]{name: name, what: what, id: id, columns: columns, lists: lists}
	names, sets := []string{"id", "doc"}, []string{"doc = excluded.doc"}
	for _, c := range columns {
		q := `"` + c.name + `"`
		names = append(names, q)
		sets = append(sets, q+" = excluded."+q)
	}
	t.upsert = "INSERT INTO " + name + " (" + strings.Join(names, ", ") + ") VALUES (?" + strings.Repeat(", ?", len(names)-1) +
		") ON CONFLICT (id) DO UPDATE SET " + strings.Join(sets, ", ")
	return t
}

// null returns nil for the empty string, so that what is absent is NULL.
func null[S ~string](s S) any {
	if s == "" {
		return nil
	}
	return string(s)
}

func when(t domain.Time) any { return null(t.String()) }

// rowID names a row among all tables.
type rowID struct{ table, id string }

// values are the values of all columns and of all side tables.
func (t *table[T]) values(v *T) ([]any, error) {
	out := make([]any, 0, len(t.columns)+len(t.sides))
	for _, c := range t.columns {
		out = append(out, c.value(v))
	}
	for _, s := range t.sides {
		set := "[]"
		if list := s.of(v); len(list) > 0 {
			b, err := json.Marshal(list)
			if err != nil {
				return nil, err
			}
			set = string(b)
		}
		out = append(out, set)
	}
	return out, nil
}

// put inserts or replaces a row. Of one that this transaction has read or written before it sets only what differs: each
// column that is set, changed or not, costs a write to every index that it is part of.
func (t *table[T]) put(x *tx, v T) error {
	id := t.id(&v)
	doing := "writing " + t.what + " " + id
	if id == "" {
		return fmt.Errorf("%s: %w: id is empty", doing, domain.ErrInvalid)
	}
	doc, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", doing, domain.ErrInvalid, err)
	}
	values, err := t.values(&v)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", doing, domain.ErrInvalid, err)
	}
	before := x.rows[rowID{t.name, id}]
	query, args := t.upsert, append([]any{id, string(doc)}, values[:len(t.columns)]...)
	if before != nil {
		query, args = "UPDATE "+t.name+" SET doc = ?", []any{string(doc)}
		for i, c := range t.columns {
			if values[i] != before[i] {
				query, args = query+`, "`+c.name+`" = ?`, append(args, values[i])
			}
		}
		query, args = query+" WHERE id = ?", append(args, id)
	}
	if _, err := x.exec(doing, query, args...); err != nil {
		return err
	}
	for i, s := range t.sides {
		i += len(t.columns)
		if before != nil && values[i] == before[i] {
			continue
		}
		if err := x.putList(doing, s.name, id, values[i].(string)); err != nil {
			return err
		}
	}
	x.rows[rowID{t.name, id}] = values
	return nil
}

// same reports whether v has the values of before in these columns.
func (t *table[T]) same(before []any, v *T, columns ...string) bool {
	for i, c := range t.columns {
		if slices.Contains(columns, c.name) && c.value(v) != before[i] {
			return false
		}
	}
	return true
}

// one returns the first object for which the rest of a SELECT holds.
func (t *table[T]) one(x *tx, called, rest string, args ...any) (T, error) {
	var v T
	found, err := t.all(x, rest, args...)
	if err != nil {
		return v, err
	}
	if len(found) == 0 {
		return v, fmt.Errorf("%s %s: %w", t.what, called, domain.ErrNotFound)
	}
	return found[0], nil
}

func (t *table[T]) byID(x *tx, id string) (T, error) { return t.one(x, id, "WHERE id = ?", id) }

// all returns every object for which the rest of a SELECT holds.
func (t *table[T]) all(x *tx, rest string, args ...any) ([]T, error) {
	var out []T
	err := x.query("reading "+t.name, "SELECT doc FROM "+t.name+" "+rest, args, func(scan func(...any) error) error {
		var doc []byte
		if err := scan(&doc); err != nil {
			return err
		}
		v, err := t.read(x, doc)
		out = append(out, v)
		return err
	})
	return out, err
}

// read decodes a row. In a writing transaction it is remembered, as it is now, for put.
func (t *table[T]) read(x *tx, doc []byte) (T, error) {
	v, err := t.decode(doc)
	if err == nil && x.writable {
		x.rows[rowID{t.name, t.id(&v)}], err = t.values(&v)
	}
	return v, err
}

func (t *table[T]) decode(doc []byte) (T, error) {
	var v T
	if err := json.Unmarshal(doc, &v); err != nil {
		return v, fmt.Errorf("%w: a row of %s is damaged: %w", store.ErrUnavailable, t.name, err)
	}
	return v, nil
}

// find returns the page of objects that q selects, and how many there are on all pages.
func (t *table[T]) find(x *tx, q store.Query) ([]T, int, error) {
	where, args, err := t.where(q.Filters)
	if err != nil {
		return nil, 0, err
	}
	order, err := t.order(q.Sort)
	if err != nil {
		return nil, 0, err
	}
	if q.Limit < 0 || q.Offset < 0 {
		return nil, 0, fmt.Errorf("%w page: offset and limit must not be negative", domain.ErrInvalid)
	}
	if q.Limit == 0 && q.Offset == 0 {
		out, err := t.all(x, where+order, args...)
		return out, len(out), err
	}
	total := 0
	if err := x.row("counting "+t.name, "SELECT count(*) FROM "+t.name+" "+where, args, &total); err != nil {
		return nil, 0, err
	}
	limit := q.Limit
	if limit == 0 {
		limit = -1
	}
	// The page is found before any object of it is read: sorted with the rest of its rows, every object before it would
	// be read, too.
	out, err := t.all(x, "WHERE id IN (SELECT id FROM "+t.name+" "+where+order+" LIMIT ? OFFSET ?)"+order, append(args, limit, q.Offset)...)
	return out, total, err
}

// field returns the column that a query may name so, if there is one.
func (t *table[T]) field(name string) (kind, bool) {
	if name == "id" {
		return text, true
	}
	i := slices.IndexFunc(t.columns, func(c column[T]) bool { return c.name == name && c.kind != hidden })
	if i < 0 {
		return 0, false
	}
	return t.columns[i].kind, true
}

func (t *table[T]) unknown(use, name string) error {
	return &domain.FieldError{Field: name, Err: fmt.Errorf("%s cannot be %s by it", t.name, use)}
}

func (t *table[T]) where(filters []store.Filter) (string, []any, error) {
	conditions, args := []string{"TRUE"}, []any{}
	for _, f := range filters {
		l, isList := t.lists[f.Field]
		k, known := t.field(f.Field)
		if !isList && !known {
			return "", nil, t.unknown("filtered", f.Field)
		}
		absent := slices.Contains(f.Values, "")
		values := make([]any, 0, len(f.Values))
		for _, s := range f.Values {
			if s == "" {
				continue
			}
			v, err := parse(k, s)
			if err != nil {
				return "", nil, &domain.FieldError{Field: f.Field, Err: err}
			}
			values = append(values, v)
		}
		// One argument however many values there are: SQLite limits the number of arguments.
		set, err := json.Marshal(values)
		if err != nil {
			return "", nil, &domain.FieldError{Field: f.Field, Err: err}
		}
		const in = " IN (SELECT value FROM json_each(?))"
		var has, lacks string
		switch {
		case l.side != "":
			has = "id IN (SELECT ticket FROM " + l.side + " WHERE value" + in + ")"
			lacks = "NOT EXISTS (SELECT 1 FROM " + l.side + " WHERE ticket = " + t.name + ".id)"
		case isList:
			each := "(SELECT 1 FROM json_each(" + t.name + ".doc, '" + l.doc + "') AS e WHERE e.type <> 'null'"
			has = "EXISTS " + each + " AND e.value" + in + ")"
			lacks = "NOT EXISTS " + each + ")"
		default:
			has = `"` + f.Field + `"` + in
			lacks = `("` + f.Field + `" IS NULL OR "` + f.Field + `" = '')`
		}
		if absent {
			has = "(" + has + " OR " + lacks + ")"
		}
		conditions, args = append(conditions, has), append(args, string(set))
	}
	return "WHERE " + strings.Join(conditions, " AND "), args, nil
}

// parse returns the value of a column that a filter names by s.
func parse(k kind, s string) (any, error) {
	switch k {
	case number:
		n, err := strconv.ParseFloat(s, 64)
		if err != nil || n != n {
			return nil, fmt.Errorf("%q is no number", s)
		}
		return n, nil
	case boolean:
		b, err := strconv.ParseBool(s)
		if err != nil {
			return nil, fmt.Errorf("%q is neither true nor false", s)
		}
		return b, nil
	case moment:
		at, err := domain.ParseTime(s)
		if err != nil {
			return nil, err
		}
		return at.String(), nil
	}
	return s, nil
}

// order puts null last, or first where descending, and breaks ties by id.
func (t *table[T]) order(sorts []store.Sort) (string, error) {
	var keys []string
	for _, s := range sorts {
		if _, ok := t.field(s.Field); !ok {
			return "", t.unknown("sorted", s.Field)
		}
		column, dir := `"`+s.Field+`"`, " ASC NULLS LAST"
		if s.Descending {
			dir = " DESC NULLS FIRST"
		}
		keys = append(keys, column+dir)
	}
	return " ORDER BY " + strings.Join(append(keys, "id"), ", "), nil
}
