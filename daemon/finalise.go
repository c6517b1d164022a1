package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"gaia/domain"
	"gaia/internal/log"
	"gaia/session"
)

// reportEnd tells the hub how a run ended that the hub still takes for live. The words are written down before they are
// sent, so that they are the same when they must be sent again.
func (d *Conductor) reportEnd(ctx context.Context, r *run) error {
	d.mu.Lock()
	folder, fate := r.folder, r.fate
	d.mu.Unlock()
	if folder == "" {
		return d.sendFail(ctx, r, withoutFolder(fate))
	}
	verdict, err := readFile[domain.Failure](folder, fileVerdict)
	switch {
	case err == nil:
		// What was decided here may have been interrupted before the session was ended.
		if err := d.condemn(ctx, r, verdict); err != nil {
			return err
		}
	case errors.Is(err, domain.ErrNotFound):
		if verdict, err = d.judge(ctx, folder); err != nil {
			return err
		}
		if err := writeFile(folder, fileVerdict, verdict); err != nil {
			return err
		}
	default:
		return err
	}
	return d.sendFail(ctx, r, verdict)
}

// withoutFolder is the report on a run of which nothing is here: no folder, no session.
func withoutFolder(f domain.Fate) domain.Failure {
	if f.State == domain.RunClaimed {
		return domain.Failure{Reason: domain.ReasonUndone, Note: "the run folder is not there, so nothing was started"}
	}
	return domain.Failure{Reason: domain.ReasonSessionLost, Note: "neither session nor run folder is there"}
}

// judge derives from what a session left why it ended.
func (d *Conductor) judge(ctx context.Context, folder session.Folder) (domain.Failure, error) {
	rec, err := folder.Record()
	if errors.Is(err, domain.ErrNotFound) {
		return d.judgeLost(folder)
	}
	if err != nil {
		return domain.Failure{Reason: domain.ReasonInternal, Note: err.Error()}, nil // a damaged record never heals
	}
	reason, note := session.Reason(rec)
	if reason == "" {
		// Somebody asked for the end, and it was not this conductor, which writes its verdict down first.
		reason, note = domain.ReasonSessionLost, "the session was stopped on its machine"
	}
	verdict := domain.Failure{Reason: reason, Note: note}
	if reason != domain.ReasonAgentExit {
		return verdict, nil
	}
	// The agent ended by itself: only its profile can tell a usage limit or a missing login from any other exit.
	if rep, ok := d.agentReport(ctx, folder); ok && rep.Reason != "" {
		verdict = domain.Failure{Reason: rep.Reason, Note: cmp.Or(rep.Note, note), Until: rep.Until}
	}
	return verdict, nil
}

func (d *Conductor) judgeLost(folder session.Folder) (domain.Failure, error) {
	started, err := folder.Started()
	if err != nil {
		return domain.Failure{Reason: domain.ReasonSessionLost, Note: "the session is gone and left no record"}, nil
	}
	boot, err := d.cfg.Machine.BootID()
	if err != nil {
		return domain.Failure{}, err
	}
	reason, note := session.ReasonWithoutRecord(started, boot)
	return domain.Failure{Reason: reason, Note: note}, nil
}

// stall ends a run whose agent does nothing more by itself, or waits for an answer that nobody gives, unless a person is
// attached to it right now.
func (d *Conductor) stall(ctx context.Context, r *run) error {
	attached, err := d.cfg.Machine.Attached(ctx, r.spec.Socket)
	if err != nil || attached {
		return err // unknown is no reason to end anything
	}
	verdict, ok := halted(r.folder)
	if !ok {
		verdict = domain.Failure{Reason: domain.ReasonStalled, Note: "the agent waited for an answer, and nobody was attached (gaia attach)"}
	}
	if err := d.condemn(ctx, r, verdict); err != nil {
		return err
	}
	return d.sendFail(ctx, r, verdict)
}

// question asks the profile of an agent that has told nothing new for long whether it waits for what never comes.
func (d *Conductor) question(ctx context.Context, r *run) error {
	rep, ok := d.agentReport(ctx, r.folder)
	if !ok || rep.Reason == "" {
		return nil
	}
	attached, err := d.cfg.Machine.Attached(ctx, r.spec.Socket)
	if err != nil || attached {
		return err
	}
	verdict := domain.Failure{Reason: rep.Reason, Note: rep.Note, Until: rep.Until}
	if err := d.condemn(ctx, r, verdict); err != nil {
		return err
	}
	return d.sendFail(ctx, r, verdict)
}

