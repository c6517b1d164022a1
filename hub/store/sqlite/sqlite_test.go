package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"gaia/domain"
	"gaia/hub/events"
	"gaia/hub/store"
	"gaia/hub/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openAt(t testing.TB, path string) *DB {
	db, err := Open(context.Background(), path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func openTemp(t testing.TB) *DB { return openAt(t, filepath.Join(t.TempDir(), "hub.db")) }

func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) store.Store { return openTemp(t) })
}

var noon = storetest.Noon

// populate writes a project with one event per call.
func populate(ctx context.Context, db *DB, n int) error {
	return db.Update(ctx, func(tx store.Tx) error {
		return errors.Join(
			tx.PutProject(domain.Project{ID: "p", Key: "SHOP"}),
			tx.PutTicket(domain.Ticket{ID: fmt.Sprint(n), Identifier: fmt.Sprintf("SHOP-%d", n), Project: "p", State: "coding", CreatedAt: noon}),
			tx.Append(domain.Event{Time: noon, Kind: "ticket.created", Actor: "user/ada", Type: "ticket", Object: fmt.Sprint(n)}),
		)
	})
}

func ticketCount(t testing.TB, s store.Store) (n int) {
	require.NoError(t, s.View(context.Background(), func(tx store.Tx) (err error) {
		_, n, err = tx.Tickets(store.Query{Limit: 1})
		return err
	}))
	return n
}

// exec runs statements past the store, on one of its own connections.
func exec(t *testing.T, p *pool, statements string, args ...any) error {
	c, err := p.take(t.Context())
	require.NoError(t, err)
	defer p.give(c)
	_, err = c.Conn.ExecContext(t.Context(), statements, args...)
	return err
}

// What the connections promise: durability, references, and that a reader cannot write.
func TestPragmas(t *testing.T) {
	t.Parallel()
	db := openTemp(t)
	for _, c := range []struct {
		pool         *pool
		pragma, want string
	}{
		{db.write, "journal_mode", "wal"}, {db.write, "synchronous", "2"}, {db.write, "foreign_keys", "1"}, {db.write, "busy_timeout", "5000"},
		{db.write, "query_only", "0"}, {db.read, "query_only", "1"}, {db.read, "journal_mode", "wal"},
	} {
		var got string
		one, err := c.pool.take(t.Context())
		require.NoError(t, err)
		require.NoError(t, one.QueryRowContext(t.Context(), "PRAGMA "+c.pragma).Scan(&got))
		c.pool.give(one)
		require.Equal(t, c.want, got, c.pragma)
	}
	require.Error(t, exec(t, db.read, "DELETE FROM tickets"))
	for _, name := range []string{"", "-wal", "-shm"} {
		info, err := os.Stat(db.path + name)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode().Perm(), name)
	}
}

// A path may hold what means something in a URI.
func TestPathIsData(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a b?mode=memory&c#d%20é")
	path := filepath.Join(dir, "hub.db")
	db := openAt(t, path)
	require.NoError(t, populate(t.Context(), db, 1))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.NotZero(t, info.Size())
	info, err = os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o700), info.Mode().Perm())
}

// What was written is there after a new start, and numbers and chain go on.
func TestReopen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "hub.db")
	for i := 1; i <= 3; i++ {
		db, err := Open(t.Context(), path)
		require.NoError(t, err)
		require.NoError(t, populate(t.Context(), db, i))
		require.Equal(t, i, ticketCount(t, db))
		n, _, err := events.Verify(t.Context(), events.Reader(t.Context(), db))
		require.NoError(t, err)
		require.EqualValues(t, i, n)
		require.NoError(t, db.Close())
		require.NoFileExists(t, path+"-wal")
		require.NoError(t, db.Close())
	}
	files, err := filepath.Glob(path + ".*")
	require.NoError(t, err)
	require.Empty(t, files, "no copy is made where nothing is migrated")
}

