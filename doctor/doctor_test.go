package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/registry"
	"gaia/units"
	"gaia/workspace"
)

// hub is one that answers what it is told to.
type hub struct {
	live, ready, now error
	skew             time.Duration
	tickets          map[string]domain.Ticket
}

func (h hub) Health(context.Context) (live, ready error) { return h.live, h.ready }

func (h hub) Now(context.Context) (time.Time, error) { return time.Now().Add(h.skew), h.now }

func (h hub) Ticket(_ context.Context, ref string) (domain.Ticket, error) {
	k, ok := h.tickets[ref]
	if !ok {
		return k, domain.ErrNotFound
	}
	return k, nil
}

// place is a home with one checkout, in which all is well but for what has no user manager here.
type place struct {
	t        *testing.T
	home     registry.Home
	checkout string
	config   Config
}

func newPlace(t *testing.T) *place {
	t.Helper()
	dir := t.TempDir()
	env := map[string]string{"HOME": dir, "GAIA_HOME": filepath.Join(dir, "gaia"), "XDG_RUNTIME_DIR": filepath.Join(dir, "runtime")}
	home, _, err := registry.Open(func(k string) string { return env[k] })
	require.NoError(t, err)
	_, err = home.Prepare()
	require.NoError(t, err)
	names, err := units.NewNames("")
	require.NoError(t, err)
	p := &place{t: t, home: home, checkout: filepath.Join(dir, "shop")}
	p.config = Config{Home: home, Names: names, Paths: units.Paths{Bin: "/usr/bin"}, Hub: hub{}, UID: os.Getuid(), MinFree: 1}
	p.config.Logind = units.Logind{Socket: filepath.Join(dir, "none"), Folder: filepath.Join(dir, "linger")}
	p.machine("user_id = \"anna\"\nhost_id = \"box\"\n\n[agents.script]\nprogram = [\"sh\"]\n")
	require.NoError(t, os.MkdirAll(p.checkout, 0o755))
	p.git("init", "--quiet", "--initial-branch=main")
	require.NoError(t, registry.InitCheckout(p.checkout, registry.DefaultCheckout("SHOP", "shop")))
	p.git("add", ".")
	p.git("commit", "--quiet", "-m", "A shop")
	require.NoError(t, home.Put(t.Context(), registry.Entry{Instance: "shop", Checkout: p.checkout, Project: "SHOP", Path: os.Getenv("PATH")}))
	return p
}

func (p *place) git(args ...string) {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), "git", append([]string{"-c", "user.name=T", "-c", "user.email=t@gaia.invalid"}, args...)...)
	cmd.Dir = p.checkout
	out, err := cmd.CombinedOutput()
	require.NoError(p.t, err, "%s", out)
}

func (p *place) machine(text string) {
	p.t.Helper()
	require.NoError(p.t, os.WriteFile(p.home.MachineFile(), []byte(text), 0o600))
}

func (p *place) conductor(text string) {
	p.t.Helper()
	path := filepath.Join(p.checkout, registry.CheckoutFile)
	require.NoError(p.t, os.WriteFile(path, []byte("schema = 1\nproject = \"SHOP\"\nslug = \"shop\"\n"+text), 0o600))
}

// here are the checks that know nothing of the machine on which the test runs.
var here = []string{"state folder", "binaries", "machine.toml", "hub", "clock", "registry", "conductor shop"}

// look returns what is not well among these checks, one line each.
func (p *place) look() []string {
	p.t.Helper()
	var out []string
	for _, f := range Run(p.t.Context(), p.config) {
		require.NotEmpty(p.t, f.Text, f.Check)
		if f.Level == Fail {
			require.NotEmpty(p.t, f.Mend, "%s: %s", f.Check, f.Text)
		}
		require.NotContains(p.t, f.Text, "%!", f.Check)
		for _, name := range here {
			if f.Check == name && f.Level != OK {
				out = append(out, fmt.Sprintf("%s %s: %s | %s", f.Level, f.Check, f.Text, f.Mend))
			}
		}
	}
	return out
}

func TestAllIsWell(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	require.Empty(t, p.look())
}

