package auth

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/domain"
)

// The whole of who may do what, written a second time: a change of the table has to be meant.
var expected = map[Action]string{ // o owner, c conductor, r run
	Read: "ocr", ProjectWrite: "o", UserWrite: "o", TicketCreate: "or", TicketContent: "or", TicketState: "or",
	TicketRouting: "o", TicketHold: "o", TicketRepair: "o", TicketIdentify: "o", CommentAdd: "or", RunStop: "o",
	RunFootprint: "r", ConductorDrain: "o", Register: "oc", Lease: "c", Verify: "o",
}

func TestWhoMayDoWhat(t *testing.T) {
	t.Parallel()
	require.Len(t, table, len(expected))
	for action := range table {
		letters, ok := expected[action]
		require.True(t, ok, "%s is not expected", action)
		for kind, letter := range map[Kind]rune{Owner: 'o', Conductor: 'c', Run: 'r'} {
			err := Principal{Kind: kind, User: "anna"}.May(action)
			if strings.ContainsRune(letters, letter) {
				require.NoError(t, err, "%s %s", kind, action)
				continue
			}
			require.ErrorIs(t, err, domain.ErrForbidden, "%s %s", kind, action)
			require.ErrorContains(t, err, string(action))
		}
		require.ErrorIs(t, Principal{}.May(action), domain.ErrUnauthenticated)
	}
	require.ErrorIs(t, Principal{Kind: Owner}.May("ticket.eat"), domain.ErrForbidden, "what is not in the table is forbidden")
}

// The names stand in the event log for ever.
func TestNames(t *testing.T) {
	t.Parallel()
	require.Equal(t, "user/anna", Principal{Kind: Owner, User: "anna"}.String())
	require.Equal(t, "conductor/a.b.c", Principal{Kind: Conductor, Machine: "a.b.c"}.String())
	require.Equal(t, "run/1", Principal{Kind: Run, Run: "1"}.String())
	require.Equal(t, "nobody", Principal{}.String())
}
