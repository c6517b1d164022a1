package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// recovery kills the conductor of 20 live runs and takes the time that the next process needs to have them all again: it
// says that it is ready when it has listed units, run folders and the hub's runs.
func recovery(ctx context.Context) (_ []result, err error) {
	const runs = 20
	w, err := newWorld(ctx, 5, runs)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if err := w.load(ctx, runs); err != nil {
		return nil, err
	}
	unit := w.names.Conductor(instance)
	var took sample
	for range 5 {
		before, err := w.show(unit, "MainPID")
		if err != nil {
			return nil, err
		}
		pid, err := strconv.Atoi(before["MainPID"])
		if err != nil || pid == 0 {
			return nil, fmt.Errorf("%s has no process", unit)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return nil, fmt.Errorf("kill the conductor: %w", err)
		}
		var now map[string]string
		if err := w.wait(ctx, "the conductor has all runs again", func() (bool, error) {
			now, err = w.show(unit, "MainPID", "ActiveState", "StatusText", "ExecMainStartTimestampMonotonic", "ActiveEnterTimestampMonotonic")
			return now["MainPID"] != before["MainPID"] && now["ActiveState"] == "active" && strings.Contains(now["StatusText"], fmt.Sprintf("%d/%d running", runs, runs)), err
		}); err != nil {
			return nil, err
		}
		started, err1 := strconv.ParseInt(now["ExecMainStartTimestampMonotonic"], 10, 64)
		ready, err2 := strconv.ParseInt(now["ActiveEnterTimestampMonotonic"], 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("read when the conductor started: %w", err)
		}
		took = append(took, time.Duration(ready-started)*time.Microsecond)
		// systemd starts a unit again five times in ten seconds and no more.
		if _, err := w.env.Systemctl("reset-failed", unit); err != nil {
			return nil, fmt.Errorf("forgive the kill: %w", err)
		}
	}
	return []result{{Name: "recover", Value: took.median(), Unit: "ms", Better: lower, spread: took.spread()}}, nil
}

// show returns properties of a unit.
func (w *world) show(unit string, names ...string) (map[string]string, error) {
	out, err := w.env.Systemctl("show", "--property="+strings.Join(names, ","), unit)
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w\n%s", unit, err, out)
	}
	m := map[string]string{}
	for line := range strings.Lines(out) {
		k, v, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		m[k] = v
	}
	return m, nil
}
