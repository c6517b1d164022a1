// Package storetest is what every implementation of store.Store must pass. It asserts what the hub relies on and
// nothing about a particular database: durability across a kill is a test of the hub, a full disk one of the
// implementation.
package storetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gaia/domain"
	"gaia/hub/events"
	"gaia/hub/store"
)

// Run runs the suite. open returns a store that is empty, and closes it at the end of the test.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	for _, c := range []struct {
		name string
		test func(*testing.T, store.Store)
	}{
		{"Objects", testObjects},
		{"Replace", testReplace},
		{"NotFound", testNotFound},
		{"Unique", testUnique},
		{"References", testReferences},
		{"Numbers", testNumbers},
		{"Rollback", testRollback},
		{"View", testView},
		{"Snapshot", testSnapshot},
		{"Serialised", testSerialised},
		{"Queries", testQueries},
		{"QueryInput", testQueryInput},
		{"Runs", testRuns},
		{"Used", testUsed},
		{"Labels", testLabels},
		{"Sums", testSums},
		{"Parked", testParked},
		{"Blocked", testBlocked},
		{"Tokens", testTokens},
		{"Answers", testAnswers},
		{"Events", testEvents},
		{"EventsConcurrent", testEventsConcurrent},
		{"EventInput", testEventInput},
		{"OneLiveRun", testOneLiveRun},
		{"ClaimOrder", testClaimOrder},
		{"ClaimPages", testClaimPages},
		{"ClaimStops", testClaimStops},
		{"Tidy", testTidy},
		{"Closed", testClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t, open(t))
		})
	}
}

// Noon is the time at which the suite's objects are made.
var Noon = domain.At(time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC))

func later(d time.Duration) domain.Time { return domain.At(Noon.Add(d)) }

// id returns a new id.
func id() string { return uuid.Must(uuid.NewV7()).String() }

// update and view run fn and fail the test on any error.
func update(t require.TestingT, s store.Store, fn func(store.Tx) error) {
	require.NoError(t, s.Update(context.Background(), fn))
}

func view(t require.TestingT, s store.Store, fn func(store.Tx) error) {
	require.NoError(t, s.View(context.Background(), fn))
}

// world is a project with a conductor.
type world struct {
	project   domain.Project
	conductor domain.Conductor
	runs      int
}

var worlds atomic.Int64

func newWorld(t require.TestingT, s store.Store) *world {
	n := worlds.Add(1)
	w := &world{
		project:   domain.Project{ID: id(), Key: fmt.Sprintf("P%d", n), Name: "Shop", Slug: "shop", CreatedAt: Noon},
		conductor: domain.Conductor{ID: id(), MachineID: fmt.Sprintf("ada.lab.shop-%d", n), Owner: "ada", CreatedAt: Noon},
	}
	w.conductor.Project = w.project.ID
	update(t, s, func(tx store.Tx) error {
		return errors.Join(tx.PutProject(w.project), tx.PutConductor(w.conductor))
	})
	return w
}

func (w *world) ticket(n int) domain.Ticket {
	return domain.Ticket{
		ID: id(), Identifier: fmt.Sprintf("%s-%d", w.project.Key, n), Project: w.project.ID, Workflow: domain.Feature,
		Title: "Sell more", State: "coding", CreatedAt: later(time.Duration(n) * time.Second), UpdatedAt: Noon,
	}
}

// asks is the world's conductor that asks for tickets in these states.
func (w *world) asks(states ...string) store.Claimer {
	return store.Claimer{Project: w.project.ID, States: states, Conductor: w.conductor.ID, Owner: w.conductor.Owner}
}

func (w *world) run(ticket domain.Ticket, state domain.RunState) domain.Run {
	w.runs++
	r := domain.Run{
		ID: id(), Number: w.runs, Project: w.project.ID, Ticket: ticket.ID, Conductor: w.conductor.ID,
		Mode: domain.ModeAgent, State: state, Attempt: 1, ClaimedAt: later(time.Duration(w.runs) * time.Minute), StateAtStart: ticket.State,
	}
	if state.Ended() {
		r.EndedAt = later(time.Duration(w.runs)*time.Minute + time.Second)
	}
	return r
}

func event(object string) domain.Event {
	return domain.Event{Time: Noon, Kind: "ticket.moved", Actor: "user/ada", Type: "ticket", Object: object, Data: []byte(`{"n":1}`)}
}

// fill sets every field of a struct to something that is not its zero value, so that a lost field shows.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Interface().(type) {
	case domain.Time:
		v.Set(reflect.ValueOf(later(time.Duration(*n) * time.Millisecond)))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("wért %d <&>\u2028'\"\n", *n))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Float64:
		v.SetFloat(float64(*n) + 0.1)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.Map:
		val := reflect.New(v.Type().Elem()).Elem()
		fill(val, n)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("k"), val)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	default:
		panic("storetest cannot fill a " + v.Type().String())
	}
}

func filled[T any]() T {
	var v T
	n := 0
	fill(reflect.ValueOf(&v).Elem(), &n)
	return v
}

// testObjects: what is put comes back, whole, by every way to look it up.
func testObjects(t *testing.T, s store.Store) {
	user, project := filled[domain.User](), filled[domain.Project]()
	conductor, ticket := filled[domain.Conductor](), filled[domain.Ticket]()
	run, comment := filled[domain.Run](), filled[domain.Comment]()
	blocker := domain.Ticket{ID: id(), Identifier: "B-1", Project: project.ID}
	conductor.Project, ticket.Project, ticket.BlockedBy = project.ID, project.ID, []string{blocker.ID}
	run.Project, run.Ticket, run.Conductor, run.State = project.ID, ticket.ID, conductor.ID, domain.RunRunning
	comment.Ticket = ticket.ID

	check := func(tx store.Tx) error {
		same(t, user)(tx.User(user.ID))
		same(t, []domain.User{user})(tx.Users())
		same(t, project)(tx.Project(project.ID))
		same(t, project)(tx.ProjectByKey(project.Key))
		same(t, conductor)(tx.Conductor(conductor.ID))
		same(t, conductor)(tx.ConductorByMachineID(conductor.MachineID))
		same(t, ticket)(tx.Ticket(ticket.ID))
		same(t, ticket)(tx.TicketByIdentifier(ticket.Identifier))
		same(t, run)(tx.Run(run.ID))
		same(t, run)(tx.LiveRun(ticket.ID))
		same(t, comment)(tx.Comment(comment.ID))
		page(t, []domain.Project{project}, 1)(tx.Projects(store.Query{}))
		page(t, []domain.Conductor{conductor}, 1)(tx.Conductors(store.Query{}))
		page(t, []domain.Ticket{blocker, ticket}, 2)(tx.Tickets(store.Query{Sort: []store.Sort{{Field: "identifier"}}}))
		page(t, []domain.Run{run}, 1)(tx.Runs(store.Query{}))
		page(t, []domain.Comment{comment}, 1)(tx.Comments(store.Query{}))
		return nil
	}
	update(t, s, func(tx store.Tx) error {
		require.NoError(t, tx.PutUser(user))
		require.NoError(t, tx.PutProject(project))
		require.NoError(t, tx.PutConductor(conductor))
		require.NoError(t, tx.PutTicket(blocker))
		require.NoError(t, tx.PutTicket(ticket))
		require.NoError(t, tx.PutRun(run))
		require.NoError(t, tx.PutComment(comment))
		return check(tx) // a transaction sees its own writes
	})
	view(t, s, check)
}

