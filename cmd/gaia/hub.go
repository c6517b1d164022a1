package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

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
			v, err := a.verifyLog(ctx, path)
			if err != nil {
				return fmt.Errorf("verify %s: %w", path, err)
			}
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

// logView is a verified event log, as gaia-hub verify prints it.
type logView struct {
	Database string `json:"database"`
	Count    int64  `json:"count"`
	Head     string `json:"head"`
}

// verifyLog has the hub's own program read the database: it knows the form, and no other program opens the file.
func (a *app) verifyLog(ctx context.Context, path string) (logView, error) {
	if _, err := os.Stat(path); err != nil {
		return logView{}, usageError{err}
	}
	program, err := a.hubProgram()
	if err != nil {
		return logView{}, err
	}
	cmd := exec.CommandContext(ctx, program, "verify", "--", path)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		if said := strings.TrimPrefix(strings.TrimSpace(stderr.String()), "gaia-hub: "); said != "" {
			err = errors.New(said)
		}
		return logView{}, err
	}
	var v logView
	if err := json.Unmarshal(out, &v); err != nil {
		return logView{}, fmt.Errorf("read what %s found: %w", program, err)
	}
	return v, nil
}

// hubProgram is the gaia-hub that belongs to this program, else the one in PATH.
func (a *app) hubProgram() (string, error) {
	const name = "gaia-hub"
	bin, err := self()
	if err != nil {
		return "", err
	}
	for _, dir := range append([]string{bin}, filepath.SplitList(a.getenv("PATH"))...) {
		path := filepath.Join(dir, name)
		if st, err := os.Stat(path); err == nil && filepath.IsAbs(path) && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", usagef("%s is neither in %s nor in PATH: install it beside gaia", name, bin)
}
