package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "gaia"

// mayImport is the direction of the house: what each room may import of ours. A room is a folder with everything
// below it that is no room itself; the names on the right are rooms too. Packages of one room may import each other. Whoever adds a room, or a way between two, adds it here, where a reader sees it.
var mayImport = map[string][]string{
	"domain": {},

	// The hub knows tickets and leases, and nothing of how a machine runs them.
	"hub":        {"domain", "hub/auth", "hub/store", "internal/clock", "internal/durable", "internal/log"},
	"hub/store":  {"domain", "hub/events", "internal/durable"},
	"hub/auth":   {"domain"},
	"hub/events": {"domain", "hub/store"},
	"hub/api":    {"domain", "hub", "hub/auth", "hub/store", "docs", "internal/log"},
	"hub/web":    {"domain", "hub", "hub/auth", "hub/store", "internal/render", "internal/log"},
	// The process around the hub: its settings, sockets and journal.
	"hub/server": {"domain", "hub", "hub/api", "hub/auth", "hub/events", "hub/store", "hub/web", "registry", "units", "docs", "internal/clock", "internal/log", "internal/sdnotify", "internal/version"},

	// Adapters: they know the domain and what lies on this machine, not the daemon. The client speaks in the types of
	// the hub's answers.
	"remote":    {"domain", "hub", "hub/store", "internal/version", "internal/log"},
	"registry":  {"domain", "internal/durable"},
	"units":     {"domain", "internal/cgroup"},
	"session":   {"domain", "internal/durable"},
	"tmux":      {},
	"journal":   {"internal/log"},
	"workspace": {"domain", "internal/durable"},
	"agent":     {"domain", "registry", "session", "internal/durable"},
	// What an agent is told: the skills, and the prompt that is written of them and of a ticket.
	"session/prompt": {"domain", "registry"},
	// Has a run hosted by systemd; the driver of tmux knows of neither.
	"tmux/executor":     {"domain", "session", "units", "internal/cgroup"},
	"tmux/executortest": {"domain", "session"},
	// The main process of a run, which ties a tree's lock, its hooks and a terminal together.
	"session/host": {"domain", "session", "tmux", "workspace", "internal/cgroup", "internal/log", "internal/sdnotify"},

	// The conductor decides; what it decides on reaches it through the domain's ports, wired in cmd.
	"daemon": {"domain", "registry", "session", "session/prompt", "units", "agent", "workspace", "internal/clock", "internal/durable", "internal/log", "internal/version"},

	// Ties the ports together for one machine; only gaia-conductor and tests of the whole use it.
	"daemon/local": {"domain", "daemon", "registry", "session", "units", "agent", "workspace", "remote", "tmux", "tmux/executor", "internal/clock", "internal/log", "internal/version"},
	// Looks at everything of one machine, and changes nothing but what it is told to mend.
	"doctor": {"domain", "registry", "session", "units", "agent", "workspace", "remote", "tmux", "journal", "internal/version"},

	"bus":      {"domain", "registry", "internal/durable", "internal/log", "internal/clock"},
	"factory":  {"domain", "registry", "remote", "internal/durable", "internal/log", "internal/clock", "internal/render"},
	"policy":   {"domain", "registry", "internal/durable", "internal/log", "internal/clock"},
	"importer": {"domain", "registry", "remote", "internal/log", "internal/clock"},
	"billing":  {"domain", "hub/store", "hub/auth", "hub/events", "internal/log", "internal/clock", "internal/render"},

	"internal/cgroup":      {},
	"internal/clock":       {},
	"internal/durable":     {},
	"internal/log":         {"domain"},
	"internal/render":      {"domain"},
	"internal/version":     {},
	"internal/fakes":       {"domain", "internal/clock", "session"},
	"internal/sdnotify":    {},
	"internal/usermanager": {},
	"internal/scriptagent": {},
	"internal/model":       {},
	"internal/codingagent": {"internal/model"},
	"internal/demo":        {"domain", "remote", "units", "registry", "internal/usermanager", "internal/scriptagent", "internal/model", "internal/codingagent", "internal/render"},
	"internal/pictures":    {"internal/usermanager", "internal/model", "internal/codingagent"},
	"internal/bench":       {"domain", "hub/store", "remote", "units", "internal/usermanager"},
	"internal/hubtest":     {"domain", "hub", "hub/api", "hub/auth", "hub/store", "hub/events", "internal/clock", "remote"},
	"internal/e2e":         {},
	"internal/house":       {},
	"internal/dist":        {"daemon", "units"},
	"docs":                 {},
	"packaging":            {},
	"man":                  {},

	// Wiring: everything, but nothing imports it.
	"cmd": {"*"},
}

