//go:build root

package workspace

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// disk is a file system of its own that can lose its power: what was not written to its device by then is gone.
type disk struct {
	*testing.T
	image, dir string
}

// ownMounts runs the test again in a mount namespace of its own, and reports whether this is that run: a copy of the mounts that
// a program elsewhere on the machine makes for itself would keep a disk from being taken away.
func ownMounts(t *testing.T) bool {
	t.Helper()
	if os.Getenv("GAIA_TEST_MOUNTS") != "" {
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), "GAIA_TEST_MOUNTS=own")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	if _, why, skipped := strings.Cut(string(out), "not run: "); skipped {
		t.Skip("not run: " + why)
	}
	return false
}

func newDisk(t *testing.T) *disk {
	t.Helper()
	d := &disk{t, filepath.Join(t.TempDir(), "image"), filepath.Join(t.TempDir(), "disk")}
	require.NoError(t, os.WriteFile(d.image, nil, 0o600))
	require.NoError(t, os.Truncate(d.image, 128<<20))
	d.run("mkfs.ext4", "-q", d.image)
	require.NoError(t, os.Mkdir(d.dir, 0o755))
	d.mount()
	t.Cleanup(func() { require.NoError(t, unix.Unmount(d.dir, unix.MNT_DETACH)) })
	return d
}

func (d *disk) run(program string, args ...string) string {
	d.Helper()
	out, err := exec.Command(program, args...).CombinedOutput()
	require.NoError(d, err, "%s %v: %s", program, args, out)
	return string(out)
}

func (d *disk) mount() {
	d.Helper()
	out, err := exec.Command("mount", "-o", "loop", d.image, d.dir).CombinedOutput()
	if err != nil && strings.Contains(string(out), "loop device") {
		d.Skipf("not run: no loop devices here: %s", out)
	}
	require.NoError(d, err, "%s", out)
}

// cut takes the power away: the file system stops where it is, and its journal is not written.
func (d *disk) cut() {
	d.Helper()
	const shutdown, withoutJournal = 0x8004587d, 2 // EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH
	f, err := os.Open(d.dir)
	require.NoError(d, err)
	defer f.Close()
	require.NoError(d, unix.IoctlSetPointerInt(int(f.Fd()), shutdown, withoutJournal))
}

// boot brings the file system back as the device has it.
func (d *disk) boot() {
	d.Helper()
	require.Eventually(d, func() bool { return unix.Unmount(d.dir, 0) == nil }, time.Minute, 10*time.Millisecond, "something has a file open")
	d.mount()
}

// fixture is one whose repository and worktrees are on the disk; its locks are elsewhere, as they outlive no boot.
func (d *disk) fixture() *fixture {
	d.Helper()
	f := fixtureIn(d.T, filepath.Join(d.dir, "base"), true)
	d.reopen(f)
	unix.Sync()
	return f
}

func (d *disk) reopen(f *fixture) {
	d.Helper()
	c := f.config()
	c.Locks = d.TempDir()
	g, err := New(c)
	require.NoError(d, err)
	f.Git, f.racy = g, 0
}

// A tree that Ensure has returned is as it was after a power cut, whether it was made anew or from a spare; and what an agent
// has left in it when its ticket had moved on.
func TestRootPowerCutAfterATreeIsMade(t *testing.T) {
	t.Parallel()
	if !ownMounts(t) {
		return
	}
	for _, spares := range []int{0, 1} {
		t.Run(fmt.Sprint(spares), func(t *testing.T) {
			t.Parallel()
			d := newDisk(t)
			f := d.fixture()
			if spares > 0 {
				f.keep(spares)
			}
			tree := f.ensure("SHOP-1", "run-1")
			d.cut()
			d.boot()
			d.reopen(f)
			again := f.ensure("SHOP-1", "run-2")
			require.Empty(t, again.Findings)
			f.isWhole(again, "gaia/SHOP-1", tree.Base)

			f.write(tree.Path, "work/new.txt", "done\n")
			f.git(tree.Path, "add", ".")
			f.write(tree.Path, "README.md", "not committed\n")
			require.NoError(t, Sync(t.Context(), 0, tree.Path))
			d.cut()
			d.boot()
			d.reopen(f)
			require.Equal(t, "A  work/new.txt", f.git(tree.Path, "status", "--porcelain", "work"))
			for name, want := range map[string]string{"work/new.txt": "done\n", "README.md": "not committed\n"} {
				got, err := os.ReadFile(filepath.Join(tree.Path, name))
				require.NoError(t, err)
				require.Equal(t, want, string(got), name)
			}
			f.git(f.checkout, "fsck", "--no-dangling")
		})
	}
}

// Wherever a power cut falls while trees and spares are made, refreshed and taken, all goes on by itself after the boot.
func TestRootPowerCutsWhileTreesAreMade(t *testing.T) {
	t.Parallel()
	if !ownMounts(t) {
		return
	}
	d := newDisk(t)
	f := d.fixture()
	for i := range 30 {
		f.write(f.checkout, fmt.Sprintf("src/%d.txt", i), strings.Repeat(fmt.Sprintln(i), 100))
	}
	f.commit(f.checkout, "files")
	f.git(f.checkout, "push", "-q")
	unix.Sync()
	for i := range 24 {
		identifier := fmt.Sprintf("SHOP-%d", i/2) // so that every other one is met again
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			err := f.KeepSpares(ctx, 1, 0, false)
			if err == nil {
				_, err = ensureOnce(f.Git, identifier, fmt.Sprintf("run-%d", i))
			}
			if err == nil {
				err = f.KeepSpares(ctx, 1, 0, false)
			}
			ended <- err
		}()
		select {
		case <-time.After(rand.N(250 * time.Millisecond)): // the point of the cut, not a wait
		case err := <-ended:
			require.NoError(t, err)
			ended <- nil
		}
		d.cut()
		cancel()
		<-ended
		d.boot()
		d.reopen(f)
		f.git(f.checkout, "fsck", "--no-dangling")
		tree := f.ensure(identifier, fmt.Sprintf("after-%d", i))
		require.Empty(t, tree.Findings)
		f.isWhole(tree, "gaia/"+identifier, f.git(f.checkout, "rev-parse", "main"))
		require.NoError(t, f.KeepSpares(t.Context(), 1, 0, false))
		if i%4 == 3 { // the next spare is refreshed
			f.write(f.checkout, "src/0.txt", fmt.Sprintln(i))
			f.commit(f.checkout, "change")
			f.git(f.checkout, "push", "-q")
			unix.Sync()
		}
	}
}
