// Package hubtest gives tests a real hub to talk to: core, SQLite and HTTP on a unix socket and on TCP. Every exchange
// is held against docs/openapi.yaml, whoever makes it; a request that succeeds and an answer of any kind must be as
// described there.
//
// It is for tests only.
package hubtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/hub"
	"gaia/hub/api"
	"gaia/hub/auth"
	"gaia/hub/store"
	"gaia/hub/store/sqlite"
	"gaia/internal/clock"
	"gaia/remote"
)

// Prefix is no prefix of an installation, so that a test that an agent runs inside a run is the owner all the same.
const Prefix = "hubtest"

// Hub is a hub that serves a test.
type Hub struct {
	Core   *hub.Hub
	Store  store.Store
	API    *api.Server
	URL    string // unix://…
	Socket string
	TCP    string // http://127.0.0.1:…, where nobody is the owner

	mu   sync.Mutex
	wrap func(http.Handler) http.Handler // stands before the hub, see Wrap
}

// Options change what New makes. The zero value is what most tests want.
type Options struct {
	Clock     clock.Clock   // nil is the machine's
	Heartbeat time.Duration // of event streams
	Log       zerolog.Logger
	// Face stands between the hub and its handlers.
	Face func(api.Hub) api.Hub
}

// New starts a hub that ends with the test.
func New(t testing.TB, o Options) *Hub {
	t.Helper()
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	db, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "hub.db"))
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "g") // t.TempDir may be too long for a socket
	require.NoError(t, err)
	h := &Hub{Store: db, Socket: filepath.Join(dir, "hub.sock")}
	h.URL = "unix://" + h.Socket
	h.Core = hub.New(hub.Options{Store: db, Clock: o.Clock, Limits: domain.DefaultLimits(), Leases: hub.DefaultLeases(), Log: o.Log})
	require.NoError(t, h.Core.Open(t.Context()))
	face := api.Hub(h.Core)
	if o.Face != nil {
		face = o.Face(face)
	}
	h.API = api.New(api.Options{Hub: face, Log: o.Log, Heartbeat: o.Heartbeat})
	described := Described(t, h.API)
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.mu.Lock()
			wrap := h.wrap
			h.mu.Unlock()
			if wrap != nil {
				wrap(described).ServeHTTP(w, r)
				return
			}
			described.ServeHTTP(w, r)
		}),
		ConnContext: auth.NewIdentifier(os.Geteuid(), Prefix).WithConn,
	}
	unix, err := net.Listen("unix", h.Socket)
	require.NoError(t, err)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h.TCP = "http://" + tcp.Addr().String()
	var served sync.WaitGroup
	for _, l := range []net.Listener{unix, tcp} {
		served.Go(func() { _ = srv.Serve(l) }) // ends with ErrServerClosed
	}
	t.Cleanup(func() {
		h.API.Close()
		_ = srv.Close()
		served.Wait()
		_ = db.Close()
		_ = os.RemoveAll(dir)
	})
	return h
}

// Wrap puts a handler before the hub, to lose answers for one, or takes it away for nil.
func (h *Hub) Wrap(fn func(http.Handler) http.Handler) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wrap = fn
}

// Client returns a client of the owner, who acts as user. change may alter its options.
func (h *Hub) Client(t testing.TB, user string, change ...func(*remote.Options)) *remote.Client {
	t.Helper()
	o := remote.Options{Hub: h.URL, User: user, Log: zerolog.Nop()}
	for _, fn := range change {
		fn(&o)
	}
	c, err := remote.New(o)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// Token writes a fresh token to a file and returns the path and the hexadecimal SHA-256.
func Token(t testing.TB) (file, sum string) {
	t.Helper()
	token := rand.Text()
	file = filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(token+"\n"), 0o600))
	hash := sha256.Sum256([]byte(token))
	return file, hex.EncodeToString(hash[:])
}

// Project makes a project.
func (h *Hub) Project(t testing.TB, key string) domain.Project {
	t.Helper()
	p, err := h.Client(t, "anna").CreateProject(t.Context(), domain.Project{Key: key, Slug: strings.ToLower(key)})
	require.NoError(t, err)
	return p
}

// Conductor registers a conductor of the user anna and returns its client.
func (h *Hub) Conductor(t testing.TB, project domain.Project, instance string) (*remote.Client, domain.Conductor) {
	t.Helper()
	file, _ := Token(t)
	machine, epoch := "anna.box."+instance, rand.Text()
	c := h.Client(t, "", func(o *remote.Options) { o.TokenFile, o.MachineID, o.Epoch = file, machine, epoch })
	r, err := c.Register(t.Context(), domain.Registration{
		MachineID: machine, Epoch: epoch, Project: project.Key, MaxParallel: 3, WorkspaceRoot: "/srv/trees", Version: "test",
	})
	require.NoError(t, err)
	return c, r.Conductor
}

