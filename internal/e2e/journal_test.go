package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/internal/log"
	"gaia/journal"
)

// story reads what gaia's journal commands print with -o json.
func (w *world) story(args ...string) []journal.Entry {
	w.t.Helper()
	var out []journal.Entry
	for line := range strings.Lines(w.gaia(append(args, "-o", "json")...)) {
		var e journal.Entry
		require.NoError(w.t, json.Unmarshal([]byte(line), &e), line)
		out = append(out, e)
	}
	return out
}

// mover is an agent that moves a task on.
const mover = "case $GAIA_STATE in todo) gaia ticket move working;; *) gaia ticket move done;; esac\n"

// TestTheJournalTellsATicketsStory: hub, conductor, host and systemd, by one command, and none of another ticket.
func TestTheJournalTellsATicketsStory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "printf '\\033[31mred\\033[0m\\n'\n"+mover, setting{})
	tickets := []string{w.ticket("First", "--workflow", "gaia_task"), w.ticket("Second", "--workflow", "gaia_task")}
	for _, k := range tickets {
		w.waitState(k, "done")
	}
	first := tickets[0]
	var all []journal.Entry
	has := func(source, text string) bool {
		for _, e := range all {
			if e.Source == source && strings.Contains(e.Message, text) {
				return true
			}
		}
		return false
	}
	w.wait("the journal tells the whole story", func() bool {
		all = w.story("run", "logs", first)
		return has("gaia-conductor", "claimed "+first) && has("gaia-conductor", "is closed") && has("gaia-session", "has ended") && has("systemd", "Started") &&
			has("gaia-hub", "head of the event log")
	})
	for i, e := range all {
		if e.Ticket != "" {
			require.Equal(t, first, e.Ticket)
		}
		if i > 0 {
			require.False(t, e.At.Before(all[i-1].At), "in order")
		}
	}
	// The same run by its number, and the parts of it that a conductor's journal has.
	number := ""
	w.waitFor(first, "is settled", view.settled)
	all = w.story("run", "logs", first)
	for _, e := range all {
		if n, ok := strings.CutPrefix(e.Message, "claimed "+first+" in todo as run "); ok {
			number = n
		}
	}
	require.NotEmpty(t, number)
	of := w.story("run", "logs", number)
	require.NotEmpty(t, of)
	require.Subset(t, all, of)
	ofConductor := w.story("conductor", "logs", "--ticket", first)
	require.NotEmpty(t, ofConductor)
	require.Subset(t, all, ofConductor)
	for _, e := range ofConductor {
		require.Equal(t, w.names.Conductor("shop"), e.Unit)
	}
	ofRun := w.story("conductor", "logs", "shop", "--run", number)
	require.Subset(t, ofConductor, ofRun)
	require.Less(t, len(ofRun), len(ofConductor), "the second run's are left out")
	require.Equal(t, ofRun, w.story("conductor", "logs", "shop", "--run", number, "--ticket", first))
	require.LessOrEqual(t, len(w.story("run", "logs", first, "-n", "1")), 1) // none where another test has written the last line
	require.Equal(t, of[len(of)-1:], w.story("run", "logs", number, "-n", "1"))
	require.Empty(t, w.story("run", "logs", first, "--until", "1h"))
	require.Equal(t, all, w.story("run", "logs", first, "--since", "1h"))
	for _, e := range w.story("run", "logs", first, "--priority", "warning") {
		require.LessOrEqual(t, e.Priority, 4)
	}
	table := w.gaia("run", "logs", first)
	require.Regexp(t, `(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  info     gaia-conductor  `+first+` run `+number+`  +claimed `, table)
	require.Contains(t, w.gaia("run", "output", number), "red\n")

	// Without the hub it is told all the same.
	w.must("systemctl", "--user", "stop", w.names.HubSocket(), w.names.Hub())
	out, said, code := w.try("gaia", "run", "logs", first)
	require.Zero(t, code, said)
	require.Contains(t, out, "claimed "+first)
	require.Contains(t, said, "what is known here")
}

// TestFollowingTheJournalEnds at Ctrl-C with 0, and journalctl with it, as it does where gaia is killed.
func TestFollowingTheJournalEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mover, setting{})
	for _, end := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		cmd := w.env.Command("gaia", "conductor", "logs", "--follow", "shop")
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := make(chan string, 1000)
		go func() {
			for s := bufio.NewScanner(out); s.Scan(); {
				lines <- s.Text()
			}
			close(lines)
		}()
		k := w.ticket("T", "--workflow", "gaia_task")
		deadline := time.After(patience)
		for found := false; !found; {
			select {
			case line, ok := <-lines:
				require.True(t, ok, "it has ended")
				found = strings.Contains(line, "claimed "+k)
			case <-deadline:
				t.Fatal("the claim is not told")
			}
		}
		child := children(t, cmd.Process.Pid)
		require.NoError(t, cmd.Process.Signal(end))
		for range lines { // until it has ended
		}
		_ = cmd.Wait()
		if end == syscall.SIGINT {
			require.Equal(t, 0, cmd.ProcessState.ExitCode())
		}
		for _, pid := range child {
			w.wait("journalctl is gone", func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH })
		}
	}
}

func children(t *testing.T, pid int) []int {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	require.NoError(t, err)
	var out []int
	for _, f := range tasks {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		for _, word := range strings.Fields(string(text)) {
			n, err := strconv.Atoi(word)
			require.NoError(t, err)
			out = append(out, n)
		}
	}
	return out
}

// TestCtrlCEndsFollowing as a person types it, for which the terminal tells every process of it.
func TestCtrlCEndsFollowing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mover, setting{})
	x := w.onTerminal(nil, "run", "logs", "--follow", "--ticket", w.ticket("T", "--workflow", "gaia_task"))
	x.shows("claimed ")
	child := children(t, x.cmd.Process.Pid)
	x.types("\x03")
	require.NoError(t, x.ends())
	for _, pid := range child {
		require.Equal(t, syscall.ESRCH, syscall.Kill(pid, 0))
	}
	require.NotContains(t, x.out.String(), "signal")
}

// TestCatalogIsCompiled by the real journalctl, as a package's installation does, and has every kind of event.
func TestCatalogIsCompiled(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, dir := range []string{"usr/lib/systemd/catalog", "var/lib/systemd/catalog"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(root, "usr/lib/systemd/catalog/gaia.catalog"), log.Catalog(), 0o644))
	run := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), "journalctl", append(args, "--root="+root, "--no-pager")...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	require.Empty(t, run("--update-catalog"), "it has nothing to complain of")
	dump := run("--dump-catalog")
	for _, e := range strings.Split(string(log.Catalog()), "\n-- ")[1:] {
		require.Contains(t, dump, "-- "+strings.TrimSpace(e), "unchanged")
	}
}
