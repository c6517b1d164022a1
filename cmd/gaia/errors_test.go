package main

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gaia/domain"
	"gaia/hub/store"
	"gaia/hub/store/sqlite"
)

// TestExitCodes: a program can tell from the code alone what kind of failure it was, and a person is told what to do.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.shop()
	w.ticket("create", "T")
	broken := w.with("GAIA_HOME", filepath.Join(w.env["HOME"], "broken"))
	broken.write("broken/machine.toml", "user_id = \"anna\"\nhost_id = \"box\"\nuserid = \"x\"\n")
	token := w.write("token", "not-a-token-of-anybody\n")
	for _, c := range []struct {
		name string
		in   *world
		code int
		args []string
		says string
	}{
		{"unknown command", w, exitUsage, []string{"nope"}, "See gaia --help"},
		{"unknown flag", w, exitUsage, []string{"board", "--nope"}, "See gaia board --help"},
		{"unknown key in machine.toml", broken, exitUsage, []string{"board"}, "machine.toml:3"},
		{"no machine.toml", w.with("GAIA_HOME", "/nonexistent"), exitUsage, []string{"board"}, "gaia init"},
		{"relative GAIA_HOME", w.with("GAIA_HOME", "x"), exitUsage, []string{"board"}, "absolute path"},
		{"no HOME", w.with("GAIA_HOME", "", "HOME", ""), exitUsage, []string{"board"}, "set HOME or GAIA_HOME"},
		{"prefix with a dash", w.with("GAIA_PREFIX", "a-b"), exitUsage, []string{"board"}, "GAIA_PREFIX"},
		{"bad GAIA_HUB", w.with("GAIA_HUB", "nope"), exitUsage, []string{"board"}, "unix:///path"},
		{"unknown token", w.with("GAIA_RUN", "x", "GAIA_TOKEN_FILE", token, "GAIA_TICKET", "SHOP-1"), exitAuth, []string{"ticket", "show"}, "gaia doctor"},
		{"nobody on TCP", w.with("GAIA_HUB", w.hub.TCP), exitAuth, []string{"board"}, "gaia doctor"},
		{"transition", w, exitValidation, []string{"ticket", "move", "SHOP-1", "done"}, "open from here"},
		{"unknown state", w, exitValidation, []string{"ticket", "move", "SHOP-1", "nope"}, "open from here"},
		{"transition without a workflow", w, exitValidation, []string{"ticket", "move", "SHOP-1", "coding"}, "--workflow {gaia_"},
		{"empty title", w, exitValidation, []string{"ticket", "create", ""}, "title"},
		{"blocks itself", w, exitValidation, []string{"ticket", "block", "SHOP-1", "--by", "SHOP-1"}, "blocked_by"},
		{"unknown agent name", w, exitValidation, []string{"ticket", "create", "T", "--workflow", "nope"}, "workflow"},
		{"no such ticket", w, exitRefused, []string{"ticket", "show", "SHOP-99"}, "there is no ticket \"SHOP-99\"\nSee what there is: gaia ticket list --all\n"},
		{"no such project", w, exitRefused, []string{"board", "--project", "NOPE"}, "\"NOPE\"\nSee what there is: gaia snapshot"},
		{"no such blocker", w, exitRefused, []string{"ticket", "block", "SHOP-1", "--by", "SHOP-98"}, "SHOP-98"},
		{"no such run", w, exitRefused, []string{"run", "show", "SHOP/9"}, "SHOP has no run 9\nSee what there is: gaia run list"},
		{"no user manager", w, exitRefused, []string{"conductor", "list"}, "loginctl"},
		{"socket is not there", w.with("GAIA_HUB", "unix:///nonexistent/gaia/hub.sock"), exitUnreachable, []string{"board"}, "start gaia-hub.socket"},
		{"port is closed", w.with("GAIA_HUB", "http://127.0.0.1:1"), exitUnreachable, []string{"ticket", "list"}, "gaia doctor"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			in := *c.in
			in.t = t
			require.Contains(t, in.fails(c.code, c.args...), c.says)
		})
	}
	// status prints what it found, and fails for it.
	r := w.with("GAIA_HUB", "unix:///nonexistent/gaia/hub.sock").call("", "hub", "status")
	require.Equal(t, exitUnreachable, r.code)
	require.Equal(t, "unix:///nonexistent/gaia/hub.sock: does not answer\n", r.out)
}