// What a crash leaves, a database with a write-ahead log, is read in full by the next start and by verify.
func TestAfterCrash(t *testing.T) {
	t.Parallel()
	db := openTemp(t)
	require.NoError(t, populate(t.Context(), db, 1))
	require.NoError(t, db.Checkpoint(t.Context()))
	require.NoError(t, populate(t.Context(), db, 2)) // in the log only
	crashed := filepath.Join(t.TempDir(), "hub.db")
	for _, suffix := range []string{"", "-wal"} {
		data, err := os.ReadFile(db.path + suffix)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(crashed+suffix, data, 0o600))
	}
	log, err := OpenLog(t.Context(), crashed)
	require.NoError(t, err)
	n, _, err := events.Verify(t.Context(), events.Reader(t.Context(), log))
	require.NoError(t, err)
	require.EqualValues(t, 2, n)
	require.NoError(t, log.Close())
	require.Equal(t, 2, ticketCount(t, openAt(t, crashed)))
}

func TestCheckpointEmptiesLog(t *testing.T) {
	t.Parallel()
	db := openTemp(t)
	require.NoError(t, populate(t.Context(), db, 1))
	info, err := os.Stat(db.path + "-wal")
	require.NoError(t, err)
	require.NotZero(t, info.Size())
	require.NoError(t, db.Checkpoint(t.Context()))
	info, err = os.Stat(db.path + "-wal")
	require.NoError(t, err)
	require.Zero(t, info.Size())
}

func TestOpenLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "hub.db")
	_, err := OpenLog(t.Context(), path)
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.NoFileExists(t, path)

	db := openAt(t, path)
	require.NoError(t, populate(t.Context(), db, 1))
	seq, head, err := db.Head(t.Context())
	require.NoError(t, err)
	verify := func() {
		log, err := OpenLog(t.Context(), path)
		require.NoError(t, err)
		n, h, err := events.Verify(t.Context(), events.Reader(t.Context(), log))
		require.NoError(t, err)
		require.Equal(t, seq, n)
		require.Equal(t, head, h)
		_, err = log.db.Exec("DELETE FROM events")
		require.Error(t, err)
		require.NoError(t, log.Close())
	}
	verify() // beside the hub
	require.NoError(t, db.Ready(t.Context()), "reading beside the hub did not take its log away")
	require.NoError(t, db.Close())
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	verify() // without it
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// Whoever has the database locked may be changing it.
func TestALockedDatabaseIsNotReadAnyway(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "hub.db")
	require.NoError(t, openAt(t, path).Close())
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	// As SQLite does it. The lock is the process's own unless it is one of this kind.
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 0x40000002, Len: 510}
	require.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock))
	_, err = OpenLog(t.Context(), path)
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorContains(t, err, "locked")
}

// A log that somebody changed behind the hub's back does not verify.
func TestTamperedLog(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"bytes":    `UPDATE events SET bytes = CAST(replace(CAST(bytes AS TEXT), 'ada', 'eve') AS BLOB) WHERE seq = 2`,
		"hash":     `UPDATE events SET hash = zeroblob(32) WHERE seq = 2`,
		"removed":  `DELETE FROM events WHERE seq = 2`,
		"swapped":  `UPDATE events SET seq = CASE seq WHEN 2 THEN -3 WHEN 3 THEN -2 END WHERE seq IN (2, 3); UPDATE events SET seq = -seq WHERE seq < 0`,
		"repeated": `UPDATE events SET (bytes, hash) = (SELECT bytes, hash FROM events WHERE seq = 1) WHERE seq = 2`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := openTemp(t)
			for i := range 4 {
				require.NoError(t, populate(t.Context(), db, i))
			}
			require.NoError(t, exec(t, db.write, sql))
			_, _, err := events.Verify(t.Context(), events.Reader(t.Context(), db))
			var broken *events.BrokenError
			require.ErrorAs(t, err, &broken)
			require.EqualValues(t, 2, broken.Seq)
		})
	}
}

// nothingWrong is the check of a copy that is to be kept.
func nothingWrong(string) error { return nil }

