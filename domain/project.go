package domain

import (
	"fmt"
	"regexp"
	"sync"
)

// Dispatch says which tickets of a project may be claimed at all.
type Dispatch string

// The dispatch modes: open offers every eligible ticket, targeted only those whose target a person has set.
const (
	DispatchOpen     Dispatch = "open"
	DispatchTargeted Dispatch = "targeted"
)

// Project groups the tickets of one code base.
type Project struct {
	ID        string          `json:"id"`       // UUIDv7
	Customer  Ref             `json:"customer"` // free text, groups projects
	Key       string          `json:"key"`      // see CheckProjectKey; starts every identifier
	Name      string          `json:"name"`
	Slug      string          `json:"slug"` // see Slug
	Repos     []string        `json:"repos"`
	Members   []string        `json:"members"` // user ids
	Settings  ProjectSettings `json:"settings"`
	CreatedAt Time            `json:"created_at"`
	UpdatedAt Time            `json:"updated_at"`
}

// ProjectSettings are the limits that the hub enforces for a project. Zero means "no limit".
type ProjectSettings struct {
	Dispatch     Dispatch `json:"dispatch"`      // "" is open
	ClusterCap   int      `json:"cluster_cap"`   // live runs over all conductors
	BudgetTokens int64    `json:"budget_tokens"` // input and output tokens over all runs of one ticket
	BudgetCost   float64  `json:"budget_cost"`   // US dollars over all runs of one ticket
	Agent        Ref      `json:"agent"`         // the agent of tickets that name none
}

var projectKey = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,19}$`) })

// CheckProjectKey returns an error unless key is an upper-case letter and at most 19 more of A-Z, 0-9 and _.
func CheckProjectKey(key string) error {
	if !projectKey().MatchString(key) {
		return fmt.Errorf("project key %q must be an upper-case letter followed by at most 19 of A-Z, 0-9 and _", key)
	}
	return nil
}

// User is a person known to the hub.
type User struct {
	ID        string `json:"id"` // `[a-z0-9-]+`
	Name      string `json:"name"`
	CreatedAt Time   `json:"created_at"`
}

// ProjectPatch is a partial change of a project: a nil field stays as it is. The key never changes.
type ProjectPatch struct {
	Customer *Ref             `json:"customer,omitempty"`
	Name     *string          `json:"name,omitempty"`
	Repos    *[]string        `json:"repos,omitempty"`
	Members  *[]string        `json:"members,omitempty"`
	Settings *ProjectSettings `json:"settings,omitempty"`
}
