package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"gaia/registry"
)

// bare is a world in which nothing is set up, in a checkout called name.
func bare(t *testing.T, name string) *world {
	t.Helper()
	w := newWorld(t)
	require.NoError(t, os.RemoveAll(w.env["GAIA_HOME"]))
	w.dir = repository(t, t.TempDir(), name)
	return w
}

func (w *world) home() registry.Home {
	w.t.Helper()
	h, err := w.app(nil, nil, nil).home()
	require.NoError(w.t, err)
	return h
}

// files are all files below a folder with their text, to see that nothing was changed.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.Contains(path, "/.git/") {
			return err
		}
		b, err := os.ReadFile(path)
		out[path] = string(b)
		return err
	})
	if !os.IsNotExist(err) {
		require.NoError(t, err)
	}
	return out
}

var allFlags = []string{"init", "--user-id", "anna", "--host-id", "desk", "--key", "SHOP", "--slug", "shop", "--instance", "shop", "--agent", "script", "--name", "The shop"}

// TestInitByFlags: everything is made once; a second run changes nothing.
func TestInitByFlags(t *testing.T) {
	t.Parallel()
	w := bare(t, "shop")
	r := w.call("", allFlags...)
	require.Zero(t, r.code, r.err)
	golden(t, "init.golden", "$ gaia "+strings.Join(allFlags, " ")+"\n"+r.out+"--- stderr\n"+r.err, w.dir, "/CHECKOUT", w.env["GAIA_HOME"], "/HOME/gaia")
	golden(t, "machine.toml.golden", files(t, w.env["GAIA_HOME"])[filepath.Join(w.env["GAIA_HOME"], "machine.toml")])
	golden(t, "conductor.toml.golden", files(t, w.dir)[filepath.Join(w.dir, conductorFile)])
	p, err := w.hub.Client(t, "anna").ProjectByKey(t.Context(), "SHOP")
	require.NoError(t, err)
	require.Equal(t, "The shop", p.Name)
	require.Equal(t, []string{"anna"}, p.Members)

	before := files(t, w.env["GAIA_HOME"])
	tree := files(t, w.dir)
	for _, again := range [][]string{{"init"}, {"init", "--yes"}, allFlags, {"conductor", "init"}} {
		r := w.call("", again...)
		require.Zero(t, r.code, r.err)
		require.Contains(t, r.out, "is set up as the conductor shop of the project SHOP")
		require.Equal(t, before, files(t, w.env["GAIA_HOME"]))
		require.Equal(t, tree, files(t, w.dir))
	}
	r = w.call("", "init", "-o", "json")
	require.JSONEq(t, `{"instance":"shop","machine_id":"anna.desk.shop","checkout":"`+w.dir+`","project":"SHOP","hub":"`+w.hub.URL+`"}`, r.out)
	require.Equal(t, "shop\n", w.call("", "init", "-o", "name").out)

	// What would change what is there is refused.
	for _, c := range [][]string{{"--user-id", "bob"}, {"--host-id", "lap"}, {"--key", "BANK"}, {"--instance", "other"}} {
		w.fails(exitUsage, append([]string{"init"}, c...)...)
	}
	require.Equal(t, before, files(t, w.env["GAIA_HOME"]))

	// From a sub-folder and from a worktree the checkout is meant, and not they.
	sub := filepath.Join(w.dir, "a", "b")
	require.NoError(t, os.MkdirAll(sub, 0o755))
	inSub := *w
	inSub.dir = sub
	require.Contains(t, inSub.call("", "init").out, w.dir+" is set up")
	require.Equal(t, before, files(t, w.env["GAIA_HOME"]))

	git(t, w.dir, "add", ".gaia")
	git(t, w.dir, "commit", "--quiet", "-m", "Gaia")
	r = w.call("", "init", "--agent", "claude") // what is there is kept, and that is said
	require.Contains(t, r.err, "The agent stays script, as "+filepath.Join(w.dir, conductorFile)+" has it")
	require.Contains(t, r.err, "add [agents.script] to "+filepath.Join(w.env["GAIA_HOME"], "machine.toml"))
	require.True(t, strings.HasSuffix(r.err, "\nNext: gaia conductor enable --now shop\n"), r.err)
	require.NotContains(t, w.call("", "init", "--agent", "script").err, "stays")
}

// TestInitWithAnAgentThatNeedsNoMore writes that the machine has it, since a machine without an agent claims nothing.
func TestInitWithAnAgentThatNeedsNoMore(t *testing.T) {
	t.Parallel()
	w := bare(t, "shop")
	require.Contains(t, w.fails(exitUsage, "init", "--yes", "--agent", "nobody"), `there is no agent "nobody"; there are claude, script`)
	bin := t.TempDir()
	w.env["PATH"] = bin
	r := w.call("", "init", "--yes", "--user-id", "anna", "--host-id", "desk", "--agent", "claude")
	require.Zero(t, r.code, r.err)
	require.Contains(t, r.err, "The agent claude cannot be started: the program claude: not found")
	require.Contains(t, r.err, "[agents.claude] of "+w.home().MachineFile())
	require.NoError(t, os.WriteFile(filepath.Join(bin, "claude"), []byte("#!/bin/sh\n"), 0o755))
	require.NotContains(t, w.call("", "init").err, "cannot be started")
	m, err := w.home().Machine()
	require.NoError(t, err)
	require.Equal(t, "claude", m.DefaultAgent)
	require.Contains(t, m.Agents, "claude")
}

