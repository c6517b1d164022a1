//go:build !race

// The race detector slows the database's code and Go's by different factors, so that times under it mean nothing.

package sqlite

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/hub/store"
)

// Tickets that cannot be claimed cost a claim nothing: a claim among 100,000 tickets takes less than twice as long as
// one among 1,000. The two take turns, so that whatever else the machine does meanwhile slows both.
func TestClaimTimeDoesNotGrow(t *testing.T) {
	small, large := crowd(t, 1), crowd(t, 100)
	var smallTimes, largeTimes []time.Duration
	for i := range 101 {
		smallTimes = append(smallTimes, claim(t, small, i))
		largeTimes = append(largeTimes, claim(t, large, i))
	}
	slices.Sort(smallTimes)
	slices.Sort(largeTimes)
	a, b := smallTimes[50], largeTimes[50]
	t.Logf("median claim: %v among 1,000 tickets, %v among 100,000", a, b)
	require.Less(t, b, 2*a)
}

var claimStates = []string{"qualification", "todo", "spec", "diagnose", "coding", "review", "working"}

// crowd returns a database of times 1,000 tickets, of which one in six could be claimed.
func crowd(t *testing.T, times int) *DB {
	db := openTemp(t)
	const n = 1000
	require.NoError(t, db.Update(t.Context(), func(tx store.Tx) error {
		if err := errors.Join(tx.PutProject(domain.Project{ID: "p", Key: "SHOP"}), tx.PutConductor(domain.Conductor{ID: "c", MachineID: "m", Project: "p"})); err != nil {
			return err
		}
		for i := range n {
			x := domain.Ticket{
				ID: fmt.Sprintf("t%d", i), Identifier: fmt.Sprintf("SHOP-%d", i), Project: "p", Workflow: domain.Feature, Title: "Sell more",
				State: claimStates[i%len(claimStates)], CreatedAt: domain.At(noon.Add(time.Duration(i) * time.Second)),
			}
			live := false
			switch i / len(claimStates) % 6 {
			case 0:
				x.State = "done"
			case 1:
				x.Hold = &domain.Hold{Reason: domain.ReasonPerson}
			case 2:
				x.RetryAt = domain.At(noon.Add(time.Hour))
			case 3:
				x.NotBefore = domain.At(noon.Add(time.Hour))
			case 4:
				live = true
			}
			if err := tx.PutTicket(x); err != nil {
				return err
			}
			if live {
				if err := tx.PutRun(domain.Run{ID: "r" + x.ID, Number: 1_000_000 + i, Project: "p", Ticket: x.ID, Conductor: "c", State: domain.RunRunning, StateAtStart: x.State}); err != nil {
					return err
				}
			}
		}
		return nil
	}))
	// The others are copies that SQLite makes by itself, which takes seconds and not minutes.
	c, err := db.write.take(t.Context())
	require.NoError(t, err)
	for _, table := range []struct{ name, columns, changed string }{
		{"tickets", "id, identifier, doc", "id || '-' || k, identifier || '-' || k, json_set(doc, '$.id', id || '-' || k, '$.identifier', identifier || '-' || k)"},
		{"runs", "id, ticket, number, doc", "id || '-' || k, ticket || '-' || k, number + k * 1000, json_set(doc, '$.id', id || '-' || k, '$.ticket', ticket || '-' || k, '$.number', number + k * 1000)"},
	} {
		var rest string
		require.NoError(t, c.QueryRowContext(t.Context(), `SELECT group_concat('"' || name || '"') FROM pragma_table_info(?) WHERE name NOT IN (SELECT trim(value) FROM json_each('["' || replace(?, ', ', '","') || '"]'))`,
			table.name, table.columns).Scan(&rest))
		_, err := c.ExecContext(t.Context(), fmt.Sprintf(`WITH RECURSIVE copies (k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM copies WHERE k < ?)
			INSERT INTO %[1]s (%[2]s, %[4]s) SELECT %[3]s, %[4]s FROM %[1]s, copies WHERE k < ?`, table.name, table.columns, table.changed, rest), times, times)
		require.NoError(t, err)
	}
	db.write.give(c)
	require.Equal(t, times*n, ticketCount(t, db))
	require.NoError(t, db.Checkpoint(t.Context()))
	return db
}

// claim does what a claim does and returns how long it took.
func claim(t *testing.T, db *DB, i int) time.Duration {
	start := time.Now()
	require.NoError(t, db.Update(t.Context(), func(tx store.Tx) error {
		var found domain.Ticket
		if err := tx.Candidates(store.Claimer{Project: "p", States: claimStates, Conductor: "c", Owner: "ada"}, noon, func(x domain.Ticket) (bool, error) { found = x; return false, nil }); err != nil {
			return err
		}
		r := domain.Run{ID: fmt.Sprint("run", i), Number: i, Project: "p", Ticket: found.ID, Conductor: "c", State: domain.RunClaimed, StateAtStart: found.State}
		return errors.Join(tx.PutRun(r), tx.PutTicket(found),
			tx.Append(domain.Event{Time: noon, Kind: "run.claimed", Actor: "conductor/m", Type: "run", Object: r.ID}))
	}))
	return time.Since(start)
}
