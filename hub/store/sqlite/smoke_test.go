package sqlite

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/hub/events"
	"gaia/hub/store"
)

func TestSmoke(t *testing.T) {
	ctx := context.Background()
	p := filepath.Join(t.TempDir(), "a%? b#", "hub.db")
	db, err := Open(ctx, p)
	require.NoError(t, err)
	now := domain.At(time.Now())
	require.NoError(t, db.Update(ctx, func(x store.Tx) error {
		require.NoError(t, x.PutProject(domain.Project{ID: "p", Key: "SHOP"}))
		pr := 2.0
		require.NoError(t, x.PutTicket(domain.Ticket{ID: "1", Identifier: "SHOP-1", Project: "p", State: "todo", CreatedAt: now}))
		require.NoError(t, x.PutTicket(domain.Ticket{ID: "2", Identifier: "SHOP-2", Project: "p", State: "todo", CreatedAt: now, Priority: &pr, BlockedBy: []string{"1"}, Labels: []string{"a"}}))
		require.NoError(t, x.PutTicket(domain.Ticket{ID: "3", Identifier: "SHOP-3", Project: "p", State: "coding", CreatedAt: now, RetryAt: domain.At(now.Add(-time.Hour))}))
		var got []string
		require.NoError(t, x.Candidates("p", []string{"todo", "coding"}, now, func(t domain.Ticket) (bool, error) { got = append(got, t.ID); return true, nil }))
		require.Equal(t, []string{"2", "1", "3"}, got)
		for range 3 {
			require.NoError(t, x.Append(domain.Event{Time: now, Kind: "k", Actor: "a", Type: "ticket", Object: "1"}))
		}
		n, err := x.NextTicketNumber("p")
		require.NoError(t, err)
		require.Equal(t, 4, n)
		require.ErrorIs(t, x.PutTicket(domain.Ticket{ID: "9", Identifier: "SHOP-1", Project: "p"}), domain.ErrConflict)
		require.ErrorIs(t, x.PutTicket(domain.Ticket{ID: "9", Identifier: "SHOP-9", Project: "x"}), domain.ErrInvalid)
		l, err := x.Labels()
		require.NoError(t, err)
		require.Len(t, l, 1)
		return nil
	}))
	require.NoError(t, db.View(ctx, func(x store.Tx) error {
		ts, n, err := x.Tickets(store.Query{Filters: []store.Filter{{Field: "blocked_by", Values: []string{"1"}}}, Sort: []store.Sort{{Field: "priority"}}, Limit: 5})
		require.NoError(t, err)
		require.Len(t, ts, 1)
		require.Equal(t, 1, n)
		ts, n, err = x.Tickets(store.Query{Filters: []store.Filter{{Field: "priority", Values: []string{"2", ""}}}, Sort: []store.Sort{{Field: "priority", Descending: true}}})
		require.NoError(t, err)
		require.Equal(t, 3, n)
		return nil
	}))
	require.NoError(t, db.Ready(ctx))
	require.NoError(t, db.Checkpoint(ctx))
	require.NoError(t, db.Backup(ctx, p+".bak"))
	log, err := OpenLog(ctx, p)
	require.NoError(t, err)
	n, _, err := events.Verify(ctx, events.Reader(ctx, log))
	require.NoError(t, err)
	require.EqualValues(t, 3, n)
	require.NoError(t, log.Close())
	require.NoError(t, db.Close())
	log, err = OpenLog(ctx, p)
	require.NoError(t, err)
	require.NoError(t, log.Close())
}