func TestBackup(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	db := openTemp(t)
	require.NoError(t, populate(ctx, db, 1))
	path := filepath.Join(dir, "copy.db")
	require.NoError(t, Backup(ctx, db.path, path, nothingWrong))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, populate(ctx, db, 2))

	before, err := os.ReadFile(path)
	require.NoError(t, err)
	err = Backup(ctx, db.path, path, nothingWrong)
	require.ErrorIs(t, err, fs.ErrExist)
	require.ErrorContains(t, err, path+": file already exists and is left as it is")
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, before, after, "an existing file is never overwritten")
	dangling := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink("nothing", dangling))
	require.ErrorIs(t, Backup(ctx, db.path, dangling, nothingWrong), fs.ErrExist)
	require.ErrorIs(t, Backup(ctx, db.path, dir, nothingWrong), fs.ErrExist)
	late := filepath.Join(dir, "late.db")
	err = Backup(ctx, db.path, late, func(string) error { return os.WriteFile(late, []byte("theirs"), 0o600) })
	require.ErrorIs(t, err, fs.ErrExist, "also not one that came meanwhile")
	theirs, err := os.ReadFile(late)
	require.NoError(t, err)
	require.Equal(t, "theirs", string(theirs))

	bad := errors.New("this copy is bad")
	require.ErrorIs(t, Backup(ctx, db.path, filepath.Join(dir, "bad.db"), func(string) error { return bad }), bad)
	stopped, stop := context.WithCancel(ctx)
	stop()
	require.ErrorIs(t, Backup(stopped, db.path, filepath.Join(dir, "stopped.db"), nothingWrong), context.Canceled)
	require.Error(t, Backup(ctx, db.path, filepath.Join(dir, "no", "copy.db"), nothingWrong))
	require.ErrorIs(t, Backup(ctx, filepath.Join(dir, "none.db"), filepath.Join(dir, "new.db"), nothingWrong), store.ErrUnavailable)
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	hidden, err := filepath.Glob(filepath.Join(dir, ".*"))
	require.NoError(t, err)
	require.ElementsMatch(t, []string{path, dangling, late}, append(left, hidden...), "no half of a copy stays")

	require.Equal(t, 1, ticketCount(t, openAt(t, path)))
}

// A copy is one moment of the database, and nobody who writes waits for it.
func TestBackupBesideWriters(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := openTemp(t)
	require.NoError(t, populate(ctx, db, 1))
	stop, wrote := make(chan struct{}), make(chan error, 1)
	go func() {
		for n := 2; ; n++ {
			select {
			case <-stop:
				wrote <- nil
				return
			default:
			}
			if err := populate(ctx, db, n); err != nil {
				wrote <- err
				return
			}
		}
	}()
	for i := range 5 {
		seq, _, err := db.Head(ctx)
		require.NoError(t, err)
		path := filepath.Join(t.TempDir(), fmt.Sprint(i))
		require.NoError(t, Backup(ctx, db.path, path, func(copied string) error {
			// The writer goes on while the copy is at hand.
			for at := seq; at <= seq; {
				if at, _, err = db.Head(ctx); err != nil {
					return err
				}
			}
			return nil
		}))
		log, err := OpenLog(ctx, path)
		require.NoError(t, err)
		count, head, err := events.Verify(ctx, events.Reader(ctx, log))
		require.NoError(t, log.Close())
		require.NoError(t, err)
		require.GreaterOrEqual(t, count, seq, "what was acknowledged before is in it")
		same, err := db.Events(ctx, count-1, 1)
		require.NoError(t, err)
		require.Equal(t, same[0].Hash, head)
		copied := openAt(t, path)
		require.EqualValues(t, count, ticketCount(t, copied), "tickets and log are of one moment")
	}
	close(stop)
	require.NoError(t, <-wrote)
}

// next is a set of migrations with one more than the built-in ones.
func next(t testing.TB, statement string) fs.FS {
	out := fstest.MapFS{"99999_next.sql": {Data: []byte("-- +goose Up\n" + statement)}}
	names, err := fs.Glob(embedded, "migrations/*.sql")
	require.NoError(t, err)
	for _, name := range names {
		data, err := embedded.ReadFile(name)
		require.NoError(t, err)
		out[filepath.Base(name)] = &fstest.MapFile{Data: data}
	}
	return out
}

// schema is the newest of the built-in migrations.
func schema(t testing.TB) int {
	names, err := fs.Glob(embedded, "migrations/*.sql")
	require.NoError(t, err)
	return len(names)
}

