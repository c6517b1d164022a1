package journal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"gaia/internal/log"
	"gaia/internal/usermanager"
)

func TestMain(m *testing.M) { usermanager.Main(m) }

// say writes an entry and waits for nothing: journald answers when it has it.
func say(t *testing.T, message string, priority journal.Priority, fields map[string]string) {
	t.Helper()
	require.NoError(t, journal.Send(message, priority, fields))
}

func ticket(s string) [][]Match { return [][]Match{{{Field: log.Ticket, Value: s}}} }

// unique is a text that no other entry has.
func unique() string { return uuid.NewString() }

// read reads until there are n entries: journald is not done when the sender is.
func read(t *testing.T, q Query, n int) []Entry {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		var got []Entry
		err := Reader{UID: os.Getuid()}.Read(t.Context(), q, func(e Entry) error {
			got = append(got, e)
			return nil
		})
		require.NoError(t, err)
		if len(got) >= n {
			return got
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d entries and not %d: %v", len(got), n, got)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func messages(all []Entry) []string {
	var out []string
	for _, e := range all {
		out = append(out, e.Message)
	}
	return out
}

// TestRead: by a field whose value may be any text, in order, limited as asked.
func TestRead(t *testing.T) {
	t.Parallel()
	for i, identifier := range []string{
		"SHOP-7", "-x", "--follow", "+", "a\nb", "a=b", "/dev/null", "$(id)", "日本 🐛", " ", "*", strings.Repeat("x", 3000), "\x1b[31m", "\xff\xfe",
	} {
		t.Run(fmt.Sprintf("%d", i), func(t *testing.T) {
			t.Parallel()
			key := identifier + "~" + unique()
			fields := map[string]string{log.Ticket: key, log.Run: "r1", log.Reason: "stalled", "SYSLOG_IDENTIFIER": "gaia-x"}
			say(t, "one", journal.PriInfo, fields)
			say(t, "two\nlines", journal.PriErr, fields)
			say(t, "three", journal.PriDebug, fields)
			all := read(t, Query{Any: ticket(key), Lines: All}, 3)
			require.Equal(t, []string{"one", "two\nlines", "three"}, messages(all))
			require.Equal(t, strings.ToValidUTF8(key, "\uFFFD"), all[0].Ticket)
			require.Equal(t, "r1", all[0].Run)
			require.Equal(t, "stalled", all[0].Reason)
			require.Equal(t, "gaia-x", all[0].Source)
			require.Equal(t, os.Getpid(), all[0].PID)
			require.Equal(t, "err", all[1].Level)
			require.WithinDuration(t, time.Now(), all[0].At, 5*time.Minute)

			require.Equal(t, []string{"three"}, messages(read(t, Query{Any: ticket(key), Lines: 1}, 1)))
			require.Empty(t, read(t, Query{Any: ticket(key), Lines: 0}, 0))
			require.Equal(t, []string{"two\nlines"}, messages(read(t, Query{Any: ticket(key), Lines: All, Priority: "warning"}, 1)))
			for _, since := range []string{"1h", "-1h", "1 hour ago", "yesterday", time.Now().Add(-time.Hour).Format(time.RFC3339Nano)} {
				require.Len(t, read(t, Query{Any: ticket(key), Lines: All, Since: since}, 3), 3, since)
				require.Empty(t, read(t, Query{Any: ticket(key), Lines: All, Until: since}, 0), since)
			}
			require.Empty(t, read(t, Query{Any: ticket(key + "x"), Lines: All}, 0))
		})
	}
}

// TestReadAlternatives: fields of one alternative must all be there, of several alternatives one will do.
func TestReadAlternatives(t *testing.T) {
	t.Parallel()
	id := "alternatives-" + unique()
	for _, f := range []map[string]string{{log.Ticket: id}, {log.Run: id}, {log.Ticket: id, log.Run: id}, {log.Project: id}} {
		say(t, fmt.Sprint(f[log.Ticket] != "", f[log.Run] != ""), journal.PriInfo, f)
	}
	say(t, "last", journal.PriInfo, map[string]string{log.Ticket: id, log.Run: "other"})
	read(t, Query{Any: [][]Match{{{log.Ticket, id}, {log.Run, "other"}}}, Lines: All}, 1)
	got := read(t, Query{Any: [][]Match{{{log.Ticket, id}}, {{log.Run, id}}}, Lines: All}, 4)
	require.Equal(t, []string{"true false", "false true", "true true", "last"}, messages(got))
	require.Equal(t, []string{"true true", "last"}, messages(read(t, Query{Any: [][]Match{{{log.Ticket, id}, {log.Run, id}, {log.Run, "other"}}}, Lines: All}, 2)))
	// Nobody else's.
	err := Reader{UID: os.Getuid() + 1}.Read(t.Context(), Query{Any: ticket(id), Lines: All}, func(Entry) error { return errors.New("an entry") })
	require.NoError(t, err)
}

// TestReadWhatIsNoText and what is long.
func TestReadWhatIsNoText(t *testing.T) {
	t.Parallel()
	id := "no-text-" + unique()
	say(t, "\x1b[2J\xff\x00!", journal.PriInfo, map[string]string{log.Ticket: id})
	say(t, strings.Repeat("long ", 100_000), journal.PriInfo, map[string]string{log.Ticket: id})
	say(t, strings.Repeat("\xff", 3_000_000), journal.PriInfo, map[string]string{log.Ticket: id}) // four times as much in JSON
	say(t, "end", journal.PriInfo, map[string]string{log.Ticket: id})
	got := read(t, Query{Any: ticket(id), Lines: All}, 4)
	require.Equal(t, "\x1b[2J\uFFFD\x00!", got[0].Message)
	require.Len(t, got[1].Message, 500_000)
	require.True(t, got[2].Incomplete)
	require.Empty(t, got[2].Message)
	require.Equal(t, "end", got[3].Message)
	for _, e := range got { // to go on behind it
		require.Contains(t, e.Cursor, "s=")
	}
	// What follows meets each once.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var seen []string
	require.NoError(t, Reader{UID: os.Getuid()}.Read(ctx, Query{Any: ticket(id), Lines: 2, Follow: true}, func(e Entry) error {
		seen = append(seen, fmt.Sprint(len(e.Message), e.Incomplete))
		switch len(seen) {
		case 2:
			say(t, strings.Repeat("\xfe", 3_000_000), journal.PriInfo, map[string]string{log.Ticket: id})
		case 3:
			say(t, "over", journal.PriInfo, map[string]string{log.Ticket: id})
		case 4:
			cancel()
		}
		return nil
	}))
	require.Equal(t, []string{"0 true", "3 false", "0 true", "4 false"}, seen)
}

// TestFollow goes on until it is told to end, and then every journalctl is gone.
func TestFollow(t *testing.T) {
	t.Parallel()
	id := "follow-" + unique()
	say(t, "before", journal.PriInfo, map[string]string{log.Ticket: id})
	read(t, Query{Any: ticket(id), Lines: All}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dir := t.TempDir()
	pidFile := filepath.Join(dir, "pid")
	program := script(t, "echo $$ >>"+pidFile+"\nexec journalctl \"$@\"\n")
	seen, done := make(chan string, 10), make(chan error, 1)
	go func() {
		done <- Reader{Program: program, UID: os.Getuid()}.Read(ctx, Query{Any: ticket(id), Lines: 10, Follow: true}, func(e Entry) error {
			seen <- e.Message
			return nil
		})
	}()
	next := func() string {
		select {
		case m := <-seen:
			return m
		case err := <-done:
			t.Fatalf("it has ended: %v", err)
		case <-time.After(time.Minute):
			t.Fatal("nothing comes")
		}
		return ""
	}
	require.Equal(t, "before", next())
	say(t, "after", journal.PriInfo, map[string]string{log.Ticket: id})
	require.Equal(t, "after", next())
	cancel()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
	text, err := os.ReadFile(pidFile)
	require.NoError(t, err)
	for _, word := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(word)
		require.NoError(t, err)
		require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH, "journalctl is left")
	}
}

