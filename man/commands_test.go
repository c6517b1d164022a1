package man

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// command is what a program says of one of its commands.
type command struct {
	usage string          // without the flags: gaia ticket show [TICKET]
	flags map[string]bool // its own, as they are written: --watch, -w
}

// global are the flags that every command of gaia has.
var global = []string{"--hub", "--output", "-o", "--help", "-h"}

var flagLine = regexp.MustCompile(`^ +(?:(-[a-zA-Z]), )?(--[a-z-]+)`)

// commands reads what gaia says of its commands, by name. The file is held against the program by the tests beside it.
func commands(t *testing.T) map[string]command {
	t.Helper()
	data, err := os.ReadFile("../cmd/gaia/testdata/help.golden")
	require.NoError(t, err)
	all := map[string]command{}
	for _, text := range strings.Split("\n"+string(data), "\n$ ")[1:] {
		call, text, _ := strings.Cut(text, "\n")
		name, ok := strings.CutSuffix(call, " --help")
		require.True(t, ok, call)
		c, below := understand(text)
		if name == "gaia completion" { // cobra's own; its page part is one for all shells
			c, below = command{usage: name + " " + strings.Join(below, "|"), flags: map[string]bool{"--no-descriptions": true}}, nil
		}
		if len(below) == 0 {
			all[name] = c
		}
	}
	return all
}

// understand reads the help of one command, and which commands are below it.
func understand(text string) (c command, below []string) {
	c.flags = map[string]bool{}
	what := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case !strings.HasPrefix(line, " "):
			what = line
		case what == "Usage:" && strings.HasSuffix(line, "[command]"):
		case what == "Available Commands:" || what == "Work:":
			below = append(below, strings.Fields(line)[0])
		case what == "Usage:":
			c.usage = strings.TrimSuffix(strings.TrimSpace(line), " [flags]")
		case what == "Flags:":
			if m := flagLine.FindStringSubmatch(line); m != nil {
				for _, f := range m[1:] {
					if f != "" && !slices.Contains(global, f) {
						c.flags[f] = true
					}
				}
			}
		}
	}
	return c, below
}

var flagName = regexp.MustCompile(`\*\*(--?[a-zA-Z][a-z-]*)\*\*`)

// flagsIn returns the flags that are the terms of a text's definition lists.
func flagsIn(text string) map[string]bool {
	flags := map[string]bool{}
	for _, term := range terms(text) {
		for _, m := range flagName.FindAllStringSubmatch(term, -1) {
			flags[m[1]] = true
		}
	}
	return flags
}

// Every command has its part, with exactly its usage and its flags, and every part is that of a command.
func TestEveryCommandAndFlagIsDescribed(t *testing.T) {
	t.Parallel()
	all := commands(t)
	require.Greater(t, len(all), 30, "the help is not understood")
	byUsage := map[string]command{}
	home := map[string]string{} // page of a command
	for name, c := range all {
		byUsage[c.usage] = c
		home[c.usage] = "gaia(1)"
		switch group := strings.Fields(name)[1]; group {
		case "ticket", "run", "conductor":
			home[c.usage] = "gaia-" + group + "(1)"
		case "hub":
			home[c.usage] = "gaia-hub(8)"
		}
	}
	described := map[string]bool{}
	for _, p := range pages(t) {
		for _, s := range p.parts(3) {
			if !strings.HasPrefix(s.heading, "gaia ") {
				continue
			}
			c, ok := byUsage[s.heading]
			if !ok {
				t.Errorf("%s describes %q, which is no command; look at: gaia --help", p, s.heading)
				continue
			}
			described[s.heading] = true
			require.Equal(t, home[s.heading], p.String(), s.heading)
			require.Equal(t, slices.Sorted(maps.Keys(c.flags)), slices.Sorted(maps.Keys(flagsIn(s.text))), "%s: flags of %s", p, s.heading)
		}
	}
	for usage := range byUsage {
		if !described[usage] {
			t.Errorf("%s does not describe %q", home[usage], usage)
		}
	}
	require.ElementsMatch(t, global, slices.Collect(maps.Keys(flagsIn(pageNamed(t, "gaia(1)").part(t, 2, "OPTIONS")))))

	for _, daemon := range []struct{ source, page, part string }{
		{"../cmd/gaia-hub/main.go", "gaia-hub(8)", "OPTIONS OF GAIA-HUB"},
		{"../cmd/gaia-conductor/main.go", "gaia-conductor(8)", "OPTIONS"},
	} {
		source, err := os.ReadFile(daemon.source)
		require.NoError(t, err)
		var flags []string
		for _, m := range regexp.MustCompile(`\.Flags\(\)\.\w+Var\(&\w+, "([a-z-]+)"`).FindAllStringSubmatch(string(source), -1) {
			flags = append(flags, "--"+m[1])
		}
		require.NotEmpty(t, flags, daemon.source)
		require.ElementsMatch(t, flags, slices.Collect(maps.Keys(flagsIn(pageNamed(t, daemon.page).part(t, 2, daemon.part)))), daemon.page)
	}

	for _, p := range pages(t) {
		for _, words := range calls(p.text) {
			checkCall(t, p, all, words)
		}
	}
}

