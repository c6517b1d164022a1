package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/session"
)

// journal puts a program into the place of journalctl that prints these lines, and returns what it was called with.
func (w *world) journal(lines ...string) (called func() []string) {
	w.t.Helper()
	dir := w.t.TempDir()
	args, out, program := filepath.Join(dir, "args"), filepath.Join(dir, "out"), filepath.Join(dir, "journalctl")
	require.NoError(w.t, os.WriteFile(out, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	require.NoError(w.t, os.WriteFile(program, []byte("#!/bin/sh\ncase \"$*\" in *--header*) echo file; exit;; esac\n"+
		"printf '%s\\0' \"$@\" >"+args+"\ncat "+out+"\n"), 0o700))
	w.env["journalctl"] = program
	return func() []string {
		b, err := os.ReadFile(args)
		require.NoError(w.t, err)
		require.NoError(w.t, os.Remove(args))
		all := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
		for i, s := range all {
			if s == "--" {
				return all[i+1:]
			}
		}
		return nil
	}
}

// entry is a line of the journal.
func entry(fields ...string) string {
	e := map[string]string{"__REALTIME_TIMESTAMP": "1796102544587958", "PRIORITY": "6"}
	for i := 0; i < len(fields); i += 2 {
		e[fields[i]] = fields[i+1]
	}
	b, _ := json.Marshal(e)
	return string(b)
}

// uid stands for the user's id in what journalctl was called with.
func uid(args []string) []string {
	for i, s := range args {
		if strings.HasPrefix(s, "_UID=") {
			args[i] = "_UID"
		}
	}
	return args
}

func story() []string {
	return []string{
		entry("SYSLOG_IDENTIFIER", "gaia-hub", "MESSAGE", "the hub is ready"),
		entry("SYSLOG_IDENTIFIER", "gaia-conductor", "GAIA_TICKET", "SHOP-1", "GAIA_RUN", "RUN", "MESSAGE", "claimed SHOP-1"),
		entry("SYSLOG_IDENTIFIER", "gaia-session", "GAIA_TICKET", "SHOP-1", "GAIA_RUN", "unknown", "MESSAGE", "two\nlines\x1b]0;title\a", "PRIORITY", "4"),
		entry("SYSLOG_IDENTIFIER", "gaia-hub", "_SYSTEMD_USER_UNIT", "demo-hub.service", "GAIA_TICKET", "SHOP-1", "MESSAGE", "of another installation"),
		entry("_COMM", "systemd", "USER_UNIT", "gaia-run-shop-1.service", "MESSAGE", "Started it.", "PRIORITY", "3", "__CURSOR", "s=1;i=2"),
		`{"__REALTIME_TIMESTAMP":"1796102544587958","MESSAGE":null,"PRIORITY":"7"}`,
	}
}

// TestRunLogs: a run or a ticket is named in every way, and its story asked for over all who tell of it.
func TestRunLogs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	con := w.shop()
	w.ticket("create", "T")
	a, _ := w.claim(con)
	_, err := con.Start(t.Context(), a.Run.ID, domain.StartReport{
		WorktreePath: "/srv/trees/SHOP-1", Branch: "gaia/SHOP-1", BaseSHA: "0123456789012345678901234567890123456789",
		Unit: "gaia-run-shop-1.service", Agent: "script", Permissions: "edits", Log: "/srv/runs/1",
	})
	require.NoError(t, err)
	lines := story()
	for i := range lines {
		lines[i] = strings.Replace(lines[i], `"RUN"`, `"`+a.Run.ID+`"`, 1)
	}
	called := w.journal(lines...)
	folder := filepath.Join(w.env["GAIA_HOME"], "state", "runs", a.Run.ID)
	require.Contains(t, w.call("", "run", "logs", "1").err, "1 of 1 runs left nothing on this machine")
	_, err = session.Create(folder, session.Spec{
		Run: a.Run.ID, Number: 1, Project: "SHOP", Ticket: a.Ticket.ID, Identifier: "SHOP-1", Unit: "gaia-run-shop-1.service",
	}, "token")
	require.NoError(t, err)

	golden(t, "run-logs.golden", w.gaia("run", "logs", "1"), time.UnixMicro(1796102544587958).Local().Format("2006-01-02 15:04:05"), "2026-12-01 05:22:24")
	ofRun := []string{
		"_UID", "GAIA_RUN=" + a.Run.ID, "+", "_UID", "_SYSTEMD_USER_UNIT=gaia-run-shop-1.service", "+", "_UID", "USER_UNIT=gaia-run-shop-1.service",
	}
	ofTicket := append([]string{"_UID", "GAIA_TICKET=SHOP-1", "+"}, ofRun...)
	require.Equal(t, ofRun, uid(called()))
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"SHOP/1"}, ofRun}, {[]string{a.Run.ID}, ofRun}, {[]string{"--run", "1"}, ofRun},
		{[]string{"SHOP-1"}, ofTicket}, {[]string{a.Ticket.ID}, ofTicket}, {[]string{"--ticket", "SHOP-1"}, ofTicket},
	} {
		w.gaia(append([]string{"run", "logs"}, c.args...)...)
		require.Equal(t, c.want, uid(called()), c.args)
	}
	golden(t, "run-logs.json.golden", w.gaia("run", "logs", "1", "-o", "json"))
	require.Equal(t, 5, strings.Count(w.gaia("run", "logs", "1", "-o", "yaml"), "---\n"))
	require.Contains(t, w.gaia("run", "logs", "1", "-o", "name"), "s=1;i=2\n")

	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{exitUsage, "which run or ticket?", nil},
		{exitUsage, "either RUN or TICKET", []string{"1", "--ticket", "SHOP-1"}},
		{exitUsage, "--until goes not with --follow", []string{"1", "-f", "--until", "today"}},
		{exitUsage, "no priority", []string{"1", "--priority", "loud"}},
		{exitUsage, "neither a number nor all", []string{"1", "-n", "-1"}},
		{exitRefused, "gaia run list", []string{"2"}},
		{exitRefused, "gaia ticket list", []string{"SHOP-9"}},
		{exitRefused, "run", []string{"--run", "SHOP-1"}},
	} {
		require.Contains(t, w.fails(c.code, append([]string{"run", "logs"}, c.args...)...), c.says, c.args)
	}
	w.env["journalctl"] = "/nonexistent/journalctl"
	require.Contains(t, w.fails(exitRefused, "run", "logs", "1"), "apt-get install systemd")
	called = w.journal()
	require.Contains(t, w.call("", "run", "logs", "1").err, "has nothing of it")
	require.Equal(t, "Nothing of it matches --since '2 hours ago' --priority warning. Without that the journal may have more\n",
		w.call("", "run", "logs", "1", "--since", "2 hours ago", "--priority", "warning").err)
	require.Contains(t, w.call("", "run", "logs", "1", "-n", "3").err, "matches --lines 3.")
	require.Contains(t, w.call("", "run", "logs", "1", "-n", "all").err, "has nothing of it")

	// A run that was over before its start was told: its folder knows the unit.
	w.ticket("create", "Quick")
	quick, _ := w.claim(con)
	_, err = session.Create(filepath.Join(w.env["GAIA_HOME"], "state", "runs", quick.Run.ID), session.Spec{
		Run: quick.Run.ID, Number: 2, Project: "SHOP", Ticket: quick.Ticket.ID, Identifier: "SHOP-2", Unit: "gaia-run-shop-2.service",
	}, "token")
	require.NoError(t, err)
	r := w.call("", "run", "logs", "2")
	require.Zero(t, r.code, r.err)
	require.Contains(t, called(), "USER_UNIT=gaia-run-shop-2.service")

	// Without the hub, by what lies here.
	away := w.with("GAIA_HUB", "unix:///nonexistent/hub.sock")
	for _, c := range []struct {
		ref  string
		want []string
	}{{"1", ofRun}, {"SHOP/1", ofRun}, {a.Run.ID, ofRun}, {"SHOP-1", ofTicket}, {"SHOP-9", []string{"_UID", "GAIA_TICKET=SHOP-9"}}} {
		r := away.call("", "run", "logs", c.ref)
		require.Zero(t, r.code, r.err)
		require.Contains(t, r.err, "what is known here")
		require.Equal(t, c.want, uid(called()), c.ref)
	}
	require.Contains(t, away.call("", "run", "logs", "9").err, "knows no run 9")

	// An agent's own run.
	w.gaia("ticket", "show", "SHOP-1")
	in := w.with("GAIA_RUN", a.Run.ID, "GAIA_TICKET", "SHOP-1", "GAIA_TOKEN_FILE", "/nonexistent")
	in.call("", "run", "logs")
	require.Equal(t, ofRun, uid(called()))
}

