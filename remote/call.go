package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-retryablehttp"

	"gaia/domain"
)

const (
	documentType = "application/vnd.api+json"
	jsonType     = "application/json"
	// maxAnswer bounds what is read of an answer: a page of 50 large tickets stays below.
	maxAnswer = 64 << 20
	firstWait = 50 * time.Millisecond
	longWait  = 5 * time.Second
)

// call is one request and how long to go on trying.
type call struct {
	method, path string
	media        string // of body and answer
	body         any    // nil for none
	patience     time.Duration
}

// do makes the call and decodes the answer into out, which may be nil. It reports false if the answer was "nothing".
// A write has a key that stays the same over all attempts, so that the hub does it once.
func (c *Client) do(ctx context.Context, k call, out any) (bool, error) {
	var body []byte
	if k.body != nil {
		var err error
		if body, err = json.Marshal(k.body); err != nil {
			return false, fmt.Errorf("write the request: %w", err)
		}
	}
	req, err := retryablehttp.NewRequestWithContext(ctx, k.method, c.base+k.path, body)
	if err != nil {
		return false, fmt.Errorf("write the request: %w", err)
	}
	if k.body == nil {
		req.Body, req.ContentLength = nil, 0
	} else {
		req.Header.Set("Content-Type", k.media)
	}
	req.Header.Set("Accept", k.media)
	if k.method != http.MethodGet {
		req.Header.Set("Idempotency-Key", uuid.NewString())
	}
	if err := c.headers(req.Request); err != nil {
		return false, err
	}
	resp, err := c.retrying(k).Do(req)
	if err != nil {
		return false, c.unreachable(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return false, c.unreachable(fmt.Errorf("the answer broke off: %w", err))
	}
	switch {
	case resp.StatusCode == http.StatusNoContent:
		return false, nil
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return false, c.refused(resp, answer)
	case out == nil:
		return true, nil
	}
	if typ, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); typ != k.media {
		return false, fmt.Errorf("what answers at %s is no hub: it sent %q instead of %s", c.o.Hub, typ, k.media)
	}
	if len(answer) > maxAnswer {
		return false, fmt.Errorf("the hub's answer has more than %d bytes", maxAnswer)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return false, fmt.Errorf("read the hub's answer to %s %s: %w", k.method, k.path, err)
	}
	return true, nil
}

// retrying returns a client that repeats one call until its patience ends. It repeats what got no answer, and what a
// hub refused that cannot write at the moment; every other answer is one.
func (c *Client) retrying(k call) *retryablehttp.Client {
	end := time.Now().Add(k.patience)
	wait := func(attempt int, resp *http.Response) time.Duration {
		if resp != nil {
			if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s >= 0 {
				return time.Duration(s) * time.Second
			}
		}
		d := min(firstWait<<min(attempt, 10), longWait)
		return d/2 + rand.N(d/2+1) // spread, so that many clients do not come back at one moment
	}
	attempt, next := 0, time.Duration(0)
	return &retryablehttp.Client{
		HTTPClient: c.calls,
		RetryMax:   1 << 30, // the patience ends it
		CheckRetry: func(ctx context.Context, resp *http.Response, err error) (bool, error) {
			if ctx.Err() != nil {
				return false, ctx.Err()
			}
			if err == nil && !absent(resp.StatusCode) {
				return false, nil
			}
			next = wait(attempt, resp)
			attempt++
			if time.Now().Add(next).After(end) {
				return false, err
			}
			e := c.o.Log.Debug().Str("method", k.method).Str("path", k.path).Dur("wait", next).Int("attempt", attempt)
			if err != nil {
				e = e.Err(err)
			} else {
				e = e.Int("status", resp.StatusCode)
			}
			e.Msg("the hub does not answer; trying again")
			return true, nil
		},
		Backoff:      func(_, _ time.Duration, _ int, _ *http.Response) time.Duration { return next },
		ErrorHandler: retryablehttp.PassthroughErrorHandler,
	}
}

