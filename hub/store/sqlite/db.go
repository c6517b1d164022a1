// Package sqlite keeps the hub's data in one SQLite file: the store of a single machine. It uses a driver without cgo,
// a write-ahead log with full synchronisation, one connection that writes and a few that read.
//
// It holds no rule about tickets, and it never repairs or replaces a file that it cannot use: it says what is wrong
// and leaves the file as it is.
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"gaia/hub/events"
	"gaia/hub/store"
)

//go:embed migrations/*.sql
var embedded embed.FS

// readers is how many snapshots can be read at the same time.
const readers = 4

// DB is the hub's database in one file. It implements store.Store.
type DB struct {
	path  string
	write *pool // one connection, whose transactions take the write lock at once
	read  *pool
	// anchor is a reading connection that is never used. While it is open, no other one is the last, so SQLite never
	// removes the write-ahead log, and a log that is another file than at the start was replaced by somebody else.
	anchor *sql.Conn
	file   os.FileInfo
	wal    os.FileInfo
	closed sync.Once
	failed atomic.Bool // whether the last write found the database unavailable
}

var _ store.Store = (*DB)(nil)

// Open opens the database at path, creates it if there is none, and brings an older one to the present schema after
// copying it to a file beside it. A database of a newer Gaia, or a file that is something else, is refused.
func Open(ctx context.Context, path string) (*DB, error) {
	migrations, err := fs.Sub(embedded, "migrations")
	if err != nil {
		return nil, fmt.Errorf("reading the built-in migrations: %w", err)
	}
	return open(ctx, path, migrations)
}

func open(ctx context.Context, path string, migrations fs.FS) (_ *DB, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("opening the database: %w", err)
	}
	if err := create(path); err != nil {
		return nil, err
	}
	if err := check(ctx, path); err != nil {
		return nil, err
	}
	db := &DB{path: path}
	defer func() {
		if err != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	write, err := connect(path, url.Values{"_txlock": {"immediate"}})
	if err != nil {
		return nil, err
	}
	write.SetMaxOpenConns(1)
	if err := migrate(ctx, write, path, migrations); err != nil {
		return nil, errors.Join(err, write.Close())
	}
	if db.write, err = newPool(ctx, write, 1); err != nil {
		return nil, failure("opening "+path, err)
	}
	read, err := connect(path, url.Values{"_query_only": {"1"}})
	if err != nil {
		return nil, err
	}
	if db.read, err = newPool(ctx, read, readers); err != nil {
		return nil, failure("opening "+path, err)
	}
	if db.anchor, err = read.Conn(ctx); err != nil {
		return nil, failure("opening "+path, err)
	}
	var n int
	if err := db.anchor.QueryRowContext(ctx, "SELECT count(*) FROM events WHERE seq < 0").Scan(&n); err != nil {
		return nil, failure("reading "+path, err)
	}
	if db.file, err = os.Stat(path); err != nil {
		return nil, lost(err)
	}
	if db.wal, err = os.Stat(path + "-wal"); err != nil {
		return nil, lost(err)
	}
	return db, nil
}

// create makes an empty file that only its owner can read, because SQLite gives the files beside it the same mode.
func create(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("%w: making the folder of the database: %w", store.ErrUnavailable, err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("%w: opening the database: %w", store.ErrUnavailable, err)
	}
	return f.Close()
}

// connect returns a pool of connections to the file. The path is part of a URI, so that no character of it is taken
// for a parameter.
func connect(path string, params url.Values) (*sql.DB, error) {
	params.Set("_busy_timeout", "5000")
	params.Set("_foreign_keys", "1")
	params.Set("_dqs", "0")
	params.Set("_defensive", "1")
	if !params.Has("mode") {
		params.Set("mode", "rw")
		params.Set("_journal_mode", "WAL")
		params.Set("_synchronous", "FULL")
	}
	u := url.URL{Scheme: "file", Path: path, RawQuery: params.Encode()}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	db.SetConnMaxIdleTime(0)
	return db, nil
}

// Update implements store.Store.
func (db *DB) Update(ctx context.Context, fn func(store.Tx) error) error {
	if err := db.present(); err != nil {
		return err
	}
	err := db.transact(ctx, db.write, true, fn)
	if unavailable := errors.Is(err, store.ErrUnavailable); unavailable || err == nil {
		db.failed.Store(unavailable)
	}
	return err
}

