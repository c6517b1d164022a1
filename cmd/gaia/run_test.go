package main

import (
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/session"
)

// TestRunCommands: a run is named by number, key and number, or id, and can be looked at and stopped.
func TestRunCommands(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	con := w.shop()
	k := w.ticket("create", "T", "--workflow", "gaia_chore")
	require.Equal(t, "coding", w.ticket("move", k.Identifier, "coding").State)
	a, _ := w.claim(con)
	_, err := con.Start(t.Context(), a.Run.ID, domain.StartReport{
		WorktreePath: "/srv/trees/SHOP-1", Branch: "gaia/SHOP-1", BaseSHA: "0123456789012345678901234567890123456789",
		Unit: "gaia-run-shop-1.service", Agent: "script", Permissions: "edits", Log: "/srv/runs/1",
	})
	require.NoError(t, err)

	for _, ref := range []string{"1", "SHOP/1", a.Run.ID} {
		var r domain.Run
		w.json(&r, "run", "show", ref)
		require.Equal(t, a.Run.ID, r.ID)
	}
	table, _, names := w.forms("run", "show", "1")
	require.Equal(t, []string{"SHOP/1"}, names)
	golden(t, "run-show-running.golden", table)
	golden(t, "run.json.golden", w.gaia("run", "show", "1", "-o", "json"))

	w.hub.Project(t, "BANK")
	require.Equal(t, "SHOP/1\n", w.gaia("run", "show", "1", "-o", "name"), "only one project has a run 1")
	require.Contains(t, w.fails(exitRefused, "run", "show", "2"), "gaia run list")
	require.Contains(t, w.fails(exitRefused, "run", "show", "BANK/1"), "BANK has no run 1")
	require.Contains(t, w.fails(exitRefused, "run", "show", "NOPE/1"), "NOPE")
	require.Contains(t, w.fails(exitRefused, "run", "show", newRunID(t)), "run")
	require.Contains(t, w.fails(exitUsage, "run", "show"), "gaia run list")

	require.Contains(t, w.fails(exitRefused, "attach", "SHOP-1"), "anna.box.shop")
	require.Contains(t, w.fails(exitRefused, "attach"), "gaia run list")
	w.ticket("create", "Untouched", "-p", "SHOP")
	require.Contains(t, w.fails(exitRefused, "attach", "SHOP-2"), "gaia why SHOP-2")

	require.Equal(t, "SHOP/1\n", w.gaia("run", "stop", "1", "--note", "wrong direction", "-o", "name"))
	var r domain.Run
	w.json(&r, "run", "show", "1")
	require.Equal(t, domain.ReasonStopped, r.EndReason)
	require.Equal(t, "wrong direction", r.EndNote)
	require.NotNil(t, w.ticket("show", "SHOP-1").Hold)
	require.Contains(t, w.fails(exitRefused, "run", "stop", "SHOP/1"), "has ended already")
	require.Contains(t, w.fails(exitRefused, "attach", "SHOP-1"), "gaia run output 1")
	golden(t, "run-show-stopped.golden", w.gaia("run", "show", "1"))
	golden(t, "ticket-show-stopped.golden", w.gaia("ticket", "show", "SHOP-1"))

	for range 3 { // limit counts the newest
		w.ticket("resume", "SHOP-1")
		require.NoError(t, con.Finalise(t.Context(), a.Run.ID, domain.FinaliseReport{}))
		a, _ = w.claim(con)
		w.gaia("run", "stop", a.Run.ID)
	}
	require.Equal(t, "SHOP/4\nSHOP/3\n", w.gaia("run", "list", "--limit", "2", "-o", "name"))
	require.Equal(t, "SHOP/4\nSHOP/3\nSHOP/2\nSHOP/1\n", w.gaia("run", "list", "--limit", "0", "-o", "name"))
	require.Equal(t, "", w.gaia("run", "list", "--live", "-o", "name"))
	require.Equal(t, "[]\n", w.gaia("run", "list", "--project", "BANK", "-o", "json"))
}

