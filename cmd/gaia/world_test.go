package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"gaia/domain"
	"gaia/internal/hubtest"
	"gaia/registry"
	"gaia/remote"
	"gaia/session"
)

var update = flag.Bool("update", false, "write the golden files anew")

// world is a user's home with a hub to talk to.
type world struct {
	t   *testing.T
	hub *hubtest.Hub
	env map[string]string
	dir string // in which commands are called
}

func newWorld(t *testing.T) *world {
	t.Helper()
	home := t.TempDir()
	w := &world{t: t, hub: hubtest.New(t, hubtest.Options{}), dir: t.TempDir()}
	w.env = map[string]string{
		"HOME": home, "GAIA_HOME": filepath.Join(home, "gaia"), "GAIA_HUB": w.hub.URL, "XDG_RUNTIME_DIR": t.TempDir(),
		"PATH": os.Getenv("PATH"), "USER": "anna", "TERM": "xterm",
	}
	w.write("gaia/machine.toml", "user_id = \"anna\"\nhost_id = \"box\"\n\n[agents.script]\nprogram = [\"sh\"]\n")
	return w
}

// write writes a file below the home folder.
func (w *world) write(name, text string) string {
	w.t.Helper()
	path := filepath.Join(w.env["HOME"], name)
	require.NoError(w.t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(w.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// with returns the world with another environment.
func (w *world) with(pairs ...string) *world {
	c := *w
	c.env = map[string]string{}
	for k, v := range w.env {
		c.env[k] = v
	}
	for i := 0; i < len(pairs); i += 2 {
		c.env[pairs[i]] = pairs[i+1]
	}
	return &c
}

// inside returns the world as it is inside a run.
func (w *world) inside(a *domain.Assignment, token string, pairs ...string) *world {
	return w.with(append([]string{"GAIA_RUN", a.Run.ID, "GAIA_TICKET", a.Ticket.Identifier, "GAIA_TOKEN_FILE", token}, pairs...)...)
}

func (w *world) app(in io.Reader, out, errs io.Writer) *app {
	return &app{
		in: in, out: out, err: errs, getenv: func(k string) string { return w.env[k] }, getwd: func() (string, error) { return w.dir, nil },
		journalctl: w.env["journalctl"],
	}
}

// answer is what one call of the command has said.
type answer struct {
	out, err string
	code     int
}

func (w *world) call(in string, args ...string) answer {
	w.t.Helper()
	r := w.with("stdin", in).raw(args...)
	for _, s := range []string{r.out, r.err} {
		require.NotContains(w.t, s, "\x1b", "an escape code where there is no terminal: gaia %q", args)
	}
	return r
}

// raw calls the command and returns whatever it has said. It may be called from any goroutine.
func (w *world) raw(args ...string) answer {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	code := w.app(strings.NewReader(w.env["stdin"]), &out, &errs).run(ctx, args)
	return answer{out.String(), errs.String(), code}
}

// gaia calls the command, which must succeed, and returns its output.
func (w *world) gaia(args ...string) string {
	w.t.Helper()
	r := w.call("", args...)
	require.Zero(w.t, r.code, "gaia %q: %s", args, r.err)
	require.Empty(w.t, r.err, "gaia %q", args)
	return r.out
}

// fails calls the command, which must end with code and print nothing on stdout, and returns what it said.
func (w *world) fails(code int, args ...string) string {
	w.t.Helper()
	r := w.call("", args...)
	require.Equal(w.t, code, r.code, "gaia %q: %s%s", args, r.out, r.err)
	require.Empty(w.t, r.out, "gaia %q", args)
	require.True(w.t, strings.HasPrefix(r.err, "gaia: "), r.err)
	return r.err
}

// json calls the command with -o json and reads its output.
func (w *world) json(v any, args ...string) {
	w.t.Helper()
	require.NoError(w.t, json.Unmarshal([]byte(w.gaia(append([]string{"-o", "json"}, args...)...)), v), "gaia %q", args)
}

func (w *world) ticket(args ...string) domain.Ticket {
	w.t.Helper()
	var k domain.Ticket
	w.json(&k, append([]string{"ticket"}, args...)...)
	return k
}

// forms calls the command in every output form and holds them against each other: JSON and YAML say the same, and name
// says one word a line.
func (w *world) forms(args ...string) (table string, data any, names []string) {
	w.t.Helper()
	table = w.gaia(args...)
	js := w.gaia(append([]string{"-o", "json"}, args...)...)
	require.NoError(w.t, json.Unmarshal([]byte(js), &data))
	var fromYAML any
	ys := w.gaia(append([]string{"-o", "yaml"}, args...)...)
	require.NoError(w.t, yaml.Unmarshal([]byte(ys), &fromYAML), ys)
	again, err := json.Marshal(plain(fromYAML))
	require.NoError(w.t, err)
	want, err := json.Marshal(data)
	require.NoError(w.t, err)
	if !strings.Contains(js, `"at": `) { // a snapshot says when it was made
		require.JSONEq(w.t, string(want), string(again))
	}
	for _, line := range strings.Split(strings.TrimSuffix(w.gaia(append([]string{"-o", "name"}, args...)...), "\n"), "\n") {
		if line != "" {
			names = append(names, line)
		}
	}
	return table, data, names
}

// plain makes of a time that YAML has read as one the text that JSON has.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = plain(v[k])
		}
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case time.Time:
		return v.UTC().Format("2006-01-02T15:04:05.000Z")
	}
	return v
}

