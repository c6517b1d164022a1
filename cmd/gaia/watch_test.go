package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// buffer may be written and read at once.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *buffer) has(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(b.String(), text) }, time.Minute, 10*time.Millisecond, "%q; shown: %s", text, b)
}

// TestWatch prints anew when something changes, goes on while the hub is away, and ends well when it is interrupted.
func TestWatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.shop()
	require.Contains(t, w.fails(exitRefused, "ticket", "show", "SHOP-1", "--watch"), "SHOP-1", "what fails at once is a failure")
	ctx, interrupt := context.WithCancel(t.Context())
	var out, errs buffer
	done := make(chan int, 1)
	go func() { done <- w.app(strings.NewReader(""), &out, &errs).run(ctx, []string{"ticket", "list", "-w"}) }()
	out.has(t, "no open tickets (--all shows finished ones)\n")
	w.ticket("create", "First")
	out.has(t, "First\n")
	w.hub.Wrap(func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	})
	errs.has(t, "hub unreachable")
	w.hub.Wrap(nil)
	w.ticket("create", "Second")
	out.has(t, "Second\n")
	require.NotContains(t, out.String(), "unreachable")
	require.NotContains(t, out.String()+errs.String(), "\x1b")
	interrupt()
	require.Zero(t, <-done)
}

// TestWatchForPrograms: each picture is a document of its own.
func TestWatchForPrograms(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.shop()
	for _, form := range []string{"json", "yaml"} {
		w.ticket("create", "First "+form)
		ctx, interrupt := context.WithCancel(t.Context())
		var out buffer
		done := make(chan int, 1)
		go func() {
			done <- w.app(strings.NewReader(""), &out, io.Discard).run(ctx, []string{"ticket", "list", "-w", "-o", form})
		}()
		out.has(t, "First "+form)
		w.ticket("create", "Second "+form)
		out.has(t, "Second "+form)
		interrupt()
		require.Zero(t, <-done)
		next := json.NewDecoder(strings.NewReader(out.String())).Decode
		if form == "yaml" {
			next = yaml.NewDecoder(strings.NewReader(out.String())).Decode
		}
		count := 0
		for {
			var page []any
			err := next(&page)
			if err == io.EOF {
				break
			}
			require.NoError(t, err)
			count++
		}
		require.GreaterOrEqual(t, count, 2)
	}
}

// TestWatchOnATerminal draws over what was there, and leaves out what would not fit.
func TestWatchOnATerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.shop()
	for range 12 {
		w.ticket("create", "A title that is much longer than what is left of sixty columns of a terminal")
	}
	m := newTerminal(t)
	ctx, interrupt := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() { done <- w.app(m.tty, m.tty, m.tty).run(ctx, []string{"ticket", "list", "-w"}) }()
	s := m.until("… and 5 more lines\r\n")
	require.True(t, strings.HasPrefix(s, "\x1b[H\x1b[2J"), "%q", s)
	require.Equal(t, 9, strings.Count(s, "\n"))
	for _, line := range strings.Split(strings.TrimPrefix(s, "\x1b[H\x1b[2J"), "\r\n") {
		require.LessOrEqual(t, len([]rune(line)), 60)
	}
	interrupt()
	require.Zero(t, <-done)
}

// TestProgress: a person who waits for longer than a second is told for what; the line is gone afterwards.
func TestProgress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.shop()
	release := make(chan struct{})
	w.hub.Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			<-release
			next.ServeHTTP(rw, r)
		})
	})
	m := newTerminal(t)
	var out bytes.Buffer
	done := make(chan int, 1)
	go func() { done <- w.app(strings.NewReader(""), &out, m.tty).run(t.Context(), []string{"ticket", "list"}) }()
	shown := m.until("waiting for the hub … 1s")
	close(release)
	require.Zero(t, <-done)
	require.Equal(t, "no open tickets (--all shows finished ones)\n", out.String())
	shown += m.until("\r" + strings.Repeat(" ", len([]rune("waiting for the hub … 1s"))) + "\r")
	require.NotContains(t, shown, "\x1b")
	require.NotContains(t, w.call("", "ticket", "list").err, "waiting", "nobody looks")
}

// TestEdit: a person edits the description in an editor; what was not changed is not written.
func TestEdit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.shop()
	w.ticket("create", "T", "-d", "old text")
	m := newTerminal(t)
	edit := func(env ...string) (int, string) {
		var out, errs bytes.Buffer
		in := w.with(env...)
		code := in.app(m.tty, &out, &errs).run(t.Context(), []string{"ticket", "edit", "SHOP-1", "-o", "name"})
		return code, out.String() + errs.String()
	}
	script := w.write("editor", "#!/bin/sh\nsed -i s/old/new/ \"$2\"\n")
	code, said := edit("EDITOR", "sh "+script+" --wait")
	require.Zero(t, code, said)
	require.Equal(t, "new text", w.ticket("show", "SHOP-1").Description)
	code, said = edit("EDITOR", "false", "VISUAL", "true")
	require.Equal(t, exitRefused, code)
	require.Contains(t, said, "nothing was changed")
	code, said = edit("EDITOR", "false", "VISUAL", "  ")
	require.Equal(t, exitRefused, code)
	require.Contains(t, said, "nothing was changed")
	require.Equal(t, "new text", w.ticket("show", "SHOP-1").Description)
}
