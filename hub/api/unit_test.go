package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/hub/store"
)

func pointerOf(err error) string {
	var p *problem
	if !errors.As(err, &p) || p.Source == nil {
		return ""
	}
	return p.Source.Pointer
}

func TestQuery(t *testing.T) {
	t.Parallel()
	ticket := resourceByType(typeTicket)
	q, err := parseQuery("filter[state]=coding&filter[state]=review&filter[assignee_user_id.id]=anna&filter[labels][]=a&filter[labels][]=b"+
		"&filter[parent_id][operator]=IS%20NULL&filter[priority][value]=2&filter[priority][operator]=%3D"+
		"&sort=-priority,created_at&page[limit]=10&page[offset]=20&include=project_id,labels&fields[gaia_ticket--gaia_ticket]=title,target&fields[user--user]=", ticket, true)
	require.NoError(t, err)
	require.Equal(t, store.Query{
		Filters: []store.Filter{
			{Field: "assignee", Values: []string{"anna"}},
			{Field: "labels", Values: []string{"a", "b"}},
			{Field: "parent", Values: []string{""}},
			{Field: "priority", Values: []string{"2"}},
			{Field: "state", Values: []string{"coding", "review"}},
		},
		Sort:   []store.Sort{{Field: "priority", Descending: true}, {Field: "created_at"}},
		Offset: 20, Limit: 10,
	}, q.Query)
	require.Equal(t, []string{"project_id", "labels"}, q.include)
	require.Equal(t, map[string][]string{typeTicket: {"title", "target"}, typeUser: {}}, q.fields)

	q, err = parseQuery("page[limit]=1000", ticket, true)
	require.NoError(t, err)
	require.Equal(t, 50, q.Limit, "as in Drupal")

	for raw, parameter := range map[string]string{
		"filter[nope]=1": "filter[nope]", "filter[project]=1": "filter[project]", "sort=nope": "sort", "sort=": "sort", "page[limit]=0": "page[limit]",
		"page[limit]=x": "page[limit]", "page[limit]=-1": "page[limit]", "page[offset]=-1": "page[offset]", "page[offset]=99999999999": "page[offset]",
		"page[size]=1": "page[size]", "include=nope": "include", "include=project_id.members": "include", "fields[nope]=x": "fields[nope]",
		"fields[user--user]=nope": "fields[user--user]", "filter=x": "filter", "x=y": "x", "filter[state][a][b]=1": "filter[state][a][b]",
		"filter[state][operator]=CONTAINS": "filter[state][operator]", "filter[state][operator]=%3D": "filter[state][operator]", "filter[state=1": "filter[state",
		"filter[state][operator]=IN": "filter[state][operator]",
	} {
		_, err := parseQuery(raw, ticket, true)
		var p *problem
		require.ErrorAs(t, err, &p, raw)
		require.Equal(t, 400, p.status, raw)
		require.Equal(t, parameter, p.Source.Parameter, raw)
	}
	_, err = parseQuery("a=%zz", ticket, true)
	require.Error(t, err)
	_, err = parseQuery("sort=title", ticket, false)
	require.Error(t, err, "one resource is not sorted")
}

func FuzzQuery(f *testing.F) {
	f.Add("filter[state]=a&sort=-title&page[limit]=3")
	f.Add("filter[state][value][]=a&filter[][]=&include=,,&fields[user--user]=name,,name")
	f.Fuzz(func(t *testing.T, raw string) {
		for _, r := range resources {
			q, err := parseQuery(raw, r, true)
			if err != nil {
				var p *problem
				require.ErrorAs(t, err, &p)
				require.Equal(t, 400, p.status)
				continue
			}
			require.True(t, q.Limit >= 1 && q.Limit <= maxPage && q.Offset >= 0)
			for _, flt := range q.Filters {
				require.Contains(t, r.wire, flt.Field)
				require.NotEmpty(t, flt.Values)
			}
			u := &url.URL{Path: r.path, RawQuery: raw}
			next, err := url.Parse(pageLinks(u, q.Query, 1, q.Offset+q.Limit+2).Next)
			require.NoError(t, err)
			again, err := parseQuery(next.RawQuery, r, true)
			require.NoError(t, err, "the link to the next page is understood")
			require.Equal(t, q.Filters, again.Filters)
			require.Equal(t, q.Offset+1, again.Offset)
		}
	})
}

