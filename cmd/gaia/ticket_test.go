package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/domain"
)

// TestTicketCommands takes a ticket through every command that changes it.
func TestTicketCommands(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	con := w.shop()
	idea := w.write("idea.md", "A switch in the header.\n\nIt follows the system.\n")

	k := w.ticket("create", "Add a dark mode", "-F", idea, "--label", "UI,big", "--priority", "2", "--assignee", "anna",
		"--link", "https://example.com/1", "--origin", "https://example.com/7")
	require.Equal(t, "SHOP-1", k.Identifier)
	require.Equal(t, "A switch in the header.\n\nIt follows the system.", k.Description)
	require.Equal(t, []string{"big", "ui"}, k.Labels)
	require.Equal(t, 2.0, *k.Priority)
	require.Equal(t, domain.Ref("anna"), k.Assignee)
	require.Equal(t, "https://example.com/1", k.Links[0].URI)

	r := w.call("From a pipe\n", "ticket", "create", "Rotate the keys", "--workflow", "gaia_task", "-F", "-", "-o", "name")
	require.Equal(t, answer{out: "SHOP-2\n"}, r)
	require.Equal(t, "From a pipe", w.ticket("show", "SHOP-2").Description)
	sub := w.ticket("create", "A part", "--parent", "SHOP-1", "--blocked-by", "SHOP-2", "--target", "shop", "--not-before", "2099-01-01T00:00:00Z")
	require.Equal(t, domain.Ref(k.ID), sub.Parent)
	require.Equal(t, []string{w.ticket("show", "SHOP-2").ID}, sub.BlockedBy)
	require.NotEmpty(t, sub.Target)

	k = w.ticket("edit", "SHOP-1", "--title", "Add a dark mode switch", "--priority", "none", "-d", "-")
	require.Equal(t, "Add a dark mode switch", k.Title)
	require.Nil(t, k.Priority)
	require.Empty(t, k.Description, "standard input was empty")
	require.Equal(t, domain.Ref(""), w.ticket("edit", "SHOP-3", "--parent", "").Parent)
	require.Empty(t, w.ticket("edit", "SHOP-3", "--not-before", "").NotBefore)
	require.Contains(t, w.fails(exitUsage, "ticket", "edit", "SHOP-1", "-o", "json"), "give at least one flag")

	require.Equal(t, domain.Ref(""), w.ticket("assign", "SHOP-1", "--none").Assignee)
	require.Equal(t, domain.Ref("anna"), w.ticket("assign", "SHOP-1", "anna").Assignee)
	require.NotEmpty(t, w.ticket("target", "SHOP-1", "anna.box.shop").Target)
	require.Equal(t, domain.Ref(""), w.ticket("target", "SHOP-1", "--none").Target)
	require.Contains(t, w.fails(exitRefused, "ticket", "target", "SHOP-1", "nope"), "it knows: anna.box.shop")

	require.Equal(t, []string{"big", "new", "ui"}, w.ticket("label", "SHOP-1", "New").Labels)
	require.Equal(t, []string{"more", "new"}, w.ticket("label", "SHOP-1", "--add", "more", "--remove", "UI,big").Labels)
	require.Len(t, w.ticket("block", "SHOP-1", "--by", "SHOP-2,SHOP-3").BlockedBy, 2)
	require.Len(t, w.ticket("block", "SHOP-1", "--remove", "SHOP-2").BlockedBy, 1)
	require.Contains(t, w.fails(exitValidation, "ticket", "block", "SHOP-3", "--by", "SHOP-1"), "SHOP")
	require.Empty(t, w.ticket("block", "SHOP-1", "--remove", "SHOP-3").BlockedBy)

	require.Equal(t, "SHOP-1: comment added\n", w.gaia("ticket", "comment", "SHOP-1", "Please keep the old colours"))
	require.Equal(t, 0, w.call("# Spec\n", "ticket", "comment", "SHOP-1", "--type", "spec", "-F", "-").code)
	require.Equal(t, 0, w.call("piped", "ticket", "comment", "SHOP-1", "-").code)
	var view ticketView
	w.json(&view, "ticket", "show", "SHOP-1")
	require.Equal(t, []string{"Please keep the old colours", "# Spec", "piped"}, []string{view.Comments[0].Body, view.Comments[1].Body, view.Comments[2].Body})
	require.Equal(t, "spec", view.Comments[1].Type)

	require.Equal(t, "look first", w.ticket("hold", "SHOP-1", "--note", "look first").Hold.Note)
	require.Nil(t, w.ticket("resume", "SHOP-1").Hold)
	require.Equal(t, "coding", w.ticket("move", "SHOP-1", "coding", "--workflow", "gaia_chore").State)
	require.Contains(t, w.fails(exitValidation, "ticket", "move", "SHOP-1", "spec"), "open from here: review, done")
	require.Equal(t, "qualification", w.ticket("repair", "SHOP-1", "qualification", "--reason", "by mistake").State)

	table, data, names := w.forms("ticket", "tree", "SHOP-1")
	require.Equal(t, []string{"SHOP-1"}, names)
	require.Equal(t, map[string]any{"identifier": "SHOP-1", "tree_at": nil, "machine_id": nil, "branch": nil}, data)
	golden(t, "ticket-tree.golden", table)
	require.Empty(t, w.ticket("tree", "SHOP-1", "--clear").TreeAt)

	w.ticket("resume", "SHOP-2")
	a, _ := w.claim(con)
	require.Equal(t, "SHOP-1", a.Ticket.Identifier, "the oldest of those without a priority")
}

