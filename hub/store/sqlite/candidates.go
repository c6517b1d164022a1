package sqlite

import (
	"encoding/json"
	"fmt"
	"slices"

	"gaia/domain"
	"gaia/hub/store"
)

// The parts of the tickets table that Candidates reads, and the index that each must be read by. In both a ticket
// that is held or has a live run is not even there.
const (
	awake = "tickets INDEXED BY tickets_claim WHERE project = ? AND state = ? AND target IS ? AND assignee IS ? AND hold IS NULL AND busy = 0 AND wake_at IS NULL"
	due   = "WHERE project = ? AND state IN (SELECT value FROM json_each(?)) AND hold IS NULL AND busy = 0 AND wake_at IS NOT NULL AND wake_at <= ?"
)

// queues are the combinations of state, target and assignee of which there is a candidate at all. There are many that
// could be and few that are.
const queues = `SELECT s.value, t.value, a.value
	FROM json_each(?1, '$[0]') AS s CROSS JOIN json_each(?1, '$[1]') AS t CROSS JOIN json_each(?1, '$[2]') AS a
	WHERE EXISTS (SELECT 1 FROM tickets INDEXED BY tickets_claim
			WHERE project = ?2 AND state = s.value AND hold IS NULL AND busy = 0 AND wake_at IS NULL)
		AND EXISTS (SELECT 1 FROM tickets INDEXED BY tickets_claim
			WHERE project = ?2 AND state = s.value AND target IS t.value AND assignee IS a.value AND hold IS NULL AND busy = 0 AND wake_at IS NULL)`

// The first page is small, since most claims take one of the first tickets; later ones grow.
const (
	firstPage = 1
	lastPage  = 256
)

// Candidates implements store.Tx. Each queue is read in claim order by pages, and the queues are merged, so that tickets
// in other states or of somebody else cost nothing. No statement is open while fn runs.
func (x *tx) Candidates(whom store.Claimer, now domain.Time, fn func(domain.Ticket) (bool, error)) error {
	const doing = "reading candidates"
	states := append([]string{}, slices.Compact(slices.Sorted(slices.Values(whom.States)))...)
	list, err := json.Marshal(states)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	var sources []*source
	if x.writable {
		// What has waited long enough joins the others for good, so that it is read in order from now on.
		if _, err := x.exec("waking up tickets", "UPDATE tickets INDEXED BY tickets_wake SET wake_at = NULL "+due, whom.Project, string(list), now.String()); err != nil {
			return err
		}
	} else {
		sources = append(sources, &source{from: "tickets INDEXED BY tickets_wake " + due, args: []any{whom.Project, string(list), now.String()}, page: firstPage})
	}
	among, err := json.Marshal([]any{states, orNone(whom.Conductor), orNone(whom.Owner)})
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if err := x.query(doing, queues, []any{string(among), whom.Project}, func(scan func(...any) error) error {
		var state, target, assignee any
		err := scan(&state, &target, &assignee)
		sources = append(sources, &source{from: awake, args: []any{whom.Project, state, target, assignee}, page: firstPage})
		return err
	}); err != nil {
		return err
	}
	for {
		var best *source
		for _, s := range sources {
			if err := s.fill(x); err != nil {
				return err
			}
			if len(s.rows) > 0 && (best == nil || domain.CompareClaim(s.rows[0], best.rows[0]) < 0) {
				best = s
			}
		}
		if best == nil {
			return nil
		}
		t := best.rows[0]
		best.rows = best.rows[1:]
		if more, err := fn(t); err != nil || !more {
			return err
		}
	}
}

// orNone is what a reference to id, or to nobody, may be.
func orNone(id string) []any {
	if id == "" {
		return []any{nil}
	}
	return []any{nil, id}
}

// source is one queue's candidates, read page by page.
type source struct {
	from string
	args []any
	page int
	rows []domain.Ticket
	last *domain.Ticket // the end of the pages that were read
	over bool
}

// fill reads the next page when the last one is used up.
func (s *source) fill(x *tx) error {
	if len(s.rows) > 0 || s.over {
		return nil
	}
	query, args := "SELECT doc FROM "+s.from, slices.Clone(s.args)
	if s.last != nil {
		query += " AND (unranked, rank, created_at, identifier) > (?, ?, ?, ?)"
		var rank float64
		if s.last.Priority != nil {
			rank = *s.last.Priority
		}
		args = append(args, s.last.Priority == nil, rank, s.last.CreatedAt.String(), s.last.Identifier)
	}
	query += " ORDER BY unranked, rank, created_at, identifier LIMIT ?"
	err := x.query("reading candidates", query, append(args, s.page), func(scan func(...any) error) error {
		var doc []byte
		if err := scan(&doc); err != nil {
			return err
		}
		t, err := tickets.read(x, doc)
		s.rows = append(s.rows, t)
		return err
	})
	if err != nil {
		return err
	}
	if s.over = len(s.rows) < s.page; !s.over {
		s.last = &s.rows[len(s.rows)-1]
	}
	s.page = min(s.page*4, lastPage)
	return nil
}
