package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"gaia/domain"
	"gaia/internal/log"
	"gaia/session"
)

// reservedFor is how long an unanswered claim's folder is kept.
const reservedFor = 10 * time.Minute

// tick looks at everything once and does what there is to do. Its order matters: sessions are listed before the hub is
// asked, so that a session seen dead is judged by a later word of the hub than its death. An error means that the tick
// was not complete.
func (d *Conductor) tick(ctx context.Context) error {
	defer d.setStatus()
	d.mu.Lock()
	d.ticked, d.whole = d.cfg.Clock.Mono(), false
	d.mu.Unlock()
	if err := d.step("reading the run folders"); err != nil {
		return err
	}
	scanErr := d.scan()
	if scanErr != nil {
		d.cfg.Log.Error().Str(log.MessageID, log.RunFolderBroken).Err(scanErr).Msg("the run folders cannot be read: nothing is started or ended")
	}
	if err := d.step("listing the sessions"); err != nil {
		return err
	}
	listErr := d.listSessions(ctx)
	if err := d.step("looking at the machine"); err != nil {
		return err
	}
	d.setPaused(ctx)
	if err := d.step("asking the hub"); err != nil {
		return err
	}
	hubErr := d.askHub(ctx)
	if errors.Is(hubErr, domain.ErrSuperseded) {
		return ErrSuperseded
	}
	if scanErr != nil || listErr != nil {
		return nil // what is there is not known, so nothing is done about it
	}
	d.mu.Lock()
	d.looked = true
	d.adopted = d.adopted || hubErr == nil
	d.mu.Unlock()
	if err := d.step("reconciling"); err != nil {
		return err
	}
	d.reconcile()
	if hubErr != nil {
		return nil
	}
	d.mu.Lock()
	d.whole = true
	d.mu.Unlock()
	defer d.keepSpares()
	_, err := d.claim(ctx)
	return err
}

// scan reads which run folders are there. Folders of other conductors, and those whose end the hub knows, are not looked
// at again. One that cannot be read must not keep the others from being looked after; it is tried again each time, since
// what keeps it from being read may pass.
func (d *Conductor) scan() error {
	folders, err := session.Folders(d.cfg.Runs)
	if err != nil {
		return err
	}
	for _, f := range folders {
		d.mu.Lock()
		r := d.runs[f.Run()]
		skip := d.foreign[f.Run()] || r != nil && (r.work != "" || r.folder != "" && r.claimed)
		d.mu.Unlock()
		if skip {
			continue
		}
		err := d.scanOne(f)
		d.mu.Lock()
		said := d.unreadable[f.Run()]
		if err == nil {
			delete(d.unreadable, f.Run())
		} else {
			d.unreadable[f.Run()] = true
		}
		d.mu.Unlock()
		if err != nil && !said {
			d.cfg.Log.Error().Str(log.MessageID, log.RunFolderBroken).Err(err).Msgf("the run folder %s cannot be read: it is left alone until it can", f)
		}
	}
	return nil
}

func (d *Conductor) scanOne(f session.Folder) error {
	reported, err := f.Reported()
	if err != nil {
		return err
	}
	if reported {
		d.notOurs(f)
		return nil
	}
	spec, err := f.Load()
	switch {
	case err == nil && spec.Instance == d.cfg.Instance:
		d.mu.Lock()
		r := d.runLocked(f.Run())
		r.folder, r.spec, r.claimed = f, spec, true
		d.mu.Unlock()
		return nil
	case err == nil:
		d.notOurs(f)
		return nil
	case !errors.Is(err, domain.ErrNotFound):
		return err
	}
	return d.scanReserved(f)
}

// scanReserved looks at a folder whose claim has not been answered.
func (d *Conductor) scanReserved(f session.Folder) error {
	c, err := readFile[claimFile](f, fileClaim)
	switch {
	case err == nil && c.Instance == d.cfg.Instance:
		d.mu.Lock()
		d.runLocked(f.Run()).folder = f
		d.mu.Unlock()
	case err == nil:
		d.notOurs(f)
	case !errors.Is(err, domain.ErrNotFound):
		return err
	case d.drawnBefore(f.Run(), time.Hour):
		// A crash between the folder and the question, of this or another conductor: nothing was asked.
		return f.Discard()
	}
	return nil
}

