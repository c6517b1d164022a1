package e2e

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/remote"
)

func (w *world) hubSocket() string { return filepath.Join(w.env.Runtime, w.env.Prefix, "hub.sock") }

// person is the hub's client of the test's user, who waits long for a hub that is away.
func (w *world) person() *remote.Client {
	w.t.Helper()
	c, err := remote.New(remote.Options{Hub: "unix://" + w.hubSocket(), User: "ada", Patience: patience})
	require.NoError(w.t, err)
	w.t.Cleanup(c.Close)
	return c
}

// stranger registers another conductor, which is no process: the test speaks for it.
func (w *world) stranger(instance string) (*remote.Client, domain.Conductor) {
	w.t.Helper()
	token := filepath.Join(w.env.Home, instance+".token")
	w.write(token, randomHex(32), 0o600)
	o := remote.Options{
		Hub: "unix://" + w.hubSocket(), User: "ada", TokenFile: token, MachineID: "ada.desk." + instance, Epoch: randomHex(8), Patience: patience,
	}
	c, err := remote.New(o)
	require.NoError(w.t, err)
	w.t.Cleanup(c.Close)
	reg, err := c.Register(w.t.Context(), domain.Registration{MachineID: o.MachineID, Epoch: o.Epoch, Project: "SHOP", MaxParallel: 1000})
	require.NoError(w.t, err)
	return c, reg.Conductor
}

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// everything is what a conductor offers that serves every state with the script agent.
func everything() domain.Offer {
	o := domain.Offer{Agents: []string{"script"}, Default: "script", Serves: []string{"/qualification"}}
	for _, w := range domain.Workflows() {
		for _, s := range w.States {
			if s.Claimable {
				o.Serves = append(o.Serves, domain.ServeKey(w.ID, s.Name))
			}
		}
	}
	return o
}

// hubDown stops the hub and its socket, so that nobody can start it by asking.
func (w *world) hubDown() {
	w.t.Helper()
	_, err := w.env.Systemctl("stop", w.names.HubSocket(), w.names.Hub())
	require.NoError(w.t, err)
	require.Zero(w.t, w.mainPID(w.names.Hub()))
}

func (w *world) hubUp() {
	w.t.Helper()
	out, err := w.env.Systemctl("start", w.names.HubSocket(), w.names.Hub())
	require.NoError(w.t, err, out)
}

// acked is what the hub said yes to.
type acked struct {
	mu       sync.Mutex
	titles   map[string]string // title -> identifier
	comments map[string]string // body -> ticket id
	states   map[string]string // ticket id -> state
	runs     map[string]string // run -> ticket id
	failed   map[string]bool   // runs that were ended
}

