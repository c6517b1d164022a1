// Package server runs a hub as a daemon: configuration, database, sockets, readiness, watchdog and a clean stop.
//
// It holds no rule and no route; those are in hub and hub/api. It must never take a socket or a database from a hub
// that is alive.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"gaia/hub"
	"gaia/hub/api"
	"gaia/hub/auth"
	"gaia/hub/store/sqlite"
	"gaia/internal/clock"
	"gaia/internal/log"
	"gaia/internal/sdnotify"
	"gaia/registry"
)

// ErrConfig marks an error that another start would meet again: the configuration is wrong.
var ErrConfig = errors.New("bad configuration")

const (
	readyEvery = 30 * time.Second // each look is a small write to the disk
	stopTime   = 10 * time.Second // for requests that are under way
	closeTime  = 60 * time.Second // for the database to take over what its log holds
)

// Options are what a hub's process is given.
type Options struct {
	Home   registry.Home
	Prefix string
	// Config is the path of a hub.toml other than the user's own, or "".
	Config string
	// Inherited are sockets that systemd opened.
	Inherited []net.Listener
	// Notify tells the service manager something; it may be nil.
	Notify func(state string)
	// Reload asks for hub.toml to be read again; it may be nil.
	Reload <-chan os.Signal
	Clock  clock.Clock // nil is the machine's
	Log    zerolog.Logger
}

// Run serves until ctx ends. Errors of the configuration match ErrConfig.
func Run(ctx context.Context, o Options) (err error) {
	if o.Notify == nil {
		o.Notify = func(string) {}
	}
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	cfg, err := load(o)
	if err != nil {
		return err
	}
	path, _ := strings.CutPrefix(cfg.Store, sqliteScheme)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make the folder of the database: %w", err)
	}
	// Two hubs on one database would each end leases that the other one renews.
	lock := flock.New(path + ".lock")
	if ok, err := lock.TryLock(); err != nil {
		return fmt.Errorf("lock the database: %w", err)
	} else if !ok {
		return fmt.Errorf("another hub uses the database %s (gaia hub status)", path)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	o.Notify("STATUS=opening " + path)
	db, err := sqlite.Open(ctx, path)
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	defer func() {
		o.Notify(fmt.Sprintf("STATUS=closing the database\nEXTEND_TIMEOUT_USEC=%d", closeTime.Microseconds()))
		err = errors.Join(err, db.Close())
	}()

	h := hub.New(hub.Options{Store: db, Clock: o.Clock, Limits: cfg.Limits, Leases: hub.Leases(cfg.Leases), Log: o.Log})
	if err := h.Open(ctx); err != nil {
		return fmt.Errorf("open the hub: %w", err)
	}
	ls, err := listen(cfg.Listen, o.Inherited)
	if err != nil {
		return err
	}
	defer ls.close()
	return serve(ctx, o, cfg, h, ls)
}

const sqliteScheme = "sqlite://"

// Check reads the configuration, and nothing else, and returns what is wrong with it.
func Check(o Options) error {
	_, err := load(o)
	return err
}

