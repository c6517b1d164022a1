package registry

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gaia/domain"
)

const machineText = `user_id = "ada"
host_id = "desk"
hub = "https://hub.example"
default_agent = "claude"

[agents.claude]
program = ["claude", "--model", "x"]
permissions = "ask"

[agents.claude.env]
CLAUDE_CONFIG_DIR = "/home/ada/.work"

[agents.script]
program = ["/opt/script"]

[[route]]
agent = "script"
label = "Ops"
score = 10

[[route]]
agent = "claude"
label = "ui"

[env]
pass = ["GOPROXY", "npm_config_cache"]
`

func TestMachineIsReadAndWrittenBack(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	put(t, h.MachineFile(), machineText)
	m, err := h.Machine()
	require.NoError(t, err)
	want := Machine{
		UserID: "ada", HostID: "desk", Hub: "https://hub.example", DefaultAgent: "claude",
		Agents: map[string]AgentConfig{
			"claude": {Program: []string{"claude", "--model", "x"}, Permissions: "ask", Env: map[string]string{"CLAUDE_CONFIG_DIR": "/home/ada/.work"}},
			"script": {Program: []string{"/opt/script"}},
		},
		Routes: []domain.Route{{Agent: "script", Label: "ops", Score: 10}, {Agent: "claude", Label: "ui", Score: 1}},
	}
	want.Env.Pass = []string{"GOPROXY", "npm_config_cache"}
	require.Equal(t, want, m)

	require.ErrorIs(t, h.WriteMachine(Machine{UserID: "eve", HostID: "x"}), domain.ErrExists)
	data, err := os.ReadFile(h.MachineFile())
	require.NoError(t, err)
	require.Equal(t, machineText, string(data), "what a person wrote is never overwritten")

	fresh := newHome(t)
	require.ErrorContains(t, fresh.WriteMachine(Machine{UserID: "ada"}), "host_id")
	require.NoFileExists(t, fresh.MachineFile())
	require.NoError(t, fresh.WriteMachine(want))
	got, err := fresh.Machine()
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestAnIdentityIsNeverGuessed(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	_, err := h.Machine()
	require.ErrorContains(t, err, h.MachineFile()+": user_id: the file does not exist: gaia init")
	var ce *ConfigError
	require.ErrorAs(t, err, &ce)
	put(t, h.MachineFile(), "user_id = \"ada\"\n")
	_, err = h.Machine()
	require.ErrorContains(t, err, h.MachineFile()+": host_id: is missing")
	require.ErrorContains(t, err, `write host_id = "name" into the file`)
	put(t, h.MachineFile(), "user_id = \"Ada L\"\nhost_id = \"\"\n")
	_, err = h.Machine()
	require.ErrorContains(t, err, h.MachineFile()+":1: user_id: ")
	require.ErrorContains(t, err, h.MachineFile()+":2: host_id: ")
}

// TestEveryMistakeIsNamedWithFileLineAndKey has one mistake per row.
func TestEveryMistakeIsNamedWithFileLineAndKey(t *testing.T) {
	t.Parallel()
	machine := func(b []byte) error { _, err := ParseMachine("f", b); return err }
	checkout := func(b []byte) error { _, err := ParseCheckout("f", b); return err }
	hub := func(b []byte) error { _, err := ParseHub("f", b); return err }
	trust := func(b []byte) error { _, err := ParseTrust("f", b); return err }
	const id = "user_id = \"a\"\nhost_id = \"b\"\n"
	const co = "schema = 1\nproject = \"SHOP\"\nslug = \"shop\"\n"
	for name, c := range map[string]struct {
		parse      func([]byte) error
		text, want string
	}{
		"unknown key":                   {machine, id + "usr = 1\n", "f:3: usr: unknown key; known here are agents, default_agent, env, host_id, hub, route, user_id"},
		"another case is another key":   {machine, id + "Hub = \"https://x\"\n", "f:3: Hub: unknown key"},
		"unknown key in a table":        {machine, id + "[env]\npas = []\n", "f:4: env.pas: unknown key; known here are pass"},
		"unknown key of an agent":       {machine, id + "[agents.claude]\nprogramm = []\n", "f:4: agents.claude.programm: unknown key"},
		"unknown key in a list":         {machine, id + "[[route]]\nagent=\"a\"\nlabel=\"l\"\n[[route]]\nagent=\"a\"\nlabel=\"l\"\nweight=1\n", "f:6: route[2].weight: unknown key"},
		"missing in a list":             {machine, id + "[[route]]\nagent = \"a\"\n", "f:3: route[1].label: is missing"},
		"an inline list of routes":      {machine, id + "route = [{agent = \"a\", label = \"l\", x = 1}]\n", "f:3: route[1].x: unknown key"},
		"duplicate key":                 {machine, id + "user_id = \"c\"\n", "f:3: user_id: "},
		"duplicate table":               {machine, id + "[env]\n[env]\n", "f:4: Key 'env' has already been defined"},
		"no TOML":                       {machine, id + "hub https\n", "f:3: expected '.' or '='"},
		"no UTF-8":                      {machine, "user_id = \"\xff\"", "f: the file is not UTF-8 text"},
		"wrong type":                    {machine, "user_id = 1\nhost_id = \"b\"\n", "f:1: user_id: must be a string, not a whole number"},
		"value for a table":             {machine, id + "env = 3\n", "f:3: env: must be a table, not a whole number"},
		"value for a list of tables":    {machine, id + "route = 3\n", "f:3: route: must be a list of tables"},
		"value for an agent":            {machine, id + "[agents]\nclaude = true\n", "f:4: agents.claude: must be a table, not true or false"},
		"string for a list":             {machine, id + "[agents.claude]\nprogram = \"claude\"\n", "f:4: agents.claude.program: must be a list of strings, not a string"},
		"empty program":                 {machine, id + "[agents.claude]\nprogram = []\n", "f:4: agents.claude.program: must name a program"},
		"mixed list":                    {machine, id + "[env]\npass = [\"A\", 1]\n", "f:4: env.pass: must be a list of strings, but holds a whole number"},
		"no name of a variable":         {machine, id + "[env]\npass = [\"A=B\"]\n", `f:4: env.pass: "A=B" is no name`},
		"name of an agent's variable":   {machine, id + "[agents.claude.env]\n\"A=B\" = \"\"\n", `"A=B" is no name`},
		"a variable of Gaia's":          {machine, id + "[agents.claude.env]\nGAIA_RUN = \"x\"\n", "f:4: agents.claude.env.GAIA_RUN: GAIA_RUN is set by Gaia"},
		"a variable that is no string":  {machine, id + "[agents.claude.env]\nA = 1\n", "f:4: agents.claude.env.A: must be a string, not a whole number"},
		"permissions":                   {machine, id + "[agents.claude]\npermissions = \"root\"\n", `f:4: agents.claude.permissions: "root" must be one of ask, edits, all`},
		"agent name":                    {machine, id + "[agents.\"../x\"]\n", `f:3: agents."../x": agent name`},
		"hub":                           {machine, id + "hub = \"hub.example\"\n", `f:3: hub: "hub.example" is no hub`},
		"control character":             {machine, id + "hub = \"https://\\u001b\"\n", "f:3: hub: \"https://\\x1b\" holds a control character"},
		"score out of range":            {machine, id + "[[route]]\nagent = \"a\"\nlabel = \"l\"\nscore = 1001\n", "f:3: route[1].score: 1001 is out of range: it must be from -1000 to 1000"},
		"missing schema":                {checkout, "project = \"SHOP\"\nslug = \"shop\"\n", "f: schema: is missing"},
		"later schema":                  {checkout, "schema = 2\nproject = \"SHOP\"\nslug = \"shop\"\n", "f:1: schema: 2 is out of range"},
		"project":                       {checkout, "schema = 1\nproject = \"shop\"\nslug = \"shop\"\n", `f:2: project: project key "shop"`},
		"slug":                          {checkout, "schema = 1\nproject = \"SHOP\"\nslug = \"Shop\"\n", `f:3: slug: "Shop" is no slug`},
		"nothing in parallel":           {checkout, co + "max_parallel = 0\n", "f:4: max_parallel: 0 is out of range"},
		"fraction":                      {checkout, co + "max_parallel = 1.5\n", "f:4: max_parallel: must be a whole number, not a number with a fraction"},
		"slots is no table":             {checkout, co + "slots = 3\n", "f:4: slots: must be a table, not a whole number"},
		"slot of a state of people":     {checkout, co + "[slots]\nbacklog = 1\n", `f:5: slots.backlog: "backlog" must be one of`},
		"state":                         {checkout, co + "states = [\"codign\"]\n", `f:4: states: "codign" must be one of`},
		"no states":                     {checkout, co + "states = []\n", "f:4: states: is empty"},
		"bare number for a duration":    {checkout, co + "[timing]\ntick = 15\n", `f:5: timing.tick: must be a time such as "90s" or "2h", not a whole number`},
		"no duration":                   {checkout, co + "[timing]\ntick = \"15\"\n", `f:5: timing.tick: "15" is no time`},
		"duration out of range":         {checkout, co + "[timing]\ntick = \"5m\"\n", "f:5: timing.tick: 5m is out of range: it must be from 10ms to 30s"},
		"bare number for a size":        {checkout, co + "[limits]\nmemory_max = 4\n", `f:5: limits.memory_max: must be a size such as`},
		"no size":                       {checkout, co + "[limits]\nmemory_max = \"4GB\"\n", `f:5: limits.memory_max: "4GB" is no size`},
		"tiny memory":                   {checkout, co + "[limits]\nmemory_max = \"4K\"\n", "f:5: limits.memory_max: less than 16M"},
		"weight":                        {checkout, co + "[limits]\ncpu_weight = 10001\n", "f:5: limits.cpu_weight: 10001 is out of range"},
		"hook without a script":         {checkout, co + "[hooks.before_run]\ntimeout = \"1s\"\n", "f:4: hooks.before_run.run: is missing: a hook needs a script"},
		"hook that is a string":         {checkout, co + "[hooks]\nbefore_run = \"make\"\n", "f:5: hooks.before_run: must be a table, not a string"},
		"unknown hook":                  {checkout, co + "[hooks.before]\nrun = \"x\"\n", "f:4: hooks.before: unknown key"},
		"hook key":                      {checkout, co + "[hooks.before_run]\nrun = \"x\"\nshell = \"x\"\n", "f:6: hooks.before_run.shell: unknown key"},
		"relative root":                 {checkout, co + "[workspace]\nroot = \"trees\"\n", `f:5: workspace.root: "trees" must be an absolute path`},
		"push":                          {checkout, co + "[workspace]\npush = true\n", "f:5: workspace.push: must be a string, not true or false"},
		"too many spares":               {checkout, co + "[workspace]\nspares = 9\n", "f:5: workspace.spares: "},
		"branch prefix with ..":         {checkout, co + "[workspace]\nbranch_prefix = \"a/../b\"\n", "f:5: workspace.branch_prefix: "},
		"branch prefix that is a flag":  {checkout, co + "[workspace]\nbranch_prefix = \"-f\"\n", "f:5: workspace.branch_prefix: "},
		"listener":                      {hub, "listen = [\"0.0.0.0:80\"]\n", `f:1: listen: "0.0.0.0:80" is no listener`},
		"no listeners":                  {hub, "listen = []\n", "f:1: listen: is empty"},
		"store, which may hold secrets": {hub, "store = \"mysql://u:pw@h\"\n", "f:1: store: must be sqlite:///"},
		"lease":                         {hub, "[leases]\nclaim = \"30m\"\n", "f:1: leases.claim_max: 20m is shorter than claim, which is 30m"},
		"attempts":                      {hub, "[limits]\nmax_attempts = 0\n", "f:2: limits.max_attempts: 0 is out of range"},
		"hub key":                       {hub, "[limits]\nattempts = 0\n", "f:2: limits.attempts: unknown key"},
		"trust without a hash":          {trust, "[[hooks]]\ncheckout = \"/a\"\n", "f:1: hooks[1].sha256: is missing"},
		"trust of no hash":              {trust, "[[hooks]]\ncheckout = \"/a\"\nsha256 = \"x\"\n", `f:1: hooks[1].sha256: "x" is no SHA-256`},
		"trust of a relative path":      {trust, "[[all]]\ncheckout = \"a\"\n", `f:1: all[1].checkout: "a" is no clean absolute path`},
		"trust key":                     {trust, "[[any]]\ncheckout = \"/a\"\n", "f:1: any: unknown key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := c.parse([]byte(c.text))
			require.ErrorContains(t, err, c.want)
			var ce *ConfigError
			require.True(t, errors.As(err, &ce))
			require.NotContains(t, err.Error(), "pw@")
		})
	}
}