// TestInitWithoutAPerson names every flag that is missing, and writes nothing.
func TestInitWithoutAPerson(t *testing.T) {
	t.Parallel()
	w := bare(t, "shop")
	require.Contains(t, w.fails(exitUsage, "init"), "give --user-id, --host-id, --key, --slug, --instance, or --yes")
	require.Contains(t, w.fails(exitUsage, "init", "--user-id", "anna", "--key", "SHOP"), "give --host-id, --slug, --instance, or")
	require.NoDirExists(t, w.env["GAIA_HOME"])
	require.NoDirExists(t, filepath.Join(w.dir, ".gaia"))
	require.Contains(t, w.fails(exitUsage, "conductor", "init", "--yes"), "gaia init makes it")
	require.NoDirExists(t, w.env["GAIA_HOME"])
	for _, c := range [][]string{{"--key", "shop"}, {"--slug", "Shop"}, {"--user-id", "An na"}, {"--host-id", "a.b"}, {"--instance", "-"}} {
		require.Contains(t, w.fails(exitUsage, append([]string{"init", "--yes"}, c...)...), c[0]+":")
	}
	require.NoDirExists(t, w.env["GAIA_HOME"])
}

// TestInitTakesProposals with --yes.
func TestInitTakesProposals(t *testing.T) {
	t.Parallel()
	w := bare(t, "My Web-Shop")
	r := w.call("", "init", "--yes")
	require.Zero(t, r.code, r.err)
	c, err := registry.LoadCheckout(w.dir)
	require.NoError(t, err)
	require.Equal(t, "MYWEBSHOP", c.Project)
	require.Regexp(t, `^my-web-shop-[0-9a-f]{6}$`, c.Slug)
	e, err := w.home().EntryOf(w.dir)
	require.NoError(t, err)
	require.Regexp(t, `^my-web-shop-[0-9a-f]{6}$`, e.Instance)
}

// TestSecondClone gets a name of its own.
func TestSecondClone(t *testing.T) {
	t.Parallel()
	w := bare(t, "shop")
	require.Zero(t, w.call("", allFlags...).code)
	git(t, w.dir, "add", ".")
	git(t, w.dir, "commit", "--quiet", "-m", "Gaia")
	parent := t.TempDir()
	git(t, parent, "clone", "--quiet", w.dir, "shop")
	second := *w
	second.dir = filepath.Join(parent, "shop")
	r := second.call("", "conductor", "init", "--yes")
	require.Zero(t, r.code, r.err)
	e, err := w.home().EntryOf(second.dir)
	require.NoError(t, err)
	require.Regexp(t, `^shop-[0-9a-f]{6}$`, e.Instance)
	require.Contains(t, second.fails(exitUsage, "init", "--instance", "shop"), e.Instance)
	git(t, parent, "clone", "--quiet", w.dir, "third")
	third := *w
	third.dir = filepath.Join(parent, "third")
	require.Contains(t, third.fails(exitRefused, "conductor", "init", "--instance", "shop"), w.dir)
	require.NoError(t, w.home().Remove(t.Context(), e.Instance))
	require.Zero(t, third.call("", "conductor", "init", "--yes").code)
	e, err = w.home().EntryOf(third.dir)
	require.NoError(t, err)
	require.Equal(t, "third", e.Instance, "and not what the second was called, whose worktrees and machine_id it would take over")
}

// TestInitOfDamagedFiles says which file and why, and overwrites none.
func TestInitOfDamagedFiles(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"machine.toml": "user_id = \"anna\n", "conductors.json": `{"schema": 1, "conductors": [`, "conductor.toml": "schema = 1\nproject = \"SHOP\"\nslog = \"x\"\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := bare(t, "shop")
			require.Zero(t, w.call("", allFlags...).code)
			path := filepath.Join(w.env["GAIA_HOME"], name)
			if name == "conductor.toml" {
				path = filepath.Join(w.dir, conductorFile)
			}
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			require.Contains(t, w.fails(exitUsage, "init", "--yes"), path)
			if name != "conductors.json" { // that is set aside
				require.Equal(t, text, files(t, filepath.Dir(path))[path])
			}
		})
	}
}

// TestInitWhereItCannotWork fails before anything is written.
func TestInitWhereItCannotWork(t *testing.T) {
	t.Parallel()
	w := bare(t, "shop")
	require.Contains(t, w.with("GAIA_HOME", w.env["HOME"]+"/a$b").fails(exitUsage, allFlags...), "systemd cannot start them")
	require.NoDirExists(t, w.env["HOME"]+"/a$b")
	outside := *w
	outside.dir = t.TempDir()
	require.Contains(t, outside.fails(exitUsage, allFlags...), "git init")
	require.NoDirExists(t, w.env["GAIA_HOME"])
	git(t, w.dir, "branch", "gaia")
	r := w.call("", allFlags...)
	require.Equal(t, exitRefused, r.code)
	require.Contains(t, r.err, "branch -m gaia gaia-old")
}