// halts is the closed list of why an agent may say that it does nothing more: the file is written from inside the run, so
// it may hold anything.
var halts = []domain.Reason{
	domain.ReasonStalled, domain.ReasonLimited, domain.ReasonLoginMissing, domain.ReasonTrustPrompt, domain.ReasonAgentSandbox,
}

const maxHaltNote = 1000 // bytes

// halted reads whether the agent does nothing more by itself, and why.
func halted(f session.Folder) (domain.Failure, bool) {
	h, err := f.Halt()
	if err != nil || !slices.Contains(halts, h.Reason) {
		return domain.Failure{}, false
	}
	if len(h.Note) > maxHaltNote {
		h.Note = h.Note[:maxHaltNote]
	}
	return domain.Failure{Reason: h.Reason, Note: strings.ToValidUTF8(h.Note, "?"), Until: h.Until}, true
}

func (d *Conductor) sendFail(ctx context.Context, r *run, verdict domain.Failure) error {
	if err := d.at("telling the hub that the run failed"); err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	fate, err := d.cfg.Remote.Fail(call, r.id, verdict)
	if err != nil {
		return fmt.Errorf("telling the hub that the run failed: %w", err)
	}
	d.learn(r, fate)
	if fate.State == domain.RunFailed {
		d.runLog(r).Warn().Str(log.MessageID, log.RunFailed).Str(log.Reason, string(fate.EndReason)).Msgf("run %d failed: %s", r.spec.Number, verdict.Note)
		d.awaitRetry(r, verdict)
	}
	return nil
}

// awaitRetry has the loop look again when the ticket's wait after a failure is over, of which no event tells. It is
// reckoned by the rules that the hub goes by where nobody has changed them; being wrong costs a tick.
func (d *Conductor) awaitRetry(r *run, verdict domain.Failure) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.assignment == nil {
		return // claimed by an earlier process: the next tick finds it
	}
	t, now := r.assignment.Ticket, domain.At(d.cfg.Clock.Now())
	t.Fail(verdict, domain.DefaultLimits(), now)
	if wait := t.RetryAt.Sub(now.Time); wait > 0 && t.Hold == nil {
		d.retries = append(d.retries, d.cfg.Clock.Mono()+wait)
	}
}

// agentReport asks the profile of the run's agent. It is told apart from an empty report whether there was one.
func (d *Conductor) agentReport(ctx context.Context, folder session.Folder) (domain.AgentReport, bool) {
	begin, err := readFile[domain.StartReport](folder, fileBegin)
	if err != nil {
		return domain.AgentReport{}, false // no agent was prepared
	}
	ctx, cancel := context.WithTimeout(ctx, 2*callDeadline)
	defer cancel()
	agents, err := d.cfg.Machine.Agents(ctx)
	if err != nil {
		d.cfg.Log.Warn().Err(err).Msg("the agent's own account of a run is missing")
		return domain.AgentReport{}, false
	}
	agent := agents.Available[begin.Agent]
	if agent == nil {
		return domain.AgentReport{}, false
	}
	rep, err := agent.Report(ctx, string(folder))
	if err != nil {
		d.cfg.Log.Warn().Err(err).Msgf("what %s left of a run cannot be read", begin.Agent)
		return domain.AgentReport{}, false
	}
	return rep, true
}

