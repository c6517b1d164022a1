// Package api is the hub's face over HTTP: JSON:API 1.1 in Drupal's dialect under /jsonapi, and operations in plain
// JSON under /gaia/v1, as docs/openapi.yaml describes them. It reads requests, says who calls, and writes answers.
//
// It must hold no rule about tickets or runs, and must know no database: both are behind Hub. No input may end the
// process or leave half of a write behind.
package api

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"mime"
	"net/http"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"gaia/domain"
	"gaia/hub"
	"gaia/hub/auth"
	"gaia/hub/store"
	"gaia/internal/log"
)

// MaxBody is the largest request body in bytes.
const MaxBody = 1 << 20

// Hub is what the handlers need of the hub; *hub.Hub is one.
type Hub interface {
	ByToken(ctx context.Context, hash [32]byte) (auth.Principal, error)
	Ready(ctx context.Context) error
	Changed() <-chan struct{}
	Events(ctx context.Context, p auth.Principal, after int64, limit int) ([]domain.Event, int64, error)
	Head(ctx context.Context, p auth.Principal) (int64, [32]byte, error)
	Newest(ctx context.Context, p auth.Principal) (int64, error)

	Projects(ctx context.Context, p auth.Principal, q store.Query) ([]domain.Project, int, error)
	Project(ctx context.Context, p auth.Principal, ref string) (domain.Project, error)
	Tickets(ctx context.Context, p auth.Principal, q store.Query) ([]domain.Ticket, int, error)
	Ticket(ctx context.Context, p auth.Principal, ref string) (domain.Ticket, error)
	Runs(ctx context.Context, p auth.Principal, q store.Query) ([]domain.Run, int, error)
	Run(ctx context.Context, p auth.Principal, id string) (domain.Run, error)
	Conductors(ctx context.Context, p auth.Principal, q store.Query) ([]domain.Conductor, int, error)
	Conductor(ctx context.Context, p auth.Principal, ref string) (domain.Conductor, error)
	Comments(ctx context.Context, p auth.Principal, q store.Query) ([]domain.Comment, int, error)
	Comment(ctx context.Context, p auth.Principal, id string) (domain.Comment, error)
	Labels(ctx context.Context, p auth.Principal) ([]domain.Label, error)
	Users(ctx context.Context, p auth.Principal) ([]domain.User, error)
	Why(ctx context.Context, p auth.Principal, ref string) (domain.Why, error)
	Snapshot(ctx context.Context, p auth.Principal, project string) (domain.Snapshot, error)
	Assignment(ctx context.Context, p auth.Principal, run string) (*domain.Assignment, error)
	OwnRuns(ctx context.Context, p auth.Principal) ([]domain.Run, error)

	CreateProject(ctx context.Context, c hub.Call, p domain.Project) (domain.Project, error)
	PatchProject(ctx context.Context, c hub.Call, id string, patch domain.ProjectPatch) (domain.Project, error)
	PutUser(ctx context.Context, c hub.Call, u domain.User) (domain.User, error)
	CreateTicket(ctx context.Context, c hub.Call, d domain.TicketDraft) (domain.Ticket, error)
	PatchTicket(ctx context.Context, c hub.Call, ref string, p domain.TicketPatch) (domain.Ticket, error)
	AddComment(ctx context.Context, c hub.Call, m domain.Comment) (domain.Comment, error)
	Hold(ctx context.Context, c hub.Call, ref, note string) (domain.Ticket, error)
	Resume(ctx context.Context, c hub.Call, ref string) (domain.Ticket, error)
	ClearTree(ctx context.Context, c hub.Call, ref string) (domain.Ticket, error)
	Repair(ctx context.Context, c hub.Call, ref, state, reason string) (domain.Ticket, error)
	StopRun(ctx context.Context, c hub.Call, id string, retry bool, note string) (domain.Run, error)
	PatchRunFootprint(ctx context.Context, c hub.Call, id string, f domain.Footprint) (domain.Run, error)
	Drain(ctx context.Context, c hub.Call, ref string, draining bool) (domain.Conductor, error)

	Register(ctx context.Context, c hub.Call, r domain.Registration) (domain.Registered, error)
	Heartbeat(ctx context.Context, c hub.Call, b domain.Beat) (domain.Pulse, error)
	Parting(ctx context.Context, c hub.Call) error
	Claim(ctx context.Context, c hub.Call, q domain.ClaimRequest) (*domain.Assignment, error)
	Start(ctx context.Context, c hub.Call, id string, s domain.StartReport) (domain.Fate, error)
	Fail(ctx context.Context, c hub.Call, id string, f domain.Failure) (domain.Fate, error)
	Finalise(ctx context.Context, c hub.Call, id string, f domain.FinaliseReport) error
}

