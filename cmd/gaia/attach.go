package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"gaia/domain"
	"gaia/internal/render"
	"gaia/remote"
	"gaia/session"
	"gaia/tmux"
)

func (a *app) attachCommand() *cobra.Command {
	var readonly bool
	cmd := &cobra.Command{
		Use:   "attach [TICKET]",
		Short: "Attach to the tmux session in which an agent works",
		Long: `Attach to the tmux session in which an agent works on a ticket. Detach with Ctrl-b d: the agent goes on. It also works
from inside tmux. Without a ticket it asks which of the live runs you mean.`,
		Example: `  gaia attach SHOP-7
  gaia attach -r SHOP-7       # look, do not touch`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeFirst(a.liveTicketNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if len(args) == 1 {
				if server, ok := a.sessionHere(args[0]); ok {
					a.waiting.stop()
					return a.become(server, readonly)
				}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			var r domain.Run
			if len(args) == 1 {
				r, err = a.liveRun(ctx, c, args[0])
			} else {
				r, err = a.pickRun(ctx, c)
			}
			if err != nil {
				return err
			}
			return a.attach(ctx, c, r, readonly)
		},
	}
	cmd.Flags().BoolVarP(&readonly, "read-only", "r", false, "watch only")
	return cmd
}

// attachAtOnce becomes tmux where the arguments are those of a plain attach to a session of this machine. People wait for
// the screen, and the command tree alone takes as long to set up as tmux to draw it. Everything else is the command's.
func (a *app) attachAtOnce(args []string) {
	if len(args) < 2 || args[0] != "attach" {
		return
	}
	readonly := len(args) == 3 && (args[1] == "-r" || args[1] == "--read-only")
	ticket := args[len(args)-1]
	if len(args) > 2 && !readonly || strings.HasPrefix(ticket, "-") {
		return
	}
	if server, ok := a.sessionHere(ticket); ok {
		_ = a.become(server, readonly) // returns on an error only, which the command says
	}
}

// sessionHere returns the session of a ticket that is up on this machine: the run folders know it, so that nobody waits for a
// hub to attach, or needs one.
func (a *app) sessionHere(identifier string) (tmux.Server, bool) {
	h, err := a.home()
	if err != nil || h.NeedRuntime() != nil {
		return tmux.Server{}, false
	}
	hub, err := a.address()
	if err != nil {
		return tmux.Server{}, false
	}
	folders, err := session.Folders(h.RunsDir())
	if err != nil {
		return tmux.Server{}, false
	}
	for _, f := range slices.Backward(folders) { // the newest run first
		socket := h.RunSocket(f.Run())
		if _, err := os.Lstat(socket); err != nil {
			continue
		}
		if spec, err := f.Load(); err != nil || spec.Identifier != identifier || spec.Hub != hub {
			continue
		}
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return tmux.Server{}, false // its server has died: what became of the run is the hub's to say
		}
		conn.Close()
		return tmux.Server{Socket: socket}, true
	}
	return tmux.Server{}, false
}

// liveRun returns a ticket's live run or, where that has ended, the last one: its session may still be there.
func (a *app) liveRun(ctx context.Context, c *remote.Client, ref string) (domain.Run, error) {
	k, err := c.Ticket(ctx, ref)
	if err != nil {
		return domain.Run{}, err
	}
	runs, err := c.RunList(ctx, remote.Query{Filter: map[string][]string{"ticket": {k.ID}}, Sort: []string{"-number"}, Limit: 1})
	if err != nil {
		return domain.Run{}, err
	}
	if len(runs) == 0 {
		return domain.Run{}, fmt.Errorf("no agent has worked on %s yet (gaia why %s): %w", k.Identifier, render.Command(k.Identifier), domain.ErrNotFound)
	}
	return runs[0], nil
}

func (a *app) pickRun(ctx context.Context, c *remote.Client) (domain.Run, error) {
	all, err := c.RunList(ctx, remote.Query{Filter: liveRuns(), Sort: []string{"claimed_at"}})
	if err != nil {
		return domain.Run{}, err
	}
	var here []domain.Run
	for _, r := range all {
		if _, err := a.server(r); err == nil {
			here = append(here, r)
		}
	}
	switch {
	case len(here) == 0:
		return domain.Run{}, fmt.Errorf("no agent is at work on this machine (gaia run list): %w", domain.ErrNotFound)
	case len(here) == 1:
		return here[0], nil
	case !a.interactive():
		return domain.Run{}, usagef("several agents are at work: give a ticket")
	}
	for i, r := range here {
		k, err := c.Ticket(ctx, r.Ticket)
		if err != nil {
			return domain.Run{}, err
		}
		a.say("%3d  %s  %s  %s", i+1, k.Identifier, r.StateAtStart, render.Fit(k.Title, 60))
	}
	answer, err := a.ask("Which one", "1")
	if err != nil {
		return domain.Run{}, err
	}
	i, err := strconv.Atoi(answer)
	if err != nil || i < 1 || i > len(here) {
		return domain.Run{}, usagef("%q is none of 1 to %d", answer, len(here))
	}
	return here[i-1], nil
}

// attach shows a run's session, or says why it cannot.
func (a *app) attach(ctx context.Context, c *remote.Client, r domain.Run, readonly bool) error {
	server, err := a.server(r)
	if err != nil {
		if r.State.Ended() {
			return fmt.Errorf("run %d has ended (%s) and its session is closed; gaia run output %d shows what it did", r.Number, r.State, r.Number)
		}
		if con, cerr := c.Conductors(ctx, remote.Query{Filter: map[string][]string{"id": {r.Conductor}}}); cerr == nil && len(con) == 1 {
			return fmt.Errorf("run %d works on %s, and its session is not up on this machine (yet)", r.Number, con[0].MachineID)
		}
		return err
	}
	a.waiting.stop()
	return a.become(server, readonly)
}

// become replaces this process with tmux.
func (a *app) become(server tmux.Server, readonly bool) error {
	argv := server.AttachArgs(readonly)
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return usagef("tmux is not installed, or not in PATH: %w", err)
	}
	// Inside tmux the client would refuse to nest; this is another server, so nesting is what is wanted.
	var env []string
	for _, kv := range syscall.Environ() {
		if !strings.HasPrefix(kv, "TMUX=") && !strings.HasPrefix(kv, "TMUX_PANE=") {
			env = append(env, kv)
		}
	}
	if a.getenv("TERM") == "" {
		env = append(env, "TERM=xterm-256color")
	}
	if err := syscall.Exec(path, argv, env); err != nil {
		return fmt.Errorf("start tmux: %w", err)
	}
	return nil
}
