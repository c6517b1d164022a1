package render

import (
	"fmt"
	"io"
	"strings"
)

// Card is one ticket on a board.
type Card struct {
	Head string // identifier
	Text string // title
	Note string // live run, hold or wait; "" for none
}

// Column is one state of a board.
type Column struct {
	Title string
	Cards []Card
	More  bool // there are cards that are not shown
}

// A column is no narrower than what is readable, and no wider than what the eye follows.
const minColumn, maxColumn = 14, 40

// Board prints columns side by side where width leaves each at least minColumn columns of text, else one below the other.
func Board(w io.Writer, width int, columns []Column) error {
	if len(columns) == 0 {
		_, err := fmt.Fprintln(w, "no tickets")
		return err
	}
	const gap = 2
	each := (width - gap*(len(columns)-1)) / len(columns)
	if each < minColumn {
		return stacked(w, width, columns)
	}
	each = min(each, maxColumn)
	cells := make([][]string, len(columns))
	height := 0
	for i, c := range columns {
		cells[i] = []string{Fit(heading(c), each), strings.Repeat("─", each)}
		for _, card := range c.Cards {
			cells[i] = append(cells[i], Fit(Clean(card.Head), each), Fit("  "+Clean(card.Text), each))
			if card.Note != "" {
				cells[i] = append(cells[i], Fit("  "+Clean(card.Note), each))
			}
		}
		if c.More {
			cells[i] = append(cells[i], Fit(more, each))
		}
		height = max(height, len(cells[i]))
	}
	for row := range height {
		var b strings.Builder
		for i := range columns {
			cell := ""
			if row < len(cells[i]) {
				cell = cells[i][row]
			}
			b.WriteString(Pad(cell, each))
			b.WriteString(strings.Repeat(" ", gap))
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(b.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// more stands below the cards of a column that does not show them all.
const more = "… and older ones"

func heading(c Column) string {
	plus := ""
	if c.More {
		plus = "+"
	}
	return fmt.Sprintf("%s (%d%s)", Clean(c.Title), len(c.Cards), plus)
}

func stacked(w io.Writer, width int, columns []Column) error {
	for i, c := range columns {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(w, Fit(heading(c), width)); err != nil {
			return err
		}
		for _, card := range c.Cards {
			line := "  " + Clean(card.Head) + "  " + Clean(card.Text)
			if card.Note != "" {
				line += "  [" + Clean(card.Note) + "]"
			}
			if _, err := fmt.Fprintln(w, Fit(line, width)); err != nil {
				return err
			}
		}
		if c.More {
			if _, err := fmt.Fprintln(w, Fit("  "+more, width)); err != nil {
				return err
			}
		}
	}
	return nil
}
