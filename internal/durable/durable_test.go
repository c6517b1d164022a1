package durable_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gaia/internal/durable"
)

func TestReplaceGivesExactlyThePermissionsAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o644))
	require.NoError(t, durable.Replace(path, []byte("new"), 0o600))
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), st.Mode().Perm())
	data, err := durable.Read(path, 3)
	require.NoError(t, err)
	require.Equal(t, "new", string(data))
	require.Equal(t, []string{"f"}, names(t, dir))
}

func TestReplaceKeepsTheOldFileWhereItCannotWrite(t *testing.T) {
	t.Parallel()
	err := durable.Replace(filepath.Join(t.TempDir(), "no", "f"), []byte("x"), 0o600)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestOfManyCreatorsOneWinsAndEveryReaderSeesAWholeFile(t *testing.T) {
	t.Parallel()
	for name, create := range map[string]func(path string, data []byte) error{
		"at once": func(path string, data []byte) error { return durable.Create(path, data, 0o600) },
		"ahead": func(path string, data []byte) error {
			keep, err := durable.CreateAhead(path, data, 0o600)
			if err != nil {
				return err
			}
			return keep()
		},
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); oneCreatorWins(t, create) })
	}
}

func oneCreatorWins(t *testing.T, create func(path string, data []byte) error) {
	dir := t.TempDir()
	path := filepath.Join(dir, "started")
	content := func(i int) string { return fmt.Sprintf("%01000d", i) }
	var won atomic.Int32
	var winner atomic.Int64
	var wg sync.WaitGroup
	stop := make(chan struct{})
	read := make(chan error, 1)
	go func() {
		for {
			data, err := os.ReadFile(path)
			if err == nil && len(data) != 1000 {
				read <- fmt.Errorf("a reader saw %d bytes", len(data))
				return
			}
			select {
			case <-stop:
				read <- nil
				return
			default:
			}
		}
	}()
	for i := range 20 {
		wg.Go(func() {
			err := create(path, []byte(content(i)))
			if err == nil {
				won.Add(1)
				winner.Store(int64(i))
			} else {
				require.ErrorIs(t, err, fs.ErrExist)
			}
		})
	}
	wg.Wait()
	close(stop)
	require.NoError(t, <-read)
	require.EqualValues(t, 1, won.Load())
	data, err := durable.Read(path, 1000)
	require.NoError(t, err)
	require.Equal(t, content(int(winner.Load())), string(data))
	require.Equal(t, []string{"started"}, names(t, dir))
}

func TestReadRefusesWhatIsTooLargeOrNoFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "big"), make([]byte, 11), 0o600))
	_, err := durable.Read(filepath.Join(dir, "big"), 10)
	require.ErrorContains(t, err, "larger than 10 bytes")
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	_, err = durable.Read(filepath.Join(dir, "fifo"), 10)
	require.ErrorContains(t, err, "no regular file")
	_, err = durable.Read(filepath.Join(dir, "none"), 10)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func names(t *testing.T, dir string) []string {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
