package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"gaia/domain"
)

// pageSize is the largest page that the hub gives.
const pageSize = 50

// Query selects and sorts what a list call returns, by the JSON names of the domain type.
type Query struct {
	// Filter keeps what has one of the values in each field; the value "" stands for null.
	Filter map[string][]string
	// Sort are fields, with a leading - downwards.
	Sort []string
	// Limit is how many to return at most; 0 for all.
	Limit int
}

func (q Query) values(k kind) url.Values {
	v := url.Values{}
	for field, vals := range q.Filter {
		for _, val := range vals {
			v.Add("filter["+k.wire(field)+"][]", val)
		}
	}
	var sorts []string
	for _, s := range q.Sort {
		field, down := strings.CutPrefix(s, "-")
		if s = k.wire(field); down {
			s = "-" + s
		}
		sorts = append(sorts, s)
	}
	if len(sorts) > 0 {
		v.Set("sort", strings.Join(sorts, ","))
	}
	return v
}

// list reads every page of a collection.
func list[T any](ctx context.Context, c *Client, k kind, q Query) ([]T, error) {
	out := []T{}
	v := q.values(k)
	for {
		size := pageSize
		if q.Limit > 0 {
			size = min(size, q.Limit-len(out))
		}
		v.Set("page[limit]", strconv.Itoa(size))
		v.Set("page[offset]", strconv.Itoa(len(out)))
		var doc struct {
			Data  []object `json:"data"`
			Links struct {
				Next string `json:"next"`
			} `json:"links"`
		}
		if err := c.read(ctx, k.path()+"?"+v.Encode(), documentType, &doc); err != nil {
			return nil, err
		}
		for _, o := range doc.Data {
			var t T
			if err := k.decode(o, &t); err != nil {
				return nil, err
			}
			out = append(out, t)
		}
		if doc.Links.Next == "" || len(doc.Data) == 0 || (q.Limit > 0 && len(out) >= q.Limit) {
			return out, nil
		}
	}
}

// one reads one resource.
func one[T any](ctx context.Context, c *Client, k kind, id string) (T, error) {
	var (
		t   T
		doc struct {
			Data object `json:"data"`
		}
	)
	if err := c.read(ctx, k.path()+"/"+url.PathEscape(id), documentType, &doc); err != nil {
		return t, err
	}
	return t, k.decode(doc.Data, &t)
}

// send writes one resource: with an id it is changed, else it is created.
func send[T any](ctx context.Context, c *Client, k kind, method, id string, v any, drop ...string) (T, error) {
	var t T
	body, err := k.encode(id, v, drop...)
	if err != nil {
		return t, err
	}
	path := k.path()
	if method == http.MethodPatch {
		path += "/" + url.PathEscape(id)
	}
	var doc struct {
		Data object `json:"data"`
	}
	if _, err := c.do(ctx, call{method: method, path: path, media: documentType, body: body, patience: c.o.Patience}, &doc); err != nil {
		return t, err
	}
	return t, k.decode(doc.Data, &t)
}

func (c *Client) read(ctx context.Context, path, media string, out any) error {
	_, err := c.do(ctx, call{method: http.MethodGet, path: path, media: media, patience: min(readPatience, c.o.Patience)}, out)
	return err
}

// operate makes a write under /gaia/v1.
func operate[T any](ctx context.Context, c *Client, path string, body any) (T, error) {
	var t T
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/gaia/v1/" + path, media: jsonType, body: body, patience: c.o.Patience}, &t)
	return t, err
}

func view[T any](ctx context.Context, c *Client, path string) (T, error) {
	var t T
	return t, c.read(ctx, "/gaia/v1/"+path, jsonType, &t)
}