// TestWhatAnswersIsNoHub: another server at the address is told from a hub.
func TestWhatAnswersIsNoHub(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hub.Wrap(func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("<html>\x1b[2J"))
		})
	})
	require.Contains(t, w.fails(exitRefused, "board"), "is no hub")
}

// TestReadOnlyOfAFullDisk and other refusals of a hub that answers keep their words.
func TestAHubThatCannotWrite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hub.Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && r.URL.Path != "/gaia/v1/readyz" {
				next.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/vnd.api+json")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"errors":[{"status":"503","code":"storage_unavailable","detail":"the disk is full"}]}`))
		})
	})
	r := w.call("", "hub", "status")
	require.Equal(t, exitRefused, r.code, r.err)
	require.Contains(t, r.out, "answers, but cannot read and write")
	require.Contains(t, r.err, "the disk is full")
}

// hubProgram builds gaia-hub and returns its folder.
func hubProgram(t *testing.T) string {
	bin := t.TempDir()
	out, err := exec.Command("go", "build", "-o", bin, "../gaia-hub").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return bin
}

// TestHubVerify: a whole log, one that was tampered with, and none.
func TestHubVerify(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.env["GAIA_HUB"] = "" // it is the own one that is meant
	w.env["PATH"] = hubProgram(t) + ":" + w.env["PATH"]
	require.Contains(t, w.fails(exitUsage, "hub", "verify"), "hub.db")
	path := filepath.Join(w.env["GAIA_HOME"], "state", "hub.db")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	db, err := sqlite.Open(t.Context(), path)
	require.NoError(t, err)
	require.NoError(t, db.Close())
	table, data, names := w.forms("hub", "verify")
	golden(t, "hub-verify.golden", table)
	require.Equal(t, path, data.(map[string]any)["database"])
	require.Len(t, names, 1)
	require.Equal(t, w.gaia("hub", "verify"), w.gaia("hub", "verify", "--db", path))
	require.NoError(t, os.WriteFile(path, []byte("this is no database at all, but long enough to be looked at as one"), 0o600))
	require.Regexp(t, regexp.QuoteMeta(path)+".*not a database", w.fails(exitRefused, "hub", "verify"), "and not that its log was changed")
	w.write("gaia/hub.toml", "store = \"postgres://db/gaia\"\n")
	require.Contains(t, w.fails(exitUsage, "hub", "verify"), "is no file that can be read here")
}

// TestHubBackup: a verified copy for its owner only beside a hub that writes, which replaces nothing.
func TestHubBackup(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.env["GAIA_HUB"] = "" // it is the own one that is meant
	w.env["PATH"] = hubProgram(t) + ":" + w.env["PATH"]
	dir := t.TempDir()
	copied := filepath.Join(dir, "copy.db")
	require.Contains(t, w.fails(exitUsage, "hub", "backup", copied), "hub.db")
	require.Contains(t, w.fails(exitUsage, "hub", "backup"), "Usage: gaia hub backup FILE")

	path := filepath.Join(w.env["GAIA_HOME"], "state", "hub.db")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	db, err := sqlite.Open(t.Context(), path)
	require.NoError(t, err)
	defer db.Close()
	write := func() error {
		return db.Update(t.Context(), func(tx store.Tx) error {
			return tx.Append(domain.Event{Time: domain.At(time.Now()), Kind: "test", Actor: "user/anna", Type: "ticket", Object: "t"})
		})
	}
	require.NoError(t, write())
	stop, wrote := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				wrote <- nil
				return
			default:
				if err := write(); err != nil {
					wrote <- err
					return
				}
			}
		}
	}()
	said := w.gaia("hub", "backup", copied)
	close(stop)
	require.NoError(t, <-wrote)
	require.Equal(t, copied+": "+w.gaia("hub", "verify", "--db", copied), said)
	st, err := os.Stat(copied)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())

	before, err := os.ReadFile(copied)
	require.NoError(t, err)
	require.Contains(t, w.fails(exitRefused, "hub", "backup", copied), copied+": file already exists and is left as it is")
	after, err := os.ReadFile(copied)
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.Contains(t, w.fails(exitRefused, "hub", "backup", filepath.Join(dir, "none", "copy.db")), "no such file")
	require.Contains(t, w.fails(exitRefused, "hub", "backup", filepath.Join(copied, "copy.db")), "not a directory")
	if os.Getuid() != 0 { // who may write everywhere
		require.NoError(t, os.Chmod(dir, 0o500))
		require.Contains(t, w.fails(exitRefused, "hub", "backup", filepath.Join(dir, "other.db")), "permission denied")
		require.NoError(t, os.Chmod(dir, 0o700))
	}
	require.NoError(t, os.WriteFile(path+"-not", []byte("this is no database at all, but long enough to be looked at as one"), 0o600))
	w.write("gaia/hub.toml", "store = \"sqlite://"+path+"-not\"\n")
	require.Contains(t, w.fails(exitRefused, "hub", "backup", filepath.Join(dir, "other.db")), "not a database")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "no half of a copy stays")

	require.Contains(t, w.call("", "__complete", "hub", "backup", "").out, ":0\n", "names of files")
	require.Contains(t, w.call("", "__complete", "hub", "backup", copied, "").out, ":4\n")
}

