package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"gaia/domain"
	"gaia/hub/events"
	"gaia/hub/store"
)

// tx implements store.Tx.
type tx struct {
	ctx      context.Context // of the Update or View that the transaction belongs to
	conn     *conn
	writable bool
	rows     map[rowID][]any    // the values of the rows that were read or written so far, where it is writable
	head     *store.SealedEvent // the newest entry of the log, once one was appended
	broken   error              // the first error that says that the database cannot be used
}

// note keeps the first error after which nothing more may be done in this transaction.
func (x *tx) note(err error) error {
	if err != nil && x.broken == nil && errors.Is(err, store.ErrUnavailable) {
		x.broken = err
	}
	return err
}

func (x *tx) exec(doing, query string, args ...any) (int64, error) {
	switch {
	case !x.writable:
		return 0, fmt.Errorf("%s: %w", doing, store.ErrReadOnly)
	case x.broken != nil:
		return 0, x.broken
	}
	if err := x.ctx.Err(); err != nil {
		return 0, failure(doing, err)
	}
	res, err := x.conn.ExecContext(x.ctx, query, args...)
	if err != nil {
		return 0, x.note(failure(doing, err))
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, x.note(failure(doing, err))
	}
	return n, nil
}

// query calls row for every row of the result. No statement stays open when it returns.
func (x *tx) query(doing, query string, args []any, row func(scan func(...any) error) error) (err error) {
	if x.broken != nil {
		return x.broken
	}
	rows, err := x.conn.QueryContext(x.ctx, query, args...)
	if err != nil {
		return x.note(failure(doing, err))
	}
	defer func() {
		if closeErr := rows.Close(); err == nil && closeErr != nil {
			err = x.note(failure(doing, closeErr))
		}
	}()
	for rows.Next() {
		if err := x.ctx.Err(); err != nil {
			return failure(doing, err)
		}
		if err := row(rows.Scan); err != nil {
			return x.note(failure(doing, err))
		}
	}
	if err := rows.Err(); err != nil {
		return x.note(failure(doing, err))
	}
	return nil
}

// row scans the only row of a result; sql.ErrNoRows if there is none.
func (x *tx) row(doing, query string, args []any, into ...any) error {
	found := false
	err := x.query(doing, query, args, func(scan func(...any) error) error {
		found = true
		return scan(into...)
	})
	if err == nil && !found {
		return sql.ErrNoRows
	}
	return err
}

func (x *tx) User(id string) (domain.User, error)       { return users.byID(x, id) }
func (x *tx) Users() ([]domain.User, error)             { return users.all(x, "ORDER BY id") }
func (x *tx) PutUser(u domain.User) error               { return users.put(x, u) }
func (x *tx) Project(id string) (domain.Project, error) { return projects.byID(x, id) }
func (x *tx) ProjectByKey(key string) (domain.Project, error) {
	return projects.one(x, key, `WHERE "key" = ?`, key)
}
func (x *tx) Projects(q store.Query) ([]domain.Project, int, error) { return projects.find(x, q) }
func (x *tx) PutProject(p domain.Project) error                     { return projects.put(x, p) }

func (x *tx) Ticket(id string) (domain.Ticket, error) { return tickets.byID(x, id) }
func (x *tx) TicketByIdentifier(identifier string) (domain.Ticket, error) {
	return tickets.one(x, identifier, "WHERE identifier = ?", identifier)
}
func (x *tx) Tickets(q store.Query) ([]domain.Ticket, int, error) { return tickets.find(x, q) }

