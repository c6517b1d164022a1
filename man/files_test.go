package man

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/registry"
)

// probe is a key that no file knows; the refusal tells the keys that are known.
const probe = "zz_probe"

// known returns the keys that a parser knows in a table, "" being the top, or nil where there is no such table.
func known(t *testing.T, parse func([]byte) error, header string) []string {
	t.Helper()
	text := probe + " = 1\n"
	if header != "" {
		text = header + "\n" + text
	}
	var all []string
	_ = walk(parse([]byte(text)), func(e *registry.ConfigError) {
		_, list, ok := strings.Cut(e.Err.Error(), "known here are ")
		if ok && strings.HasSuffix(e.Key, probe) {
			all = strings.Split(list, ", ")
		}
	})
	all = slices.DeleteFunc(all, func(k string) bool { return k == probe })
	slices.Sort(all)
	return all
}

// walk calls fn with every ConfigError that err is made of.
func walk(err error, fn func(*registry.ConfigError)) error {
	var many interface{ Unwrap() []error }
	if errors.As(err, &many) {
		for _, e := range many.Unwrap() {
			_ = walk(e, fn)
		}
		return err
	}
	var one *registry.ConfigError
	if errors.As(err, &one) {
		fn(one)
	}
	return err
}

var (
	keyTerm    = regexp.MustCompile(`^\*\*([A-Za-z_0-9]+)\*\* = `)
	defaultIs  = regexp.MustCompile("Default:\\s+`([^`]+)`")
	tableTitle = regexp.MustCompile(`^\[+([a-z_]+)(?:\.[A-Z]+)?\]+$`)
)

// entry is a key as a page describes it.
type entry struct{ name, value string } // value is the default, "" where the page names none

func entries(text string) []entry {
	var out []entry
	head, _, _ := strings.Cut(text, "\n### ")
	for _, block := range strings.Split(head, "\n\n") {
		m := keyTerm.FindStringSubmatch(strings.TrimSpace(block))
		if m == nil {
			continue
		}
		e := entry{name: m[1]}
		if d := defaultIs.FindStringSubmatch(block); d != nil {
			e.value = d[1]
		}
		out = append(out, e)
	}
	return out
}

func names(all []entry) []string {
	var out []string
	for _, e := range all {
		out = append(out, e.name)
	}
	slices.Sort(out)
	return out
}

// format is a file with a page.
type format struct {
	page, part string
	parse      func([]byte) (any, error)
	least      string // the shortest file
	// named are the tables that stand for several, with one of them.
	named map[string]string
}

func (f format) err(data []byte) error { _, err := f.parse(data); return err }

var formats = []format{
	{
		page: "gaia-conductor.toml(5)", part: "KEYS",
		parse: func(b []byte) (any, error) { return registry.ParseCheckout("conductor.toml", b) },
		least: "schema = 1\nproject = \"SHOP\"\nslug = \"shop\"\n",
		named: map[string]string{"[hooks.NAME]": "[hooks.before_run]"},
	},
	{
		page: "gaia-machine.toml(5)", part: "KEYS",
		parse: func(b []byte) (any, error) { return registry.ParseMachine("machine.toml", b) },
		least: "user_id = \"ada\"\nhost_id = \"desk\"\n",
		named: map[string]string{"[agents.NAME]": "[agents.script]"},
	},
	{
		page: "gaia-hub.toml(5)", part: "KEYS",
		parse: func(b []byte) (any, error) { return registry.ParseHub("hub.toml", b) },
	},
	{
		page: "gaia-registry(5)", part: "TRUST.TOML",
		parse: func(b []byte) (any, error) { return registry.ParseTrust("trust.toml", b) },
		least: "schema = 1\n",
	},
}

