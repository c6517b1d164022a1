package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"gaia/agent"
	"gaia/domain"
	"gaia/registry"
	"gaia/session"
	"gaia/units"
	"gaia/workspace"
)

func (d *doctor) checkouts(ctx context.Context) {
	entries, err := d.Home.Entries()
	if err != nil {
		d.add("registry", Fail, "look at the copy that the text names, then: gaia init, in each checkout", "%v", err)
		return
	}
	if len(entries) == 0 {
		d.add("registry", Warn, "gaia init", "no checkout is set up on this machine")
	}
	differs := map[string]Difference{}
	if d.man != nil {
		known, err := Differences(ctx, d.man, d.Names, entries)
		strangers, err2 := Strangers(ctx, d.man, d.Names, entries)
		if err := errors.Join(err, err2); err != nil {
			d.add("registry", Warn, "", "it cannot be compared with the units: %v", err)
		}
		for _, f := range known {
			differs[f.Instance] = f
		}
		for _, f := range strangers {
			d.add("registry", Warn, f.Mend, "%s", f.Text)
		}
	}
	for _, e := range entries {
		d.checkout(ctx, e, differs[e.Instance])
	}
}

func (d *doctor) checkout(ctx context.Context, e registry.Entry, differs Difference) {
	check := "conductor " + e.Instance
	switch {
	case differs.Gone:
		d.add(check, Fail, differs.Mend, "%s", differs.Text)
		return
	case differs.Text != "":
		d.add(check, Warn, differs.Mend, "%s", differs.Text)
	}
	co, err := registry.LoadCheckout(e.Checkout)
	if err != nil {
		d.add(check, Fail, "edit "+filepath.Join(e.Checkout, registry.CheckoutFile), "%v", err)
		return
	}
	if differs.Status.Load == "" || differs.Status.Load == "loaded" {
		d.unit(ctx, check, e)
	}
	d.agents(check, e, co)
	d.hooks(check, e, co)
	d.gitIdentity(ctx, check, e)
	g, err := workspace.New(workspace.Config{
		Checkout: e.Checkout, Root: co.TreesRoot(d.Home, e.Instance), BranchPrefix: co.Workspace.BranchPrefix, Locks: d.Home.LocksDir(),
	})
	if err != nil {
		d.add(check, Fail, "git -C "+e.Checkout+" status", "%v", err)
		return
	}
	if err := g.CheckPrefix(ctx); err != nil {
		d.add(check, Fail, "rename that branch, or change branch_prefix in "+filepath.Join(e.Checkout, registry.CheckoutFile), "%v", err)
	}
	switch free, err := g.Free(); {
	case err != nil:
		d.add(check, Warn, "", "how much disk is free cannot be seen: %v", err)
	case free < co.Workspace.MinFreeDisk:
		d.add(check, Fail, "gaia conductor reap "+e.Instance, "%d MiB of disk are free, and with less than %d MiB nothing is claimed", free>>20, co.Workspace.MinFreeDisk>>20)
	}
	d.trees(ctx, check, e, g)
}

func (d *doctor) unit(ctx context.Context, check string, e registry.Entry) {
	if d.man == nil {
		return
	}
	unit := d.Names.Conductor(e.Instance)
	st, err := d.man.Status(ctx, unit)
	switch {
	case err != nil:
		d.add(check, Warn, "", "%v", err)
	case st.Active == "failed":
		d.add(check, Fail, "journalctl --user -u "+unit, "%s has failed: %s", unit, st.Result)
	case st.Active != "active":
		d.add(check, Warn, "gaia conductor start "+e.Instance, "%s is %s", unit, st.Active)
	case st.Replaced():
		d.add(check, Warn, "gaia conductor restart "+e.Instance, "%s runs a program that has been replaced since, by an upgrade for one; its agents outlive a restart", unit)
	case st.NeedDaemonReload:
		d.add(check, Warn, "systemctl --user daemon-reload", "the file of %s has changed since it was read", unit)
		d.fixable("", d.withManager(func(ctx context.Context, man *units.Manager) (string, error) {
			return "let the user manager read its files anew", man.Reload(ctx)
		}))
	default:
		d.add(check, OK, "", "%s", st.StatusText)
	}
}

// agents looks for the agents as a run would: in its environment, and not in this one.
func (d *doctor) agents(check string, e registry.Entry, co registry.Checkout) {
	if d.identity == nil {
		return
	}
	if e.Path == "" {
		d.add(check, Warn, "gaia conductor enable "+e.Instance, "no PATH was taken over for its agents, so they get the user manager's")
	}
	env := d.runEnv(e)
	used := map[string]string{} // the agents that tickets get, and who says so
	name := cmp.Or(co.Agent.Default, d.identity.DefaultAgent)
	if name != "" {
		used[name] = "tickets that name no agent are for " + name
	}
	for _, r := range d.identity.Routes {
		if used[r.Agent] == "" {
			used[r.Agent] = fmt.Sprintf("the route of the label %s leads to %s", r.Label, r.Agent)
		}
	}
	available, missing := agent.Available(*d.identity, env)
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		mend := fmt.Sprintf("gaia conductor enable %s, from a shell in which it is found; or change [agents.%s] in %s", e.Instance, name, d.Home.MachineFile())
		if used[name] == "" && len(available) > 0 {
			d.add(check, Info, mend, "agent %s, which only tickets that name it would use: %v", name, missing[name])
			continue
		}
		d.add(check, Fail, mend, "agent %s: %v", name, missing[name])
	}
	if len(available)+len(missing) == 0 {
		d.add(check, Fail, "edit "+d.Home.MachineFile(), "the machine has no agent, so nothing can be claimed: add a section [agents.NAME]")
		return
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		if _, there := d.identity.Agents[name]; !there {
			d.add(check, Warn, fmt.Sprintf("add a section [agents.%s] to %s", name, d.Home.MachineFile()), "%s, which this machine does not have", used[name])
		}
	}
	d.tools(check, e, env["PATH"])
}

