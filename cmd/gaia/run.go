package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gaia/domain"
	"gaia/internal/render"
	"gaia/remote"
	"gaia/session"
	"gaia/session/host"
	"gaia/tmux"
)

func (a *app) runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "run",
		Aliases: []string{"runs"},
		Short:   "See and stop runs",
		Long: `See and stop runs. A run is one attempt of an agent at one state of a ticket.

A run is named by its number, with the project's key where the hub has several projects (SHOP/12), or by its id.`,
	}
	cmd.AddCommand(a.runList(), a.runShow(), a.runLogs(), a.runOutput(), a.runStop(), a.runFootprint())
	return cmd
}

func (a *app) runList() *cobra.Command {
	var project, ticket string
	var live bool
	var limit int
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List runs, the newest first",
		Example: `  gaia run list --live --watch
  gaia run list --ticket SHOP-7 -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return usagef("--limit %d is less than 0", limit)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			return a.show(cmd.Context(), c, func(ctx context.Context) (render.Value, error) {
				q := remote.Query{Filter: map[string][]string{}, Sort: []string{"-claimed_at"}, Limit: limit}
				if project != "" {
					p, err := c.ProjectByKey(ctx, project)
					if err != nil {
						return render.Value{}, err
					}
					q.Filter["project"] = []string{p.ID}
				}
				if ticket != "" {
					k, err := c.Ticket(ctx, ticket)
					if err != nil {
						return render.Value{}, err
					}
					q.Filter["ticket"] = []string{k.ID}
				}
				if live {
					q.Filter["state"] = liveRuns()["state"]
				}
				runs, err := c.RunList(ctx, q)
				if err != nil {
					return render.Value{}, err
				}
				none := "no runs"
				if live {
					none = "no run is live"
				}
				return a.runsValue(ctx, c, runs, none)
			})
		},
	}
	f := cmd.Flags()
	f.StringVarP(&project, "project", "p", "", "only of the project with this key")
	f.StringVar(&ticket, "ticket", "", "only of this ticket")
	f.BoolVar(&live, "live", false, "only those that hold a ticket now")
	f.IntVar(&limit, "limit", 50, "at most so many; 0 for all")
	a.completeFlags(cmd, map[string]completer{"project": a.projectNames, "ticket": a.ticketNames})
	a.watchFlag(cmd)
	return cmd
}

// runName is how a person names a run.
func runName(n names, r domain.Run) string {
	return n.projects[r.Project].Key + "/" + strconv.Itoa(r.Number)
}

// runsValue prints runs; none is what people are told where there are none.
func (a *app) runsValue(ctx context.Context, c *remote.Client, runs []domain.Run, none string) (render.Value, error) {
	n, err := readNames(ctx, c)
	if err != nil {
		return render.Value{}, err
	}
	ids := make([]string, len(runs))
	for i, r := range runs {
		ids[i] = r.Ticket
	}
	tickets, err := ticketsByID(ctx, c, ids)
	if err != nil {
		return render.Value{}, err
	}
	v := render.Value{Data: runs}
	rows := make([][]string, len(runs))
	now := time.Now()
	for i, r := range runs {
		v.Names = append(v.Names, runName(n, r))
		rows[i] = []string{
			runName(n, r), tickets[r.Ticket].Identifier, r.StateAtStart, string(r.State), activity(r), cmpOr(string(r.Agent), "-"),
			n.conductors[r.Conductor], strconv.Itoa(r.Attempt), render.Age(now, r.ClaimedAt.Time), cmpOr(string(r.EndReason), "-"),
		}
	}
	v.Table = func(w io.Writer) error {
		if len(runs) == 0 {
			_, err := fmt.Fprintln(w, none)
			return err
		}
		return render.Rows(w, a.width(0), []string{"RUN", "TICKET", "FOR", "STATE", "ACTIVITY", "AGENT", "CONDUCTOR", "ATTEMPT", "AGE", "REASON"}, rows)
	}
	return v, nil
}

func activity(r domain.Run) string {
	if !r.State.Live() || r.Activity == nil {
		return "-"
	}
	return r.Activity.Status
}

// findRun returns the run that a person means: 12, SHOP/12 or an id.
func (a *app) findRun(ctx context.Context, c *remote.Client, ref string) (domain.Run, error) {
	key, number, found := strings.Cut(ref, "/")
	if !found {
		key, number = "", ref
	}
	n, err := strconv.Atoi(number)
	if err != nil {
		return c.Run(ctx, ref)
	}
	if key == "" {
		if _, co, err := a.checkout(); err == nil {
			key = co.Project
		}
	}
	if key != "" {
		return c.Run(ctx, key+"/"+strconv.Itoa(n))
	}
	runs, err := c.RunList(ctx, remote.Query{Filter: map[string][]string{"number": {strconv.Itoa(n)}}, Limit: 2})
	switch {
	case err != nil:
		return domain.Run{}, err
	case len(runs) == 0:
		return domain.Run{}, fmt.Errorf("there is no run %d (gaia run list): %w", n, domain.ErrNotFound)
	case len(runs) > 1:
		return domain.Run{}, usagef("several projects have a run %d: give it as KEY/%d (gaia run list)", n, n)
	}
	return runs[0], nil
}

// runArg returns the run that is meant; inside a run its own.
func (a *app) runArg(ctx context.Context, c *remote.Client, args []string) (domain.Run, error) {
	if len(args) == 1 {
		return a.findRun(ctx, c, args[0])
	}
	if own := a.getenv("GAIA_RUN"); own != "" {
		return c.Run(ctx, own)
	}
	return domain.Run{}, usagef("which run? Give its number (gaia run list)")
}

func (a *app) runShow() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show [RUN]",
		Short: "Show a run, and how to attach to it with plain tmux",
		Example: `  gaia run show 12
  gaia run show SHOP/12 -o yaml`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeFirst(a.runNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			return a.show(cmd.Context(), c, func(ctx context.Context) (render.Value, error) {
				r, err := a.runArg(ctx, c, args)
				if err != nil {
					return render.Value{}, err
				}
				return a.runView(ctx, c, r)
			})
		},
	}
	a.watchFlag(cmd)
	return cmd
}

func (a *app) runView(ctx context.Context, c *remote.Client, r domain.Run) (render.Value, error) {
	n, err := readNames(ctx, c)
	if err != nil {
		return render.Value{}, err
	}
	k, err := c.Ticket(ctx, r.Ticket)
	if err != nil {
		return render.Value{}, err
	}
	attach := ""
	if server, err := a.server(r); err == nil {
		attach = render.Command(server.AttachArgs(false)...)
	}
	return render.Value{Data: r, Names: []string{runName(n, r)}, Table: func(w io.Writer) error {
		var b bytes.Buffer
		fmt.Fprintf(&b, "run %s  %s\n\n", runName(n, r), r.State)
		line := func(name, value string) {
			if value != "" {
				fmt.Fprintf(&b, "%-12s %s\n", name+":", render.Clean(value))
			}
		}
		line("ticket", k.Identifier+"  "+k.Title)
		line("for", r.StateAtStart)
		line("attempt", strconv.Itoa(r.Attempt))
		line("conductor", n.conductors[r.Conductor])
		line("agent", string(r.Agent))
		line("permissions", string(r.Permissions))
		line("activity", strings.Trim(activity(r), "-"))
		line("claimed", r.ClaimedAt.String())
		line("started", r.StartedAt.String())
		if r.State.Live() {
			line("lease until", r.ClaimExpiresAt.String())
		}
		line("ended", r.EndedAt.String())
		line("reason", string(r.EndReason))
		line("note", r.EndNote)
		line("finalised", r.FinalizedAt.String())
		line("worktree", string(r.WorktreePath))
		line("branch", string(r.Branch))
		line("base", string(r.BaseSHA))
		line("end", string(r.EndSHA))
		line("unit", string(r.Unit))
		line("folder", string(r.Log))
		line("attach", attach)
		if !r.State.Live() {
			line("output", "gaia run output "+runName(n, r))
		}
		for _, f := range footprintLines(r.Footprint) {
			line(f[0], f[1])
		}
		_, err := b.WriteTo(w)
		return err
	}}, nil
}

// server returns the tmux server of a run, or an error where that is not on this machine or has ended.
func (a *app) server(r domain.Run) (tmux.Server, error) {
	h, err := a.home()
	if err != nil {
		return tmux.Server{}, err
	}
	if err := h.NeedRuntime(); err != nil {
		return tmux.Server{}, usageError{err}
	}
	socket := h.RunSocket(r.ID)
	if _, err := os.Stat(socket); err != nil {
		return tmux.Server{}, fmt.Errorf("run %d has no session on this machine: %w", r.Number, domain.ErrNotFound)
	}
	return tmux.Server{Socket: socket}, nil
}

func footprintLines(f *domain.Footprint) [][2]string {
	if f == nil {
		return nil
	}
	var out [][2]string
	add := func(name string, set bool, format string, args ...any) {
		if set {
			out = append(out, [2]string{name, fmt.Sprintf(format, args...)})
		}
	}
	add("model", f.Model != "", "%s", f.Model)
	add("tokens", f.TokensIn+f.TokensOut > 0, "%d in, %d out, %d cache read, %d cache write", f.TokensIn, f.TokensOut, f.TokensCacheRead, f.TokensCacheWrite)
	add("turns", f.Turns > 0, "%d", f.Turns)
	add("cost", f.Cost > 0, "$%.4f", f.Cost)
	add("wall time", f.WallMS > 0, "%s", (time.Duration(f.WallMS) * time.Millisecond).Round(time.Millisecond))
	add("CPU time", f.CPUMS > 0, "%s", time.Duration(f.CPUMS)*time.Millisecond)
	add("memory peak", f.MemoryPeak > 0, "%s", render.Bytes(f.MemoryPeak))
	add("I/O", f.IORead+f.IOWrite > 0, "%s read, %s written", render.Bytes(f.IORead), render.Bytes(f.IOWrite))
	return out
}

func (a *app) runOutput() *cobra.Command {
	var follow, screen, raw bool
	cmd := &cobra.Command{
		Use:   "output [RUN]",
		Short: "Print what a run's agent has shown in its terminal",
		Long: `Print what a run's agent has shown in its terminal, or with --screen its last screen. It is printed as text, in colour
on a terminal; --raw prints every byte as it was, cursor movements included. If a hook failed, so that no agent ran, what
the hook printed comes last.

The output lies in the run folder of the machine that hosted the run. What Gaia itself and systemd tell of the run is
in the journal: gaia run logs`,
		Example: `  gaia run output 12 --follow
  gaia run output 12 --screen`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeFirst(a.runNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if screen && (raw || follow) {
				return usagef("--screen goes neither with --raw nor with --follow")
			}
			ctx := cmd.Context()
			c, err := a.client()
			if err != nil {
				return err
			}
			r, err := a.runArg(ctx, c, args)
			if err != nil {
				return err
			}
			h, err := a.home()
			if err != nil {
				return err
			}
			folder := session.Folder(h.RunDir(r.ID))
			if _, err := os.Stat(string(folder)); err != nil {
				return fmt.Errorf("the folder of run %d is not on this machine: %w", r.Number, domain.ErrNotFound)
			}
			if screen {
				text, err := a.lastScreen(ctx, folder, r)
				if err != nil {
					return err
				}
				a.waiting.stop()
				_, err = io.WriteString(a.out, strings.TrimRight(render.CleanText(text), "\n")+"\n")
				return err
			}
			a.waiting.stop()
			out := a.out
			if !raw {
				out = render.Plain(out, a.colour())
			}
			if err := copyLog(ctx, c, out, folder, r, follow); err != nil {
				return err
			}
			return copyHook(out, folder)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the run has ended")
	cmd.Flags().BoolVar(&screen, "screen", false, "the last screen instead of all output")
	cmd.Flags().BoolVar(&raw, "raw", false, "every byte as it was")
	return cmd
}

// lastScreen is the screen as it is now, or as it was when the session ended.
func (a *app) lastScreen(ctx context.Context, folder session.Folder, r domain.Run) (string, error) {
	if server, err := a.server(r); err == nil {
		if panes, err := server.Panes(ctx); err == nil && len(panes) > 0 {
			if text, err := server.Capture(ctx, panes[0].ID); err == nil {
				return text, nil
			}
		}
	}
	text, err := folder.Screen()
	if err != nil {
		return "", fmt.Errorf("run %d has left no screen: %w", r.Number, err)
	}
	return text, nil
}

// followBeat is how often a followed run is looked up at the hub.
const followBeat = 3 * time.Second

// copyLog copies the output of a run.
func copyLog(ctx context.Context, c *remote.Client, out io.Writer, folder session.Folder, r domain.Run, follow bool) error {
	f, err := os.Open(folder.Path(session.FileOutput))
	if err != nil {
		return fmt.Errorf("run %d has no output yet: %w", r.Number, err)
	}
	defer f.Close()
	asked := time.Now()
	for {
		if _, err := io.Copy(out, f); err != nil {
			return fmt.Errorf("copy the output of run %d: %w", r.Number, err)
		}
		if !follow || r.State.Ended() {
			return nil
		}
		pause(ctx, 300*time.Millisecond)
		if ctx.Err() != nil {
			return nil
		}
		// The host's record says at once that the session is over; a host that was killed leaves none, and then the hub knows.
		if _, err := folder.Record(); err == nil {
			r.State = domain.RunDone // one more copy, and no more
		} else if time.Since(asked) > followBeat {
			asked = time.Now()
			if now, err := c.Run(ctx, r.ID); err == nil {
				r = now
			}
		}
	}
}

// copyHook copies the output of the hook whose failure has ended the run, if one did.
func copyHook(out io.Writer, folder session.Folder) error {
	rec, err := folder.Record()
	if err != nil || rec.Cause != session.CauseHook || rec.Hook != domain.HookAfterCreate && rec.Hook != domain.HookBeforeRun {
		return nil // it goes on, or the agent had its turn
	}
	says := "The hook " + rec.Hook + " failed. It printed"
	var parts []io.Reader
	last := make([]byte, 1)
	older, newer := host.HookLogs(rec.Hook)
	for _, name := range []string{older, newer} {
		printed, err := os.Open(folder.Path(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		size := int64(0)
		if err == nil {
			defer printed.Close()
			size, err = printed.Seek(0, io.SeekEnd)
		}
		if err == nil && size > 0 {
			parts = append(parts, io.NewSectionReader(printed, 0, size))
			_, err = printed.ReadAt(last, size-1)
		}
		if err != nil {
			return fmt.Errorf("read the output of the hook %s: %w", rec.Hook, err)
		}
	}
	if len(parts) == 0 {
		_, err := io.WriteString(out, says+" nothing.\n")
		return err
	}
	parts = slices.Insert(parts, 0, io.Reader(strings.NewReader(says+":\n")))
	parts = append(parts, strings.NewReader(strings.TrimPrefix("\n", string(last))))
	_, err = io.Copy(out, io.MultiReader(parts...)) // it may be much
	return err
}

func (a *app) runStop() *cobra.Command {
	var retry bool
	var note string
	cmd := &cobra.Command{
		Use:   "stop RUN",
		Short: "Stop a run and hold its ticket",
		Long: `Stop a run. Its session is ended, its tree is kept. The ticket is held until gaia ticket resume, or with --retry may be
claimed again at once.`,
		Example: `  gaia run stop 12 --note "wrong direction"
  gaia run stop SHOP/12 --retry`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeFirst(a.liveRunNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			c, err := a.client()
			if err != nil {
				return err
			}
			r, err := a.findRun(ctx, c, args[0])
			if err != nil {
				return err
			}
			if r.State.Ended() {
				return fmt.Errorf("run %d has ended already (%s)", r.Number, r.State)
			}
			if r, err = c.StopRun(ctx, r.ID, retry, note); err != nil {
				return err
			}
			v, err := a.runsValue(ctx, c, []domain.Run{r}, "")
			if err != nil {
				return err
			}
			v.Data = r
			return a.print(v)
		},
	}
	cmd.Flags().BoolVar(&retry, "retry", false, "let the ticket be claimed again")
	cmd.Flags().StringVar(&note, "note", "", "why")
	return cmd
}

func (a *app) runFootprint() *cobra.Command {
	var f domain.Footprint
	cmd := &cobra.Command{
		Use:   "footprint [RUN]",
		Short: "Show what a run has used or, inside it, say so",
		Long: `Show what a run has used: tokens, turns, cost, time and memory. Inside a run an agent that Gaia cannot measure itself
says with the flags what it has used so far.`,
		Example: `  gaia run footprint 12 -o json
  gaia run footprint --tokens-in 12000 --tokens-out 900 --turns 4     # inside a run`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeFirst(a.runNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			c, err := a.client()
			if err != nil {
				return err
			}
			r, err := a.runArg(ctx, c, args)
			if err != nil {
				return err
			}
			if changed(cmd) {
				if r, err = c.PatchRunFootprint(ctx, r.ID, f); err != nil {
					return err
				}
			}
			n, err := readNames(ctx, c)
			if err != nil {
				return err
			}
			name, used := runName(n, r), f
			if r.Footprint != nil {
				used = *r.Footprint
			}
			return a.print(render.Value{Data: used, Names: []string{name}, Table: func(w io.Writer) error {
				var rows [][]string
				for _, l := range footprintLines(&used) {
					rows = append(rows, l[:])
				}
				if len(rows) == 0 {
					yet := ""
					if r.State.Live() {
						yet = " yet"
					}
					_, err := fmt.Fprintf(w, "%s has reported nothing%s\n", name, yet)
					return err
				}
				return render.Rows(w, a.width(0), []string{"USED", "AMOUNT"}, rows)
			}})
		},
	}
	fl := cmd.Flags()
	fl.Int64Var(&f.TokensIn, "tokens-in", 0, "input tokens")
	fl.Int64Var(&f.TokensOut, "tokens-out", 0, "output tokens")
	fl.Int64Var(&f.TokensCacheRead, "tokens-cache-read", 0, "tokens read from the cache")
	fl.Int64Var(&f.TokensCacheWrite, "tokens-cache-write", 0, "tokens written to the cache")
	fl.Int64Var(&f.Turns, "turns", 0, "turns of the model")
	fl.Float64Var(&f.Cost, "cost", 0, "US dollars")
	fl.StringVar(&f.Model, "model", "", "name of the model")
	return cmd
}

// self is the folder of Gaia's binaries: that of this one, with links resolved.
func self() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	if exe, err = filepath.EvalSymlinks(exe); err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	return filepath.Dir(exe), nil
}