func (x *tx) Parked(project string, states, machines []string, now domain.Time) ([]domain.Ticket, error) {
	in, err := json.Marshal([][]string{append([]string{}, states...), append([]string{}, machines...)}) // [] and not null
	if err != nil {
		return nil, fmt.Errorf("reading tickets: %w", err)
	}
	// Each part must be read by its own index: left to itself, SQLite reads every ticket, or (without the plus) every open one.
	const parked = `WHERE id IN (
			SELECT id FROM tickets INDEXED BY tickets_hold WHERE hold IS NOT NULL
			UNION ALL SELECT id FROM tickets INDEXED BY tickets_wake_at WHERE wake_at > ?1
			UNION ALL SELECT id FROM tickets INDEXED BY tickets_tree_at WHERE tree_at IN (SELECT value FROM json_each(?2, '$[1]')) AND state IN (SELECT value FROM json_each(?2, '$[0]'))
		) AND +state IN (SELECT value FROM json_each(?2, '$[0]')) AND ?3 IN ('', +project) ORDER BY created_at, id`
	return tickets.all(x, parked, now.String(), string(in), project)
}

func (x *tx) Blocked(project string, states []string) ([]domain.Ticket, error) {
	in, err := json.Marshal(append([]string{}, states...))
	if err != nil {
		return nil, fmt.Errorf("reading tickets: %w", err)
	}
	// The cross join and the plus have SQLite begin with the blocks: left to itself it may read every open ticket.
	const blocked = `WHERE id IN (
			SELECT b.ticket FROM ticket_blockers b CROSS JOIN tickets o ON o.id = b.value WHERE +o.state IN (SELECT value FROM json_each(?1))
		) AND +state IN (SELECT value FROM json_each(?1)) AND ?2 IN ('', +project) ORDER BY created_at, id`
	return tickets.all(x, blocked, string(in), project)
}

func (x *tx) PutTicket(t domain.Ticket) error { return tickets.put(x, t) }

// putList makes the side table hold exactly the values of set, a JSON list, for the ticket.
func (x *tx) putList(doing, side, ticket, set string) error {
	if set == "[]" {
		_, err := x.exec(doing, "DELETE FROM "+side+" WHERE ticket = ?", ticket)
		return err
	}
	if _, err := x.exec(doing, "DELETE FROM "+side+" WHERE ticket = ? AND value NOT IN (SELECT value FROM json_each(?))", ticket, set); err != nil {
		return err
	}
	_, err := x.exec(doing, "INSERT INTO "+side+" (ticket, value) SELECT DISTINCT ?, value FROM json_each(?) WHERE TRUE ON CONFLICT DO NOTHING", ticket, set)
	return err
}

// next counts up one of a project's counters.
func (x *tx) next(project, counter string) (int, error) {
	doing := "counting for project " + project
	n, err := x.exec(doing, "UPDATE projects SET "+counter+" = "+counter+" + 1 WHERE id = ?", project)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, fmt.Errorf("project %s: %w", project, domain.ErrNotFound)
	}
	var number int
	err = x.row(doing, "SELECT "+counter+" FROM projects WHERE id = ?", []any{project}, &number)
	return number, err
}

func (x *tx) NextTicketNumber(project string) (int, error) {
	for {
		n, err := x.next(project, "last_ticket")
		if err != nil {
			return 0, err
		}
		// An imported ticket may have the identifier already.
		var taken bool
		err = x.row("counting for project "+project,
			`SELECT EXISTS (SELECT 1 FROM tickets WHERE identifier = (SELECT "key" || '-' || ? FROM projects WHERE id = ?))`,
			[]any{n, project}, &taken)
		if err != nil || !taken {
			return n, err
		}
	}
}

func (x *tx) Run(id string) (domain.Run, error)             { return runs.byID(x, id) }
func (x *tx) Runs(q store.Query) ([]domain.Run, int, error) { return runs.find(x, q) }

func (x *tx) PutRun(r domain.Run) error {
	before := x.rows[rowID{runs.name, r.ID}]
	if err := runs.put(x, r); err != nil {
		return err
	}
	if before != nil && runs.same(before, &r, "ticket", "live") {
		return nil
	}
	_, err := x.exec("writing run "+r.ID,
		`UPDATE tickets SET busy = NOT busy WHERE id = ? AND busy <> EXISTS (SELECT 1 FROM runs WHERE ticket = tickets.id AND live = 1)`, r.Ticket)
	return err
}

func (x *tx) NextRunNumber(project string) (int, error) { return x.next(project, "last_run") }

