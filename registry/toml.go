package registry

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

// ConfigError is a mistake in a file that a person wrote. File is always set; Line and Key where they are known.
type ConfigError struct {
	File string
	Line int
	Key  string
	Err  error
}

func (e *ConfigError) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		b.WriteString(":" + strconv.Itoa(e.Line))
	}
	if e.Key != "" {
		b.WriteString(": " + e.Key)
	}
	return b.String() + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *ConfigError) Unwrap() error { return e.Err }

// document is a TOML file that is being read. It is read by hand and not into tagged structs, because the decoder takes
// keys in any case, takes a bare number for a duration in nanoseconds, and passes over a value where a table belongs.
type document struct {
	name string
	data string
	errs []*ConfigError
}

// table is one table of a document. Each getter notes the key as known and returns the zero value, or the default,
// where the key is absent or wrong; finish tells what was wrong.
type table struct {
	doc    *document
	path   []string // without indices
	shown  string   // with them
	line   int      // of the header of an array's element; 0: ask the parser
	values map[string]any
	known  []string
}

// parse reads a TOML file. The error is a *ConfigError.
func parse(name string, data []byte) (*table, error) {
	if !utf8.Valid(data) {
		return nil, &ConfigError{File: name, Err: errors.New("the file is not UTF-8 text")}
	}
	d := &document{name: name, data: string(data)}
	values := map[string]any{}
	if _, err := toml.Decode(d.data, &values); err != nil {
		var pe toml.ParseError
		if errors.As(err, &pe) {
			return nil, &ConfigError{File: name, Line: pe.Position.Line, Key: pe.LastKey, Err: errors.New(pe.Message)}
		}
		return nil, &ConfigError{File: name, Err: err}
	}
	return &table{doc: d, values: values}, nil
}

// finish returns everything that was wrong, in the order of the file.
func (d *document) finish() error {
	slices.SortStableFunc(d.errs, func(a, b *ConfigError) int { return cmp.Compare(a.Line, b.Line) })
	errs := make([]error, len(d.errs))
	for i, e := range d.errs {
		errs[i] = e
	}
	return errors.Join(errs...)
}

// fail notes that a key is wrong; the empty key is the table itself.
func (t *table) fail(key, format string, a ...any) {
	path, shown := t.path, t.shown
	if key != "" {
		path = append(slices.Clone(path), key)
		shown = strings.TrimPrefix(shown+"."+toml.Key{key}.String(), ".")
	}
	line := t.line
	if line == 0 {
		line = t.doc.lineOf(path)
	}
	t.doc.errs = append(t.doc.errs, &ConfigError{File: t.doc.name, Line: line, Key: shown, Err: fmt.Errorf(format, a...)})
}

// stop makes the parser tell where the value that is decoded into it stands.
type stop struct{}

func (*stop) UnmarshalTOML(any) error { return errors.New("here") }

// lineOf returns the line of a key, that of the nearest table around it where the key itself is missing, else 0. It is
// used for errors only.
func (d *document) lineOf(path []string) int {
	level, line := map[string]toml.Primitive{}, 0
	md, err := toml.Decode(d.data, &level)
	if err != nil {
		return 0
	}
	for _, key := range path {
		p, ok := level[key]
		if !ok {
			break
		}
		var pe toml.ParseError
		if errors.As(md.PrimitiveDecode(p, &stop{}), &pe) && pe.Position.Line > 0 {
			line = pe.Position.Line
		}
		level = map[string]toml.Primitive{}
		if md.PrimitiveDecode(p, &level) != nil {
			break
		}
	}
	return line
}

// headerLine returns the line of the n-th [[name]], n from 0, or 0. The parser keeps one position for all elements.
func (d *document) headerLine(name string, n int) int {
	for i, l := range strings.Split(d.data, "\n") {
		l, _, _ = strings.Cut(l, "#")
		if strings.Join(strings.Fields(l), "") == "[["+name+"]]" {
			if n == 0 {
				return i + 1
			}
			n--
		}
	}
	return 0
}

func kind(v any) string {
	switch v.(type) {
	case string:
		return "a string"
	case int64:
		return "a whole number"
	case float64:
		return "a number with a fraction"
	case bool:
		return "true or false"
	case time.Time:
		return "a date"
	case []any, []map[string]any:
		return "a list"
	case map[string]any:
		return "a table"
	}
	return fmt.Sprintf("%T", v)
}

// get returns the value of a key, if it is there with the type T; what says in an error what is expected.
func get[T any](t *table, key, what string) (v T, ok bool) {
	t.known = append(t.known, key)
	raw, there := t.values[key]
	if !there {
		return v, false
	}
	if v, ok = raw.(T); !ok {
		t.fail(key, "must be %s, not %s", what, kind(raw))
	}
	return v, ok
}

// has reports whether the key is in the file.
func (t *table) has(key string) bool { _, ok := t.values[key]; return ok }

// str returns a string that check accepts; it holds no control characters.
func (t *table) str(key, def string, check func(string) error) string {
	v, ok := get[string](t, key, "a string")
	if !ok {
		return def
	}
	return t.checked(key, v, def, check)
}

func (t *table) checked(key, v, def string, check func(string) error) string {
	if strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		t.fail(key, "%q holds a control character", v)
		return def
	}
	if check != nil {
		if err := check(v); err != nil {
			t.fail(key, "%w", err)
			return def
		}
	}
	return v
}

