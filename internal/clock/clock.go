// Package clock is the source of time for everything that decides by time: leases, back-off, staleness. It tells wall
// clock, monotonic clock and boot clock apart, because a lease must survive a jump of the first and a suspend that
// only the last one counts. It must not be bypassed with time.Now in code that makes such decisions.
package clock

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Clock tells the time.
type Clock interface {
	// Now is the wall clock, which people and NTP may set.
	Now() time.Time
	// Mono is CLOCK_MONOTONIC: never set, stands still while the machine is suspended.
	Mono() time.Duration
	// Boot is CLOCK_BOOTTIME: never set, goes on while the machine is suspended.
	Boot() time.Duration
	// Sleep waits on the monotonic clock; it returns ctx.Err() if ctx ends first.
	Sleep(ctx context.Context, d time.Duration) error
}

// System is the machine's clock.
type System struct{}

// Now implements Clock.
func (System) Now() time.Time { return time.Now() }

// Mono implements Clock.
func (System) Mono() time.Duration { return gettime(unix.CLOCK_MONOTONIC) }

// Boot implements Clock.
func (System) Boot() time.Duration { return gettime(unix.CLOCK_BOOTTIME) }

// Sleep implements Clock.
func (System) Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

func gettime(id int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic("clock_gettime: " + err.Error()) // both clocks exist on every Linux that Go supports
	}
	return time.Duration(ts.Nano())
}

// Fake is a clock that stands still until it is moved.
type Fake struct {
	mu         sync.Mutex
	wall       time.Time
	mono, boot time.Duration
	wake       chan struct{}
}

// NewFake returns a clock whose wall clock stands at t.
func NewFake(t time.Time) *Fake { return &Fake{wall: t, wake: make(chan struct{})} }

// Now implements Clock.
func (f *Fake) Now() time.Time { f.mu.Lock(); defer f.mu.Unlock(); return f.wall }

// Mono implements Clock.
func (f *Fake) Mono() time.Duration { f.mu.Lock(); defer f.mu.Unlock(); return f.mono }

// Boot implements Clock.
func (f *Fake) Boot() time.Duration { f.mu.Lock(); defer f.mu.Unlock(); return f.boot }

// Advance lets time pass on all three clocks.
func (f *Fake) Advance(d time.Duration) { f.move(d, d, d) }

// Set moves the wall clock alone, as a person or NTP does.
func (f *Fake) Set(t time.Time) { f.move(t.Sub(f.Now()), 0, 0) }

// Suspend lets time pass as in a suspend: on the wall and the boot clock only.
func (f *Fake) Suspend(d time.Duration) { f.move(d, 0, d) }

func (f *Fake) move(wall, mono, boot time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wall, f.mono, f.boot = f.wall.Add(wall), f.mono+mono, f.boot+boot
	close(f.wake)
	f.wake = make(chan struct{})
}

// Sleep implements Clock: it returns when the clock has been moved far enough.
func (f *Fake) Sleep(ctx context.Context, d time.Duration) error {
	f.mu.Lock()
	until := f.mono + d
	for f.mono < until {
		wake := f.wake
		f.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-wake:
		}
		f.mu.Lock()
	}
	f.mu.Unlock()
	return nil
}