// load reads the configuration. Its errors match ErrConfig.
func load(o Options) (registry.Hub, error) {
	cfg, err := read(o)
	if err == nil && !strings.HasPrefix(cfg.Store, sqliteScheme) {
		err = errors.New("store: this hub keeps its data in SQLite only; write sqlite:///path/of/database")
	}
	if err != nil {
		return cfg, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return cfg, nil
}

func read(o Options) (registry.Hub, error) {
	if o.Config == "" {
		return o.Home.Hub()
	}
	if _, err := os.Stat(o.Config); err != nil {
		return registry.Hub{}, fmt.Errorf("read the configuration: %w", err)
	}
	cfg, err := registry.LoadHub(o.Config)
	if err != nil {
		return cfg, err
	}
	if cfg.Store == "" {
		cfg.Store = "sqlite://" + o.Home.HubDB()
	}
	if len(cfg.Listen) == 0 && o.Home.Runtime != "" {
		cfg.Listen = []string{"unix://" + o.Home.HubSocket()}
	}
	return cfg, nil
}

func serve(ctx context.Context, o Options, cfg registry.Hub, h *hub.Hub, ls *listeners) error {
	face := api.New(api.Options{Hub: h, Log: o.Log})
	srv := &http.Server{
		Handler: face,
		// A caller that is slow to ask or to listen must not hold a connection for ever.
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ConnContext:       auth.NewIdentifier(os.Geteuid(), o.Prefix).WithConn,
		ErrorLog:          nil,
	}
	srv.RegisterOnShutdown(face.Close)
	group, inner := errgroup.WithContext(ctx)
	for _, l := range ls.all {
		group.Go(func() error {
			if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve %s: %w", l.Addr(), err)
			}
			return nil
		})
	}
	where := ls.String()
	o.Log.Info().Str(log.MessageID, log.HubReady).Str("listen", where).Msg("the hub is ready")
	o.Notify("READY=1\nSTATUS=ready on " + where)
	say := &status{notify: o.Notify, where: where}
	group.Go(func() error { return tend(inner, o, h, say) })
	group.Go(func() error { return followReloads(inner, o, cfg, h, say) })
	group.Go(func() error {
		<-inner.Done()
		o.Notify(fmt.Sprintf("STOPPING=1\nSTATUS=answering what is under way\nEXTEND_TIMEOUT_USEC=%d", (stopTime + time.Second).Microseconds()))
		o.Log.Info().Str(log.MessageID, log.HubStopping).Msg("the hub stops")
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
		defer cancel()
		if err := srv.Shutdown(stop); err != nil {
			return errors.Join(srv.Close(), fmt.Errorf("some requests were cut off after %s: %w", stopTime, err))
		}
		return nil
	})
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// status is the line that systemctl status shows. Whoever knows of something new has it composed anew from all that is known.
type status struct {
	notify func(string)
	where  string // the hub listens on

	mu      sync.Mutex
	lost    error // of the database
	refused error // of the newest hub.toml
}

func (s *status) set(change func(*status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.text()
	change(s)
	if text := s.text(); text != before {
		s.notify(sdnotify.Status(text))
	}
}

func (s *status) text() string {
	text := "ready on " + s.where
	if s.lost != nil {
		text = "cannot use the database: " + s.lost.Error()
	}
	if s.refused != nil {
		text += ", the new hub.toml is refused: " + s.refused.Error()
	}
	return text
}

// followReloads takes over what of hub.toml can change while the hub runs. A file that is refused changes nothing.
func followReloads(ctx context.Context, o Options, cfg registry.Hub, h *hub.Hub, say *status) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-o.Reload:
		}
		o.Notify(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", o.Clock.Mono().Microseconds()))
		next, err := load(o)
		if err == nil && (next.Store != cfg.Store || !slices.Equal(next.Listen, cfg.Listen)) {
			err = errors.New("listen or store has changed; that needs a restart (systemctl --user restart " + o.Prefix + "-hub.service)")
		}
		say.set(func(s *status) { s.refused = err })
		if err != nil {
			o.Log.Error().Str(log.MessageID, log.ConfigRefused).Err(err).Msg("the new hub.toml is refused; the last good one stays in force")
			o.Notify("READY=1")
			continue
		}
		h.SetRules(next.Limits, hub.Leases(next.Leases))
		o.Log.Info().Str(log.MessageID, log.ConfigReloaded).Msg("hub.toml is read anew: its leases and limits hold from now on")
		o.Notify("READY=1")
	}
}

// tend is the hub's own loop. The watchdog is fed by its turns: a hub whose database refuses to write still turns, and a
// new start would not help it; a hub that hangs does not.
func tend(ctx context.Context, o Options, h *hub.Hub, say *status) error {
	var (
		lost   error
		looked time.Duration
	)
	for first := true; ; first = false {
		err := h.Sweep(ctx)
		if now := o.Clock.Mono(); err == nil && (first || lost != nil || now-looked >= readyEvery) {
			looked, err = now, h.Ready(ctx)
		} else if err == nil {
			err = lost
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch {
		case err != nil && (lost == nil || err.Error() != lost.Error()):
			o.Log.Error().Err(err).Str(log.MessageID, log.StorageLost).Msg("the hub cannot use its database; trying again")
			say.set(func(s *status) { s.lost = err })
		case err == nil && lost != nil:
			o.Log.Info().Str(log.MessageID, log.StorageBack).Msg("the hub can use its database again")
			say.set(func(s *status) { s.lost = nil })
		}
		lost = err
		o.Notify("WATCHDOG=1")
		if err := o.Clock.Sleep(ctx, hub.SweepEvery); err != nil {
			return err
		}
	}
}
