// Command bench measures what Gaia costs and what it is quick at. A time says little on a machine that does other things
// too, so most measures are a ratio to a floor, which is the least that the same work can take, measured in the same run
// and in turn with it. Each measure is a file of its own.
//
// It prints a table on standard error and the same as JSON on standard output, and ends with 0 where a budget is missed:
// the table says so. It uses installed commands, the hub's API and the user manager as everybody can, under a prefix and a
// home of its own, and must not reach into the programs that it measures.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"gaia/internal/usermanager"
)

// result is one line of the table and one object of the JSON.
type result struct {
	Name   string   `json:"name"`
	Value  float64  `json:"value"`
	Unit   string   `json:"unit"`
	Floor  *float64 `json:"floor"`
	Ratio  *float64 `json:"ratio"`
	Budget *float64 `json:"budget"` // of the ratio
	Better string   `json:"better"` // lower or higher

	spread string // how far apart single runs were, for people
}

// measures in the order in which they run: the quick ones first.
var measures = []struct {
	name string
	run  func(context.Context) ([]result, error)
}{
	{"dispatch_small", dispatchSmall},
	{"dispatch_small_warm", dispatchSmallWarm},
	{"attach", attach},
	{"claims", claims},
	{"claim_100k", claim100k},
	{"recover", recovery},
	{"idle", idle},
	{"dispatch_30k", dispatch30k},
	{"dispatch_30k_warm", dispatch30kWarm},
}

// limit is for one measure, and far more than each needs on a slow machine.
const limit = 15 * time.Minute

func main() {
	code, isInside := usermanager.Run(os.Args[1:])
	if !isInside {
		os.Exit(code)
	}
	// On the disk, where people have their repositories: in memory a file that is written to last costs nothing.
	os.Setenv("TMPDIR", "/var/tmp")
	if err := bench(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// bench runs the measures of these names, all where there is none. A measure that fails does not keep the others from
// being taken.
func bench(names []string) error {
	known := make([]string, 0, len(measures))
	for _, m := range measures {
		known = append(known, m.name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return fmt.Errorf("no measure %q; there are: %s", name, strings.Join(known, " "))
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	all := []result{}
	var failed error
	for _, m := range measures {
		if len(names) > 0 && !slices.Contains(names, m.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s ...\n", m.name)
		limited, cancel := context.WithTimeout(ctx, limit)
		rs, err := m.run(limited)
		cancel()
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", m.name, err))
		}
		all = append(all, rs...)
		if ctx.Err() != nil {
			break
		}
	}
	table(all)
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return errors.Join(failed, out.Encode(all))
}

func table(all []result) {
	w := tabwriter.NewWriter(os.Stderr, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MEASURE\tVALUE\tUNIT\tFLOOR\tRATIO\tBUDGET\tSPREAD")
	number := func(f *float64) string {
		if f == nil {
			return "-"
		}
		return fmt.Sprintf("%.3g", *f)
	}
	for _, r := range all {
		budget := number(r.Budget)
		if r.Budget != nil && r.Ratio != nil && (r.Better == lower) != (*r.Ratio <= *r.Budget) {
			budget += " MISSED"
		}
		fmt.Fprintf(w, "%s\t%.4g\t%s\t%s\t%s\t%s\t%s\n", r.Name, r.Value, r.Unit, number(r.Floor), number(r.Ratio), budget, r.spread)
	}
	w.Flush()
}