func TestAHubKilledInTheMiddleOfWritesLosesNothingThatItAcknowledged(t *testing.T) {
	t.Parallel()
	w := prepare(t, "exit 0\n", setting{})
	const rounds = 12
	a := acked{titles: map[string]string{}, comments: map[string]string{}, states: map[string]string{}, runs: map[string]string{}, failed: map[string]bool{}}
	var count atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var writers sync.WaitGroup
	failures := make(chan error, 8)
	loop := func(name string, fn func(n int) error) {
		writers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if err := fn(n); err != nil {
					failures <- fmt.Errorf("%s %d: %w", name, n, err)
					return
				}
				count.Add(1)
			}
		})
	}
	person := w.person()
	project, err := person.ProjectByKey(ctx, "SHOP")
	require.NoError(t, err)
	// Calls are made with the test's own context: one that is cut off in the middle would be acknowledged to nobody.
	calls := t.Context()
	for i := range 3 {
		loop("create, comment and move", func(n int) error {
			title := fmt.Sprintf("writer %d ticket %d", i, n)
			k, err := person.CreateTicket(calls, domain.TicketDraft{Project: project.ID, Title: title, Workflow: domain.Task})
			if err != nil {
				return err
			}
			a.mu.Lock()
			a.titles[title], a.states[k.ID] = k.Identifier, "todo"
			a.mu.Unlock()
			body := "about " + title
			if _, err := person.AddComment(calls, domain.Comment{Ticket: k.ID, Body: body}); err != nil {
				return err
			}
			a.mu.Lock()
			a.comments[body] = k.ID
			a.mu.Unlock()
			if n%2 == 0 {
				return nil // for the claimer
			}
			state := domain.StateHumanInput
			if _, err := person.PatchTicket(calls, k.ID, domain.TicketPatch{State: &state}); err != nil {
				return err
			}
			a.mu.Lock()
			a.states[k.ID] = state
			a.mu.Unlock()
			return nil
		})
	}
	conductor, self := w.stranger("other")
	loop("claim and take back", func(int) error {
		id, err := uuid.NewV7()
		if err != nil {
			return err
		}
		sum := sha256.Sum256([]byte(randomHex(32)))
		got, err := conductor.Claim(calls, domain.ClaimRequest{Run: id.String(), TokenSHA256: hex.EncodeToString(sum[:]), Offer: everything()})
		if err != nil || got == nil {
			return err
		}
		if got.Run.ID != id.String() {
			return fmt.Errorf("asked for run %s, got %s", id, got.Run.ID)
		}
		a.mu.Lock()
		a.runs[got.Run.ID] = got.Ticket.ID
		a.mu.Unlock()
		fate, err := conductor.Fail(calls, got.Run.ID, domain.Failure{Reason: domain.ReasonStopped, Hold: true})
		if err != nil {
			return err
		}
		if fate.State != domain.RunFailed {
			return fmt.Errorf("run %s is %s after its end", got.Run.ID, fate.State)
		}
		a.mu.Lock()
		a.failed[got.Run.ID] = true
		a.mu.Unlock()
		return nil
	})

	for range rounds {
		from := count.Load()
		w.wait("writes go on", func() bool {
			select {
			case err := <-failures:
				require.NoError(t, err)
			default:
			}
			return count.Load() >= from+15
		})
		w.killMain(w.names.Hub())
		_, _ = w.env.Systemctl("reset-failed", w.names.Hub()) // the test kills it more often than systemd would allow
	}
	stop()
	writers.Wait()
	close(failures)
	require.NoError(t, <-failures)

	w.hubDown()
	whole := w.gaia("hub", "verify")
	require.Contains(t, whole, "whole")
	_, _, code := w.try("gaia", "ticket", "list")
	require.Equal(t, 5, code, "the hub is down, and the log was read without it")
	w.hubUp()
	w.verifyLog()

	tickets, err := person.Tickets(calls, remote.Query{})
	require.NoError(t, err)
	titles, states := map[string]string{}, map[string]string{}
	for _, k := range tickets {
		require.NotContains(t, titles, k.Title, "a repeated write was done twice")
		titles[k.Title], states[k.ID] = k.Identifier, k.State
	}
	require.Equal(t, a.titles, titles)
	require.Equal(t, a.states, states)
	bodies := map[string]string{}
	comments := 0
	for _, k := range tickets {
		all, err := person.Comments(calls, k.ID)
		require.NoError(t, err)
		for _, m := range all {
			bodies[m.Body] = m.Ticket
			comments++
		}
	}
	require.Equal(t, a.comments, bodies)
	require.Len(t, a.comments, comments, "a repeated comment was written twice")
	runs, err := person.RunList(calls, remote.Query{Filter: map[string][]string{"conductor": {self.ID}}})
	require.NoError(t, err)
	require.NotEmpty(t, runs)
	got := map[string]string{}
	for _, r := range runs {
		got[r.ID] = r.Ticket
		require.Equal(t, a.failed[r.ID], r.State == domain.RunFailed)
	}
	require.Equal(t, a.runs, got)
	t.Logf("%d writes over %d kills", count.Load(), rounds)
}

// proxy stands between the conductor and the hub. While dropping is set, answers to claims are lost: the hub has heard
// the question, and whoever asked hears nothing.
type proxy struct {
	address  string
	dropping atomic.Bool
	dropped  atomic.Int64
}

func (w *world) proxy() *proxy {
	w.t.Helper()
	p := &proxy{}
	dir, err := os.MkdirTemp("", "g")
	require.NoError(w.t, err)
	w.t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "hub.sock")
	p.address = "unix://" + path
	l, err := net.Listen("unix", path)
	require.NoError(w.t, err)
	through := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", w.hubSocket())
	}}
	lost := errors.New("the answer is lost")
	forward := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "hub"}) },
		Transport:     through,
		FlushInterval: -1,
		ModifyResponse: func(r *http.Response) error {
			if p.dropping.Load() && strings.HasSuffix(r.Request.URL.Path, "/claim") && r.StatusCode == http.StatusOK {
				p.dropped.Add(1)
				return lost
			}
			return nil
		},
		ErrorHandler: func(out http.ResponseWriter, _ *http.Request, _ error) {
			if conn, _, err := out.(http.Hijacker).Hijack(); err == nil {
				conn.Close()
			}
		},
	}
	s := &http.Server{Handler: forward}
	go s.Serve(l)
	w.t.Cleanup(func() { s.Close(); through.CloseIdleConnections() })
	return p
}