// Options are what a Server is made of.
type Options struct {
	Hub Hub
	Log zerolog.Logger
	// Heartbeat is how long an event stream stays silent at most; 0 is 15 seconds.
	Heartbeat time.Duration
}

// Server answers requests. Its http.Server must have auth's Identifier.WithConn as ConnContext.
type Server struct {
	hub       Hub
	log       zerolog.Logger
	heartbeat time.Duration
	mux       *http.ServeMux
	done      chan struct{}
	close     sync.Once
}

// New returns a Server.
func New(o Options) *Server {
	s := &Server{hub: o.Hub, log: o.Log, heartbeat: o.Heartbeat, mux: http.NewServeMux(), done: make(chan struct{})}
	if s.heartbeat <= 0 {
		s.heartbeat = 15 * time.Second
	}
	s.routes()
	return s
}

// Close ends the event streams, which would otherwise keep a graceful shutdown waiting.
func (s *Server) Close() { s.close.Do(func() { close(s.done) }) }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := &recorder{ResponseWriter: w}
	start := time.Now()
	defer func() {
		v := recover()
		if v == http.ErrAbortHandler {
			panic(v)
		}
		if v != nil {
			s.log.Error().Str(log.MessageID, log.RequestFailed).Str("method", r.Method).Str("path", r.URL.Path).Str("stack", string(debug.Stack())).
				Msgf("a request made the hub panic: %v", v)
			if rec.status != 0 {
				panic(http.ErrAbortHandler) // half an answer is out; the caller must not take it for a whole one
			}
			s.fail(rec, r, errors.New("panic"), bodyPointer)
		}
		s.log.Debug().Str("method", r.Method).Str("path", r.URL.Path).Int("status", rec.status).
			Dur("took", time.Since(start)).Msg("request")
	}()
	rec.Header().Set("X-Content-Type-Options", "nosniff")
	rec.Header().Set("Cache-Control", "no-store")
	s.mux.ServeHTTP(rec, r)
}

// recorder notes whether an answer has begun.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController find the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// endpoint answers one method of one path. Its error is told to the caller; pointer places fields in the request.
type endpoint struct {
	serve   func(*Server, http.ResponseWriter, *http.Request) error
	pointer func(field string) string
}

// methods are the endpoints of one path.
type methods map[string]endpoint

func (s *Server) handle(path string, m methods) {
	allow := make([]string, 0, len(m))
	for method := range m {
		allow = append(allow, method)
	}
	slices.Sort(allow)
	s.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		e, ok := m[r.Method]
		if !ok {
			p := newProblem(http.StatusMethodNotAllowed, "method", nil, "%s is not allowed here; there are %s", r.Method, strings.Join(allow, ", "))
			p.allow = strings.Join(allow, ", ")
			s.fail(w, r, p, bodyPointer)
			return
		}
		pointer := e.pointer
		if pointer == nil {
			pointer = bodyPointer
		}
		if err := e.serve(s, w, r); err != nil {
			s.fail(w, r, err, pointer)
		}
	})
}

func (s *Server) routes() {
	for _, c := range collections {
		s.resource(c)
	}
	for path, m := range operations {
		s.handle("/gaia/v1/"+path, m)
	}
	s.handleEvents()
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, newProblem(http.StatusNotFound, "not_found", nil, "there is nothing at %s", r.URL.Path), bodyPointer)
	})
}

// body reads a request's body of the media type want. An empty body needs no type.
func body(w http.ResponseWriter, r *http.Request, want string) ([]byte, error) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return nil, newProblem(http.StatusRequestEntityTooLarge, "too_large", nil, "a request has at most %d bytes", MaxBody)
	}
	if err != nil {
		return nil, newProblem(http.StatusBadRequest, "bad_request", nil, "the body cannot be read: %s", err)
	}
	if len(b) == 0 {
		return nil, nil
	}
	typ, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err == nil && want != mediaType {
		delete(params, "charset") // for the operations, many clients add it by themselves
	}
	if err != nil || typ != want || !plainParams(params) {
		return nil, newProblem(http.StatusUnsupportedMediaType, "content_type", &source{Header: "Content-Type"}, "send %s, without parameters", want)
	}
	return b, nil
}

