package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"gaia/hub/events"
	"gaia/hub/store/sqlite"
	"gaia/internal/render"
	"gaia/registry"
)

func (a *app) hubCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "hub", Short: "Look after the hub"}
	cmd.AddCommand(a.hubStatus(), a.hubVerify())
	return cmd
}

// hubView is how the hub is.
type hubView struct {
	Hub   string `json:"hub"`
	Live  bool   `json:"live"`  // it answers
	Ready bool   `json:"ready"` // it can read and write
	Error string `json:"error,omitempty"`
	Seq   int64  `json:"seq"`  // newest entry of the event log
	Head  string `json:"head"` // its hash
}

func (a *app) hubStatus() *cobra.Command {
	return &cobra.Command{
		Use:     "status",
		Short:   "Show whether the hub answers and can write",
		Long:    "Show whether the hub answers and can write. Exits 1 where it cannot write and 5 where it does not answer.",
		Example: "  gaia hub status -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			c, err := a.client()
			if err != nil {
				return err
			}
			v := hubView{Hub: c.Hub()}
			live, ready := c.Health(ctx)
			v.Live, v.Ready = live == nil, ready == nil
			failed := live
			if failed == nil && ready != nil {
				failed = fmt.Errorf("%w; where it runs, this says why: systemctl --user status %s", ready, a.names().Hub())
			}
			if failed == nil {
				v.Seq, v.Head, failed = c.Head(ctx)
			}
			if failed != nil {
				v.Error = failed.Error()
			}
			if err := a.print(render.Value{Data: v, Names: []string{v.Hub}, Table: func(w io.Writer) error {
				state := "ready"
				switch {
				case !v.Live:
					state = "does not answer"
				case !v.Ready:
					state = "answers, but cannot read and write"
				}
				_, err := fmt.Fprintf(w, "%s: %s\n", v.Hub, state)
				if err == nil && v.Head != "" {
					_, err = fmt.Fprintf(w, "event log: %d entries, head %s\n", v.Seq, v.Head)
				}
				return err
			}}); err != nil {
				return err
			}
			return failed
		},
	}
}

func (a *app) hubVerify() *cobra.Command {
	var db string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check that the hub's event log is whole and unchanged",
		Long: `Compute the hash chain of the hub's event log anew, and print how many entries it has and the hash of the last one. It
reads the hub's database without writing, so it also works while the hub is down. Heads that were noted in the
journal when runs were finalised are anchors against a log whose end was cut off.`,
		Example: `  gaia hub verify
  gaia hub verify --db /backup/hub.db -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			path := db
			if path == "" {
				home, err := a.home()
				if err != nil {
					return err
				}
				if path, err = hubDatabase(home); err != nil {
					return err
				}
			}
			count, head, err := verifyLog(ctx, path)
			if err != nil {
				return fmt.Errorf("verify %s: %w", path, err)
			}
			v := struct {
				Database string `json:"database"`
				Count    int64  `json:"count"`
				Head     string `json:"head"`
			}{path, count, hex.EncodeToString(head[:])}
			return a.print(render.Value{Data: v, Names: []string{v.Head}, Table: func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%d entries, head %s: whole\n", v.Count, v.Head)
				return err
			}})
		},
	}
	cmd.Flags().StringVar(&db, "db", "", "database file (default: the user's own hub's)")
	return cmd
}

// hubDatabase is the file that the user's own hub uses.
func hubDatabase(home registry.Home) (string, error) {
	c, err := home.Hub()
	if err != nil {
		return "", err
	}
	if c.Store == "" {
		return home.HubDB(), nil
	}
	path, ok := strings.CutPrefix(c.Store, "sqlite://")
	if !ok {
		return "", usagef("the hub's store %s is no file that can be read here", c.Store)
	}
	return path, nil
}

func verifyLog(ctx context.Context, path string) (int64, [32]byte, error) {
	if _, err := os.Stat(path); err != nil {
		return 0, [32]byte{}, usageError{err}
	}
	log, err := sqlite.OpenLog(ctx, path)
	if err != nil {
		return 0, [32]byte{}, err
	}
	defer log.Close()
	return events.Verify(ctx, events.Reader(ctx, log))
}