func (x *tx) LiveRun(ticket string) (domain.Run, error) {
	return runs.one(x, "that is live, of ticket "+ticket, "WHERE ticket = ? AND live = 1", ticket)
}

func (x *tx) LastEndedRun(ticket string) (domain.Run, error) {
	return runs.one(x, "that has ended, of ticket "+ticket,
		"WHERE ticket = ? AND ended_at IS NOT NULL AND live = 0 ORDER BY ended_at DESC, number DESC LIMIT 1", ticket)
}

func (x *tx) LiveRuns(conductor string) ([]domain.Run, error) {
	if conductor == "" {
		return runs.all(x, "WHERE live = 1 ORDER BY claimed_at, number, id")
	}
	return runs.all(x, "WHERE conductor = ? AND live = 1 ORDER BY claimed_at, number, id", conductor)
}

func (x *tx) UnfinishedRuns(conductor string) ([]domain.Run, error) {
	return runs.all(x, "WHERE conductor = ? AND finalized_at IS NULL ORDER BY claimed_at, number, id", conductor)
}

func (x *tx) CountLive(project string) (int, error) {
	n := 0
	err := x.row("counting live runs", "SELECT count(*) FROM runs WHERE project = ? AND live = 1", []any{project}, &n)
	return n, err
}

func (x *tx) LiveByState(conductor string) (map[string]int, error) {
	out := map[string]int{}
	err := x.query("counting live runs", "SELECT state_at_start, count(*) FROM runs WHERE conductor = ? AND live = 1 GROUP BY state_at_start",
		[]any{conductor}, func(scan func(...any) error) error {
			var state string
			var n int
			err := scan(&state, &n)
			out[state] = n
			return err
		})
	return out, err
}

func (x *tx) UsedByTicket(ticket string) (domain.Footprint, error) {
	var sum domain.Footprint
	of, err := runs.all(x, "WHERE ticket = ? ORDER BY number", ticket)
	for _, r := range of {
		if r.Footprint != nil {
			sum.Add(*r.Footprint)
		}
	}
	return sum, err
}

func (x *tx) Used(project string) (int, domain.Footprint, error) {
	where, args := "", []any{}
	if project != "" {
		where, args = " WHERE project = ?", append(args, project)
	}
	var (
		n    int
		f    domain.Footprint
		sums [9]float64 // as numbers with a fraction, whose sum cannot fail
	)
	into := []any{&n, &f.Cost, &f.MemoryPeak}
	for i := range sums {
		into = append(into, &sums[i])
	}
	err := x.row("summing footprints", `SELECT count(*), total(cost), coalesce(max(memory_peak), 0), total(tokens_in), total(tokens_out),
		total(tokens_cache_read), total(tokens_cache_write), total(turns), total(wall_ms), total(cpu_ms), total(io_read), total(io_write)
		FROM runs INDEXED BY runs_used`+where, args, into...)
	for i, to := range []*int64{&f.TokensIn, &f.TokensOut, &f.TokensCacheRead, &f.TokensCacheWrite, &f.Turns, &f.WallMS, &f.CPUMS, &f.IORead, &f.IOWrite} {
		if *to = math.MaxInt64; sums[i] < math.MaxInt64 {
			*to = int64(sums[i])
		}
	}
	return n, f, err
}

func (x *tx) Conductor(id string) (domain.Conductor, error) { return conductors.byID(x, id) }
func (x *tx) ConductorByMachineID(machineID string) (domain.Conductor, error) {
	return conductors.one(x, machineID, "WHERE machine_id = ?", machineID)
}
func (x *tx) Conductors(q store.Query) ([]domain.Conductor, int, error) { return conductors.find(x, q) }
func (x *tx) PutConductor(c domain.Conductor) error                     { return conductors.put(x, c) }

func (x *tx) Comment(id string) (domain.Comment, error)             { return comments.byID(x, id) }
func (x *tx) Comments(q store.Query) ([]domain.Comment, int, error) { return comments.find(x, q) }
func (x *tx) PutComment(c domain.Comment) error                     { return comments.put(x, c) }

