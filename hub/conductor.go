package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"gaia/domain"
	"gaia/hub/auth"
	"gaia/hub/store"
)

// maxParallel bounds what a conductor may claim to run side by side.
const maxParallel = 1000

// Register makes the calling process the conductor of its machine_id. The first registration of a machine_id needs the
// owner on the hub's socket; later ones the same token, or the owner again.
func (h *Hub) Register(ctx context.Context, c Call, r domain.Registration) (domain.Registered, error) {
	defer h.forgetTokens()
	return write(ctx, h, c, auth.Register, func(t *tx) (domain.Registered, error) {
		con, p, err := t.register(r)
		if err != nil {
			return domain.Registered{}, err
		}
		if err := t.PutToken(store.Token{Hash: c.Token, Kind: store.TokenConductor, Holder: con.ID}); err != nil {
			return domain.Registered{}, err
		}
		return domain.Registered{Conductor: con, Project: p, LeaseTTL: h.leases().Running}, nil
	})
}

func (t *tx) register(r domain.Registration) (domain.Conductor, domain.Project, error) {
	var none domain.Conductor
	owner, _, _, err := domain.SplitMachineID(r.MachineID)
	if err != nil {
		return none, domain.Project{}, check("machine_id", err)
	}
	if t.call.Token == ([32]byte{}) {
		return none, domain.Project{}, fmt.Errorf("a conductor registers with its token: %w", domain.ErrUnauthenticated)
	}
	p, err := t.ProjectByKey(r.Project)
	if errors.Is(err, domain.ErrNotFound) {
		return none, p, invalid("project", "there is no project %q at the hub (gaia init makes it)", r.Project)
	}
	if err != nil {
		return none, p, err
	}
	if r.Epoch == "" || len(r.Epoch) > 64 {
		return none, p, invalid("epoch", "a registration needs an epoch of at most 64 bytes")
	}
	if r.MaxParallel < 1 || r.MaxParallel > maxParallel {
		return none, p, invalid("max_parallel", "%d is not between 1 and %d", r.MaxParallel, maxParallel)
	}
	for i, s := range r.States {
		if r.States[i] = domain.NormaliseState(s); !slices.Contains(domain.ClaimableStates(), r.States[i]) {
			return none, p, invalid("states", "%q is claimable in no workflow", s)
		}
	}
	for s, n := range r.Slots {
		if !slices.Contains(domain.ClaimableStates(), s) || n < 0 {
			return none, p, invalid("slots", "%s = %d: the state is claimable in no workflow, or the number is negative", s, n)
		}
	}
	con, err := t.ConductorByMachineID(r.MachineID)
	switch {
	case errors.Is(err, domain.ErrNotFound):
		if !t.call.Peer {
			return none, p, fmt.Errorf("%s is not known here, and only the hub's owner may make it known: %w", r.MachineID, domain.ErrForbidden)
		}
		con = domain.Conductor{MachineID: r.MachineID, CreatedAt: t.now}
		if con.ID, err = newID(); err != nil {
			return none, p, err
		}
		if err := t.ensureUser(owner); err != nil {
			return none, p, err
		}
	case err != nil:
		return none, p, err
	case t.call.Conductor != con.ID && !t.call.Peer:
		return none, p, fmt.Errorf("%s is registered with another token: %w", r.MachineID, domain.ErrForbidden)
	case r.Again && con.Epoch != r.Epoch:
		return none, p, fmt.Errorf("%s was registered by a newer process: %w", r.MachineID, domain.ErrSuperseded)
	}
	con.Epoch, con.Label, con.Owner, con.Project = r.Epoch, r.Label, owner, p.ID
	con.States, con.MaxParallel, con.Slots = r.States, r.MaxParallel, r.Slots
	con.WorkspaceRoot, con.Version = r.WorkspaceRoot, r.Version
	con.Paused, con.PartedAt = "", domain.Time{}
	t.seen(&con)
	return con, p, t.saveConductor(&con, "conductor.registered")
}

// seen notes a sign of life.
func (t *tx) seen(c *domain.Conductor) {
	c.LastSeen = t.now
	c.LeaseExpiresAt = domain.At(t.now.Add(t.h.limits().OfflineAfter))
	c.Status = domain.ConductorOnline
	if c.Draining {
		c.Status = domain.ConductorDraining
	}
}

