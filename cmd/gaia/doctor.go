package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"gaia/doctor"
	"gaia/internal/render"
	"gaia/journal"
	"gaia/remote"
)

func (a *app) doctorCommand() *cobra.Command {
	var fix, yes bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what keeps Gaia from working, and say how to mend it",
		Long: `Look for what keeps Gaia from working on this machine, and say for each finding which command mends it. Exits 1 where
something is broken; warnings alone are 0.

--fix mends what can be mended without a risk, says what it did, and looks again: unit files of another version, a user
manager that has not read them, folders that are open to others, the socket of the bus or of a hub that is not up. It asks
before it turns linger on. Everything else is left to you, with the command.`,
		Example: `  gaia doctor
  gaia doctor --fix
  gaia doctor -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			home, err := a.home()
			if err != nil {
				return err
			}
			paths, err := a.paths()
			if err != nil {
				return err
			}
			c := doctor.Config{
				Home: home, Names: a.names(), Paths: paths, UID: os.Getuid(), Logind: a.logind(), Path: a.getenv("PATH"), Person: a.interactive(),
				Journal: journal.Reader{Program: a.journalctl, UID: os.Getuid()},
			}
			if a.inRun() {
				c.Path = "" // it is that of runs
			}
			if addr, err := a.address(); err == nil && addr != "unix://"+home.HubSocket() {
				c.Elsewhere = addr
			}
			if client, err := a.client(); err != nil {
				c.HubErr = err
			} else {
				c.Hub = hubClock{client}
			}
			a.waiting.start("looking at this machine")
			found := doctor.Run(ctx, c)
			if fix {
				again, err := a.fix(ctx, found, yes)
				if err != nil {
					return err
				}
				if again {
					a.waiting.start("looking at this machine again")
					found = doctor.Run(ctx, c)
				}
			}
			return a.printFindings(found)
		},
	}
	cmd.Flags().BoolVar(&fix, "fix", false, "mend what can be mended without a risk, and look again")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "with --fix: do not ask")
	return cmd
}

// hubClock adds the hub's time to its client.
type hubClock struct{ *remote.Client }

// Now is the hub's clock, as a snapshot says it.
func (h hubClock) Now(ctx context.Context) (time.Time, error) {
	s, err := h.Snapshot(ctx, "")
	return s.At.Time, err
}

// fix mends what needs no person, or what a person says yes to, and reports whether anything was done. What fails is said,
// and stays a finding.
func (a *app) fix(ctx context.Context, found []doctor.Finding, yes bool) (done bool, err error) {
	for _, f := range found {
		if f.Fix == nil {
			continue
		}
		if f.Fix.Ask != "" && !yes {
			if !a.interactive() {
				a.say("not mended, since nobody can be asked here (--yes does it unasked): %s: %s", f.Check, f.Text)
				continue
			}
			answer, err := a.askYes(f.Fix.Ask)
			if err != nil {
				return done, err
			}
			if !answer {
				continue
			}
		}
		text, err := f.Fix.Do(ctx)
		if err != nil {
			a.say("not mended: %s: %v", f.Check, err)
			continue
		}
		if done = true; text != "" {
			a.say("mended: %s: %s", f.Check, text)
		}
	}
	return done, nil
}

func (a *app) printFindings(found []doctor.Finding) error {
	v := render.Value{Data: found}
	bad := 0
	for _, f := range found {
		if f.Level == doctor.Fail {
			bad++
		}
		if f.Level != doctor.OK {
			v.Names = append(v.Names, f.Check)
		}
	}
	v.Table = func(w io.Writer) error {
		for _, f := range found {
			if _, err := fmt.Fprintf(w, "%-4s  %-18s  %s\n", f.Level, render.Clean(f.Check), render.Clean(f.Text)); err != nil {
				return err
			}
			if f.Mend != "" {
				if _, err := fmt.Fprintf(w, "      mend: %s\n", render.Clean(f.Mend)); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := a.print(v); err != nil {
		return err
	}
	if bad > 0 {
		a.say("%d of %d checks failed", bad, len(found))
		return errUnhealthy
	}
	return nil
}
