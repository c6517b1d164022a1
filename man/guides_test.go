package man

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/domain"
)

// guides are the texts in Markdown that are read outside of man.
func guides(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../docs/*.md")
	require.NoError(t, err)
	all := map[string]string{}
	for _, f := range append(files, "../README.md", "../CONTRIBUTING.md") {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		all[f] = string(text)
	}
	require.Greater(t, len(all), 4)
	return all
}

var (
	codeSpan  = regexp.MustCompile("`(gaia [^`]+)`")
	comment   = regexp.MustCompile(`\s+#.*`)
	noCommand = regexp.MustCompile(`^[^a-z-]`) // gaia COMMAND, and a drawing
)

// Every call of gaia in a guide names a command and flags that it has.
func TestGuidesNameCommandsThatExist(t *testing.T) {
	t.Parallel()
	all := commands(t)
	for name, text := range guides(t) {
		var found []string
		fenced := false
		for line := range strings.Lines(text) {
			_, isCode := strings.CutPrefix(line, "    ")
			switch {
			case strings.HasPrefix(line, "```"):
				fenced = !fenced
			case fenced || isCode:
				if line = strings.TrimSpace(comment.ReplaceAllString(line, "")); strings.HasPrefix(line, "gaia ") {
					found = append(found, line)
				}
			default:
				for _, m := range codeSpan.FindAllStringSubmatch(line, -1) {
					found = append(found, m[1])
				}
			}
		}
		for _, call := range found {
			words := strings.Fields(call)
			if noCommand.MatchString(words[1]) {
				continue
			}
			checkCall(t, page{name: name}, all, words)
		}
	}
}

var (
	link    = regexp.MustCompile(`!?\[[^\]]*\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	manual  = regexp.MustCompile("`man ([a-z.-]+)`")
)

// anchor is what a heading is called in a link.
func anchor(text string) string {
	text = strings.ToLower(strings.TrimSpace(text))
	text = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(text, "")
	return strings.ReplaceAll(text, " ", "-")
}

// Every link between the guides leads somewhere, and so does every manual page that they name.
func TestLinksOfGuidesLeadSomewhere(t *testing.T) {
	t.Parallel()
	texts := guides(t)
	known := map[string]bool{}
	for _, p := range pages(t) {
		known[p.name] = true
		if strings.HasSuffix(p.name, ".toml") {
			known[strings.TrimPrefix(p.name, "gaia-")] = true
		}
	}
	for name, text := range texts {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, part, _ := strings.Cut(m[1], "#")
			path := name
			if file != "" {
				path = filepath.Join(filepath.Dir(name), file)
			}
			require.FileExists(t, path, "%s: %s", name, m[1])
			if part == "" {
				continue
			}
			var anchors []string
			for _, h := range heading.FindAllStringSubmatch(texts[path], -1) {
				anchors = append(anchors, anchor(h[1]))
			}
			require.Contains(t, anchors, part, "%s: %s", name, m[1])
		}
		for _, m := range manual.FindAllStringSubmatch(text, -1) {
			require.True(t, known[m[1]], "%s: there is no manual page %s", name, m[1])
		}
	}
}

var agentScript = regexp.MustCompile(`(?s)cat >~/bin/try-gaia <<'EOT'\n(.*?)\nEOT\n`)

// The agent of the guide for developers takes a ticket of every workflow that has code to its end, and leaves a workflow that it has.
func TestTheGuidesAgent(t *testing.T) {
	t.Parallel()
	m := agentScript.FindStringSubmatch(guides(t)["../docs/developer.md"])
	require.NotNil(t, m)
	bin, tree := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{"gaia": "#!/bin/sh\necho \"$*\"\n", "git": "#!/bin/sh\n", "sleep": "#!/bin/sh\n", "try-gaia": m[1]} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(text), 0o700))
	}
	for _, workflow := range []string{"", "gaia_feature", "gaia_bug", "gaia_chore"} {
		state, moved := "qualification", workflow
		for range 3 {
			cmd := exec.Command(filepath.Join(bin, "try-gaia"))
			cmd.Dir = tree
			cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "GAIA_TICKET=SHOP-1", "GAIA_STATE=" + state, "GAIA_WORKFLOW=" + moved}
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			words := strings.Fields(lines[len(lines)-1])
			require.Equal(t, []string{"ticket", "move"}, words[:2])
			if len(words) == 5 {
				require.Equal(t, "--workflow", words[2])
				moved = words[3]
			}
			to := words[len(words)-1]
			require.NotEmpty(t, moved)
			require.Contains(t, domain.Open(moved, state), to)
			state = to
		}
		require.Equal(t, "done", state)
		if workflow != "" {
			require.Equal(t, workflow, moved)
		}
	}
}
