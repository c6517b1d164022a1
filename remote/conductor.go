package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/tmaxmax/go-sse"

	"gaia/domain"
)

const (
	// beatTime bounds a heartbeat with its repeats: the next one is due soon after, and says more.
	beatTime = 10 * time.Second
	// streamSilence is how long an event stream may say nothing; the hub sends a sign of life every 15 seconds.
	streamSilence = time.Minute
	// maxEvent is above the largest request that the hub takes, of which an event holds the outcome.
	maxEvent = 8 << 20
)

// Register implements domain.Remote.
func (c *Client) Register(ctx context.Context, r domain.Registration) (domain.Registered, error) {
	return operate[domain.Registered](ctx, c, "register", r)
}

// Heartbeat implements domain.Remote.
func (c *Client) Heartbeat(ctx context.Context, b domain.Beat) (domain.Pulse, error) {
	ctx, cancel := context.WithTimeout(ctx, beatTime)
	defer cancel()
	var p domain.Pulse
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/gaia/v1/heartbeat", media: jsonType, body: b, patience: time.Second}, &p)
	return p, err
}

// Parting implements domain.Remote.
func (c *Client) Parting(ctx context.Context) error {
	_, err := operate[struct{}](ctx, c, "parting", nil)
	return err
}

// Claim implements domain.Remote.
func (c *Client) Claim(ctx context.Context, q domain.ClaimRequest) (*domain.Assignment, error) {
	var a domain.Assignment
	got, err := c.do(ctx, call{method: http.MethodPost, path: "/gaia/v1/claim", media: jsonType, body: q, patience: c.o.Patience}, &a)
	if err != nil || !got {
		return nil, err
	}
	return &a, nil
}

// Assignment implements domain.Remote.
func (c *Client) Assignment(ctx context.Context, run string) (*domain.Assignment, error) {
	a, err := view[domain.Assignment](ctx, c, "runs/"+url.PathEscape(run)+"/assignment")
	if err != nil {
		return nil, err
	}
	return &a, nil
}

// Start implements domain.Remote.
func (c *Client) Start(ctx context.Context, run string, s domain.StartReport) (domain.Fate, error) {
	return operate[domain.Fate](ctx, c, "runs/"+url.PathEscape(run)+"/start", s)
}

// Fail implements domain.Remote.
func (c *Client) Fail(ctx context.Context, run string, f domain.Failure) (domain.Fate, error) {
	return operate[domain.Fate](ctx, c, "runs/"+url.PathEscape(run)+"/fail", f)
}

// Finalise implements domain.Remote.
func (c *Client) Finalise(ctx context.Context, run string, f domain.FinaliseReport) error {
	_, err := operate[struct{}](ctx, c, "runs/"+url.PathEscape(run)+"/finalise", f)
	return err
}

// Runs implements domain.Remote: the calling conductor's runs that are live or not finalised. RunList lists any.
func (c *Client) Runs(ctx context.Context) ([]domain.Run, error) {
	v, err := view[struct {
		Runs []domain.Run `json:"runs"`
	}](ctx, c, "own-runs")
	return v.Runs, err
}

// FromNow, given to Follow, skips what the log holds already.
const FromNow = -1

// Follow implements domain.Remote. It does not connect again by itself: what was missed must be read anyway.
func (c *Client) Follow(ctx context.Context, after int64, fn func(domain.Event)) error {
	from := "now"
	if after >= 0 {
		from = strconv.FormatInt(after, 10)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/gaia/v1/events?after="+from, nil)
	if err != nil {
		return fmt.Errorf("write the request: %w", err)
	}
	req.Header.Set("Accept", "text/event-stream")
	if err := c.headers(req); err != nil {
		return err
	}
	resp, err := c.stream.Do(req)
	if err != nil {
		return c.unreachable(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		if err != nil {
			return c.unreachable(err)
		}
		return c.refused(resp, body)
	}
	fn(domain.Event{})
	errSilent := fmt.Errorf("the event stream was silent for %s", streamSilence)
	alarm := time.AfterFunc(streamSilence, func() { cancel(errSilent) })
	defer alarm.Stop()
	body := &watched{resp.Body, alarm}
	for ev, err := range sse.Read(body, &sse.ReadConfig{MaxEventSize: maxEvent}) {
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return c.unreachable(err)
		}
		var e domain.Event
		if err := json.Unmarshal([]byte(ev.Data), &e); err != nil {
			return fmt.Errorf("read an event of the hub: %w", err)
		}
		fn(e)
	}
	if cause := context.Cause(ctx); cause != nil {
		return c.unreachable(cause)
	}
	return c.unreachable(errors.New("the hub ended the event stream"))
}

// watched puts off an alarm with every byte that comes.
type watched struct {
	io.Reader
	alarm *time.Timer
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if n > 0 {
		w.alarm.Reset(streamSilence)
	}
	return n, err
}