// same and page return functions that take a lookup's results as they are.
func same[T any](t require.TestingT, want T) func(T, error) {
	return func(got T, err error) {
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func page[T any](t require.TestingT, want []T, total int) func([]T, int, error) {
	return func(got []T, n int, err error) {
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, total, n)
	}
}

// testReplace: a second put replaces the whole object, its lists too.
func testReplace(t *testing.T, s store.Store) {
	w := newWorld(t, s)
	a, b, c := w.ticket(1), w.ticket(2), w.ticket(3)
	c.Labels, c.BlockedBy = []string{"x", "y"}, []string{a.ID}
	c.Hold, c.RetryAt = &domain.Hold{Reason: domain.ReasonPerson, Since: Noon}, later(time.Hour)
	update(t, s, func(tx store.Tx) error {
		return errors.Join(tx.PutTicket(a), tx.PutTicket(b), tx.PutTicket(c))
	})
	c.Identifier, c.Labels, c.BlockedBy, c.Hold, c.RetryAt = "other", []string{"y", "z"}, []string{b.ID}, nil, domain.Time{}
	update(t, s, func(tx store.Tx) error { return tx.PutTicket(c) })
	by := func(tx store.Tx, field, value string) []string {
		ts, _, err := tx.Tickets(store.Query{Filters: []store.Filter{{Field: field, Values: []string{value}}}})
		require.NoError(t, err)
		return identifiers(ts)
	}
	view(t, s, func(tx store.Tx) error {
		same(t, c)(tx.Ticket(c.ID))
		require.Empty(t, by(tx, "labels", "x"))
		require.Equal(t, []string{"other"}, by(tx, "labels", "y"))
		require.Equal(t, []string{"other"}, by(tx, "labels", "z"))
		require.Empty(t, by(tx, "blocked_by", a.ID))
		require.Equal(t, []string{"other"}, by(tx, "blocked_by", b.ID))
		_, err := tx.TicketByIdentifier(w.project.Key + "-3")
		require.ErrorIs(t, err, domain.ErrNotFound)
		return nil
	})
}

func identifiers(ts []domain.Ticket) []string {
	var out []string
	for _, t := range ts {
		out = append(out, t.Identifier)
	}
	return out
}

// testNotFound: a lookup of nothing says so, and a list of nothing is empty.
func testNotFound(t *testing.T, s store.Store) {
	check := func(tx store.Tx) error {
		for name, err := range map[string]error{
			"User": second(tx.User("x")), "Project": second(tx.Project("x")), "ProjectByKey": second(tx.ProjectByKey("X")),
			"Ticket": second(tx.Ticket("x")), "TicketByIdentifier": second(tx.TicketByIdentifier("x")),
			"Run":     second(tx.Run("x")),
			"LiveRun": second(tx.LiveRun("x")), "LastEndedRun": second(tx.LastEndedRun("x")),
			"Conductor": second(tx.Conductor("x")), "ConductorByMachineID": second(tx.ConductorByMachineID("x")),
			"Comment": second(tx.Comment("x")), "TokenByHash": second(tx.TokenByHash([32]byte{1})),
			"Answer": second(tx.Answer("x", "y", time.Time{})),
		} {
			require.ErrorIs(t, err, domain.ErrNotFound, name)
		}
		page[domain.Ticket](t, nil, 0)(tx.Tickets(store.Query{Limit: 5}))
		same[[]domain.Run](t, nil)(tx.LiveRuns(""))
		same[[]domain.Run](t, nil)(tx.UnfinishedRuns("x"))
		same(t, 0)(tx.CountLive("x"))
		same(t, map[string]int{})(tx.LiveByState("x"))
		same(t, domain.Footprint{})(tx.UsedByTicket("x"))
		same[[]domain.Ticket](t, nil)(tx.Parked("x", []string{"coding"}, []string{"x"}, Noon))
		same[[]domain.Ticket](t, nil)(tx.Blocked("x", []string{"coding"}))
		return nil
	}
	view(t, s, check)
	update(t, s, func(tx store.Tx) error {
		_, err := tx.NextTicketNumber("x")
		require.ErrorIs(t, err, domain.ErrNotFound)
		_, err = tx.NextRunNumber("x")
		require.ErrorIs(t, err, domain.ErrNotFound)
		return check(tx)
	})
}

func second[T any](_ T, err error) error { return err }

// testUnique: a unique value that another row has is a conflict that names it, and the transaction can go on.
func testUnique(t *testing.T, s store.Store) {
	w := newWorld(t, s)
	a, b := w.ticket(1), w.ticket(2)
	a.Origin = "https://forge.example/1"
	live := w.run(a, domain.RunClaimed)
	update(t, s, func(tx store.Tx) error {
		return errors.Join(tx.PutTicket(a), tx.PutTicket(b), tx.PutRun(live))
	})
	other := newWorld(t, s)
	for _, c := range []struct {
		names string
		put   func(store.Tx) error
	}{
		{"key", func(tx store.Tx) error { return tx.PutProject(domain.Project{ID: id(), Key: w.project.Key}) }},
		{"machine_id", func(tx store.Tx) error {
			return tx.PutConductor(domain.Conductor{ID: id(), MachineID: w.conductor.MachineID, Project: w.project.ID})
		}},
		{"identifier", func(tx store.Tx) error { c := w.ticket(3); c.Identifier = a.Identifier; return tx.PutTicket(c) }},
		{"identifier", func(tx store.Tx) error { c := b; c.Identifier = a.Identifier; return tx.PutTicket(c) }},
		{"origin", func(tx store.Tx) error { c := w.ticket(3); c.Origin = a.Origin; return tx.PutTicket(c) }},
		{"number", func(tx store.Tx) error { r := w.run(b, domain.RunDone); r.Number = live.Number; return tx.PutRun(r) }},
		{"live run", func(tx store.Tx) error { return tx.PutRun(w.run(a, domain.RunRunning)) }},
	} {
		update(t, s, func(tx store.Tx) error {
			err := c.put(tx)
			require.ErrorIs(t, err, domain.ErrConflict)
			require.NotErrorIs(t, err, domain.ErrInvalid)
			require.NotErrorIs(t, err, store.ErrUnavailable)
			require.ErrorContains(t, err, c.names)
			return tx.PutUser(domain.User{ID: "after-" + strconv.Itoa(len(c.names))})
		})
	}
	view(t, s, func(tx store.Tx) error {
		same(t, a)(tx.Ticket(a.ID))
		same(t, b)(tx.Ticket(b.ID))
		same(t, live)(tx.LiveRun(a.ID))
		us, err := tx.Users()
		require.NoError(t, err)
		require.NotEmpty(t, us)
		return nil
	})
	// The same values elsewhere are no conflict: an origin is unique per project, and so is a number.
	c := other.ticket(1)
	c.Origin = a.Origin
	update(t, s, func(tx store.Tx) error {
		require.NoError(t, tx.PutTicket(c))
		r := other.run(c, domain.RunClaimed)
		require.Equal(t, live.Number, r.Number)
		return tx.PutRun(r)
	})
}

// testReferences: a row cannot name a project, ticket or conductor that is not there.
func testReferences(t *testing.T, s store.Store) {
	w := newWorld(t, s)
	a := w.ticket(1)
	update(t, s, func(tx store.Tx) error { return tx.PutTicket(a) })
	for _, put := range []func(store.Tx) error{
		func(tx store.Tx) error { b := w.ticket(2); b.Project = id(); return tx.PutTicket(b) },
		func(tx store.Tx) error { b := w.ticket(2); b.BlockedBy = []string{id()}; return tx.PutTicket(b) },
		func(tx store.Tx) error {
			return tx.PutConductor(domain.Conductor{ID: id(), MachineID: "m", Project: id()})
		},
		func(tx store.Tx) error { r := w.run(a, domain.RunClaimed); r.Ticket = id(); return tx.PutRun(r) },
		func(tx store.Tx) error { r := w.run(a, domain.RunClaimed); r.Conductor = id(); return tx.PutRun(r) },
		func(tx store.Tx) error { return tx.PutComment(domain.Comment{ID: id(), Ticket: id()}) },
		func(tx store.Tx) error {
			return tx.PutTicket(domain.Ticket{Identifier: "no id", Project: w.project.ID})
		},
	} {
		err := s.Update(context.Background(), put)
		require.ErrorIs(t, err, domain.ErrInvalid)
	}
}

// testNumbers: numbers count from 1 per project, are used up by a commit only, and step over imported identifiers.
func testNumbers(t *testing.T, s store.Store) {
	w, other := newWorld(t, s), newWorld(t, s)
	imported := w.ticket(3)
	update(t, s, func(tx store.Tx) error { return tx.PutTicket(imported) })
	ticketNumber := func(project string) (n int) {
		update(t, s, func(tx store.Tx) (err error) { n, err = tx.NextTicketNumber(project); return err })
		return n
	}
	runNumber := func(project string) (n int) {
		update(t, s, func(tx store.Tx) (err error) { n, err = tx.NextRunNumber(project); return err })
		return n
	}
	require.Equal(t, 1, ticketNumber(w.project.ID))
	require.Equal(t, 2, ticketNumber(w.project.ID))
	require.Equal(t, 4, ticketNumber(w.project.ID))
	require.Equal(t, 1, ticketNumber(other.project.ID))
	require.Equal(t, 1, runNumber(w.project.ID))
	require.Equal(t, 2, runNumber(w.project.ID))
	require.Equal(t, 1, runNumber(other.project.ID))
	update(t, s, func(tx store.Tx) error { return tx.PutProject(w.project) }) // a changed project goes on counting
	require.Equal(t, 5, ticketNumber(w.project.ID))
	require.Equal(t, 3, runNumber(w.project.ID))
}

// testRollback: an error, a panic or a cancelled context leaves nothing behind, and the store goes on working.
func testRollback(t *testing.T, s store.Store) {
	w := newWorld(t, s)
	before := w.ticket(1)
	before.Labels = []string{"old"}
	update(t, s, func(tx store.Tx) error {
		require.NoError(t, tx.Append(event(before.ID)))
		return tx.PutTicket(before)
	})
	change := func(tx store.Tx) {
		c := before
		c.State, c.Labels = "done", []string{"new"}
		require.NoError(t, tx.PutTicket(c))
		require.NoError(t, tx.PutTicket(w.ticket(2)))
		require.NoError(t, tx.PutRun(w.run(before, domain.RunClaimed)))
		require.NoError(t, tx.PutToken(store.Token{Hash: [32]byte{1}, Kind: store.TokenRun, Holder: "r"}))
		require.NoError(t, tx.PutAnswer(store.Answer{Principal: "p", Key: "k", At: Noon.Time}))
		_, err := tx.NextTicketNumber(w.project.ID)
		require.NoError(t, err)
		require.NoError(t, tx.Append(event(before.ID)))
	}
	unchanged := func() {
		view(t, s, func(tx store.Tx) error {
			same(t, before)(tx.Ticket(before.ID))
			_, n, err := tx.Tickets(store.Query{})
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.ErrorIs(t, second(tx.LiveRun(before.ID)), domain.ErrNotFound)
			require.ErrorIs(t, second(tx.TokenByHash([32]byte{1})), domain.ErrNotFound)
			require.ErrorIs(t, second(tx.Answer("p", "k", time.Time{})), domain.ErrNotFound)
			same(t, []domain.Label{{Name: "old", Tickets: 1}})(tx.Labels(""))
			return nil
		})
		seq, _, err := s.Head(context.Background())
		require.NoError(t, err)
		require.EqualValues(t, 1, seq)
	}

	boom, calls := errors.New("boom"), 0
	require.ErrorIs(t, s.Update(context.Background(), func(tx store.Tx) error { calls++; change(tx); return boom }), boom)
	require.Equal(t, 1, calls)
	unchanged()

	require.PanicsWithValue(t, "boom", func() {
		_ = s.Update(context.Background(), func(tx store.Tx) error { change(tx); panic("boom") })
	})
	unchanged()

	ctx, cancel := context.WithCancel(context.Background())
	err := s.Update(ctx, func(tx store.Tx) error { change(tx); cancel(); return nil })
	require.ErrorIs(t, err, context.Canceled)
	unchanged()
	require.ErrorIs(t, s.Update(ctx, func(store.Tx) error { t.Error("called in a cancelled context"); return nil }), context.Canceled)

	update(t, s, func(tx store.Tx) error {
		same(t, 2)(tx.NextTicketNumber(w.project.ID)) // 1 is w.ticket(1)
		return tx.Append(event(before.ID))
	})
	seq, _, err := s.Head(context.Background())
	require.NoError(t, err)
	require.EqualValues(t, 2, seq)
}

// testView: no writing method works in a View, and what fn returns comes back.
func testView(t *testing.T, s store.Store) {
	w := newWorld(t, s)
	a := w.ticket(1)
	update(t, s, func(tx store.Tx) error { return tx.PutTicket(a) })
	view(t, s, func(tx store.Tx) error {
		for name, err := range map[string]error{
			"PutUser": tx.PutUser(domain.User{ID: "u"}), "PutProject": tx.PutProject(w.project), "PutTicket": tx.PutTicket(a),
			"NextTicketNumber": second(tx.NextTicketNumber(w.project.ID)), "PutRun": tx.PutRun(w.run(a, domain.RunClaimed)),
			"NextRunNumber": second(tx.NextRunNumber(w.project.ID)), "PutConductor": tx.PutConductor(w.conductor),
			"PutComment":  tx.PutComment(domain.Comment{ID: id(), Ticket: a.ID}),
			"PutToken":    tx.PutToken(store.Token{Kind: store.TokenRun, Holder: "r"}),
			"PutAnswer":   tx.PutAnswer(store.Answer{Principal: "p", Key: "k"}),
			"DropAnswers": tx.DropAnswers(Noon.Time), "Append": tx.Append(event(a.ID)),
		} {
			require.ErrorIs(t, err, store.ErrReadOnly, name)
		}
		return nil
	})
	boom := errors.New("boom")
	require.ErrorIs(t, s.View(context.Background(), func(store.Tx) error { return boom }), boom)
	require.Panics(t, func() { _ = s.View(context.Background(), func(store.Tx) error { panic("boom") }) })
	view(t, s, func(tx store.Tx) error { same(t, a)(tx.Ticket(a.ID)); return nil })
}

// testSnapshot: a View sees one moment, however long it lasts, and hinders no writer.
func testSnapshot(t *testing.T, s store.Store) {
	w := newWorld(t, s)
	a := w.ticket(1)
	update(t, s, func(tx store.Tx) error { return tx.PutTicket(a) })
	view(t, s, func(tx store.Tx) error {
		same(t, a)(tx.Ticket(a.ID))
		b := a
		b.State = "done"
		update(t, s, func(tx store.Tx) error { return errors.Join(tx.PutTicket(b), tx.PutTicket(w.ticket(2))) })
		same(t, a)(tx.Ticket(a.ID))
		page(t, []domain.Ticket{a}, 1)(tx.Tickets(store.Query{}))
		return nil
	})
	view(t, s, func(tx store.Tx) error {
		_, n, err := tx.Tickets(store.Query{})
		require.NoError(t, err)
		require.Equal(t, 2, n)
		return nil
	})
}

// testSerialised: writers that read before they write lose no update, and readers see no half of one.
func testSerialised(t *testing.T, s store.Store) {
	w := newWorld(t, s)
	a, b := w.ticket(1), w.ticket(2)
	update(t, s, func(tx store.Tx) error { return errors.Join(tx.PutTicket(a), tx.PutTicket(b)) })
	const writers, each = 8, 15
	stop := make(chan struct{})
	var writing, reading sync.WaitGroup
	for range 3 {
		reading.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				err := s.View(context.Background(), func(tx store.Tx) error {
					x, err := tx.Ticket(a.ID)
					y, err2 := tx.Ticket(b.ID)
					if x.Attempts != -y.Attempts {
						return fmt.Errorf("half an update: %d and %d", x.Attempts, y.Attempts)
					}
					return errors.Join(err, err2)
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range writers {
		writing.Go(func() {
			for range each {
				err := s.Update(context.Background(), func(tx store.Tx) error {
					x, err := tx.Ticket(a.ID)
					y, err2 := tx.Ticket(b.ID)
					x.Attempts, y.Attempts = x.Attempts+1, y.Attempts-1
					return errors.Join(err, err2, tx.PutTicket(x), tx.PutTicket(y))
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	writing.Wait()
	close(stop)
	reading.Wait()
	view(t, s, func(tx store.Tx) error {
		x, err := tx.Ticket(a.ID)
		require.NoError(t, err)
		require.Equal(t, writers*each, x.Attempts)
		return nil
	})
}

// testTidy: the store says that it is ready, and a checkpoint changes nothing that can be seen.
func testTidy(t *testing.T, s store.Store) {
	w := newWorld(t, s)
	a := w.ticket(1)
	require.NoError(t, s.Ready(context.Background()))
	for range 3 {
		update(t, s, func(tx store.Tx) error { return errors.Join(tx.PutTicket(a), tx.Append(event(a.ID))) })
		require.NoError(t, s.Checkpoint(context.Background()))
	}
	view(t, s, func(tx store.Tx) error {
		same(t, a)(tx.Ticket(a.ID))
		return s.Checkpoint(context.Background()) // beside a reader, too
	})
	require.NoError(t, s.Ready(context.Background()))
}

// testClosed: a closed store refuses everything and does not panic.
func testClosed(t *testing.T, s store.Store) {
	require.NoError(t, s.Close())
	ctx := context.Background()
	nothing := func(store.Tx) error { return nil }
	for name, err := range map[string]error{
		"Update": s.Update(ctx, nothing), "View": s.View(ctx, nothing), "Ready": s.Ready(ctx), "Checkpoint": s.Checkpoint(ctx),
		"Events": second(s.Events(ctx, 0, 1)),
	} {
		require.ErrorIs(t, err, store.ErrUnavailable, name)
	}
}

// testTokens: a holder has one token, a token has one holder.
func testTokens(t *testing.T, s store.Store) {
	first := store.Token{Hash: [32]byte{1}, Kind: store.TokenConductor, Holder: "c"}
	run := store.Token{Hash: [32]byte{2}, Kind: store.TokenRun, Holder: "c"}
	update(t, s, func(tx store.Tx) error {
		return errors.Join(tx.PutToken(first), tx.PutToken(run), tx.PutToken(first))
	})
	replaced := store.Token{Hash: [32]byte{3}, Kind: store.TokenConductor, Holder: "c"}
	update(t, s, func(tx store.Tx) error { return tx.PutToken(replaced) })
	view(t, s, func(tx store.Tx) error {
		same(t, run)(tx.TokenByHash(run.Hash))
		same(t, replaced)(tx.TokenByHash(replaced.Hash))
		require.ErrorIs(t, second(tx.TokenByHash(first.Hash)), domain.ErrNotFound)
		return nil
	})
	stolen := store.Token{Hash: run.Hash, Kind: store.TokenRun, Holder: "other"}
	require.ErrorIs(t, s.Update(context.Background(), func(tx store.Tx) error { return tx.PutToken(stolen) }), domain.ErrConflict)
	for _, bad := range []store.Token{{Kind: store.TokenRun}, {Holder: "x"}} {
		require.ErrorIs(t, s.Update(context.Background(), func(tx store.Tx) error { return tx.PutToken(bad) }), domain.ErrInvalid)
	}
	view(t, s, func(tx store.Tx) error { same(t, run)(tx.TokenByHash(run.Hash)); return nil })
}

// testAnswers: answers are per principal and key, as old as they are, and dropped by age.
func testAnswers(t *testing.T, s store.Store) {
	a := store.Answer{Principal: "user/ada", Key: "k", Request: [32]byte{7}, Body: []byte(`{"a":"ü"}`), At: Noon.Time}
	b := store.Answer{Principal: "user/bob", Key: "k", Request: [32]byte{8}, Body: []byte(`null`), At: Noon.Add(time.Hour)}
	update(t, s, func(tx store.Tx) error { return errors.Join(tx.PutAnswer(a), tx.PutAnswer(b)) })
	found := func(principal, key string, since time.Time) bool {
		var err error
		view(t, s, func(tx store.Tx) error { _, err = tx.Answer(principal, key, since); return nil })
		if err != nil {
			require.ErrorIs(t, err, domain.ErrNotFound)
		}
		return err == nil
	}
	view(t, s, func(tx store.Tx) error {
		same(t, a)(tx.Answer("user/ada", "k", Noon.Add(-time.Second)))
		same(t, b)(tx.Answer("user/bob", "k", Noon.Time))
		return nil
	})
	require.False(t, found("user/ada", "other", time.Time{}))
	require.False(t, found("user/eve", "k", time.Time{}))
	require.False(t, found("user/ada", "k", Noon.Time), "not younger")

	again := a
	again.Body, again.At = []byte(`1`), Noon.Add(2*time.Hour)
	update(t, s, func(tx store.Tx) error { return tx.PutAnswer(again) })
	view(t, s, func(tx store.Tx) error { same(t, again)(tx.Answer("user/ada", "k", Noon.Time)); return nil })

	update(t, s, func(tx store.Tx) error { return tx.DropAnswers(Noon.Add(90 * time.Minute)) })
	require.True(t, found("user/ada", "k", time.Time{}))
	require.False(t, found("user/bob", "k", time.Time{}))
	require.ErrorIs(t, s.Update(context.Background(), func(tx store.Tx) error { return tx.PutAnswer(store.Answer{Principal: "p"}) }), domain.ErrInvalid)
}

// testLabels: labels in use, sorted, with how many tickets carry them, everywhere or in one project.
func testLabels(t *testing.T, s store.Store) {
	w, other := newWorld(t, s), newWorld(t, s)
	a, b, c := w.ticket(1), w.ticket(2), other.ticket(3)
	a.Labels, b.Labels = []string{"ui", "api"}, []string{"ui"}
	update(t, s, func(tx store.Tx) error {
		require.NoError(t, errors.Join(tx.PutTicket(a), tx.PutTicket(b), tx.PutTicket(c)))
		same[[]domain.Label](t, nil)(tx.Labels(other.project.ID))
		same(t, []domain.Label{{Name: "api", Tickets: 1}, {Name: "ui", Tickets: 2}})(tx.Labels(w.project.ID))
		same(t, []domain.Label{{Name: "api", Tickets: 1}, {Name: "ui", Tickets: 2}})(tx.Labels(""))
		b.Labels = nil
		return tx.PutTicket(b)
	})
	view(t, s, func(tx store.Tx) error {
		same(t, []domain.Label{{Name: "api", Tickets: 1}, {Name: "ui", Tickets: 1}})(tx.Labels(""))
		return nil
	})
}

// testEvents: entries are numbered from 1, chained, read in order, and are there exactly as they were sealed.
func testEvents(t *testing.T, s store.Store) {
	ctx := context.Background()
	seq, head, err := s.Head(ctx)
	require.NoError(t, err)
	require.Zero(t, seq)
	require.Zero(t, head)
	require.Empty(t, must(s.Events(ctx, 0, 10))(t))
	var want []store.SealedEvent
	var prev [32]byte
	for i := range 5 {
		update(t, s, func(tx store.Tx) error {
			for j := range 2 { // several in one transaction
				e := event(fmt.Sprintf("t-%d-%d", i, j))
				require.NoError(t, tx.Append(e))
				e.Seq = int64(len(want) + 1)
				sealed, err := events.Seal(prev, e)
				require.NoError(t, err)
				want, prev = append(want, sealed), sealed.Hash
			}
			return nil
		})
	}
	require.Equal(t, want, must(s.Events(ctx, 0, 100))(t))
	require.Equal(t, want[3:5], must(s.Events(ctx, 3, 2))(t))
	require.Empty(t, must(s.Events(ctx, 10, 5))(t))
	require.Empty(t, must(s.Events(ctx, 0, 0))(t))
	seq, head, err = s.Head(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 10, seq)
	require.Equal(t, prev, head)
	n, verified, err := events.Verify(ctx, events.Reader(ctx, s))
	require.NoError(t, err)
	require.EqualValues(t, 10, n)
	require.Equal(t, head, verified)
}

func must[T any](v T, err error) func(require.TestingT) T {
	return func(t require.TestingT) T { require.NoError(t, err); return v }
}

// testEventsConcurrent: many writers, some of which fail, leave one chain without gaps.
func testEventsConcurrent(t *testing.T, s store.Store) {
	const writers, each = 8, 20
	var wg sync.WaitGroup
	var failed atomic.Int64
	boom := errors.New("boom")
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				err := s.Update(context.Background(), func(tx store.Tx) error {
					err := tx.Append(event(fmt.Sprintf("t-%d-%d", w, i)))
					if i%5 == 4 {
						return boom
					}
					return err
				})
				switch {
				case errors.Is(err, boom):
					failed.Add(1)
				case err != nil:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	n, _, err := events.Verify(context.Background(), events.Reader(context.Background(), s))
	require.NoError(t, err)
	require.EqualValues(t, writers*each-failed.Load(), n)
	require.EqualValues(t, writers*each/5, failed.Load())
}

// testEventInput: an entry that lacks something is refused, and the transaction can go on.
func testEventInput(t *testing.T, s store.Store) {
	update(t, s, func(tx store.Tx) error {
		for _, spoil := range []func(*domain.Event){
			func(e *domain.Event) { e.Time = domain.Time{} }, func(e *domain.Event) { e.Kind = "" },
			func(e *domain.Event) { e.Actor = "" }, func(e *domain.Event) { e.Type = "" }, func(e *domain.Event) { e.Object = "" },
			func(e *domain.Event) { e.Data = []byte(`{`) },
		} {
			e := event("t")
			spoil(&e)
			require.ErrorIs(t, tx.Append(e), domain.ErrInvalid)
		}
		return tx.Append(event("t"))
	})
	seq, _, err := s.Head(context.Background())
	require.NoError(t, err)
	require.EqualValues(t, 1, seq)
}

// testOneLiveRun: of many that claim one ticket at once, one wins.
func testOneLiveRun(t *testing.T, s store.Store) {
	w := newWorld(t, s)
	a := w.ticket(1)
	update(t, s, func(tx store.Tx) error { return tx.PutTicket(a) })
	var wg sync.WaitGroup
	var won, lost atomic.Int64
	for range 16 {
		r := w.run(a, domain.RunClaimed)
		wg.Go(func() {
			err := s.Update(context.Background(), func(tx store.Tx) error { return tx.PutRun(r) })
			switch {
			case err == nil:
				won.Add(1)
			case errors.Is(err, domain.ErrConflict):
				lost.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, won.Load())
	require.EqualValues(t, 15, lost.Load())
}

// testRuns: every question about runs.
func testRuns(t *testing.T, s store.Store) {
	w, other := newWorld(t, s), newWorld(t, s)
	a, b, c, d := w.ticket(1), w.ticket(2), w.ticket(3), other.ticket(1)
	b.State = "review"
	older, newer := w.run(a, domain.RunFailed), w.run(a, domain.RunDone)
	older.FinalizedAt = Noon
	older.EndedAt, newer.EndedAt = later(time.Hour), later(2*time.Hour)
	live, claimed, foreign := w.run(a, domain.RunRunning), w.run(b, domain.RunClaimed), other.run(d, domain.RunRunning)
	foreign.ClaimedAt = later(24 * time.Hour)
	update(t, s, func(tx store.Tx) error {
		return errors.Join(tx.PutTicket(a), tx.PutTicket(b), tx.PutTicket(c), tx.PutTicket(d),
			tx.PutRun(newer), tx.PutRun(older), tx.PutRun(claimed), tx.PutRun(live), tx.PutRun(foreign))
	})
	view(t, s, func(tx store.Tx) error {
		same(t, live)(tx.LiveRun(a.ID))
		same(t, claimed)(tx.LiveRun(b.ID))
		require.ErrorIs(t, second(tx.LiveRun(c.ID)), domain.ErrNotFound)
		same(t, newer)(tx.LastEndedRun(a.ID))
		require.ErrorIs(t, second(tx.LastEndedRun(b.ID)), domain.ErrNotFound)
		same(t, []domain.Run{live, claimed, foreign})(tx.LiveRuns(""))
		same(t, []domain.Run{live, claimed})(tx.LiveRuns(w.conductor.ID))
		same(t, []domain.Run{newer, live, claimed})(tx.UnfinishedRuns(w.conductor.ID))
		same(t, 2)(tx.CountLive(w.project.ID))
		same(t, 1)(tx.CountLive(other.project.ID))
		same(t, map[string]int{"coding": 1, "review": 1})(tx.LiveByState(w.conductor.ID))
		return nil
	})
	// A run that ends makes room for the next.
	live.State, live.EndedAt = domain.RunExpired, later(3*time.Hour)
	next := w.run(a, domain.RunClaimed)
	update(t, s, func(tx store.Tx) error { return errors.Join(tx.PutRun(live), tx.PutRun(next)) })
	view(t, s, func(tx store.Tx) error {
		same(t, next)(tx.LiveRun(a.ID))
		same(t, live)(tx.LastEndedRun(a.ID))
		return nil
	})
}

// testUsed: what a ticket's runs have used, all together.
func testUsed(t *testing.T, s store.Store) {
	w := newWorld(t, s)
	a, b := w.ticket(1), w.ticket(2)
	r1, r2, r3, r4 := w.run(a, domain.RunFailed), w.run(a, domain.RunDone), w.run(a, domain.RunRunning), w.run(b, domain.RunDone)
	f1, f2 := filled[domain.Footprint](), filled[domain.Footprint]()
	f2.Model, f2.MemoryPeak = "", 1
	r1.Footprint, r2.Footprint, r4.Footprint = &f1, &f2, &f2
	update(t, s, func(tx store.Tx) error {
		return errors.Join(tx.PutTicket(a), tx.PutTicket(b), tx.PutRun(r1), tx.PutRun(r2), tx.PutRun(r3), tx.PutRun(r4))
	})
	want := f1
	want.Add(f2)
	view(t, s, func(tx store.Tx) error { same(t, want)(tx.UsedByTicket(a.ID)); return nil })
}

// testSums: what all runs of a project, or of all, have used: sums, but for the memory's peak, without a model.
func testSums(t *testing.T, s store.Store) {
	w, other := newWorld(t, s), newWorld(t, s)
	view(t, s, func(tx store.Tx) error {
		n, f, err := tx.Used("")
		require.Zero(t, n)
		same(t, domain.Footprint{})(f, err)
		return nil
	})
	one := domain.Footprint{
		TokensIn: 1, TokensOut: 20, TokensCacheRead: 300, TokensCacheWrite: 4000, Turns: 5, Cost: 0.25, Model: "m",
		WallMS: 6, CPUMS: 7, MemoryPeak: 1 << 40, IORead: 8, IOWrite: 9,
	}
	two := domain.Footprint{TokensIn: 1, Cost: 0.5, MemoryPeak: 3}
	huge := domain.Footprint{TokensIn: math.MaxInt64, TokensOut: math.MaxInt64 - 1}
	k, l := w.ticket(1), other.ticket(2)
	put := func(k domain.Ticket, w *world, f *domain.Footprint) {
		r := w.run(k, domain.RunDone)
		r.Footprint = f
		update(t, s, func(tx store.Tx) error { return errors.Join(tx.PutTicket(k), tx.PutRun(r)) })
	}
	for _, f := range []*domain.Footprint{&one, nil, &two} {
		put(k, w, f)
	}
	for range 2 {
		put(l, other, &huge)
	}
	sum := one
	sum.Add(two)
	sum.Model = ""
	for _, c := range []struct {
		project string
		n       int
		want    domain.Footprint
	}{
		{w.project.ID, 3, sum},
		{other.project.ID, 2, domain.Footprint{TokensIn: math.MaxInt64, TokensOut: math.MaxInt64}}, // it never turns negative
		{"none", 0, domain.Footprint{}},
	} {
		view(t, s, func(tx store.Tx) error {
			n, f, err := tx.Used(c.project)
			require.Equal(t, c.n, n)
			same(t, c.want)(f, err)
			return nil
		})
	}
	view(t, s, func(tx store.Tx) error {
		n, f, err := tx.Used("")
		require.NoError(t, err)
		require.Equal(t, 5, n)
		require.Equal(t, 0.75, f.Cost)
		return nil
	})
}

// testParked: the tickets that wait for a person, a time or a machine, and no others.
func testParked(t *testing.T, s store.Store) {
	w, other := newWorld(t, s), newWorld(t, s)
	var want []domain.Ticket
	n := 0
	add := func(parked bool, w *world, change func(*domain.Ticket)) {
		n++
		k := w.ticket(n)
		change(&k)
		update(t, s, func(tx store.Tx) error { return tx.PutTicket(k) })
		if parked {
			want = append(want, k)
		}
	}
	hold := &domain.Hold{Reason: domain.ReasonPerson, Since: Noon}
	add(false, w, func(*domain.Ticket) {})
	add(true, w, func(k *domain.Ticket) { k.Hold = hold })
	add(false, w, func(k *domain.Ticket) { k.Hold, k.State = hold, "done" })
	add(true, w, func(k *domain.Ticket) { k.NotBefore = later(time.Hour) })
	add(false, w, func(k *domain.Ticket) { k.NotBefore = later(-time.Hour) })
	add(true, w, func(k *domain.Ticket) { k.RetryAt = later(time.Hour) })
	add(true, w, func(k *domain.Ticket) { k.TreeAt = "away" })
	add(false, w, func(k *domain.Ticket) { k.TreeAt = "here" })
	add(true, w, func(k *domain.Ticket) { k.TreeAt, k.Hold, k.RetryAt = "away", hold, later(time.Hour) })
	mine := len(want)
	add(true, other, func(k *domain.Ticket) { k.Hold = hold })
	view(t, s, func(tx store.Tx) error {
		same(t, want)(tx.Parked("", []string{"coding", "review"}, []string{"away"}, Noon))
		same(t, want[:mine])(tx.Parked(w.project.ID, []string{"coding"}, []string{"away"}, Noon))
		same[[]domain.Ticket](t, nil)(tx.Parked("", []string{"review"}, []string{"away"}, Noon))
		same[[]domain.Ticket](t, nil)(tx.Parked("", nil, nil, Noon))
		return nil
	})
}

// testBlocked: the tickets that wait for another, and no others.
func testBlocked(t *testing.T, s store.Store) {
	w, other := newWorld(t, s), newWorld(t, s)
	n := 0
	add := func(w *world, state string, by ...domain.Ticket) domain.Ticket {
		n++
		k := w.ticket(n)
		k.State = state
		for _, b := range by {
			k.BlockedBy = append(k.BlockedBy, b.ID)
		}
		update(t, s, func(tx store.Tx) error { return tx.PutTicket(k) })
		return k
	}
	open, over := add(w, "coding"), add(w, "done")
	one := add(w, "review", open)
	both := add(w, "coding", over, open, one)
	add(w, "coding", over)
	add(w, "done", open)
	elsewhere := add(other, "coding", open)
	states := []string{"coding", "review"}
	view(t, s, func(tx store.Tx) error {
		same(t, []domain.Ticket{one, both, elsewhere})(tx.Blocked("", states))
		same(t, []domain.Ticket{one, both})(tx.Blocked(w.project.ID, states))
		same(t, []domain.Ticket{both, elsewhere})(tx.Blocked("", []string{"coding"}))
		same[[]domain.Ticket](t, nil)(tx.Blocked("", nil))
		return nil
	})
	// The block is over with the blocker, and with being taken off.
	open.State, both.BlockedBy = "done", []string{over.ID}
	update(t, s, func(tx store.Tx) error { return errors.Join(tx.PutTicket(open), tx.PutTicket(both)) })
	view(t, s, func(tx store.Tx) error {
		same[[]domain.Ticket](t, nil)(tx.Blocked("", states))
		return nil
	})
}

// testQueries: filters, order and pages.
func testQueries(t *testing.T, s store.Store) {
	w, other := newWorld(t, s), newWorld(t, s)
	one, two := 1.0, 2.5
	a, b, c, d := w.ticket(1), w.ticket(2), w.ticket(3), other.ticket(4)
	a.Priority, b.Priority, d.Priority = &two, &one, &one
	a.Labels, b.Labels = []string{"api", "ui"}, []string{"ui"}
	b.State, b.Assignee, b.BlockedBy = "review", "ada", []string{a.ID}
	c.Workflow, c.State, c.Hold = domain.Unqualified, "qualification", &domain.Hold{Reason: domain.ReasonLoop, Since: Noon}
	c.NotBefore, c.Parent = later(time.Hour), domain.Ref(a.ID)
	run := w.run(a, domain.RunRunning)
	update(t, s, func(tx store.Tx) error {
		return errors.Join(tx.PutTicket(a), tx.PutTicket(b), tx.PutTicket(c), tx.PutTicket(d), tx.PutRun(run))
	})
	names := map[string]string{a.ID: "a", b.ID: "b", c.ID: "c", d.ID: "d"}
	for _, q := range []struct {
		name    string
		filters []store.Filter
		want    string
	}{
		{"none", nil, "abcd"},
		{"id", []store.Filter{{Field: "id", Values: []string{b.ID, d.ID, "x"}}}, "bd"},
		{"identifier", []store.Filter{{Field: "identifier", Values: []string{a.Identifier}}}, "a"},
		{"one value", []store.Filter{{Field: "state", Values: []string{"review"}}}, "b"},
		{"several values", []store.Filter{{Field: "state", Values: []string{"review", "qualification"}}}, "bc"},
		{"no value", []store.Filter{{Field: "state", Values: nil}}, ""},
		{"several filters", []store.Filter{{Field: "project", Values: []string{w.project.ID}}, {Field: "state", Values: []string{"coding"}}}, "a"},
		{"null", []store.Filter{{Field: "workflow", Values: []string{""}}}, "c"},
		{"null or a value", []store.Filter{{Field: "assignee", Values: []string{"", "ada"}}}, "abcd"},
		{"not null", []store.Filter{{Field: "assignee", Values: []string{"ada"}}}, "b"},
		{"number", []store.Filter{{Field: "priority", Values: []string{"1"}}}, "bd"},
		{"number again", []store.Filter{{Field: "priority", Values: []string{"2.50"}}}, "a"},
		{"number or null", []store.Filter{{Field: "priority", Values: []string{"1", ""}}}, "bcd"},
		{"label", []store.Filter{{Field: "labels", Values: []string{"ui"}}}, "ab"},
		{"labels", []store.Filter{{Field: "labels", Values: []string{"api", "ui"}}}, "ab"},
		{"no label", []store.Filter{{Field: "labels", Values: []string{""}}}, "cd"},
		{"label or none", []store.Filter{{Field: "labels", Values: []string{"", "api"}}}, "acd"},
		{"two labels", []store.Filter{{Field: "labels", Values: []string{"ui"}}, {Field: "labels", Values: []string{"api"}}}, "a"},
		{"blockers", []store.Filter{{Field: "blocked_by", Values: []string{a.ID}}}, "b"},
		{"parent", []store.Filter{{Field: "parent", Values: []string{a.ID}}}, "c"},
		{"hold", []store.Filter{{Field: "hold", Values: []string{"loop"}}}, "c"},
		{"no hold", []store.Filter{{Field: "hold", Values: []string{""}}}, "abd"},
		{"time", []store.Filter{{Field: "not_before", Values: []string{"2026-03-04T14:00:00+01:00"}}}, "c"},
		{"quote", []store.Filter{{Field: "title", Values: []string{"' OR 1=1 --", `"`}}}, ""},
	} {
		t.Run(q.name, func(t *testing.T) {
			view(t, s, func(tx store.Tx) error {
				got, total, err := tx.Tickets(store.Query{Filters: q.filters, Sort: []store.Sort{{Field: "created_at"}}})
				require.NoError(t, err)
				seen := ""
				for _, x := range got {
					seen += names[x.ID]
				}
				require.Equal(t, q.want, seen)
				require.Equal(t, len(q.want), total)
				return nil
			})
		})
	}
	for _, q := range []struct {
		name  string
		query store.Query
		want  string
	}{
		{"ascending, null last", store.Query{Sort: []store.Sort{{Field: "priority"}, {Field: "created_at"}}}, "bdac"},
		{"descending, null first", store.Query{Sort: []store.Sort{{Field: "priority", Descending: true}, {Field: "created_at"}}}, "cabd"},
		{"ties by id", store.Query{Sort: []store.Sort{{Field: "title"}}}, "abcd"},
		{"second key descending", store.Query{Sort: []store.Sort{{Field: "priority"}, {Field: "created_at", Descending: true}}}, "dbac"},
		{"page", store.Query{Sort: []store.Sort{{Field: "created_at"}}, Offset: 1, Limit: 2}, "bc"},
		{"rest", store.Query{Sort: []store.Sort{{Field: "created_at"}}, Offset: 3}, "d"},
		{"past the end", store.Query{Offset: 9, Limit: 2}, ""},
	} {
		t.Run(q.name, func(t *testing.T) {
			view(t, s, func(tx store.Tx) error {
				got, total, err := tx.Tickets(q.query)
				require.NoError(t, err)
				seen := ""
				for _, x := range got {
					seen += names[x.ID]
				}
				require.Equal(t, q.want, seen)
				require.Equal(t, 4, total, "the total counts all pages")
				return nil
			})
		})
	}
}

// fields are the fields of each collection that every store must be able to filter by.
var fields = map[string][]string{
	"projects":   {"id", "customer", "key", "name", "slug", "repos", "members", "created_at", "updated_at"},
	"conductors": {"id", "machine_id", "epoch", "label", "owner", "project", "states", "status", "draining", "paused", "current_load", "max_parallel", "workspace_root", "version", "last_seen", "lease_expires_at", "parted_at", "created_at"},
	"tickets":    {"id", "identifier", "project", "workflow", "title", "state", "assignee", "target", "tree_at", "priority", "parent", "blocked_by", "labels", "origin", "agent", "branch", "not_before", "retry_at", "hold", "attempts", "created_at", "updated_at"},
	"runs":       {"id", "number", "project", "ticket", "conductor", "mode", "state", "attempt", "claimed_at", "claim_expires_at", "state_at_start", "started_at", "ended_at", "end_reason", "finalized_at", "branch", "unit", "agent", "permissions"},
	"comments":   {"id", "ticket", "author", "type", "created_at"},
}

// lists are the fields that cannot be sorted by.
var lists = []string{"repos", "members", "states", "blocked_by", "labels"}

// testQueryInput: every field can be filtered and sorted by, anything else is refused by its name.
func testQueryInput(t *testing.T, s store.Store) {
	view(t, s, func(tx store.Tx) error {
		for name, find := range map[string]func(store.Query) error{
			"projects":   func(q store.Query) error { _, _, err := tx.Projects(q); return err },
			"conductors": func(q store.Query) error { _, _, err := tx.Conductors(q); return err },
			"tickets":    func(q store.Query) error { _, _, err := tx.Tickets(q); return err },
			"runs":       func(q store.Query) error { _, _, err := tx.Runs(q); return err },
			"comments":   func(q store.Query) error { _, _, err := tx.Comments(q); return err },
		} {
			for _, f := range fields[name] {
				require.NoError(t, find(store.Query{Filters: []store.Filter{{Field: f, Values: []string{""}}}}), "%s %s", name, f)
				err := find(store.Query{Sort: []store.Sort{{Field: f}}})
				if slices.Contains(lists, f) {
					require.ErrorIs(t, err, domain.ErrInvalid, "%s %s", name, f)
				} else {
					require.NoError(t, err, "%s %s", name, f)
				}
			}
			for _, f := range []string{"", "nonsense", "doc", "rank", "wake_at", "live", "busy", "State", "id; DROP TABLE tickets", `id" --`} {
				for _, q := range []store.Query{{Filters: []store.Filter{{Field: f, Values: []string{"x"}}}}, {Sort: []store.Sort{{Field: f}}}} {
					err := find(q)
					require.ErrorIs(t, err, domain.ErrInvalid, "%s %q", name, f)
					var fe *domain.FieldError
					require.ErrorAs(t, err, &fe)
					require.Equal(t, f, fe.Field)
				}
			}
			for _, q := range []store.Query{{Limit: -1}, {Offset: -1}} {
				require.ErrorIs(t, find(q), domain.ErrInvalid)
			}
		}
		for f, v := range map[string]string{"priority": "high", "attempts": "NaN", "created_at": "yesterday"} {
			_, _, err := tx.Tickets(store.Query{Filters: []store.Filter{{Field: f, Values: []string{v}}}})
			require.ErrorIs(t, err, domain.ErrInvalid)
			require.ErrorContains(t, err, f)
		}
		_, _, err := tx.Conductors(store.Query{Filters: []store.Filter{{Field: "draining", Values: []string{"perhaps"}}}})
		require.ErrorIs(t, err, domain.ErrInvalid)
		_, _, err = tx.Conductors(store.Query{Filters: []store.Filter{{Field: "draining", Values: []string{"true"}}}})
		require.NoError(t, err)
		many := make([]string, 40_000)
		for i := range many {
			many[i] = strconv.Itoa(i)
		}
		_, _, err = tx.Tickets(store.Query{Filters: []store.Filter{{Field: "id", Values: many}}})
		require.NoError(t, err)
		return nil
	})
}

// candidates returns everything that Candidates offers.
func candidates(t require.TestingT, tx store.Tx, whom store.Claimer, now domain.Time) []domain.Ticket {
	var out []domain.Ticket
	require.NoError(t, tx.Candidates(whom, now, func(x domain.Ticket) (bool, error) {
		out = append(out, x)
		return true, nil
	}))
	return out
}

// testClaimOrder: whatever the tickets, Candidates offers every one that passes the cheap gates exactly once and in
// claim order, now and later, in either kind of transaction.
func testClaimOrder(t *testing.T, s store.Store) {
	states := []string{"coding", "review", "todo"}
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, s)
		n := rapid.IntRange(0, 25).Draw(t, "tickets")
		var all []domain.Ticket
		busy := map[string]bool{}
		for i := range n {
			x := w.ticket(i)
			x.CreatedAt = later(time.Duration(rapid.IntRange(0, 3).Draw(t, "created")) * time.Millisecond)
			x.Identifier = fmt.Sprintf("%s-%s%d", w.project.Key, rapid.SampledFrom([]string{"", "é", "Z", "a"}).Draw(t, "infix"), i)
			x.State = rapid.SampledFrom([]string{"coding", "review", "todo", "done", "backlog"}).Draw(t, "state")
			if rapid.Bool().Draw(t, "ranked") {
				p := rapid.SampledFrom([]float64{-1, 0, 0.1, 0.2, 1, 1e300}).Draw(t, "priority")
				x.Priority = &p
			}
			x.Target = domain.Ref(rapid.SampledFrom([]string{"", "", w.conductor.ID, "another"}).Draw(t, "target"))
			x.Assignee = domain.Ref(rapid.SampledFrom([]string{"", "", "ada", "bob"}).Draw(t, "assignee"))
			x.RetryAt = rapid.SampledFrom([]domain.Time{{}, {}, Noon, later(time.Hour), later(-time.Hour)}).Draw(t, "retry")
			x.NotBefore = rapid.SampledFrom([]domain.Time{{}, {}, later(2 * time.Hour), later(-time.Hour)}).Draw(t, "not before")
			if rapid.IntRange(0, 4).Draw(t, "held") == 0 {
				x.Hold = &domain.Hold{Reason: domain.ReasonPerson, Since: Noon}
			}
			busy[x.ID] = rapid.IntRange(0, 4).Draw(t, "busy") == 0
			all = append(all, x)
		}
		update(t, s, func(tx store.Tx) error {
			for _, x := range all {
				require.NoError(t, tx.PutTicket(x))
				if busy[x.ID] {
					require.NoError(t, tx.PutRun(w.run(x, domain.RunClaimed)))
				} else if rapid.Bool().Draw(t, "has a past") {
					require.NoError(t, tx.PutRun(w.run(x, domain.RunDone)))
				}
				require.NoError(t, tx.PutTicket(x)) // the run is not forgotten by a later write
			}
			return nil
		})
		check := func(tx store.Tx, now domain.Time) {
			passes := func(x domain.Ticket) bool {
				return slices.Contains(states, x.State) && x.Hold == nil && !busy[x.ID] && x.Target != "another" && x.Assignee != "bob" &&
					!x.RetryAt.After(now.Time) && !x.NotBefore.After(now.Time)
			}
			var want []domain.Ticket
			for _, x := range all {
				if passes(x) {
					want = append(want, x)
				}
			}
			slices.SortFunc(want, domain.CompareClaim)
			got := candidates(t, tx, w.asks(slices.Concat(states, states)...), now)
			require.True(t, slices.IsSortedFunc(got, domain.CompareClaim), "not in claim order: %v", identifiers(got))
			got = slices.DeleteFunc(got, func(x domain.Ticket) bool { return !passes(x) })
			require.Equal(t, identifiers(want), identifiers(got))
		}
		for _, now := range []domain.Time{Noon, later(time.Hour), later(3 * time.Hour), later(-2 * time.Hour)} {
			view(t, s, func(tx store.Tx) error { check(tx, now); return nil })
			update(t, s, func(tx store.Tx) error { check(tx, now); return nil })
		}
	})
}

// testClaimPages: no ticket is lost or doubled, however many there are and whatever fn does to them meanwhile.
func testClaimPages(t *testing.T, s store.Store) {
	w := newWorld(t, s)
	var all []domain.Ticket
	update(t, s, func(tx store.Tx) error {
		for i := range 700 {
			x := w.ticket(i)
			x.State = []string{"coding", "review"}[i%2]
			x.CreatedAt = later(time.Duration(i/7) * time.Second)
			if i%3 > 0 {
				p := float64(i % 5)
				x.Priority = &p
			}
			all = append(all, x)
			if err := tx.PutTicket(x); err != nil {
				return err
			}
		}
		return nil
	})
	slices.SortFunc(all, domain.CompareClaim)
	read := func(tx store.Tx) error {
		require.Equal(t, identifiers(all), identifiers(candidates(t, tx, w.asks("coding", "review"), Noon)))
		return nil
	}
	view(t, s, read)
	update(t, s, read)
	update(t, s, func(tx store.Tx) error {
		var got []domain.Ticket
		err := tx.Candidates(w.asks("coding", "review"), Noon, func(x domain.Ticket) (bool, error) {
			got = append(got, x)
			return true, tx.PutRun(w.run(x, domain.RunClaimed))
		})
		require.Equal(t, identifiers(all), identifiers(got))
		return err
	})
	view(t, s, func(tx store.Tx) error {
		require.Empty(t, candidates(t, tx, w.asks("coding", "review"), Noon))
		return nil
	})
}

// testClaimStops: fn ends the walk, with or without an error, and only its project and states are offered.
func testClaimStops(t *testing.T, s store.Store) {
	w, other := newWorld(t, s), newWorld(t, s)
	update(t, s, func(tx store.Tx) error {
		return cmp.Or(tx.PutTicket(w.ticket(1)), tx.PutTicket(w.ticket(2)), tx.PutTicket(other.ticket(1)))
	})
	boom := errors.New("boom")
	view(t, s, func(tx store.Tx) error {
		calls := 0
		require.NoError(t, tx.Candidates(w.asks("coding"), Noon, func(domain.Ticket) (bool, error) { calls++; return false, nil }))
		require.Equal(t, 1, calls)
		require.ErrorIs(t, tx.Candidates(w.asks("coding"), Noon, func(domain.Ticket) (bool, error) { return true, boom }), boom)
		require.Len(t, candidates(t, tx, w.asks("coding"), Noon), 2)
		require.Empty(t, candidates(t, tx, w.asks(), Noon))
		require.Empty(t, candidates(t, tx, store.Claimer{Project: "nobody", States: []string{"coding"}}, Noon))
		return nil
	})
}