var bold = regexp.MustCompile(`\*\*(gaia [^*]+)\*\*`)

// calls returns the words of every call of gaia in code blocks and in bold.
func calls(text string) [][]string {
	var out [][]string
	for _, block := range blocks(text) {
		for line := range strings.Lines(block) {
			if _, after, ok := strings.Cut(line, "| gaia "); ok {
				line = "gaia " + after
			}
			if strings.HasPrefix(line, "gaia ") {
				out = append(out, strings.Fields(line))
			}
		}
	}
	for _, m := range bold.FindAllStringSubmatch(text, -1) {
		out = append(out, strings.Fields(m[1]))
	}
	return out
}

// checkCall sees that a call names a command, or a group of commands, and flags that it has.
func checkCall(t *testing.T, p page, all map[string]command, words []string) {
	t.Helper()
	name := words[0]
	for _, w := range words[1:] {
		longer := name + " " + w
		if !slices.ContainsFunc(slices.Collect(maps.Keys(all)), func(c string) bool { return c == longer || strings.HasPrefix(c, longer+" ") }) {
			break
		}
		name = longer
	}
	require.NotEqual(t, "gaia", name, "%s: %q names no command", p, strings.Join(words, " "))
	for _, w := range words {
		flag, _, _ := strings.Cut(w, "=")
		if !regexp.MustCompile(`^--?[a-zA-Z][a-z-]*$`).MatchString(flag) || slices.Contains(global, flag) {
			continue
		}
		require.True(t, all[name].flags[flag], "%s: %q: %s has no flag %s", p, strings.Join(words, " "), name, flag)
	}
}

// The environment that the command looks at, and its exit codes.
func TestTheCommandsEnvironmentAndExitCodes(t *testing.T) {
	t.Parallel()
	source := ""
	for _, pattern := range []string{"../cmd/gaia/*.go", "../registry/home.go", "../internal/log/log.go"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			text, err := os.ReadFile(f)
			require.NoError(t, err)
			source += string(text)
		}
	}
	read := map[string]bool{"PATH": true}
	for _, m := range regexp.MustCompile(`(?:[gG]etenv|xdg|LookupEnv)\("([A-Z_]+)"|range \[\]string\{("[A-Z_]+"(?:, "[A-Z_]+")*)\}`).FindAllStringSubmatch(source, -1) {
		for _, name := range strings.Split(m[1]+m[2], ", ") {
			read[strings.Trim(name, `"`)] = true
		}
	}
	named := map[string]bool{}
	p := pageNamed(t, "gaia(1)")
	for _, term := range terms(p.part(t, 2, "ENVIRONMENT")) {
		for _, m := range regexp.MustCompile(`\*\*([A-Z_]+)\*\*`).FindAllStringSubmatch(term, -1) {
			named[m[1]] = true
		}
	}
	require.Equal(t, slices.Sorted(maps.Keys(read)), slices.Sorted(maps.Keys(named)))

	for _, c := range []struct{ page, source string }{
		{"gaia(1)", "../cmd/gaia/app.go"}, {"gaia-hub(8)", "../cmd/gaia-hub/main.go"},
		{"gaia-conductor(8)", "../cmd/gaia-conductor/main.go"}, {"gaia-session(8)", "../session/host/doc.go"},
	} {
		text, err := os.ReadFile(c.source)
		require.NoError(t, err)
		codes := map[string]bool{"0": true}
		if c.page == "gaia-session(8)" {
			codes["2"] = true // of wrong usage, in the command itself
		}
		for _, m := range regexp.MustCompile(`(?m)^\s+[eE]xit[A-Z]\w+ +=? *(\d+)`).FindAllStringSubmatch(string(text), -1) {
			codes[m[1]] = true
		}
		require.Greater(t, len(codes), 2, c.source)
		listed := map[string]bool{}
		for _, term := range terms(pageNamed(t, c.page).part(t, 2, "EXIT STATUS")) {
			listed[strings.Trim(term, "*")] = true
		}
		require.Equal(t, slices.Sorted(maps.Keys(codes)), slices.Sorted(maps.Keys(listed)), c.page)
	}
}
