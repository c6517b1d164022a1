package api_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"gaia/domain"
	"gaia/hub"
	"gaia/hub/api"
	"gaia/hub/auth"
	"gaia/internal/hubtest"
	"gaia/remote"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// caller makes plain requests, as curl would.
type caller struct {
	t      testing.TB
	client *http.Client
	base   string
	header http.Header
}

func newCaller(t testing.TB, h *hubtest.Hub, tcp bool, header ...string) caller {
	c := caller{t: t, base: h.TCP, header: http.Header{}}
	tr := &http.Transport{}
	if !tcp {
		c.base = "http://hub"
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", h.Socket)
		}
	}
	c.client = &http.Client{Transport: tr}
	t.Cleanup(tr.CloseIdleConnections)
	for i := 0; i < len(header); i += 2 {
		c.header.Set(header[i], header[i+1])
	}
	return c
}

type reply struct {
	Status int
	Header http.Header
	Body   []byte
	Doc    struct {
		Data     json.RawMessage
		Included []struct{ Type, ID string }
		Links    struct{ Self, Next, Prev string }
		Meta     struct{ Count int }
		Errors   []struct {
			Status, Code, Title, Detail string
			Source                      struct{ Pointer, Parameter, Header string }
		}
	}
}

func (c caller) do(method, path, body string, header ...string) reply {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.base+path, strings.NewReader(body))
	require.NoError(c.t, err)
	req.Header = c.header.Clone()
	if body != "" {
		req.Header.Set("Content-Type", "application/vnd.api+json")
		if strings.HasPrefix(path, "/gaia/") {
			req.Header.Set("Content-Type", "application/json")
		}
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.client.Do(req)
	require.NoError(c.t, err)
	defer resp.Body.Close()
	r := reply{Status: resp.StatusCode, Header: resp.Header}
	r.Body, err = io.ReadAll(resp.Body)
	require.NoError(c.t, err)
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/vnd.api+json") {
		require.NoError(c.t, json.Unmarshal(r.Body, &r.Doc))
	}
	return r
}

func (r reply) code() string {
	if len(r.Doc.Errors) == 0 {
		return ""
	}
	return r.Doc.Errors[0].Code
}

const ticketType = `"type":"gaia_ticket--gaia_ticket"`

func ticketDoc(project, attributes string) string {
	return fmt.Sprintf(`{"data":{%s,"attributes":{%s},"relationships":{"project_id":{"data":{"type":"gaia_project--gaia_project","id":%q}}}}}`, ticketType, attributes, project)
}

const tickets = "/jsonapi/gaia_ticket/gaia_ticket"

