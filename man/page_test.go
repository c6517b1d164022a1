// Package man holds the manual pages, and tests that hold every page against the program: what a page names exists, and
// what exists is named.
package man

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// page is one manual page in Markdown.
type page struct {
	name    string // gaia-hub.toml
	section string // 5
	text    string
}

func (p page) String() string { return p.name + "(" + p.section + ")" }

var fileName = regexp.MustCompile(`^(gaia[a-z.-]*|org\.gaia\.[A-Za-z0-9]+)\.([1-8])\.md$`)

func pages(t *testing.T) []page {
	t.Helper()
	files, err := filepath.Glob("*.md")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	var all []page
	for _, f := range files {
		m := fileName.FindStringSubmatch(f)
		require.NotNil(t, m, "%s is not called as a manual page", f)
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		all = append(all, page{m[1], m[2], string(text)})
	}
	return all
}

func pageNamed(t *testing.T, name string) page {
	t.Helper()
	for _, p := range pages(t) {
		if p.String() == name {
			return p
		}
	}
	require.Failf(t, "no page", "there is no page %s", name)
	return page{}
}

// part is a heading with what stands below it, up to the next heading of the same or a higher level.
type part struct{ heading, text string }

// parts returns the parts of a level: 2 for ##, 3 for ###.
func (p page) parts(level int) []part {
	mark := strings.Repeat("#", level) + " "
	var out []part
	open, code := false, false
	for line := range strings.Lines(p.text) {
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		head, is := strings.CutPrefix(line, mark)
		switch {
		case !code && is:
			out, open = append(out, part{heading: strings.TrimSpace(head)}), true
		case !code && strings.HasPrefix(line, "#"):
			depth := len(line) - len(strings.TrimLeft(line, "#"))
			open = open && depth > level
			fallthrough
		default:
			if open {
				out[len(out)-1].text += line
			}
		}
	}
	return out
}

// part returns the text below a heading.
func (p page) part(t *testing.T, level int, heading string) string {
	t.Helper()
	for _, s := range p.parts(level) {
		if s.heading == heading {
			return s.text
		}
	}
	require.Failf(t, "no such part", "%s has no part %q", p, heading)
	return ""
}

// blocks returns the code blocks of a text.
func blocks(text string) []string {
	var out []string
	for i, b := range strings.Split(text, "```") {
		if i%2 == 1 {
			out = append(out, strings.TrimPrefix(b, "\n"))
		}
	}
	return out
}

// terms returns the terms of definition lists: the lines before one that begins with a colon.
func terms(text string) []string {
	var out []string
	last := ""
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, ": ") {
			out = append(out, strings.TrimSpace(last))
		}
		last = line
	}
	return out
}

// tables returns the tables of a text as rows of cells, each without its header.
func tables(text string) [][][]string {
	var out [][][]string
	inside := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			inside = false
			continue
		}
		if strings.HasPrefix(line, "|---") {
			out, inside = append(out, nil), true
			continue
		}
		if !inside {
			continue
		}
		var row []string
		for _, cell := range strings.Split(strings.Trim(line, "|"), "|") {
			row = append(row, strings.ReplaceAll(strings.TrimSpace(cell), `\*`, "*"))
		}
		out[len(out)-1] = append(out[len(out)-1], row)
	}
	return out
}

// column returns the first words of a table's column.
func column(table [][]string, i int) []string {
	var out []string
	for _, row := range table {
		out = append(out, row[i])
	}
	return out
}

func TestEveryPageIsOne(t *testing.T) {
	t.Parallel()
	title := regexp.MustCompile(`^# ([A-Z0-9.-]+) ([1-8]) "2[0-9]{3}-[0-9]{2}-[0-9]{2}" "Gaia" "[A-Z][A-Za-z ]+"\n`)
	for _, p := range pages(t) {
		m := title.FindStringSubmatch(p.text)
		require.NotNil(t, m, "%s begins with no title", p)
		require.Equal(t, strings.ToUpper(p.name), m[1], p)
		require.Equal(t, p.section, m[2], p)
		require.True(t, strings.HasPrefix(p.part(t, 2, "NAME"), "\n"+p.name+" - "), p)
		for _, heading := range []string{"DESCRIPTION", "SEE ALSO"} {
			require.NotEmpty(t, p.part(t, 2, heading), "%s: %s", p, heading)
		}
	}
}

// What is said to be described in a page of Gaia's, anywhere in the tree, is one that exists.
func TestReferencesLeadToPages(t *testing.T) {
	t.Parallel()
	exists := map[string]bool{}
	for _, p := range pages(t) {
		exists[p.String()] = true
	}
	reference := regexp.MustCompile(`\b(gaia[a-z.-]*|org\.gaia\.[A-Za-z0-9]+)(?:\*\*)?\(([1-8])\)`)
	found := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); name == ".git" || name == "build" {
				return fs.SkipDir
			}
			return nil
		}
		if info, err := d.Info(); err != nil || info.Size() > 1<<20 || !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil // others work in the tree, and a file may be gone by now
		}
		for _, m := range reference.FindAllStringSubmatch(string(text), -1) {
			name := m[1] + "(" + m[2] + ")"
			found[name] = true
			if !exists[name] {
				t.Errorf("%s: there is no page %s", path, name)
			}
		}
		return nil
	})
	require.NoError(t, err)
	for name := range exists {
		require.True(t, found[name], "nothing leads to %s", name)
	}
}