// testSupport is what only tests may import, from wherever they are.
var testSupport = []string{"internal/usermanager", "internal/fakes", "internal/hubtest", "internal/scriptagent", "internal/model", "internal/codingagent", "hub/store/storetest", "tmux/executortest"}

// file is one Go file of the module.
type file struct {
	path string // from the root
	pkg  string // its folder, from the root
	test bool
	ast  *ast.File
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(dir, "go.mod"))
	return dir
}

var fileSet = token.NewFileSet()

// goFiles parses every Go file, whatever its build tags are: a rule holds on every platform.
func goFiles(t *testing.T) []file {
	t.Helper()
	top := root(t)
	var files []file
	walk(t, top, func(rel string) {
		if !strings.HasSuffix(rel, ".go") {
			return
		}
		parsed, err := parser.ParseFile(fileSet, filepath.Join(top, rel), nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, file{path: rel, pkg: path.Dir(rel), test: strings.HasSuffix(rel, "_test.go"), ast: parsed})
	})
	require.Greater(t, len(files), 50, "the walk does not see the tree")
	return files
}

// walk calls fn with every file of the tree that is source.
func walk(t *testing.T, top string, fn func(rel string)) {
	t.Helper()
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, p)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); rel != "." && (name == ".git" || name == "testdata" || name == "build" || name == "tools") {
				return fs.SkipDir
			}
			return nil
		}
		fn(filepath.ToSlash(rel))
		return nil
	})
	require.NoError(t, err)
}

// within tells whether a package lies in a room.
func within(pkg, room string) bool { return pkg == room || strings.HasPrefix(pkg, room+"/") }

func roomOf(pkg string) (string, bool) {
	best := ""
	for room := range mayImport {
		if within(pkg, room) && len(room) > len(best) {
			best = room
		}
	}
	return best, best != ""
}

func (f file) imports() []string {
	var all []string
	for _, spec := range f.ast.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			all = append(all, p)
		}
	}
	return all
}

func allowed(from, to string) bool {
	room, ok := roomOf(from)
	if !ok {
		return false
	}
	target, ok := roomOf(to)
	return ok && (target == room || slices.Contains(mayImport[room], target) || slices.Contains(mayImport[room], "*"))
}

func TestImportsPointInward(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.path == "internal/house/house_test.go" {
			continue
		}
		if _, ok := roomOf(f.pkg); !ok {
			t.Errorf("%s: no room of the house; say in mayImport what %s may import", f.path, f.pkg)
			continue
		}
		for _, imported := range f.imports() {
			first, _, _ := strings.Cut(imported, "/")
			to, ours := strings.CutPrefix(imported, module+"/")
			switch {
			case !ours && within(f.pkg, "domain") && strings.Contains(first, ".") && !f.test:
				t.Errorf("%s imports %s: the domain imports the standard library only", f.path, imported)
			case !ours:
			case within(to, "cmd"):
				t.Errorf("%s imports %s: nothing imports cmd", f.path, to)
			case within(to, "billing") && !within(f.pkg, "billing") && !within(f.pkg, "cmd"):
				t.Errorf("%s imports %s: nothing above billing imports it", f.path, to)
			case slices.ContainsFunc(testSupport, func(s string) bool { return within(to, s) }):
				support := slices.ContainsFunc(testSupport, func(s string) bool { return within(f.pkg, s) })
				if !f.test && !support && !within(f.pkg, "internal/demo") && !within(f.pkg, "internal/bench") && !within(f.pkg, "internal/pictures") {
					t.Errorf("%s imports %s, which is for tests", f.path, to)
				}
			case f.test:
				// A test may use a neighbour to see that the two fit; that cmd and billing are out of reach is said above.
			case !allowed(f.pkg, to):
				room, _ := roomOf(f.pkg)
				t.Errorf("%s imports %s: %s may import %v of ours; turn the dependency round, or give the way a line in mayImport", f.path, to, room, mayImport[room])
			}
		}
	}
}