func TestJSONAPI(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, hubtest.Options{})
	p := h.Project(t, "SHOP")
	c := newCaller(t, h, false, "Gaia-User", "anna")
	made := c.do("POST", tickets, ticketDoc(p.ID, `"title":"One"`))
	require.Equal(t, 201, made.Status)
	require.True(t, strings.HasPrefix(made.Header.Get("Location"), tickets+"/"))
	require.Equal(t, "application/vnd.api+json", made.Header.Get("Content-Type"))
	for i := range 4 {
		require.Equal(t, 201, c.do("POST", tickets, ticketDoc(p.ID, fmt.Sprintf(`"title":"N%d"`, i))).Status)
	}

	// Pages are linked until the last.
	path, n := tickets+"?page[limit]=2&sort=created_at&fields[gaia_ticket--gaia_ticket]=title", 0
	for pages := 0; path != ""; pages++ {
		require.Less(t, pages, 5)
		r := c.do("GET", path, "")
		require.Equal(t, 200, r.Status, string(r.Body))
		require.Equal(t, 5, r.Doc.Meta.Count)
		var data []struct {
			Attributes    map[string]any
			Relationships map[string]any
		}
		require.NoError(t, json.Unmarshal(r.Doc.Data, &data))
		n += len(data)
		for _, o := range data {
			require.Len(t, o.Attributes, 1)
			require.Empty(t, o.Relationships)
		}
		path = r.Doc.Links.Next
	}
	require.Equal(t, 5, n)

	r := c.do("GET", tickets+"?include=project_id,assignee_user_id&page[limit]=3", "")
	require.Len(t, r.Doc.Included, 1, "each once")
	require.Equal(t, p.ID, r.Doc.Included[0].ID)
	r = c.do("GET", tickets+"/SHOP-1?include=project_id&fields[gaia_project--gaia_project]=name", "")
	require.Equal(t, 200, r.Status)
	require.Len(t, r.Doc.Included, 1)

	for name, want := range map[string]struct {
		method, path, body string
		header             []string
		status             int
		code               string
	}{
		"no such path":       {"GET", "/jsonapi/nope/nope", "", nil, 404, "not_found"},
		"no such ticket":     {"GET", tickets + "/SHOP-99", "", nil, 404, "not_found"},
		"wrong method":       {"DELETE", tickets + "/SHOP-1", "", nil, 405, "method"},
		"no content type":    {"POST", tickets, "{}", []string{"Content-Type", ""}, 415, "content_type"},
		"plain json":         {"POST", tickets, "{}", []string{"Content-Type", "application/json"}, 415, "content_type"},
		"charset":            {"POST", tickets, "{}", []string{"Content-Type", "application/vnd.api+json; charset=utf-8"}, 415, "content_type"},
		"extension":          {"POST", tickets, "{}", []string{"Content-Type", `application/vnd.api+json; ext="https://x"`}, 415, "content_type"},
		"html wanted":        {"GET", tickets, "", []string{"Accept", "text/html"}, 406, "not_acceptable"},
		"no body":            {"POST", tickets, "", nil, 400, "bad_request"},
		"client's own id":    {"POST", tickets, `{"data":{` + ticketType + `,"id":"x","attributes":{"title":"t"}}}`, nil, 403, "forbidden"},
		"other id":           {"PATCH", tickets + "/SHOP-1", `{"data":{` + ticketType + `,"id":"SHOP-2"}}`, nil, 409, "conflict"},
		"no id":              {"PATCH", tickets + "/SHOP-1", `{"data":{` + ticketType + `}}`, nil, 409, "conflict"},
		"other type":         {"POST", tickets, `{"data":{"type":"user--user"}}`, nil, 409, "conflict"},
		"write with a query": {"POST", tickets + "?include=project_id", ticketDoc(p.ID, `"title":"t"`), nil, 400, "bad_request"},
		"unknown filter":     {"GET", tickets + "?filter[nope]=1", "", nil, 400, "parameter"},
		"unsortable":         {"GET", tickets + "?sort=links", "", nil, 400, "parameter"},
		"filtered users":     {"GET", "/jsonapi/user/user?filter[name]=x", "", nil, 400, "parameter"},
		"all comments":       {"GET", "/jsonapi/gaia_comment/gaia_comment", "", nil, 400, "parameter"},
		"user without id":    {"POST", "/jsonapi/user/user", `{"data":{"type":"user--user"}}`, nil, 422, "invalid"},
		"bad acting user":    {"GET", tickets, "", []string{"Gaia-User", "Anna!"}, 400, "bad_request"},
		"no acting user":     {"POST", tickets, ticketDoc(p.ID, `"title":"t"`), []string{"Gaia-User", ""}, 422, "invalid"},
		"long key":           {"POST", tickets, ticketDoc(p.ID, `"title":"t"`), []string{"Idempotency-Key", strings.Repeat("k", 129)}, 400, "bad_request"},
		"basic auth":         {"GET", tickets, "", []string{"Authorization", "Basic x"}, 401, "unauthenticated"},
		"unknown token":      {"GET", tickets, "", []string{"Authorization", "Bearer nope"}, 401, "unauthenticated"},
		"unknown member":     {"POST", "/gaia/v1/tickets/SHOP-1/hold", `{"x":1}`, nil, 422, "invalid"},
		"why nothing":        {"GET", "/gaia/v1/why", "", nil, 400, "parameter"},
		"footprint missing":  {"PATCH", "/jsonapi/gaia_run/gaia_run/x", `{"data":{"type":"gaia_run--gaia_run","id":"x"}}`, nil, 422, "invalid"},
		"events after x":     {"GET", "/gaia/v1/events?after=x", "", nil, 400, "parameter"},
		"events as html":     {"GET", "/gaia/v1/events", "", []string{"Accept", "text/csv"}, 406, "not_acceptable"},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.do(want.method, want.path, want.body, want.header...)
			require.Equal(t, want.status, r.Status, string(r.Body))
			require.Equal(t, want.code, r.code())
			require.Equal(t, fmt.Sprint(want.status), r.Doc.Errors[0].Status)
			require.NotEmpty(t, r.Doc.Errors[0].Detail)
			if want.status == 405 {
				require.Equal(t, "GET, PATCH", r.Header.Get("Allow"))
			}
		})
	}
	r = c.do("PATCH", tickets+"/SHOP-1", `{"data":{`+ticketType+`,"id":"SHOP-1","attributes":{"title":""}}}`)
	require.Equal(t, "/data/attributes/title", r.Doc.Errors[0].Source.Pointer)
	r = c.do("PATCH", tickets+"/SHOP-1", `{"data":{`+ticketType+`,"id":"SHOP-1","relationships":{"target":{"data":{"type":"gaia_conductor--gaia_conductor","id":"nope"}}}}}`)
	require.Equal(t, "/data/relationships/target", r.Doc.Errors[0].Source.Pointer)
	r = c.do("PATCH", tickets+"/SHOP-1", `{"data":{`+ticketType+`,"id":"SHOP-1","attributes":{"state":"done"}}}`)
	require.Equal(t, "transition", r.code())
	require.Contains(t, string(r.Body), `"open":["human_input","cancelled"]`)
}

