package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"gaia/domain"
	"gaia/internal/log"
	"gaia/session"
	"gaia/session/prompt"
)

// The size of a pane that nobody is attached to. Some agents draw nothing sensible in tmux's 80 by 24.
const paneCols, paneRows = 200, 50

// maxTries is how often a kind of work that fails for no reason of the ticket's is tried before the run is failed.
const maxTries = 3

// failure is a dispatch that ends the run with a reason.
type failure struct {
	domain.Failure
}

func (f *failure) Error() string { return string(f.Reason) + ": " + f.Note }

func fails(reason domain.Reason, format string, a ...any) *failure {
	return &failure{domain.Failure{Reason: reason, Note: fmt.Sprintf(format, a...)}}
}

// dispatch leads a claimed run to a running agent. It may be begun anew after an interruption at any point: each step
// finds out what is there already.
func (d *Conductor) dispatch(ctx context.Context, r *run) error {
	a, err := d.assign(ctx, r)
	if err != nil {
		return err
	}
	if a.Run.State.Ended() {
		return nil // the next tick sees it
	}
	if err := d.at("locking the tree"); err != nil {
		return err
	}
	lockCtx, cancel := context.WithTimeout(ctx, reportDeadline)
	unlock, err := d.cfg.Workspace.Lock(lockCtx, a.Ticket.Identifier)
	cancel()
	if err != nil {
		return fmt.Errorf("locking the tree of %s: %w", a.Ticket.Identifier, err)
	}
	defer unlock()

	err = d.launch(ctx, r, a)
	if ctx.Err() != nil {
		return ctx.Err() // interrupted, not failed
	}
	if _, recErr := r.folder.Record(); err != nil && has(recErr) {
		return nil // the session has ended by itself, which is the better reason: the next tick reports it
	}
	var f *failure
	switch {
	case errors.As(err, &f):
	case errors.Is(err, domain.ErrUnreachable), errors.Is(err, domain.ErrSuperseded), errors.Is(err, errInterrupted), err == nil:
		return err
	default:
		d.mu.Lock()
		last := r.tries+1 >= maxTries
		d.mu.Unlock()
		if !last {
			return err
		}
		f = fails(domain.ReasonInternal, "%v", err)
	}
	d.runLog(r).Error().Str(log.MessageID, log.RunNotStarted).Str(log.Reason, string(f.Reason)).Msgf("run %d cannot be started: %s", a.Run.Number, f.Note)
	if err := d.condemn(ctx, r, f.Failure); err != nil {
		return err
	}
	return d.sendFail(ctx, r, f.Failure)
}

// errInterrupted ends a run's work without a verdict.
var errInterrupted = errors.New("interrupted")

// assign makes sure that the assignment is at hand and the spec is written.
func (d *Conductor) assign(ctx context.Context, r *run) (*domain.Assignment, error) {
	d.mu.Lock()
	a := r.assignment
	d.mu.Unlock()
	if a == nil {
		if err := d.at("asking for the assignment"); err != nil {
			return nil, err
		}
		call, cancel := context.WithTimeout(ctx, callDeadline)
		defer cancel()
		var err error
		if a, err = d.cfg.Remote.Assignment(call, r.id); err != nil {
			return nil, fmt.Errorf("asking what run %s is: %w", r.id, err)
		}
		if a == nil {
			return nil, fmt.Errorf("asking what run %s is: %w", r.id, domain.ErrNotFound)
		}
	}
	if err := d.at("writing the spec"); err != nil {
		return nil, err
	}
	spec, err := r.folder.Load()
	switch {
	case errors.Is(err, domain.ErrNotFound):
		spec = session.Spec{
			Run: r.id, Ticket: a.Ticket.ID, Identifier: a.Ticket.Identifier, Title: a.Ticket.Title, Instance: d.cfg.Instance,
			Prefix: d.cfg.Prefix, Project: a.Project.Key, Number: a.Run.Number, Attempt: a.Run.Attempt, State: a.Run.StateAtStart,
			Unit: d.cfg.Names.Unit(a.Run.Number), Socket: d.cfg.Names.Socket(r.id), Hub: d.cfg.Hub, GaiaBin: d.cfg.GaiaBin,
			Cols: paneCols, Rows: paneRows, TreeTimeout: d.treeTimeout(),
		}
		if _, err := session.Create(string(r.folder), spec, ""); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	}
	d.mu.Lock()
	r.assignment, r.spec, r.claimed = a, spec, true
	d.mu.Unlock()
	return a, nil
}

// launch starts the unit and makes the tree side by side, and tells the hub when the agent runs.
func (d *Conductor) launch(ctx context.Context, r *run, a *domain.Assignment) error {
	if !d.confirmed(r) {
		return fmt.Errorf("the claim's lease may have run out before its work began: %w", errInterrupted)
	}
	unitCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	unit := make(chan error, 1)
	go func() {
		err := d.startUnit(unitCtx, r, a)
		unit <- err
	}()
	treeErr := d.build(ctx, r, a)
	if treeErr != nil {
		cancel()
	}
	unitErr := <-unit // always awaited: nothing may start after what follows
	switch {
	case treeErr != nil:
		return treeErr
	case errors.Is(unitErr, domain.ErrExists):
		return nil // an earlier process started it; the next listing shows how it does
	case unitErr != nil:
		return unitErr
	}
	return d.reportStart(ctx, r)
}

