package main

import (
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"

	"github.com/mattn/go-runewidth"
)

// style is how a cell looks. A colour is one of CSS, or empty for that of the terminal.
type style struct {
	fore, back                             string
	bold, faint, italic, underline, invert bool
}

// cell is one place of a screen. A wide character is in the first of its two cells; the second one is empty.
type cell struct {
	text string
	style
}

// The terminal's own colours and its measures. A letter is as wide as most fonts of one width have it at this size.
const (
	foreground = "#d8dee9"
	background = "#1e222a"
	letter     = 8.4
	size       = 14
	line       = 18
	margin     = 14
)

// palette are the first sixteen colours.
var palette = [16]string{
	"#3b4252", "#e06c75", "#8fbf6f", "#e5c07b", "#6cabeb", "#c586d9", "#56b6c2", "#c8ccd4",
	"#6b7386", "#ff8e96", "#a8d68a", "#f4d696", "#8cc4ff", "#dca6ee", "#7fd5df", "#ffffff",
}

// parse reads what tmux capture-pane -e prints: text, and escape sequences for how it looks, which hold over the ends of
// lines. Every other sequence is passed over.
func parse(screen string) [][]cell {
	var (
		rows [][]cell
		now  style
	)
	for l := range strings.SplitSeq(strings.TrimSuffix(screen, "\n"), "\n") {
		row := []cell{}
		for l != "" {
			if rest, ok := strings.CutPrefix(l, "\x1b["); ok {
				end := strings.IndexFunc(rest, func(r rune) bool { return r >= '@' && r <= '~' })
				if end < 0 {
					break
				}
				if rest[end] == 'm' {
					now.set(rest[:end])
				}
				l = rest[end+1:]
				continue
			}
			if rest, ok := strings.CutPrefix(l, "\x1b]"); ok { // a link
				_, l, _ = strings.Cut(rest, "\x1b\\")
				continue
			}
			r := []rune(l)[0]
			l = l[len(string(r)):]
			switch width := runewidth.RuneWidth(r); {
			case r < ' ':
			case width == 0 && len(row) > 0:
				row[len(row)-1].text += string(r)
			default:
				row = append(row, cell{string(r), now})
				if width == 2 {
					row = append(row, cell{"", now})
				}
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// set is one sequence for how text looks ("Select Graphic Rendition").
func (s *style) set(parameters string) {
	p := strings.FieldsFunc(parameters, func(r rune) bool { return r == ';' || r == ':' })
	if len(p) == 0 {
		*s = style{}
	}
	for i := 0; i < len(p); i++ {
		n, _ := strconv.Atoi(p[i])
		switch {
		case n == 0:
			*s = style{}
		case n == 1:
			s.bold = true
		case n == 2:
			s.faint = true
		case n == 3:
			s.italic = true
		case n == 4:
			s.underline = true
		case n == 7:
			s.invert = true
		case n == 22:
			s.bold, s.faint = false, false
		case n == 23:
			s.italic = false
		case n == 24:
			s.underline = false
		case n == 27:
			s.invert = false
		case n >= 30 && n <= 37:
			s.fore = palette[n-30]
		case n >= 90 && n <= 97:
			s.fore = palette[n-90+8]
		case n >= 40 && n <= 47:
			s.back = palette[n-40]
		case n >= 100 && n <= 107:
			s.back = palette[n-100+8]
		case n == 38 || n == 48 || n == 58:
			c, used := colour(p[i+1:])
			i += used
			switch n {
			case 38:
				s.fore = c
			case 48:
				s.back = c
			}
		case n == 39:
			s.fore = ""
		case n == 49:
			s.back = ""
		}
	}
}

// colour reads one of 256 colours (5;N) or one by its parts (2;R;G;B), and returns how many numbers that were.
func colour(p []string) (css string, used int) {
	n := func(i int) int {
		if i >= len(p) {
			return 0
		}
		v, _ := strconv.Atoi(p[i])
		return min(max(v, 0), 255)
	}
	rgb := func(r, g, b int) string { return fmt.Sprintf("#%02x%02x%02x", r, g, b) }
	switch n(0) {
	case 2:
		return rgb(n(1), n(2), n(3)), 4
	case 5:
		c := n(1)
		if c < 16 {
			return palette[c], 2
		}
		if c >= 232 {
			grey := 8 + 10*(c-232)
			return rgb(grey, grey, grey), 2
		}
		step := func(v int) int { return [6]int{0, 95, 135, 175, 215, 255}[v%6] }
		return rgb(step((c-16)/36), step((c-16)/6), step(c-16)), 2
	}
	return "", 1
}

// seen returns the style as it is seen: inverted where it is to be.
func (s style) seen() style {
	if s.invert {
		fore, back := s.back, s.fore
		s.fore, s.back, s.invert = fore, back, false
		if s.fore == "" {
			s.fore = background
		}
		if s.back == "" {
			s.back = foreground
		}
	}
	return s
}

// blank tells whether a cell shows nothing.
func (c cell) blank() bool {
	s := c.seen()
	return strings.TrimSpace(c.text) == "" && s.back == "" && !s.underline
}

// trim leaves out what is empty at the ends of lines and at the end of the screen.
func trim(rows [][]cell) [][]cell {
	for i, row := range rows {
		for len(row) > 0 && row[len(row)-1].blank() {
			row = row[:len(row)-1]
		}
		rows[i] = row
	}
	for len(rows) > 0 && len(rows[len(rows)-1]) == 0 {
		rows = rows[:len(rows)-1]
	}
	return rows
}

// svg draws a screen. Each piece of text is made as wide as its cells, whatever font there is.
func svg(title, screen string) []byte {
	rows, columns := trim(parse(screen)), 0
	for _, row := range rows {
		columns = max(columns, len(row))
	}
	width, height := float64(columns)*letter+2*margin, len(rows)*line+2*margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d" viewBox="0 0 %.0f %d" xml:space="preserve"`+
		` font-family="ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace" font-size="%d" fill="%s">`+"\n", width, height, width, height, size, foreground)
	fmt.Fprintf(&b, "<title>%s</title>\n<rect width=\"100%%\" height=\"100%%\" rx=\"8\" fill=\"%s\"/>\n", escape(title), background)
	for y, row := range rows {
		for x := 0; x < len(row); {
			from, s := x, row[x].seen()
			text := ""
			for ; x < len(row) && row[x].seen() == s; x++ {
				text += row[x].text
			}
			piece(&b, from, x-from, y, text, s)
		}
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// piece draws text of one style over so many cells.
func piece(b *strings.Builder, x, cells, y int, text string, s style) {
	if s.back != "" {
		fmt.Fprintf(b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", margin+float64(x)*letter, margin+y*line, float64(cells)*letter, line, s.back)
	}
	// Blanks at the ends are cells like others, but need no drawing.
	cut := strings.TrimLeft(text, " ")
	x, cells = x+len(text)-len(cut), cells-(len(text)-len(cut))
	text = strings.TrimRight(cut, " ")
	cells -= len(cut) - len(text)
	if text == "" {
		return
	}
	looks := ""
	for _, a := range []struct {
		holds bool
		text  string
	}{
		{s.fore != "", ` fill="` + s.fore + `"`}, {s.bold, ` font-weight="bold"`}, {s.faint, ` opacity="0.6"`},
		{s.italic, ` font-style="italic"`}, {s.underline, ` text-decoration="underline"`},
	} {
		if a.holds {
			looks += a.text
		}
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%d" textLength="%.1f"%s>%s</text>`+"\n", margin+float64(x)*letter, margin+y*line+size, float64(cells)*letter, looks, escape(text))
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder takes everything
	return b.String()
}
