package render

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRowsNoted: what the table has no room for stands below its row, whole.
func TestRowsNoted(t *testing.T) {
	t.Parallel()
	noted := func(width int) string {
		var b bytes.Buffer
		require.NoError(t, RowsNoted(&b, width, []string{"TICKET", "TREE", "WHY"}, [][]string{
			{"SHOP-1", "/trees/SHOP-1", "it is locked; free it:\x1bgit unlock"}, {"SHOP-22", "/trees/日本", ""}, {"-", "/x", "why"},
		}))
		return b.String()
	}
	wide := `TICKET   TREE           WHY
SHOP-1   /trees/SHOP-1  it is locked; free it: git unlock
SHOP-22  /trees/日本
-        /x             why
`
	require.Equal(t, wide, noted(0))
	require.Equal(t, wide, noted(57))
	narrow := `TICKET   TREE
SHOP-1   /trees/SHOP-1
  it is locked; free it: git unlock
SHOP-22  /trees/日本
-        /x
  why
`
	require.Equal(t, narrow, noted(56))
	require.Equal(t, narrow, noted(1))
}
