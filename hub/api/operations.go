package api

import (
	"context"
	"encoding/hex"
	"errors"
	"net/http"

	"gaia/domain"
	"gaia/hub"
	"gaia/hub/auth"
)

const jsonType = "application/json"

type none struct{}

// op is a write with a JSON body of type In. An answer that is nil is 204.
func op[In any](fn func(ctx context.Context, h Hub, c hub.Call, id string, in In) (any, error)) endpoint {
	return endpoint{serve: func(s *Server, w http.ResponseWriter, r *http.Request) error {
		var in In
		call, err := s.operation(w, r, &in)
		if err != nil {
			return err
		}
		out, err := fn(r.Context(), s.hub, call, r.PathValue("id"), in)
		if err != nil {
			return err
		}
		return done(w, out)
	}}
}

// operation reads the body and says who calls. An absent body is an empty object.
func (s *Server) operation(w http.ResponseWriter, r *http.Request, in any) (hub.Call, error) {
	if err := acceptable(r, jsonType); err != nil {
		return hub.Call{}, err
	}
	b, err := body(w, r, jsonType)
	if err != nil {
		return hub.Call{}, err
	}
	call, err := s.call(r, b)
	if err != nil {
		return call, err
	}
	return call, decodeBody(b, in)
}

func decodeBody(b []byte, in any) error {
	if b == nil {
		b = []byte("{}")
	}
	if err := checkJSON(b); err != nil {
		return err
	}
	return decoder{pointer: func(f string) string { return "/" + escape(f) }}.decode(b, in)
}