// Heartbeat renews every lease of the caller.
func (h *Hub) Heartbeat(ctx context.Context, c Call, b domain.Beat) (domain.Pulse, error) {
	c.Key = "" // a repeat does no harm, and is better told how everything stands now
	return write(ctx, h, c, auth.Lease, func(t *tx) (_ domain.Pulse, err error) {
		con := t.con
		if b.CurrentLoad < 0 {
			return domain.Pulse{}, invalid("current_load", "%d is negative", b.CurrentLoad)
		}
		before := con
		con.CurrentLoad, con.Paused, con.PartedAt = b.CurrentLoad, b.Paused, domain.Time{}
		t.seen(&con)
		if con.Status != before.Status || con.Paused != before.Paused {
			err = t.saveConductor(&con, "conductor.status")
		} else {
			err = t.PutConductor(con)
		}
		if err != nil {
			return domain.Pulse{}, err
		}
		fates, err := t.beatRuns(con, b.Runs)
		return domain.Pulse{Conductor: con, LeaseTTL: h.leases().Running, Fates: fates}, err
	})
}

// beatRuns renews leases, notes what was seen and returns the fates.
func (t *tx) beatRuns(con domain.Conductor, beats []domain.RunBeat) ([]domain.Fate, error) {
	own, err := t.UnfinishedRuns(con.ID)
	if err != nil {
		return nil, err
	}
	said := map[string]domain.RunBeat{}
	for _, b := range beats {
		said[b.Run] = b
	}
	fates := make([]domain.Fate, 0, len(own))
	for _, r := range own {
		fates = append(fates, domain.FateOf(r))
		b := said[r.ID]
		delete(said, r.ID)
		if !r.State.Live() {
			continue
		}
		r.ClaimExpiresAt = t.h.lease(r, t.now)
		if b.Footprint != nil && b.Footprint.Negative() == "" {
			r.Footprint = b.Footprint
		}
		changed := b.Activity != nil && (r.Activity == nil || r.Activity.Status != b.Activity.Status)
		if b.Activity != nil {
			r.Activity = b.Activity
		}
		if changed {
			err = t.saveRun(&r, "run.activity")
		} else {
			err = t.PutRun(r)
		}
		if err != nil {
			return nil, err
		}
	}
	for id := range said { // finalised already, or never this conductor's
		r, err := t.Run(id)
		if errors.Is(err, domain.ErrNotFound) || err == nil && r.Conductor != con.ID {
			continue
		}
		if err != nil {
			return nil, err
		}
		fates = append(fates, domain.FateOf(r))
	}
	return fates, nil
}

// lease returns until when a live run's lease holds, renewed now.
func (h *Hub) lease(r domain.Run, now domain.Time) domain.Time {
	if r.State == domain.RunRunning {
		return domain.At(now.Add(h.leases().Running))
	}
	end, last := now.Add(h.leases().Claim), r.ClaimedAt.Add(h.leases().ClaimMax)
	if last.Before(end) {
		end = last
	}
	return domain.At(end)
}