func TestLimits(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, hubtest.Options{})
	p := h.Project(t, "SHOP")
	c := newCaller(t, h, false, "Gaia-User", "anna")
	r := c.do("POST", tickets, ticketDoc(p.ID, `"title":"`+strings.Repeat("x", api.MaxBody)+`"`))
	require.Equal(t, 413, r.Status)
	require.Equal(t, "too_large", r.code())
	// As large as it may be, and too much for a title: read, and refused for what it is.
	r = c.do("POST", tickets, ticketDoc(p.ID, `"title":"`+strings.Repeat("x", api.MaxBody-300)+`"`))
	require.Equal(t, 422, r.Status)
	deep := strings.Repeat("[", 200_000) + strings.Repeat("]", 200_000)
	r = c.do("POST", tickets, ticketDoc(p.ID, `"title":`+deep))
	require.Equal(t, 400, r.Status, "nesting has an end")
	require.Equal(t, 0, c.do("GET", tickets, "").Doc.Meta.Count, "nothing was half written")
}

func TestIdempotency(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, hubtest.Options{})
	p := h.Project(t, "SHOP")
	c := newCaller(t, h, false, "Gaia-User", "anna", "Idempotency-Key", "k1")
	first := c.do("POST", tickets, ticketDoc(p.ID, `"title":"t"`))
	require.Equal(t, 201, first.Status)
	again := c.do("POST", tickets, ticketDoc(p.ID, `"title":"t"`))
	require.Equal(t, first.Body, again.Body)
	other := c.do("POST", tickets, ticketDoc(p.ID, `"title":"u"`))
	require.Equal(t, 422, other.Status)
	require.Equal(t, "idempotency", other.code())
	require.Equal(t, "Idempotency-Key", other.Doc.Errors[0].Source.Header)
	elsewhere := c.do("POST", "/gaia/v1/tickets/SHOP-1/hold", "")
	require.Equal(t, 422, elsewhere.Status, "the path belongs to the request")
	require.Equal(t, 201, c.do("POST", tickets, ticketDoc(p.ID, `"title":"t"`), "Gaia-User", "bo").Status, "keys are each caller's own")
	require.Equal(t, 2, c.do("GET", tickets, "").Doc.Meta.Count)
}

