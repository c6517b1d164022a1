package domain

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of ticket text, in bytes. They keep one ticket well under the hub's request limit of 1 MiB.
const (
	MaxIdentifier  = 512
	MaxTitle       = 1024
	MaxDescription = 256 << 10
	MaxComment     = 256 << 10
	MaxLabel       = 128
)

// Ticket is one piece of work. JSON names are those that `-o json` prints.
type Ticket struct {
	ID            string         `json:"id"`         // UUIDv7
	Identifier    string         `json:"identifier"` // KEY-n; an imported one may be any text
	Project       string         `json:"project"`    // project id
	Workflow      Ref            `json:"workflow"`   // null until qualified
	Title         string         `json:"title"`
	Description   string         `json:"description"` // Markdown
	State         string         `json:"state"`
	Assignee      Ref            `json:"assignee"` // user id
	Target        Ref            `json:"target"`   // conductor id, set by people only
	TreeAt        Ref            `json:"tree_at"`  // conductor id that holds unpushed work
	Priority      *float64       `json:"priority"`
	Parent        Ref            `json:"parent"`     // ticket id
	BlockedBy     []string       `json:"blocked_by"` // ticket ids
	Labels        []string       `json:"labels"`     // lower case, sorted
	Origin        Ref            `json:"origin"`     // source URL, unique per project
	Links         []Link         `json:"links"`
	Agent         Ref            `json:"agent"`
	Branch        Ref            `json:"branch"` // frozen at the first start of a run
	NotBefore     Time           `json:"not_before"`
	RetryAt       Time           `json:"retry_at"`
	Hold          *Hold          `json:"hold"`
	Attempts      int            `json:"attempts"`       // failures that count, in the present state
	InfraFailures []Time         `json:"infra_failures"` // failures of the machinery, last 24 hours
	Entries       map[string]int `json:"entries"`        // how often runs entered each state
	CreatedAt     Time           `json:"created_at"`
	UpdatedAt     Time           `json:"updated_at"`
}

// Link points from a ticket to something else. Links are only ever added.
type Link struct {
	URI   string `json:"uri"`
	Title string `json:"title"`
	Kind  string `json:"kind"`
}

// Hold keeps a ticket from being claimed until a person lifts it.
type Hold struct {
	Reason Reason `json:"reason"`
	Note   string `json:"note"`
	Since  Time   `json:"since"`
}

// TicketPatch is a partial change of a ticket: a nil field stays as it is. State and Workflow together are one
// transition. AddLinks adds; all other lists replace.
type TicketPatch struct {
	Title       *string   `json:"title,omitempty"`
	Description *string   `json:"description,omitempty"`
	Workflow    *string   `json:"workflow,omitempty"`
	State       *string   `json:"state,omitempty"`
	Assignee    *Ref      `json:"assignee,omitempty"`
	Target      *Ref      `json:"target,omitempty"`
	Project     *string   `json:"project,omitempty"`
	Priority    **float64 `json:"priority,omitempty"`
	Parent      *Ref      `json:"parent,omitempty"`
	BlockedBy   *[]string `json:"blocked_by,omitempty"`
	Labels      *[]string `json:"labels,omitempty"`
	AddLinks    []Link    `json:"add_links,omitempty"`
	Agent       *Ref      `json:"agent,omitempty"`
	NotBefore   *Time     `json:"not_before,omitempty"`
	// Head is the commit that the writing run's worktree stands at, sent with its state write.
	Head *string `json:"head,omitempty"`
}

// TicketDraft is what is needed to create a ticket. Only an owner may give Identifier or State.
type TicketDraft struct {
	Project     string   `json:"project"` // project id
	Identifier  string   `json:"identifier,omitempty"`
	Workflow    Ref      `json:"workflow,omitempty"`
	State       string   `json:"state,omitempty"` // default: the workflow's first state
	Title       string   `json:"title"`
	Description string   `json:"description,omitempty"`
	Assignee    Ref      `json:"assignee,omitempty"`
	Target      Ref      `json:"target,omitempty"`
	Priority    *float64 `json:"priority,omitempty"`
	Parent      Ref      `json:"parent,omitempty"`
	BlockedBy   []string `json:"blocked_by,omitempty"`
	Labels      []string `json:"labels,omitempty"`
	Links       []Link   `json:"links,omitempty"`
	Origin      Ref      `json:"origin,omitempty"`
	Agent       Ref      `json:"agent,omitempty"`
	NotBefore   Time     `json:"not_before,omitzero"`
}

// Comment is one remark on a ticket. Type is a reader's convention (spec, plan, summary, …), not a closed list.
type Comment struct {
	ID        string `json:"id"`     // UUIDv7
	Ticket    string `json:"ticket"` // ticket id
	Author    string `json:"author"` // user id, or conductor/machine_id, or run/number
	Type      string `json:"type"`
	Body      string `json:"body"`
	CreatedAt Time   `json:"created_at"`
}

// DefaultCommentType is the type of a comment that names none.
const DefaultCommentType = "comment"

// NormaliseState returns a state name as states are compared: trimmed and in lower case.
func NormaliseState(s string) string { return strings.ToLower(strings.TrimSpace(s)) }

// NormaliseLabels returns labels in lower case, trimmed, sorted and without duplicates, or an error that names
// the label that is empty, too long or holds a control character or a comma.
func NormaliseLabels(labels []string) ([]string, error) {
	out := make([]string, 0, len(labels))
	for _, l := range labels {
		n := strings.ToLower(strings.TrimSpace(l))
		switch {
		case n == "":
			return nil, fmt.Errorf("a label is empty")
		case len(n) > MaxLabel:
			return nil, fmt.Errorf("label %.20q… is longer than %d bytes", n, MaxLabel)
		case !utf8.ValidString(l) || strings.ContainsFunc(n, func(r rune) bool { return unicode.IsControl(r) || r == ',' }):
			return nil, fmt.Errorf("label %q holds a control character or a comma", n)
		}
		out = append(out, n)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// CheckIdentifier returns an error unless s can identify a ticket: valid UTF-8, not blank, at most MaxIdentifier
// bytes and free of control characters. Anything else is allowed, because imported identifiers are.
func CheckIdentifier(s string) error {
	switch {
	case strings.TrimSpace(s) == "":
		return fmt.Errorf("an identifier must not be blank")
	case len(s) > MaxIdentifier:
		return fmt.Errorf("an identifier has at most %d bytes, this one has %d", MaxIdentifier, len(s))
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl):
		return fmt.Errorf("identifier %q holds a control character or is not UTF-8", s)
	}
	return nil
}

// CheckTitle returns an error unless s is one line of 1 to MaxTitle bytes of UTF-8 that is not blank.
func CheckTitle(s string) error {
	switch {
	case strings.TrimSpace(s) == "":
		return fmt.Errorf("a title must not be blank")
	case len(s) > MaxTitle:
		return fmt.Errorf("a title has at most %d bytes, this one has %d", MaxTitle, len(s))
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl):
		return fmt.Errorf("a title is one line of UTF-8 without control characters")
	}
	return nil
}

// CheckText returns an error unless body is UTF-8 of at most limit bytes; name is what the error calls it.
func CheckText(name, body string, limit int) error {
	switch {
	case len(body) > limit:
		return fmt.Errorf("%s has at most %d bytes, this one has %d", name, limit, len(body))
	case !utf8.ValidString(body):
		return fmt.Errorf("%s is not valid UTF-8", name)
	}
	return nil
}

// Label is a label in use.
type Label struct {
	Name    string `json:"name"`
	Tickets int    `json:"tickets"`
}
