//go:build linux && root

package journal

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/stretchr/testify/require"

	"gaia/internal/log"
	"gaia/internal/usermanager"
)

// TestRootJournalctlExplainsEveryMessage: with the catalog where a package puts it, journalctl -x shows beside each kind of
// message what it means.
func TestRootJournalctlExplainsEveryMessage(t *testing.T) {
	usermanager.NewMachine(t)
	root := t.TempDir()
	source := filepath.Join(root, "usr/lib/systemd/catalog")
	require.NoError(t, os.MkdirAll(source, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(source, "gaia.catalog"), log.Catalog(), 0o644))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "var/lib/systemd/catalog"), 0o755))
	out, err := exec.CommandContext(t.Context(), "journalctl", "--root="+root, "--update-catalog").CombinedOutput()
	require.NoError(t, err, "%s", out)
	// Where journalctl looks; the folder is this machine's own.
	database, err := os.ReadFile(filepath.Join(root, "var/lib/systemd/catalog/database"))
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll("/var/lib/systemd/catalog", 0o755))
	require.NoError(t, os.WriteFile("/var/lib/systemd/catalog/database", database, 0o644))

	for _, e := range strings.Split(string(log.Catalog()), "\n-- ")[1:] {
		head, text, _ := strings.Cut(e, "\n\n")
		id, head, _ := strings.Cut(head, "\n")
		subject, _, _ := strings.Cut(strings.TrimPrefix(head, "Subject: "), "\n")
		require.NoError(t, journal.Send("it happened", journal.PriInfo, map[string]string{log.MessageID: id}))
		deadline := time.Now().Add(time.Minute)
		for {
			out, err := exec.CommandContext(t.Context(), "journalctl", "--no-pager", "-x", log.MessageID+"="+id).Output()
			require.NoError(t, err)
			if strings.Contains(string(out), "it happened") {
				require.Contains(t, string(out), "Subject: "+subject)
				for line := range strings.Lines(text) {
					require.Contains(t, string(out), strings.TrimSpace(line))
				}
				break
			}
			require.True(t, time.Now().Before(deadline), "the journal does not have it")
			time.Sleep(20 * time.Millisecond)
		}
	}
}
