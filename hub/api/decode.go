package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// checkJSON refuses what is not one JSON value in UTF-8.
func checkJSON(body []byte) error {
	if !utf8.Valid(body) {
		return newProblem(400, "bad_request", nil, "the body is not UTF-8")
	}
	var any json.RawMessage
	if err := json.Unmarshal(body, &any); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return newProblem(400, "bad_request", nil, "the body is not JSON: %s at byte %d", err, syntax.Offset)
		}
		return newProblem(400, "bad_request", nil, "the body is not JSON: %s", err)
	}
	return nil
}

// members splits a valid JSON object. It tells names apart by case and refuses one that is there twice, of which
// encoding/json would take either.
func members(raw json.RawMessage, pointer string) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, invalidAt(pointer, "must be an object")
	}
	out := map[string]json.RawMessage{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, invalidAt(pointer, "%s", err)
		}
		name, _ := t.(string)
		if _, twice := out[name]; twice {
			return nil, invalidAt(pointer+"/"+escape(name), "is there twice")
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, invalidAt(pointer+"/"+escape(name), "%s", err)
		}
		out[name] = v
	}
	return out, nil
}

// escape writes a name as one part of a JSON pointer (RFC 6901).
func escape(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

// decoder reads valid JSON into Go values more strictly than encoding/json: names match exactly, unknown and repeated
// members and nulls that mean nothing are refused, and every refusal points at its place.
type decoder struct {
	// pointer gives the place of a top-level field.
	pointer func(field string) string
	// patch says that an absent top-level field means "unchanged", so that null must mean something else.
	patch bool
}

// decode reads raw, an object, into the struct that into points at.
func (d decoder) decode(raw json.RawMessage, into any) error {
	fields, err := members(raw, "")
	if err != nil {
		return err
	}
	return d.fields(fields, reflect.ValueOf(into).Elem(), d.pointer, d.patch)
}

func (d decoder) fields(in map[string]json.RawMessage, v reflect.Value, pointer func(string) string, patch bool) error {
	index := jsonFields(v.Type())
	for name, raw := range in {
		i, ok := index[name]
		if !ok {
			return invalidAt(pointer(name), "there is no member %q here", name)
		}
		if err := d.value(raw, v.Field(i), pointer(name), patch); err != nil {
			return err
		}
	}
	return nil
}

// jsonFields maps JSON names to the fields of a struct type.
func jsonFields(t reflect.Type) map[string]int {
	out := map[string]int{}
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			out[name] = i
		}
	}
	return out
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// nullable reports whether null is a value of t, as it is of a Ref or a Time.
func nullable(t reflect.Type) bool {
	return t.Kind() == reflect.Pointer || reflect.PointerTo(t).Implements(unmarshaler)
}

func (d decoder) value(raw json.RawMessage, v reflect.Value, at string, patch bool) error {
	null := string(raw) == "null"
	t := v.Type()
	switch {
	case t.Kind() == reflect.Pointer:
		if null && !nullable(t.Elem()) {
			if patch {
				return invalidAt(at, "must not be null")
			}
			v.SetZero()
			return nil
		}
		e := reflect.New(t.Elem())
		if err := d.value(raw, e.Elem(), at, false); err != nil {
			return err
		}
		v.Set(e)
		return nil
	case reflect.PointerTo(t).Implements(unmarshaler):
		if err := json.Unmarshal(raw, v.Addr().Interface()); err != nil {
			var typ *json.UnmarshalTypeError
			if errors.As(err, &typ) {
				return invalidAt(at, "must be a string or null")
			}
			return invalidAt(at, "%s", err)
		}
		return nil
	case t.Kind() == reflect.Slice:
		if null {
			return nil
		}
		var items []json.RawMessage
		if err := json.Unmarshal(raw, &items); err != nil {
			return invalidAt(at, "must be a list")
		}
		out := reflect.MakeSlice(t, len(items), len(items))
		for i, item := range items {
			if err := d.value(item, out.Index(i), at+"/"+strconv.Itoa(i), false); err != nil {
				return err
			}
		}
		v.Set(out)
		return nil
	case t.Kind() == reflect.Map:
		if null {
			return nil
		}
		in, err := members(raw, at)
		if err != nil {
			return err
		}
		out := reflect.MakeMapWithSize(t, len(in))
		for name, item := range in {
			e := reflect.New(t.Elem()).Elem()
			if err := d.value(item, e, at+"/"+escape(name), false); err != nil {
				return err
			}
			out.SetMapIndex(reflect.ValueOf(name).Convert(t.Key()), e)
		}
		v.Set(out)
		return nil
	case t.Kind() == reflect.Struct:
		in, err := members(raw, at)
		if err != nil {
			return err
		}
		return d.fields(in, v, func(name string) string { return at + "/" + escape(name) }, false)
	}
	if null {
		return invalidAt(at, "must not be null")
	}
	if err := json.Unmarshal(raw, v.Addr().Interface()); err != nil {
		return invalidAt(at, "must be %s", kindName(t.Kind()))
	}
	return nil
}

func kindName(k reflect.Kind) string {
	switch k {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Float64:
		return "a number"
	}
	return fmt.Sprintf("a whole number that fits %s", k)
}
