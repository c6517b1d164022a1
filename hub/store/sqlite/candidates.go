package sqlite

import (
	"slices"

	"gaia/domain"
)

// The parts of the tickets table that Candidates reads, and the index that each must be read by. In both a ticket
// that is held or has a live run is not even there.
const (
	awake = "tickets INDEXED BY tickets_claim WHERE project = ? AND state = ? AND hold IS NULL AND busy = 0 AND wake_at IS NULL"
	due   = "tickets INDEXED BY tickets_wake WHERE project = ? AND state = ? AND hold IS NULL AND busy = 0 AND wake_at IS NOT NULL AND wake_at <= ?"
)

// The first page is small, since most claims take one of the first tickets; later ones grow.
const (
	firstPage = 8
	lastPage  = 256
)

// Candidates implements store.Tx. Each state is read in claim order by pages, and the states are merged, so that
// tickets in other states cost nothing. No statement is open while fn runs.
func (x *tx) Candidates(project string, states []string, now domain.Time, fn func(domain.Ticket) (bool, error)) error {
	states = slices.Compact(slices.Sorted(slices.Values(states)))
	var sources []*source
	for _, state := range states {
		if x.writable {
			// What has waited long enough joins the others for good, so that it is read in order from now on.
			if _, err := x.exec("waking up tickets", "UPDATE tickets INDEXED BY tickets_wake SET wake_at = NULL WHERE project = ? AND state = ? AND hold IS NULL AND busy = 0 AND wake_at IS NOT NULL AND wake_at <= ?",
				project, state, now.String()); err != nil {
				return err
			}
		} else {
			sources = append(sources, &source{from: due, args: []any{project, state, now.String()}, page: firstPage})
		}
		sources = append(sources, &source{from: awake, args: []any{project, state}, page: firstPage})
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

// source is one state's candidates, read page by page.
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
