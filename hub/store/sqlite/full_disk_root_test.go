//go:build root && linux

package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gaia/domain"
	"gaia/hub/events"
	"gaia/hub/store"
)

// A full disk refuses writes, says so when asked, loses nothing that was acknowledged, goes on reading, and is no more
// than an interruption. It needs a file system of its own, hence root.
func TestRootFullDisk(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"))
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	db := openAt(t, filepath.Join(dir, "hub.db"))
	ctx := context.Background()
	write := func(n int) error {
		return db.Update(ctx, func(tx store.Tx) error {
			return errors.Join(
				tx.PutProject(domain.Project{ID: "p", Key: "SHOP"}),
				tx.PutTicket(domain.Ticket{ID: fmt.Sprint(n), Identifier: fmt.Sprintf("SHOP-%d", n), Project: "p", State: "coding",
					Description: strings.Repeat("x", 20_000)}),
				tx.Append(domain.Event{Time: noon, Kind: "ticket.created", Actor: "user/ada", Type: "ticket", Object: fmt.Sprint(n)}))
		})
	}
	intact := func(s *DB, n int) {
		require.Equal(t, n, ticketCount(t, s))
		got, _, err := events.Verify(ctx, events.Reader(ctx, s))
		require.NoError(t, err)
		require.EqualValues(t, n, got)
	}

	n := 0 // acknowledged
	for write(n+1) == nil {
		n++
	}
	require.Greater(t, n, 10)
	for range 3 {
		require.ErrorIs(t, write(n+1), store.ErrUnavailable)
		require.ErrorIs(t, db.Ready(ctx), store.ErrUnavailable)
		intact(db, n)
	}
	// Fill what is left, so that not even one page fits.
	ballast := filepath.Join(dir, "ballast")
	f, err := os.Create(ballast)
	require.NoError(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 512))
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, f.Close())
	require.ErrorIs(t, db.Ready(ctx), store.ErrUnavailable)
	require.ErrorIs(t, write(n+1), store.ErrUnavailable)
	intact(db, n)

	// A crash now loses nothing either.
	crashed := filepath.Join(t.TempDir(), "hub.db")
	for _, suffix := range []string{"", "-wal"} {
		data, err := os.ReadFile(db.path + suffix)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(crashed+suffix, data, 0o600))
	}
	intact(openAt(t, crashed), n)

	require.NoError(t, os.Remove(ballast))
	require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=16m"))
	require.NoError(t, db.Ready(ctx))
	require.NoError(t, write(n+1))
	intact(db, n+1)
}

// A database in a folder that may not be written, as on a disk that has become read-only, can be verified and backed up as any
// other, if the hub that has ended left no log.
func TestRootReadOnlyFolder(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"))
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	path := filepath.Join(dir, "hub.db")
	db := openAt(t, path)
	require.NoError(t, populate(ctx, db, 1))
	log, err := os.ReadFile(path + "-wal")
	require.NoError(t, err)
	require.NoError(t, db.Close())
	remount := func(flags uintptr) {
		require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|flags, ""))
	}
	remount(syscall.MS_RDONLY)
	copied := filepath.Join(t.TempDir(), "copy.db")
	require.NoError(t, Backup(ctx, path, copied, nothingWrong))
	require.Equal(t, 1, ticketCount(t, openAt(t, copied)))

	remount(0)
	require.NoError(t, os.WriteFile(path+"-wal", log, 0o600))
	remount(syscall.MS_RDONLY)
	require.ErrorIs(t, Backup(ctx, path, copied+"2", nothingWrong), store.ErrUnavailable, "what is in the log would be missing")
}

// A copy whose name cannot be made durable is none. Only somebody else than root meets a folder that cannot be read.
func TestRootUnreadableFolder(t *testing.T) {
	const nobody = 65534
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o711))
	from, drop := filepath.Join(dir, "from"), filepath.Join(dir, "drop")
	require.NoError(t, os.WriteFile(from, nil, 0o600))
	require.NoError(t, os.Mkdir(drop, 0o300))
	for _, path := range []string{dir, from, drop} {
		require.NoError(t, os.Chown(path, nobody, nobody))
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: nobody else gets a thread that is somebody else's
		if err := unix.Setfsuid(nobody); err != nil {
			done <- err
			return
		}
		done <- publish(from, filepath.Join(drop, "copy.db"))
	}()
	require.ErrorContains(t, <-done, "to sync it")
	require.NoFileExists(t, filepath.Join(drop, "copy.db"))
}