// TestRunOutput: what lies in the run folder, as text and as it was.
func TestRunOutput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	con := w.shop()
	w.ticket("create", "T")
	a, _ := w.claim(con)
	require.Contains(t, w.fails(exitRefused, "run", "output", "1"), "is not on this machine")
	folder := session.Folder(filepath.Join(w.env["GAIA_HOME"], "state", "runs", a.Run.ID))
	require.NoError(t, os.MkdirAll(string(folder), 0o700))
	require.Contains(t, w.fails(exitRefused, "run", "output", "1"), "has no output yet")
	require.Contains(t, w.fails(exitRefused, "run", "output", "1", "--screen"), "has left no screen")

	output := "\x1b[2J\x1b[31mred\x1b[0m\r\n\x1b]0;title\adone\n"
	require.NoError(t, os.WriteFile(folder.Path(session.FileOutput), []byte(output), 0o600))
	require.NoError(t, folder.WriteScreen("last \u202escreen\n\n\n"))
	require.Equal(t, "red\ndone\n", w.gaia("run", "output", "1"))
	require.Equal(t, "last  screen\n", w.gaia("run", "output", "1", "--screen"))
	w.fails(exitUsage, "run", "output", "1", "--screen", "--raw")
	raw := w.raw("run", "output", "SHOP/1", "--raw")
	require.Equal(t, answer{out: output}, raw)

	done := make(chan answer, 1)
	go func() { done <- w.raw("run", "output", "1", "--follow") }()
	f, err := os.OpenFile(folder.Path(session.FileOutput), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString("late\n")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, folder.WriteRecord(session.Record{Run: a.Run.ID, EndedAt: domain.Time{Time: time.Now()}, Cause: session.CausePane, WrittenBy: session.WrittenByHost}))
	select {
	case r := <-done:
		require.Equal(t, answer{out: "red\ndone\nlate\n"}, r)
	case <-time.After(20 * time.Second):
		t.Fatal("it follows a run that has ended")
	}
}

// TestRunOutputOfARunWhoseHookFailed is what the hook printed: no agent ever ran.
func TestRunOutputOfARunWhoseHookFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, folder := w.printed("No agent runs here.\r\n")
	require.NoError(t, os.WriteFile(folder.Path("hook-after_create.log"), []byte("/bin/sh: 1: npm: \x1b[31mnot found\x1b[0m\n"), 0o600))
	require.Equal(t, "No agent runs here.\n", w.gaia("run", "output", "1"), "the run goes on")
	rec := session.Record{Run: a.Run.ID, EndedAt: domain.Time{Time: time.Now()}, Cause: session.CauseHook, Hook: "after_create", WrittenBy: session.WrittenByHost}
	require.NoError(t, folder.WriteRecord(rec))
	want := "No agent runs here.\nThe hook after_create failed. It printed:\n/bin/sh: 1: npm: not found\n"
	require.Equal(t, want, w.gaia("run", "output", "1"))
	require.Equal(t, want, w.gaia("run", "output", "1", "--follow"))
	require.NoError(t, os.WriteFile(folder.Path("hook-after_create.log"), []byte("no newline"), 0o600))
	require.True(t, strings.HasSuffix(w.gaia("run", "output", "1"), "It printed:\nno newline\n"))
	require.NoError(t, os.WriteFile(folder.Path("hook-after_create.log.1"), []byte("what came be"), 0o600)) // it printed too much for one file
	require.NoError(t, os.WriteFile(folder.Path("hook-after_create.log"), []byte("fore\nno luck\n"), 0o600))
	require.True(t, strings.HasSuffix(w.gaia("run", "output", "1"), "It printed:\nwhat came before\nno luck\n"))
	require.NoError(t, os.Remove(folder.Path("hook-after_create.log.1")))
	require.NoError(t, os.Remove(folder.Path("hook-after_create.log")))
	require.Equal(t, "No agent runs here.\nThe hook after_create failed. It printed nothing.\n", w.gaia("run", "output", "1"))

	rec.Hook = "../hook" // what is written in the run folder leads nowhere else
	require.NoError(t, os.Remove(folder.Path(session.FileRecord)))
	require.NoError(t, folder.WriteRecord(rec))
	require.Equal(t, "No agent runs here.\n", w.gaia("run", "output", "1"))
}

