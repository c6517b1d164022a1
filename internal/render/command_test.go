package render

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCommand: a shell reads from it the words that it was made of.
func TestCommand(t *testing.T) {
	t.Parallel()
	require.Equal(t, "gaia ticket create 'Add a dark mode' -l ui,big", Command("gaia", "ticket", "create", "Add a dark mode", "-l", "ui,big"))
	words := []string{"printf", `%s\0`, "", " ", "a'b", `"$HOME"`, "`x`", "~", "#", "*", "a=b", "!", "日本", "a\nb", `\`, "a;b", "-x"}
	out, err := exec.CommandContext(t.Context(), "sh", "-c", Command(words...)).Output()
	require.NoError(t, err)
	require.Equal(t, words[2:], strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"))
}