// View implements store.Store.
func (db *DB) View(ctx context.Context, fn func(store.Tx) error) error {
	return db.transact(ctx, db.read, false, fn)
}

func (db *DB) transact(ctx context.Context, p *pool, writable bool, fn func(store.Tx) error) error {
	c, err := p.take(ctx)
	if err != nil {
		return failure("beginning a transaction", err)
	}
	defer p.give(c)
	begin := "BEGIN"
	if writable {
		begin = "BEGIN IMMEDIATE"
	}
	if _, err := c.ExecContext(ctx, begin); err != nil {
		return failure("beginning a transaction", err)
	}
	t := &tx{ctx: ctx, conn: c, writable: writable, rows: map[rowID][]any{}}
	committed := false
	defer func() {
		if !committed { // also when fn panics
			_, _ = c.ExecContext(ctx, "ROLLBACK") // fails only if the transaction is over already
		}
	}()
	if err := fn(t); err != nil {
		return err
	}
	// SQLite may have rolled back by itself when the disk was full, after which statements would have been committed
	// one by one. Such a transaction ends here, even if fn did not mind the error.
	if t.broken != nil {
		return t.broken
	}
	if !writable {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return failure("committing a transaction", err)
	}
	if _, err := c.ExecContext(ctx, "COMMIT"); err != nil {
		return failure("committing a transaction", err)
	}
	committed = true
	return nil
}

// Events implements store.Store.
func (db *DB) Events(ctx context.Context, after int64, limit int) ([]store.SealedEvent, error) {
	c, err := db.read.take(ctx)
	if err != nil {
		return nil, failure("reading the event log", err)
	}
	defer db.read.give(c)
	return entries(ctx, c, after, limit)
}

// queries is a *conn or a *sql.DB.
type queries interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func entries(ctx context.Context, q queries, after int64, limit int) ([]store.SealedEvent, error) {
	rows, err := q.QueryContext(ctx, "SELECT seq, bytes, hash FROM events WHERE seq > ? ORDER BY seq LIMIT ?", after, max(limit, 0))
	if err != nil {
		return nil, failure("reading the event log", err)
	}
	defer rows.Close()
	var out []store.SealedEvent
	for rows.Next() {
		var e store.SealedEvent
		var hash []byte
		if err := rows.Scan(&e.Seq, &e.Bytes, &hash); err != nil {
			return nil, failure("reading the event log", err)
		}
		copy(e.Hash[:], hash)
		out = append(out, e)
	}
	if err := rows.Err(); err != nil {
		return nil, failure("reading the event log", err)
	}
	return out, nil
}

// Head implements store.Store.
func (db *DB) Head(ctx context.Context) (int64, [32]byte, error) {
	c, err := db.read.take(ctx)
	if err != nil {
		return 0, [32]byte{}, failure("reading the head of the event log", err)
	}
	defer db.read.give(c)
	return head(ctx, c)
}

// roomy is how much space a write may need: the hub's largest request, in the write-ahead log and in the database.
const roomy = 2 << 20

// Ready implements store.Store. It commits a write, since nothing less shows that writing works. A small write may
// still fit into the write-ahead log when the disk is full, so free space is asked for, too, and after a failure the
// write is a large one.
func (db *DB) Ready(ctx context.Context) error {
	if err := db.present(); err != nil {
		return err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(db.path, &fs); err != nil {
		return lost(err)
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < roomy {
		return fmt.Errorf("%w: the disk of %s has %d KiB left", store.ErrUnavailable, db.path, free>>10)
	}
	if err := db.probe(ctx); err != nil {
		return failure("writing to the database", err)
	}
	db.failed.Store(false)
	_, _, err := db.Head(ctx)
	return err
}

func (db *DB) probe(ctx context.Context) error {
	c, err := db.write.take(ctx)
	if err != nil {
		return err
	}
	defer db.write.give(c)
	if db.failed.Load() {
		if _, err := c.ExecContext(ctx, "UPDATE health SET probe = zeroblob(?)", roomy/2); err != nil {
			return err
		}
	}
	_, err = c.ExecContext(ctx, "UPDATE health SET written = written + 1, probe = NULL")
	return err
}

// Checkpoint implements store.Store: it copies the write-ahead log into the database and cuts it off, unless somebody
// is still reading from it.
func (db *DB) Checkpoint(ctx context.Context) error {
	const doing = "copying the write-ahead log into the database"
	c, err := db.write.take(ctx)
	if err != nil {
		return failure(doing, err)
	}
	defer db.write.give(c)
	var busy, log, copied int
	err = c.QueryRowContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)").Scan(&busy, &log, &copied)
	if err == nil && busy == 0 && log == copied {
		err = c.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &log, &copied)
	}
	if err != nil {
		return failure(doing, err)
	}
	return nil
}