// What an older Gaia wrote is in the sums and the queues that a later one keeps.
func TestAnOlderDatabase(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(embedded, "migrations/*.sql")
	require.NoError(t, err)
	for n := 1; n < len(names); n++ {
		t.Run(fmt.Sprint("schema ", n), func(t *testing.T) {
			t.Parallel()
			path, migrations := filepath.Join(t.TempDir(), "hub.db"), fstest.MapFS{}
			for _, name := range names[:n] {
				data, err := embedded.ReadFile(name)
				require.NoError(t, err)
				migrations[filepath.Base(name)] = &fstest.MapFile{Data: data}
			}
			old, err := open(t.Context(), path, migrations)
			require.NoError(t, err)
			require.NoError(t, old.Update(t.Context(), func(tx store.Tx) error {
				return errors.Join(tx.PutProject(domain.Project{ID: "p", Key: "SHOP"}), tx.PutConductor(domain.Conductor{ID: "c", MachineID: "m", Project: "p"}),
					tx.PutTicket(domain.Ticket{ID: "t", Identifier: "SHOP-1", Project: "p", State: "coding", CreatedAt: noon, RetryAt: noon}),
					tx.PutTicket(domain.Ticket{ID: "u", Identifier: "SHOP-2", Project: "p", State: "coding", CreatedAt: noon, Target: "c"}))
			}))
			const run = `INSERT INTO runs (id, number, project, ticket, conductor, mode, state, attempt, state_at_start, live, doc) VALUES (?, ?, 'p', 't', 'c', 'agent', 'done', 1, 'coding', 0, ?)`
			require.NoError(t, exec(t, old.write, run, "r", 1, `{"id": "r", "footprint": {"tokens_in": 7, "cost": 0.5, "memory_peak": 3}}`))
			require.NoError(t, exec(t, old.write, run, "s", 2, `{"id": "s", "footprint": null}`))
			require.NoError(t, old.Close())
			db := openAt(t, path)
			require.NoError(t, db.View(t.Context(), func(tx store.Tx) error {
				n, f, err := tx.Used("p")
				require.NoError(t, err)
				require.Equal(t, 2, n)
				require.Equal(t, domain.Footprint{TokensIn: 7, Cost: 0.5, MemoryPeak: 3}, f)
				parked, err := tx.Parked("", []string{"coding"}, nil, domain.At(noon.Add(-time.Second)))
				require.Len(t, parked, 1)
				require.NoError(t, err)
				var found []string
				err = tx.Candidates(store.Claimer{Project: "p", States: []string{"coding"}, Conductor: "c"}, noon, func(k domain.Ticket) (bool, error) {
					found = append(found, k.ID)
					return true, nil
				})
				require.Equal(t, []string{"t", "u"}, found)
				return err
			}))
		})
	}
}

// A row that a transaction has read is written by what differs. Whatever is changed, and however often, the columns say
// what the row says, and its lists, too; a write that is refused changes nothing of what the next one compares with.
func TestOnlyWhatDiffersIsWritten(t *testing.T) {
	t.Parallel()
	db := openTemp(t)
	require.NoError(t, populate(t.Context(), db, 1))
	require.NoError(t, populate(t.Context(), db, 2))
	first := func(tx store.Tx, field, value string) []string {
		found, _, err := tx.Tickets(store.Query{Filters: []store.Filter{{Field: field, Values: []string{value}}}, Sort: []store.Sort{{Field: "id"}}})
		require.NoError(t, err)
		ids := []string{}
		for _, k := range found {
			ids = append(ids, k.ID)
		}
		return ids
	}
	all, _, err := func() (out []domain.Ticket, n int, err error) {
		err = db.View(t.Context(), func(tx store.Tx) error { out, n, err = tx.Tickets(store.Query{}); return err })
		return
	}()
	require.NoError(t, err)
	require.Len(t, all, 2)
	one, other := all[0], all[1]
	require.NoError(t, db.Update(t.Context(), func(tx store.Tx) error {
		k, err := tx.Ticket(one.ID)
		require.NoError(t, err)
		k.Title, k.Labels, k.BlockedBy = "Sell less", []string{"blue", "red"}, []string{other.ID}
		require.NoError(t, tx.PutTicket(k))
		require.Equal(t, []string{one.ID}, first(tx, "title", "Sell less"))
		require.Equal(t, []string{one.ID}, first(tx, "labels", "red"))
		k.Identifier = other.Identifier
		require.ErrorIs(t, tx.PutTicket(k), domain.ErrConflict)
		k.Identifier, k.Labels, k.Target = one.Identifier, []string{"red"}, "c"
		require.NoError(t, tx.PutTicket(k))
		k.Target = ""
		return tx.PutTicket(k)
	}))
	require.NoError(t, db.View(t.Context(), func(tx store.Tx) error {
		k, err := tx.Ticket(one.ID)
		require.NoError(t, err)
		require.Equal(t, one.Identifier, k.Identifier)
		require.Equal(t, []string{one.ID}, first(tx, "identifier", one.Identifier))
		require.Equal(t, []string{one.ID}, first(tx, "title", "Sell less"))
		require.Equal(t, []string{one.ID}, first(tx, "labels", "red"))
		require.Empty(t, first(tx, "labels", "blue"))
		require.Empty(t, first(tx, "target", "c"))
		require.Equal(t, []string{one.ID}, first(tx, "blocked_by", other.ID))
		return nil
	}))
	// What is remembered of a row ends with the transaction.
	require.Error(t, db.Update(t.Context(), func(tx store.Tx) error {
		k, err := tx.Ticket(one.ID)
		require.NoError(t, err)
		k.Title = "Sell nothing"
		require.NoError(t, tx.PutTicket(k))
		return errors.New("no")
	}))
	require.NoError(t, db.Update(t.Context(), func(tx store.Tx) error {
		k, err := tx.Ticket(one.ID)
		require.NoError(t, err)
		k.Title = "Sell nothing"
		return tx.PutTicket(k)
	}))
	require.NoError(t, db.View(t.Context(), func(tx store.Tx) error {
		require.Equal(t, []string{one.ID}, first(tx, "title", "Sell nothing"))
		return nil
	}))
}