// TestHubBackupOfAnotherHub: who uses a team's hub is told that it is not that one whose database is copied.
func TestHubBackupOfAnotherHub(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.env["PATH"] = hubProgram(t) + ":" + w.env["PATH"]
	path := filepath.Join(w.env["GAIA_HOME"], "state", "hub.db")
	db, err := sqlite.Open(t.Context(), path)
	require.NoError(t, err)
	require.NoError(t, db.Close())
	w.write("gaia/hub.toml", "listen = [\"unix:///run/hub.sock\", \"tcp://127.0.0.1:7420\"]\n")
	for hub, own := range map[string]bool{
		"": true, "unix:///run/hub.sock": true, "http://127.0.0.1:7420": true, "https://hub.example.org": false, "unix:///run/team.sock": false,
	} {
		in := w.with("GAIA_HUB", hub)
		for _, args := range [][]string{{"hub", "verify"}, {"hub", "backup", filepath.Join(t.TempDir(), "copy.db")}} {
			r := in.call("", args...)
			require.Zero(t, r.code, r.err)
			if own {
				require.NotContains(t, r.err, "your own hub", "%s", hub)
			} else {
				require.Contains(t, r.err, path+" is the database of your own hub; your commands go to the hub at "+hub, "%s", hub)
			}
		}
		require.NotContains(t, in.call("", "hub", "verify", "--db", path).err, "your own hub", "it was named")
	}
}

// TestHubBackupIsEnded with its terminal, and leaves no half copy either.
func TestHubBackupIsEnded(t *testing.T) {
	t.Parallel()
	program := filepath.Join(hubProgram(t), "gaia-hub")
	path, dir := filepath.Join(t.TempDir(), "hub.db"), t.TempDir()
	db, err := sqlite.Open(t.Context(), path)
	require.NoError(t, err)
	require.NoError(t, db.Close())
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 0x40000002, Len: 510} // SQLite's, for which the backup waits a while
	require.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_SETLK, &lock))
	for _, sig := range []os.Signal{os.Interrupt, unix.SIGTERM, unix.SIGHUP} {
		cmd := exec.Command(program, "backup", path, filepath.Join(dir, "copy.db"))
		require.NoError(t, cmd.Start())
		left := func() bool {
			names, err := os.ReadDir(dir)
			require.NoError(t, err)
			return len(names) > 0
		}
		require.Eventually(t, left, time.Minute, time.Millisecond)
		require.NoError(t, cmd.Process.Signal(sig))
		require.Error(t, cmd.Wait())
		require.False(t, left(), "%v", sig)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	w := &world{t: t, env: map[string]string{}}
	table, data, names := w.forms("version")
	require.Regexp(t, `^gaia `, table)
	require.Len(t, names, 1)
	require.Contains(t, data, "version")
}

func TestCompletionScripts(t *testing.T) {
	t.Parallel()
	w := &world{t: t, env: map[string]string{}}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		require.Contains(t, w.gaia("completion", shell), "gaia")
	}
}