// Close implements store.Store. A second call does nothing.
func (db *DB) Close() (err error) {
	db.closed.Do(func() { err = db.close() })
	return err
}

func (db *DB) close() error {
	var errs []error
	if db.anchor != nil {
		errs = append(errs, db.anchor.Close())
	}
	if db.read != nil {
		errs = append(errs, db.read.close())
	}
	if db.write != nil { // the last one: it leaves the write-ahead log empty
		errs = append(errs, db.write.close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("closing the database: %w", err)
	}
	return nil
}

// present returns an error if the files were removed or replaced: SQLite would go on writing to what nobody can open
// any more.
func (db *DB) present() error {
	for _, f := range []struct {
		path string
		info os.FileInfo
	}{{db.path, db.file}, {db.path + "-wal", db.wal}} {
		now, err := os.Stat(f.path)
		if err != nil {
			return lost(err)
		}
		if !os.SameFile(now, f.info) {
			return lost(fmt.Errorf("%s was replaced by another file", f.path))
		}
	}
	return nil
}

func lost(err error) error {
	return fmt.Errorf("%w: the database is not what the hub has open, restart the hub after mending it: %w", store.ErrUnavailable, err)
}

// Log is the event log of a database that is open for reading only. It works beside a running hub and without one.
type Log struct{ db *sql.DB }

var _ events.Log = (*Log)(nil)

// OpenLog opens the event log of the database at path and changes nothing.
func OpenLog(ctx context.Context, path string) (*Log, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("opening the database: %w", err)
	}
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("%w: opening the database: %w", store.ErrUnavailable, err)
	}
	db, err := openReading(ctx, path, url.Values{"_query_only": {"1"}})
	if err != nil {
		return nil, err
	}
	return &Log{db}, nil
}

// openReading opens the database at path and writes nothing to it.
func openReading(ctx context.Context, path string, params url.Values) (*sql.DB, error) {
	open := func(name, value string) (*sql.DB, error) {
		params.Set(name, value)
		pool, err := connect(path, params)
		if err != nil {
			return nil, err
		}
		if _, _, err := head(ctx, pool); err != nil {
			return nil, errors.Join(err, pool.Close())
		}
		return pool, nil
	}
	db, err := open("mode", "ro")
	if err == nil || !unopened(err) {
		return db, err
	}
	// In a folder that may not be written, SQLite cannot make the index of a write-ahead log. Without such a log the
	// file itself is everything.
	if info, statErr := os.Stat(path + "-wal"); statErr == nil && info.Size() > 0 {
		return nil, err
	}
	return open("immutable", "1")
}

// Events implements events.Log.
func (l *Log) Events(ctx context.Context, after int64, limit int) ([]store.SealedEvent, error) {
	return entries(ctx, l.db, after, limit)
}

// Close closes the database.
func (l *Log) Close() error { return l.db.Close() }

const lastEvent = "SELECT seq, hash FROM events ORDER BY seq DESC LIMIT 1"

func head(ctx context.Context, q queries) (seq int64, hash [32]byte, err error) {
	const doing = "reading the head of the event log"
	rows, err := q.QueryContext(ctx, lastEvent)
	if err != nil {
		return 0, hash, failure(doing, err)
	}
	defer rows.Close()
	if rows.Next() {
		var raw []byte
		if err := rows.Scan(&seq, &raw); err != nil {
			return 0, hash, failure(doing, err)
		}
		copy(hash[:], raw)
	}
	if err := rows.Err(); err != nil {
		return 0, hash, failure(doing, err)
	}
	return seq, hash, nil
}