func TestTheGuardRefuses(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"tmux/executor", "session", true},
		{"tmux", "session", false},
		{"tmux", "daemon", false},
		{"hub", "daemon", false},
		{"hub", "tmux", false},
		{"hub/api", "workspace", false},
		{"hub/store/sqlite", "session", false},
		{"hub", "hub/api", false},
		{"hub/store/sqlite", "hub/store", true},
		{"domain", "internal/clock", false},
		{"workspace", "tmux", false},
		{"cmd/gaia", "daemon", true},
		{"somewhere", "domain", false},
	} {
		require.Equal(t, c.want, allowed(c.from, c.to), "%s → %s", c.from, c.to)
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	documented := map[string]bool{}
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		doc := f.ast.Doc.Text()
		documented[f.pkg] = documented[f.pkg] || len(doc) > 40
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("%s: no doc comment, or one too short to say what the package is for and what it must not do", pkg)
		}
	}
}

func TestNoPackageIsALumberRoom(t *testing.T) {
	for _, f := range goFiles(t) {
		for _, name := range []string{"util", "utils", "common", "helper", "helpers", "types", "misc", "shared", "base"} {
			if f.ast.Name.Name == name || path.Base(f.pkg) == name {
				t.Errorf("%s: a package is named for what it is about, not %q", f.path, name)
			}
		}
	}
}

// literals calls fn with every string literal of a file that stands for itself, import paths excluded.
func (f file) literals(fn func(text string, at token.Position)) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if _, ok := n.(*ast.ImportSpec); ok {
			return false
		}
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				at := fileSet.Position(lit.Pos())
				at.Filename = f.path
				fn(text, at)
			}
		}
		return true
	})
}

var byName = regexp.MustCompile(`\b(pkill|pgrep|killall)\b`)

func TestNoProcessIsFoundByItsName(t *testing.T) {
	top := root(t)
	for _, f := range goFiles(t) {
		if f.path == "internal/house/house_test.go" {
			continue
		}
		f.literals(func(text string, at token.Position) {
			if byName.MatchString(text) {
				t.Errorf("%s: %q would meet processes that are not ours", at, text)
			}
		})
	}
	walk(t, top, func(rel string) {
		if strings.HasSuffix(rel, ".go") || !(rel == "Makefile" || within(rel, ".ci") || strings.HasSuffix(rel, ".sh")) {
			return
		}
		text, err := os.ReadFile(filepath.Join(top, rel))
		require.NoError(t, err)
		if found := byName.FindString(string(text)); found != "" {
			t.Errorf("%s: %s would meet processes that are not ours", rel, found)
		}
	})
}

// onlyIn fails for every file outside the allowed ones in which a literal matches.
func onlyIn(t *testing.T, match func(string) bool, why string, allowed ...string) {
	t.Helper()
	found := map[string]bool{}
	for _, f := range goFiles(t) {
		if f.test || slices.Contains(testSupport, f.pkg) {
			continue
		}
		f.literals(func(text string, at token.Position) {
			if !match(text) {
				return
			}
			found[f.path] = true
			if !slices.Contains(allowed, f.path) {
				t.Errorf("%s: %q: %s", at, text, why)
			}
		})
	}
	for _, name := range allowed {
		if !found[name] {
			t.Errorf("%s is named as the one place for this, but does not do it: take it out of the list (%s)", name, why)
		}
	}
}

