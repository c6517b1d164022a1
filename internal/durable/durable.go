// Package durable writes small files so that a reader, or the next process after a crash or a power cut, finds either
// the old content, the new content or no file, and never a part of one. It must not be used for files that are
// appended to.
package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// Replace writes data as path with exactly the permissions perm, whatever the umask: temporary file beside it, fsync,
// rename, fsync of the folder.
func Replace(path string, data []byte, perm fs.FileMode) error {
	if err := Write(path, data, perm); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// Write is Replace without the last step: after a power cut there may still be the old content, or no file. It is for a
// file that is worth nothing without another one beside it that is written later by Replace or Create.
func Write(path string, data []byte, perm fs.FileMode) (err error) {
	// Not renameio.WriteFile: that keeps the permissions of the file before, which may have been too open.
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithStaticPermissions(perm))
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, f.Cleanup()) }()
	if _, err := f.Write(data); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// Create is Replace for a file that must not be there yet; the error matches fs.ErrExist if it is. Of several
// processes that create one path at the same time exactly one succeeds, and the file is complete from its first
// moment: an open with O_EXCL would leave an empty file behind a crash.
func Create(path string, data []byte, perm fs.FileMode) error {
	f, err := create(path, data, perm, (*os.File).Sync)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("creating %s: %w", path, err)
	}
	return SyncDir(filepath.Dir(path))
}

// CreateAhead is Create for a caller who has other things to do while the disk is written. keep, which is to be called once,
// returns when the file outlives a power cut; before that one may leave no file, or an empty one.
func CreateAhead(path string, data []byte, perm fs.FileMode) (keep func() error, err error) {
	f, err := create(path, data, perm, func(*os.File) error { return nil })
	if err != nil {
		return nil, err
	}
	return func() error {
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return fmt.Errorf("creating %s: %w", path, err)
		}
		return SyncDir(filepath.Dir(path))
	}, nil
}

// create returns the new file, open. What is to be done before the file has its name, before does.
func create(path string, data []byte, perm fs.FileMode, before func(*os.File) error) (*os.File, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return nil, fmt.Errorf("creating %s: %w", path, err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(perm), before(f))
	if err == nil {
		err = os.Link(f.Name(), path)
	}
	if err = errors.Join(err, os.Remove(f.Name())); err != nil {
		return nil, errors.Join(fmt.Errorf("creating %s: %w", path, err), f.Close())
	}
	return f, nil
}

// SyncDir makes the names in a folder survive a power cut, or what is in a file that somebody else has written.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("opening the folder %s to sync it: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("syncing the folder %s: %w", dir, err)
	}
	return nil
}

// Read reads a regular file of at most limit bytes. A fifo or a device in its place is an error, and does not block.
func Read(path string, limit int64) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return data, nil
}
