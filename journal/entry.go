package journal

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"gaia/internal/log"
)

// Entry is one entry of the journal, as far as Gaia tells it. A field that an entry does not have is empty.
type Entry struct {
	At        time.Time `json:"time"`
	Priority  int       `json:"priority"` // 0 to 7, as syslog has them
	Level     string    `json:"level"`    // the same as a word
	Source    string    `json:"source"`   // the program that said it
	PID       int       `json:"pid"`
	Unit      string    `json:"unit"` // user unit
	Project   string    `json:"project"`
	Ticket    string    `json:"ticket"`
	Run       string    `json:"run"` // id
	Conductor string    `json:"conductor"`
	Reason    string    `json:"reason"`
	MessageID string    `json:"message_id"`
	Message   string    `json:"message"`
	// Incomplete is set where the message was too long to be read.
	Incomplete bool   `json:"incomplete"`
	Cursor     string `json:"cursor"` // for journalctl --cursor
}

// levels are the words for the priorities, as journalctl has them.
var levels = []string{"emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"}

// info is the priority of an entry that names none.
const info = 6

// ParsePriority returns the priority that a person means: a word of journalctl's, one of its usual variants, or a number.
func ParsePriority(s string) (int, error) {
	word := strings.ToLower(s)
	if short, ok := map[string]string{"error": "err", "warn": "warning", "panic": "emerg"}[word]; ok {
		word = short
	}
	for i, l := range levels {
		if word == l || word == strconv.Itoa(i) {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%q is no priority: it is one of %s, or 0 to 7", s, strings.Join(levels, ", "))
}

// The fields that are read besides Gaia's own.
const (
	fieldAt         = "__REALTIME_TIMESTAMP" // of the receipt, in microseconds; it is what entries are in the order of
	fieldCursor     = "__CURSOR"
	fieldMessage    = "MESSAGE"
	fieldPriority   = "PRIORITY"
	fieldIdentifier = "SYSLOG_IDENTIFIER"
	fieldCommand    = "_COMM"
	fieldPID        = "_PID"
	fieldUID        = "_UID"

	// FieldUnit is the user unit that the writing process belongs to.
	FieldUnit = "_SYSTEMD_USER_UNIT"
	// FieldUnitOf is the user unit that the user manager writes about.
	FieldUnitOf = "USER_UNIT"
)

// wanted are the fields that journalctl is asked for: nothing else takes its way through a pipe.
var wanted = []string{
	fieldMessage, fieldPriority, fieldIdentifier, fieldCommand, fieldPID, FieldUnit, FieldUnitOf,
	log.Project, log.Ticket, log.Run, log.Conductor, log.Reason, log.MessageID,
}

// Decode reads one line of `journalctl -o json`. The line must be one object with a time in it; a field in it that is
// unknown, or of a kind that the format does not have, is left out, so that a newer journalctl is understood.
func Decode(line []byte) (Entry, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(line, &raw); err != nil {
		return Entry{}, fmt.Errorf("a line of journalctl is not understood: %w", err)
	}
	us, err := strconv.ParseInt(text(raw[fieldAt]), 10, 64)
	if err != nil || us < 0 {
		return Entry{}, fmt.Errorf("a line of journalctl is not understood: it has no time (%s)", fieldAt)
	}
	get := func(names ...string) string {
		for _, n := range names {
			if s := text(raw[n]); s != "" {
				return s
			}
		}
		return ""
	}
	e := Entry{
		At: time.UnixMicro(us).UTC(), Priority: info, Source: get(fieldIdentifier, fieldCommand),
		// A line of the user manager about a unit belongs to that unit, and not to the manager's own.
		Unit: get(FieldUnitOf, FieldUnit), Project: get(log.Project), Ticket: get(log.Ticket), Run: get(log.Run), Conductor: get(log.Conductor),
		Reason: get(log.Reason), MessageID: get(log.MessageID), Message: get(fieldMessage), Cursor: get(fieldCursor),
	}
	if m, there := raw[fieldMessage]; there && string(m) == "null" {
		e.Incomplete = true
	}
	if p, err := strconv.Atoi(get(fieldPriority)); err == nil && p >= 0 && p < len(levels) {
		e.Priority = p
	}
	e.Level = levels[e.Priority]
	if pid, err := strconv.ParseInt(get(fieldPID), 10, 32); err == nil && pid > 0 {
		e.PID = int(pid)
	}
	return e, nil
}

// text is the value of a field: a string; an array of bytes where it is no text; null where it is too large; or an array
// of these where the entry has the field several times, of which the first that is one counts.
func text(raw json.RawMessage) string {
	if len(raw) == 0 {
		return ""
	}
	switch raw[0] {
	case '"':
		var s string
		if json.Unmarshal(raw, &s) == nil {
			return s
		}
	case '[':
		var items []json.RawMessage
		if json.Unmarshal(raw, &items) != nil {
			return ""
		}
		if b, ok := bytesOf(items); ok {
			return strings.ToValidUTF8(string(b), "\uFFFD")
		}
		for _, item := range items {
			if item[0] == '"' || item[0] == '[' && !nested(item) {
				if s := text(item); s != "" {
					return s
				}
			}
		}
	}
	return ""
}

// nested reports whether an array holds something else than numbers: the format knows no third level.
func nested(raw json.RawMessage) bool {
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		return true
	}
	_, ok := bytesOf(items)
	return !ok
}

func bytesOf(items []json.RawMessage) ([]byte, bool) {
	out := make([]byte, len(items))
	for i, item := range items {
		n, err := strconv.ParseUint(string(item), 10, 8)
		if err != nil {
			return nil, false
		}
		out[i] = byte(n)
	}
	return out, true
}