func TestDocument(t *testing.T) {
	t.Parallel()
	ticket := resourceByType(typeTicket)
	in, err := ticket.parse([]byte(`{"data":{"type":"gaia_ticket--gaia_ticket","id":"X-1","attributes":{"title":"t","priority":null,"links":[{"uri":"u"}],"agent":null,"not_before":null},
		"relationships":{"assignee_user_id":{"data":null},"blocked_by":{"data":[{"type":"gaia_ticket--gaia_ticket","id":"a"}]},"labels":{"data":[]}}}}`))
	require.NoError(t, err)
	var p domain.TicketPatch
	require.NoError(t, in.into(&p, true, map[string]string{"links": "add_links"}))
	require.Equal(t, "X-1", in.id)
	require.Equal(t, "t", *p.Title)
	require.NotNil(t, p.Priority)
	require.Nil(t, *p.Priority)
	require.Equal(t, domain.Ref(""), *p.Assignee)
	require.Equal(t, domain.Ref(""), *p.Agent)
	require.True(t, p.NotBefore.IsZero())
	require.Equal(t, []string{"a"}, *p.BlockedBy)
	require.Empty(t, *p.Labels)
	require.Equal(t, []domain.Link{{URI: "u"}}, p.AddLinks)
	require.Nil(t, p.State)
	require.Nil(t, p.Target)

	const typ = `"type":"gaia_ticket--gaia_ticket"`
	for body, pointer := range map[string]string{
		`[]`:                                    "",
		`{}`:                                    "/data",
		`{"data":null}`:                         "/data",
		`{"data":[]}`:                           "/data",
		`{"data":{"type":"x"}}`:                 "/data/type",
		`{"data":{` + typ + `},"meta":1}`:       "/meta",
		`{"data":{` + typ + `},"data":{}}`:      "/data",
		`{"data":{` + typ + `,"id":7}}`:         "/data/id",
		`{"data":{` + typ + `,"id":""}}`:        "/data/id",
		`{"data":{` + typ + `,"Id":"x"}}`:       "/data/Id",
		`{"data":{` + typ + `,"attributes":7}}`: "/data/attributes",
		`{"data":{` + typ + `,"attributes":{"nope":1}}}`:                                                "/data/attributes/nope",
		`{"data":{` + typ + `,"attributes":{"a/b~c":1}}}`:                                               "/data/attributes/a~1b~0c",
		`{"data":{` + typ + `,"attributes":{"title":7}}}`:                                               "/data/attributes/title",
		`{"data":{` + typ + `,"attributes":{"title":null}}}`:                                            "/data/attributes/title",
		`{"data":{` + typ + `,"attributes":{"title":"a","title":"b"}}}`:                                 "/data/attributes/title",
		`{"data":{` + typ + `,"attributes":{"Title":"a"}}}`:                                             "/data/attributes/Title",
		`{"data":{` + typ + `,"attributes":{"priority":"high"}}}`:                                       "/data/attributes/priority",
		`{"data":{` + typ + `,"attributes":{"agent":7}}}`:                                               "/data/attributes/agent",
		`{"data":{` + typ + `,"attributes":{"not_before":"soon"}}}`:                                     "/data/attributes/not_before",
		`{"data":{` + typ + `,"attributes":{"id":"x"}}}`:                                                "/data/attributes/id",
		`{"data":{` + typ + `,"attributes":{"hold":{}}}}`:                                               "/data/attributes/hold",
		`{"data":{` + typ + `,"attributes":{"tree_at":"x"}}}`:                                           "/data/attributes/tree_at",
		`{"data":{` + typ + `,"attributes":{"assignee":"anna"}}}`:                                       "/data/attributes/assignee",
		`{"data":{` + typ + `,"attributes":{"add_links":[]}}}`:                                          "/data/attributes/add_links",
		`{"data":{` + typ + `,"attributes":{"links":[{"uri":"u","x":1}]}}}`:                             "/data/attributes/links/0/x",
		`{"data":{` + typ + `,"attributes":{"links":{"uri":"u"}}}}`:                                     "/data/attributes/links",
		`{"data":{` + typ + `,"relationships":{"nope":{"data":null}}}}`:                                 "/data/relationships/nope",
		`{"data":{` + typ + `,"relationships":{"project_id":null}}}`:                                    "/data/relationships/project_id",
		`{"data":{` + typ + `,"relationships":{"project_id":{}}}}`:                                      "/data/relationships/project_id/data",
		`{"data":{` + typ + `,"relationships":{"project_id":{"data":"x"}}}}`:                            "/data/relationships/project_id/data",
		`{"data":{` + typ + `,"relationships":{"project_id":{"data":{"type":"user--user","id":"x"}}}}}`: "/data/relationships/project_id/data/type",
		`{"data":{` + typ + `,"relationships":{"blocked_by":{"data":null}}}}`:                           "/data/relationships/blocked_by/data",
		`{"data":{` + typ + `,"relationships":{"blocked_by":{"data":[{` + typ + `,"id":""}]}}}}`:        "/data/relationships/blocked_by/data/0/id",
		`{"data":{` + typ + `,"relationships":{"tree_at":{"data":null}}}}`:                              "/data/relationships/tree_at",
	} {
		in, err := ticket.parse([]byte(body))
		if err == nil {
			var p domain.TicketPatch
			err = in.into(&p, true, map[string]string{"links": "add_links"})
		}
		require.Error(t, err, body)
		require.Equal(t, pointer, pointerOf(err), body)
	}
	for _, body := range []string{"", "{", "\xff", `{"data":{}} x`, "null"} {
		_, err := ticket.parse([]byte(body))
		require.Error(t, err, body)
	}
}

