package render

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

// RowsNoted is Rows for a table whose last column is to be read as a whole, such as a reason with the command that mends
// it: where the table is wider than the terminal, each stands below its row, and nothing is cut.
func RowsNoted(w io.Writer, width int, headings []string, rows [][]string) error {
	var whole bytes.Buffer
	if err := Rows(&whole, 0, headings, rows); err != nil {
		return err
	}
	fits := true
	for line := range strings.Lines(whole.String()) {
		fits = fits && Width(strings.TrimSuffix(line, "\n")) <= width
	}
	if width == 0 || fits {
		_, err := whole.WriteTo(w)
		return err
	}
	last := len(headings) - 1
	short := make([][]string, len(rows))
	for i, row := range rows {
		short[i] = row[:last]
	}
	var table, out bytes.Buffer
	if err := Rows(&table, 0, headings[:last], short); err != nil {
		return err
	}
	i := -1 // the headings have no row
	for line := range strings.Lines(table.String()) {
		out.WriteString(line)
		if i >= 0 && rows[i][last] != "" {
			fmt.Fprintf(&out, "  %s\n", Clean(rows[i][last]))
		}
		i++
	}
	_, err := out.WriteTo(w)
	return err
}