func TestFindings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(*testing.T, *place)
		want  []string // regular expressions, one for each finding
	}{
		"state folder": {func(_ *testing.T, p *place) { p.config.Home.State = "/srv/a$b" }, []string{`^fail state folder: .*/srv/a\$b/runs.* \| set XDG_STATE_HOME`}},
		"binaries":     {func(_ *testing.T, p *place) { p.config.Paths.Bin = "/opt/a;b" }, []string{`^fail binaries: .*"/opt/a;b"`}},
		"no machine.toml": {func(t *testing.T, p *place) {
			require.NoError(t, os.Remove(p.home.MachineFile()))
			p.config.Hub, p.config.HubErr = nil, errors.New("nobody")
		}, []string{`^fail machine.toml: .* \| gaia init$`, `^fail hub: nobody \| gaia init$`}},
		"machine.toml with a mistake": {func(_ *testing.T, p *place) { p.machine("user = \"anna\"\n") }, []string{`(?s)^fail machine.toml: .* \| edit /.*/machine.toml$`}},
		"no agent":                    {func(_ *testing.T, p *place) { p.machine("user_id = \"anna\"\nhost_id = \"box\"\n") }, []string{`^fail conductor shop: .*no agent.* \| edit /`}},
		"agent that is not there": {func(_ *testing.T, p *place) {
			p.machine("user_id = \"anna\"\nhost_id = \"box\"\n[agents.script]\nprogram = [\"nonexistent-agent\"]\n")
		}, []string{`^fail conductor shop: agent script: .*nonexistent-agent.* \| gaia conductor enable shop, from a shell`}},
		"agent of the machine that it does not have": {func(_ *testing.T, p *place) {
			p.machine("user_id = \"anna\"\nhost_id = \"box\"\ndefault_agent = \"claude\"\n[agents.script]\nprogram = [\"/bin/sh\"]\n")
		}, []string{`^warn conductor shop: .*for claude, which .* \| add a section \[agents.claude\] to /.*/machine.toml$`}},
		"PATH not taken over": {func(t *testing.T, p *place) {
			require.NoError(t, p.home.Put(t.Context(), registry.Entry{Instance: "shop", Checkout: p.checkout, Project: "SHOP"}))
			p.machine("user_id = \"anna\"\nhost_id = \"box\"\n[agents.script]\nprogram = [\"/bin/sh\"]\n")
		}, []string{`^warn conductor shop: no PATH was taken over .* \| gaia conductor enable shop$`}},
		"hub away": {func(_ *testing.T, p *place) { p.config.Hub = hub{live: domain.ErrUnreachable} }, []string{`^fail hub: hub unreachable \| systemctl --user restart gaia-hub.socket$`}},
		"hub elsewhere away": {func(_ *testing.T, p *place) {
			p.config.Hub, p.config.Elsewhere = hub{live: domain.ErrUnreachable}, "https://hub"
		}, []string{`\| see on its machine whether the hub at https://hub is up$`}},
		"hub cannot write": {func(_ *testing.T, p *place) { p.config.Hub = hub{ready: domain.ErrStorage} }, []string{`^fail hub: it answers, .* \| journalctl --user -u gaia-hub.service$`}},
		"clock ahead":      {func(_ *testing.T, p *place) { p.config.Hub = hub{skew: time.Minute} }, []string{`^warn clock: this clock differs from the hub's by 1m0s \| timedatectl`}},
		"clock behind":     {func(_ *testing.T, p *place) { p.config.Hub = hub{skew: -time.Hour} }, []string{`^warn clock: .* -1h0m0s \|`}},
		"clock not known":  {func(_ *testing.T, p *place) { p.config.Hub = hub{now: domain.ErrForbidden} }, []string{`^warn clock: .*forbidden`}},
		"registry damaged": {func(t *testing.T, p *place) {
			require.NoError(t, os.WriteFile(p.home.ConductorsFile(), []byte("{"), 0o600))
		}, []string{`^fail registry: .*conductors.json`}},
		"no checkout":                   {func(t *testing.T, p *place) { require.NoError(t, p.home.Remove(t.Context(), "shop")) }, []string{`^warn registry: no checkout .* \| gaia init$`}},
		"checkout gone":                 {func(t *testing.T, p *place) { require.NoError(t, os.RemoveAll(p.checkout)) }, []string{`^fail conductor shop: `}},
		"conductor.toml with a mistake": {func(_ *testing.T, p *place) { p.conductor("max = 1\n") }, []string{`^fail conductor shop: .*conductor.toml:4.* \| edit /.*/conductor.toml$`}},
		"hooks not trusted":             {func(_ *testing.T, p *place) { p.conductor("[hooks.after_create]\nrun = \"true\"\n") }, []string{`^fail conductor shop: its hooks are not trusted.* \| gaia conductor trust shop$`}},
		"branch in the way":             {func(_ *testing.T, p *place) { p.git("branch", "gaia") }, []string{`^fail conductor shop: .*branch "gaia".* \| rename that branch`}},
		"disk full":                     {func(_ *testing.T, p *place) { p.conductor("[workspace]\nmin_free_disk = \"9999999G\"\n") }, []string{`^fail conductor shop: \d+ MiB of disk are free.* \| gaia conductor reap shop$`}},
		"tree without a ticket":         {func(t *testing.T, p *place) { p.tree(t, "SHOP-1", "unknown") }, []string{`^warn conductor shop: the tree SHOP-1 belongs to no ticket of this hub; reap keeps it \| look at /`}},
		"incomplete tree": {func(t *testing.T, p *place) {
			p.tree(t, "SHOP-1", "known")
			require.NoError(t, os.Remove(filepath.Join(p.checkout, ".git", "worktrees", "SHOP-1", "gaia.json")))
		}, []string{`^warn conductor shop: the tree SHOP-1 is incomplete: .* \| gaia conductor reap --dry-run shop`}},
		"state folder open to others":   {func(t *testing.T, p *place) { require.NoError(t, os.Chmod(p.home.Dir, 0o755)) }, []string{`^warn state folder: (/.*) is open to others.* \| chmod go= /`}},
		"disk of the state folder full": {func(_ *testing.T, p *place) { p.config.MinFree = 1 << 62 }, []string{`^fail state folder: \d+ MiB of disk are free in /.* \| df -h /`}},
		"agent that is not used and not there": {func(_ *testing.T, p *place) {
			p.machine("user_id = \"anna\"\nhost_id = \"box\"\n[agents.script]\nprogram = [\"sh\"]\n[agents.claude]\nprogram = [\"nonexistent-agent\"]\n")
		}, []string{`^info conductor shop: agent claude, which only tickets that name it would use: .*nonexistent-agent.* \| gaia conductor enable shop`}},
		"default agent that is not there": {func(_ *testing.T, p *place) {
			p.machine("user_id = \"anna\"\nhost_id = \"box\"\ndefault_agent = \"claude\"\n[agents.script]\nprogram = [\"sh\"]\n[agents.claude]\nprogram = [\"nonexistent-agent\"]\n")
		}, []string{`^fail conductor shop: agent claude: .*nonexistent-agent`}},
		"agent of the checkout that is not there": {func(_ *testing.T, p *place) {
			p.machine("user_id = \"anna\"\nhost_id = \"box\"\ndefault_agent = \"script\"\n[agents.script]\nprogram = [\"sh\"]\n[agents.claude]\nprogram = [\"nonexistent-agent\"]\n")
			p.conductor("[agent]\ndefault = \"claude\"\n")
		}, []string{`^fail conductor shop: agent claude: .*nonexistent-agent`}},
		"agent of a route that is not there": {func(_ *testing.T, p *place) {
			p.machine("user_id = \"anna\"\nhost_id = \"box\"\n[agents.script]\nprogram = [\"sh\"]\n[agents.claude]\nprogram = [\"nonexistent-agent\"]\n[[route]]\nagent = \"claude\"\nlabel = \"ui\"\n[[route]]\nagent = \"pi\"\nlabel = \"db\"\n")
		}, []string{`^fail conductor shop: agent claude: .*nonexistent-agent`, `^warn conductor shop: the route of the label db leads to pi, which this machine does not have`}},
		"other tools than in this shell": {func(t *testing.T, p *place) {
			dir := t.TempDir()
			for _, tool := range []string{"node", "cargo"} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, tool), []byte("#!/bin/sh\n"), 0o755))
			}
			other := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(other, "node"), []byte("#!/bin/sh\n"), 0o755))
			p.config.Path = dir + ":" + os.Getenv("PATH")
			require.NoError(t, p.home.Put(t.Context(), registry.Entry{Instance: "shop", Checkout: p.checkout, Project: "SHOP", Path: other + ":/usr/bin:/bin"}))
		}, []string{`^warn conductor shop: runs get other programs than this shell: .*node \(/\S+/node, and not /\S+/node\).*cargo \(not at all, and not .* \| gaia conductor enable shop, from this shell`}},
		"the same tools by another way": {func(t *testing.T, p *place) {
			dir := t.TempDir()
			git, err := exec.LookPath("git")
			require.NoError(t, err)
			require.NoError(t, os.Symlink(git, filepath.Join(dir, "git")))
			p.config.Path = dir
		}, nil},
		"tree of a ticket": {func(t *testing.T, p *place) {
			p.tree(t, "SHOP-1", "known")
			p.config.Hub = hub{tickets: map[string]domain.Ticket{"known": {}}}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			c.spoil(t, p)
			p.t = t
			found := p.look()
			require.Len(t, found, len(c.want), "%s", strings.Join(found, "\n"))
			for i, want := range c.want {
				require.Regexp(t, want, found[i])
			}
		})
	}
}