func (d *Conductor) startUnit(ctx context.Context, r *run, a *domain.Assignment) error {
	if _, err := r.folder.Started(); has(err) {
		return domain.ErrExists
	}
	if err := d.at("starting the unit"); err != nil {
		return err
	}
	d.mu.Lock()
	limits := d.settings.Limits
	d.mu.Unlock()
	err := d.cfg.Executor.Start(ctx, domain.Launch{
		Run: r.id, Number: a.Run.Number, Folder: string(r.folder), Limits: limits,
		Description: fmt.Sprintf("Gaia run %d: %s (%s)", a.Run.Number, a.Ticket.Identifier, a.Run.StateAtStart),
	})
	if err != nil {
		return fmt.Errorf("starting the session of run %d: %w", a.Run.Number, err)
	}
	return nil
}

// build makes the tree and everything that the host waits for. The tree file comes last: once it is there the agent may
// run at any moment, and the run is past the point where its claim can be taken back.
func (d *Conductor) build(ctx context.Context, r *run, a *domain.Assignment) error {
	if _, err := r.folder.Tree(); has(err) {
		return nil
	}
	if err := d.at("making the tree"); err != nil {
		return err
	}
	treeCtx, cancel := context.WithTimeout(ctx, d.treeTimeout())
	defer cancel()
	tree, finish, err := d.cfg.Workspace.Ensure(treeCtx, domain.TreeRequest{
		Ticket: a.Ticket.ID, Identifier: a.Ticket.Identifier, Run: r.id, Branch: string(a.Ticket.Branch),
	})
	if err != nil {
		return treeFailed(ctx, err)
	}
	finished := make(chan error, 1)
	go func() { finished <- finish(treeCtx) }() // whatever becomes of the run, the next one finds a complete tree
	file, err := d.equip(ctx, r, a, tree)
	if finishErr := <-finished; err == nil && finishErr != nil {
		return treeFailed(ctx, finishErr)
	}
	if err != nil {
		return err
	}
	if err := d.at("letting the host on"); err != nil {
		return err
	}
	if !d.confirmed(r) {
		return fmt.Errorf("the claim's lease may have run out while the tree was made: %w", errInterrupted)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return r.folder.WriteTree(file)
}

func treeFailed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	fail := fails(domain.ReasonWorkspace, "%v", err)
	var we *domain.WorkspaceError
	fail.Hold = errors.As(err, &we) && we.Hold
	return fail
}

// equip prepares the agent, and writes all that the host needs for it but the tree file, which it returns.
func (d *Conductor) equip(ctx context.Context, r *run, a *domain.Assignment, tree domain.Tree) (session.TreeFile, error) {
	f := r.folder
	gitDir, err := d.cfg.Workspace.GitDir(ctx, tree.Path)
	if err != nil {
		return session.TreeFile{}, fmt.Errorf("finding the git directory of %s: %w", tree.Path, err)
	}
	c, err := d.admit(ctx, tree)
	if err != nil {
		return session.TreeFile{}, err
	}
	skill, err := c.skills.For(string(a.Ticket.Workflow), a.Ticket.State)
	if err != nil {
		return session.TreeFile{}, fails(domain.ReasonSkillMissing, "%v", err)
	}
	name, agent, err := d.agentFor(ctx, a)
	if err != nil {
		return session.TreeFile{}, err
	}
	permissions, err := d.permissions(name)
	if err != nil {
		return session.TreeFile{}, err
	}
	if err := d.at("writing the environment"); err != nil {
		return session.TreeFile{}, err
	}
	env, err := d.cfg.Machine.Environment(ctx, name, d.gaiaEnv(r, a, tree))
	if err != nil {
		return session.TreeFile{}, fmt.Errorf("composing the environment: %w", err)
	}
	if err := agent.Check(env); err != nil {
		return session.TreeFile{}, fails(domain.ReasonAgentNotFound, "%v", err)
	}
	text, err := prompt.Write(prompt.Input{
		Assignment: *a, Skill: skill, Workflow: c.workflow, Tree: tree, Push: d.push(), LastFailure: lastFailure(a), Nonce: prompt.NewNonce(),
	})
	if err != nil {
		return session.TreeFile{}, fmt.Errorf("writing the prompt: %w", err)
	}
	if err := f.WritePrompt(text); err != nil {
		return session.TreeFile{}, err
	}
	if err := d.at("preparing the agent"); err != nil {
		return session.TreeFile{}, err
	}
	cmd, err := agent.Prepare(ctx, domain.AgentRequest{
		Run: a.Run, Ticket: a.Ticket, Folder: string(f), Tree: tree, PromptFile: f.Path(session.FilePrompt),
		Permissions: permissions, Env: env,
	})
	if err != nil {
		return session.TreeFile{}, fmt.Errorf("preparing the agent %s: %w", name, err)
	}
	for k, v := range cmd.Env {
		env[k] = v
	}
	if err := f.WriteEnv(env); err != nil {
		return session.TreeFile{}, err
	}
	begin := domain.StartReport{
		WorktreePath: tree.Path, Branch: tree.Branch, BaseSHA: tree.Base, Unit: d.cfg.Names.Unit(a.Run.Number),
		Agent: name, Permissions: permissions, Log: string(f),
	}
	if err := writeFile(f, fileBegin, begin); err != nil {
		return session.TreeFile{}, err
	}
	return session.TreeFile{Tree: tree, Argv: cmd.Argv, Hooks: c.hooks, GitDir: gitDir}, nil
}

