package remote_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"gaia/domain"
	"gaia/internal/hubtest"
	"gaia/remote"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ptr[T any](v T) *T { return &v }

func TestPeopleCalls(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, hubtest.Options{})
	ctx, c := t.Context(), h.Client(t, "anna")

	u, err := c.PutUser(ctx, domain.User{ID: "bo", Name: "Bo"})
	require.NoError(t, err)
	require.Equal(t, "Bo", u.Name)
	p, err := c.CreateProject(ctx, domain.Project{Key: "SHOP", Slug: "shop", Members: []string{"bo"}, Repos: []string{"git@x:y"}})
	require.NoError(t, err)
	require.Equal(t, []string{"bo"}, p.Members)
	p, err = c.PatchProject(ctx, p.ID, domain.ProjectPatch{Name: ptr("The shop"), Settings: &domain.ProjectSettings{ClusterCap: 4, Agent: "script"}})
	require.NoError(t, err)
	require.Equal(t, 4, p.Settings.ClusterCap)
	byKey, err := c.ProjectByKey(ctx, "SHOP")
	require.NoError(t, err)
	require.Equal(t, p, byKey)

	first, err := c.CreateTicket(ctx, domain.TicketDraft{Project: p.ID, Title: "Cart", Labels: []string{"UI", "cart"}, Priority: ptr(2.0)})
	require.NoError(t, err)
	require.Equal(t, "SHOP-1", first.Identifier)
	require.Equal(t, []string{"cart", "ui"}, first.Labels)
	second, err := c.CreateTicket(ctx, domain.TicketDraft{
		Project: p.ID, Title: "Part", Parent: domain.Ref(first.ID), BlockedBy: []string{first.ID}, Workflow: domain.Chore,
		Links: []domain.Link{{URI: "https://x", Title: "X", Kind: "reference"}}, NotBefore: domain.At(time.Now().Add(time.Hour)),
	})
	require.NoError(t, err)
	got, err := c.Ticket(ctx, "SHOP-2")
	require.NoError(t, err)
	require.Equal(t, second, got)

	patched, err := c.PatchTicket(ctx, "SHOP-2", domain.TicketPatch{
		Assignee: ptr(domain.Ref("bo")), Priority: ptr(ptr(1.0)), BlockedBy: &[]string{}, NotBefore: &domain.Time{},
		AddLinks: []domain.Link{{URI: "https://y"}}, Labels: &[]string{"late"},
	})
	require.NoError(t, err)
	require.Equal(t, domain.Ref("bo"), patched.Assignee)
	require.Equal(t, 1.0, *patched.Priority)
	require.Empty(t, patched.BlockedBy)
	require.True(t, patched.NotBefore.IsZero())
	require.Len(t, patched.Links, 2)
	require.Equal(t, first.ID, string(patched.Parent), "what a patch does not name stays")

	patched, err = c.PatchTicket(ctx, second.ID, domain.TicketPatch{Assignee: ptr(domain.Ref("")), Priority: ptr((*float64)(nil)), Parent: ptr(domain.Ref(""))})
	require.NoError(t, err)
	require.Empty(t, patched.Assignee)
	require.Nil(t, patched.Priority)
	require.Empty(t, patched.Parent)

	m, err := c.AddComment(ctx, domain.Comment{Ticket: "SHOP-1", Type: "spec", Body: "Two <b> lines\nof text"})
	require.NoError(t, err)
	require.Equal(t, "anna", m.Author)
	all, err := c.Comments(ctx, "SHOP-1")
	require.NoError(t, err)
	require.Equal(t, []domain.Comment{m}, all)

	held, err := c.Hold(ctx, "SHOP-1", "wait for Bo")
	require.NoError(t, err)
	require.Equal(t, "wait for Bo", held.Hold.Note)
	snap, err := c.Snapshot(ctx, "SHOP")
	require.NoError(t, err)
	require.Len(t, snap.Held, 1)
	_, err = c.Resume(ctx, "SHOP-1")
	require.NoError(t, err)
	_, err = c.ClearTree(ctx, "SHOP-1")
	require.NoError(t, err)
	repaired, err := c.Repair(ctx, "SHOP-2", "review", "imported half done")
	require.NoError(t, err)
	require.Equal(t, "review", repaired.State)

	ls, err := c.Labels(ctx)
	require.NoError(t, err)
	require.Len(t, ls, 3)
	us, err := c.Users(ctx)
	require.NoError(t, err)
	require.Len(t, us, 2)
	ws, err := c.Workflows(ctx)
	require.NoError(t, err)
	require.Equal(t, domain.Workflows(), ws)
	live, ready := c.Health(ctx)
	require.NoError(t, live)
	require.NoError(t, ready)
	seq, hash, err := c.Head(ctx)
	require.NoError(t, err)
	require.Positive(t, seq)
	require.Len(t, hash, 64)
}