// tree makes a worktree for a ticket.
func (p *place) tree(t *testing.T, identifier, id string) {
	t.Helper()
	co, err := registry.LoadCheckout(p.checkout)
	require.NoError(t, err)
	g, err := workspace.New(workspace.Config{Checkout: p.checkout, Root: co.TreesRoot(p.home, "shop"), BranchPrefix: co.Workspace.BranchPrefix, Locks: p.home.LocksDir()})
	require.NoError(t, err)
	unlock, err := g.Lock(t.Context(), identifier)
	require.NoError(t, err)
	defer unlock()
	_, finish, err := g.Ensure(t.Context(), domain.TreeRequest{Identifier: identifier, Ticket: id, Run: "0190"})
	require.NoError(t, err)
	require.NoError(t, finish(t.Context()))
}

// TestNoRuntimeFolder: everything else is looked at all the same.
func TestNoRuntimeFolder(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.config.Home.Runtime, p.config.Home.RuntimeRoot = "", ""
	found := Run(t.Context(), p.config)
	require.Equal(t, "runtime folder", found[0].Check)
	require.Equal(t, Fail, found[0].Level)
	require.Contains(t, found[0].Mend, "enable-linger")
	require.Empty(t, p.look())
}

func TestGitVersion(t *testing.T) {
	t.Parallel()
	for out, want := range map[string][2]int{"git version 2.43.0\n": {2, 43}, "git version 2.50.windows.1": {2, 50}, "git version 3.0-rc1": {3, 0}} {
		major, minor, ok := gitVersion(out)
		require.True(t, ok)
		require.Equal(t, want, [2]int{major, minor})
	}
	_, _, ok := gitVersion("no version")
	require.False(t, ok)
	_, _, ok = gitVersion("99999999999999999999.1")
	require.False(t, ok)
	require.True(t, before(2, 33, minGit))
	require.True(t, before(1, 99, minGit))
	require.False(t, before(2, 34, minGit))
	require.False(t, before(3, 0, minGit))
}