func (d *Conductor) push() string { d.mu.Lock(); defer d.mu.Unlock(); return d.settings.Push }

func (d *Conductor) treeTimeout() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.settings.TreeTimeout
}

// admit reads what the tree's base commit says and refuses hooks that nobody trusts.
func (d *Conductor) admit(ctx context.Context, tree domain.Tree) (*commit, error) {
	if err := d.at("reading the base commit"); err != nil {
		return nil, err
	}
	c, err := d.commit(ctx, tree.Base)
	var bad *configError
	var skills *skillError
	switch {
	case errors.As(err, &bad):
		fail := fails(domain.ReasonWorkspace, "%v", err)
		fail.Hold = true
		return nil, fail
	case errors.As(err, &skills):
		return nil, fails(domain.ReasonSkillMissing, "%v", err)
	case err != nil:
		return nil, err
	}
	sha := c.hooks.SHA256()
	if sha == "" {
		return c, nil
	}
	ok, err := d.cfg.Machine.Trusted(sha)
	if err != nil {
		return nil, err
	}
	if !ok {
		d.mu.Lock()
		d.shas[sha], d.paused = true, hooksNotTrusted
		d.mu.Unlock()
		return nil, fails(domain.ReasonUndone, "%s", hooksNotTrusted)
	}
	return c, nil
}

// agentFor returns the agent that is to work on the ticket.
func (d *Conductor) agentFor(ctx context.Context, a *domain.Assignment) (string, domain.Agent, error) {
	call, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	agents, err := d.cfg.Machine.Agents(call)
	if err != nil {
		return "", nil, err
	}
	d.mu.Lock()
	o := domain.Offer{Default: d.settings.Agent, Routes: agents.Routes}
	d.mu.Unlock()
	if o.Default == "" {
		o.Default = agents.Default
	}
	name := o.AgentFor(a.Ticket, a.Project)
	if agent := agents.Available[name]; agent != nil {
		return name, agent, nil
	}
	if why := agents.Unavailable[name]; why != nil {
		return "", nil, fails(domain.ReasonAgentNotFound, "%v", why)
	}
	return "", nil, fails(domain.ReasonAgentNotFound, "no agent %q is known on this machine (machine.toml)", name)
}

func (d *Conductor) permissions(agent string) (string, error) {
	d.mu.Lock()
	want := d.settings.Permissions
	d.mu.Unlock()
	granted, refused, err := d.cfg.Machine.Permissions(agent, want)
	if refused {
		d.cfg.Log.Warn().Msgf("conductor.toml asks for the permissions %q, which nobody has allowed for this checkout (gaia conductor trust --all-permissions): agents get %q", want, granted)
	}
	return granted, err
}

// gaiaEnv is what a run knows of Gaia.
func (d *Conductor) gaiaEnv(r *run, a *domain.Assignment, tree domain.Tree) map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return r.folder.Variables(r.spec, string(a.Ticket.Workflow), d.settings.Push, tree, d.cfg.Home)
}

func lastFailure(a *domain.Assignment) string {
	if l := a.LastRun; l != nil && l.State != domain.RunDone && l.State.Ended() {
		if l.EndNote != "" {
			return string(l.EndReason) + ": " + l.EndNote
		}
		return string(l.EndReason)
	}
	return ""
}

// reportStart tells the hub that the agent runs, with what the run was started with.
func (d *Conductor) reportStart(ctx context.Context, r *run) error {
	begin, err := readFile[domain.StartReport](r.folder, fileBegin)
	if err != nil {
		return err
	}
	if err := d.at("telling the hub that the run runs"); err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	fate, err := d.cfg.Remote.Start(call, r.id, begin)
	if err != nil {
		return fmt.Errorf("telling the hub that the run runs: %w", err)
	}
	d.learn(r, fate)
	if fate.State == domain.RunRunning {
		d.runLog(r).Info().Str(log.MessageID, log.RunStarted).Str("unit", begin.Unit).Str("agent", begin.Agent).
			Msgf("%s runs in %s, in %s", begin.Agent, begin.Unit, filepath.Base(begin.WorktreePath))
	}
	return nil
}