// TestRunOutputOfAHookThatPrintedMuch takes no memory for it. Other tests would take some meanwhile.
func TestRunOutputOfAHookThatPrintedMuch(t *testing.T) {
	folder := session.Folder(t.TempDir())
	require.NoError(t, folder.WriteRecord(session.Record{Run: "r", EndedAt: domain.Time{Time: time.Now()}, Cause: session.CauseHook, Hook: "before_run", WrittenBy: session.WrittenByHost}))
	const much = 64 << 20
	require.NoError(t, os.WriteFile(folder.Path("hook-before_run.log"), nil, 0o600))
	require.NoError(t, os.Truncate(folder.Path("hook-before_run.log"), much))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	require.NoError(t, copyHook(io.Discard, folder))
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(much/8))
}

// TestRunOutputOfAHostThatLeftNoRecord end when the hub knows that the run is over.
func TestRunOutputOfAHostThatLeftNoRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, _ := w.printed("x\n")
	done := make(chan answer, 1)
	go func() { done <- w.raw("run", "output", "1", "--follow") }()
	_, err := w.hub.Client(t, "anna").StopRun(t.Context(), a.Run.ID, false, "")
	require.NoError(t, err)
	select {
	case r := <-done:
		require.Equal(t, answer{out: "x\n"}, r)
	case <-time.After(30 * time.Second):
		t.Fatal("it follows a run that has ended")
	}
}

// TestInsideARun: the run's own ticket is meant where none is named, and its token is used.
func TestInsideARun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	con := w.shop()
	w.ticket("create", "T")
	w.ticket("create", "Other")
	a, token := w.claim(con)
	require.Equal(t, "SHOP-1", a.Ticket.Identifier)
	tree := repository(t, t.TempDir(), "tree")
	git(t, tree, "remote", "add", "origin", filepath.Join(t.TempDir(), "origin.git"))
	require.NoError(t, os.Remove(filepath.Join(w.env["GAIA_HOME"], "machine.toml")), "a run needs none")
	in := w.inside(a, token, "GAIA_WORKTREE", tree)

	require.Equal(t, "SHOP-1", in.ticket("show").Identifier)
	require.Equal(t, "SHOP-1: comment added\n", in.gaia("ticket", "comment", "I look at it"))
	require.Equal(t, "SHOP-1: spec added\n", in.gaia("ticket", "comment", "SHOP-1", "I look at it", "--type", "spec"))
	require.Equal(t, []string{"ui"}, in.ticket("label", "--add", "UI").Labels)
	require.Equal(t, []string{"big", "ui"}, in.ticket("label", "SHOP-1", "big").Labels)
	require.Equal(t, []string{"big"}, in.ticket("label", "--remove", "ui").Labels)
	require.Equal(t, "Better", in.ticket("edit", "--title", "Better").Title)
	sub := in.ticket("create", "A part")
	require.Equal(t, domain.Ref(a.Ticket.ID), sub.Parent)
	require.Equal(t, []string{sub.ID}, in.ticket("block", "--by", sub.Identifier).BlockedBy)
	require.Empty(t, in.ticket("block", "--remove", sub.Identifier).BlockedBy)
	require.Contains(t, in.gaia("ticket", "tree"), "SHOP-1")
	why := in.gaia("why")
	require.Contains(t, why, "SHOP-1")
	require.Contains(t, why, "does not take it yet")
	require.Contains(t, why, "  wait  live_run")
	require.NotContains(t, why, "FAIL", "a run at work is nothing to mend")
	require.Contains(t, in.gaia("run", "show"), "run SHOP/1")

	require.Equal(t, "SHOP/1 has reported nothing yet\n", in.gaia("run", "footprint"))
	table, _, names := in.forms("run", "footprint", "--tokens-in", "12000", "--tokens-out", "900", "--turns", "4", "--cost", "0.25", "--model", "m")
	require.Equal(t, []string{"SHOP/1"}, names)
	golden(t, "footprint.golden", table)
	var used domain.Footprint
	in.json(&used, "run", "footprint")
	require.Equal(t, int64(12000), used.TokensIn)
	in.fails(exitValidation, "run", "footprint", "--turns", "-1")

	// What a run may not do.
	require.Contains(t, in.fails(exitRefused, "ticket", "edit", "SHOP-2", "--title", "Mine"), "its own ticket")
	in.fails(exitRefused, "ticket", "hold")
	in.fails(exitRefused, "ticket", "repair", "SHOP-1", "done", "--reason", "I can")
	in.fails(exitRefused, "ticket", "target", "--none")
	in.fails(exitRefused, "run", "stop", "SHOP/1")
	in.fails(exitRefused, "ticket", "move", "SHOP-2", "cancelled")

	// The last command looks at the tree first.
	move := []string{"ticket", "move", "coding", "--workflow", "gaia_chore"}
	require.NoError(t, os.WriteFile(filepath.Join(tree, "new.txt"), []byte("x"), 0o644))
	require.Contains(t, in.fails(exitRefused, move...), "not committed: commit them first (git status shows them), or move with --anyway")
	require.Contains(t, in.fails(exitRefused, "ticket", "move", a.Ticket.ID, "coding", "--workflow", "gaia_chore"), "not committed", "the ticket's id is the ticket, too")
	git(t, tree, "add", ".")
	git(t, tree, "commit", "--quiet", "-m", "work")
	pushing := in.with("GAIA_PUSH", "agent")
	require.Contains(t, pushing.fails(exitRefused, move...), "git push -u origin HEAD, or move with --anyway")
	require.Contains(t, in.with("GAIA_WORKTREE", "/nonexistent").fails(exitRefused, move...), "--anyway")
	require.Equal(t, "qualification", in.ticket("show").State, "nothing has moved it")
	require.Equal(t, "coding", in.ticket(move[1:]...).State)

	// After it the run is over, and says so.
	require.Regexp(t, `stale_run\nThe run is over, .*: stop here\n$`, in.fails(exitRefused, "ticket", "comment", "late"), "the word that prompts name")
	require.Contains(t, in.fails(exitRefused, move...), "stale_run")
	require.NoError(t, os.Remove(token))
	require.Contains(t, in.fails(exitAuth, "ticket", "show"), "a run's is removed when the run is closed")
	require.Contains(t, in.with("GAIA_TOKEN_FILE", "").fails(exitUsage, "ticket", "show"), "GAIA_TOKEN_FILE is not")
	require.Equal(t, "done", stateOfRun(t, w, a))
}