func TestEveryMistakeOfAFileIsToldAtOnce(t *testing.T) {
	t.Parallel()
	_, err := ParseMachine("f", []byte("zzz = 1\nhub = 3\nuser_id = \"a\"\nhost_id = 2\n"))
	require.EqualError(t, err, "f:1: zzz: unknown key; known here are agents, default_agent, env, host_id, hub, route, user_id\n"+
		"f:2: hub: must be a string, not a whole number\nf:4: host_id: must be a string, not a whole number")
}

func TestCheckoutHasDefaultsForEverythingElse(t *testing.T) {
	t.Parallel()
	c, err := ParseCheckout("f", []byte("schema = 1\nproject = \"SHOP\"\nslug = \"shop\"\n"))
	require.NoError(t, err)
	require.Equal(t, DefaultCheckout("SHOP", "shop"), c)
	require.Empty(t, c.Hooks.SHA256())
	h := Home{Data: "/d", User: "/home/ada"}
	require.Equal(t, "/d/worktrees/shop-2", c.TreesRoot(h, "shop-2"))
	c.Workspace.Root = "~/trees"
	require.Equal(t, "/home/ada/trees", c.TreesRoot(h, "shop-2"))
	c.Workspace.Root = "/t"
	require.Equal(t, "/t", c.TreesRoot(h, "shop-2"))
}

func TestCheckoutIsReadAndWrittenBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, filepath.Join(dir, CheckoutFile), `schema = 1
project = "SHOP"
slug = "shop"
max_parallel = 3
max_load = 4
states = ["coding", "review"]
[slots]
coding = 1
[agent]
default = "claude"
permissions = "all"
[workspace]
root = "~/trees"
branch_prefix = "team/gaia-"
push = "agent"
fetch_timeout = "1m"
min_free_disk = "10G"
submodules = false
spares = 3
[hooks.after_create]
run = """
pnpm install
echo "it's \\ done"
"""
timeout = "5m"
[hooks.before_remove]
run = "make clean"
[limits]
memory_max = "4G"
tasks_max = 512
cpu_weight = 50
run_time = "90m"
[timing]
tick = "200ms"
grace = "1s"
tree_timeout = "10s"
blocked = "3s"
`)
	want := Checkout{
		Schema: 1, Project: "SHOP", Slug: "shop", MaxParallel: 3, MaxLoad: 4, States: []string{"coding", "review"}, Slots: map[string]int{"coding": 1},
		Agent:     CheckoutAgent{Default: "claude", Permissions: "all"},
		Workspace: Workspace{Root: "~/trees", BranchPrefix: "team/gaia-", Push: "agent", FetchTimeout: time.Minute, MinFreeDisk: 10 << 30, Submodules: false, Spares: 3},
		Hooks: domain.Hooks{
			AfterCreate:  domain.Hook{Script: "pnpm install\necho \"it's \\ done\"\n", Timeout: 5 * time.Minute},
			BeforeRemove: domain.Hook{Script: "make clean", Timeout: domain.DefaultHookTimeout},
		},
		Limits: domain.RunLimits{MemoryMax: 4 << 30, TasksMax: 512, CPUWeight: 50, Time: 90 * time.Minute},
		Timing: Timing{Tick: 200 * time.Millisecond, Grace: time.Second, TreeTimeout: 10 * time.Second, Blocked: 3 * time.Second},
	}
	got, err := LoadCheckout(dir)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.ErrorIs(t, InitCheckout(dir, want), domain.ErrExists)

	other := t.TempDir()
	_, err = LoadCheckout(other)
	require.ErrorIs(t, err, domain.ErrNotFound)
	require.ErrorContains(t, err, "gaia init")
	require.NoError(t, InitCheckout(other, want))
	got, err = LoadCheckout(other)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.ErrorContains(t, InitCheckout(t.TempDir(), Checkout{}), "not written")
}