// However many forms of queries a connection sees, it keeps a bounded number of statements, and each still works.
func TestStatementsAreBounded(t *testing.T) {
	t.Parallel()
	db := openTemp(t)
	c, err := db.write.take(t.Context())
	require.NoError(t, err)
	defer db.write.give(c)
	for round := range 2 {
		for i := range maxStatements + 10 {
			_, err := c.ExecContext(t.Context(), fmt.Sprintf("UPDATE health SET written = %d", i))
			require.NoError(t, err, round)
		}
	}
	require.LessOrEqual(t, len(c.kept), maxStatements)
}

// A newer Gaia copies the database before it changes it, and an older one refuses what it does not know.
func TestMigration(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "hub.db")
	db := openAt(t, path)
	require.NoError(t, populate(t.Context(), db, 1))
	require.NoError(t, db.Close())

	newer, err := open(t.Context(), path, next(t, "ALTER TABLE tickets ADD COLUMN extra TEXT;"))
	require.NoError(t, err)
	require.NoError(t, populate(t.Context(), newer, 2))
	require.NoError(t, newer.Close())

	_, err = Open(t.Context(), path)
	require.ErrorContains(t, err, "schema 99999")
	require.ErrorContains(t, err, "newer Gaia")
	require.Equal(t, 1, ticketCount(t, openAt(t, fmt.Sprintf("%s.schema-%d.bak", path, schema(t)))))

	again, err := open(t.Context(), path, next(t, "ALTER TABLE tickets ADD COLUMN extra TEXT;"))
	require.NoError(t, err)
	require.Equal(t, 2, ticketCount(t, again))
	require.NoError(t, again.Close())
}

// A migration that fails leaves the old database, which the old Gaia still opens.
func TestFailedMigration(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "hub.db")
	db := openAt(t, path)
	require.NoError(t, populate(t.Context(), db, 1))
	require.NoError(t, db.Close())
	for range 2 {
		_, err := open(t.Context(), path, next(t, "DELETE FROM ticket_labels;\nALTER TABLE nothing ADD COLUMN extra TEXT;"))
		require.Error(t, err)
	}
	copied := fmt.Sprintf("%s.schema-%d.bak", path, schema(t))
	require.FileExists(t, copied)
	require.FileExists(t, copied+".2", "an earlier copy is kept")
	require.Equal(t, 1, ticketCount(t, openAt(t, path)))
}

// A file that is no database of ours is refused and left as it is.
func TestForeignFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	foreign := filepath.Join(dir, "other.db")
	pool, err := connect(foreign, url.Values{"mode": {"rwc"}})
	require.NoError(t, err)
	_, err = pool.Exec("CREATE TABLE songs (title TEXT)")
	require.NoError(t, err)
	require.NoError(t, pool.Close())
	text := filepath.Join(dir, "text.db")
	require.NoError(t, os.WriteFile(text, []byte(fmt.Sprintf("%4096s", "this is no database\n")), 0o600))
	for _, path := range []string{foreign, text} {
		before, err := os.ReadFile(path)
		require.NoError(t, err)
		_, err = Open(t.Context(), path)
		require.ErrorContains(t, err, path)
		after, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, before, after)
	}
	_, err = Open(t.Context(), dir)
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorContains(t, err, dir)
}