// runEnv is the environment of a run, but for what its agent and the run itself add.
func (d *doctor) runEnv(e registry.Entry) map[string]string {
	return session.Environment(session.EnvInput{Manager: d.env, Path: e.Path, Bin: d.Paths.Bin, Pass: d.identity.Env.Pass})
}

// gitIdentity looks whether the agents could commit: git refuses where it knows no name or no address to write down.
func (d *doctor) gitIdentity(ctx context.Context, check string, e registry.Entry) {
	if d.identity == nil || d.env == nil {
		return // without the user manager's HOME, git's settings of the user are not known
	}
	for _, name := range slices.Sorted(maps.Keys(d.identity.Agents)) {
		env := d.runEnv(e)
		maps.Copy(env, d.identity.Agents[name].Env)
		if why := noIdentity(ctx, e.Checkout, env); why != "" {
			d.add(check, Fail, `git config --global user.name "YOUR NAME"; git config --global user.email YOU@EXAMPLE.ORG`,
				"git has no name and address for the commits of the agent %s, so it cannot commit: %s", name, why)
			return // what mends it for one mends it for all
		}
	}
}

// noIdentity returns why git refuses to commit in a checkout for want of an identity; "" where it does not, or where
// something else is wrong, which other checks tell. Git is asked, and not its settings: it may guess one by itself.
func noIdentity(ctx context.Context, checkout string, env map[string]string) string {
	for _, who := range []string{"GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"} {
		cmd := exec.CommandContext(ctx, cmp.Or(lookup("git", env["PATH"]), "git"), "-C", checkout, "var", who)
		for k, v := range env {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
		cmd.Env = append(cmd.Env, "LC_ALL=C") // its words are looked at
		var said strings.Builder
		cmd.Stderr = &said
		if cmd.Run() == nil || !strings.Contains(said.String(), "identity unknown") {
			continue
		}
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		return strings.TrimPrefix(lines[len(lines)-1], "fatal: ")
	}
	return ""
}

// tools are programs of which a machine often has several versions, and of which an agent's work depends on the right one.
var tools = []string{"git", "node", "npm", "python3", "go", "cargo", "ruby", "java", "php", "docker", "make"}

// tools says where runs get another program than the shell that asks: what works here would not work there.
func (d *doctor) tools(check string, e registry.Entry, path string) {
	if d.Path == "" || e.Path == "" {
		return
	}
	var differ []string
	for _, tool := range tools {
		here, there := lookup(tool, d.Path), lookup(tool, path)
		switch {
		case here == "" || here == there:
		case there == "":
			differ = append(differ, tool+" (not at all, and not "+here+")")
		default:
			differ = append(differ, fmt.Sprintf("%s (%s, and not %s)", tool, there, here))
		}
	}
	if len(differ) > 0 {
		d.add(check, Warn, "gaia conductor enable "+e.Instance+", from this shell if it is right", "runs get other programs than this shell: %s", strings.Join(differ, ", "))
	}
}

// lookup returns the program that a PATH leads to, with links resolved; "" for none.
func lookup(program, path string) string {
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		file := filepath.Join(dir, program)
		if st, err := os.Stat(file); err != nil || !st.Mode().IsRegular() || st.Mode().Perm()&0o111 == 0 {
			continue
		}
		if real, err := filepath.EvalSymlinks(file); err == nil {
			return real
		}
		return file
	}
	return ""
}

func (d *doctor) hooks(check string, e registry.Entry, co registry.Checkout) {
	sha := co.Hooks.SHA256()
	if sha == "" {
		return
	}
	switch trusted, err := d.Home.Trusted(e.Checkout, sha); {
	case err != nil:
		d.add(check, Fail, "edit "+d.Home.TrustFile(), "%v", err)
	case !trusted:
		d.add(check, Fail, "gaia conductor trust "+e.Instance, "its hooks are not trusted, so it claims nothing")
	}
}

// trees finds worktrees that no ticket of the hub stands behind.
func (d *doctor) trees(ctx context.Context, check string, e registry.Entry, g *workspace.Git) {
	trees, err := g.Trees(ctx)
	if err != nil {
		d.add(check, Warn, "", "its worktrees cannot be listed: %v", err)
		return
	}
	for _, t := range trees {
		name := filepath.Base(t.Path)
		if t.Spare {
			continue // the conductor's, which says in its journal what is wrong with it
		}
		if !t.Complete {
			d.add(check, Warn, "gaia conductor reap --dry-run "+e.Instance+" says what becomes of it", "the tree %s is incomplete: %s", name, t.Note)
			continue
		}
		if d.Hub == nil {
			continue
		}
		if _, err := d.Hub.Ticket(ctx, t.Ticket); errors.Is(err, domain.ErrNotFound) {
			d.add(check, Warn, "look at "+t.Path+", and remove it with git worktree remove if it is of no use", "the tree %s belongs to no ticket of this hub; reap keeps it", name)
		}
	}
}