func TestHubHasDefaultsForEverything(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.Runtime = "/run/user/7/gaia"
	hub, err := h.Hub()
	require.NoError(t, err)
	require.Equal(t, Hub{
		Listen: []string{"unix:///run/user/7/gaia/hub.sock"}, Store: "sqlite://" + h.HubDB(),
		Leases: Leases{2 * time.Minute, 20 * time.Minute, 5 * time.Minute, time.Hour}, Limits: domain.DefaultLimits(),
	}, hub)
	put(t, h.HubFile(), "listen = [\"tcp://[::1]:7420\"]\nstore = \"postgres://h/db\"\n[leases]\nrunning = \"2s\"\n[limits]\nmax_attempts = 1\nbackoff_base = \"10ms\"\n")
	hub, err = h.Hub()
	require.NoError(t, err)
	require.Equal(t, []string{"tcp://[::1]:7420"}, hub.Listen)
	require.Equal(t, "postgres://h/db", hub.Store)
	require.Equal(t, 2*time.Second, hub.Leases.Running)
	require.Equal(t, 1, hub.Limits.MaxAttempts)
	require.Equal(t, 10*time.Millisecond, hub.Limits.BackoffBase)
	require.Equal(t, 5*time.Minute, hub.Limits.BackoffMax)
}

