package daemon

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"

	"gaia/domain"
	"gaia/internal/log"
	"gaia/session"
)

// setPaused finds out why nothing should be claimed, apart from what the hub itself decides by.
func (d *Conductor) setPaused(ctx context.Context) {
	why := d.whyPaused(ctx)
	if ctx.Err() != nil {
		return // cut off by our own end, which is no finding
	}
	d.mu.Lock()
	before := d.paused
	d.paused = why
	d.mu.Unlock()
	if kind(why) != kind(before) {
		if why == "" {
			d.cfg.Log.Info().Str(log.MessageID, log.ClaimingResumed).Msg("work is claimed again")
		} else {
			id := log.ClaimingPaused
			if why == hooksNotTrusted {
				id = log.HooksUntrusted
			}
			d.cfg.Log.Warn().Str(log.MessageID, id).Msg("nothing is claimed: " + why)
		}
	}
}

// kind leaves the numbers out of a reason, which change while it stays the same.
func kind(why string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, why)
}

func (d *Conductor) whyPaused(ctx context.Context) string {
	d.mu.Lock()
	minFree, maxLoad, untrusted := d.settings.MinFreeDisk, d.settings.MaxLoad, slices.Sorted(maps.Keys(d.shas))
	d.mu.Unlock()
	if p := d.cfg.Machine.Pressure(minFree, maxLoad); p != "" {
		return p
	}
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	c, err := d.base(ctx)
	if err != nil {
		return err.Error()
	}
	if sha := c.hooks.SHA256(); sha != "" {
		untrusted = append(untrusted, sha)
	}
	for _, sha := range untrusted {
		ok, err := d.cfg.Machine.Trusted(sha)
		if err != nil {
			return err.Error()
		}
		if !ok {
			return hooksNotTrusted
		}
		d.mu.Lock()
		delete(d.shas, sha)
		d.mu.Unlock()
	}
	agents, err := d.cfg.Machine.Agents(ctx)
	if err != nil {
		return err.Error()
	}
	d.mu.Lock()
	d.agents = agents
	d.mu.Unlock()
	if len(agents.Available) == 0 {
		var why []string
		for _, name := range slices.Sorted(maps.Keys(agents.Unavailable)) {
			why = append(why, fmt.Sprintf("%s: %v", name, agents.Unavailable[name]))
		}
		return strings.Join(append([]string{"no agent can be started (gaia doctor)"}, why...), "; ")
	}
	return ""
}

const hooksNotTrusted = "hooks are not trusted: gaia conductor trust"

// claim asks for work until the slots are full or nothing is left, and reports whether there was any. It is part of the
// loop: what follows a claim is not.
func (d *Conductor) claim(ctx context.Context) (got bool, err error) {
	for {
		if ctx.Err() != nil || !d.mayClaim() {
			return got, nil
		}
		if err := d.step("claiming"); err != nil {
			return got, err
		}
		more, err := d.claimOne(ctx)
		if errors.Is(err, domain.ErrSuperseded) {
			return got, ErrSuperseded
		}
		if err != nil {
			d.cfg.Log.Warn().Err(err).Msg("claiming did not succeed and is tried again")
			return got, nil
		}
		if !more {
			return got, nil
		}
		got = true
	}
}

// claimEagerly claims before the tick where a ticket has changed since the last one: most likely there is work, and what
// the tick looks at before it claims is as the last one saw it. It reports whether there was any.
func (d *Conductor) claimEagerly(ctx context.Context) (bool, error) {
	d.mu.Lock()
	eager := d.eager && d.whole
	d.eager = false
	d.mu.Unlock()
	if !eager {
		return false, nil
	}
	d.cfg.Executor.Expect()
	return d.claim(ctx)
}

func (d *Conductor) mayClaim() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	// The hub claims by what it was told of this conductor, which a reload has changed: it is told first.
	return d.adopted && d.hub.registered && d.hub.answered && !d.draining && !d.stopping && d.paused == "" && d.loadLocked() < d.settings.MaxParallel
}

// claimOne asks one question. It reports whether another one may be asked.
func (d *Conductor) claimOne(ctx context.Context) (bool, error) {
	f, req, again, err := d.reservation(ctx)
	if err != nil {
		return false, err
	}
	sent := d.cfg.Clock.Boot()
	call, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	a, err := d.cfg.Remote.Claim(call, req)
	switch {
	case refusal(err):
		d.discard(f)
		return false, fmt.Errorf("claim: %w", err)
	case err != nil:
		return false, fmt.Errorf("claim, of which the answer is asked for again: %w", err) // the reservation stays
	case a == nil:
		d.mu.Lock()
		if r := d.runs[f.Run()]; r != nil {
			r.free = true // the next question takes the same folder: an idle machine writes nothing to its disk
		}
		d.mu.Unlock()
		return again, nil // the answer to an old question says nothing about now
	}
	d.mu.Lock()
	r := d.runLocked(req.Run)
	r.assignment, r.leaseFrom = a, sent
	r.folder = f
	d.learnLocked(r, domain.FateOf(a.Run), a.Run.EndedAt)
	r.leaseLocked(a.Run, a.Run.ClaimedAt)
	r.spec.Ticket, r.spec.Identifier, r.spec.Number, r.spec.State = a.Ticket.ID, a.Ticket.Identifier, a.Run.Number, a.Run.StateAtStart
	d.mu.Unlock()
	d.runLog(r).Info().Str(log.MessageID, log.RunClaimed).Msgf("claimed %s in %s as run %d", a.Ticket.Identifier, a.Run.StateAtStart, a.Run.Number)
	if boot, err := d.cfg.Machine.BootID(); err == nil {
		d.act(r, decide(d.fresh(r, boot)))
	}
	return true, nil
}

