package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	_ "modernc.org/sqlite" // the hub's driver, for the floor

	"gaia/domain"
	"gaia/hub/store"
	"gaia/hub/store/sqlite"
	"gaia/internal/usermanager"
	"gaia/remote"
)

// hubWorld is a hub of its own process without a conductor's.
type hubWorld struct {
	env     usermanager.Env
	address string
	project domain.Project
	stop    func() error
}

// newHub starts a hub with so many tickets of a task that waits to be done.
func newHub(ctx context.Context, tickets int) (_ *hubWorld, err error) {
	env, err := usermanager.NewEnv()
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(env.Runtime, env.Prefix, "hub.sock")
	h := &hubWorld{env: env, address: "unix://" + socket, project: domain.Project{ID: uuid.NewString(), Key: "SHOP", Slug: "shop", Name: "SHOP", CreatedAt: domain.At(time.Now())}}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	if err := h.fill(ctx, tickets); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the socket: %w", err)
	}
	cmd := env.CommandContext(ctx, "gaia-hub")
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the hub: %w", err)
	}
	h.stop = func() error {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			return err
		}
		return cmd.Wait()
	}
	return h, nil
}

// fill writes the database before the hub opens it: through the hub it would take as many synced transactions.
func (h *hubWorld) fill(ctx context.Context, tickets int) error {
	file := filepath.Join(h.env.GaiaHome, "state", "hub.db")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("make the hub's folder: %w", err)
	}
	if err := os.WriteFile(filepath.Join(h.env.GaiaHome, "machine.toml"), []byte("user_id = \"ada\"\nhost_id = \"desk\"\n"), 0o600); err != nil {
		return fmt.Errorf("write machine.toml: %w", err)
	}
	db, err := sqlite.Open(ctx, file)
	if err != nil {
		return err
	}
	const batch = 5000
	err = db.Update(ctx, func(tx store.Tx) error { return tx.PutProject(h.project) })
	for first := 0; first < tickets && err == nil; first += batch {
		err = db.Update(ctx, func(tx store.Tx) error {
			for i := first; i < min(first+batch, tickets); i++ {
				n, err := tx.NextTicketNumber(h.project.ID)
				if err != nil {
					return err
				}
				if err := tx.PutTicket(domain.Ticket{
					ID: uuid.NewString(), Identifier: fmt.Sprintf("SHOP-%d", n), Project: h.project.ID, Workflow: domain.Task, State: "working", Title: "Sell more",
					CreatedAt: domain.At(time.Now()), BlockedBy: []string{}, Labels: []string{}, Links: []domain.Link{},
				}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return errors.Join(err, db.Checkpoint(ctx), db.Close())
}

// Close ends the hub and removes what it had.
func (h *hubWorld) Close() error {
	var err error
	if h.stop != nil {
		err = h.stop()
	}
	return errors.Join(err, h.env.Close())
}

// claimer is a conductor that claims and has no agents.
type claimer struct {
	h *hubWorld
	c *remote.Client
}

func (h *hubWorld) client(user, machine, epoch string) (c *remote.Client, file, sum string, err error) {
	token := rand.Text()
	hash := sha256.Sum256([]byte(token))
	if user == "" {
		file = filepath.Join(h.env.Home, rand.Text())
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			return nil, "", "", fmt.Errorf("write a token: %w", err)
		}
	}
	c, err = remote.New(remote.Options{Hub: h.address, TokenFile: file, User: user, MachineID: machine, Epoch: epoch, Log: zerolog.Nop()})
	return c, file, hex.EncodeToString(hash[:]), err
}

func (h *hubWorld) claimer(ctx context.Context, n int) (claimer, error) {
	machine, epoch := fmt.Sprintf("ada.desk.shop%d", n), rand.Text()
	c, _, _, err := h.client("", machine, epoch)
	if err != nil {
		return claimer{}, err
	}
	_, err = c.Register(ctx, domain.Registration{MachineID: machine, Epoch: epoch, Project: "SHOP", MaxParallel: 3, WorkspaceRoot: "/srv/trees", Version: "bench"})
	return claimer{h, c}, err
}

// claim takes a ticket, and returns the run with how long that took.
func (c claimer) claim(ctx context.Context) (*domain.Assignment, *remote.Client, time.Duration, error) {
	run, _, sum, err := c.h.client("", "", "")
	if err != nil {
		return nil, nil, 0, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, nil, 0, fmt.Errorf("draw a run's id: %w", err)
	}
	offer := domain.Offer{Serves: []string{domain.ServeKey(domain.Task, "working")}, Agents: []string{"script"}, Default: "script"}
	begun := time.Now()
	a, err := c.c.Claim(ctx, domain.ClaimRequest{Run: id.String(), TokenSHA256: sum, Offer: offer})
	took := time.Since(begun)
	if err == nil && a == nil {
		err = errors.New("no ticket is left to claim")
	}
	return a, run, took, err
}

// finish starts a claimed run and takes it to its end: the run's own last word and the conductor's.
func (c claimer) finish(ctx context.Context, a *domain.Assignment, run *remote.Client) error {
	defer run.Close()
	if _, err := c.c.Start(ctx, a.Run.ID, domain.StartReport{WorktreePath: "/srv/trees/" + a.Ticket.Identifier, Branch: "gaia/" + a.Ticket.Identifier,
		BaseSHA: "0123456789012345678901234567890123456789", Unit: "bench.service", Agent: "script", Permissions: "edits"}); err != nil {
		return err
	}
	done := "done"
	if _, err := run.PatchTicket(ctx, a.Ticket.ID, domain.TicketPatch{State: &done}); err != nil {
		return err
	}
	return c.c.Finalise(ctx, a.Run.ID, domain.FinaliseReport{})
}

// claims counts tickets that are claimed, started, done and finalised in a second, which are four durable transactions
// each, against the durable transactions of the same driver with one writer.
func claims(ctx context.Context) ([]result, error) {
	var out []result
	for _, claimers := range []int{16, 1} {
		value, floor, err := claimRate(ctx, claimers)
		if err != nil {
			return out, err
		}
		ratio := value / floor
		out = append(out, result{Name: fmt.Sprintf("claims_%d", claimers), Value: value, Unit: "tickets/s", Floor: &floor, Ratio: &ratio, Better: higher, spread: "floor in transactions/s; 4 a ticket"})
	}
	return out, nil
}

// measured is how long a rate is taken for.
const measured = 5 * time.Second

func claimRate(ctx context.Context, claimers int) (rate, floor float64, err error) {
	h, err := newHub(ctx, 20_000)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	all := make([]claimer, claimers)
	for i := range all {
		if all[i], err = h.claimer(ctx, i); err != nil {
			return 0, 0, err
		}
	}
	before, err := h.durable(ctx)
	if err != nil {
		return 0, 0, err
	}
	var (
		workers sync.WaitGroup
		done    atomic.Int64
		mu      sync.Mutex
		failed  error
	)
	begun := time.Now()
	for _, c := range all {
		workers.Go(func() {
			for time.Since(begun) < measured {
				a, run, _, err := c.claim(ctx)
				if err == nil {
					err = c.finish(ctx, a, run)
				}
				if err != nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
					return
				}
				done.Add(1)
			}
		})
	}
	workers.Wait()
	took := time.Since(begun)
	after, err := h.durable(ctx)
	return float64(done.Load()) / took.Seconds(), (before + after) / 2, errors.Join(failed, err)
}

// durable returns how many transactions of one row a second the driver makes durable on the same disk.
func (h *hubWorld) durable(ctx context.Context) (_ float64, err error) {
	u := url.URL{Scheme: "file", Path: filepath.Join(h.env.Home, rand.Text()+".db"),
		RawQuery: url.Values{"_journal_mode": {"WAL"}, "_synchronous": {"FULL"}, "_txlock": {"immediate"}}.Encode()}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return 0, fmt.Errorf("open a database for the floor: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(ctx, "CREATE TABLE t (id INTEGER PRIMARY KEY, doc TEXT)"); err != nil {
		return 0, fmt.Errorf("prepare the floor: %w", err)
	}
	n, begun := 0, time.Now()
	for ; time.Since(begun) < measured/2; n++ {
		if _, err := db.ExecContext(ctx, "INSERT INTO t (doc) VALUES (?)", "a row"); err != nil {
			return 0, fmt.Errorf("take the floor: %w", err)
		}
	}
	return float64(n) / time.Since(begun).Seconds(), nil
}
