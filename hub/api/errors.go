package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"gaia/domain"
	"gaia/internal/log"
)

// mediaType is that of JSON:API documents; errors have it everywhere.
const mediaType = "application/vnd.api+json"

type source struct {
	Pointer   string `json:"pointer,omitempty"`
	Parameter string `json:"parameter,omitempty"`
	Header    string `json:"header,omitempty"`
}

// problem is one member of a document's errors, and the error that handlers return to get it.
type problem struct {
	Status string  `json:"status"`
	Code   string  `json:"code"`
	Title  string  `json:"title"`
	Detail string  `json:"detail"`
	Source *source `json:"source,omitempty"`
	Meta   any     `json:"meta,omitempty"`

	status int
	allow  string // 405: the methods that there are
}

func (p *problem) Error() string { return p.Detail }

var titles = map[string]string{
	"invalid": "The input breaks a rule", "transition": "The state cannot be reached from here",
	"idempotency": "The key was used for another request", "bad_request": "The request cannot be read",
	"parameter": "A query parameter is not understood", "unauthenticated": "The caller is not known",
	"forbidden": "The caller may not do this", "not_found": "There is no such thing", "method": "The method is not allowed here",
	"not_acceptable": "No such representation", "conflict": "It exists already, or was changed by somebody else",
	"stale_run": "The run has ended", "superseded": "A newer process has registered", "too_large": "The request is too large",
	"content_type": "The content type is not supported", "internal": "The hub made a mistake",
	"storage_unavailable": "The hub cannot write",
}

func newProblem(status int, code string, src *source, format string, a ...any) *problem {
	return &problem{
		Status: strconv.Itoa(status), Code: code, Title: titles[code], Detail: fmt.Sprintf(format, a...), Source: src, status: status,
	}
}

func invalidAt(pointer, format string, a ...any) *problem {
	return newProblem(http.StatusUnprocessableEntity, "invalid", &source{Pointer: pointer}, format, a...)
}

func badParameter(name, format string, a ...any) *problem {
	return newProblem(http.StatusBadRequest, "parameter", &source{Parameter: name}, format, a...)
}

type transitionMeta struct {
	Workflow string   `json:"workflow"`
	From     string   `json:"from"`
	To       string   `json:"to"`
	Open     []string `json:"open"`
}

// toProblem turns an error of the hub into what the caller is told. pointer gives the place of a field in the request.
func toProblem(err error, pointer func(field string) string) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	for _, s := range []struct {
		is     error
		status int
		code   string
	}{
		{domain.ErrStorage, http.StatusServiceUnavailable, "storage_unavailable"},
		{domain.ErrStaleRun, http.StatusConflict, "stale_run"},
		{domain.ErrSuperseded, http.StatusConflict, "superseded"},
		{domain.ErrUnauthenticated, http.StatusUnauthorized, "unauthenticated"},
		{domain.ErrForbidden, http.StatusForbidden, "forbidden"},
	} {
		if errors.Is(err, s.is) {
			return newProblem(s.status, s.code, nil, "%s", err)
		}
	}
	var te *domain.TransitionError
	if errors.As(err, &te) {
		p := newProblem(http.StatusUnprocessableEntity, "transition", &source{Pointer: pointer("state")}, "%s", te)
		p.Meta = transitionMeta{te.Workflow, te.From, te.To, append([]string{}, te.Open...)}
		return p
	}
	var fe *domain.FieldError
	if errors.As(err, &fe) {
		switch {
		case fe.Field == "idempotency_key":
			return newProblem(http.StatusUnprocessableEntity, "idempotency", &source{Header: "Idempotency-Key"}, "%s", fe.Err)
		case fe.Field == "user":
			return newProblem(http.StatusUnprocessableEntity, "invalid", &source{Header: "Gaia-User"}, "%s", fe.Err)
		case errors.Is(fe.Err, domain.ErrConflict):
			return newProblem(http.StatusConflict, "conflict", &source{Pointer: pointer(fe.Field)}, "%s", fe.Err)
		}
		return invalidAt(pointer(fe.Field), "%s", fe.Err)
	}
	switch {
	case errors.Is(err, domain.ErrNotFound):
		return newProblem(http.StatusNotFound, "not_found", nil, "%s", err)
	case errors.Is(err, domain.ErrConflict), errors.Is(err, domain.ErrExists):
		return newProblem(http.StatusConflict, "conflict", nil, "%s", err)
	case errors.Is(err, domain.ErrInvalid):
		return newProblem(http.StatusUnprocessableEntity, "invalid", nil, "%s", err)
	}
	return newProblem(http.StatusInternalServerError, "internal", nil, "the hub made a mistake; its journal says more (journalctl --user -u gaia-hub)")
}

func bodyPointer(field string) string { return "/" + field }

func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error, pointer func(string) string) {
	if r.Context().Err() != nil {
		return // the caller is gone; nobody is there to be told
	}
	p := toProblem(err, pointer)
	if p.status == http.StatusInternalServerError {
		s.log.Error().Str(log.MessageID, log.RequestFailed).Err(err).Str("method", r.Method).Str("path", r.URL.Path).Msg("a request failed")
	}
	if p.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	if p.allow != "" {
		w.Header().Set("Allow", p.allow)
	}
	body, err := json.Marshal(struct {
		JSONAPI version    `json:"jsonapi"`
		Errors  []*problem `json:"errors"`
	}{version{"1.1"}, []*problem{p}})
	if err != nil {
		body = nil // a problem holds strings only
	}
	w.Header().Set("Content-Type", mediaType)
	w.WriteHeader(p.status)
	w.Write(body)
}