func FuzzDocument(f *testing.F) {
	f.Add([]byte(`{"data":{"type":"gaia_ticket--gaia_ticket","id":"x","attributes":{"title":"t","priority":1e3},"relationships":{"labels":{"data":[{"type":"gaia_term--gaia_labels","id":"a"}]}}}}`))
	f.Add([]byte(`{"run":"x","offer":{"routes":[{"agent":"a","score":1}]}}`))
	f.Add([]byte(`{"data":{"type":"user--user","id":"x"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, r := range resources {
			in, err := r.parse(body)
			if err == nil {
				var p domain.TicketPatch
				err = in.into(&p, true, map[string]string{"links": "add_links"})
			}
			if err != nil {
				var p *problem
				require.ErrorAs(t, err, &p)
				require.True(t, p.status >= 400 && p.status < 500)
			}
		}
		for _, v := range []any{&domain.ClaimRequest{}, &domain.Beat{}, &domain.Registration{}, &domain.FinaliseReport{}} {
			if decodeBody(body, v) != nil {
				continue
			}
			// What the strict decoder takes, the loose one takes too, with the same outcome.
			loose := reflect.New(reflect.TypeOf(v).Elem()).Interface()
			require.NoError(t, json.Unmarshal(body, loose))
			require.Equal(t, loose, v)
		}
	})
}

func TestOperationBodies(t *testing.T) {
	t.Parallel()
	var b domain.Beat
	require.NoError(t, decodeBody([]byte(`{"current_load":2,"paused":"","runs":[{"run":"r","activity":null,"footprint":{"tokens_in":1,"cost":0.5}}]}`), &b))
	require.Equal(t, 2, b.CurrentLoad)
	require.Equal(t, int64(1), b.Runs[0].Footprint.TokensIn)
	require.Nil(t, b.Runs[0].Activity)
	for body, pointer := range map[string]string{
		`{"x":1}`:                                "/x",
		`{"runs":[{"run":"r","x":1}]}`:           "/runs/0/x",
		`{"runs":[{"footprint":{"cost":"1"}}]}`:  "/runs/0/footprint/cost",
		`{"runs":[{"footprint":{"turns":1.5}}]}`: "/runs/0/footprint/turns",
		`{"current_load":null}`:                  "/current_load",
		`{"current_load":99999999999999999999}`:  "/current_load",
		`{"runs":[null]}`:                        "/runs/0",
	} {
		require.Equal(t, pointer, pointerOf(decodeBody([]byte(body), &domain.Beat{})), body)
	}
	require.Equal(t, "/slots/a", pointerOf(decodeBody([]byte(`{"slots":{"a":"1"}}`), &domain.Registration{})))
	require.NoError(t, decodeBody(nil, &none{}))
}

func TestNegotiation(t *testing.T) {
	t.Parallel()
	accept := func(want string, values ...string) error {
		return acceptable(&http.Request{Header: http.Header{"Accept": values}}, want)
	}
	for _, ok := range []string{"", "*/*", mediaType, mediaType + `;profile="x"`, "application/json", "text/html, */*;q=0.1", mediaType + ";ext=x, " + mediaType, "garbage;;;, application/*"} {
		require.NoError(t, accept(mediaType, ok), ok)
	}
	require.NoError(t, accept(mediaType, "text/html", "application/vnd.api+json"))
	for _, bad := range []string{"text/html", mediaType + ";charset=utf-8", mediaType + ";ext=\"https://x\"", mediaType + ";q=0", "*/*;q=0.0"} {
		err := accept(mediaType, bad)
		var p *problem
		require.ErrorAs(t, err, &p, bad)
		require.Equal(t, 406, p.status)
	}
	require.NoError(t, accept(jsonType, "application/json;charset=utf-8"))
}

// Every field of a resource has one name on the wire, and JSON:API's reserved words are none of them.
func TestNames(t *testing.T) {
	t.Parallel()
	for _, r := range resources {
		require.True(t, strings.HasPrefix(r.path, "/jsonapi/"))
		fields := jsonFields(r.of)
		for wire, field := range r.names {
			require.Contains(t, fields, field, wire)
			require.NotEqual(t, "type", wire, r.typ)
		}
		for field := range fields {
			require.Contains(t, r.wire, field, r.typ)
		}
		for _, rel := range r.rels {
			require.NotNil(t, resourceByType(rel.typ))
			require.Equal(t, "/data/relationships/"+rel.name, r.pointer(rel.field))
		}
		require.Equal(t, "/data/id", r.pointer(r.id))
		require.NotNil(t, collectionOf(r.typ).get, r.typ)
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	field := func(f string, err error) error { return &domain.FieldError{Field: f, Err: err} }
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{field("title", errors.New("x")), 422, "invalid"},
		{field("key", domain.ErrConflict), 409, "conflict"},
		{field("target", domain.ErrNotFound), 422, "invalid"},
		{field("project", domain.ErrStorage), 503, "storage_unavailable"},
		{field("idempotency_key", errors.New("x")), 422, "idempotency"},
		{&domain.TransitionError{}, 422, "transition"},
		{domain.ErrNotFound, 404, "not_found"},
		{domain.ErrConflict, 409, "conflict"},
		{domain.ErrInvalid, 422, "invalid"},
		{domain.ErrForbidden, 403, "forbidden"},
		{domain.ErrUnauthenticated, 401, "unauthenticated"},
		{domain.ErrStaleRun, 409, "stale_run"},
		{domain.ErrSuperseded, 409, "superseded"},
		{errors.Join(errors.New("secret"), domain.ErrStorage), 503, "storage_unavailable"},
		{errors.New("the inside"), 500, "internal"},
	} {
		p := toProblem(c.err, bodyPointer)
		require.Equal(t, c.status, p.status, c.err)
		require.Equal(t, c.code, p.Code, c.err)
		require.NotEmpty(t, p.Title, c.code)
	}
	require.NotContains(t, toProblem(errors.New("the inside"), bodyPointer).Detail, "inside")
}