// notOurs has a run folder not looked at again.
func (d *Conductor) notOurs(f session.Folder) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.foreign[f.Run()] = true
}

// drawnBefore reports whether a UUIDv7 is older than age by the wall clock. Anything else is not.
func (d *Conductor) drawnBefore(id string, age time.Duration) bool {
	u, err := uuid.Parse(id)
	if err != nil || u.Version() != 7 {
		return false
	}
	ms := int64(u[0])<<40 | int64(u[1])<<32 | int64(u[2])<<24 | int64(u[3])<<16 | int64(u[4])<<8 | int64(u[5])
	return d.cfg.Clock.Now().Sub(time.UnixMilli(ms)) > age
}

func (d *Conductor) runLocked(id string) *run {
	r := d.runs[id]
	if r == nil {
		r = &run{id: id, session: domain.SessionUnknown}
		d.runs[id] = r
	}
	return r
}

// listSessions asks once for all sessions. A failure means that nothing is known of any; it is never a death.
func (d *Conductor) listSessions(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	sessions, err := d.cfg.Executor.List(call)
	if err != nil && ctx.Err() != nil {
		return err // cut off by our own end
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.blind = err.Error()
		for _, r := range d.runs {
			r.session = domain.SessionUnknown
			r.unknowns++
			if r.unknowns == 3 {
				d.runLog(r).Warn().Err(err).Msg("the state of a session has been unknown for three listings; nothing is concluded from that")
			}
		}
		return err
	}
	d.blind = ""
	seen := map[string]domain.Session{}
	clear(d.damaged)
	for _, s := range sessions {
		seen[s.Run] = s
		if s.State == domain.SessionUnknown {
			d.damaged[s.Run] = true
		}
		if s.State == domain.SessionAlive {
			d.runLocked(s.Run) // whatever the hub and the folder say of it
		}
	}
	now := d.cfg.Clock.Mono()
	for id, r := range d.runs {
		s, listed := seen[id]
		state := s.State
		if !listed {
			state = domain.SessionGone
		}
		r.session = state
		switch state {
		case domain.SessionUnknown:
			r.unknowns++
			continue
		case domain.SessionAlive:
			r.gone = 0
		case domain.SessionGone:
			switch {
			case r.gone == 0:
				r.gone, r.goneAt = 1, now
			case now-r.goneAt >= secondLook:
				r.gone++
			}
		}
		r.unknowns = 0
	}
	return nil
}

