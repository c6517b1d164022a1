//go:build linux && root

package e2e

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gaia/domain"
	"gaia/internal/usermanager"
)

// smallDisk is a file system of a few megabytes on a folder of the test's user.
type smallDisk struct {
	w   *world
	dir string
}

// mount puts a small disk on a folder, which it makes.
func (w *world) mount(dir string, megabytes int) smallDisk {
	w.t.Helper()
	w.mkdir(filepath.Dir(dir), 0o700)
	w.mkdir(dir, 0o700)
	var st unix.Stat_t
	require.NoError(w.t, unix.Stat(w.env.Home, &st))
	require.NoError(w.t, unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=700,uid=%d,gid=%d", megabytes, st.Uid, st.Gid)))
	w.t.Cleanup(func() { require.NoError(w.t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return smallDisk{w, dir}
}

func (d smallDisk) ballast() string { return filepath.Join(d.dir, "ballast") }

// fill leaves no room on the disk.
func (d smallDisk) fill() {
	d.w.t.Helper()
	f, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(d.w.t, err)
	for n := 1 << 16; n > 0; {
		if _, err = f.Write(make([]byte, n)); err != nil {
			n /= 2
		}
	}
	require.ErrorIs(d.w.t, err, syscall.ENOSPC)
	require.NoError(d.w.t, f.Close())
}

// free takes the ballast away.
func (d smallDisk) free() { d.w.t.Helper(); require.NoError(d.w.t, os.Remove(d.ballast())) }

// waitPaused waits until the conductor has seen that there is too little room.
func (w *world) waitPaused() {
	w.t.Helper()
	w.wait("the conductor's status to say that it pauses", func() bool {
		return strings.Contains(w.property(w.conductorUnit(), "StatusText"), "min_free_disk")
	})
}

// hubGet asks the hub over its socket.
func (w *world) hubGet(path string) (int, string) {
	w.t.Helper()
	c := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(w.env.Runtime, w.env.Prefix, "hub.sock"))
		},
	}}
	resp, err := c.Get("http://hub" + path)
	require.NoError(w.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(w.t, err)
	return resp.StatusCode, string(body)
}

func TestRootAFullDiskUnderTheHub(t *testing.T) {
	m := usermanager.NewMachine(t)
	env := m.New(t)
	var disk smallDisk
	// The running lease is shorter than the time for which the disk stays full.
	w := prepareIn(t, env, "", setting{
		hub:  strings.Replace(briefHub, "[leases]", fmt.Sprintf("store = \"sqlite://%s\"\n\n[leases]", filepath.Join(env.Home, "disk", "hub.db")), 1),
		repo: func(w *world) { disk = w.mount(filepath.Join(env.Home, "disk"), 8) },
	})
	goOn := filepath.Join(env.Home, "go")
	w.setAgent(w.note("starts") + fmt.Sprintf("until [ -e '%s' ]; do sleep 0.1; done\n", goOn) + w.note("moving") + `
case "$GAIA_STATE" in
todo) gaia ticket comment "half"; gaia ticket move working ;;
working) gaia ticket move done ;;
esac
` + w.note("moved"))
	w.gaia("conductor", "enable", "--now", w.instance)
	k := w.ticket("Survive", "--workflow", "gaia_task")
	run := w.waitRunning(k)
	hub, conductor := w.mainPID(w.names.Hub()), w.mainPID(w.conductorUnit())
	status, _ := w.hubGet("/gaia/v1/readyz")
	require.Equal(t, http.StatusOK, status)
	w.gaia("hub", "status")

	disk.fill()
	// What fits into space that the database has already may still be written, and counts.
	var written []string
	var said string
	w.wait("a write to be refused", func() bool {
		out, errors, code := w.try("gaia", "ticket", "create", "-o", "name", "--workflow", "gaia_task", "--state", "done",
			"--description", strings.Repeat("x", 20_000), "--", "One more")
		if code == 0 {
			written = append(written, strings.TrimSpace(out))
			return false
		}
		said = errors
		require.Equal(t, 1, code, said)
		return true
	})
	require.Contains(t, said, "disk")
	require.Contains(t, said, "gaia hub status", "it says where to look")
	full := time.Now()
	w.wait("readyz says so", func() bool { s, _ := w.hubGet("/gaia/v1/readyz"); return s == http.StatusServiceUnavailable })
	status, _ = w.hubGet("/gaia/v1/healthz")
	require.Equal(t, http.StatusOK, status, "a new start would not help")
	out, said, code := w.try("gaia", "hub", "status")
	require.Equal(t, 1, code, "%s%s", out, said)
	require.Contains(t, out, "cannot read and write")
	require.Contains(t, said, "systemctl --user status "+w.names.Hub())
	out, err := env.Systemctl("status", w.names.Hub())
	require.NoError(t, err)
	require.Contains(t, out, "disk")
	w.wait("the journal says why", func() bool {
		story, err := env.Command("journalctl", "--user", "--quiet", "--output=cat", "--unit="+w.names.Hub()).Output()
		return err == nil && strings.Contains(string(story), "disk is full")
	})
	w.verifyLog()
	require.Equal(t, "todo", w.show(k).State, "what is there can be read")

	// The agent's writes wait.
	w.write(goOn, "", 0o644)
	w.wait("the agent writes", func() bool { return slices.Contains(w.lines("moving"), run.ID) })
	w.wait("the lease of the run to be over, had the hub been able to count it", func() bool { return time.Since(full) > 8*time.Second })
	require.Empty(t, w.lines("moved"))
	disk.free()

	v := w.waitState(k, "done")
	require.Len(t, v.Runs, 2)
	for _, r := range v.Runs {
		require.Equal(t, domain.RunDone, r.State, "%s %s", r.EndReason, r.EndNote)
	}
	require.Zero(t, v.Attempts)
	require.Len(t, v.Comments, 1, "a write that was tried again and again has arrived once")
	require.Len(t, w.lines("starts"), 2)
	for _, id := range written {
		require.Equal(t, "done", w.show(id).State, "%s was acknowledged", id)
	}
	w.wait("the hub is ready again", func() bool { s, _ := w.hubGet("/gaia/v1/readyz"); return s == http.StatusOK })
	w.gaia("hub", "status")
	require.Equal(t, hub, w.mainPID(w.names.Hub()), "nobody had to start the hub anew")
	require.Equal(t, conductor, w.mainPID(w.conductorUnit()))
	w.verifyLog()
}

// A hub that is killed while its disk is full, and one that is started there, lose nothing and come up when there is room.
func TestRootAHubIsKilledOnAFullDisk(t *testing.T) {
	m := usermanager.NewMachine(t)
	env := m.New(t)
	var disk smallDisk
	w := prepareIn(t, env, "", setting{
		hub:  fmt.Sprintf("store = \"sqlite://%s\"\n\n", filepath.Join(env.Home, "disk", "hub.db")) + slowHub,
		repo: func(w *world) { disk = w.mount(filepath.Join(env.Home, "disk"), 8) },
	})
	w.setAgent(w.note("starts") + fmt.Sprintf("until [ -e '%s' ]; do sleep 0.1; done\n", filepath.Join(env.Home, "go")) + `
case "$GAIA_STATE" in
todo) exec gaia ticket move working ;;
working) exec gaia ticket move done ;;
esac
`)
	w.gaia("conductor", "enable", "--now", w.instance)
	k := w.ticket("Survive", "--workflow", "gaia_task")
	w.waitRunning(k)
	disk.fill()
	w.killMain(w.names.Hub())
	w.write(filepath.Join(env.Home, "go"), "", 0o644)
	w.verifyLog()
	disk.free()
	v := w.waitState(k, "done")
	require.Len(t, v.Runs, 2)
	require.Len(t, w.lines("starts"), 2)
	require.Zero(t, v.Attempts)
	w.verifyLog()
}

// unwhole are the files of run folders that hold a part of what they should, or were to become one and did not.
func (w *world) unwhole() []string {
	w.t.Helper()
	var found []string
	require.NoError(w.t, filepath.WalkDir(w.runsDir(), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name := filepath.Base(path)
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".json") && !json.Valid(data) {
			found = append(found, path)
		}
		return nil
	}))
	return found
}