// TestConductorLogs: of the unit, and in it of a ticket or a run.
func TestConductorLogs(t *testing.T) {
	t.Parallel()
	w := bare(t, "shop")
	require.Zero(t, w.call("", allFlags...).code)
	called := w.journal(story()...)
	require.Contains(t, w.gaia("conductor", "logs"), "info     gaia-conductor  SHOP-1          claimed SHOP-1\n")
	unit := "gaia-conductor@shop.service"
	require.Equal(t, []string{"_UID", "_SYSTEMD_USER_UNIT=" + unit, "+", "_UID", "USER_UNIT=" + unit}, uid(called()))
	w.gaia("conductor", "logs", "shop", "--ticket", "-x\ny")
	require.Equal(t, []string{"_UID", "_SYSTEMD_USER_UNIT=" + unit, "GAIA_TICKET=-x\ny", "+", "_UID", "USER_UNIT=" + unit, "GAIA_TICKET=-x\ny"}, uid(called()))
	require.Contains(t, w.fails(exitUsage, "conductor", "logs", "nope"), "gaia init makes one")
	require.Contains(t, w.fails(exitRefused, "conductor", "logs", "--run", "12"), "gaia run list")
}

// TestLogsInColour: on a terminal levels are coloured, and nothing of what was logged is obeyed.
func TestLogsInColour(t *testing.T) {
	t.Parallel()
	w := bare(t, "shop")
	require.Zero(t, w.call("", allFlags...).code)
	w.journal(story()...)
	m := newTerminal(t)
	done := make(chan int, 1)
	go func() { done <- w.app(m.tty, m.tty, m.tty).run(t.Context(), []string{"conductor", "logs"}) }()
	text := m.until("too long to be shown)")
	require.Zero(t, <-done)
	require.Contains(t, text, colourYellow+"warning"+colourNone)
	require.Contains(t, text, colourRed+"Started it."+colourNone)
	require.NotContains(t, text, "\x1b]")
	require.NotContains(t, text, "\a")
}