// terminal is a person at a terminal, who answers what is asked.
type terminal struct {
	t    *testing.T
	pty  *os.File
	tty  *os.File
	seen bytes.Buffer
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	p, tty, err := pty.Open()
	require.NoError(t, err)
	require.NoError(t, pty.Setsize(tty, &pty.Winsize{Rows: 10, Cols: 60}))
	t.Cleanup(func() { _ = p.Close(); _ = tty.Close() })
	return &terminal{t: t, pty: p, tty: tty}
}

// until reads what is shown until it ends with text.
func (m *terminal) until(text string) string {
	m.t.Helper()
	require.NoError(m.t, m.pty.SetReadDeadline(time.Now().Add(30*time.Second)))
	b := make([]byte, 1)
	for !strings.Contains(m.seen.String(), text) {
		n, err := m.pty.Read(b)
		require.NoError(m.t, err, "waiting for %q; shown: %q", text, m.seen.String())
		m.seen.Write(b[:n])
	}
	s := m.seen.String()
	m.seen.Reset()
	return s
}

func (m *terminal) enter(text string) {
	m.t.Helper()
	_, err := io.WriteString(m.pty, text+"\n")
	require.NoError(m.t, err)
}

// TestInitAsks what it needs, proposes answers and asks again for one that cannot be.
func TestInitAsks(t *testing.T) {
	t.Parallel()
	w := bare(t, "shop")
	m := newTerminal(t)
	done := make(chan int, 1)
	go func() { done <- w.app(m.tty, m.tty, m.tty).run(t.Context(), []string{"init"}) }()
	m.until("What shall the hub call you [anna]: ")
	m.enter("")
	m.until("What shall the hub call this machine")
	m.enter("Not One")
	m.until("What shall the hub call this machine")
	m.enter("desk")
	m.until("Key of the project; it starts every identifier [SHOP]: ")
	m.enter("WEB")
	m.until("Short name of the project in lower case [shop]: ")
	m.enter("")
	m.until("Name of this checkout's conductor on this machine [shop]: ")
	m.enter("")
	m.until("Next: commit .gaia/conductor.toml, then gaia conductor enable --now shop")
	require.Zero(t, <-done)
	machine, err := w.home().Machine()
	require.NoError(t, err)
	require.Equal(t, "anna", machine.UserID)
	require.Equal(t, "desk", machine.HostID)
	c, err := registry.LoadCheckout(w.dir)
	require.NoError(t, err)
	require.Equal(t, "WEB", c.Project)
}

// TestInitIsInterrupted by the end of its input.
func TestInitIsInterrupted(t *testing.T) {
	t.Parallel()
	w := bare(t, "shop")
	m := newTerminal(t)
	done := make(chan int, 1)
	go func() { done <- w.app(m.tty, m.tty, m.tty).run(t.Context(), []string{"init"}) }()
	m.until("call you [anna]: ")
	_, err := m.pty.Write([]byte{4}) // Ctrl-d
	require.NoError(t, err)
	m.until(`no answer to`)
	require.Equal(t, exitUsage, <-done)
	require.NoFileExists(t, filepath.Join(w.env["GAIA_HOME"], "machine.toml"))
}

// TestHooks: they are shown before they are trusted.
func TestHooks(t *testing.T) {
	t.Parallel()
	w := bare(t, "shop")
	require.Zero(t, w.call("", allFlags...).code)
	file := filepath.Join(w.dir, conductorFile)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, w.fails(exitRefused, "conductor", "trust"), "commit it")
	require.NoError(t, os.WriteFile(file, append(text, "\n[hooks.after_create]\nrun = \"make deps\\necho \\u001b[2J\"\n"...), 0o600))
	git(t, w.dir, "add", ".gaia")
	git(t, w.dir, "commit", "--quiet", "-m", "Gaia")
	require.Contains(t, w.call("", "init").err, "are not trusted yet, so its conductor will claim nothing: gaia conductor trust")
	r := w.call("", "conductor", "trust")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.err, "    make deps\n    echo  [2J\n")
	require.Contains(t, r.err, "give --yes")

	m := newTerminal(t)
	ask := func(answer string) int {
		done := make(chan int, 1)
		go func() { done <- w.app(m.tty, m.tty, m.tty).run(t.Context(), []string{"conductor", "trust"}) }()
		m.until("Trust these hooks (yes or no) [no]: ")
		m.enter(answer)
		m.until("\n")
		return <-done
	}
	require.Equal(t, exitRefused, ask(""))
	require.Equal(t, exitRefused, ask("maybe"))
	require.Contains(t, w.call("", "init").err, "not trusted")
	require.Zero(t, ask("yes"))
	require.NotContains(t, w.call("", "init").err, "not trusted")
	require.Contains(t, w.call("", "conductor", "trust", "nope").err, `this machine has no conductor "nope"; it has: shop`)
	require.Zero(t, w.call("", "conductor", "trust", "--all-permissions", "--yes").code)
}