func TestRootAFullDiskUnderTheRunFolders(t *testing.T) {
	m := usermanager.NewMachine(t)
	env := m.New(t)
	var disk smallDisk
	w := prepareIn(t, env, "", setting{
		repo:   func(w *world) { disk = w.mount(filepath.Join(env.GaiaHome, "state", "runs"), 8) },
		tables: "[workspace]\nmin_free_disk = \"1M\"\n",
	})
	at := func(name string) string { return filepath.Join(env.Home, name) }
	w.setAgent(w.note("starts") + fmt.Sprintf(`
until [ -e '%s' ]; do sleep 0.1; done
case "$GAIA_TICKET:$GAIA_STATE" in
SHOP-2:todo) [ -e '%s' ] || { touch '%s'; exit 7; } ;;
esac
case "$GAIA_STATE" in
todo) exec gaia ticket move working ;;
working) exec gaia ticket move done ;;
esac
`, at("go"), at("failed"), at("failed")))
	w.gaia("conductor", "enable", "--now", w.instance)
	moves, dies := w.ticket("Moves", "--workflow", "gaia_task"), w.ticket("Dies", "--workflow", "gaia_task")
	w.waitRunning(moves)
	died := w.waitRunning(dies)
	folders := func() []string {
		found, err := filepath.Glob(filepath.Join(w.runsDir(), "*", "token"))
		require.NoError(t, err)
		return found
	}

	disk.fill()
	w.waitPaused()
	late := w.ticket("Late", "--workflow", "gaia_task")
	w.wait("why says what is missing", func() bool { return strings.Contains(w.gaia("why", late), "min_free_disk") })
	require.Empty(t, w.show(late).Runs, "nothing is claimed that could not be started")
	before := len(folders())

	w.write(at("go"), "", 0o644)
	w.waitFor(moves, "is moved by its agent", func(v view) bool { return v.State == "working" })
	w.wait("the unit of the agent that died is gone", func() bool { return !alive(w.mainPID(w.runUnit(died))) })
	require.Equal(t, before, len(folders()))
	require.Empty(t, w.unwhole())

	disk.free()
	for _, k := range []string{moves, dies, late} {
		v := w.waitState(k, "done")
		require.Nil(t, v.Hold)
		for _, r := range v.Runs {
			if r.ID != died.ID {
				require.Equal(t, domain.RunDone, r.State, "%s: %s %s", k, r.EndReason, r.EndNote)
			}
		}
		want := 2
		if k == dies {
			want = 3
		}
		require.Len(t, v.Runs, want, k)
	}
	// How it died could not be written down, so that is not held against the ticket.
	r := w.show(dies).Runs[slices.IndexFunc(w.show(dies).Runs, func(r domain.Run) bool { return r.ID == died.ID })]
	require.Equal(t, domain.RunFailed, r.State)
	require.Contains(t, []domain.Reason{domain.ReasonSessionLost, domain.ReasonInternal}, r.EndReason, r.EndNote)
	require.Len(t, w.lines("starts"), 7)
	require.Empty(t, w.unwhole())
	w.verifyLog()
}