// TestTicketForms: what people read, and that programs are told the same.
func TestTicketForms(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	con := w.shop()
	w.gaia("ticket", "create", "Add a dark mode", "-d", "A switch.\n\nIt follows the system.", "--label", "ui", "--priority", "1", "--link", "https://example.com/1")
	w.gaia("ticket", "create", "日本語のチケット with a wide title", "--workflow", "gaia_task", "--blocked-by", "SHOP-1", "--priority", "2.5")
	w.gaia("ticket", "create", "Held", "--parent", "SHOP-1")
	w.gaia("ticket", "hold", "SHOP-3", "--note", "the logo")
	w.gaia("ticket", "comment", "SHOP-1", "One line\nand another", "--type", "plan")
	w.gaia("ticket", "create", "Over")
	w.gaia("ticket", "move", "SHOP-4", "cancelled")
	a, _ := w.claim(con)
	require.Equal(t, "SHOP-1", a.Ticket.Identifier)

	for _, c := range []struct {
		file  string
		args  []string
		names []string
	}{
		{"ticket-list", []string{"ticket", "list"}, []string{"SHOP-1", "SHOP-2", "SHOP-3"}},
		{"ticket-list-all", []string{"ticket", "list", "--all", "--project", "SHOP"}, []string{"SHOP-1", "SHOP-2", "SHOP-3", "SHOP-4"}},
		{"ticket-list-empty", []string{"ticket", "list", "--label", "none"}, nil},
		{"ticket-list-empty-all", []string{"ticket", "list", "--label", "none", "--all"}, nil},
		{"ticket-show", []string{"ticket", "show", "SHOP-1"}, []string{"SHOP-1"}},
		{"ticket-show-held", []string{"ticket", "show", "SHOP-3"}, []string{"SHOP-3"}},
		{"ticket-show-blocked", []string{"ticket", "show", "SHOP-2"}, []string{"SHOP-2"}},
		{"board", []string{"board"}, []string{"SHOP-1", "SHOP-3", "SHOP-2"}},
		{"board-all", []string{"board", "--all", "-p", "SHOP"}, []string{"SHOP-1", "SHOP-3", "SHOP-2", "SHOP-4"}},
		{"why", []string{"why", "SHOP-2"}, []string{"SHOP-2"}},
		{"snapshot", []string{"snapshot"}, []string{"SHOP-1"}},
		{"run-list", []string{"run", "list", "--live"}, []string{"SHOP/1"}},
		{"run-list-none", []string{"run", "list", "--ticket", "SHOP-2"}, nil},
		{"run-show", []string{"run", "show", "1"}, []string{"SHOP/1"}},
		{"hub-status", []string{"hub", "status"}, []string{w.hub.URL}},
	} {
		t.Run(c.file, func(t *testing.T) {
			w := *w
			w.t = t
			table, data, names := w.forms(c.args...)
			require.Equal(t, c.names, names)
			require.NotNil(t, data, "an empty list is [] and not null")
			golden(t, c.file+".golden", table, w.hub.URL, "unix:///HUB", w.env["HOME"], "/HOME")
		})
	}
	golden(t, "ticket.json.golden", w.gaia("ticket", "list", "-o", "json", "--label", "ui"))
	golden(t, "ticket.yaml.golden", w.gaia("ticket", "list", "-o", "yaml", "--label", "ui"))
	require.Equal(t, "[]\n", w.gaia("ticket", "list", "-o", "json", "--label", "none"))
}

// nasty is a text that a terminal must not see as it is: it would clear the screen, set the title, turn the direction of
// what follows and end lines.
const nasty = "a\x1b[2J\x1b]0;pwned\abb\u202ecba\u2066\u009b31mz\u200f"