// only returns the one finding of a check.
func only(t *testing.T, found []Finding, check string) Finding {
	t.Helper()
	var out []Finding
	for _, f := range found {
		if f.Check == check {
			out = append(out, f)
		}
	}
	require.Len(t, out, 1, "%s: %v", check, found)
	return out[0]
}

// TestRuntimeFolder of another user, open to others, or with a path that is too long.
func TestRuntimeFolder(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	dir := p.config.Home.RuntimeRoot
	f := only(t, Run(t.Context(), p.config), "runtime folder")
	require.Equal(t, Fail, f.Level, "it is not there")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.Equal(t, OK, only(t, Run(t.Context(), p.config), "runtime folder").Level)
	require.NoError(t, os.Chmod(dir, 0o755))
	f = only(t, Run(t.Context(), p.config), "runtime folder")
	require.Equal(t, Warn, f.Level)
	require.Equal(t, "chmod 0700 "+dir, f.Mend)
	p.config.Home.RuntimeRoot, p.config.Home.Runtime = "/", "/gaia"
	p.config.UID = 4711
	f = only(t, Run(t.Context(), p.config), "runtime folder")
	require.Equal(t, Fail, f.Level)
	require.Contains(t, f.Text, "belongs to the user 0, and you are 4711")
	require.NoError(t, os.Chmod(dir, 0o700))
	p.config.UID, p.config.Home.RuntimeRoot, p.config.Home.Runtime = os.Getuid(), dir, filepath.Join(dir, strings.Repeat("x", 100))
	require.Contains(t, only(t, Run(t.Context(), p.config), "runtime folder").Mend, "shorter path")
	f = only(t, Run(t.Context(), p.config), "user bus")
	require.Equal(t, Warn, f.Level)
	require.Contains(t, f.Mend, "dbus-user-session")
}

