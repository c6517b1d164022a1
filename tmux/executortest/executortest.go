// Package executortest is what every domain.Executor must do, as tests: a real one and a fake that pass it can stand in for
// each other. It is imported by tests only.
package executortest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/session"
)

// Harness is an executor under test and what a test does to its sessions from outside.
type Harness struct {
	Executor domain.Executor
	// Prepare makes the folder of a new run, complete with tree and environment, whose agent runs until it is ended.
	Prepare func(t testing.TB, number int) domain.Launch
	// End makes the agent of a started run end by itself with the exit status.
	End func(t testing.TB, run string, status int)
	// Break makes the executor blind until the returned function is called; sessions go on.
	Break func(t testing.TB) (mend func())
}

// patience is how long a real session may take for anything.
const patience = 30 * time.Second

// Run runs the suite; each test gets a harness of its own.
func Run(t *testing.T, make func(t *testing.T) Harness) {
	for name, test := range map[string]func(*testing.T, Harness){
		"StartOnce": startOnce, "ConcurrentStarts": concurrentStarts, "OwnEnd": ownEnd, "Stop": stop,
		"Nothing": nothing, "Blind": blind, "Neighbours": neighbours, "Watch": watch, "WrongFolder": wrongFolder,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, make(t))
		})
	}
}

func state(t testing.TB, h Harness, run string) domain.SessionState {
	t.Helper()
	s, err := h.Executor.Probe(t.Context(), run)
	require.NoError(t, err)
	require.Equal(t, run, s.Run)
	listed, err := h.Executor.List(t.Context())
	require.NoError(t, err)
	for _, l := range listed {
		if l.Run == run {
			require.Equal(t, s, l, "probe and list agree")
		}
	}
	return s.State
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("waited %s for: %s", patience, what)
}

func gone(t testing.TB, h Harness, run string) {
	t.Helper()
	eventually(t, "the session's end", func() bool {
		s, err := h.Executor.Probe(t.Context(), run)
		require.NoError(t, err)
		return s.State == domain.SessionGone
	})
}

func startOnce(t *testing.T, h Harness) {
	l := h.Prepare(t, 1)
	require.NoError(t, h.Executor.Start(t.Context(), l))
	require.Equal(t, domain.SessionAlive, state(t, h, l.Run))
	started, err := session.Folder(l.Folder).Started()
	require.NoError(t, err)
	require.Equal(t, l.Run, started.Run)

	require.ErrorIs(t, h.Executor.Start(t.Context(), l), domain.ErrExists, "while it is alive")
	require.Equal(t, domain.SessionAlive, state(t, h, l.Run))
	h.End(t, l.Run, 0)
	gone(t, h, l.Run)
	require.ErrorIs(t, h.Executor.Start(t.Context(), l), domain.ErrExists, "after its end")
	require.NoError(t, h.Executor.Stop(t.Context(), l.Run))
	require.ErrorIs(t, h.Executor.Start(t.Context(), l), domain.ErrExists, "when nothing of it is left but the folder")
	again, err := session.Folder(l.Folder).Started()
	require.NoError(t, err)
	require.Equal(t, started, again)
}

func concurrentStarts(t *testing.T, h Harness) {
	l := h.Prepare(t, 1)
	const n = 5
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = h.Executor.Start(t.Context(), l) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			require.ErrorIs(t, err, domain.ErrExists)
		}
	}
	require.Equal(t, 1, won)
	require.Equal(t, domain.SessionAlive, state(t, h, l.Run))
	require.NoError(t, h.Executor.Stop(t.Context(), l.Run))
}

func ownEnd(t *testing.T, h Harness) {
	for number, status := range []int{0, 7} {
		l := h.Prepare(t, number+1)
		require.NoError(t, h.Executor.Start(t.Context(), l))
		h.End(t, l.Run, status)
		gone(t, h, l.Run)
		rec, err := session.Folder(l.Folder).Record()
		require.NoError(t, err, "the record is there as soon as the session is gone")
		require.Equal(t, session.CausePane, rec.Cause)
		require.Equal(t, &status, rec.Exit)
		require.False(t, rec.TermRequested)
		require.NoError(t, h.Executor.Stop(t.Context(), l.Run), "stopping what has ended")
		require.Equal(t, domain.SessionGone, state(t, h, l.Run), "a run stays listed as long as it has a folder")
	}
	listed, err := h.Executor.List(t.Context())
	require.NoError(t, err)
	require.Len(t, listed, 2)
}