// askHub registers if need be, sends the heartbeat and takes in what the hub says of each run.
func (d *Conductor) askHub(ctx context.Context) error {
	err := d.converse(ctx)
	if err != nil && ctx.Err() != nil {
		return err // cut off by our own end: the hub has done nothing wrong
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hub.answered = err == nil
	if err == nil {
		if d.hub.err != nil {
			d.cfg.Log.Info().Str(log.MessageID, log.HubBack).Msg("the hub answers again")
		}
		d.hub.err = nil
		return nil
	}
	if errors.Is(err, domain.ErrNotFound) || errors.Is(err, domain.ErrUnauthenticated) {
		d.hub.registered = false // a hub that has lost its memory is told again who this is
	}
	if d.hub.err == nil || trouble(d.hub.err) != trouble(err) {
		d.hub.since = d.cfg.Clock.Now()
		d.cfg.Log.Warn().Str(log.MessageID, log.HubUnreachable).Err(err).Msg("the hub does not serve this conductor: runs go on, nothing new is started")
	}
	d.hub.err = err
	return err
}

func (d *Conductor) converse(ctx context.Context) error {
	if !d.registered() {
		d.progress("registering")
		if err := d.register(ctx); err != nil {
			return err
		}
	}
	d.progress("sending the heartbeat")
	beat, named := d.beat()
	sent := d.cfg.Clock.Boot()
	call, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	pulse, err := d.cfg.Remote.Heartbeat(call, beat)
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	d.mu.Lock()
	d.hub.beat, d.hub.beatAt = sent, pulse.Conductor.LastSeen
	if pulse.LeaseTTL > 0 {
		d.hub.ttl = pulse.LeaseTTL
	}
	if d.draining != pulse.Conductor.Draining {
		d.draining = pulse.Conductor.Draining
		d.cfg.Log.Info().Str(log.MessageID, log.DrainChanged).Bool("draining", d.draining).Msg("the hub has changed whether this conductor drains")
	}
	fates := map[string]domain.Fate{}
	nameless := false
	for _, f := range pulse.Fates {
		fates[f.Run] = f
		r := d.runs[f.Run]
		if r == nil && f.Finalized {
			continue
		}
		if r == nil || !r.claimed {
			nameless = true
		}
	}
	for _, id := range named {
		if r := d.runs[id]; r != nil {
			if _, ok := fates[id]; !ok {
				r.known = false
			}
		}
	}
	for id, f := range fates {
		if r := d.runs[id]; r != nil {
			d.learnLocked(r, f, d.hub.beatAt)
		}
	}
	adopted := d.adopted
	d.mu.Unlock()
	if adopted && !nameless {
		return nil
	}
	d.progress("listing the runs of the hub")
	return d.listRuns(ctx)
}

// beat names every run that has anything here, so that the hub tells the fate of each.
func (d *Conductor) beat() (domain.Beat, []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := domain.Beat{CurrentLoad: d.loadLocked(), Paused: d.paused}
	ids := slices.Sorted(maps.Keys(d.runs))
	for _, id := range ids {
		rb := domain.RunBeat{Run: id}
		if f := d.runs[id].folder; f != "" {
			if a, err := f.Activity(); err == nil && activities[a.Status] {
				rb.Activity = &a
			}
		}
		b.Runs = append(b.Runs, rb)
	}
	return b, ids
}

// activities is the closed list: the file is written from inside the run, so it may hold anything.
var activities = map[string]bool{domain.ActivityWorking: true, domain.ActivityBlocked: true, domain.ActivityIdle: true}

func (d *Conductor) register(ctx context.Context) error {
	d.mu.Lock()
	s, again := d.settings, d.hub.conductor != ""
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	reg, err := d.cfg.Remote.Register(ctx, domain.Registration{
		MachineID: d.cfg.MachineID, Epoch: d.cfg.Epoch, Label: d.cfg.Label, Project: s.Project, States: s.States,
		MaxParallel: s.MaxParallel, Slots: s.Slots, WorkspaceRoot: s.WorkspaceRoot, Version: d.cfg.Version, Again: again,
	})
	if err != nil {
		return fmt.Errorf("registering %s: %w", d.cfg.MachineID, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hub.registered, d.hub.project, d.hub.conductor, d.hub.ttl = true, reg.Project, reg.Conductor.ID, reg.LeaseTTL
	d.meet()
	d.cfg.Log.Info().Msgf("registered as %s", d.cfg.MachineID)
	return nil
}

// listRuns asks the hub for its side of the listing.
func (d *Conductor) listRuns(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	runs, err := d.cfg.Remote.Runs(ctx)
	if err != nil {
		return fmt.Errorf("listing the own runs: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, hr := range runs {
		if d.foreign[hr.ID] && d.runs[hr.ID] == nil {
			// Reported, but the hub has gone back in time: close it again.
			delete(d.foreign, hr.ID)
		}
		_, tracked := d.runs[hr.ID]
		r := d.runLocked(hr.ID)
		if !tracked && d.blind == "" && !d.damaged[hr.ID] {
			r.session, r.gone, r.goneAt = domain.SessionGone, 1, d.cfg.Clock.Mono() // the listing of this tick did not show it
		}
		d.learnLocked(r, domain.FateOf(hr), d.hub.beatAt)
		r.leaseLocked(hr, d.hub.beatAt)
		if r.work != "" {
			continue // its worker knows more
		}
		if r.spec.Number == 0 {
			r.spec.Run, r.spec.Ticket, r.spec.Number, r.spec.State, r.spec.Attempt = hr.ID, hr.Ticket, hr.Number, hr.StateAtStart, hr.Attempt
			r.spec.Unit = d.cfg.Names.Unit(hr.Number)
		}
		if r.folder == "" {
			f := session.Folder(filepath.Join(d.cfg.Runs, hr.ID))
			if _, err := f.Load(); err == nil {
				r.folder, r.claimed = f, true
			}
		}
	}
	return nil
}

// leaseLocked notes how long a claim lives that the hub made or renewed at the moment from of its clock.
func (r *run) leaseLocked(hr domain.Run, from domain.Time) {
	if hr.State != domain.RunClaimed || hr.ClaimExpiresAt.IsZero() || from.IsZero() || r.claimTTL != 0 {
		return
	}
	r.claimTTL = max(hr.ClaimExpiresAt.Sub(from.Time), 1) // 0 is not known
}

// reconcile decides about each run and sets workers to work.
func (d *Conductor) reconcile() {
	boot, bootErr := d.cfg.Machine.BootID()
	if bootErr != nil {
		d.cfg.Log.Warn().Err(bootErr).Msg("the boot id cannot be read; a lost run waits for a second listing")
	}
	d.mu.Lock()
	runs := make([]*run, 0, len(d.runs))
	for _, id := range slices.Sorted(maps.Keys(d.runs)) {
		runs = append(runs, d.runs[id])
	}
	d.mu.Unlock()

	type decided struct {
		r *run
		a action
	}
	var todo []decided
	live, vanished := 0, 0
	for _, r := range runs {
		v := d.view(r, boot)
		a := decide(v)
		if v.known && v.fate.State.Live() && v.folder {
			live++
			if a == actReport && !v.record && !v.verdict {
				vanished++
			}
		}
		todo = append(todo, decided{r, a})
	}
	if vanished > 0 && live >= 5 && 2*vanished >= live {
		d.cfg.Log.Error().Str(log.MessageID, log.RunsLost).Int("vanished", vanished).Int("live", live).
			Msgf("%d of %d runs vanished at once without a trace of their end: look for what ended them (journalctl --user, the kernel's log); each is reported and tried again", vanished, live)
	}
	for _, t := range todo {
		d.act(t.r, t.a)
	}
}

const (
	mute     = time.Minute     // that an agent may say nothing after its start, before its profile is asked why
	askAgain = 5 * time.Minute // until the profile of a silent agent is asked anew
)

// view reads what is known of one run.
func (d *Conductor) view(r *run, boot string) view {
	d.mu.Lock()
	v := view{
		answered: d.hub.answered, known: r.known, fate: r.fate,
		session: r.session, goneTwice: r.gone >= 2,
		folder: r.folder != "", spec: r.claimed && r.folder != "",
		busy:      r.work != "",
		graceOver: r.done && d.cfg.Clock.Mono()-r.doneAt >= d.settings.Grace,
		old:       d.drawnBefore(r.id, reservedFor),
	}
	for _, o := range d.runs {
		if o != r && o.spec.Ticket != "" && o.spec.Ticket == r.spec.Ticket && o.id < r.id && o.known && !o.fate.Finalized {
			v.waits = true
		}
	}
	if v.busy && r.fate.State.Ended() && r.work == workDispatch && r.cancel != nil {
		r.cancel() // the hub has ended the run under it
	}
	folder, blocked := r.folder, d.settings.Blocked
	d.mu.Unlock()
	if folder == "" || v.busy {
		return v
	}
	started, err := folder.Started()
	v.started = has(err)
	v.otherBoot = err == nil && boot != "" && started.BootID != "" && started.BootID != boot
	_, err = folder.Tree()
	v.tree = has(err)
	_, err = folder.Record()
	v.record = has(err)
	_, err = readFile[domain.Failure](folder, fileVerdict)
	v.verdict = has(err)
	a, err := folder.Activity()
	if err == nil {
		d.mu.Lock()
		r.tells = true
		d.mu.Unlock()
		// Only an idleness that began after the state write is the end of the turn in which it was made.
		v.idle = a.Status == domain.ActivityIdle && !a.Since.Before(v.fate.EndedAt.Time)
		waits := a.Status == domain.ActivityBlocked || a.Status == domain.ActivityIdle
		v.stalled = waits && !a.Since.IsZero() && d.cfg.Clock.Now().Sub(a.Since.Time) >= blocked
	}
	if _, ok := halted(folder); ok {
		v.stalled = true
	}
	// Silent since its start, or in one and the same thing for so long that it may have been stopped by a person.
	since, patience := domain.Time{}, mute
	if errors.Is(err, domain.ErrNotFound) {
		since, _ = folder.Begun() // none while worktree and hooks are awaited
	} else if err == nil {
		since, patience = a.Since, max(blocked, mute)
	}
	if !since.IsZero() && d.cfg.Clock.Now().Sub(since.Time) >= patience {
		d.mu.Lock()
		v.mute = !r.asked || d.cfg.Clock.Mono()-r.askedAt >= max(patience, askAgain)
		d.mu.Unlock()
	}
	return v
}

func (d *Conductor) act(r *run, a action) {
	switch a {
	case actDispatch:
		d.work(r, workDispatch, d.treeTimeout()+hookDeadline, d.dispatch)
	case actStarted:
		d.work(r, "start", reportDeadline, d.reportStart)
	case actReport:
		d.work(r, "report", reportDeadline+stopDeadline, d.reportEnd)
	case actStall:
		d.work(r, "stall", reportDeadline+stopDeadline, d.stall)
	case actQuestion:
		d.mu.Lock()
		r.asked, r.askedAt = true, d.cfg.Clock.Mono()
		d.mu.Unlock()
		d.work(r, "question", reportDeadline+stopDeadline, d.question)
	case actFinalise:
		d.work(r, "finalise", stopDeadline+2*reportDeadline, d.finalise)
	case actClose:
		d.work(r, "close", stopDeadline, d.close)
	case actDiscard:
		if err := r.folder.Discard(); err != nil {
			d.runLog(r).Warn().Err(err).Msg("an unused run folder stays")
		}
		d.forget(r)
	case actKeep:
		d.mu.Lock()
		first := !r.kept
		r.kept = true
		d.mu.Unlock()
		if first {
			d.runLog(r).Warn().Msgf("a session runs here that belongs to no run with a folder and a word from the hub (run %s); it is left alone", r.id)
		}
	}
}

func (d *Conductor) forget(r *run) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.runs, r.id)
}

const workDispatch = "dispatch"

// work has a goroutine of its own do something for a run; the loop never waits for it.
func (d *Conductor) work(r *run, what string, limit time.Duration, fn func(context.Context, *run) error) {
	d.mu.Lock()
	if d.stopping || r.work != "" {
		d.mu.Unlock()
		return
	}
	ctx, cancel := context.WithTimeout(d.workCtx, limit)
	r.work, r.cancel = what, cancel
	if what == workDispatch {
		d.yieldSparesLocked()
	}
	if r.tried != what {
		r.tried, r.tries = what, 0
	}
	d.mu.Unlock()
	d.workers.Go(func() {
		defer cancel()
		err := fn(ctx, r)
		d.mu.Lock()
		r.work, r.cancel = "", nil
		// The listing that is in hand may be older than what was done: the next one counts.
		r.session, r.gone = domain.SessionUnknown, 0
		overtaken := r.fate.State.Ended() && what == workDispatch
		if err == nil {
			r.tries = 0
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, domain.ErrUnreachable) && !errors.Is(err, errInterrupted) {
			r.tries++
		}
		ended := d.workCtx.Err() != nil
		d.mu.Unlock()
		switch {
		case errors.Is(err, domain.ErrSuperseded):
			d.Wake() // the loop hears it from its next heartbeat
		case err != nil && overtaken:
			d.Wake() // the hub has ended the run under its dispatch
		case err != nil && !ended:
			d.runLog(r).Warn().Err(err).Msgf("%s of a run did not succeed and is tried again", what)
		default:
			d.Wake()
		}
		d.setStatus()
	})
}

// runLog is the log with the fields by which the journal tells one ticket's story.
func (d *Conductor) runLog(r *run) *zerolog.Logger {
	l := d.cfg.Log.With().Str(log.Ticket, r.spec.Identifier).Str(log.Run, r.id).Logger()
	return &l
}
