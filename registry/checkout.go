package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"gaia/domain"
)

// The paths that Gaia reads of a checkout, relative to it.
const (
	CheckoutFile = ".gaia/conductor.toml"
	SkillsDir    = ".gaia/skills"
	WorkflowFile = "WORKFLOW.md"
)

// maxSpares bounds how much disk is taken for tickets that may never come.
const maxSpares = 8

// Who pushes a run's branch.
const (
	PushNever = "never" // nothing leaves the machine unasked
	PushAgent = "agent" // the agent, before it hands over
)

// Schema is the version of conductor.toml, conductors.json and trust.toml.
const Schema = 1

// Checkout is conductor.toml, committed with a checkout. Every key but schema, project and slug has a default.
//
//	schema = 1
//	project = "SHOP"             # key
//	slug = "shop"                # proposed as the name of the instance
//	max_parallel = 2             # runs at the same time
//	max_load = 8                 # load average per processor above which nothing is claimed; 0 is no limit
//	states = ["coding"]          # default: every claimable state
//
//	[slots]                      # runs at the same time per state
//	coding = 1
//
//	[agent]
//	default = "claude"           # default: default_agent of machine.toml
//	permissions = "edits"        # ask, edits or all
//
//	[workspace]
//	root = "~/trees/shop"        # default: below the data folder
//	branch_prefix = "gaia/"
//	push = "never"               # or "agent"
//	fetch_timeout = "30s"
//	min_free_disk = "1G"         # nothing is claimed with less
//	submodules = true            # false leaves them empty in new trees
//	spares = 1                   # worktrees that are made before a ticket needs them
//
//	[hooks.after_create]         # also before_run, after_run, before_remove; run by sh -c in the worktree
//	run = "pnpm install"
//	timeout = "60s"
//
//	[limits]                     # of one run; default: none, but two hours
//	memory_max = "4G"
//	tasks_max = 512
//	cpu_weight = 100
//	run_time = "2h"
//
//	[timing]                     # for tests and slow machines
//	tick = "15s"                 # between looks at hub, units and trees; also the heartbeat
//	grace = "20s"                # for an agent to end its turn after its state write
//	tree_timeout = "20m"         # for the worktree of a run to be made
//	blocked = "15m"              # for a question of an agent to be answered before its run is stalled
type Checkout struct {
	Schema      int
	Project     string
	Slug        string
	MaxParallel int
	MaxLoad     int // load average per processor; 0 is no limit
	Slots       map[string]int
	States      []string
	Agent       CheckoutAgent
	Workspace   Workspace
	Hooks       domain.Hooks
	Limits      domain.RunLimits
	Timing      Timing
}

// CheckoutAgent is which agent a checkout wants and what that may do.
type CheckoutAgent struct{ Default, Permissions string }

// Workspace is where and how a checkout's worktrees are made.
type Workspace struct {
	Root         string // "" is Home.TreesDir; see Checkout.TreesRoot
	BranchPrefix string
	Push         string
	FetchTimeout time.Duration
	MinFreeDisk  uint64 // bytes
	Submodules   bool   // fill them in new trees
	Spares       int    // worktrees that are made before a ticket needs them
}

// Timing are the conductor's times.
type Timing struct {
	Tick        time.Duration
	Grace       time.Duration
	TreeTimeout time.Duration
	Blocked     time.Duration
}

// DefaultCheckout is a checkout whose file has nothing but schema, project and slug.
func DefaultCheckout(project, slug string) Checkout {
	return Checkout{
		Schema: Schema, Project: project, Slug: slug, MaxParallel: 2, MaxLoad: 8,
		Agent:     CheckoutAgent{Permissions: PermissionsEdits},
		Workspace: Workspace{BranchPrefix: "gaia/", Push: PushNever, FetchTimeout: 30 * time.Second, MinFreeDisk: 1 << 30, Submodules: true, Spares: 1},
		Limits:    domain.RunLimits{Time: domain.DefaultRunTime},
		Timing:    Timing{Tick: 15 * time.Second, Grace: 20 * time.Second, TreeTimeout: 20 * time.Minute, Blocked: 15 * time.Minute},
	}
}

// TreesRoot is where the worktrees of an instance are.
func (c Checkout) TreesRoot(h Home, instance string) string {
	root := c.Workspace.Root
	if rest, ok := strings.CutPrefix(root, "~/"); ok {
		return filepath.Join(h.User, rest)
	}
	if root != "" {
		return root
	}
	return h.TreesDir(instance)
}

// LoadCheckout reads the conductor.toml of a checkout.
func LoadCheckout(dir string) (Checkout, error) {
	path := filepath.Join(dir, CheckoutFile)
	data, err := readConfig(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Checkout{}, &ConfigError{File: path, Err: fmt.Errorf("the file does not exist; gaia init writes it: %w", domain.ErrNotFound)}
	}
	if err != nil {
		return Checkout{}, err
	}
	return ParseCheckout(path, data)
}

