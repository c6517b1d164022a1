// Package render prints what commands found, in the form that was asked for: a table for people; JSON, YAML or bare
// names for programs. It must not decide what is printed, only how.
package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/mattn/go-runewidth"
	"go.yaml.in/yaml/v3"
)

// Format is an output form.
type Format string

// The forms that -o takes.
const (
	Table Format = "table"
	JSON  Format = "json"
	YAML  Format = "yaml"
	Name  Format = "name"
)

// Formats lists them all, for help and completion.
var Formats = []string{string(Table), string(JSON), string(YAML), string(Name)}

// ParseFormat returns the form named s, or an error that lists all.
func ParseFormat(s string) (Format, error) {
	for _, f := range Formats {
		if s == f {
			return Format(f), nil
		}
	}
	return "", fmt.Errorf("-o %q is none of %s", s, strings.Join(Formats, ", "))
}

// Value is something to print.
type Value struct {
	Data  any      // for JSON and YAML: a struct, or a list of them
	Names []string // for Name, one a line
	// Table prints the form for people.
	Table func(io.Writer) error
}

// Print prints v in the form f.
func Print(w io.Writer, f Format, v Value) error {
	switch f {
	case JSON:
		return printJSON(w, v.Data)
	case YAML:
		return printYAML(w, v.Data)
	case Name:
		for _, n := range v.Names {
			if _, err := fmt.Fprintln(w, Clean(n)); err != nil {
				return err
			}
		}
		return nil
	}
	return v.Table(w)
}

// PrintLine prints v as one of a stream of values that has no end: JSON in one line, YAML as a document of its own.
func PrintLine(w io.Writer, f Format, v Value) error {
	switch f {
	case JSON:
		return encode(w, v.Data, "")
	case YAML:
		if _, err := io.WriteString(w, "---\n"); err != nil {
			return err
		}
	}
	return Print(w, f, v)
}

func printJSON(w io.Writer, data any) error { return encode(w, data, "  ") }

// encode writes JSON, and escapes also what it allows in strings and a terminal obeys.
func encode(w io.Writer, data any, indent string) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", indent)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(data); err != nil {
		return err
	}
	_, err := w.Write(escape(b.Bytes()))
	return err
}

// unsafe reports whether r changes what a terminal shows of the text after it.
func unsafe(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)
}

// escape writes unsafe characters, which can only be within quotes, as \u and four digits. Newlines part lines here.
func escape(b []byte) []byte {
	var out bytes.Buffer
	for _, r := range string(b) {
		if unsafe(r) && r != '\n' {
			fmt.Fprintf(&out, `\u%04x`, r)
			continue
		}
		out.WriteRune(r)
	}
	return out.Bytes()
}

// printYAML goes through JSON, so that both forms have the same names and the same nulls.
func printYAML(w io.Writer, data any) error {
	b, err := json.Marshal(data)
	if err != nil {
		return err
	}
	var node yaml.Node
	if err := yaml.Unmarshal(escape(b), &node); err != nil { // JSON is YAML; a Node keeps the order of the keys
		return err
	}
	block(&node)
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(&node); err != nil {
		return err
	}
	if err := enc.Close(); err != nil {
		return err
	}
	_, err = w.Write(escape(out.Bytes()))
	return err
}

// oldBool are words that readers of YAML 1.1 take for true and false.
var oldBool = map[string]bool{"y": true, "yes": true, "on": true, "n": true, "no": true, "off": true}

// block turns JSON's flow style into YAML's usual one. A text that a terminal must not see as it is stays in quotes, where
// it can be escaped.
func block(n *yaml.Node) {
	n.Style = 0
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" &&
		(oldBool[strings.ToLower(n.Value)] || strings.ContainsFunc(n.Value, func(r rune) bool { return r != '\n' && unsafe(r) })) {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		block(c)
	}
}

// Clean makes text safe for a terminal: every control character, and every character that changes the direction of
// what follows, becomes a space.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unsafe(r) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, s)
}

// CleanText is Clean for text of several lines: newlines and tabs stay.
func CleanText(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		cells := strings.Split(l, "\t")
		for j, c := range cells {
			cells[j] = Clean(c)
		}
		lines[i] = strings.Join(cells, "\t")
	}
	return strings.Join(lines, "\n")
}

// Width is how many terminal columns s takes.
func Width(s string) int { return columns.StringWidth(s) }

// columns counts characters of ambiguous width, such as … and ─, as one column, as terminals do. It does not look at the
// locale, so that what is printed is the same everywhere.
var columns = &runewidth.Condition{StrictEmojiNeutral: true}

// Fit cuts s to at most width columns, with … where something was cut.
func Fit(s string, width int) string {
	if Width(s) <= width {
		return s
	}
	if width <= 0 {
		return ""
	}
	return columns.Truncate(s, width, "…")
}

// Pad fills s with spaces to width columns.
func Pad(s string, width int) string { return columns.FillRight(s, width) }

// Rows prints a table: headings, then rows, columns parted by two spaces, each as wide as its widest cell. width, where
// not 0, is the terminal's: the last column is cut to it.
func Rows(w io.Writer, width int, headings []string, rows [][]string) error {
	widths := make([]int, len(headings))
	all := append([][]string{headings}, rows...)
	for i, row := range all {
		for j := range row {
			if i > 0 {
				row[j] = Clean(row[j])
			}
			widths[j] = max(widths[j], Width(row[j]))
		}
	}
	for _, row := range all {
		var b strings.Builder
		for j, cell := range row {
			if j == len(row)-1 {
				b.WriteString(cell)
				break
			}
			b.WriteString(Pad(cell, widths[j]))
			b.WriteString("  ")
		}
		line := strings.TrimRight(b.String(), " ")
		if width > 0 {
			line = Fit(line, width)
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// Age is how long ago something was, for a table: 12s, 5m, 3h, 4d; "-" for never.
func Age(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	switch d := now.Sub(t); {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// Bytes is a size for people, in binary units.
func Bytes(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	div, exp := int64(unit), 0
	for v := n / unit; v >= unit; v /= unit {
		div *= unit
		exp++
	}
	return fmt.Sprintf("%.1f %ciB", float64(n)/float64(div), "KMGTPE"[exp])
}
