package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// idle takes what hub and conductor use while 20 agents wait, and how many processes the conductor has started and waited
// for meanwhile, which should be none.
func idle(ctx context.Context) (_ []result, err error) {
	const runs, watched = 20, 65 * time.Second // four ticks
	w, err := newWorld(ctx, 5, runs)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if err := w.load(ctx, runs); err != nil {
		return nil, err
	}
	var out []result
	type unit struct {
		name, unit string
		before     usage
	}
	all := []*unit{{name: "conductor", unit: w.names.Conductor(instance)}, {name: "hub", unit: w.names.Hub()}}
	select {
	case <-time.After(5 * time.Second): // until what starting them has set off is over
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for _, u := range all {
		if u.before, err = w.usage(u.unit); err != nil {
			return nil, err
		}
	}
	select {
	case <-time.After(watched):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for _, u := range all {
		now, err := w.usage(u.unit)
		if err != nil {
			return nil, err
		}
		minutes := watched.Minutes()
		out = append(out,
			result{Name: "idle_" + u.name + "_cpu", Value: (now.own - u.before.own).Seconds() / minutes, Unit: "s/min", Better: lower},
			result{Name: "idle_" + u.name + "_rss", Value: now.resident / (1 << 20), Unit: "MiB", Better: lower},
			result{Name: "idle_" + u.name + "_children", Value: float64(now.faults - u.before.faults), Unit: "page faults", Better: lower,
				spread: "of processes that it has started; 0: there were none"})
	}
	return out, nil
}

// usage is what a process has used.
type usage struct {
	own      time.Duration // of processor
	faults   uint64        // page faults of children that it has waited for: none comes into being without
	resident float64       // bytes
}

func (w *world) usage(unit string) (usage, error) {
	p, err := w.show(unit, "MainPID")
	if err != nil {
		return usage{}, err
	}
	data, err := os.ReadFile("/proc/" + p["MainPID"] + "/stat")
	if err != nil {
		return usage{}, fmt.Errorf("look at the process of %s: %w", unit, err)
	}
	// The name, in parentheses, may hold anything. What follows it begins with the third field of proc(5).
	f := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(f) < 22 {
		return usage{}, fmt.Errorf("the process of %s has a status that cannot be read: %q", unit, data)
	}
	field := func(n int) uint64 {
		v, e := strconv.ParseUint(f[n-3], 10, 64)
		err = errors.Join(err, e)
		return v
	}
	const tick = 10 * time.Millisecond // what the kernel counts a process's time in
	u := usage{own: time.Duration(field(14)+field(15)) * tick, faults: field(11) + field(13), resident: float64(field(24)) * float64(os.Getpagesize())}
	return u, err
}