// A run's whole life, over the wire: every call of domain.Remote and of an agent.
func TestRunLife(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, hubtest.Options{})
	ctx := t.Context()
	owner := h.Client(t, "anna")
	p := h.Project(t, "SHOP")
	con, reg := h.Conductor(t, p, "shop")
	_, err := owner.CreateTicket(ctx, domain.TicketDraft{Project: p.ID, Title: "Cart", Workflow: domain.Task})
	require.NoError(t, err)

	a, agent := h.Claim(t, con)
	require.NotNil(t, a)
	require.Equal(t, "SHOP-1", a.Ticket.Identifier)
	none, _ := h.Claim(t, con)
	require.Nil(t, none, "there was one ticket only")
	again, err := con.Assignment(ctx, a.Run.ID)
	require.NoError(t, err)
	require.Equal(t, a.Run, again.Run)

	fate, err := con.Start(ctx, a.Run.ID, domain.StartReport{WorktreePath: "/srv/trees/SHOP-1", Branch: "gaia/SHOP-1", BaseSHA: "abc", Unit: "u", Agent: "script", Permissions: "edits", Log: "/l"})
	require.NoError(t, err)
	require.Equal(t, domain.RunRunning, fate.State)
	pulse, err := con.Heartbeat(ctx, domain.Beat{CurrentLoad: 1, Runs: []domain.RunBeat{{
		Run: a.Run.ID, Activity: &domain.Activity{Status: domain.ActivityWorking, Since: domain.At(time.Now())}, Footprint: &domain.Footprint{TokensIn: 7, Cost: 0.5},
	}}})
	require.NoError(t, err)
	require.Len(t, pulse.Fates, 1)
	require.Positive(t, pulse.LeaseTTL)

	_, err = agent.AddComment(ctx, domain.Comment{Ticket: "SHOP-1", Body: "done soon"})
	require.NoError(t, err)
	_, err = agent.CreateTicket(ctx, domain.TicketDraft{Title: "Sub", Parent: domain.Ref(a.Ticket.ID)})
	require.NoError(t, err)
	_, err = agent.PatchRunFootprint(ctx, a.Run.ID, domain.Footprint{TokensIn: 9, Model: "m"})
	require.NoError(t, err)
	moved, err := agent.PatchTicket(ctx, "SHOP-1", domain.TicketPatch{State: ptr("working"), Head: ptr("def")})
	require.NoError(t, err)
	require.Equal(t, "working", moved.State)
	_, err = agent.PatchTicket(ctx, "SHOP-1", domain.TicketPatch{Title: ptr("late")})
	require.ErrorIs(t, err, domain.ErrStaleRun)
	_, err = agent.Ticket(ctx, "SHOP-1")
	require.ErrorIs(t, err, domain.ErrStaleRun)

	unfinished, err := con.Runs(ctx)
	require.NoError(t, err)
	require.Len(t, unfinished, 1)
	fate, err = con.Fail(ctx, a.Run.ID, domain.Failure{Reason: domain.ReasonAgentExit, Note: "late"})
	require.NoError(t, err)
	require.Equal(t, domain.RunDone, fate.State, "an ended run keeps its fate")
	require.NoError(t, con.Finalise(ctx, a.Run.ID, domain.FinaliseReport{EndSHA: "def", Footprint: &domain.Footprint{TokensIn: 10}}))
	unfinished, err = con.Runs(ctx)
	require.NoError(t, err)
	require.Empty(t, unfinished)

	b, _ := h.Claim(t, con)
	require.NotNil(t, b)
	stopped, err := owner.StopRun(ctx, b.Run.ID, true, "not now")
	require.NoError(t, err)
	require.Equal(t, domain.ReasonStopped, stopped.EndReason)
	byNumber, err := owner.Run(ctx, fmt.Sprintf("SHOP/%d", b.Run.Number))
	require.NoError(t, err)
	require.Equal(t, b.Run.ID, byNumber.ID)
	runs, err := owner.RunList(ctx, remote.Query{Filter: map[string][]string{"ticket": {a.Ticket.ID}}, Sort: []string{"-number"}})
	require.NoError(t, err)
	require.NotEmpty(t, runs)

	drained, err := owner.Drain(ctx, reg.MachineID, true)
	require.NoError(t, err)
	require.True(t, drained.Draining)
	why, err := owner.Why(ctx, "SHOP-1")
	require.NoError(t, err)
	require.Len(t, why.Conductors, 1)
	require.False(t, why.Conductors[0].Eligible)
	_, err = owner.Drain(ctx, reg.ID, false)
	require.NoError(t, err)
	require.NoError(t, con.Parting(ctx))
	cons, err := owner.Conductors(ctx, remote.Query{Filter: map[string][]string{"project": {p.ID}}})
	require.NoError(t, err)
	require.Len(t, cons, 1)
	got, err := owner.Conductor(ctx, reg.MachineID)
	require.NoError(t, err)
	require.Equal(t, "anna", got.Owner)

	// A newer process takes over.
	_, err = h.Client(t, "", func(o *remote.Options) { o.TokenFile, _ = hubtest.Token(t) }).
		Register(ctx, domain.Registration{MachineID: reg.MachineID, Epoch: "newer", Project: "SHOP", MaxParallel: 1})
	require.NoError(t, err, "the owner's socket may replace a conductor's token")
	_, err = con.Heartbeat(ctx, domain.Beat{})
	require.ErrorIs(t, err, domain.ErrUnauthenticated, "the old token is gone")
}

