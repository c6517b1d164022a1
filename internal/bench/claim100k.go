package main

import (
	"context"
	"errors"
)

const claim100kBudget = 2

// claim100k compares the claims of a hub with 100,000 tickets with those of one with 1,000; the two take turns.
func claim100k(ctx context.Context) (_ []result, err error) {
	small, err := newHub(ctx, 1_000)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, small.Close()) }()
	large, err := newHub(ctx, 100_000)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, large.Close()) }()
	few, err := small.claimer(ctx, 0)
	if err != nil {
		return nil, err
	}
	many, err := large.claimer(ctx, 0)
	if err != nil {
		return nil, err
	}
	var runs, floor sample
	for i := range 205 {
		for _, side := range []struct {
			claimer
			into *sample
		}{{few, &floor}, {many, &runs}} {
			a, run, took, err := side.claim(ctx)
			if err != nil {
				return nil, err
			}
			if err := side.finish(ctx, a, run); err != nil {
				return nil, err
			}
			if i >= 4 { // the first ones warm the caches
				*side.into = append(*side.into, took)
			}
		}
	}
	return []result{times("claim_100k", runs, floor, claim100kBudget)}, nil
}