// Parting notes a clean stop: the caller's live runs keep their leases long enough for a restart to adopt them.
func (h *Hub) Parting(ctx context.Context, c Call) error {
	_, err := write(ctx, h, c, auth.Lease, func(t *tx) (struct{}, error) {
		con := t.con
		con.PartedAt, con.Status = t.now, domain.ConductorOffline
		if err := t.saveConductor(&con, "conductor.parted"); err != nil {
			return struct{}{}, err
		}
		runs, err := t.LiveRuns(con.ID)
		if err != nil {
			return struct{}{}, err
		}
		for _, r := range runs {
			r.ClaimExpiresAt = domain.At(t.now.Add(h.leases().Parting))
			if err := t.PutRun(r); err != nil {
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	})
	return err
}

// Drain sets or lifts draining. A draining conductor goes on with its runs and claims nothing, until it is resumed.
func (h *Hub) Drain(ctx context.Context, c Call, ref string, draining bool) (domain.Conductor, error) {
	return write(ctx, h, c, auth.ConductorDrain, func(t *tx) (domain.Conductor, error) {
		con, err := findConductor(t.Tx, ref)
		if err != nil || con.Draining == draining {
			return con, err
		}
		con.Draining = draining
		kind := "conductor.resumed"
		if draining {
			kind = "conductor.draining"
		}
		switch {
		case con.Status == domain.ConductorOffline:
		case draining:
			con.Status = domain.ConductorDraining
		default:
			con.Status = domain.ConductorOnline
		}
		return con, t.saveConductor(&con, kind)
	})
}

// findProject returns a project by id or key.
func findProject(tx store.Tx, ref string) (domain.Project, error) {
	p, err := tx.Project(ref)
	if errors.Is(err, domain.ErrNotFound) {
		p, err = tx.ProjectByKey(ref)
	}
	if errors.Is(err, domain.ErrNotFound) {
		return p, noProject(ref)
	}
	return p, err
}

func noProject(ref string) error {
	return fmt.Errorf("there is no project %q: %w", ref, domain.ErrNotFound)
}

// CreateProject makes a project.
func (h *Hub) CreateProject(ctx context.Context, c Call, p domain.Project) (domain.Project, error) {
	return write(ctx, h, c, auth.ProjectWrite, func(t *tx) (domain.Project, error) {
		if err := checkProject(p); err != nil {
			return p, err
		}
		switch _, err := t.ProjectByKey(p.Key); {
		case err == nil:
			return p, check("key", fmt.Errorf("the project %s exists already: %w", p.Key, domain.ErrConflict))
		case !errors.Is(err, domain.ErrNotFound):
			return p, err
		}
		var err error
		if p.ID, err = newID(); err != nil {
			return p, err
		}
		p.CreatedAt, p.Name = t.now, cmp.Or(p.Name, p.Key)
		return p, t.saveProject(&p, "project.created")
	})
}

// PatchProject changes a project, by id or key.
func (h *Hub) PatchProject(ctx context.Context, c Call, ref string, patch domain.ProjectPatch) (domain.Project, error) {
	return write(ctx, h, c, auth.ProjectWrite, func(t *tx) (domain.Project, error) {
		p, err := findProject(t.Tx, ref)
		if err != nil {
			return p, err
		}
		set(&p.Customer, patch.Customer)
		set(&p.Name, patch.Name)
		set(&p.Repos, patch.Repos)
		set(&p.Members, patch.Members)
		set(&p.Settings, patch.Settings)
		if err := checkProject(p); err != nil {
			return p, err
		}
		return p, t.saveProject(&p, "project.changed")
	})
}

func set[T any](field *T, v *T) {
	if v != nil {
		*field = *v
	}
}

func checkProject(p domain.Project) error {
	if err := domain.CheckProjectKey(p.Key); err != nil {
		return check("key", err)
	}
	if err := domain.CheckSlug(p.Slug); err != nil {
		return check("slug", err)
	}
	if p.Name != "" {
		if err := domain.CheckTitle(p.Name); err != nil {
			return check("name", err)
		}
	}
	s := p.Settings
	switch {
	case s.Dispatch != "" && s.Dispatch != domain.DispatchOpen && s.Dispatch != domain.DispatchTargeted:
		return invalid("settings", "dispatch is %q or %q, not %q", domain.DispatchOpen, domain.DispatchTargeted, s.Dispatch)
	case s.ClusterCap < 0 || s.BudgetTokens < 0 || !(s.BudgetCost >= 0):
		return invalid("settings", "a cap or budget must not be negative")
	}
	return nil
}

// PutUser makes a user known, or changes its name.
func (h *Hub) PutUser(ctx context.Context, c Call, u domain.User) (domain.User, error) {
	return write(ctx, h, c, auth.UserWrite, func(t *tx) (domain.User, error) {
		if err := domain.CheckMachinePart("user id", u.ID); err != nil {
			return u, check("id", err)
		}
		u.Name = cmp.Or(u.Name, u.ID)
		if err := domain.CheckTitle(u.Name); err != nil {
			return u, check("name", err)
		}
		old, err := t.User(u.ID)
		switch {
		case errors.Is(err, domain.ErrNotFound):
			u.CreatedAt = t.now
			return u, t.saveUser(u, "user.created")
		case err != nil:
			return u, err
		case old.Name == u.Name:
			return old, nil
		}
		old.Name = u.Name
		return old, t.saveUser(old, "user.changed")
	})
}