func stop(t *testing.T, h Harness) {
	l := h.Prepare(t, 1)
	require.NoError(t, h.Executor.Start(t.Context(), l))
	require.NoError(t, h.Executor.Stop(t.Context(), l.Run))
	require.Equal(t, domain.SessionGone, state(t, h, l.Run), "nothing is left when Stop returns")
	rec, err := session.Folder(l.Folder).Record()
	require.NoError(t, err)
	require.Equal(t, session.CauseTerm, rec.Cause)
	require.True(t, rec.TermRequested)
	require.NoError(t, h.Executor.Stop(t.Context(), l.Run), "stopping twice")
	again, err := session.Folder(l.Folder).Record()
	require.NoError(t, err)
	require.Equal(t, rec, again)
}

func nothing(t *testing.T, h Harness) {
	const run = "01890000-0000-7000-8000-000000000000"
	require.Equal(t, domain.SessionGone, state(t, h, run))
	require.NoError(t, h.Executor.Stop(t.Context(), run))
	listed, err := h.Executor.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, listed)
}

// What cannot be seen is unknown: neither alive nor gone, and nothing is done to it.
func blind(t *testing.T, h Harness) {
	l := h.Prepare(t, 1)
	require.NoError(t, h.Executor.Start(t.Context(), l))
	other := h.Prepare(t, 2)
	mend := h.Break(t)
	s, err := h.Executor.Probe(t.Context(), l.Run)
	require.Error(t, err)
	require.Equal(t, domain.SessionUnknown, s.State)
	listed, err := h.Executor.List(t.Context())
	require.Error(t, err)
	require.Nil(t, listed)
	require.Error(t, h.Executor.Stop(t.Context(), l.Run))
	err = h.Executor.Start(t.Context(), other)
	require.Error(t, err)
	require.NotErrorIs(t, err, domain.ErrExists)
	mend()
	require.Equal(t, domain.SessionAlive, state(t, h, l.Run))
	require.NoError(t, h.Executor.Start(t.Context(), other), "what was not started can be")
	require.NoError(t, h.Executor.Stop(t.Context(), l.Run))
	require.NoError(t, h.Executor.Stop(t.Context(), other.Run))
}

// Names that begin with one another belong to different runs.
func neighbours(t *testing.T, h Harness) {
	one, ten := h.Prepare(t, 1), h.Prepare(t, 10)
	require.NoError(t, h.Executor.Start(t.Context(), one))
	require.NoError(t, h.Executor.Start(t.Context(), ten))
	require.NoError(t, h.Executor.Stop(t.Context(), one.Run))
	require.Equal(t, domain.SessionGone, state(t, h, one.Run))
	require.Equal(t, domain.SessionAlive, state(t, h, ten.Run))
	require.NoError(t, h.Executor.Stop(t.Context(), ten.Run))
}

func watch(t *testing.T, h Harness) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	seen := map[string]int{}
	ended := make(chan error, 1)
	go func() {
		ended <- h.Executor.Watch(ctx, func(run string) {
			mu.Lock()
			defer mu.Unlock()
			seen[run]++
		})
	}()
	count := func(run string) int {
		mu.Lock()
		defer mu.Unlock()
		return seen[run]
	}
	// A watch counts from a moment after its call, so the first session may come before it.
	number := 0
	var l domain.Launch
	eventually(t, "the watch to have begun", func() bool {
		number++
		l = h.Prepare(t, number)
		require.NoError(t, h.Executor.Start(t.Context(), l))
		for range 20 {
			if count(l.Run) > 0 {
				return true
			}
			time.Sleep(10 * time.Millisecond)
		}
		return false
	})
	before := count(l.Run)
	h.End(t, l.Run, 0)
	eventually(t, "word of the end", func() bool { return count(l.Run) > before })
	gone(t, h, l.Run)
	cancel()
	require.Error(t, <-ended)
}

func wrongFolder(t *testing.T, h Harness) {
	l, other := h.Prepare(t, 1), h.Prepare(t, 2)
	l.Folder = other.Folder
	err := h.Executor.Start(t.Context(), l)
	require.ErrorIs(t, err, domain.ErrInvalid)
	l.Folder += "-not-there"
	err = h.Executor.Start(t.Context(), l)
	require.ErrorIs(t, err, domain.ErrNotFound)
	require.False(t, errors.Is(err, domain.ErrExists))
}