func TestSuperseded(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, hubtest.Options{})
	p := h.Project(t, "SHOP")
	file, _ := hubtest.Token(t)
	epoch := func(e string) *remote.Client {
		c := h.Client(t, "", func(o *remote.Options) { o.TokenFile, o.MachineID, o.Epoch = file, "anna.box.shop", e })
		_, err := c.Register(t.Context(), domain.Registration{MachineID: "anna.box.shop", Epoch: e, Project: p.Key, MaxParallel: 1})
		require.NoError(t, err)
		return c
	}
	older := epoch("one")
	newer := epoch("two")
	_, err := older.Heartbeat(t.Context(), domain.Beat{})
	require.ErrorIs(t, err, domain.ErrSuperseded)
	_, err = newer.Heartbeat(t.Context(), domain.Beat{})
	require.NoError(t, err)
}

func TestEveryPageIsRead(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, hubtest.Options{})
	c, p := h.Client(t, "anna"), h.Project(t, "SHOP")
	for i := range 120 {
		_, err := c.CreateTicket(t.Context(), domain.TicketDraft{Project: p.ID, Title: fmt.Sprint("t", i)})
		require.NoError(t, err)
	}
	all, err := c.Tickets(t.Context(), remote.Query{Sort: []string{"created_at"}})
	require.NoError(t, err)
	require.Len(t, all, 120)
	ids := map[string]bool{}
	for _, k := range all {
		ids[k.ID] = true
	}
	require.Len(t, ids, 120)
	some, err := c.Tickets(t.Context(), remote.Query{Limit: 70})
	require.NoError(t, err)
	require.Len(t, some, 70)
	two, err := c.Tickets(t.Context(), remote.Query{Filter: map[string][]string{"identifier": {"SHOP-3", "SHOP-50"}}, Sort: []string{"-identifier"}})
	require.NoError(t, err)
	require.Len(t, two, 2)
	require.Equal(t, "SHOP-50", two[0].Identifier)
	unset, err := c.Tickets(t.Context(), remote.Query{Filter: map[string][]string{"assignee": {""}, "project": {p.ID}}, Limit: 1})
	require.NoError(t, err)
	require.Len(t, unset, 1)
}