// fresh is the view of a run that has just been claimed: the folder was reserved by this process or found without a
// start, so there is no session yet.
func (d *Conductor) fresh(r *run, boot string) view {
	v := d.view(r, boot)
	if v.session == domain.SessionUnknown && !v.started {
		v.session = domain.SessionGone
	}
	return v
}

// refusal reports whether an answer says that the claim was understood and has had no effect.
func refusal(err error) bool {
	for _, e := range []error{domain.ErrInvalid, domain.ErrConflict, domain.ErrForbidden, domain.ErrUnauthenticated, domain.ErrNotFound} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (d *Conductor) discard(f session.Folder) {
	d.mu.Lock()
	delete(d.runs, f.Run())
	d.mu.Unlock()
	if err := f.Discard(); err != nil {
		d.cfg.Log.Warn().Err(err).Msg("an unused run folder stays")
	}
}

// reservation returns a run folder with its question. Folder, token and question are on disk before the question is
// asked. A question whose answer is not known, which again tells, is asked with the same words; one that was answered
// with nothing lends its folder to the next.
func (d *Conductor) reservation(ctx context.Context) (f session.Folder, req domain.ClaimRequest, again bool, err error) {
	offer, err := d.offer(ctx)
	if err != nil {
		return "", domain.ClaimRequest{}, false, err
	}
	d.mu.Lock()
	type reserved struct {
		folder session.Folder
		free   bool
	}
	var open []reserved
	for _, id := range slices.Sorted(maps.Keys(d.runs)) {
		if r := d.runs[id]; r.folder != "" && !r.claimed && !r.known && r.work == "" {
			open = append(open, reserved{r.folder, r.free})
		}
	}
	d.mu.Unlock()
	for _, o := range open {
		c, err := readFile[claimFile](o.folder, fileClaim)
		if err == nil && o.free && !reflect.DeepEqual(c.Request.Offer, offer) {
			c.Request.Offer = offer
			err = writeFile(o.folder, fileClaim, c)
		}
		if err == nil {
			return o.folder, c.Request, !o.free, nil
		}
		d.cfg.Log.Warn().Err(err).Msg("a reservation cannot be used and is dropped")
		d.discard(o.folder)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return "", domain.ClaimRequest{}, false, fmt.Errorf("drawing a run id: %w", err)
	}
	token, sum, err := drawToken()
	if err != nil {
		return "", domain.ClaimRequest{}, false, err
	}
	f, err = session.Reserve(filepath.Join(d.cfg.Runs, id.String()), token)
	if err != nil {
		return "", domain.ClaimRequest{}, false, err
	}
	req = domain.ClaimRequest{Run: id.String(), TokenSHA256: sum, Offer: offer}
	if err := writeFile(f, fileClaim, claimFile{Instance: d.cfg.Instance, Request: req}); err != nil {
		d.discard(f)
		return "", domain.ClaimRequest{}, false, err
	}
	d.mu.Lock()
	d.runLocked(id.String()).folder = f
	d.mu.Unlock()
	return f, req, false, nil
}

// drawToken returns a secret and its SHA-256, both in hex. The hub gets to know the second only.
func drawToken() (token, sum string, err error) {
	b := make([]byte, 32)
	if _, err := rand.Read(b); err != nil {
		return "", "", fmt.Errorf("drawing a token: %w", err)
	}
	token = hex.EncodeToString(b)
	h := sha256.Sum256([]byte(token))
	return token, hex.EncodeToString(h[:]), nil
}

// offer says what can be served at this moment. States whose slots are taken here by sessions that the hub counts no
// longer are left out.
func (d *Conductor) offer(ctx context.Context) (domain.Offer, error) {
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	c, err := d.base(ctx)
	if err != nil {
		return domain.Offer{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	agents := d.agents
	used := map[string]int{}
	for _, r := range d.runs {
		if r.takesSlot() {
			used[r.spec.State]++
		}
	}
	o := domain.Offer{
		Serves: []string{}, Agents: slices.Sorted(maps.Keys(agents.Available)), Default: d.settings.Agent, Routes: agents.Routes,
	}
	if o.Default == "" {
		o.Default = agents.Default
	}
	for _, k := range c.skills.Serves() {
		state := k[strings.LastIndex(k, "/")+1:]
		if limit, ok := d.settings.Slots[state]; ok && used[state] >= limit {
			continue
		}
		o.Serves = append(o.Serves, k)
	}
	return o, nil
}