var branchPrefix = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*/?$`)
})

func checkBranchPrefix(s string) error {
	if !branchPrefix().MatchString(s) || strings.Contains(s, "..") || strings.Contains(s, ".lock") || strings.HasSuffix(s, ".") || strings.Contains(s, "./") || len(s) > 100 {
		return fmt.Errorf("%q cannot start the name of a branch: use letters, digits, - and _ in parts that end with /, such as \"gaia/\"", s)
	}
	return nil
}

// ParseCheckout reads conductor.toml; name is the file in errors.
func ParseCheckout(name string, data []byte) (Checkout, error) {
	t, err := parse(name, data)
	if err != nil {
		return Checkout{}, err
	}
	c := DefaultCheckout("", "")
	for _, key := range []string{"schema", "project", "slug"} {
		if !t.has(key) {
			t.fail(key, "is missing; gaia init writes a complete file")
		}
	}
	c.Schema = int(t.integer("schema", Schema, Schema, Schema))
	c.Project = t.str("project", "", domain.CheckProjectKey)
	c.Slug = t.str("slug", "", domain.CheckSlug)
	c.MaxParallel = int(t.integer("max_parallel", int64(c.MaxParallel), 1, 1000))
	c.MaxLoad = int(t.integer("max_load", int64(c.MaxLoad), 0, 1000))
	claimable := oneOf(domain.ClaimableStates()...)
	c.States = t.strings("states", claimable)
	if t.has("states") && len(c.States) == 0 {
		t.fail("states", "is empty, so nothing would ever be claimed: leave it out for every claimable state")
	}
	slots := t.sub("slots")
	for _, state := range slices.Sorted(maps.Keys(slots.values)) {
		if err := claimable(state); err != nil {
			slots.known = append(slots.known, state)
			slots.fail(state, "%w", err)
			continue
		}
		if c.Slots == nil {
			c.Slots = map[string]int{}
		}
		c.Slots[state] = int(slots.integer(state, 0, 0, 1000))
	}
	agent := t.sub("agent")
	c.Agent.Default = agent.str("default", "", checkAgentName)
	c.Agent.Permissions = agent.str("permissions", c.Agent.Permissions, permissions)
	agent.done()

	w := t.sub("workspace")
	c.Workspace.Root = w.str("root", "", func(s string) error {
		if !filepath.IsAbs(s) && !strings.HasPrefix(s, "~/") {
			return fmt.Errorf("%q must be an absolute path or start with ~/", s)
		}
		return nil
	})
	c.Workspace.BranchPrefix = w.str("branch_prefix", c.Workspace.BranchPrefix, checkBranchPrefix)
	c.Workspace.Push = w.str("push", c.Workspace.Push, oneOf(PushNever, PushAgent))
	c.Workspace.FetchTimeout = w.duration("fetch_timeout", c.Workspace.FetchTimeout, 100*time.Millisecond, 10*time.Minute)
	c.Workspace.MinFreeDisk = w.size("min_free_disk", c.Workspace.MinFreeDisk)
	c.Workspace.Submodules = w.boolean("submodules", c.Workspace.Submodules)
	c.Workspace.Spares = int(w.integer("spares", int64(c.Workspace.Spares), 0, maxSpares))
	w.done()

	hooks := t.sub("hooks")
	for _, h := range []struct {
		name string
		hook *domain.Hook
	}{
		{domain.HookAfterCreate, &c.Hooks.AfterCreate}, {domain.HookBeforeRun, &c.Hooks.BeforeRun},
		{domain.HookAfterRun, &c.Hooks.AfterRun}, {domain.HookBeforeRemove, &c.Hooks.BeforeRemove},
	} {
		there := hooks.has(h.name)
		ht := hooks.sub(h.name)
		if !there {
			continue
		}
		h.hook.Script = ht.text("run")
		h.hook.Timeout = ht.duration("timeout", domain.DefaultHookTimeout, time.Millisecond, time.Hour)
		if strings.TrimSpace(h.hook.Script) == "" {
			ht.fail("run", "is missing: a hook needs a script")
		}
		ht.done()
	}
	hooks.done()

	l := t.sub("limits")
	c.Limits.MemoryMax = l.size("memory_max", 0)
	if m := c.Limits.MemoryMax; m > 0 && m < 16<<20 {
		l.fail("memory_max", "less than 16M ends every agent at once")
	}
	c.Limits.TasksMax = uint64(l.integer("tasks_max", 0, 8, 1<<22))
	c.Limits.CPUWeight = uint64(l.integer("cpu_weight", 0, 1, 10000))
	c.Limits.Time = l.duration("run_time", c.Limits.Time, time.Second, 7*24*time.Hour)
	l.done()

	tm := t.sub("timing")
	c.Timing.Tick = tm.duration("tick", c.Timing.Tick, 10*time.Millisecond, 30*time.Second)
	c.Timing.Grace = tm.duration("grace", c.Timing.Grace, 0, 10*time.Minute)
	c.Timing.TreeTimeout = tm.duration("tree_timeout", c.Timing.TreeTimeout, 100*time.Millisecond, 24*time.Hour)
	c.Timing.Blocked = tm.duration("blocked", c.Timing.Blocked, 100*time.Millisecond, 7*24*time.Hour)
	tm.done()
	t.done()
	if err := t.doc.finish(); err != nil {
		return Checkout{}, err
	}
	return c, nil
}

// InitCheckout creates the conductor.toml of a checkout: what differs from the defaults. domain.ErrExists: there is one,
// and it was not touched.
func InitCheckout(dir string, c Checkout) error {
	path := filepath.Join(dir, CheckoutFile)
	data := c.format()
	if _, err := ParseCheckout(path, data); err != nil {
		return fmt.Errorf("not written: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("making %s: %w", filepath.Dir(path), err)
	}
	return createNew(path, data, 0o644)
}

func (c Checkout) format() []byte {
	var b strings.Builder
	d := DefaultCheckout(c.Project, c.Slug)
	head := ""
	section := func(name string) { head = "\n[" + name + "]\n" }
	line := func(differs bool, key, value string) {
		if differs {
			b.WriteString(head + key + " = " + value + "\n")
			head = ""
		}
	}
	dur := func(v time.Duration) string { return quote(short(v)) }
	num := func(v any) string { return fmt.Sprint(v) }

	b.WriteString("# How Gaia works on this checkout. Every key is described in gaia-conductor.toml(5).\n")
	line(true, "schema", num(Schema))
	line(true, "project", quote(c.Project))
	line(true, "slug", quote(c.Slug))
	line(true, "max_parallel", num(c.MaxParallel))
	line(c.MaxLoad != d.MaxLoad, "max_load", num(c.MaxLoad))
	line(len(c.States) > 0, "states", quoteList(c.States))
	section("slots")
	for _, state := range slices.Sorted(maps.Keys(c.Slots)) {
		line(true, state, num(c.Slots[state]))
	}
	section("agent")
	line(c.Agent.Default != "", "default", quote(c.Agent.Default))
	line(c.Agent.Permissions != d.Agent.Permissions, "permissions", quote(c.Agent.Permissions))
	section("workspace")
	line(c.Workspace.Root != "", "root", quote(c.Workspace.Root))
	line(c.Workspace.BranchPrefix != d.Workspace.BranchPrefix, "branch_prefix", quote(c.Workspace.BranchPrefix))
	line(c.Workspace.Push != d.Workspace.Push, "push", quote(c.Workspace.Push))
	line(c.Workspace.FetchTimeout != d.Workspace.FetchTimeout, "fetch_timeout", dur(c.Workspace.FetchTimeout))
	line(c.Workspace.MinFreeDisk != d.Workspace.MinFreeDisk, "min_free_disk", quote(num(c.Workspace.MinFreeDisk)))
	line(c.Workspace.Submodules != d.Workspace.Submodules, "submodules", num(c.Workspace.Submodules))
	line(c.Workspace.Spares != d.Workspace.Spares, "spares", num(c.Workspace.Spares))
	for _, name := range []string{domain.HookAfterCreate, domain.HookBeforeRun, domain.HookAfterRun, domain.HookBeforeRemove} {
		h, err := c.Hooks.Named(name)
		section("hooks." + name)
		line(err == nil && h.Set(), "run", quote(h.Script))
		line(h.Set() && h.Timeout != 0 && h.Timeout != domain.DefaultHookTimeout, "timeout", dur(h.Timeout))
	}
	section("limits")
	line(c.Limits.MemoryMax != 0, "memory_max", quote(num(c.Limits.MemoryMax)))
	line(c.Limits.TasksMax != 0, "tasks_max", num(c.Limits.TasksMax))
	line(c.Limits.CPUWeight != 0, "cpu_weight", num(c.Limits.CPUWeight))
	line(c.Limits.Time != d.Limits.Time, "run_time", dur(c.Limits.Time))
	section("timing")
	line(c.Timing.Tick != d.Timing.Tick, "tick", dur(c.Timing.Tick))
	line(c.Timing.Grace != d.Timing.Grace, "grace", dur(c.Timing.Grace))
	line(c.Timing.TreeTimeout != d.Timing.TreeTimeout, "tree_timeout", dur(c.Timing.TreeTimeout))
	line(c.Timing.Blocked != d.Timing.Blocked, "blocked", dur(c.Timing.Blocked))
	return []byte(b.String())
}