func (x *tx) Labels(project string) ([]domain.Label, error) {
	query, args := "SELECT value, count(*) FROM ticket_labels", []any{}
	if project != "" {
		query, args = query+" WHERE EXISTS (SELECT 1 FROM tickets WHERE id = ticket AND project = ?)", append(args, project)
	}
	var out []domain.Label
	err := x.query("reading labels", query+" GROUP BY value ORDER BY value", args,
		func(scan func(...any) error) error {
			var l domain.Label
			err := scan(&l.Name, &l.Tickets)
			out = append(out, l)
			return err
		})
	return out, err
}

func (x *tx) PutToken(t store.Token) error {
	doing := "writing the token of " + string(t.Kind) + " " + t.Holder
	if t.Kind == "" || t.Holder == "" {
		return fmt.Errorf("%s: %w: kind and holder must be set", doing, domain.ErrInvalid)
	}
	_, err := x.exec(doing, "INSERT INTO tokens (hash, kind, holder) VALUES (?, ?, ?) ON CONFLICT (kind, holder) DO UPDATE SET hash = excluded.hash",
		t.Hash[:], string(t.Kind), t.Holder)
	return err
}

func (x *tx) TokenByHash(hash [32]byte) (store.Token, error) {
	t := store.Token{Hash: hash}
	err := x.row("looking up a token", "SELECT kind, holder FROM tokens WHERE hash = ?", []any{hash[:]}, &t.Kind, &t.Holder)
	if errors.Is(err, sql.ErrNoRows) {
		return store.Token{}, fmt.Errorf("token: %w", domain.ErrNotFound)
	}
	return t, err
}

func (x *tx) Answer(principal, key string, since time.Time) (store.Answer, error) {
	a := store.Answer{Principal: principal, Key: key}
	var request []byte
	var at int64
	err := x.row("looking up an answer", `SELECT request, body, at FROM answers WHERE principal = ? AND "key" = ? AND at > ?`,
		[]any{principal, key, since.UnixMicro()}, &request, &a.Body, &at)
	if errors.Is(err, sql.ErrNoRows) {
		return store.Answer{}, fmt.Errorf("answer: %w", domain.ErrNotFound)
	}
	copy(a.Request[:], request)
	a.At = time.UnixMicro(at).UTC()
	return a, err
}

func (x *tx) PutAnswer(a store.Answer) error {
	if a.Key == "" {
		return fmt.Errorf("writing an answer: %w: key must be set", domain.ErrInvalid)
	}
	body := append([]byte{}, a.Body...) // never nil, which would be NULL
	_, err := x.exec("writing an answer", `INSERT INTO answers (principal, "key", request, body, at) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT DO UPDATE SET request = excluded.request, body = excluded.body, at = excluded.at`,
		a.Principal, a.Key, a.Request[:], body, a.At.UnixMicro())
	return err
}

func (x *tx) DropAnswers(before time.Time) error {
	_, err := x.exec("dropping old answers", "DELETE FROM answers WHERE at < ?", before.UnixMicro())
	return err
}

func (x *tx) Append(e domain.Event) error {
	const doing = "appending to the event log"
	switch {
	case !x.writable:
		return fmt.Errorf("%s: %w", doing, store.ErrReadOnly)
	case x.broken != nil:
		return x.broken
	}
	if x.head == nil { // read anew by each transaction: another process may have written since the last one
		seq, hash, err := head(x.ctx, x.conn)
		if err != nil {
			return x.note(err)
		}
		x.head = &store.SealedEvent{Seq: seq, Hash: hash}
	}
	e.Seq = x.head.Seq + 1
	sealed, err := events.Seal(x.head.Hash, e)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if _, err := x.exec(doing, "INSERT INTO events (seq, bytes, hash) VALUES (?, ?, ?)", sealed.Seq, sealed.Bytes, sealed.Hash[:]); err != nil {
		return err
	}
	x.head = &sealed
	return nil
}