func done(w http.ResponseWriter, out any) error {
	if out == nil {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return answer(w, http.StatusOK, jsonType, out)
}

// view is a read with a JSON answer.
func view(fn func(h Hub, p auth.Principal, r *http.Request) (any, error)) endpoint {
	return endpoint{serve: func(s *Server, w http.ResponseWriter, r *http.Request) error {
		if err := acceptable(r, jsonType); err != nil {
			return err
		}
		p, err := s.principal(r)
		if err != nil {
			return err
		}
		out, err := fn(s.hub, p, r)
		if err != nil {
			return err
		}
		return done(w, out)
	}}
}

// parameter returns the value of the only query parameter that a view has.
func parameter(r *http.Request, name string) (string, error) {
	for n, v := range r.URL.Query() {
		if n != name || len(v) != 1 {
			return "", badParameter(n, "give %s once and nothing else", name)
		}
	}
	return r.URL.Query().Get(name), nil
}

func post(e endpoint) methods { return methods{http.MethodPost: e} }
func get(e endpoint) methods  { return methods{http.MethodGet: e} }

type stopInput struct {
	Retry bool   `json:"retry"`
	Note  string `json:"note"`
}

type holdInput struct {
	Note string `json:"note"`
}

type repairInput struct {
	State  string `json:"state"`
	Reason string `json:"reason"`
}

type runSet struct {
	Runs []domain.Run `json:"runs"`
}

type workflowSet struct {
	Workflows []domain.Workflow `json:"workflows"`
}

type head struct {
	Seq  int64  `json:"seq"`
	Hash string `json:"hash"`
}

type health struct {
	Status string `json:"status"`
}

// operations are the paths below /gaia/v1, but for the event stream.
var operations = map[string]methods{
	"register": post(endpoint{serve: register}),
	"heartbeat": post(op(func(ctx context.Context, h Hub, c hub.Call, _ string, b domain.Beat) (any, error) {
		return h.Heartbeat(ctx, c, b)
	})),
	"parting": post(op(func(ctx context.Context, h Hub, c hub.Call, _ string, _ none) (any, error) {
		return nil, h.Parting(ctx, c)
	})),
	"claim": post(op(func(ctx context.Context, h Hub, c hub.Call, _ string, q domain.ClaimRequest) (any, error) {
		a, err := h.Claim(ctx, c, q)
		if a == nil {
			return nil, err
		}
		return a, err
	})),
	"own-runs": get(view(func(h Hub, p auth.Principal, r *http.Request) (any, error) {
		runs, err := h.OwnRuns(r.Context(), p)
		return runSet{append([]domain.Run{}, runs...)}, err
	})),
	"runs/{id}/assignment": get(view(func(h Hub, p auth.Principal, r *http.Request) (any, error) {
		return h.Assignment(r.Context(), p, r.PathValue("id"))
	})),
	"runs/{id}/start": post(op(func(ctx context.Context, h Hub, c hub.Call, id string, s domain.StartReport) (any, error) {
		return h.Start(ctx, c, id, s)
	})),
	"runs/{id}/fail": post(op(func(ctx context.Context, h Hub, c hub.Call, id string, f domain.Failure) (any, error) {
		return h.Fail(ctx, c, id, f)
	})),
	"runs/{id}/finalise": post(op(func(ctx context.Context, h Hub, c hub.Call, id string, f domain.FinaliseReport) (any, error) {
		return nil, h.Finalise(ctx, c, id, f)
	})),
	"runs/{id}/stop": post(op(func(ctx context.Context, h Hub, c hub.Call, id string, in stopInput) (any, error) {
		return h.StopRun(ctx, c, id, in.Retry, in.Note)
	})),
	"conductors/{id}/drain": post(op(func(ctx context.Context, h Hub, c hub.Call, id string, _ none) (any, error) {
		return h.Drain(ctx, c, id, true)
	})),
	"conductors/{id}/resume": post(op(func(ctx context.Context, h Hub, c hub.Call, id string, _ none) (any, error) {
		return h.Drain(ctx, c, id, false)
	})),
	"tickets/{id}/hold": post(op(func(ctx context.Context, h Hub, c hub.Call, id string, in holdInput) (any, error) {
		return h.Hold(ctx, c, id, in.Note)
	})),
	"tickets/{id}/resume": post(op(func(ctx context.Context, h Hub, c hub.Call, id string, _ none) (any, error) {
		return h.Resume(ctx, c, id)
	})),
	"tickets/{id}/tree-clear": post(op(func(ctx context.Context, h Hub, c hub.Call, id string, _ none) (any, error) {
		return h.ClearTree(ctx, c, id)
	})),
	"tickets/{id}/repair": post(op(func(ctx context.Context, h Hub, c hub.Call, id string, in repairInput) (any, error) {
		return h.Repair(ctx, c, id, in.State, in.Reason)
	})),
	"why": get(view(func(h Hub, p auth.Principal, r *http.Request) (any, error) {
		ref, err := parameter(r, "ticket")
		if err == nil && ref == "" {
			err = badParameter("ticket", "name a ticket")
		}
		if err != nil {
			return nil, err
		}
		return h.Why(r.Context(), p, ref)
	})),
	"snapshot": get(view(func(h Hub, p auth.Principal, r *http.Request) (any, error) {
		project, err := parameter(r, "project")
		if err != nil {
			return nil, err
		}
		return h.Snapshot(r.Context(), p, project)
	})),
	"workflows": get(view(func(_ Hub, p auth.Principal, _ *http.Request) (any, error) {
		return workflowSet{domain.Workflows()}, p.May(auth.Read)
	})),
	"verify/head": get(view(func(h Hub, p auth.Principal, r *http.Request) (any, error) {
		seq, hash, err := h.Head(r.Context(), p)
		return head{seq, hex.EncodeToString(hash[:])}, err
	})),
	// Whoever reaches the socket may ask whether the hub is well: supervisors and load balancers have no token.
	"healthz": get(endpoint{serve: func(_ *Server, w http.ResponseWriter, _ *http.Request) error {
		return answer(w, http.StatusOK, jsonType, health{"ok"})
	}}),
	"readyz": get(endpoint{serve: func(s *Server, w http.ResponseWriter, r *http.Request) error {
		if err := s.hub.Ready(r.Context()); err != nil {
			s.log.Warn().Err(err).Msg("not ready: the database cannot be read and written")
			return newProblem(http.StatusServiceUnavailable, "storage_unavailable", nil, "the database cannot be read and written now")
		}
		return answer(w, http.StatusOK, jsonType, health{"ok"})
	}}),
}

// register lets in a token that nobody knows yet: the hub decides, by the peer, whether it may become a conductor's.
func register(s *Server, w http.ResponseWriter, r *http.Request) error {
	if err := acceptable(r, jsonType); err != nil {
		return err
	}
	b, err := body(w, r, jsonType)
	if err != nil {
		return err
	}
	p, err := s.principal(r)
	var refused *problem
	fresh := errors.Is(err, domain.ErrUnauthenticated) && !errors.As(err, &refused)
	if err != nil && !fresh {
		return err
	}
	var in domain.Registration
	if err := decodeBody(b, &in); err != nil {
		return err
	}
	if fresh {
		p.Kind, p.Machine = auth.Conductor, in.MachineID
	}
	call, err := keyed(r, p, b)
	if err != nil {
		return err
	}
	out, err := s.hub.Register(r.Context(), call, in)
	if err != nil {
		return err
	}
	return done(w, out)
}