// TestLinger: off is a failure with the exact command, unknown is not.
func TestLinger(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	me, err := user.Current()
	require.NoError(t, err)
	f := only(t, Run(t.Context(), p.config), "linger")
	require.Equal(t, Warn, f.Level)
	require.Nil(t, f.Fix)
	require.Contains(t, f.Mend, "systemd-logind")
	require.NoError(t, os.Mkdir(p.config.Logind.Folder, 0o755))
	f = only(t, Run(t.Context(), p.config), "linger")
	require.Equal(t, Fail, f.Level)
	require.Equal(t, "loginctl enable-linger "+me.Username, f.Mend)
	require.NotEmpty(t, f.Fix.Ask, "a person decides")
	_, err = f.Fix.Do(t.Context())
	require.ErrorIs(t, err, units.ErrNoLogind)
	require.NoError(t, os.WriteFile(filepath.Join(p.config.Logind.Folder, me.Username), nil, 0o644))
	require.Equal(t, OK, only(t, Run(t.Context(), p.config), "linger").Level)
}

func TestJournal(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.config.Journal.Program = "/nonexistent/journalctl"
	f := only(t, Run(t.Context(), p.config), "journal")
	require.Equal(t, Warn, f.Level)
	require.Contains(t, f.Text, "apt-get install systemd")
}

// TestFixesOfFolders: closed to others, and nothing else of them changed.
func TestFixesOfFolders(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	require.NoError(t, os.Chmod(p.home.State, 0o777))
	var fix *Fix
	for _, f := range Run(t.Context(), p.config) {
		if f.Check == "state folder" && f.Fix != nil {
			fix = f.Fix
		}
	}
	require.NotNil(t, fix)
	require.Empty(t, fix.Ask)
	text, err := fix.Do(t.Context())
	require.NoError(t, err)
	require.Contains(t, text, "it is 0700 now")
	require.Empty(t, p.look())
	text, err = fix.Do(t.Context())
	require.NoError(t, err)
	require.Empty(t, text, "a second time there is nothing to do")
}

// TestVersions that are too old, that are none, and programs that are not there. Not parallel: the PATH is the process's.
func TestVersions(t *testing.T) {
	p := newPlace(t)
	dir := t.TempDir()
	for _, c := range []struct{ tmux, git, tmuxSays, gitSays string }{
		{"tmux 3.2a", "git version 2.33.8", "version 3.2 is older than 3.3", "version 2.33 is older than 2.34"},
		{"tmux 3.3a", "git version 2.34.0", "3.3", "2.34"},
		{"tmux next-3.5", "nonsense", "3.5", "says no version"},
		{"", "", "tmux", "git --version failed"},
	} {
		for name, says := range map[string]string{"tmux": c.tmux, "git": c.git} {
			path := filepath.Join(dir, name)
			_ = os.Remove(path)
			if says != "" {
				require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\necho '"+says+"'\n"), 0o755))
			}
		}
		t.Setenv("PATH", dir)
		found := Run(t.Context(), p.config)
		for name, says := range map[string]string{"tmux": c.tmuxSays, "git": c.gitSays} {
			f := only(t, found, name)
			require.Contains(t, f.Text, says)
			require.Equal(t, f.Level == Fail, f.Mend == "sudo apt-get install "+name, f)
		}
	}
}