// endpoints are one request for each thing that can be asked for, with the action that decides.
var endpoints = []struct {
	method, path, body string
	action             auth.Action
}{
	{"GET", tickets, "", auth.Read},
	{"GET", tickets + "/SHOP-1", "", auth.Read},
	{"GET", "/jsonapi/gaia_project/gaia_project", "", auth.Read},
	{"GET", "/jsonapi/gaia_run/gaia_run", "", auth.Read},
	{"GET", "/jsonapi/gaia_conductor/gaia_conductor", "", auth.Read},
	{"GET", "/jsonapi/gaia_comment/gaia_comment?filter[ticket_id]=SHOP-1", "", auth.Read},
	{"GET", "/jsonapi/gaia_term/gaia_labels", "", auth.Read},
	{"GET", "/jsonapi/user/user", "", auth.Read},
	{"GET", "/gaia/v1/why?ticket=SHOP-1", "", auth.Read},
	{"GET", "/gaia/v1/snapshot", "", auth.Read},
	{"GET", "/gaia/v1/workflows", "", auth.Read},
	{"GET", "/gaia/v1/own-runs", "", auth.Lease},
	{"GET", "/gaia/v1/runs/$RUN/assignment", "", auth.Lease},
	{"GET", "/gaia/v1/verify/head", "", auth.Verify},
	{"POST", "/jsonapi/gaia_project/gaia_project", `{"data":{"type":"gaia_project--gaia_project","attributes":{"key":"$KEY","slug":"new"}}}`, auth.ProjectWrite},
	{"PATCH", "/jsonapi/gaia_project/gaia_project/$PROJECT", `{"data":{"type":"gaia_project--gaia_project","id":"$PROJECT","attributes":{"name":"n"}}}`, auth.ProjectWrite},
	{"POST", "/jsonapi/user/user", `{"data":{"type":"user--user","id":"cleo","attributes":{"name":"Cleo"}}}`, auth.UserWrite},
	{"POST", tickets, `{"data":{` + ticketType + `,"attributes":{"title":"sub"},"relationships":{"project_id":{"data":{"type":"gaia_project--gaia_project","id":"$PROJECT"}},"parent_id":{"data":{` + ticketType + `,"id":"$TICKET"}}}}}`, auth.TicketCreate},
	{"PATCH", tickets + "/SHOP-1", `{"data":{` + ticketType + `,"id":"SHOP-1","attributes":{"title":"new"}}}`, auth.TicketContent},
	{"PATCH", tickets + "/SHOP-1", `{"data":{` + ticketType + `,"id":"SHOP-1","attributes":{"state":"$STATE"}}}`, auth.TicketState},
	{"PATCH", tickets + "/SHOP-1", `{"data":{` + ticketType + `,"id":"SHOP-1","attributes":{"priority":3}}}`, auth.TicketRouting},
	{"PATCH", tickets + "/SHOP-1", `{"data":{` + ticketType + `,"id":"SHOP-1","relationships":{"assignee_user_id":{"data":null}}}}`, auth.TicketRouting},
	{"POST", "/jsonapi/gaia_comment/gaia_comment", `{"data":{"type":"gaia_comment--gaia_comment","attributes":{"body":"b"},"relationships":{"ticket_id":{"data":{` + ticketType + `,"id":"$TICKET"}}}}}`, auth.CommentAdd},
	{"POST", "/gaia/v1/tickets/SHOP-1/hold", `{"note":"n"}`, auth.TicketHold},
	{"POST", "/gaia/v1/tickets/SHOP-1/resume", "", auth.TicketHold},
	{"POST", "/gaia/v1/tickets/SHOP-2/tree-clear", "", auth.TicketHold},
	{"POST", "/gaia/v1/tickets/SHOP-2/repair", `{"state":"todo","reason":"r"}`, auth.TicketRepair},
	{"PATCH", "/jsonapi/gaia_run/gaia_run/$RUN", `{"data":{"type":"gaia_run--gaia_run","id":"$RUN","attributes":{"footprint":{"turns":1}}}}`, auth.RunFootprint},
	{"POST", "/gaia/v1/conductors/$CONDUCTOR/drain", "", auth.ConductorDrain},
	{"POST", "/gaia/v1/conductors/$CONDUCTOR/resume", "", auth.ConductorDrain},
	{"POST", "/gaia/v1/heartbeat", `{"current_load":0,"paused":"","runs":[]}`, auth.Lease},
	{"POST", "/gaia/v1/claim", `{"run":"$UUID","token_sha256":"` + strings.Repeat("0", 64) + `","offer":{"serves":[],"agents":[],"default":"","routes":[]}}`, auth.Lease},
	{"POST", "/gaia/v1/runs/$RUN/start", `{"worktree_path":"/x","branch":"b","base_sha":"s","unit":"u","agent":"a","permissions":"p","log":"l"}`, auth.Lease},
	{"POST", "/gaia/v1/runs/$RUN/fail", `{"reason":"agent_exit","note":""}`, auth.Lease},
	{"POST", "/gaia/v1/runs/$RUN/finalise", `{"end_sha":"x","unpushed":false}`, auth.Lease},
	{"POST", "/gaia/v1/parting", "", auth.Lease},
	{"POST", "/gaia/v1/runs/$RUN/stop", `{"retry":true,"note":"n"}`, auth.RunStop},
	{"POST", "/gaia/v1/register", `{"machine_id":"anna.box.shop","epoch":"e","project":"SHOP","max_parallel":1}`, auth.Register},
}