// plain matches references that can stand in a path as they are; others are looked up first, since an imported
// identifier may be any text, "." and ".." among it.
var plain = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_-]+$`) })

// ticketRef returns what a ticket can be addressed by in a path.
func (c *Client) ticketRef(ctx context.Context, ref string) (string, error) {
	if plain().MatchString(ref) {
		return ref, nil
	}
	found, err := list[domain.Ticket](ctx, c, tickets, Query{Filter: map[string][]string{"identifier": {ref}}, Limit: 1})
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", &told{fmt.Sprintf("there is no ticket %q", ref), domain.ErrNotFound}
	}
	return found[0].ID, nil
}

// Projects lists projects.
func (c *Client) Projects(ctx context.Context, q Query) ([]domain.Project, error) {
	return list[domain.Project](ctx, c, projects, q)
}

// Project returns a project by id or key.
func (c *Client) Project(ctx context.Context, ref string) (domain.Project, error) {
	return one[domain.Project](ctx, c, projects, ref)
}

// ProjectByKey returns the project with a key.
func (c *Client) ProjectByKey(ctx context.Context, key string) (domain.Project, error) {
	return c.Project(ctx, key)
}

// CreateProject makes a project. The hub draws its id.
func (c *Client) CreateProject(ctx context.Context, p domain.Project) (domain.Project, error) {
	return send[domain.Project](ctx, c, projects, http.MethodPost, "", p, "id", "created_at", "updated_at")
}

// PatchProject changes a project.
func (c *Client) PatchProject(ctx context.Context, ref string, p domain.ProjectPatch) (domain.Project, error) {
	return send[domain.Project](ctx, c, projects, http.MethodPatch, ref, p)
}

// Tickets lists tickets.
func (c *Client) Tickets(ctx context.Context, q Query) ([]domain.Ticket, error) {
	return list[domain.Ticket](ctx, c, tickets, q)
}

// Ticket returns a ticket by id or identifier.
func (c *Client) Ticket(ctx context.Context, ref string) (domain.Ticket, error) {
	id, err := c.ticketRef(ctx, ref)
	if err != nil {
		return domain.Ticket{}, err
	}
	return one[domain.Ticket](ctx, c, tickets, id)
}

// CreateTicket makes a ticket.
func (c *Client) CreateTicket(ctx context.Context, d domain.TicketDraft) (domain.Ticket, error) {
	return send[domain.Ticket](ctx, c, tickets, http.MethodPost, "", d)
}

// PatchTicket changes a ticket; a change of its state is a transition.
func (c *Client) PatchTicket(ctx context.Context, ref string, p domain.TicketPatch) (domain.Ticket, error) {
	id, err := c.ticketRef(ctx, ref)
	if err != nil {
		return domain.Ticket{}, err
	}
	return send[domain.Ticket](ctx, c, tickets, http.MethodPatch, id, wirePatch{p, p.AddLinks}, "add_links")
}

// wirePatch gives added links the name that they have at the hub.
type wirePatch struct {
	domain.TicketPatch
	Links []domain.Link `json:"links,omitempty"`
}

// Comments lists a ticket's comments, oldest first.
func (c *Client) Comments(ctx context.Context, ticket string) ([]domain.Comment, error) {
	return list[domain.Comment](ctx, c, comments, Query{Filter: map[string][]string{"ticket": {ticket}}, Sort: []string{"created_at"}})
}

// AddComment adds a comment to m.Ticket, an id or identifier; the hub sets the author.
func (c *Client) AddComment(ctx context.Context, m domain.Comment) (domain.Comment, error) {
	body := struct {
		Ticket string `json:"ticket"`
		Type   string `json:"type,omitempty"`
		Body   string `json:"body"`
	}{m.Ticket, m.Type, m.Body}
	return send[domain.Comment](ctx, c, comments, http.MethodPost, "", body)
}

// RunList lists runs.
func (c *Client) RunList(ctx context.Context, q Query) ([]domain.Run, error) {
	return list[domain.Run](ctx, c, runs, q)
}

// Run returns a run by id, or by its number within a project that is given as project/number with the project's key.
func (c *Client) Run(ctx context.Context, ref string) (domain.Run, error) {
	key, number, ok := strings.Cut(ref, "/")
	if !ok {
		return one[domain.Run](ctx, c, runs, ref)
	}
	p, err := c.ProjectByKey(ctx, key)
	if err != nil {
		return domain.Run{}, err
	}
	found, err := c.RunList(ctx, Query{Filter: map[string][]string{"project": {p.ID}, "number": {number}}, Limit: 1})
	if err != nil {
		return domain.Run{}, err
	}
	if len(found) == 0 {
		return domain.Run{}, &told{fmt.Sprintf("%s has no run %s", key, number), domain.ErrNotFound}
	}
	return found[0], nil
}

// StopRun ends a live run; its ticket is held unless retry is set.
func (c *Client) StopRun(ctx context.Context, run string, retry bool, note string) (domain.Run, error) {
	return operate[domain.Run](ctx, c, "runs/"+url.PathEscape(run)+"/stop", map[string]any{"retry": retry, "note": note})
}

// PatchRunFootprint sets what the calling run says that it has used.
func (c *Client) PatchRunFootprint(ctx context.Context, run string, f domain.Footprint) (domain.Run, error) {
	return send[domain.Run](ctx, c, runs, http.MethodPatch, run, map[string]any{"footprint": f})
}

// Conductors lists conductors.
func (c *Client) Conductors(ctx context.Context, q Query) ([]domain.Conductor, error) {
	return list[domain.Conductor](ctx, c, conductors, q)
}

// Conductor returns a conductor by id or machine_id.
func (c *Client) Conductor(ctx context.Context, ref string) (domain.Conductor, error) {
	return one[domain.Conductor](ctx, c, conductors, ref)
}

// Drain gives a conductor, by id or machine_id, no new work, or work again.
func (c *Client) Drain(ctx context.Context, ref string, draining bool) (domain.Conductor, error) {
	verb := "resume"
	if draining {
		verb = "drain"
	}
	return operate[domain.Conductor](ctx, c, "conductors/"+url.PathEscape(ref)+"/"+verb, nil)
}

// Labels lists the labels in use.
func (c *Client) Labels(ctx context.Context) ([]domain.Label, error) {
	return list[domain.Label](ctx, c, labels, Query{})
}

// Users lists the users.
func (c *Client) Users(ctx context.Context) ([]domain.User, error) {
	return list[domain.User](ctx, c, users, Query{})
}

// PutUser makes a user known, or changes its name.
func (c *Client) PutUser(ctx context.Context, u domain.User) (domain.User, error) {
	return send[domain.User](ctx, c, users, http.MethodPost, u.ID, u, "id", "created_at")
}

// Hold keeps a ticket from being claimed.
func (c *Client) Hold(ctx context.Context, ref, note string) (domain.Ticket, error) {
	return c.decide(ctx, ref, "hold", map[string]string{"note": note})
}

// Resume lifts a ticket's hold, attempts, waits and loop count.
func (c *Client) Resume(ctx context.Context, ref string) (domain.Ticket, error) {
	return c.decide(ctx, ref, "resume", nil)
}

// ClearTree forgets where a ticket's unpushed work lies.
func (c *Client) ClearTree(ctx context.Context, ref string) (domain.Ticket, error) {
	return c.decide(ctx, ref, "tree-clear", nil)
}

// Repair sets a ticket's state past the transitions.
func (c *Client) Repair(ctx context.Context, ref, state, reason string) (domain.Ticket, error) {
	return c.decide(ctx, ref, "repair", map[string]string{"state": state, "reason": reason})
}

func (c *Client) decide(ctx context.Context, ref, verb string, body any) (domain.Ticket, error) {
	id, err := c.ticketRef(ctx, ref)
	if err != nil {
		return domain.Ticket{}, err
	}
	return operate[domain.Ticket](ctx, c, "tickets/"+id+"/"+verb, body)
}

// Why says for each conductor which gates let a ticket through.
func (c *Client) Why(ctx context.Context, ticket string) (domain.Why, error) {
	return view[domain.Why](ctx, c, "why?ticket="+url.QueryEscape(ticket))
}

// Snapshot returns the state of a project by id or key, or of all for "".
func (c *Client) Snapshot(ctx context.Context, project string) (domain.Snapshot, error) {
	path := "snapshot"
	if project != "" {
		path += "?project=" + url.QueryEscape(project)
	}
	return view[domain.Snapshot](ctx, c, path)
}

// Workflows returns the state machines.
func (c *Client) Workflows(ctx context.Context) ([]domain.Workflow, error) {
	v, err := view[struct {
		Workflows []domain.Workflow `json:"workflows"`
	}](ctx, c, "workflows")
	return v.Workflows, err
}

// Head returns the newest entry's sequence number in the event log and its hash in hexadecimal.
func (c *Client) Head(ctx context.Context) (seq int64, hash string, err error) {
	v, err := view[struct {
		Seq  int64  `json:"seq"`
		Hash string `json:"hash"`
	}](ctx, c, "verify/head")
	return v.Seq, v.Hash, err
}

// Health asks once whether the hub answers (live) and whether it can read and write (ready). Each is nil if so.
func (c *Client) Health(ctx context.Context) (live, ready error) {
	ask := func(path string) error {
		var out json.RawMessage
		_, err := c.do(ctx, call{method: http.MethodGet, path: "/gaia/v1/" + path, media: jsonType}, &out)
		return err
	}
	if live = ask("healthz"); live != nil {
		return live, live
	}
	return nil, ask("readyz")
}
