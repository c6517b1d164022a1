// Package remote reaches a hub over HTTP, on a unix socket or TCP. A Client is the conductor's domain.Remote and makes
// the calls of the gaia command.
//
// It decides nothing: it repeats what may be repeated, and gives back the hub's answers as domain values and the
// hub's refusals as domain errors. It must never log a token or a body.
package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"gaia/domain"
)

// DefaultPatience is how long a write waits for an absent hub where nothing else is set.
const DefaultPatience = 3 * time.Second

// readPatience bounds how long a read waits: whoever reads can ask again.
const readPatience = 3 * time.Second

// attemptTime bounds one attempt. It is well above the hub's slowest answer.
const attemptTime = 30 * time.Second

// Options say which hub, and who calls.
type Options struct {
	Hub       string // unix:///path/of/socket, http://… or https://…
	TokenFile string // read anew for each call; "" for an owner on the unix socket
	User      string // the user that an owner acts as
	// MachineID and Epoch are those of a conductor.
	MachineID, Epoch string
	// Patience is how long a write waits for a hub that is absent or cannot write; 0 is DefaultPatience.
	Patience time.Duration
	Log      zerolog.Logger
}

// Client is a caller of one hub. Its methods may be called from many goroutines.
type Client struct {
	o      Options
	base   string
	calls  *http.Client // an attempt has a deadline
	stream *http.Client // has none
}

var _ domain.Remote = (*Client)(nil)

// New returns a client. It does not connect.
func New(o Options) (*Client, error) {
	if o.Patience <= 0 {
		o.Patience = DefaultPatience
	}
	u, err := url.Parse(o.Hub)
	if err != nil {
		return nil, badHub(o.Hub)
	}
	t := &http.Transport{
		MaxIdleConns: 4, MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: attemptTime,
	}
	c := &Client{o: o}
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	switch {
	case u.Scheme == "unix" && u.Host == "" && filepath.IsAbs(u.Path) && u.RawQuery == "":
		c.base = "http://hub"
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", u.Path)
		}
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil && u.RawQuery == "" && u.Fragment == "":
		c.base = strings.TrimSuffix(u.String(), "/")
		t.DialContext, t.Proxy = dialer.DialContext, http.ProxyFromEnvironment
	default:
		return nil, badHub(o.Hub)
	}
	// A redirect would carry the token and the write to wherever it leads.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.calls = &http.Client{Transport: t, Timeout: attemptTime, CheckRedirect: stay}
	c.stream = &http.Client{Transport: t, CheckRedirect: stay}
	return c, nil
}

func badHub(hub string) error {
	return fmt.Errorf("the hub %q must be unix:///path/of/its/socket, http://… or https://… (--hub, GAIA_HUB or machine.toml)", hub)
}

// Close closes idle connections. The client may be used after it.
func (c *Client) Close() { c.calls.CloseIdleConnections() }

// Hub returns where the hub is, as it was given.
func (c *Client) Hub() string { return c.o.Hub }

// token reads the token file. A run's is removed when the run is closed, and a conductor's may be replaced.
func (c *Client) token() (string, error) {
	if c.o.TokenFile == "" {
		return "", nil
	}
	b, err := os.ReadFile(c.o.TokenFile)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("the token file %s is not there; a run's is removed when the run is closed: %w", c.o.TokenFile, domain.ErrUnauthenticated)
	}
	if err != nil {
		return "", fmt.Errorf("read the token: %w: %w", err, domain.ErrUnauthenticated)
	}
	t := strings.TrimSpace(string(b))
	if t == "" || strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("the token file %s holds no token: %w", c.o.TokenFile, domain.ErrUnauthenticated)
	}
	return t, nil
}

func (c *Client) headers(r *http.Request) error {
	t, err := c.token()
	if err != nil {
		return err
	}
	for name, v := range map[string]string{"Gaia-User": c.o.User, "Gaia-Machine-Id": c.o.MachineID, "Gaia-Epoch": c.o.Epoch} {
		if v != "" {
			r.Header.Set(name, v)
		}
	}
	if t != "" {
		r.Header.Set("Authorization", "Bearer "+t)
	}
	return nil
}

// unreachable says that there was no answer, and what a person can do about it.
func (c *Client) unreachable(cause error) error {
	mend := "gaia doctor says more"
	if path, ok := strings.CutPrefix(c.o.Hub, "unix://"); ok {
		// Not start, which does nothing where the unit is active and its socket was removed by hand.
		mend = "systemctl --user restart " + filepath.Base(filepath.Dir(path)) + "-hub.socket"
		if !strings.HasSuffix(path, "/hub.sock") {
			mend = "gaia doctor says more"
		}
	}
	var ue *url.Error
	if errors.As(cause, &ue) {
		cause = ue.Err // without the address, which the text has already
	}
	return fmt.Errorf("%w at %s: %w (%s)", domain.ErrUnreachable, c.o.Hub, cause, mend)
}