func TestRootAFullDiskUnderTheWorktrees(t *testing.T) {
	m := usermanager.NewMachine(t)
	env := m.New(t)
	var disk smallDisk
	w := prepareIn(t, env, carryTask, setting{
		// So rarely that the disk is free again before the ticket would be held.
		hub: "[limits]\nbackoff_base = \"2s\"\nbackoff_max = \"10s\"\n",
		repo: func(w *world) {
			disk = w.mount(filepath.Join(env.GaiaHome, "worktrees", w.instance), 8)
			noise := make([]byte, 2<<20)
			_, err := rand.Read(noise)
			require.NoError(t, err)
			w.write(filepath.Join(w.checkout, "large"), string(noise), 0o644)
			w.git("add", ".")
			w.git("commit", "--quiet", "-m", "A large file")
		},
		tables: "[workspace]\nmin_free_disk = \"4M\"\n",
	})
	w.gaia("conductor", "enable", "--now", w.instance)
	done := w.ticket("While there is room", "--workflow", "gaia_task")
	w.waitState(done, "done")

	disk.fill()
	w.waitPaused()
	k := w.ticket("Later", "--workflow", "gaia_task")
	w.wait("why says what is missing", func() bool { return strings.Contains(w.gaia("why", k), "min_free_disk") })
	require.Empty(t, w.show(k).Runs)

	// Without a limit the claim comes first, and the worktree fails.
	w.configure("", "[workspace]\nmin_free_disk = \"0\"\n")
	w.gaia("conductor", "restart", w.instance)
	v := w.waitFor(k, "has a run that failed", func(v view) bool { return len(v.Runs) > 0 && v.Runs[0].State.Ended() && v.settled() })
	require.Equal(t, domain.RunFailed, v.Runs[0].State)
	require.Equal(t, domain.ReasonWorkspace, v.Runs[0].EndReason)
	require.Contains(t, v.Runs[0].EndNote, "No space left on device")
	require.Zero(t, v.Attempts)
	require.Equal(t, "todo", v.State)

	disk.free()
	v = w.waitState(k, "done")
	require.Nil(t, v.Hold)
	require.Zero(t, v.Attempts)
	require.Equal(t, w.git("rev-parse", "main:large"), w.git("rev-parse", "gaia/"+k+":large"), "the tree that there was no room for is whole")
	require.Empty(t, w.git("-C", filepath.Join(env.GaiaHome, "worktrees", w.instance, k), "status", "--porcelain"))
	w.verifyLog()
}

// carryTask is an agent that takes an operational ticket to its end.
const carryTask = `
case "$GAIA_STATE" in
todo) exec gaia ticket move working ;;
working) exec gaia ticket move done ;;
esac
`
