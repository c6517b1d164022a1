package main

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"gaia/domain"
	"gaia/internal/render"
	"gaia/remote"
)

// completionTime is how long a shell waits for words: then it gets none, rather than hang at a Tab.
const completionTime = 2 * time.Second

// completionCount bounds what a shell is offered.
const completionCount = 200

// completer returns the words that may stand somewhere, each with a description after a tab where it has one. It may
// fail, and then there are none.
type completer func(context.Context) []string

// completeFirst offers words for the first argument only.
func (a *app) completeFirst(words completer) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.completions(cmd, words), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

func (a *app) completions(cmd *cobra.Command, words completer) []string {
	parent := cmd.Context()
	if parent == nil {
		parent = context.Background()
	}
	ctx, cancel := context.WithTimeout(parent, completionTime)
	defer cancel()
	return words(ctx)
}

// completeFlags offers words for flags.
func (a *app) completeFlags(cmd *cobra.Command, flags map[string]completer) {
	for name, words := range flags {
		_ = cmd.RegisterFlagCompletionFunc(name, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return a.completions(cmd, words), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
		}) // fails where there is no such flag, which the tests would see
	}
}

// completeMove offers tickets and, for the ticket that is meant, the states that are open to it.
func (a *app) completeMove(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	words := a.completions(cmd, func(ctx context.Context) []string {
		ref := a.getenv("GAIA_TICKET")
		switch {
		case len(args) == 1:
			ref = args[0]
		case len(args) > 1:
			return nil
		case ref == "":
			return a.ticketNames(ctx)
		}
		c, err := a.client()
		if err != nil {
			return nil
		}
		k, err := c.Ticket(ctx, ref)
		if err != nil {
			return nil
		}
		return domain.Open(string(k.Workflow), k.State)
	})
	return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

func described(word, text string) string {
	return cobra.CompletionWithDesc(render.Clean(word), render.Clean(text))
}

func (a *app) ticketNames(ctx context.Context) []string {
	return offer(a, func(c *remote.Client) ([]domain.Ticket, error) {
		return c.Tickets(ctx, remote.Query{Filter: map[string][]string{"state": openStates()}, Sort: []string{"-updated_at"}, Limit: completionCount})
	}, func(k domain.Ticket) string { return described(k.Identifier, k.State+": "+render.Fit(k.Title, 60)) })
}

func (a *app) runNames(ctx context.Context) []string { return a.runWords(ctx, nil) }

func (a *app) liveRunNames(ctx context.Context) []string { return a.runWords(ctx, liveRuns()) }

func liveRuns() map[string][]string {
	return map[string][]string{"state": {string(domain.RunClaimed), string(domain.RunRunning)}}
}

func (a *app) runWords(ctx context.Context, filter map[string][]string) []string {
	var n names
	return offer(a, func(c *remote.Client) ([]domain.Run, error) {
		var err error
		if n, err = readNames(ctx, c); err != nil {
			return nil, err
		}
		return c.RunList(ctx, remote.Query{Filter: filter, Sort: []string{"-claimed_at"}, Limit: completionCount})
	}, func(r domain.Run) string { return described(runName(n, r), string(r.State)+" for "+r.StateAtStart) })
}

func (a *app) liveTicketNames(ctx context.Context) []string {
	return offer(a, func(c *remote.Client) ([]domain.SnapshotRun, error) {
		s, err := c.Snapshot(ctx, "")
		return s.Running, err
	}, func(r domain.SnapshotRun) string {
		return described(r.Ticket.Identifier, r.Run.StateAtStart+": "+render.Fit(r.Ticket.Title, 60))
	})
}

func (a *app) projectNames(ctx context.Context) []string {
	return offer(a, func(c *remote.Client) ([]domain.Project, error) { return c.Projects(ctx, remote.Query{}) },
		func(p domain.Project) string { return described(p.Key, p.Name) })
}

func (a *app) conductorNames(ctx context.Context) []string {
	return offer(a, func(c *remote.Client) ([]domain.Conductor, error) { return c.Conductors(ctx, remote.Query{}) },
		func(con domain.Conductor) string { return described(con.MachineID, string(con.Status)) })
}

func (a *app) labelNames(ctx context.Context) []string {
	return offer(a, func(c *remote.Client) ([]domain.Label, error) { return c.Labels(ctx) },
		func(l domain.Label) string { return described(l.Name, "") })
}

func (a *app) userNames(ctx context.Context) []string {
	return offer(a, func(c *remote.Client) ([]domain.User, error) { return c.Users(ctx) },
		func(u domain.User) string { return described(u.ID, u.Name) })
}

// offer asks the hub for objects and turns each into a word.
func offer[T any](a *app, list func(*remote.Client) ([]T, error), word func(T) string) []string {
	c, err := a.client()
	if err != nil {
		return nil
	}
	all, err := list(c)
	if err != nil {
		return nil
	}
	words := make([]string, len(all))
	for i, v := range all {
		words[i] = word(v)
	}
	return words
}

// instanceNames are those of this machine's registry.
func (a *app) instanceNames(context.Context) []string {
	home, err := a.home()
	if err != nil {
		return nil
	}
	entries, err := home.Entries()
	if err != nil {
		return nil
	}
	words := make([]string, len(entries))
	for i, e := range entries {
		words[i] = described(e.Instance, e.Checkout)
	}
	return words
}

// agentNames are those of machine.toml.
func (a *app) agentNames(context.Context) []string {
	home, err := a.home()
	if err != nil {
		return nil
	}
	m, err := home.Machine()
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(m.Agents))
}

func workflowNames(context.Context) []string { return allWorkflows() }

func stateNames(context.Context) []string { return allStates() }