func stateOfRun(t *testing.T, w *world, a *domain.Assignment) string {
	r, err := w.hub.Client(t, "anna").Run(t.Context(), a.Run.ID)
	require.NoError(t, err)
	return string(r.State)
}

// TestMoveAnyway: a tree that is dirty, not pushed or gone does not keep an agent that knows better.
func TestMoveAnyway(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, tree string){
		"dirty": func(t *testing.T, tree string) {
			require.NoError(t, os.WriteFile(filepath.Join(tree, "x"), nil, 0o600))
		},
		"not pushed": func(t *testing.T, tree string) { git(t, tree, "remote", "add", "origin", tree+".git") },
		"gone":       func(t *testing.T, tree string) { require.NoError(t, os.RemoveAll(tree)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			con := w.shop()
			w.ticket("create", "T")
			a, token := w.claim(con)
			tree := repository(t, t.TempDir(), "tree")
			spoil(t, tree)
			in := w.inside(a, token, "GAIA_WORKTREE", tree, "GAIA_PUSH", "agent")
			require.Equal(t, "backlog", in.ticket("move", "--anyway", "backlog", "--workflow", "gaia_bug").State)
		})
	}
}

// TestPushed: a branch that its remote has may be moved.
func TestPushed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	con := w.shop()
	w.ticket("create", "T")
	a, token := w.claim(con)
	parent := t.TempDir()
	tree := repository(t, parent, "tree")
	git(t, parent, "init", "--quiet", "--bare", "origin.git")
	git(t, tree, "remote", "add", "origin", filepath.Join(parent, "origin.git"))
	git(t, tree, "push", "--quiet", "-u", "origin", "HEAD")
	in := w.inside(a, token, "GAIA_WORKTREE", tree, "GAIA_PUSH", "agent")
	require.Equal(t, "backlog", in.ticket("move", "backlog", "--workflow", "gaia_bug").State)
}