func TestALostAnswerToAClaimLosesNothing(t *testing.T) {
	t.Parallel()
	for name, between := range map[string]func(*world, *proxy){
		"the conductor asks until its patience ends, and again": func(w *world, p *proxy) {
			// Or it finds its run among those that the hub names, and need not ask.
			w.wait("the answer is lost for longer than one call goes on", func() bool {
				return p.dropped.Load() >= 8 || w.show("SHOP-1").State == "done"
			})
		},
		"the conductor is killed before it hears": func(w *world, _ *proxy) { w.killMain(w.conductorUnit()) },
		"the hub is killed before it is heard":    func(w *world, _ *proxy) { w.killMain(w.names.Hub()) },
		"hub and conductor are killed": func(w *world, _ *proxy) {
			w.killMain(w.names.Hub())
			w.killMain(w.conductorUnit())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := prepare(t, "", setting{})
			w.setAgent(w.note("starts") + "echo x >x; git add x; git commit -qm x; exec gaia ticket move done\n")
			p := w.proxy()
			p.dropping.Store(true)
			machine := filepath.Join(w.env.GaiaHome, "machine.toml")
			data, err := os.ReadFile(machine)
			require.NoError(t, err)
			w.write(machine, fmt.Sprintf("hub = %q\n%s", p.address, data), 0o600)
			k := w.ticket("Once", "--workflow", "gaia_chore", "--state", "coding")
			w.gaia("conductor", "enable", "--now", w.instance)
			w.wait("the hub has claimed and nobody knows", func() bool { return p.dropped.Load() > 0 })
			v := w.show(k)
			require.Len(t, v.Runs, 1)
			require.Equal(t, domain.RunClaimed, v.Runs[0].State)
			between(w, p)
			p.dropping.Store(false)
			v = w.waitState(k, "done")
			require.Len(t, v.Runs, 1, "the same run was got again")
			require.Equal(t, domain.RunDone, v.Runs[0].State)
			require.Equal(t, []string{v.Runs[0].ID}, w.lines("starts"))
			w.verifyLog()
		})
	}
}

// shortHub has leases that are over while a test waits.
const shortHub = `[leases]
claim = "60s"
claim_max = "60s"
running = "8s"
parting = "9s"

[limits]
backoff_base = "200ms"
backoff_max = "1s"
offline_after = "6s"
finalise_grace = "10s"
`

// longestLease is the longest that shortHub gives to a run that is under way.
const longestLease = 9 * time.Second

// patientAgent waits for a file of its ticket, then does what that says.
func (w *world) patientAgent() string {
	return fmt.Sprintf(`
cd %q
echo $$ >"pid.$GAIA_TICKET"
echo work >"$GAIA_WORKTREE/work.txt"
until [ -e "go.$GAIA_TICKET" ]; do sleep 0.1; done
cd "$GAIA_WORKTREE"
. %q/"go.$GAIA_TICKET"
`, w.env.Home, w.env.Home)
}

// tell lets a patient agent go on with a piece of shell.
func (w *world) tell(identifier, script string) {
	w.t.Helper()
	path := filepath.Join(w.env.Home, "go."+identifier)
	w.write(path+".new", script+"\n", 0o644)
	require.NoError(w.t, os.Rename(path+".new", path))
}

// finish is what a patient agent does to end its ticket.
const finish = `git add .; git diff --cached --quiet || git commit -qm Work; exec gaia ticket move done`

// chore creates a ticket that one run takes to its end.
func (w *world) chore(title string, flags ...string) string {
	w.t.Helper()
	return w.ticket(title, append([]string{"--workflow", "gaia_chore", "--state", "coding"}, flags...)...)
}

// agentPID waits for the process of a patient agent.
func (w *world) agentPID(identifier string) int {
	w.t.Helper()
	pid := 0
	w.wait("the agent of "+identifier+" is at work", func() bool {
		if l := w.lines("pid." + identifier); len(l) == 1 {
			pid, _ = strconv.Atoi(l[0])
		}
		return pid > 0
	})
	return pid
}

