package sqlite

import (
	"context"
	"database/sql"
	"errors"
)

// maxStatements bounds how many statements of a connection are kept; queries with filters have many forms.
const maxStatements = 256

// conn is one connection with the statements that were used on it before: to prepare one takes SQLite longer than most of
// them take to run. Statements do not watch their context, which would take a goroutine and a handler within SQLite for
// each; whoever runs them looks at it in between. Everything else about a connection is database/sql's.
type conn struct {
	*sql.Conn
	kept map[string]*sql.Stmt
}

func (c *conn) statement(ctx context.Context, query string) (*sql.Stmt, error) {
	if s := c.kept[query]; s != nil {
		return s, nil
	}
	s, err := c.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	for q, old := range c.kept {
		if len(c.kept) < maxStatements {
			break
		}
		delete(c.kept, q)
		_ = old.Close() // it was done with
	}
	c.kept[query] = s
	return s, nil
}

// ExecContext hides that of sql.Conn, which prepares the query anew.
func (c *conn) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	ctx = context.WithoutCancel(ctx)
	s, err := c.statement(ctx, query)
	if err != nil {
		return nil, err
	}
	return s.ExecContext(ctx, args...)
}

// QueryContext hides that of sql.Conn, too. The rows must be closed before the same query is used again.
func (c *conn) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	ctx = context.WithoutCancel(ctx)
	s, err := c.statement(ctx, query)
	if err != nil {
		return nil, err
	}
	return s.QueryContext(ctx, args...)
}

// pool is some connections of one kind, all of them open. Whoever waits for one gets it in turn.
type pool struct {
	db     *sql.DB
	size   int
	free   chan *conn
	closed chan struct{}
}

// newPool takes size connections of db for good.
func newPool(ctx context.Context, db *sql.DB, size int) (*pool, error) {
	p := &pool{db: db, free: make(chan *conn, size), closed: make(chan struct{})}
	for ; p.size < size; p.size++ {
		c, err := db.Conn(ctx)
		if err != nil {
			return nil, errors.Join(err, p.close())
		}
		p.free <- &conn{c, map[string]*sql.Stmt{}}
	}
	return p, nil
}

var errClosed = errors.New("the database is closed")

// take waits for a connection that nobody else uses until it is given back.
func (p *pool) take(ctx context.Context) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case c := <-p.free:
		return c, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.closed:
		return nil, errClosed
	}
}

func (p *pool) give(c *conn) { p.free <- c }

// close waits for those who use a connection. Nobody gets one after it.
func (p *pool) close() error {
	close(p.closed)
	var errs []error
	for range p.size {
		c := <-p.free
		for _, s := range c.kept { // or SQLite would keep the connection open for them
			errs = append(errs, s.Close())
		}
		errs = append(errs, c.Close())
	}
	return errors.Join(append(errs, p.db.Close())...)
}