// Imported identifiers may be any text; each must be found by a caller who only has the identifier.
func TestOddIdentifiers(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, hubtest.Options{})
	c, p := h.Client(t, "anna"), h.Project(t, "SHOP")
	for _, id := range []string{"INT:8.1/x", "..", ".", "a/../b", "ünï köd", "50%25", "q?x=1&y#z", "[a]", `"'`, "group/project#12", "a,b", "+"} {
		t.Run(id, func(t *testing.T) {
			k, err := c.CreateTicket(t.Context(), domain.TicketDraft{Project: p.ID, Identifier: id, Title: "t"})
			require.NoError(t, err)
			got, err := c.Ticket(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, k.ID, got.ID)
			_, err = c.PatchTicket(t.Context(), id, domain.TicketPatch{Title: ptr("u")})
			require.NoError(t, err)
			_, err = c.AddComment(t.Context(), domain.Comment{Ticket: id, Body: "x"})
			require.NoError(t, err)
			ms, err := c.Comments(t.Context(), id)
			require.NoError(t, err)
			require.Len(t, ms, 1)
			w, err := c.Why(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, k.ID, w.Ticket.ID)
			_, err = c.Hold(t.Context(), id, "")
			require.NoError(t, err)
		})
	}
	_, err := c.Ticket(t.Context(), "no/where")
	require.ErrorIs(t, err, domain.ErrNotFound)
}

func TestErrorsBecomeDomainErrors(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, hubtest.Options{})
	ctx, c, p := t.Context(), h.Client(t, "anna"), h.Project(t, "SHOP")
	k, err := c.CreateTicket(ctx, domain.TicketDraft{Project: p.ID, Title: "t", Workflow: domain.Task, Identifier: "X-1"})
	require.NoError(t, err)

	_, err = c.PatchTicket(ctx, k.ID, domain.TicketPatch{State: ptr("done")})
	var te *domain.TransitionError
	require.ErrorAs(t, err, &te)
	require.Equal(t, domain.TransitionError{Workflow: domain.Task, From: "todo", To: "done", Open: []string{"working", "human_input", "cancelled"}}, *te)

	field := func(err error) string {
		var fe *domain.FieldError
		require.ErrorAs(t, err, &fe)
		require.ErrorIs(t, err, domain.ErrInvalid)
		return fe.Field
	}
	_, err = c.CreateTicket(ctx, domain.TicketDraft{Project: p.ID, Title: " "})
	require.Equal(t, "title", field(err))
	require.EqualError(t, err, "title: a title must not be blank")
	_, err = c.CreateTicket(ctx, domain.TicketDraft{Project: "nope", Title: "t"})
	require.Equal(t, "project", field(err))
	_, err = c.PatchTicket(ctx, k.ID, domain.TicketPatch{Parent: ptr(domain.Ref("nope"))})
	require.Equal(t, "parent", field(err))
	_, err = c.AddComment(ctx, domain.Comment{Ticket: k.ID, Body: " "})
	require.Equal(t, "body", field(err))
	_, err = c.Tickets(ctx, remote.Query{Filter: map[string][]string{"nope": {"1"}}})
	require.ErrorIs(t, err, domain.ErrInvalid)
	_, err = c.CreateTicket(ctx, domain.TicketDraft{Project: p.ID, Title: "t", Identifier: "X-1"})
	require.ErrorIs(t, err, domain.ErrConflict)
	_, err = c.Ticket(ctx, "SHOP-99")
	require.ErrorIs(t, err, domain.ErrNotFound)
	_, err = c.Claim(ctx, domain.ClaimRequest{})
	require.ErrorIs(t, err, domain.ErrInvalid)
	_, err = c.Heartbeat(ctx, domain.Beat{})
	require.ErrorIs(t, err, domain.ErrForbidden)
	stranger := h.Client(t, "anna", func(o *remote.Options) { o.Hub = h.TCP })
	_, err = stranger.Tickets(ctx, remote.Query{})
	require.ErrorIs(t, err, domain.ErrUnauthenticated)
	_, err = h.Client(t, "").CreateTicket(ctx, domain.TicketDraft{Project: p.ID, Title: "t"})
	require.ErrorIs(t, err, domain.ErrInvalid, "an owner who writes must say as whom")
}