func TestAHubThatIsAwayForLongerThanEveryLease(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{hub: shortHub})
	w.setAgent(w.patientAgent())
	w.gaia("conductor", "enable", "--now", w.instance)
	stays, moves, dies := w.chore("Works on"), w.chore("Moves meanwhile"), w.chore("Dies meanwhile")
	runs, pids := map[string]domain.Run{}, map[string]int{}
	for _, k := range []string{stays, moves, dies} {
		runs[k], pids[k] = w.waitRunning(k), w.agentPID(k)
	}
	conductor := w.mainPID(w.conductorUnit())
	w.hubDown()
	away := time.Now()

	w.tell(moves, fmt.Sprintf(`git add .; git commit -qm Work; gaia ticket move done; echo $? >%q; sleep 600`, filepath.Join(w.env.Home, "moved")))
	w.tell(dies, `exit 3`)
	w.wait("the conductor says that the hub is away", func() bool {
		s := w.property(w.conductorUnit(), "StatusText")
		return strings.Contains(s, "hub ") && !strings.Contains(s, "hub ok") && !strings.Contains(s, "connecting")
	})
	w.wait("an agent has died", func() bool { return !alive(pids[dies]) })
	w.wait("every lease is over", func() bool { return time.Since(away) > longestLease+3*time.Second })

	require.Equal(t, conductor, w.mainPID(w.conductorUnit()), "the conductor is the same process")
	require.Equal(t, "0", w.property(w.conductorUnit(), "NRestarts"))
	require.Contains(t, w.property(w.conductorUnit(), "StatusText"), "unconfirmed")
	require.True(t, alive(pids[stays]))
	require.True(t, alive(pids[moves]))
	require.Empty(t, w.lines("moved"), "the agent's move waits")

	// What the hub does not know yet is kept over a restart of the conductor.
	_, err := w.env.Systemctl("restart", w.conductorUnit())
	require.NoError(t, err)
	require.NotEqual(t, conductor, w.mainPID(w.conductorUnit()))
	w.wait("the conductor is up without a hub", func() bool { return w.property(w.conductorUnit(), "ActiveState") == "active" })

	w.hubUp()
	v := w.waitFor(dies, "hears how its run ended", func(v view) bool { return v.Runs[0].State.Ended() })
	require.Equal(t, domain.RunFailed, v.Runs[0].State)
	require.Equal(t, domain.ReasonAgentExit, v.Runs[0].EndReason)
	v = w.waitState(moves, "done")
	require.Len(t, v.Runs, 1)
	require.Equal(t, domain.RunDone, v.Runs[0].State)
	w.wait("the hub has been up for more than a lease", func() bool {
		return v.Runs[0].EndedAt.Add(2 * longestLease).Before(time.Now())
	})
	v = w.show(stays)
	require.Len(t, v.Runs, 1)
	require.Equal(t, domain.RunRunning, v.Runs[0].State)
	require.True(t, alive(pids[stays]), "the same agent is still at work")
	w.tell(stays, finish)
	v = w.waitState(stays, "done")
	require.Equal(t, runs[stays].ID, v.Runs[0].ID)
	require.Len(t, v.Runs, 1)
	w.verifyLog()
}

func TestNothingExpiresBeforeTheHubHasBeenUpForALease(t *testing.T) {
	t.Parallel()
	w := prepare(t, "", setting{hub: shortHub})
	w.setAgent(w.patientAgent())
	w.gaia("conductor", "enable", "--now", w.instance)
	k := w.chore("Left alone")
	first := w.waitRunning(k)
	pid := w.agentPID(k)
	w.hubDown()
	// The conductor disappears without a word, as its machine would.
	_, err := w.env.Systemctl("mask", "--runtime", w.conductorUnit())
	require.NoError(t, err)
	_, err = w.env.Systemctl("kill", "--signal=SIGKILL", w.conductorUnit())
	require.NoError(t, err)
	w.wait("the conductor is gone", func() bool { return w.mainPID(w.conductorUnit()) == 0 })
	_, _ = w.env.Systemctl("stop", w.conductorUnit())
	away := time.Now()
	w.wait("every lease is over", func() bool { return time.Since(away) > longestLease+2*time.Second })

	up := time.Now()
	w.hubUp()
	v := w.show(k)
	require.Equal(t, domain.RunRunning, v.Runs[0].State, "the hub has only just come up")
	v = w.waitFor(k, "expires", func(v view) bool { return v.Runs[0].State.Ended() })
	require.Equal(t, domain.RunExpired, v.Runs[0].State)
	require.GreaterOrEqual(t, v.Runs[0].EndedAt.Sub(up), 8*time.Second-10*time.Millisecond, "a whole lease with the hub up")
	require.True(t, alive(pid), "nobody has told the agent")

	_, err = w.env.Systemctl("unmask", "--runtime", w.conductorUnit())
	require.NoError(t, err)
	_, err = w.env.Systemctl("start", w.conductorUnit())
	require.NoError(t, err)
	w.wait("the expired run's session is ended", func() bool { return !alive(pid) })
	w.tell(k, finish)
	v = w.waitState(k, "done")
	require.Len(t, v.Runs, 2)
	require.Equal(t, first.ID, v.Runs[0].ID)
	require.Equal(t, domain.RunDone, v.Runs[1].State)
	require.Equal(t, "work", w.git("show", "gaia/"+k+":work.txt"), "the second agent found the first one's work")
	w.verifyLog()
}