var (
	uuidForm  = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	timeForm  = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z`)
	ageForm   = regexp.MustCompile(`\b\d{1,2}s( *)`)
	trailing  = regexp.MustCompile(`(?m) +$`)
	hashForm  = regexp.MustCompile(`\b[0-9a-f]{64}\b`)
	countForm = regexp.MustCompile(`\b\d+ entries`)
)

// golden holds text against a golden file, with what differs from run to run replaced.
func golden(t *testing.T, name, text string, replace ...string) {
	t.Helper()
	text = strings.NewReplacer(replace...).Replace(text)
	ids := map[string]string{}
	text = uuidForm.ReplaceAllStringFunc(text, func(id string) string {
		if ids[id] == "" {
			ids[id] = fmt.Sprintf("UUID-%d", len(ids)+1)
		}
		return ids[id]
	})
	text = timeForm.ReplaceAllString(text, "TIME")
	text = hashForm.ReplaceAllString(text, "HASH")
	text = countForm.ReplaceAllString(text, "N entries")
	text = ageForm.ReplaceAllStringFunc(text, func(age string) string { // keeps a column's width
		return "0s" + strings.Repeat(" ", max(0, len(age)-2))
	})
	text = trailing.ReplaceAllString(text, "") // of an age at the end of its line
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "go test ./cmd/gaia -update writes it")
	require.Equal(t, string(want), text, "go test ./cmd/gaia -update writes it anew")
}

// shop makes a project, a conductor and tickets in several situations, and returns the conductor's client.
func (w *world) shop() *remote.Client {
	w.t.Helper()
	p := w.hub.Project(w.t, "SHOP")
	con, _ := w.hub.Conductor(w.t, p, "shop")
	return con
}

// claim lets the conductor claim and returns the assignment with the token of its run.
func (w *world) claim(con *remote.Client) (*domain.Assignment, string) {
	w.t.Helper()
	file, sum := hubtest.Token(w.t)
	_, err := con.Heartbeat(w.t.Context(), domain.Beat{}) // a test may take longer than a silent conductor counts as online
	require.NoError(w.t, err)
	a, err := con.Claim(w.t.Context(), domain.ClaimRequest{Run: newRunID(w.t), TokenSHA256: sum, Offer: hubtest.Offer()})
	require.NoError(w.t, err)
	require.NotNil(w.t, a, "there is nothing to claim")
	return a, file
}

// git runs git in a folder as somebody.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=T", "-c", "user.email=t@gaia.invalid"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "git %q: %s", args, out)
	return strings.TrimSpace(string(out))
}

// repository makes a git checkout with one commit.
func repository(t *testing.T, parent, name string) string {
	t.Helper()
	dir := filepath.Join(parent, name)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	git(t, dir, "init", "--quiet", "--initial-branch=main")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "README.md"), []byte("# A shop\n"), 0o644))
	git(t, dir, "add", ".")
	git(t, dir, "commit", "--quiet", "-m", "A shop")
	return dir
}

func newRunID(t *testing.T) string {
	t.Helper()
	id, err := uuid.NewV7()
	require.NoError(t, err)
	return id.String()
}

// registryInit makes a checkout one of a project.
func registryInit(dir, key string) error {
	return registry.InitCheckout(dir, registry.DefaultCheckout(key, strings.ToLower(key)))
}

// printed has a run claimed, whose terminal has shown something.
func (w *world) printed(output string) (*domain.Assignment, session.Folder) {
	w.t.Helper()
	con := w.shop()
	w.ticket("create", "T")
	a, _ := w.claim(con)
	folder := session.Folder(filepath.Join(w.env["GAIA_HOME"], "state", "runs", a.Run.ID))
	require.NoError(w.t, os.MkdirAll(string(folder), 0o700))
	require.NoError(w.t, os.WriteFile(folder.Path(session.FileOutput), []byte(output), 0o600))
	return a, folder
}
