package sqlite

import (
	"context"
	"database/sql"
	"sync"
)

// maxStatements bounds how many statements of a pool are kept; queries with filters have many forms.
const maxStatements = 256

// pool is a pool of connections with the statements that were used on it before. To prepare one takes SQLite longer than
// most of them take to run.
type pool struct {
	*sql.DB
	mu   sync.Mutex
	kept map[string]*sql.Stmt
}

// use returns a statement for a transaction, nil where there is none yet.
func (p *pool) use(ctx context.Context, tx *sql.Tx, query string) *sql.Stmt {
	p.mu.Lock()
	s := p.kept[query]
	p.mu.Unlock()
	if s == nil {
		return nil
	}
	return tx.StmtContext(ctx, s)
}

// keep prepares statements for the next transaction. It must not be called within one, which may have the only connection.
// What cannot be prepared is not kept, and whoever uses it hears why.
func (p *pool) keep(ctx context.Context, queries []string) {
	for _, q := range queries {
		p.mu.Lock()
		full := p.kept[q] != nil || len(p.kept) >= maxStatements
		p.mu.Unlock()
		if full {
			continue
		}
		s, err := p.PrepareContext(ctx, q)
		if err != nil {
			return
		}
		p.mu.Lock()
		if p.kept == nil {
			p.kept = map[string]*sql.Stmt{}
		}
		if p.kept[q] == nil {
			p.kept[q], s = s, nil
		}
		p.mu.Unlock()
		if s != nil {
			_ = s.Close() // somebody else was faster
		}
	}
}