// TestNothingHarmfulReachesTheTerminal: texts of others in every place in which they are printed.
func TestNothingHarmfulReachesTheTerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	con := w.shop()
	c := w.hub.Client(t, "anna")
	p, err := c.ProjectByKey(t.Context(), "SHOP")
	require.NoError(t, err)
	bidi := strings.Map(func(r rune) rune { // what the hub lets pass in one line
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, nasty)
	k, err := c.CreateTicket(t.Context(), domain.TicketDraft{
		Project: p.ID, Identifier: "X " + bidi, Title: bidi, Description: nasty + "\n\tand\r\nmore",
	})
	if err != nil { // a hub that refuses control characters in texts as well
		k, err = c.CreateTicket(t.Context(), domain.TicketDraft{Project: p.ID, Identifier: "X " + bidi, Title: bidi, Description: bidi})
	}
	require.NoError(t, err)
	for _, body := range []string{nasty, bidi} {
		_, _ = c.AddComment(t.Context(), domain.Comment{Ticket: k.ID, Type: "note", Body: body})
	}
	_, err = c.Hold(t.Context(), k.ID, bidi)
	require.NoError(t, err)
	_, err = c.Resume(t.Context(), k.ID)
	require.NoError(t, err)
	a, _ := w.claim(con)
	_, err = con.Start(t.Context(), a.Run.ID, domain.StartReport{Agent: "script"})
	_ = err
	for _, args := range [][]string{
		{"ticket", "list"}, {"ticket", "show", "--", k.Identifier}, {"board"}, {"why", "--", k.Identifier}, {"snapshot"},
		{"run", "list"}, {"run", "show", "1"}, {"ticket", "tree", "--", k.Identifier}, {"ticket", "hold", "--", k.Identifier},
		{"ticket", "create", "Another " + bidi}, {"__complete", "ticket", "show", ""}, {"__complete", "attach", ""},
	} {
		for _, form := range []string{"table", "json", "yaml", "name"} {
			if args[0] == "__complete" {
				form = "table"
			}
			r := w.call("", append([]string{"-o", form}, args...)...)
			if args[0] == "__complete" {
				r = w.call("", args...)
			}
			require.Zero(t, r.code, r.err)
			for _, s := range []string{r.out, r.err} {
				require.NotContains(t, strings.ReplaceAll(strings.ReplaceAll(s, "\n", ""), "\t", ""), "\x1b")
				for _, r := range s {
					require.False(t, r != '\n' && r != '\t' && (r < ' ' || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0x200f),
						"%U in -o %s %q: %q", r, form, args, s)
				}
			}
		}
	}
	// An error that repeats what was given is clean, too.
	r := w.call("", "ticket", "show", "--", nasty)
	require.Equal(t, exitRefused, r.code, r.err)
	require.NotContains(t, r.err, "\u202e")
	// JSON keeps the text whole for programs.
	require.Equal(t, k.Title, w.ticket("show", "--", k.Identifier).Title)
}

// TestDashes: what begins with a dash is no flag after --.
func TestDashes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.shop()
	k := w.ticket("create", "--identifier=-X-1", "--", "--rm -rf /")
	require.Equal(t, "--rm -rf /", k.Title)
	require.Equal(t, "-X-1", k.Identifier)
	require.Equal(t, k.ID, w.ticket("show", "--", "-X-1").ID)
	require.Equal(t, 0, w.call("", "ticket", "comment", "--", "-X-1", "-- not a flag").code)
	require.Equal(t, []string{"a"}, w.ticket("label", "--", "-X-1", "a").Labels)
	require.Equal(t, "cancelled", w.ticket("move", "--", "-X-1", "cancelled").State)
	require.Contains(t, w.gaia("why", "--", "-X-1"), "-X-1")
	require.Contains(t, w.gaia("ticket", "list", "--all"), "--rm -rf /")
	for _, id := range []string{"..", ".", "a/b?c#d", "100%", `"quoted"`, "ünï cödé"} {
		k := w.ticket("create", "T", "--identifier", id)
		require.Equal(t, k.ID, w.ticket("show", "--", id).ID)
		require.NotNil(t, w.ticket("hold", "--", id).Hold)
		require.Contains(t, w.gaia("why", "--", id), id)
	}
}

// TestProjectThatIsMeant: the flag's, else that of the parent, the checkout, the only one.
func TestProjectThatIsMeant(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.Contains(t, w.fails(exitUsage, "ticket", "create", "T"), "gaia init")
	w.hub.Project(t, "SHOP")
	require.Equal(t, "SHOP-1", w.ticket("create", "T").Identifier)
	w.hub.Project(t, "BANK")
	require.Contains(t, w.fails(exitUsage, "ticket", "create", "T"), "BANK, SHOP")
	require.Equal(t, "BANK-1", w.ticket("create", "T", "-p", "BANK").Identifier)
	require.Equal(t, "BANK-2", w.ticket("create", "T", "--parent", "BANK-1").Identifier)
	require.Contains(t, w.fails(exitRefused, "ticket", "create", "T", "-p", "NOPE"), "gaia init makes it")
	w.dir = repository(t, t.TempDir(), "bank")
	require.NoError(t, registryInit(w.dir, "BANK"))
	require.Equal(t, "BANK-3", w.ticket("create", "T").Identifier)
	moved := w.ticket("edit", "BANK-3", "--project", "SHOP")
	require.Equal(t, "BANK-3", moved.Identifier)
}

