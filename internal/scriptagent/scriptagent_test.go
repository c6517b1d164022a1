package scriptagent

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestItTakesATicketToDone runs every state against a gaia command that only notes how it was called.
func TestItTakesATicketToDone(t *testing.T) {
	dir := t.TempDir()
	agent, err := Write(dir)
	require.NoError(t, err)
	notes := filepath.Join(dir, "notes")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "gaia"), []byte("#!/bin/sh\necho \"$2 ${3:-} ${4:-} ${5:-}\" >>'"+notes+"'\n"), 0o755))
	prompt, tree := filepath.Join(dir, "prompt.md"), filepath.Join(dir, "tree")
	require.NoError(t, os.WriteFile(prompt, []byte("do it\n"), 0o600))
	git := func(args ...string) string {
		cmd := exec.Command("git", args...)
		cmd.Dir = tree
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "git %v: %s", args, out)
		return strings.TrimSpace(string(out))
	}
	require.NoError(t, os.Mkdir(tree, 0o755))
	git("init", "--quiet", "--initial-branch=main")
	git("config", "user.name", "Gaia Test")
	git("config", "user.email", "test@gaia.invalid")
	git("commit", "--quiet", "--allow-empty", "-m", "base")

	var comments []string
	workflow, state, runs := "", "qualification", 0
	for ; state != "done"; runs++ {
		require.Less(t, runs, 10, "it goes in circles")
		require.NoError(t, os.RemoveAll(notes))
		cmd := exec.Command(agent)
		cmd.Env = []string{
			"PATH=" + dir + ":/usr/bin:/bin", "HOME=" + dir, "GAIA_TICKET=DEMO-1", "GAIA_STATE=" + state, "GAIA_WORKFLOW=" + workflow,
			"GAIA_ATTEMPT=1", "GAIA_PROMPT=" + prompt, "GAIA_WORKTREE=" + tree,
		}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		noted, err := os.ReadFile(notes)
		require.NoError(t, err)
		lines := strings.Split(strings.TrimSpace(string(noted)), "\n")
		require.Len(t, lines, 2, "a comment, then the move and nothing after it")
		require.Equal(t, "comment", strings.Fields(lines[0])[0])
		comments = append(comments, strings.Fields(lines[0])[2])
		move := strings.Fields(lines[1])
		require.Equal(t, "move", move[0])
		if move[1] == "--workflow" {
			workflow = move[2]
		}
		state = move[len(move)-1]
	}
	require.Equal(t, Runs, runs)
	require.Equal(t, CommentTypes, comments)
	require.Equal(t, "gaia_feature", workflow)
	require.Equal(t, Commits+1, strings.Count(git("log", "--format=%H"), "\n")+1)
	require.Empty(t, git("status", "--porcelain"))
}
