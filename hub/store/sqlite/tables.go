package sqlite

import "gaia/domain"

var users = newTable("users", "user", func(u *domain.User) string { return u.ID }, nil,
	column[domain.User]{"name", text, func(u *domain.User) any { return u.Name }},
	column[domain.User]{"created_at", moment, func(u *domain.User) any { return when(u.CreatedAt) }},
)

var projects = newTable("projects", "project", func(p *domain.Project) string { return p.ID },
	map[string]list{"members": {doc: "$.members"}, "repos": {doc: "$.repos"}},
	column[domain.Project]{"customer", text, func(p *domain.Project) any { return null(p.Customer) }},
	column[domain.Project]{"key", text, func(p *domain.Project) any { return p.Key }},
	column[domain.Project]{"name", text, func(p *domain.Project) any { return p.Name }},
	column[domain.Project]{"slug", text, func(p *domain.Project) any { return p.Slug }},
	column[domain.Project]{"created_at", moment, func(p *domain.Project) any { return when(p.CreatedAt) }},
	column[domain.Project]{"updated_at", moment, func(p *domain.Project) any { return when(p.UpdatedAt) }},
)

var conductors = newTable("conductors", "conductor", func(c *domain.Conductor) string { return c.ID },
	map[string]list{"states": {doc: "$.states"}},
	column[domain.Conductor]{"machine_id", text, func(c *domain.Conductor) any { return c.MachineID }},
	column[domain.Conductor]{"epoch", text, func(c *domain.Conductor) any { return c.Epoch }},
	column[domain.Conductor]{"label", text, func(c *domain.Conductor) any { return c.Label }},
	column[domain.Conductor]{"owner", text, func(c *domain.Conductor) any { return c.Owner }},
	column[domain.Conductor]{"project", text, func(c *domain.Conductor) any { return c.Project }},
	column[domain.Conductor]{"status", text, func(c *domain.Conductor) any { return string(c.Status) }},
	column[domain.Conductor]{"draining", boolean, func(c *domain.Conductor) any { return c.Draining }},
	column[domain.Conductor]{"paused", text, func(c *domain.Conductor) any { return null(c.Paused) }},
	column[domain.Conductor]{"current_load", number, func(c *domain.Conductor) any { return c.CurrentLoad }},
	column[domain.Conductor]{"max_parallel", number, func(c *domain.Conductor) any { return c.MaxParallel }},
	column[domain.Conductor]{"workspace_root", text, func(c *domain.Conductor) any { return c.WorkspaceRoot }},
	column[domain.Conductor]{"version", text, func(c *domain.Conductor) any { return c.Version }},
	column[domain.Conductor]{"last_seen", moment, func(c *domain.Conductor) any { return when(c.LastSeen) }},
	column[domain.Conductor]{"lease_expires_at", moment, func(c *domain.Conductor) any { return when(c.LeaseExpiresAt) }},
	column[domain.Conductor]{"parted_at", moment, func(c *domain.Conductor) any { return when(c.PartedAt) }},
	column[domain.Conductor]{"created_at", moment, func(c *domain.Conductor) any { return when(c.CreatedAt) }},
)

var tickets = newTable("tickets", "ticket", func(t *domain.Ticket) string { return t.ID },
	map[string]list{"labels": {side: "ticket_labels"}, "blocked_by": {side: "ticket_blockers"}},
	column[domain.Ticket]{"identifier", text, func(t *domain.Ticket) any { return t.Identifier }},
	column[domain.Ticket]{"project", text, func(t *domain.Ticket) any { return t.Project }},
	column[domain.Ticket]{"workflow", text, func(t *domain.Ticket) any { return null(t.Workflow) }},
	column[domain.Ticket]{"title", text, func(t *domain.Ticket) any { return t.Title }},
	column[domain.Ticket]{"state", text, func(t *domain.Ticket) any { return t.State }},
	column[domain.Ticket]{"assignee", text, func(t *domain.Ticket) any { return null(t.Assignee) }},
	column[domain.Ticket]{"target", text, func(t *domain.Ticket) any { return null(t.Target) }},
	column[domain.Ticket]{"tree_at", text, func(t *domain.Ticket) any { return null(t.TreeAt) }},
	column[domain.Ticket]{"priority", number, func(t *domain.Ticket) any {
		if t.Priority == nil {
			return nil
		}
		return *t.Priority
	}},
	column[domain.Ticket]{"parent", text, func(t *domain.Ticket) any { return null(t.Parent) }},
	column[domain.Ticket]{"origin", text, func(t *domain.Ticket) any { return null(t.Origin) }},
	column[domain.Ticket]{"agent", text, func(t *domain.Ticket) any { return null(t.Agent) }},
	column[domain.Ticket]{"branch", text, func(t *domain.Ticket) any { return null(t.Branch) }},
	column[domain.Ticket]{"not_before", moment, func(t *domain.Ticket) any { return when(t.NotBefore) }},
	column[domain.Ticket]{"retry_at", moment, func(t *domain.Ticket) any { return when(t.RetryAt) }},
	column[domain.Ticket]{"hold", text, func(t *domain.Ticket) any {
		if t.Hold == nil {
			return nil
		}
		return string(t.Hold.Reason)
	}},
	column[domain.Ticket]{"attempts", number, func(t *domain.Ticket) any { return t.Attempts }},
	column[domain.Ticket]{"created_at", moment, func(t *domain.Ticket) any { return t.CreatedAt.String() }},
	column[domain.Ticket]{"updated_at", moment, func(t *domain.Ticket) any { return when(t.UpdatedAt) }},
	column[domain.Ticket]{"wake_at", hidden, func(t *domain.Ticket) any {
		if t.NotBefore.After(t.RetryAt.Time) {
			return when(t.NotBefore)
		}
		return when(t.RetryAt)
	}},
)

