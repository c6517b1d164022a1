package units

import (
	"context"
	"fmt"
	"sync"

	"github.com/godbus/dbus/v5"
)

// Watch calls fn with the name of each matching unit whenever a job of it ends, its state changes or it goes away, and
// once for each that is loaded when the watch begins, so that a caller who comes back after an error misses no live one.
// Calls are hints and merged: at least one call follows the last change, but not one call each. fn runs on this
// goroutine; while it runs nothing is lost and the bus is not held up. match is called by the connection's reader and
// must be quick. Watch returns only with an error: the context's, or that the connection or the manager is gone.
//
// Reading a unit that is not loaded loads and unloads it. Such comings and goings of units at rest are no change, else a
// caller that reads from fn would wake itself for ever.
func (m *Manager) Watch(ctx context.Context, match func(unit string) bool, fn func(unit string)) error {
	p := newPump(match)
	l, err := dialUser(ctx, m.runtimeDir, p) // its own connection, so that the signals end with the watch
	if err != nil {
		return fmt.Errorf("watch units: %w", err)
	}
	defer l.Close()
	for _, opts := range [][]dbus.MatchOption{
		{dbus.WithMatchSender(systemdName), dbus.WithMatchInterface(managerIface)},
		{dbus.WithMatchSender(systemdName), dbus.WithMatchInterface(propsIface), dbus.WithMatchMember("PropertiesChanged"), dbus.WithMatchArg(0, unitIface)},
		ownerChanged,
	} {
		if err := l.match(ctx, opts...); err != nil {
			return fmt.Errorf("watch units: ask the bus for signals: %w", err)
		}
	}
	if err := l.call(ctx, "Subscribe").Err; err != nil {
		return fmt.Errorf("watch units: subscribe to the manager: %w", err)
	}
	p.set(&p.relist) // the first listing
	for {
		names, relist, left := p.take()
		if left {
			return fmt.Errorf("watch units: %w", errManagerLeft)
		}
		if relist {
			all, err := list(ctx, l, nil)
			if err != nil {
				return fmt.Errorf("watch units: %w", err)
			}
			p.seed(all)
			continue
		}
		for _, n := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			fn(n)
		}
		if len(names) > 0 {
			continue
		}
		select {
		case <-p.wake:
		case <-l.Context().Done():
			return fmt.Errorf("watch units: the connection to the user manager is gone: %w", dbus.ErrClosed)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pump takes signals from the connection's reader without ever making it wait: what it keeps is at most one entry per
// unit, however many signals come and however slow the receiver is.
type pump struct {
	match func(string) bool
	wake  chan struct{} // capacity 1

	mu      sync.Mutex
	pending []string // units to tell, in order of their first signal
	queued  map[string]bool
	live    map[string]string // state of each matching unit that is not at rest
	relist  bool              // the manager has read its units anew
	left    bool              // the manager has gone
}

func newPump(match func(string) bool) *pump {
	return &pump{match: match, wake: make(chan struct{}, 1), queued: map[string]bool{}, live: map[string]string{}}
}

// DeliverSignal implements dbus.SignalHandler.
func (p *pump) DeliverSignal(_, _ string, s *dbus.Signal) {
	switch s.Name {
	case managerIface + ".JobRemoved":
		if len(s.Body) >= 3 {
			if unit, ok := s.Body[2].(string); ok && p.match(unit) {
				p.tell(unit)
			}
		}
	case managerIface + ".UnitRemoved":
		if len(s.Body) >= 1 {
			if unit, ok := s.Body[0].(string); ok && p.match(unit) {
				p.removed(unit)
			}
		}
	case managerIface + ".Reloading":
		if len(s.Body) >= 1 {
			if active, ok := s.Body[0].(bool); ok && !active {
				p.set(&p.relist)
			}
		}
	case propsIface + ".PropertiesChanged":
		if len(s.Body) >= 2 && s.Body[0] == unitIface {
			changed, _ := s.Body[1].(map[string]dbus.Variant)
			if unit := unitOf(s.Path); unit != "" && p.match(unit) {
				p.changed(unit, props(changed))
			}
		}
	default:
		if isOwnerChanged(s) {
			p.set(&p.left)
		}
	}
}

func (p *pump) changed(unit string, c props) {
	active, sub := c.str("ActiveState"), c.str("SubState")
	if active == "" && sub == "" {
		return
	}
	p.mu.Lock()
	was, now := p.live[unit], active+"/"+sub
	if active == "inactive" {
		now = "" // a failed unit stays loaded and is kept, so that its reset is seen
		delete(p.live, unit)
	} else {
		p.live[unit] = now
	}
	p.mu.Unlock()
	if was != now {
		p.tell(unit)
	}
}

// removed keeps what is known of a unit that was not at rest: a daemon-reload removes and adds every unit, and the end
// that comes after it is still a change.
func (p *pump) removed(unit string) {
	p.mu.Lock()
	_, ok := p.live[unit]
	p.mu.Unlock()
	if ok {
		p.tell(unit)
	}
}

// seed takes a complete listing: units that appeared, went or changed unseen are told.
func (p *pump) seed(all []Status) {
	p.mu.Lock()
	before := p.live
	p.live = map[string]string{}
	var tell []string
	for _, s := range all {
		if !p.match(s.Name) || s.Active == "inactive" {
			continue
		}
		now := s.Active + "/" + s.Sub
		p.live[s.Name] = now
		if before[s.Name] != now {
			tell = append(tell, s.Name)
		}
		delete(before, s.Name)
	}
	for unit := range before {
		tell = append(tell, unit)
	}
	p.mu.Unlock()
	for _, unit := range tell {
		p.tell(unit)
	}
}

func (p *pump) tell(unit string) {
	p.mu.Lock()
	if !p.queued[unit] {
		p.queued[unit] = true
		p.pending = append(p.pending, unit)
	}
	p.mu.Unlock()
	p.poke()
}

func (p *pump) set(flag *bool) {
	p.mu.Lock()
	*flag = true
	p.mu.Unlock()
	p.poke()
}

func (p *pump) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *pump) take() (names []string, relist, left bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if relist, left = p.relist, p.left; relist || left {
		p.relist = false
		return nil, relist, left
	}
	names, p.pending = p.pending, nil
	clear(p.queued)
	return names, false, false
}