// finalise closes a run that is over at the hub: nothing of it runs when the tree is looked at, and the tree stays.
func (d *Conductor) finalise(ctx context.Context, r *run) error {
	if err := d.at("stopping the session"); err != nil {
		return err
	}
	if err := d.endSession(ctx, r); err != nil {
		return err
	}
	identifier, err := d.identifier(ctx, r)
	if err != nil {
		return err
	}
	d.mu.Lock()
	folder, fate, tries := r.folder, r.fate, r.tries
	d.mu.Unlock()

	var report domain.FinaliseReport
	if folder != "" {
		report.Footprint = d.footprint(ctx, folder)
	}
	if err := d.at("looking at the tree"); err != nil {
		return err
	}
	if err := d.inspect(ctx, identifier, fate, &report); err != nil {
		if tries+1 < maxTries {
			return err
		}
		// The ticket must not wait for ever. Work that cannot be seen counts as work that lies here.
		d.runLog(r).Error().Str(log.MessageID, log.TreeUnknown).Err(err).Msg("the tree cannot be looked at; the run is closed as if it held unpushed work")
		report.Unpushed = true
	}
	if err := d.at("closing the run at the hub"); err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	if err := d.cfg.Remote.Finalise(call, r.id, report); err != nil && !errors.Is(err, domain.ErrNotFound) {
		return fmt.Errorf("closing the run at the hub: %w", err)
	}
	d.runLog(r).Info().Str(log.MessageID, log.RunEnded).Str(log.Reason, string(fate.EndReason)).Msgf("run %d is closed: %s", r.spec.Number, fate.State)
	return d.settle(r)
}

func (d *Conductor) endSession(ctx context.Context, r *run) error {
	if r.folder != "" {
		if err := r.folder.MarkStopping(); err != nil {
			return err
		}
	}
	if err := d.cfg.Executor.Stop(ctx, r.id); err != nil {
		return fmt.Errorf("stopping the session: %w", err)
	}
	return nil
}

// identifier returns the ticket's, from the folder or, where that is lost, from the hub.
func (d *Conductor) identifier(ctx context.Context, r *run) (string, error) {
	d.mu.Lock()
	id := r.spec.Identifier
	d.mu.Unlock()
	if id != "" {
		return id, nil
	}
	call, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	a, err := d.cfg.Remote.Assignment(call, r.id)
	if err != nil {
		return "", fmt.Errorf("asking what run %s was: %w", r.id, err)
	}
	d.mu.Lock()
	r.spec.Identifier = a.Ticket.Identifier
	d.mu.Unlock()
	return a.Ticket.Identifier, nil
}

func (d *Conductor) inspect(ctx context.Context, identifier string, fate domain.Fate, report *domain.FinaliseReport) error {
	ctx, cancel := context.WithTimeout(ctx, reportDeadline)
	defer cancel()
	unlock, err := d.cfg.Workspace.Lock(ctx, identifier)
	if err != nil {
		return fmt.Errorf("locking the tree of %s: %w", identifier, err)
	}
	defer unlock()
	st, err := d.cfg.Workspace.Inspect(ctx, identifier, string(fate.Head), fate.EndedAt.Time)
	if errors.Is(err, domain.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking at the tree of %s: %w", identifier, err)
	}
	report.EndSHA, report.Unpushed, report.LateWork = st.Head, st.Unpushed, st.Late
	return nil
}

// footprint merges what the agent's profile tells with what the unit measured. Negative values are not passed on: the hub
// refuses them, and the run with them.
func (d *Conductor) footprint(ctx context.Context, folder session.Folder) *domain.Footprint {
	var f domain.Footprint
	if rep, ok := d.agentReport(ctx, folder); ok {
		f = rep.Footprint
	}
	rec, recErr := folder.Record()
	if recErr == nil {
		f.CPUMS, f.MemoryPeak = max(rec.CPUMS, 0), max(rec.MemoryPeak, 0)
	}
	if started, err := folder.Started(); err == nil && recErr == nil && !rec.EndedAt.IsZero() {
		f.WallMS = max(rec.EndedAt.Sub(started.At.Time).Milliseconds(), 0)
	}
	if name := f.Negative(); name != "" {
		d.cfg.Log.Warn().Msgf("the footprint of run folder %s is dropped: %s is negative", filepath.Base(string(folder)), name)
		return nil
	}
	return &f
}

// close cleans up after a run that the hub has closed already.
func (d *Conductor) close(ctx context.Context, r *run) error {
	if err := d.endSession(ctx, r); err != nil {
		return err
	}
	return d.settle(r)
}

// settle is the last that a run folder sees: its secrets go, and it is not looked at again.
func (d *Conductor) settle(r *run) error {
	if r.folder != "" {
		if err := r.folder.RemoveSecrets(); err != nil {
			return err
		}
		if err := r.folder.MarkReported(); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.claimed {
		d.settled = append(d.settled, r.status())
	}
	delete(d.runs, r.id)
	d.foreign[r.id] = true
	return nil
}