func init() {
	tickets.sides = []side[domain.Ticket]{
		{"ticket_labels", func(t *domain.Ticket) []string { return t.Labels }},
		{"ticket_blockers", func(t *domain.Ticket) []string { return t.BlockedBy }},
	}
}

var runs = newTable("runs", "run", func(r *domain.Run) string { return r.ID }, nil,
	column[domain.Run]{"number", number, func(r *domain.Run) any { return r.Number }},
	column[domain.Run]{"project", text, func(r *domain.Run) any { return r.Project }},
	column[domain.Run]{"ticket", text, func(r *domain.Run) any { return r.Ticket }},
	column[domain.Run]{"conductor", text, func(r *domain.Run) any { return r.Conductor }},
	column[domain.Run]{"mode", text, func(r *domain.Run) any { return r.Mode }},
	column[domain.Run]{"state", text, func(r *domain.Run) any { return string(r.State) }},
	column[domain.Run]{"attempt", number, func(r *domain.Run) any { return r.Attempt }},
	column[domain.Run]{"claimed_at", moment, func(r *domain.Run) any { return when(r.ClaimedAt) }},
	column[domain.Run]{"claim_expires_at", moment, func(r *domain.Run) any { return when(r.ClaimExpiresAt) }},
	column[domain.Run]{"state_at_start", text, func(r *domain.Run) any { return r.StateAtStart }},
	column[domain.Run]{"started_at", moment, func(r *domain.Run) any { return when(r.StartedAt) }},
	column[domain.Run]{"ended_at", moment, func(r *domain.Run) any { return when(r.EndedAt) }},
	column[domain.Run]{"end_reason", text, func(r *domain.Run) any { return null(r.EndReason) }},
	column[domain.Run]{"finalized_at", moment, func(r *domain.Run) any { return when(r.FinalizedAt) }},
	column[domain.Run]{"branch", text, func(r *domain.Run) any { return null(r.Branch) }},
	column[domain.Run]{"unit", text, func(r *domain.Run) any { return null(r.Unit) }},
	column[domain.Run]{"agent", text, func(r *domain.Run) any { return null(r.Agent) }},
	column[domain.Run]{"permissions", text, func(r *domain.Run) any { return null(r.Permissions) }},
	column[domain.Run]{"live", hidden, func(r *domain.Run) any { return r.State.Live() }},
	used("tokens_in", func(f *domain.Footprint) any { return f.TokensIn }),
	used("tokens_out", func(f *domain.Footprint) any { return f.TokensOut }),
	used("tokens_cache_read", func(f *domain.Footprint) any { return f.TokensCacheRead }),
	used("tokens_cache_write", func(f *domain.Footprint) any { return f.TokensCacheWrite }),
	used("turns", func(f *domain.Footprint) any { return f.Turns }),
	used("cost", func(f *domain.Footprint) any { return f.Cost }),
	used("wall_ms", func(f *domain.Footprint) any { return f.WallMS }),
	used("cpu_ms", func(f *domain.Footprint) any { return f.CPUMS }),
	used("memory_peak", func(f *domain.Footprint) any { return f.MemoryPeak }),
	used("io_read", func(f *domain.Footprint) any { return f.IORead }),
	used("io_write", func(f *domain.Footprint) any { return f.IOWrite }),
)

// used is a column of what runs have used, from which Used sums.
func used(name string, value func(*domain.Footprint) any) column[domain.Run] {
	return column[domain.Run]{name, hidden, func(r *domain.Run) any {
		if r.Footprint == nil {
			return nil
		}
		return value(r.Footprint)
	}}
}

var comments = newTable("comments", "comment", func(c *domain.Comment) string { return c.ID }, nil,
	column[domain.Comment]{"ticket", text, func(c *domain.Comment) any { return c.Ticket }},
	column[domain.Comment]{"author", text, func(c *domain.Comment) any { return c.Author }},
	column[domain.Comment]{"type", text, func(c *domain.Comment) any { return c.Type }},
	column[domain.Comment]{"created_at", moment, func(c *domain.Comment) any { return when(c.CreatedAt) }},
)