// scene is a hub with one ticket that a run works on, and another that waits.
type scene struct {
	h             *hubtest.Hub
	con           *remote.Client
	conFile, file string // tokens of conductor and run
	fill          *strings.Replacer
	run           string
}

func newScene(t testing.TB) scene {
	h := hubtest.New(t, hubtest.Options{})
	owner, p := h.Client(t, "anna"), h.Project(t, "SHOP")
	k, err := owner.CreateTicket(t.Context(), domain.TicketDraft{Project: p.ID, Title: "t", Workflow: domain.Task})
	require.NoError(t, err)
	_, err = owner.CreateTicket(t.Context(), domain.TicketDraft{Project: p.ID, Title: "other", Workflow: domain.Task, NotBefore: domain.At(time.Now().Add(time.Hour))})
	require.NoError(t, err)
	s := scene{h: h}
	s.conFile, _ = hubtest.Token(t)
	s.con = h.Client(t, "", func(o *remote.Options) { o.TokenFile, o.Epoch = s.conFile, "e" })
	reg, err := s.con.Register(t.Context(), domain.Registration{MachineID: "anna.box.shop", Epoch: "e", Project: "SHOP", MaxParallel: 1})
	require.NoError(t, err)
	var sum string
	s.file, sum = hubtest.Token(t)
	id, err := uuid.NewV7()
	require.NoError(t, err)
	a, err := s.con.Claim(t.Context(), domain.ClaimRequest{Run: id.String(), TokenSHA256: sum, Offer: hubtest.Offer()})
	require.NoError(t, err)
	require.NotNil(t, a)
	fresh, err := uuid.NewV7()
	require.NoError(t, err)
	s.run = a.Run.ID
	s.fill = strings.NewReplacer("$RUN", a.Run.ID, "$PROJECT", p.ID, "$TICKET", k.ID, "$CONDUCTOR", reg.Conductor.ID,
		"$STATE", "working", "$KEY", "NEW", "$UUID", fresh.String())
	return s
}