// lose lets the hub do its work and loses the first n answers.
func lose(n int32, seen *atomic.Int32, also func(*http.Request)) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if also != nil {
				also(r)
			}
			if seen.Add(1) > n {
				next.ServeHTTP(w, r)
				return
			}
			next.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		})
	}
}

func TestLostAnswersDoNothingTwice(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, hubtest.Options{})
	ctx, owner, p := t.Context(), h.Client(t, "anna"), h.Project(t, "SHOP")
	con, _ := h.Conductor(t, p, "shop")

	var seen atomic.Int32
	var keys []string
	h.Wrap(lose(2, &seen, func(r *http.Request) { keys = append(keys, r.Header.Get("Idempotency-Key")) }))
	k, err := owner.CreateTicket(ctx, domain.TicketDraft{Project: p.ID, Title: "once", Workflow: domain.Task})
	require.NoError(t, err)
	require.Equal(t, int32(3), seen.Load())
	require.Len(t, slices.Compact(keys), 1, "the key stays the same over the attempts")
	require.NotEmpty(t, keys[0])
	h.Wrap(nil)
	all, err := owner.Tickets(ctx, remote.Query{})
	require.NoError(t, err)
	require.Len(t, all, 1)

	seen.Store(0)
	h.Wrap(lose(1, &seen, nil))
	_, err = owner.AddComment(ctx, domain.Comment{Ticket: k.ID, Body: "once"})
	require.NoError(t, err)
	h.Wrap(nil)
	ms, err := owner.Comments(ctx, k.ID)
	require.NoError(t, err)
	require.Len(t, ms, 1)

	seen.Store(0)
	h.Wrap(lose(1, &seen, nil))
	a, agent := h.Claim(t, con)
	require.NotNil(t, a)
	h.Wrap(nil)
	runs, err := owner.RunList(ctx, remote.Query{})
	require.NoError(t, err)
	require.Len(t, runs, 1)

	// The run's last write ends its own right to write; the repeat of it gets the first answer all the same.
	seen.Store(0)
	h.Wrap(lose(1, &seen, nil))
	moved, err := agent.PatchTicket(ctx, k.ID, domain.TicketPatch{State: ptr("working")})
	require.NoError(t, err)
	require.Equal(t, "working", moved.State)
	h.Wrap(nil)
	r, err := owner.Run(ctx, a.Run.ID)
	require.NoError(t, err)
	require.Equal(t, domain.RunDone, r.State)
}

func TestPatience(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, hubtest.Options{})
	p := h.Project(t, "SHOP")
	status := func(fails int32, status int, header string, seen *atomic.Int32) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if seen.Add(1) > fails {
					next.ServeHTTP(w, r)
					return
				}
				if header != "" {
					w.Header().Set("Retry-After", header)
				}
				w.Header().Set("Content-Type", "application/vnd.api+json")
				w.WriteHeader(status)
				fmt.Fprintf(w, `{"errors":[{"status":"%d","code":"storage_unavailable","title":"t","detail":"the disk is full"}]}`, status)
			})
		}
	}
	create := func(c *remote.Client, ctx context.Context) error {
		_, err := c.CreateTicket(ctx, domain.TicketDraft{Project: p.ID, Title: "t"})
		return err
	}
	var seen atomic.Int32
	h.Wrap(status(3, 503, "", &seen))
	require.NoError(t, create(h.Client(t, "anna"), t.Context()))
	require.Equal(t, int32(4), seen.Load())

	seen.Store(0)
	h.Wrap(status(1, 503, "1", &seen))
	start := time.Now()
	require.NoError(t, create(h.Client(t, "anna"), t.Context()))
	require.GreaterOrEqual(t, time.Since(start), time.Second, "Retry-After is honoured")

	seen.Store(0)
	h.Wrap(status(1<<30, 503, "", &seen))
	start = time.Now()
	err := create(h.Client(t, "anna", func(o *remote.Options) { o.Patience = 300 * time.Millisecond }), t.Context())
	require.ErrorIs(t, err, domain.ErrStorage)
	require.ErrorContains(t, err, "the disk is full")
	require.Less(t, time.Since(start), 30*time.Second)
	require.Greater(t, seen.Load(), int32(1))

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start = time.Now()
	err = create(h.Client(t, "anna", func(o *remote.Options) { o.Patience = time.Hour }), ctx)
	require.ErrorIs(t, err, domain.ErrUnreachable)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(start), 30*time.Second)

	h = hubtest.New(t, hubtest.Options{}) // at the other the request that was given up above may still arrive
	var mistakes atomic.Int32
	h.Wrap(status(1<<30, 500, "", &mistakes))
	require.Error(t, create(h.Client(t, "anna"), t.Context()))
	require.Equal(t, int32(1), mistakes.Load(), "a mistake of the hub is an answer")
}

func TestAbsentHub(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "g")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	c, err := remote.New(remote.Options{Hub: "unix://" + dir + "/gaiatest/hub.sock", User: "anna", Patience: 200 * time.Millisecond})
	require.NoError(t, err)
	_, err = c.CreateTicket(t.Context(), domain.TicketDraft{Title: "t"})
	require.ErrorIs(t, err, domain.ErrUnreachable)
	require.ErrorContains(t, err, "systemctl --user restart gaiatest-hub.socket")
	live, ready := c.Health(t.Context())
	require.ErrorIs(t, live, domain.ErrUnreachable)
	require.ErrorIs(t, ready, domain.ErrUnreachable)
	require.ErrorIs(t, c.Follow(t.Context(), 0, nil), domain.ErrUnreachable)

	// A write that waits for the hub goes through as soon as it is there.
	h := hubtest.New(t, hubtest.Options{})
	p := h.Project(t, "SHOP")
	link := filepath.Join(dir, "late.sock")
	late, err := remote.New(remote.Options{Hub: "unix://" + link, User: "anna", Patience: time.Minute})
	require.NoError(t, err)
	t.Cleanup(late.Close)
	done := make(chan error, 1)
	go func() {
		_, err := late.CreateTicket(t.Context(), domain.TicketDraft{Project: p.ID, Title: "t"})
		done <- err
	}()
	require.NoError(t, os.Symlink(h.Socket, link))
	require.NoError(t, <-done)
}

func TestHubAddress(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "hub.sock", "unix://rel/hub.sock", "unix:/x?y=1", "ftp://x", "http://", "http://user:pw@x", "http://x?y", "://", "https://x#f"} {
		_, err := remote.New(remote.Options{Hub: bad})
		require.ErrorContains(t, err, "must be unix:///", bad)
	}
	for _, good := range []string{"unix:///run/user/1000/gaia/hub.sock", "http://127.0.0.1:7420", "https://hub.example.org/gaia/"} {
		_, err := remote.New(remote.Options{Hub: good})
		require.NoError(t, err, good)
	}
}

func TestNoHubThere(t *testing.T) {
	t.Parallel()
	var leaked atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { leaked.Store(true) }))
	defer elsewhere.Close()
	for name, fn := range map[string]http.HandlerFunc{
		"html":     func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>hello</html>") },
		"not json": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) },
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		},
	} {
		srv := httptest.NewServer(fn)
		c, err := remote.New(remote.Options{Hub: srv.URL})
		require.NoError(t, err)
		_, err = c.Tickets(t.Context(), remote.Query{})
		require.ErrorContains(t, err, "is no hub", name)
		_, err = c.CreateTicket(t.Context(), domain.TicketDraft{Title: "t"})
		require.ErrorContains(t, err, "is no hub", name)
		c.Close()
		srv.Close()
	}
	require.False(t, leaked.Load(), "a redirect was followed")
}

func TestTokenIsReadForEachCall(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, hubtest.Options{})
	p := h.Project(t, "SHOP")
	file, _ := hubtest.Token(t)
	c := h.Client(t, "", func(o *remote.Options) { o.TokenFile, o.MachineID, o.Epoch = file, "anna.box.shop", "e" })
	_, err := c.Register(t.Context(), domain.Registration{MachineID: "anna.box.shop", Epoch: "e", Project: p.Key, MaxParallel: 1})
	require.NoError(t, err)
	good, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte("wrong"), 0o600))
	_, err = c.Heartbeat(t.Context(), domain.Beat{})
	require.ErrorIs(t, err, domain.ErrUnauthenticated)
	require.NoError(t, os.WriteFile(file, good, 0o600))
	_, err = c.Heartbeat(t.Context(), domain.Beat{})
	require.NoError(t, err)
	for _, bad := range []string{"", " \n", "two words", "a\x00b"} {
		require.NoError(t, os.WriteFile(file, []byte(bad), 0o600))
		_, err = c.Heartbeat(t.Context(), domain.Beat{})
		require.ErrorIs(t, err, domain.ErrUnauthenticated)
		require.ErrorContains(t, err, file)
	}
	require.NoError(t, os.Remove(file))
	_, err = c.Heartbeat(t.Context(), domain.Beat{})
	require.ErrorIs(t, err, domain.ErrUnauthenticated)
	require.ErrorContains(t, err, file)
}

func TestFollow(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, hubtest.Options{Heartbeat: 20 * time.Millisecond})
	owner, p := h.Client(t, "anna"), h.Project(t, "SHOP")
	h.Project(t, "OTHER")
	con, _ := h.Conductor(t, p, "shop")

	follow := func(c *remote.Client, after int64, until func(domain.Event) bool) []domain.Event {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var got []domain.Event
		stands := false
		err := c.Follow(ctx, after, func(e domain.Event) {
			if !stands {
				require.Zero(t, e)
				stands = true
				return
			}
			got = append(got, e)
			if until(e) {
				cancel()
			}
		})
		require.ErrorIs(t, err, context.Canceled)
		return got
	}
	seq, _, err := owner.Head(t.Context())
	require.NoError(t, err)
	all := follow(owner, 0, func(e domain.Event) bool { return e.Seq == seq })
	require.Len(t, all, int(seq))
	for i, e := range all {
		require.Equal(t, int64(i+1), e.Seq)
	}
	rest := follow(owner, 2, func(e domain.Event) bool { return e.Seq == seq })
	require.Equal(t, all[2:], rest)

	// A conductor sees its own project only, and what happens while it listens.
	started := make(chan struct{})
	h.Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/gaia/v1/events" {
				w = &flushed{ResponseWriter: w, first: started}
			}
			next.ServeHTTP(w, r)
		})
	})
	wrote := make(chan error, 1)
	go func() {
		<-started
		_, err := owner.CreateProject(t.Context(), domain.Project{Key: "HIDDEN", Slug: "hidden"})
		if err == nil {
			_, err = owner.CreateTicket(t.Context(), domain.TicketDraft{Project: p.ID, Title: "seen"})
		}
		wrote <- err
	}()
	seen := follow(con, remote.FromNow, func(e domain.Event) bool { return e.Kind == "ticket.created" })
	require.NoError(t, <-wrote)
	require.Len(t, seen, 1)
	require.Equal(t, p.ID, seen[0].Project)
}

// flushed says when the first bytes of a stream went out.
type flushed struct {
	http.ResponseWriter
	first chan struct{}
}

func (f *flushed) FlushError() error {
	if f.first != nil {
		close(f.first)
		f.first = nil
	}
	return http.NewResponseController(f.ResponseWriter).Flush()
}
func (f *flushed) Flush()                      { _ = f.FlushError() }
func (f *flushed) Unwrap() http.ResponseWriter { return f.ResponseWriter }

func TestFollowEndsWithTheHub(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, hubtest.Options{})
	h.Project(t, "SHOP")
	err := h.Client(t, "anna").Follow(t.Context(), 0, func(domain.Event) { h.API.Close() })
	require.ErrorIs(t, err, domain.ErrUnreachable)
	require.False(t, errors.Is(err, context.Canceled))
	gone := h.Client(t, "anna", func(o *remote.Options) { o.Hub = h.TCP })
	require.ErrorIs(t, gone.Follow(t.Context(), 0, nil), domain.ErrUnauthenticated)
}
