package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"gaia/hub/store"
	"gaia/internal/durable"
)

// Backup writes a consistent copy of the database at path to a new file, which is durable and readable by its owner only.
// It works beside a running hub, whose writers go on, and without one. The copy gets its name when it is complete and check
// has found nothing wrong with it; after any error there is no file of that name that was not there before.
func Backup(ctx context.Context, path, to string, check func(copied string) error) (err error) {
	if path, err = filepath.Abs(path); err != nil {
		return fmt.Errorf("opening the database: %w", err)
	}
	if to, err = filepath.Abs(to); err != nil {
		return fmt.Errorf("making the copy: %w", err)
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("%w: opening the database: %w", store.ErrUnavailable, err)
	}
	if _, err := os.Lstat(to); err == nil { // before the work; what counts is the check after it
		return thereAlready(to)
	}
	dir, err := os.MkdirTemp(filepath.Dir(to), ".gaia-backup-") // beside it, on its file system
	if err != nil {
		return fmt.Errorf("making the copy: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := openReading(ctx, path, url.Values{}) // but not query_only, which forbids to write the copy
	if err != nil {
		return err
	}
	copied := filepath.Join(dir, "hub.db")
	if err := errors.Join(backup(ctx, db, copied), db.Close()); err != nil {
		return err
	}
	if err := check(copied); err != nil {
		return fmt.Errorf("the copy is not kept: %w", err)
	}
	return publish(copied, to)
}

// publish gives a complete file its name, durably, unless the name is taken. A new empty file reserves the name: not every
// file system has hard links, or a rename that never replaces.
func publish(from, to string) error {
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return thereAlready(to)
	}
	if err != nil {
		return fmt.Errorf("making the copy: %w", err)
	}
	if err := errors.Join(f.Close(), os.Rename(from, to)); err != nil {
		return errors.Join(fmt.Errorf("naming the copy: %w", err), os.Remove(to))
	}
	if err := durable.SyncDir(filepath.Dir(to)); err != nil { // of a folder that may be written and not read, for one
		return errors.Join(err, os.Remove(to))
	}
	return nil
}

func thereAlready(to string) error {
	return fmt.Errorf("%s: %w and is left as it is: give another name, or remove it first", to, fs.ErrExist)
}

// backup copies the database to a new file that is durable and readable by its owner only.
func backup(ctx context.Context, db *sql.DB, path string) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("making the copy: %w", err)
	}
	defer func() {
		if closeErr := f.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("closing the copy: %w", closeErr)
		}
		if err != nil {
			err = errors.Join(err, os.Remove(path)) // our own half of a copy
		}
	}()
	if _, err := db.ExecContext(ctx, "VACUUM INTO ?", path); err != nil {
		return failure("copying the database to "+path, err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("syncing the copy: %w", err)
	}
	return durable.SyncDir(filepath.Dir(path))
}