// plainParams reports whether media type parameters are those that JSON:API lets a server ignore; extensions, of which
// the hub has none, are not.
func plainParams(params map[string]string) bool {
	for name := range params {
		if name != "profile" {
			return false
		}
	}
	return true
}

// acceptable applies the Accept header: want, JSON in general and wildcards are what there is.
func acceptable(r *http.Request, want string) error {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if strings.TrimSpace(accept) == "" {
		return nil
	}
	for _, part := range strings.Split(accept, ",") {
		typ, params, err := mime.ParseMediaType(strings.TrimSpace(part))
		if err != nil {
			continue
		}
		q := params["q"]
		delete(params, "q")
		if strings.Trim(q, "0.") == "" && q != "" {
			continue
		}
		switch typ {
		case want:
			if want != mediaType || plainParams(params) {
				return nil
			}
		case "*/*", "application/*", "application/json":
			return nil
		}
	}
	return newProblem(http.StatusNotAcceptable, "not_acceptable", &source{Header: "Accept"}, "there is %s only", want)
}

var userName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9-]+$`) })

// principal says who calls. A token that is shown decides, whoever the peer is: an agent that shares the owner's uid
// acts as the run that it is.
func (s *Server) principal(r *http.Request) (auth.Principal, error) {
	peer := auth.PeerFrom(r.Context())
	if h := r.Header.Get("Authorization"); h != "" {
		scheme, token, _ := strings.Cut(h, " ")
		token = strings.TrimSpace(token)
		if !strings.EqualFold(scheme, "Bearer") || token == "" {
			return auth.Principal{}, newProblem(http.StatusUnauthorized, "unauthenticated", &source{Header: "Authorization"}, "write Authorization: Bearer and the token")
		}
		hash := sha256.Sum256([]byte(token))
		p, err := s.hub.ByToken(r.Context(), hash)
		p.Token, p.Peer, p.Epoch = hash, peer.Owner, r.Header.Get("Gaia-Epoch")
		if err != nil {
			return p, err
		}
		if m := r.Header.Get("Gaia-Machine-Id"); p.Kind == auth.Conductor && m != "" && m != p.Machine {
			return auth.Principal{}, newProblem(http.StatusForbidden, "forbidden", &source{Header: "Gaia-Machine-Id"}, "the token belongs to another conductor than %s", m)
		}
		return p, nil
	}
	if !peer.Owner {
		return auth.Principal{}, newProblem(http.StatusUnauthorized, "unauthenticated", nil,
			"the hub does not know who you are: no token was shown, and the peer is not the hub's owner: %s", peer.Why)
	}
	user := r.Header.Get("Gaia-User")
	if user != "" && (!userName().MatchString(user) || len(user) > 63) {
		return auth.Principal{}, newProblem(http.StatusBadRequest, "bad_request", &source{Header: "Gaia-User"}, "a user is 1 to 63 of a-z, 0-9 and -")
	}
	return auth.Principal{Kind: auth.Owner, User: user, Peer: true}, nil
}

const maxKey = 128

// call is the principal of a write with its idempotency key.
func (s *Server) call(r *http.Request, b []byte) (hub.Call, error) {
	p, err := s.principal(r)
	if err != nil {
		return hub.Call{Principal: p}, err
	}
	return keyed(r, p, b)
}

func keyed(r *http.Request, p auth.Principal, b []byte) (hub.Call, error) {
	key := r.Header.Get("Idempotency-Key")
	if len(key) > maxKey || strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c > '~' }) {
		return hub.Call{}, newProblem(http.StatusBadRequest, "bad_request", &source{Header: "Idempotency-Key"}, "a key is at most %d printable characters", maxKey)
	}
	h := sha256.New()
	io.WriteString(h, r.Method+"\n"+r.URL.EscapedPath()+"\n")
	h.Write(b)
	return hub.Call{Principal: p, Key: key, Request: [32]byte(h.Sum(nil))}, nil
}
