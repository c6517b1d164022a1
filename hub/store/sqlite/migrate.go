package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"

	"github.com/pressly/goose/v3"
)

// migrate brings the database to the newest of the migrations. One that holds data already is copied first.
func migrate(ctx context.Context, db *sql.DB, path string, migrations fs.FS) error {
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, migrations,
		goose.WithLogger(goose.NopLogger()), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("reading the built-in migrations: %w", err)
	}
	current, target, err := provider.GetVersions(ctx)
	if err != nil {
		return failure("reading the version of "+path, err)
	}
	switch {
	case current == target:
		return nil
	case current > target:
		return fmt.Errorf("%s has schema %d, which a newer Gaia has made; this one knows schemas up to %d: install the newer version again, or start on a backup", path, current, target)
	case current > 0:
		if err := backup(ctx, db, backupPath(path, current)); err != nil {
			return fmt.Errorf("%s was not changed to schema %d, because it could not be copied first: %w", path, target, err)
		}
	}
	if _, err := provider.Up(ctx); err != nil {
		return failure(fmt.Sprintf("changing %s from schema %d to %d", path, current, target), err)
	}
	return nil
}

// check returns an error unless the file is empty or a database of Gaia. It opens the file for reading only, since
// switching to a write-ahead log would change a file that is not ours.
func check(ctx context.Context, path string) (err error) {
	if info, err := os.Stat(path); err == nil && info.Size() == 0 {
		return nil
	}
	db, err := connect(path, url.Values{"mode": {"ro"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var tables, ours int
	err = db.QueryRowContext(ctx, "SELECT count(*), count(*) FILTER (WHERE name = ?) FROM sqlite_schema WHERE type = 'table'",
		goose.DefaultTablename).Scan(&tables, &ours)
	switch {
	case err != nil:
		return failure("reading "+path, err)
	case tables > 0 && ours == 0:
		return fmt.Errorf("%s is a database of another program", path)
	}
	return nil
}

// backupPath returns a name beside the database that is free.
func backupPath(path string, version int64) string {
	base := fmt.Sprintf("%s.schema-%d.bak", path, version)
	name := base
	for i := 2; ; i++ {
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			return name
		}
		name = fmt.Sprintf("%s.%d", base, i)
	}
}
