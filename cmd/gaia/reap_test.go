package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReapOnANarrowTerminal: why a tree is kept can be read there, too.
func TestReapOnANarrowTerminal(t *testing.T) {
	t.Parallel()
	w := bare(t, "shop")
	require.Zero(t, w.call("", allFlags...).code)
	git(t, w.dir, "add", ".")
	git(t, w.dir, "commit", "--quiet", "-m", "Gaia")
	tree := filepath.Join(w.env["GAIA_HOME"], "worktrees", "shop", "SHOP-1")
	git(t, w.dir, "worktree", "add", "--quiet", "-b", "gaia/SHOP-1", tree)
	why := tree + " was never finished, or Gaia did not make it"
	require.Contains(t, w.gaia("conductor", "reap", "--dry-run"), "  "+tree+"  "+why+"\n")

	m := newTerminal(t)
	done := make(chan int, 1)
	go func() {
		done <- w.app(m.tty, m.tty, m.tty).run(t.Context(), []string{"conductor", "reap", "--dry-run"})
	}()
	require.Contains(t, m.until("did not make it"), "  "+tree+"\r\n  "+why)
	require.Zero(t, <-done)
}