// Every key that a parser knows is described, every key that is described is known, and every default is the one that
// holds.
func TestEveryKeyIsDescribed(t *testing.T) {
	t.Parallel()
	for _, f := range formats {
		p := pageNamed(t, f.page)
		body := p.part(t, 2, f.part)
		top := entries("\n" + body)
		described := names(top)
		defaults := f.least
		for _, e := range top {
			if e.value != "" {
				defaults += e.name + " = " + e.value + "\n"
			}
		}
		for _, s := range (page{text: body}).parts(3) {
			m := tableTitle.FindStringSubmatch(s.heading)
			require.NotNil(t, m, "%s: %q is no table", f.page, s.heading)
			described = append(described, m[1])
			header := s.heading
			if one, ok := f.named[header]; ok {
				header = one
			}
			keys := entries("\n" + s.text)
			if m[1] == "slots" {
				require.Equal(t, []string{"STATE"}, names(keys))
				continue
			}
			require.Equal(t, known(t, f.err, header), names(keys), "%s: keys of %s", f.page, s.heading)
			if strings.HasPrefix(header, "[[") || header != s.heading {
				continue // such a table is not there by default
			}
			defaults += header + "\n"
			for _, e := range keys {
				if e.value != "" {
					defaults += e.name + " = " + e.value + "\n"
				}
			}
		}
		slices.Sort(described)
		require.Equal(t, known(t, f.err, ""), slices.Compact(described), "%s: keys", f.page)
		want, err := f.parse([]byte(f.least))
		require.NoError(t, err, f.page)
		got, err := f.parse([]byte(defaults))
		require.NoError(t, err, f.page)
		require.Equal(t, want, got, "%s: what the page names as defaults:\n%s", f.page, defaults)
	}
}

// Every example is a file that is accepted.
func TestExamplesAreAccepted(t *testing.T) {
	t.Parallel()
	for _, f := range formats {
		part := "EXAMPLES"
		if f.page == "gaia-registry(5)" {
			part = f.part
		}
		examples := blocks(pageNamed(t, f.page).part(t, 2, part))
		require.NotEmpty(t, examples, f.page)
		for _, e := range examples {
			require.NoError(t, f.err([]byte(e)), f.page)
		}
	}
	examples := blocks(pageNamed(t, "gaia-registry(5)").part(t, 2, "CONDUCTORS.JSON"))
	require.Len(t, examples, 1)
	got, err := registry.ParseEntries([]byte(examples[0]))
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.NotEmpty(t, got[0].Path)
}

// A hook and a table of an agent have their defaults, too.
func TestDefaultsOfTablesThatAreNotThere(t *testing.T) {
	t.Parallel()
	c, err := registry.ParseCheckout("conductor.toml", []byte(formats[0].least+"[hooks.after_run]\nrun = \"true\"\n"))
	require.NoError(t, err)
	require.Equal(t, "1m0s", c.Hooks.AfterRun.Timeout.String())
	require.Contains(t, entries("\n"+pageNamed(t, "gaia-conductor.toml(5)").part(t, 3, "[hooks.NAME]")), entry{"timeout", `"1m"`})
	m, err := registry.ParseMachine("machine.toml", []byte(formats[1].least+"[[route]]\nagent = \"script\"\nlabel = \"x\"\n"))
	require.NoError(t, err)
	require.Equal(t, 1, m.Routes[0].Score)
	require.Contains(t, entries("\n"+pageNamed(t, "gaia-machine.toml(5)").part(t, 3, "[[route]]")), entry{"score", "1"})
}

func TestKeysOfConductorsJSON(t *testing.T) {
	t.Parallel()
	want := append(jsonKeys(registry.Entry{}), "schema", "conductors")
	var got []string
	for _, term := range terms(pageNamed(t, "gaia-registry(5)").part(t, 2, "CONDUCTORS.JSON")) {
		got = append(got, strings.Trim(term, "*"))
	}
	require.ElementsMatch(t, want, got)
}

// jsonKeys returns the keys of a value as JSON has them.
func jsonKeys(v any) []string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	m := map[string]any{}
	if err := json.Unmarshal(data, &m); err != nil {
		panic(err)
	}
	keys := slices.Sorted(maps.Keys(m))
	if len(keys) != reflect.TypeOf(v).NumField() {
		panic("a key is left out of the empty value")
	}
	return keys
}