// TestBoardOrder: no state of any workflow is forgotten.
func TestBoardOrder(t *testing.T) {
	t.Parallel()
	require.ElementsMatch(t, allStates(), boardOrder)
}

// TestBoardShowsTheLatestFinished and says that there are more.
func TestBoardShowsTheLatestFinished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.shop()
	for range finishedShown + 2 {
		k := w.ticket("create", "T", "--workflow", "gaia_chore")
		w.ticket("repair", k.Identifier, "done", "--reason", "over")
	}
	var columns []boardColumn
	w.json(&columns, "board")
	require.Len(t, columns, 1)
	require.Len(t, columns[0].Tickets, finishedShown)
	require.Equal(t, "SHOP-7", columns[0].Tickets[0].Identifier)
	require.Contains(t, w.gaia("board"), "done (5+)")
	w.json(&columns, "board", "--all")
	require.Len(t, columns[0].Tickets, finishedShown+2)
	require.NotContains(t, w.gaia("board", "--all"), "+")
}

// TestBlocked: a ticket that waits for others says for which, wherever it is shown, and no longer than it does.
func TestBlocked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.shop()
	for range 5 {
		w.gaia("ticket", "create", "First", "--workflow", "gaia_task")
	}
	require.Contains(t, w.gaia("ticket", "create", "Last", "--workflow", "gaia_task", "--label", "ui", "--blocked-by", "SHOP-1,SHOP-2"), "  blocked by SHOP-1, SHOP-2  ")
	shown := func(want string) {
		t.Helper()
		require.Contains(t, w.gaia("ticket", "list"), "  "+want+"  ")
		require.Contains(t, w.gaia("ticket", "list", "--label", "ui"), "  "+want+"  ", "its blockers are not in the list")
		require.Contains(t, w.gaia("ticket", "show", "SHOP-6"), want+"\n")
		require.Contains(t, w.gaia("board"), "  Last\n  "+want+"\n")
		require.Contains(t, w.gaia("snapshot"), "\nblocked (1)\n  SHOP-6  todo  "+want+"\n")
	}
	shown("blocked by SHOP-1, SHOP-2")
	w.gaia("ticket", "move", "SHOP-1", "cancelled")
	shown("blocked by SHOP-2")
	require.Contains(t, w.gaia("ticket", "block", "SHOP-6", "--by", "SHOP-3,SHOP-4,SHOP-5"), "  blocked by SHOP-2, SHOP-3, SHOP-4 and 1 more  ")
	require.Contains(t, w.gaia("ticket", "hold", "SHOP-6"), "  held: person  ")
	require.NotContains(t, w.gaia("snapshot"), "blocked")
	w.gaia("ticket", "move", "SHOP-6", "cancelled")
	require.NotContains(t, w.gaia("ticket", "list", "--all"), "blocked")
}

// TestBlockedFromElsewhere: a run does not see the blocker, and is told that there is one.
func TestBlockedFromElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	con := w.shop()
	w.hub.Project(t, "OTHER")
	w.ticket("create", "First", "--project", "SHOP")
	other := w.ticket("create", "Other", "--project", "OTHER")
	k := w.ticket("create", "Last", "--project", "SHOP", "--blocked-by", other.Identifier)
	in := w.inside(w.claim(con))
	require.Contains(t, in.gaia("ticket", "show", k.Identifier), "blocked by:  a ticket of another project\n")
}

// TestNothingToList: an empty list says whether there may be more.
func TestNothingToList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.shop()
	require.Equal(t, "no tickets\n", w.gaia("ticket", "list", "--all"))
	w.gaia("ticket", "create", "Over")
	w.gaia("ticket", "move", "SHOP-1", "cancelled")
	require.Equal(t, "no open tickets (--all shows finished ones)\n", w.gaia("ticket", "list"))
	require.Equal(t, "no open ticket matches (--all shows finished ones)\n", w.gaia("ticket", "list", "--project", "SHOP"))
	require.Equal(t, "no ticket matches\n", w.gaia("ticket", "list", "--state", "done"))
	require.Equal(t, "no run is live\n", w.gaia("run", "list", "--live"))
	require.Equal(t, "no runs\n", w.gaia("run", "list"))
}