// Offer is that of a conductor that can do everything.
func Offer() domain.Offer {
	o := domain.Offer{Agents: []string{"script"}, Default: "script"}
	for _, w := range domain.Workflows() {
		for _, s := range w.States {
			if s.Claimable {
				o.Serves = append(o.Serves, domain.ServeKey(w.ID, s.Name))
			}
		}
	}
	o.Serves = append(o.Serves, domain.ServeKey(domain.Unqualified, domain.StateQualification))
	return o
}

// Claim claims a ticket for a conductor and returns the assignment with a client of the run; nil where there is none.
func (h *Hub) Claim(t testing.TB, conductor *remote.Client) (*domain.Assignment, *remote.Client) {
	t.Helper()
	file, sum := Token(t)
	id, err := uuid.NewV7()
	require.NoError(t, err)
	a, err := conductor.Claim(t.Context(), domain.ClaimRequest{Run: id.String(), TokenSHA256: sum, Offer: Offer()})
	require.NoError(t, err)
	if a == nil {
		return nil, nil
	}
	return a, h.Client(t, "", func(o *remote.Options) { o.TokenFile = file })
}

// Spec returns docs/openapi.yaml.
func Spec(t testing.TB) *openapi3.T {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	doc, err := openapi3.NewLoader().LoadFromFile(filepath.Join(filepath.Dir(here), "..", "..", "docs", "openapi.yaml"))
	require.NoError(t, err)
	require.NoError(t, doc.Validate(context.Background()))
	return doc
}

var router = sync.OnceValues(func() (routers.Router, error) {
	_, here, _, _ := runtime.Caller(0)
	doc, err := openapi3.NewLoader().LoadFromFile(filepath.Join(filepath.Dir(here), "..", "..", "docs", "openapi.yaml"))
	if err != nil {
		return nil, err
	}
	doc.Servers = nil // the paths are the same on every hub
	lines := func(body io.Reader, _ http.Header, _ *openapi3.SchemaRef, _ openapi3filter.EncodingFn) (any, error) {
		b, err := io.ReadAll(body)
		return string(b), err
	}
	openapi3filter.RegisterBodyDecoder("text/event-stream", lines)
	openapi3filter.RegisterBodyDecoder("application/jsonl", lines)
	return gorillamux.NewRouter(doc)
})

// Described returns a handler that holds every exchange of h against the description and fails the test where the two
// differ: a request that is not described must be refused, and an answer must be as described. Streams are passed on.
func Described(t testing.TB, h http.Handler) http.Handler {
	t.Helper()
	routes, err := router()
	require.NoError(t, err)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		route, params, err := routes.FindRoute(r)
		if err != nil || strings.HasSuffix(r.URL.Path, "/events") {
			h.ServeHTTP(w, r) // refused with 404 or 405, which other tests look at
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			h.ServeHTTP(w, r) // the caller is gone
			return
		}
		in := &openapi3filter.RequestValidationInput{
			Request: r.Clone(r.Context()), PathParams: params, Route: route,
			Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
		}
		in.Request.Body = io.NopCloser(bytes.NewReader(body))
		// OpenAPI has no words for filter[field][]=v, so filters are described in prose.
		in.QueryParams = r.URL.Query()
		for name := range in.QueryParams {
			if strings.HasPrefix(name, "filter[") {
				delete(in.QueryParams, name)
			}
		}
		undescribed := openapi3filter.ValidateRequest(r.Context(), in)
		r.Body = io.NopCloser(bytes.NewReader(body))
		rec := &answer{header: http.Header{}, status: http.StatusOK}
		h.ServeHTTP(rec, r)
		if r.Context().Err() == nil {
			if undescribed != nil && rec.status < 300 {
				t.Errorf("%s %s was accepted, but is not as docs/openapi.yaml describes it: %v", r.Method, r.URL, undescribed)
			}
			out := &openapi3filter.ResponseValidationInput{
				RequestValidationInput: in, Status: rec.status, Header: rec.header, Options: &openapi3filter.Options{IncludeResponseStatus: true},
			}
			out.SetBodyBytes(rec.body.Bytes())
			if err := openapi3filter.ValidateResponse(r.Context(), out); err != nil {
				t.Errorf("the answer to %s %s is not as docs/openapi.yaml describes it: %v\n%d %s", r.Method, r.URL, err, rec.status, rec.body.String())
			}
		}
		for name, v := range rec.header {
			w.Header()[name] = v
		}
		w.WriteHeader(rec.status)
		_, _ = w.Write(rec.body.Bytes()) // the caller may be gone
	})
}

type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }
