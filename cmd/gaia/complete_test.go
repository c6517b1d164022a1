package main

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/registry"
)

// words are what a shell would offer.
func (w *world) words(args ...string) []string {
	w.t.Helper()
	r := w.call("", append([]string{"__complete"}, args...)...)
	require.Zero(w.t, r.code, r.err)
	var out []string
	for _, line := range strings.Split(strings.TrimSpace(r.out), "\n") {
		if !strings.HasPrefix(line, ":") {
			word, _, _ := strings.Cut(line, "\t")
			out = append(out, word)
		}
	}
	return out
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	con := w.shop()
	w.ticket("create", "A title", "--label", "ui")
	w.ticket("create", "T")
	w.ticket("create", "T")
	w.ticket("move", "SHOP-3", "cancelled")
	a, token := w.claim(con)
	require.Equal(t, "SHOP-1", a.Ticket.Identifier)
	home, err := (&app{getenv: func(k string) string { return w.env[k] }}).home()
	require.NoError(t, err)
	checkout := repository(t, t.TempDir(), "shop")
	require.NoError(t, home.Put(t.Context(), registry.Entry{Instance: "shop", Checkout: checkout, Project: "SHOP"}))

	require.ElementsMatch(t, []string{"SHOP-1", "SHOP-2"}, w.words("ticket", "show", ""))
	require.Contains(t, w.call("", "__complete", "ticket", "show", "").out, "SHOP-1\tqualification: A title\n")
	require.Empty(t, w.words("ticket", "show", "SHOP-1", ""))
	require.Equal(t, domain.Open("", "qualification"), w.words("ticket", "move", "SHOP-2", ""))
	require.Equal(t, domain.Open("", "qualification"), w.inside(a, token).words("ticket", "move", ""))
	require.Equal(t, []string{"SHOP-1"}, w.words("attach", ""))
	require.Equal(t, []string{"SHOP/1"}, w.words("run", "show", ""))
	require.Equal(t, []string{"SHOP/1"}, w.words("run", "stop", ""))
	require.Equal(t, []string{"shop"}, w.words("conductor", "status", ""))
	require.Equal(t, []string{"shop"}, w.words("conductor", "reap", "--instance", ""))
	require.Equal(t, []string{"anna.box.shop"}, w.words("ticket", "target", "SHOP-1", ""))
	require.Equal(t, []string{"anna"}, w.words("ticket", "assign", "SHOP-1", ""))
	require.Equal(t, []string{"ui"}, w.words("ticket", "label", "SHOP-1", ""))
	require.Equal(t, []string{"SHOP"}, w.words("board", "--project", ""))
	require.Equal(t, []string{"script"}, w.words("ticket", "create", "--agent", ""))
	require.Contains(t, w.words("ticket", "list", "--state", ""), "customer_review")
	require.Equal(t, []string{"table", "json", "yaml", "name"}, w.words("board", "-o", ""))
	require.Contains(t, w.words("help", "ticket", ""), "create")
	require.Contains(t, w.words("ticket", ""), "create")
}

// TestCompletionOfAHubThatHangs: a shell does not hang with it.
func TestCompletionOfAHubThatHangs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and never answers
	require.NoError(t, err)
	defer l.Close()
	begun := time.Now()
	require.Empty(t, w.with("GAIA_HUB", "http://"+l.Addr().String()).words("ticket", "show", ""))
	require.Less(t, time.Since(begun), 15*completionTime)
	require.Empty(t, w.with("GAIA_HUB", "unix://"+filepath.Join(t.TempDir(), "none")).words("ticket", "show", ""))
}

// TestEveryReferenceIsCompleted: what names an object has words for it.
func TestEveryReferenceIsCompleted(t *testing.T) {
	t.Parallel()
	named := []string{"project", "workflow", "label", "parent", "blocked-by", "assignee", "target", "agent", "by", "remove", "add", "state", "ticket", "instance"}
	each(testRoot(t), func(c *cobra.Command) {
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			for _, name := range named {
				setup := c.Name() == "init" && name == "instance" || c.CommandPath() == "gaia ticket create" && name == "state"
				if f.Name == name && !setup {
					_, ok := c.GetFlagCompletionFunc(name)
					require.True(t, ok, "%s --%s", c.CommandPath(), name)
				}
			}
		})
		if strings.Contains(c.Use, "TICKET") || strings.Contains(c.Use, "[RUN]") || strings.Contains(c.Use, "INSTANCE") {
			require.NotNil(t, c.ValidArgsFunction, c.CommandPath())
		}
	})
}
