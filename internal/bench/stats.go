package main

import (
	"fmt"
	"slices"
	"time"
)

const (
	lower  = "lower"
	higher = "higher"
)

// sample is what one measure found in its single runs.
type sample []time.Duration

// at returns the value below which a share of the runs lies.
func (s sample) at(share float64) float64 {
	sorted := slices.Sorted(slices.Values(s))
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[int(share*float64(len(sorted)-1)+0.5)]) / float64(time.Millisecond)
}

func (s sample) median() float64 { return s.at(0.5) }

// spread is the middle half of the runs.
func (s sample) spread() string {
	return fmt.Sprintf("%.3g..%.3g of %d", s.at(0.25), s.at(0.75), len(s))
}

// times is the result of runs that took turns with their floor.
func times(name string, runs, floor sample, budget float64) result {
	r := result{Name: name, Value: runs.median(), Unit: "ms", Budget: &budget, Better: lower, spread: runs.spread() + ", floor " + floor.spread()}
	f := floor.median()
	if f > 0 {
		ratio := r.Value / f
		r.Floor, r.Ratio = &f, &ratio
	}
	return r
}