// TestFollowMissesNothing of what is written while it begins, whether there was anything before or not.
func TestFollowMissesNothing(t *testing.T) {
	t.Parallel()
	for i := range 24 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			id := "misses-" + unique()
			q := Query{Any: [][]Match{{{log.Ticket, id}}, {{log.Run, id}}}, Lines: []int{All, 10, 0}[i%3], Follow: true}
			var want []string
			if i%2 == 0 {
				say(t, "before", journal.PriInfo, map[string]string{log.Ticket: id})
				read(t, Query{Any: q.Any, Lines: All}, 1)
				if q.Lines != 0 {
					want = append(want, "before")
				}
			}
			if i%4 > 1 {
				q.Since = "1h"
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var got []string
			done := make(chan error, 1)
			go func() {
				done <- Reader{UID: os.Getuid()}.Read(ctx, q, func(e Entry) error {
					if got = append(got, e.Message); e.Message == "last" {
						cancel()
					}
					return nil
				})
			}()
			for n := range 20 { // over the time in which it begins
				if n == 10 {
					read(t, Query{Any: ticket(id), Lines: All}, 0) // takes a moment
				}
				text := strconv.Itoa(n)
				say(t, text, journal.PriInfo, map[string]string{log.Run: id})
				want = append(want, text)
			}
			say(t, "last", journal.PriInfo, map[string]string{log.Run: id})
			require.NoError(t, <-done)
			if q.Lines == All || q.Since != "" && q.Lines != 0 {
				require.Equal(t, append(want, "last"), got)
				return
			}
			// How many there were when it began is not known; none of those after it is missing, and none is there twice.
			require.NotEmpty(t, got)
			require.Subset(t, append(want, "last"), got)
			require.Equal(t, append(want, "last")[len(want)+1-len(got):], got)
		})
	}
}