// absent reports whether a status says that the hub, or a proxy before it, cannot answer now.
func absent(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// Error is a refusal by the hub. It matches the domain sentinel of its code, and where the hub named a field or the
// open transitions, a *domain.FieldError or *domain.TransitionError is within.
type Error struct {
	Status int
	Code   string
	Detail string
	Field  string // JSON name of the domain type, or the parameter or header; "" where none was named
	cause  error
}

func (e *Error) Error() string { return e.cause.Error() }

// Unwrap returns the domain error.
func (e *Error) Unwrap() error { return e.cause }

// told is a sentinel with the hub's own words, which name the sentinel already or are clearer than it.
type told struct {
	text string
	is   error
}

func (t *told) Error() string { return t.text }
func (t *told) Unwrap() error { return t.is }

var sentinels = map[string]error{
	"not_found": domain.ErrNotFound, "conflict": domain.ErrConflict, "invalid": domain.ErrInvalid, "transition": domain.ErrInvalid,
	"idempotency": domain.ErrInvalid, "parameter": domain.ErrInvalid, "bad_request": domain.ErrInvalid, "too_large": domain.ErrInvalid,
	"forbidden": domain.ErrForbidden, "unauthenticated": domain.ErrUnauthenticated, "stale_run": domain.ErrStaleRun,
	"superseded": domain.ErrSuperseded, "storage_unavailable": domain.ErrStorage,
}

func (c *Client) refused(resp *http.Response, body []byte) error {
	var doc struct {
		Errors []struct {
			Code   string `json:"code"`
			Detail string `json:"detail"`
			Source struct {
				Pointer   string `json:"pointer"`
				Parameter string `json:"parameter"`
				Header    string `json:"header"`
			} `json:"source"`
			Meta struct {
				Workflow string   `json:"workflow"`
				From     string   `json:"from"`
				To       string   `json:"to"`
				Open     []string `json:"open"`
			} `json:"meta"`
		} `json:"errors"`
	}
	if err := json.Unmarshal(body, &doc); err != nil || len(doc.Errors) == 0 {
		if absent(resp.StatusCode) {
			return c.unreachable(errors.New(resp.Status))
		}
		return fmt.Errorf("what answers at %s is no hub: it said %s", c.o.Hub, resp.Status)
	}
	p := doc.Errors[0]
	e := &Error{Status: resp.StatusCode, Code: p.Code, Detail: p.Detail}
	switch {
	case p.Source.Pointer != "":
		e.Field = fieldOf(p.Source.Pointer)
	case p.Source.Parameter != "":
		e.Field = p.Source.Parameter
	default:
		e.Field = p.Source.Header
	}
	is, known := sentinels[p.Code]
	switch {
	case p.Code == "transition":
		e.cause = &domain.TransitionError{Workflow: p.Meta.Workflow, From: p.Meta.From, To: p.Meta.To, Open: p.Meta.Open}
	case !known:
		e.cause = errors.New(p.Detail)
	case e.Field != "" && (is == domain.ErrInvalid || is == domain.ErrConflict):
		e.cause = &domain.FieldError{Field: e.Field, Err: &told{p.Detail, is}}
	default:
		e.cause = &told{p.Detail, is}
	}
	return e
}

// fieldOf turns a pointer into the JSON name of the field, as the domain has it.
func fieldOf(pointer string) string {
	rest, ok := bytes.CutPrefix([]byte(pointer), []byte("/data/"))
	parts := bytes.Split(bytes.TrimPrefix(rest, []byte("/")), []byte("/"))
	if ok && len(parts) > 1 {
		parts = parts[1:] // attributes or relationships
	}
	name := string(parts[0])
	for _, m := range []map[string]string{ticketNames, runNames, conductorNames, commentNames} {
		if field, ok := m[name]; ok && field != name {
			return field
		}
	}
	return name
}
