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
	"gaia/remote"
	"gaia/units"
)

func (a *app) doctorCommand() *cobra.Command {
	var fix bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what keeps Gaia from working, and say how to mend it",
		Long: `Look for what keeps Gaia from working on this machine, and say for each finding which command mends it. Exits 1 where
something is broken; warnings alone are 0. --fix puts unit files right that are of another version.`,
		Example: `  gaia doctor
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
			if fix {
				if err := a.fix(ctx, paths); err != nil {
					return err
				}
			}
			c := doctor.Config{Home: home, Names: a.names(), Paths: paths, UID: os.Getuid()}
			if addr, err := a.address(); err == nil && addr != "unix://"+home.HubSocket() {
				c.Elsewhere = addr
			}
			if client, err := a.client(); err != nil {
				c.HubErr = err
			} else {
				c.Hub = hubClock{client}
			}
			a.waiting.start("looking at this machine")
			return a.printFindings(doctor.Run(ctx, c))
		},
	}
	cmd.Flags().BoolVar(&fix, "fix", false, "put unit files right before looking")
	return cmd
}

// hubClock adds the hub's time to its client.
type hubClock struct{ *remote.Client }

// Now is the hub's clock, as a snapshot says it.
func (h hubClock) Now(ctx context.Context) (time.Time, error) {
	s, err := h.Snapshot(ctx, "")
	return s.At.Time, err
}

// fix puts right what can be put right without losing anything.
func (a *app) fix(ctx context.Context, paths units.Paths) error {
	home, err := a.home()
	if err != nil {
		return err
	}
	man, err := a.manager(ctx, home)
	if err != nil {
		return err
	}
	defer man.Close()
	drifts, err := units.FindDrift(ctx, man, a.names(), paths)
	if err != nil {
		return fmt.Errorf("look at the unit files: %w", err)
	}
	if len(drifts) == 0 {
		return nil
	}
	if err := units.Mend(ctx, man, drifts); err != nil {
		return fmt.Errorf("mend the unit files: %w", err)
	}
	for _, d := range drifts {
		a.say("mended: %s", d)
	}
	return nil
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
