package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	driver "modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"gaia/domain"
	"gaia/hub/store"
)

// taken says in a person's words which unique column is taken, by SQLite's name of it.
var taken = map[string]string{
	"projects.key":                    "key: another project has it",
	"conductors.machine_id":           "machine_id: another conductor has it",
	"tickets.identifier":              "identifier: another ticket has it",
	"tickets.project, tickets.origin": "origin: another ticket of the project has it",
	"runs.project, runs.number":       "number: another run of the project has it",
	"runs.ticket":                     "ticket: it has a live run already",
	"tokens.hash":                     "token: somebody else has it",
}

// failure wraps an error of the database as what the hub knows: a conflict, a reference to nothing, or a database that
// cannot be used now.
func failure(doing string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	var e *driver.Error
	if !errors.As(err, &e) {
		// Not from SQLite: the pool is closed or its connection is gone.
		if errors.Is(err, sql.ErrNoRows) || errors.Is(err, domain.ErrInvalid) {
			return fmt.Errorf("%s: %w", doing, err)
		}
		return fmt.Errorf("%w: %s: %w", store.ErrUnavailable, doing, err)
	}
	switch e.Code() {
	case codes.SQLITE_CONSTRAINT_UNIQUE, codes.SQLITE_CONSTRAINT_PRIMARYKEY:
		column := e.Error()
		if _, after, ok := strings.Cut(column, "UNIQUE constraint failed: "); ok {
			column, _, _ = strings.Cut(after, " (")
		}
		if text, ok := taken[column]; ok {
			column = text
		}
		return fmt.Errorf("%s: %w: %s", doing, domain.ErrConflict, column)
	case codes.SQLITE_CONSTRAINT_FOREIGNKEY:
		return fmt.Errorf("%s: %w: it names an object that does not exist", doing, domain.ErrInvalid)
	}
	switch e.Code() & 0xff {
	case codes.SQLITE_INTERRUPT:
		return fmt.Errorf("%s: %w", doing, context.Canceled)
	case codes.SQLITE_TOOBIG, codes.SQLITE_CONSTRAINT, codes.SQLITE_MISMATCH:
		return fmt.Errorf("%s: %w: %w", doing, domain.ErrInvalid, err)
	case codes.SQLITE_ERROR, codes.SQLITE_MISUSE, codes.SQLITE_RANGE:
		return fmt.Errorf("%s: %w", doing, err) // a wrong statement: a fault of this package
	}
	return fmt.Errorf("%w: %s: %w", store.ErrUnavailable, doing, err)
}

// unopened reports whether SQLite could not open a file, its own ones beside the database included. That somebody else has a
// lock is another error.
func unopened(err error) bool {
	var e *driver.Error
	return errors.As(err, &e) && e.Code()&0xff == codes.SQLITE_CANTOPEN
}