// text returns a string of any lines.
func (t *table) text(key string) string {
	v, _ := get[string](t, key, "a string")
	if strings.ContainsRune(v, 0) {
		t.fail(key, "holds a zero byte")
		return ""
	}
	return v
}

func (t *table) strings(key string, check func(string) error) []string {
	list, ok := get[[]any](t, key, "a list of strings")
	if !ok {
		return nil
	}
	out := make([]string, 0, len(list))
	for _, raw := range list {
		v, ok := raw.(string)
		if !ok {
			t.fail(key, "must be a list of strings, but holds %s", kind(raw))
			return nil
		}
		out = append(out, t.checked(key, v, "", check))
	}
	return out
}

func (t *table) integer(key string, def, low, high int64) int64 {
	v, ok := get[int64](t, key, "a whole number")
	if !ok {
		return def
	}
	if v < low || v > high {
		t.fail(key, "%d is out of range: it must be from %d to %d", v, low, high)
		return def
	}
	return v
}

func (t *table) boolean(key string, def bool) bool {
	v, ok := get[bool](t, key, "true or false")
	if !ok {
		return def
	}
	return v
}

func (t *table) duration(key string, def, low, high time.Duration) time.Duration {
	v, ok := get[string](t, key, `a time such as "90s" or "2h"`)
	if !ok {
		return def
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		t.fail(key, `%q is no time: write "500ms", "90s", "20m" or "2h"`, v)
		return def
	}
	if d < low || d > high {
		t.fail(key, "%s is out of range: it must be from %s to %s", v, short(low), short(high))
		return def
	}
	return d
}

// short writes a duration as people write it: 20m and not 20m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func (t *table) size(key string, def uint64) uint64 {
	v, ok := get[string](t, key, `a size such as "512M" or "4G"`)
	if !ok {
		return def
	}
	n, err := ParseSize(v)
	if err != nil {
		t.fail(key, "%w", err)
		return def
	}
	return n
}

// ParseSize reads a number of bytes with an optional K, M, G or T, which are powers of 1024 as in systemd.
func ParseSize(s string) (uint64, error) {
	digits, shift := s, 0
	if i := strings.IndexAny(s, "KMGT"); i >= 0 && i == len(s)-1 {
		digits, shift = s[:i], 10*(1+strings.IndexByte("KMGT", s[i]))
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || strings.HasPrefix(digits, "+") {
		return 0, fmt.Errorf(`%q is no size: write a whole number of bytes, or "512M" or "4G"`, s)
	}
	if n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("%q is too large a size", s)
	}
	return n << shift, nil
}

// sub returns a table of the table, or an empty one where there is none.
func (t *table) sub(key string) *table {
	v, _ := get[map[string]any](t, key, "a table")
	return &table{
		doc: t.doc, path: append(slices.Clone(t.path), key), line: t.line,
		shown: strings.TrimPrefix(t.shown+"."+toml.Key{key}.String(), "."), values: v,
	}
}

// each calls fn for every table [key.NAME], sorted by name.
func (t *table) each(key string, fn func(name string, sub *table)) {
	parent := t.sub(key)
	for _, name := range slices.Sorted(maps.Keys(parent.values)) {
		fn(name, parent.sub(name))
	}
}

// list calls fn for every element of a list of tables [[key]].
func (t *table) list(key string, fn func(el *table)) {
	t.known = append(t.known, key)
	raw, ok := t.values[key]
	if !ok {
		return
	}
	els, ok := tables(raw)
	if !ok {
		t.fail(key, "must be a list of tables: write [[%s]] above each", key)
		return
	}
	for i, values := range els {
		el := &table{
			doc: t.doc, path: append(slices.Clone(t.path), key), line: t.doc.headerLine(key, i),
			shown: strings.TrimPrefix(fmt.Sprintf("%s.%s[%d]", t.shown, key, i+1), "."), values: values,
		}
		fn(el)
		el.done()
	}
}

// tables returns the elements of a list of tables, however it is written.
func tables(raw any) ([]map[string]any, bool) {
	if els, ok := raw.([]map[string]any); ok {
		return els, true
	}
	list, ok := raw.([]any)
	if !ok {
		return nil, false
	}
	var els []map[string]any
	for _, el := range list {
		m, ok := el.(map[string]any)
		if !ok {
			return nil, false
		}
		els = append(els, m)
	}
	return els, true
}

// done notes every key of the table that no getter asked for.
func (t *table) done() {
	for _, key := range slices.Sorted(maps.Keys(t.values)) {
		if !slices.Contains(t.known, key) {
			t.fail(key, "unknown key; known here are %s", strings.Join(slices.Sorted(slices.Values(t.known)), ", "))
		}
	}
}

// quote writes a string as TOML does.
func quote(s string) string {
	b, err := toml.Marshal(map[string]string{"v": s})
	if err != nil {
		panic("marshalling a string: " + err.Error()) // strings always marshal
	}
	return strings.TrimSpace(strings.TrimPrefix(string(b), "v = "))
}

// quoteList writes a list of strings as TOML does.
func quoteList(list []string) string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = quote(s)
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// oneOf returns a check that accepts the given words only.
func oneOf(words ...string) func(string) error {
	return func(s string) error {
		if !slices.Contains(words, s) {
			return fmt.Errorf("%q must be one of %s", s, strings.Join(words, ", "))
		}
		return nil
	}
}