// script is a program of the test's in the place of journalctl.
func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journalctl")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o755))
	return path
}

// TestWhatCannotBeRead says what to do.
func TestWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	const header = `case "$*" in *--header*) echo "File path: x"; exit 0;; esac` + "\n"
	const entry = `echo '{"__REALTIME_TIMESTAMP":"1","MESSAGE":"m"}'` + "\n"
	q := Query{Any: ticket("T"), Lines: All}
	for name, c := range map[string]struct {
		program string
		q       Query
		is      error
		says    []string
	}{
		"not installed":         {"/nonexistent/journalctl", q, ErrUnavailable, []string{"apt-get install systemd"}},
		"not installed, follow": {"/nonexistent/journalctl", Query{Any: q.Any, Follow: true}, ErrUnavailable, []string{"apt-get install systemd"}},
		"no file":               {script(t, ""), q, ErrUnavailable, []string{"no journal that this user may read", "usermod --append --groups systemd-journal"}},
		"no file, follow":       {script(t, ""), Query{Any: q.Any, Follow: true}, ErrUnavailable, []string{"systemd-journal"}},
		"permission denied":     {script(t, "echo 'No journal files were opened due to insufficient permissions.' >&2; exit 1"), q, ErrUnavailable, []string{"insufficient permissions", "usermod --append --groups systemd-journal"}},
		"time":                  {script(t, "echo 'Failed to parse timestamp: x' >&2; exit 1"), q, ErrTime, []string{"Failed to parse timestamp: x; write it like 90m"}},
		"silent failure":        {script(t, "exit 3"), q, ErrUnavailable, []string{"says nothing", "exit status 3"}},
		"failure after lines":   {script(t, entry+"echo 'Bad message' >&2; exit 1"), q, ErrUnavailable, []string{"Bad message"}},
		"no JSON":               {script(t, header+"echo '<html>'"), q, nil, []string{"not understood"}},
		"zero byte":             {"journalctl", Query{Any: ticket("a\x00b"), Lines: All}, nil, []string{"zero byte"}},
		"nothing looked for":    {"journalctl", Query{Lines: All}, nil, []string{"nothing is looked for"}},
		"priority":              {"journalctl", Query{Any: q.Any, Priority: "loud"}, nil, []string{"no priority"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := Reader{Program: c.program, UID: os.Getuid()}.Read(t.Context(), c.q, func(Entry) error { return nil })
			require.Error(t, err)
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
			}
			for _, s := range c.says {
				require.ErrorContains(t, err, s)
			}
		})
	}
	// A journal without such an entry is fine; a last line that was cut off is none.
	for _, body := range []string{header, header + `printf '{"__REALTIME'`} {
		require.NoError(t, Reader{Program: script(t, body)}.Read(t.Context(), q, func(Entry) error { return errors.New("an entry") }))
	}
	// A program that says much is not remembered, one that does not end is ended.
	err := Reader{Program: script(t, "yes complaint | head -c 1000000 >&2; exit 1")}.Read(t.Context(), q, func(Entry) error { return nil })
	require.Less(t, len(err.Error()), maxComplaint+500)
	stop := errors.New("enough")
	err = Reader{Program: script(t, header+entry+"exec sleep 1000")}.Read(t.Context(), q, func(Entry) error { return stop })
	require.ErrorIs(t, err, stop)
}