func TestSizesReadAsWritten(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]uint64{"0": 0, "1": 1, "1K": 1 << 10, "512M": 512 << 20, "4G": 4 << 30, "2T": 2 << 40} {
		got, err := ParseSize(s)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, s := range []string{"", "G", "-1", "+1", "1.5G", "4 G", "4g", "4GB", "4KG", "99999999T", "18446744073709551615"} {
		_, err := ParseSize(s)
		require.Error(t, err, s)
	}
}

func TestAnyTextIsQuotedSoThatTheParserReadsItBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "text")
		tab, err := parse("f", []byte("[a]\nv = "+quote(s)+"\n"))
		require.NoError(t, err)
		got, ok := get[string](tab.sub("a"), "v", "a string")
		require.True(t, ok)
		require.Equal(t, s, got)
	})
}

func fuzzParser(f *testing.F, parse func(*testing.T, []byte) error, seeds ...string) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		err := parse(t, data)
		if err == nil {
			return
		}
		var ce *ConfigError
		require.ErrorAs(t, err, &ce)
		require.Equal(t, "f", ce.File)
	})
}

func FuzzParseMachine(f *testing.F) {
	fuzzParser(f, func(_ *testing.T, b []byte) error { _, err := ParseMachine("f", b); return err }, machineText, "[a.b]\n[[a.b.c]]\n", "agents = [[1]]")
}

func FuzzParseCheckout(f *testing.F) {
	fuzzParser(f, func(t *testing.T, b []byte) error {
		c, err := ParseCheckout("f", b)
		if err == nil {
			again, err := ParseCheckout("f", c.format())
			require.NoError(t, err)
			require.Equal(t, c, again)
		}
		return err
	}, string(DefaultCheckout("SHOP", "shop").format()), "[hooks.before_run]\nrun = \"\"\"\nx\"\"\"\n", "slots = {coding = 1}")
}

func FuzzParseHub(f *testing.F) {
	fuzzParser(f, func(_ *testing.T, b []byte) error { _, err := ParseHub("f", b); return err }, "listen = [\"unix:///x\"]\n[leases]\nclaim = \"1m\"\n")
}

func FuzzParseTrust(f *testing.F) {
	fuzzParser(f, func(t *testing.T, b []byte) error {
		tr, err := ParseTrust("f", b)
		if err == nil {
			again, err := ParseTrust("f", tr.format())
			require.NoError(t, err)
			require.Equal(t, tr, again)
		}
		return err
	}, "schema = 1\n[[all]]\ncheckout = \"/a\"\n", "[[hooks]]\ncheckout = \"/a b\"\nsha256 = \"0000000000000000000000000000000000000000000000000000000000000000\"\n")
}