// A database whose files vanish under the hub takes no more writes, rather than losing them.
func TestLostDatabase(t *testing.T) {
	t.Parallel()
	for _, suffix := range []string{"", "-wal"} {
		for _, replace := range []bool{false, true} {
			t.Run(fmt.Sprintf("hub.db%s replaced=%t", suffix, replace), func(t *testing.T) {
				t.Parallel()
				db := openTemp(t)
				require.NoError(t, populate(t.Context(), db, 1))
				require.NoError(t, db.Ready(t.Context()))
				require.NoError(t, os.Rename(db.path+suffix, db.path+".away"))
				if replace {
					require.NoError(t, os.WriteFile(db.path+suffix, nil, 0o600))
				}
				require.ErrorIs(t, db.Ready(t.Context()), store.ErrUnavailable)
				require.ErrorIs(t, populate(t.Context(), db, 2), store.ErrUnavailable)
				if replace {
					require.NoError(t, os.Remove(db.path+suffix))
				}
				require.NoError(t, os.Rename(db.path+".away", db.path+suffix))
				require.NoError(t, db.Ready(t.Context()))
				require.NoError(t, populate(t.Context(), db, 2))
			})
		}
	}
}

// Another process that holds the write lock for long is an unavailable database, not a hang.
func TestLockedByAnother(t *testing.T) {
	t.Parallel()
	db := openTemp(t)
	require.NoError(t, exec(t, db.write, "PRAGMA busy_timeout = 50"))
	other := openAt(t, db.path)
	require.NoError(t, other.Update(t.Context(), func(store.Tx) error {
		require.ErrorIs(t, populate(t.Context(), db, 1), store.ErrUnavailable)
		require.ErrorIs(t, db.Ready(t.Context()), store.ErrUnavailable)
		require.Equal(t, 0, ticketCount(t, db), "reading goes on")
		return nil
	}))
	require.NoError(t, populate(t.Context(), db, 1))
	// The chain goes on whoever writes.
	require.NoError(t, populate(t.Context(), other, 2))
	require.NoError(t, populate(t.Context(), db, 3))
	n, _, err := events.Verify(t.Context(), events.Reader(t.Context(), db))
	require.NoError(t, err)
	require.EqualValues(t, 3, n)
}

// After the database has failed inside a transaction nothing of it is committed, even if its function carries on.
func TestFailureEndsTransaction(t *testing.T) {
	t.Parallel()
	db := openTemp(t)
	require.NoError(t, populate(t.Context(), db, 1))
	require.NoError(t, exec(t, db.write, "PRAGMA max_page_count = 1")) // becomes the present size: the next new page is SQLITE_FULL
	big := make([]byte, 1<<20)
	for i := range big {
		big[i] = 'x'
	}
	err := db.Update(t.Context(), func(tx store.Tx) error {
		require.NoError(t, tx.PutUser(domain.User{ID: "before"}))
		require.ErrorIs(t, tx.PutTicket(domain.Ticket{ID: "2", Identifier: "SHOP-2", Project: "p", Description: string(big)}), store.ErrUnavailable)
		require.ErrorIs(t, tx.PutUser(domain.User{ID: "after"}), store.ErrUnavailable)
		_, err := tx.Users()
		require.ErrorIs(t, err, store.ErrUnavailable)
		return nil
	})
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.NoError(t, db.View(t.Context(), func(tx store.Tx) error {
		us, err := tx.Users()
		require.NoError(t, err)
		require.Empty(t, us)
		return nil
	}))
	require.NoError(t, exec(t, db.write, "PRAGMA max_page_count = 1000000"))
	require.NoError(t, populate(t.Context(), db, 2))
}

// Cancelling frees the writer for the next one.
func TestCancelWaiting(t *testing.T) {
	t.Parallel()
	db := openTemp(t)
	require.NoError(t, db.Update(t.Context(), func(store.Tx) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, populate(ctx, db, 1), context.DeadlineExceeded)
		return nil
	}))
	require.NoError(t, populate(t.Context(), db, 1))
}
