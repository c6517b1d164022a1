package domain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// TimeLayout is how Gaia writes a point in time: RFC 3339, in UTC, with milliseconds.
const TimeLayout = "2006-01-02T15:04:05.000Z"

// Time is a point in time with millisecond precision. The zero value means "not set" and is null in JSON.
type Time struct{ time.Time }

// At returns t as a Time, in UTC and cut to milliseconds.
func At(t time.Time) Time {
	if t.IsZero() {
		return Time{}
	}
	return Time{t.UTC().Truncate(time.Millisecond)}
}

// ParseTime reads RFC 3339, with or without a fraction; the empty string is the zero Time.
func ParseTime(s string) (Time, error) {
	if s == "" {
		return Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return Time{}, fmt.Errorf("%q is not an RFC 3339 time, such as 2026-01-31T15:04:05Z", s)
	}
	if y := t.UTC().Year(); y < 1 || y > 9999 { // an offset can lead out of the years that RFC 3339 can write
		return Time{}, fmt.Errorf("%q is not within the years 1 to 9999 in UTC", s)
	}
	return At(t), nil
}

// String returns the time in TimeLayout, or "" when it is not set.
func (t Time) String() string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(TimeLayout)
}

// MarshalJSON writes TimeLayout, or null when the time is not set.
func (t Time) MarshalJSON() ([]byte, error) {
	if t.IsZero() {
		return []byte("null"), nil
	}
	return json.Marshal(t.String())
}

// UnmarshalJSON reads what MarshalJSON writes, and any RFC 3339 time.
func (t *Time) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		*t = Time{}
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	v, err := ParseTime(s)
	if err != nil {
		return err
	}
	*t = v
	return nil
}

// Ref is an optional string, such as the id of another object. The empty Ref means "none" and is null in JSON.
type Ref string

// MarshalJSON writes null for the empty Ref.
func (r Ref) MarshalJSON() ([]byte, error) {
	if r == "" {
		return []byte("null"), nil
	}
	return json.Marshal(string(r))
}

// UnmarshalJSON reads null as the empty Ref.
func (r *Ref) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		*r = ""
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	*r = Ref(s)
	return nil
}