// Every request, by every kind of caller, each over the real socket: the answer agrees with the table.
func TestWhoMayDoWhat(t *testing.T) {
	t.Parallel()
	shared := newScene(t)                                   // for all that changes nothing
	seen := map[auth.Action]bool{auth.TicketIdentify: true} // an attribute of TicketCreate, tested with the hub
	for _, e := range endpoints {
		seen[e.action] = true
		for _, kind := range []auth.Kind{auth.Owner, auth.Conductor, auth.Run, auth.Nobody} {
			name := fmt.Sprintf("%s %s by %s", e.method, e.path, kind)
			t.Run(strings.ReplaceAll(name, "/", " "), func(t *testing.T) {
				refused := auth.Principal{Kind: kind, User: "anna"}.May(e.action)
				s := shared
				if refused == nil && e.method != "GET" {
					s = newScene(t)
				}
				header := []string{"Gaia-User", "anna"}
				switch kind {
				case auth.Conductor:
					header = append(header, "Gaia-Epoch", "e", "Authorization", "Bearer "+token(t, s.conFile))
				case auth.Run: // on the owner's socket, naming the owner: the token decides
					header = append(header, "Authorization", "Bearer "+token(t, s.file))
				}
				if e.path == "/gaia/v1/runs/$RUN/finalise" && refused == nil {
					_, err := s.con.Fail(t.Context(), s.run, domain.Failure{Reason: domain.ReasonUndone})
					require.NoError(t, err)
				}
				r := newCaller(t, s.h, kind == auth.Nobody, header...).do(e.method, s.fill.Replace(e.path), s.fill.Replace(e.body))
				switch {
				case errors.Is(refused, domain.ErrUnauthenticated):
					require.Equal(t, 401, r.Status, string(r.Body))
				case refused != nil:
					require.Equal(t, 403, r.Status, string(r.Body))
				case e.action == auth.Register && kind == auth.Owner:
					require.Equal(t, 401, r.Status, "an owner registers a conductor with the conductor's token")
				default:
					require.Contains(t, []int{200, 201, 204}, r.Status, string(r.Body))
				}
			})
		}
	}
	for _, a := range []auth.Action{
		auth.Read, auth.ProjectWrite, auth.UserWrite, auth.TicketCreate, auth.TicketContent, auth.TicketState, auth.TicketRouting, auth.TicketHold,
		auth.TicketRepair, auth.TicketIdentify, auth.CommentAdd, auth.RunStop, auth.RunFootprint, auth.ConductorDrain, auth.Register, auth.Lease, auth.Verify,
	} {
		require.True(t, seen[a], "%s is tried by no request", a)
	}
}

func token(t *testing.T, file string) string {
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return strings.TrimSpace(string(b))
}

func TestRegistrationNeedsTheOwnersSocket(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, hubtest.Options{})
	h.Project(t, "SHOP")
	const body = `{"machine_id":"anna.box.shop","epoch":"e","project":"SHOP","max_parallel":1}`
	overTCP := newCaller(t, h, true, "Authorization", "Bearer abc")
	require.Equal(t, 403, overTCP.do("POST", "/gaia/v1/register", body).Status)
	onSocket := newCaller(t, h, false, "Authorization", "Bearer abc")
	require.Equal(t, 200, onSocket.do("POST", "/gaia/v1/register", body).Status)
	require.Equal(t, 200, overTCP.do("POST", "/gaia/v1/register", body).Status, "the token is known now")
	require.Equal(t, 403, newCaller(t, h, true, "Authorization", "Bearer other").do("POST", "/gaia/v1/register", body).Status)
	r := overTCP.do("POST", "/gaia/v1/heartbeat", `{"runs":[]}`, "Gaia-Epoch", "e", "Gaia-Machine-Id", "anna.box.other")
	require.Equal(t, 403, r.Status)
}

// The bodies of the health checks are for supervisors, who have no token.
func TestHealth(t *testing.T) {
	t.Parallel()
	broken := make(chan error, 1)
	h := hubtest.New(t, hubtest.Options{Face: func(f api.Hub) api.Hub { return &unready{f, broken} }})
	c := newCaller(t, h, true)
	require.Equal(t, 200, c.do("GET", "/gaia/v1/healthz", "").Status)
	require.Equal(t, 200, c.do("GET", "/gaia/v1/readyz", "").Status)
	broken <- fmt.Errorf("disk: %w", domain.ErrStorage)
	r := c.do("GET", "/gaia/v1/readyz", "")
	require.Equal(t, 503, r.Status)
	require.Equal(t, "storage_unavailable", r.code())
	require.NotEmpty(t, r.Header.Get("Retry-After"))
	require.Equal(t, 200, c.do("GET", "/gaia/v1/healthz", "").Status)
}

