package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// each calls fn with every command that people see.
func each(cmd *cobra.Command, fn func(*cobra.Command)) {
	fn(cmd)
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() || c.Name() == "help" {
			each(c, fn)
		}
	}
}

func testRoot(t *testing.T) *cobra.Command {
	w := &world{t: t, env: map[string]string{}}
	return w.app(strings.NewReader(""), &bytes.Buffer{}, &bytes.Buffer{}).root()
}

func TestEveryCommandSaysWhatItIsFor(t *testing.T) {
	t.Parallel()
	each(testRoot(t), func(c *cobra.Command) {
		path := c.CommandPath()
		require.NotEmpty(t, c.Short, path)
		require.Equal(t, strings.ToUpper(c.Short[:1]), c.Short[:1], path)
		require.NotRegexp(t, `\.$`, c.Short, path)
		require.NotNil(t, c.Args, path)
		require.NotNil(t, c.RunE, path)
		if c.HasSubCommands() && c.HasParent() && c.Name() != "completion" {
			return
		}
		require.NotEmpty(t, c.Example, path)
		for _, line := range strings.Split(c.Example, "\n") {
			require.Regexp(t, `^  (gaia |git .*\| gaia )`, line, path)
		}
		require.Contains(t, c.Example, path, "an example of the command itself")
	})
}

// TestFlags: flags that are everywhere mean the same everywhere, and every flag says what it is.
func TestFlags(t *testing.T) {
	t.Parallel()
	short := map[string]string{}
	each(testRoot(t), func(c *cobra.Command) {
		seen := map[string]bool{}
		c.InheritedFlags().VisitAll(func(f *pflag.Flag) { seen[f.Name] = true })
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			require.False(t, seen[f.Name], "%s --%s hides an inherited flag", c.CommandPath(), f.Name)
			require.NotEmpty(t, f.Usage, "%s --%s", c.CommandPath(), f.Name)
			if f.Shorthand == "" || f.Name == "help" {
				return
			}
			key := f.Shorthand
			if key == "n" { // lines of a journal, and dry-run: each as people know it
				return
			}
			if have := short[key]; have != "" {
				require.True(t, have == f.Name, "-%s is --%s and, in %s, --%s", key, have, c.CommandPath(), f.Name)
			}
			short[key] = f.Name
		})
	})
}

// TestExamplesParse: what the help shows can be typed.
func TestExamplesParse(t *testing.T) {
	t.Parallel()
	each(testRoot(t), func(c *cobra.Command) {
		for _, line := range strings.Split(c.Example, "\n") {
			if line == "" {
				continue
			}
			line, _, _ = strings.Cut(line, "     #")
			_, line, _ = strings.Cut(line, "gaia ")
			line, _, _ = strings.Cut(line, " > ")
			line, _, _ = strings.Cut(line, "   #")
			words := shellWords(line)
			root := testRoot(t)
			at, rest, err := root.Find(words)
			require.NoError(t, err, line)
			require.NoError(t, at.ParseFlags(rest), line)
			require.NoError(t, at.ValidateArgs(at.Flags().Args()), line)
		}
	})
}

func shellWords(line string) []string {
	var words []string
	var word strings.Builder
	quote, open := rune(0), false
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '"' || r == '\'':
			quote, open = r, true
		case r == ' ':
			if open || word.Len() > 0 {
				words = append(words, word.String())
			}
			word.Reset()
			open = false
		default:
			word.WriteRune(r)
		}
	}
	if open || word.Len() > 0 {
		words = append(words, word.String())
	}
	return words
}

func TestHelp(t *testing.T) {
	t.Parallel()
	w := &world{t: t, env: map[string]string{}}
	var all strings.Builder
	each(testRoot(t), func(c *cobra.Command) {
		words := strings.Fields(c.CommandPath())[1:]
		if len(words) > 0 && words[0] == "completion" && len(words) > 1 {
			return // cobra's text
		}
		out := w.gaia(append(words, "--help")...)
		for _, line := range strings.Split(out, "\n") {
			require.LessOrEqual(t, len([]rune(line)), 140, "%s: %s", c.CommandPath(), line)
		}
		fmt.Fprintf(&all, "$ gaia %s\n%s\n", strings.Join(append(words, "--help"), " "), out)
		if len(words) > 0 {
			require.Equal(t, out, w.gaia(append([]string{"help"}, words...)...))
		}
	})
	golden(t, "help.golden", all.String())
}

func TestWrongWords(t *testing.T) {
	t.Parallel()
	w := &world{t: t, env: map[string]string{"HOME": t.TempDir(), "XDG_RUNTIME_DIR": t.TempDir()}}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"tiket"}, `unknown command "tiket" for "gaia"; did you mean ticket?`},
		{[]string{"ticket", "lst"}, "did you mean list?"},
		{[]string{"completion", "basch"}, "did you mean bash?"},
		{[]string{"help", "tiket"}, `there is no command "tiket"`},
		{[]string{"board", "extra"}, "Usage: gaia board"},
		{[]string{"board", "--nope"}, "See gaia board --help"},
		{[]string{"board", "-o", "xml"}, "none of table, json, yaml, name"},
		{[]string{"run", "list", "--limit", "-1"}, "less than 0"},
		{[]string{"run", "list", "--limit", "many"}, "See gaia run list --help"},
		{[]string{"ticket", "list", "--state", "codng"}, `there is no state "codng"; there are:`},
		{[]string{"ticket", "list", "--workflow", "gaia"}, "gaia_bug"},
		{[]string{"ticket", "show"}, "which ticket? Give its identifier"},
		{[]string{"ticket", "move", "todo"}, "which ticket? Give its identifier"},
		{[]string{"ticket", "create"}, "Usage: gaia ticket create TITLE"},
		{[]string{"ticket", "create", "T", "--priority", "soon"}, "neither a number nor none"},
		{[]string{"ticket", "create", "T", "--priority", "NaN"}, "neither a number nor none"},
		{[]string{"ticket", "create", "T", "--not-before", "tomorrow"}, "--not-before"},
		{[]string{"ticket", "create", "T", "-d", "x", "-F", "y"}, "given twice"},
		{[]string{"ticket", "create", "T", "-F", "/nonexistent"}, "read the text"},
		{[]string{"ticket", "comment", "SHOP-1"}, "which ticket?"},
		{[]string{"ticket", "comment", "SHOP-1", "text", "-F", "-"}, "give the text either as an argument or with -F"},
		{[]string{"ticket", "assign", "SHOP-1"}, "which ticket?"},
		{[]string{"ticket", "assign", "SHOP-1", "ada", "--none"}, "give either USER or --none"},
		{[]string{"ticket", "block", "SHOP-1"}, "give --by or --remove"},
		{[]string{"ticket", "label", "SHOP-1"}, "give a label"},
		{[]string{"ticket", "repair", "SHOP-1", "coding"}, "give --reason"},
		{[]string{"--hub", "ftp://x", "board"}, "is no hub"},
		{[]string{"board"}, "gaia init"}, // no machine.toml
	} {
		require.Contains(t, w.fails(exitUsage, c.args...), c.says, "gaia %q", c.args)
	}
}
