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
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"gaia/internal/render"
)

func (a *app) hubCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "hub", Short: "Look after the hub"}
	cmd.AddCommand(a.hubStatus(), a.hubVerify(), a.hubBackup())
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
				var err error
				if path, err = a.hubDatabase(); err != nil {
					return err
				}
			}
			v, err := a.readLog(ctx, path, "verify", "--", path)
			if err != nil {
				return fmt.Errorf("verify %s: %w", path, err)
			}
			if db == "" {
				a.sayWhose(path)
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

func (a *app) hubBackup() *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Write a verified copy of the hub's database to a new file",
		Long: `Write a consistent copy of the hub's database to a new file, which only its owner can read, and print how many entries the
event log in it has and the hash of the last one. When it says so, the copy is verified and on the disk.

The hub may be at work meanwhile, or be down. A file that is there already is never overwritten, and where the copy
fails there is no file.`,
		Example: `  gaia hub backup ~/hub-backup.db
  gaia hub backup /backup/hub-2026-12-01.db -o json`,
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault // the names of files
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := a.hubDatabase()
			if err != nil {
				return err
			}
			v, err := a.readLog(cmd.Context(), path, "backup", "--", path, args[0])
			if err != nil {
				return fmt.Errorf("back up %s: %w", path, err)
			}
			a.sayWhose(path)
			return a.print(render.Value{Data: v, Names: []string{v.Database}, Table: func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s: %d entries, head %s: whole\n", render.Clean(v.Database), v.Count, v.Head)
				return err
			}})
		},
	}
}

// hubDatabase is the file that the user's own hub uses.
func (a *app) hubDatabase() (string, error) {
	home, err := a.home()
	if err != nil {
		return "", err
	}
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

// sayWhose says that the user's own hub, whose database is at path, is not the one that commands go to: a database that was
// used before there was a team's hub is whole, and not what is meant.
func (a *app) sayWhose(path string) {
	addr, err := a.address()
	if err != nil {
		return
	}
	home, err := a.home()
	if err != nil {
		return
	}
	own := []string{"unix://" + home.HubSocket()}
	if c, err := home.Hub(); err == nil {
		own = append(own, c.Listen...)
	}
	if !slices.Contains(own, addr) && !slices.Contains(own, strings.Replace(addr, "http://", "tcp://", 1)) {
		a.say("%s is the database of your own hub; your commands go to the hub at %s, whose database is where that runs", path, addr)
	}
}

// logView is a verified event log, as gaia-hub prints it.
type logView struct {
	Database string `json:"database"`
	Count    int64  `json:"count"`
	Head     string `json:"head"`
}

// readLog has the hub's own program read the database at path: it knows the form, and no other program opens the file.
func (a *app) readLog(ctx context.Context, path string, args ...string) (logView, error) {
	if _, err := os.Stat(path); err != nil {
		return logView{}, usageError{err}
	}
	program, err := a.hubProgram()
	if err != nil {
		return logView{}, err
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it may have half a copy to remove
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