// What many resources refer to is read once where the hub has it as a whole, each of them is there once, and what is not
// there is left out.
func TestIncludeOfManyReferences(t *testing.T) {
	t.Parallel()
	var looks atomic.Int32
	h := hubtest.New(t, hubtest.Options{Face: func(f api.Hub) api.Hub { return lookedAt{f, &looks} }})
	p, owner := h.Project(t, "SHOP"), h.Client(t, "anna")
	for i := range 5 {
		_, err := owner.CreateTicket(t.Context(), domain.TicketDraft{Project: p.ID, Title: "t", Labels: []string{"all", fmt.Sprint("l", i)}})
		require.NoError(t, err)
	}
	r := newCaller(t, h, false, "Gaia-User", "anna").do("GET", tickets+"?include=labels", "")
	require.Equal(t, 200, r.Status)
	require.Len(t, r.Doc.Included, 6)
	require.EqualValues(t, 1, looks.Load())
}

// lookedAt counts how often all labels are read.
type lookedAt struct {
	api.Hub
	looks *atomic.Int32
}

func (l lookedAt) Labels(ctx context.Context, p auth.Principal) ([]domain.Label, error) {
	l.looks.Add(1)
	return l.Hub.Labels(ctx, p)
}

type unready struct {
	api.Hub
	broken chan error
}

func (u *unready) Ready(ctx context.Context) error {
	select {
	case err := <-u.broken:
		return err
	default:
		return u.Hub.Ready(ctx)
	}
}

type explosive struct{ api.Hub }

func (explosive) CreateTicket(context.Context, hub.Call, domain.TicketDraft) (domain.Ticket, error) {
	panic("boom in " + "the hub")
}

func TestPanicIsAnAnswer(t *testing.T) {
	t.Parallel()
	var log locked
	h := hubtest.New(t, hubtest.Options{Log: zerolog.New(&log), Face: func(f api.Hub) api.Hub { return explosive{f} }})
	p := h.Project(t, "SHOP")
	c := newCaller(t, h, false, "Gaia-User", "anna")
	r := c.do("POST", tickets, ticketDoc(p.ID, `"title":"t"`), "Authorization", "")
	require.Equal(t, 500, r.Status)
	require.Equal(t, "internal", r.code())
	require.NotContains(t, string(r.Body), "boom")
	require.Contains(t, log.String(), "boom in the hub")
	require.Contains(t, log.String(), "CreateTicket")
	require.NotContains(t, log.String(), `"level":"panic"`)
	require.Equal(t, 200, c.do("GET", tickets, "").Status, "the hub goes on")
}