func TestOnlyTheHookRunnerStartsAShell(t *testing.T) {
	shell := regexp.MustCompile(`^(/usr)?(/bin/)?(sh|bash|dash)$`)
	onlyIn(t, shell.MatchString, "programs are started with their arguments, never through a shell; only hooks are shell scripts", "session/host/hook.go")
}

func TestNothingTypesIntoAPane(t *testing.T) {
	typing := regexp.MustCompile(`^(send-keys|send|paste-buffer|pasteb|set-buffer|load-buffer|loadb)$`)
	onlyIn(t, typing.MatchString, "text reaches a pane through one function only, which cleans and verifies it")
}

// TestTheDomainIsPure: it reads no clock, draws nothing at random and touches no file.
func TestTheDomainIsPure(t *testing.T) {
	forbiddenImports := []string{"os", "os/exec", "net", "net/http", "math/rand", "math/rand/v2", "crypto/rand", "log", "syscall", "io/fs"}
	for _, f := range goFiles(t) {
		if f.test || !within(f.pkg, "domain") {
			continue
		}
		for _, imported := range f.imports() {
			if slices.Contains(forbiddenImports, imported) {
				t.Errorf("%s imports %s: the domain does no I/O and draws no randomness", f.path, imported)
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "Sleep", "After", "Tick"}, sel.Sel.Name) {
					t.Errorf("%s: the domain reads no clock", fileSet.Position(sel.Pos()))
				}
			}
			return true
		})
	}
}

// TestNothingLogsAtPanicLevel: the journal's level for it is broadcast to every terminal of the machine.
func TestNothingLogsAtPanicLevel(t *testing.T) {
	for _, f := range goFiles(t) {
		// internal/log is where the level is taken out, should somebody use it nevertheless.
		if f.pkg == "internal/log" || !slices.Contains(f.imports(), "github.com/rs/zerolog") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && (sel.Sel.Name == "Panic" || sel.Sel.Name == "PanicLevel") {
				t.Error(fmt.Sprint(fileSet.Position(sel.Pos()), ": zerolog's panic level is broadcast to terminals"))
			}
			return true
		})
	}
}

// TestNothingIsCompiledAtTheStart: a pattern or template that every start of every command compiles, used or not, is what people
// wait for; one with a large repetition took a third of the start of gaia. sync.OnceValue has it compiled at its first use.
func TestNothingIsCompiledAtTheStart(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		for _, decl := range f.ast.Decls {
			vars, ok := decl.(*ast.GenDecl)
			if !ok || vars.Tok != token.VAR {
				continue
			}
			ast.Inspect(vars, func(n ast.Node) bool {
				if _, later := n.(*ast.FuncLit); later {
					return false
				}
				if sel, ok := n.(*ast.SelectorExpr); ok && (sel.Sel.Name == "MustCompile" || sel.Sel.Name == "Must") {
					t.Errorf("%s: this is compiled at each start; give it to sync.OnceValue", fileSet.Position(sel.Pos()))
				}
				return true
			})
		}
	}
}

// TestRootTestsAreNamedSo: make test finds the tests that need root by this name.
func TestRootTestsAreNamedSo(t *testing.T) {
	for _, f := range goFiles(t) {
		if !f.test {
			continue
		}
		tagged := false
		for _, group := range f.ast.Comments {
			for _, c := range group.List {
				if expr, ok := strings.CutPrefix(c.Text, "//go:build "); ok && c.Pos() < f.ast.Package {
					tagged = tagged || regexp.MustCompile(`(^|[^!\w])root\b`).MatchString(expr)
				}
			}
		}
		for _, decl := range f.ast.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") || fn.Name.Name == "TestMain" {
				continue
			}
			if named := regexp.MustCompile(`^TestRoot([A-Z]|$)`).MatchString(fn.Name.Name); tagged && !named {
				t.Errorf("%s: %s is in a file with the tag root: its name must begin with TestRoot, or nobody runs it", f.path, fn.Name.Name)
			}
		}
	}
}