type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.b.Write(p) }
func (l *locked) String() string              { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

func TestNoTokenInTheLog(t *testing.T) {
	t.Parallel()
	var log locked
	h := hubtest.New(t, hubtest.Options{Log: zerolog.New(&log)})
	p := h.Project(t, "SHOP")
	file, _ := hubtest.Token(t)
	c := h.Client(t, "", func(o *remote.Options) { o.TokenFile, o.Log, o.Epoch = file, zerolog.New(&log), "e" })
	_, err := c.Register(t.Context(), domain.Registration{MachineID: "anna.box.shop", Epoch: "e", Project: p.Key, MaxParallel: 1})
	require.NoError(t, err)
	_, err = c.Heartbeat(t.Context(), domain.Beat{CurrentLoad: -1})
	require.ErrorIs(t, err, domain.ErrInvalid)
	require.Contains(t, log.String(), "heartbeat")
	require.NotContains(t, log.String(), token(t, file))
	events, _, err := h.Core.Events(t.Context(), auth.Principal{Kind: auth.Owner}, 0, 100)
	require.NoError(t, err)
	for _, e := range events {
		require.NotContains(t, string(e.Data), token(t, file))
	}
}

// stream opens an event stream and returns its lines.
func stream(t *testing.T, c caller, path string, header ...string) (*http.Response, *bufio.Reader) {
	req, err := http.NewRequestWithContext(t.Context(), "GET", c.base+path, nil)
	require.NoError(t, err)
	req.Header = c.header.Clone()
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.client.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	require.Equal(t, 200, resp.StatusCode)
	return resp, bufio.NewReader(resp.Body)
}

func line(t *testing.T, r *bufio.Reader) string {
	s, err := r.ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSuffix(s, "\n")
}

func TestServerSentEvents(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, hubtest.Options{Heartbeat: 10 * time.Millisecond})
	h.Project(t, "SHOP") // events 1 and 2
	h.Project(t, "OTHER")
	c := newCaller(t, h, false)
	resp, r := stream(t, c, "/gaia/v1/events?after=1")
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	require.Equal(t, ": alive", line(t, r))
	require.Equal(t, "", line(t, r))
	require.Equal(t, "id: 2", line(t, r))
	data, ok := strings.CutPrefix(line(t, r), "data: ")
	require.True(t, ok)
	var e domain.Event
	require.NoError(t, json.Unmarshal([]byte(data), &e))
	require.Equal(t, "project.created", e.Kind)
	require.Equal(t, "", line(t, r))
	require.Equal(t, "id: 3", line(t, r))
	line(t, r)
	line(t, r)
	require.Equal(t, ": alive", line(t, r), "silence is broken by comments")

	// A browser that comes back says what it has; its address still says where it began.
	_, r = stream(t, c, "/gaia/v1/events?after=0", "Last-Event-ID", "2", "Accept", "text/event-stream")
	line(t, r)
	line(t, r)
	require.Equal(t, "id: 3", line(t, r))

	h.API.Close()
	_, err := io.Copy(io.Discard, r)
	require.NoError(t, err, "a stream ends in an orderly way when the hub stops")
}

func TestJSONLines(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, hubtest.Options{Heartbeat: 10 * time.Millisecond})
	h.Project(t, "SHOP")
	c := newCaller(t, h, false)
	resp, r := stream(t, c, "/gaia/v1/events", "Accept", "application/jsonl")
	require.Equal(t, "application/jsonl", resp.Header.Get("Content-Type"))
	require.Equal(t, "", line(t, r))
	for seq := int64(1); seq <= 2; seq++ {
		var e domain.Event
		require.NoError(t, json.Unmarshal([]byte(line(t, r)), &e))
		require.Equal(t, seq, e.Seq)
	}
	require.Equal(t, "", line(t, r))
	_, r = stream(t, c, "/gaia/v1/events?after=now", "Accept", "application/jsonl")
	require.Equal(t, "", line(t, r))
	require.Equal(t, "", line(t, r), "nothing old is sent")
	h.Project(t, "LATER")
	for {
		if s := line(t, r); s != "" {
			require.Contains(t, s, "LATER")
			break
		}
	}
}

// Streams are many and long; when their readers go, nothing of them stays (goleak looks after this test).
func TestReadersThatGo(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, hubtest.Options{Heartbeat: 5 * time.Millisecond})
	for range 20 {
		resp, r := stream(t, newCaller(t, h, false), "/gaia/v1/events")
		line(t, r)
		require.NoError(t, resp.Body.Close())
	}
	require.Equal(t, 200, newCaller(t, h, false).do("GET", "/gaia/v1/healthz", "").Status)
}

// Every operation that the description names is served, and nothing else is.
func TestTheDescriptionIsServed(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, hubtest.Options{})
	c := newCaller(t, h, true)
	n := 0
	for path, item := range hubtest.Spec(t).Paths.Map() {
		for method := range item.Operations() {
			n++
			r := c.do(method, strings.ReplaceAll(path, "{id}", "x"), "")
			require.NotContains(t, []int{404, 405}, r.Status, "%s %s", method, path)
		}
		for _, method := range []string{"PUT", "DELETE", "PATCH", "POST"} {
			if _, ok := item.Operations()[method]; !ok {
				require.Equal(t, 405, c.do(method, strings.ReplaceAll(path, "{id}", "x"), "").Status, "%s %s", method, path)
			}
		}
	}
	require.Greater(t, n, 35)
}
