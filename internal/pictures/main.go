// Command pictures takes the pictures of the guides: terminals in which gaia is really run, on a hub, a conductor and agents of
// their own, drawn as SVG. It writes a tar archive to standard output. The agents are the real Claude Code, on a scripted
// model. It must not show what the commands do not print; only the names of this machine's folders are put in other words.
//
// Nothing of the installation of whoever calls it is seen or changed: it uses a user manager of its own where it can, and names of
// its own where it cannot.
package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gaia/internal/codingagent"
	"gaia/internal/model"
	"gaia/internal/usermanager"
)

// limit is far more than the pictures need on a slow machine.
const limit = 5 * time.Minute

func main() {
	codingagent.Install()
	code, isInside := usermanager.Run(os.Args[1:])
	if !isInside {
		os.Exit(code)
	}
	if err := pictures(os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "pictures: %v\n", err)
		os.Exit(1)
	}
}

// picture is one terminal: the command that runs in it, and words that are on its screen when the picture is taken.
type picture struct {
	name, title   string
	command       []string
	columns, rows int
	until         []string
	stays         bool // the command does not end by itself
}

var album = []picture{
	{
		name: "board", title: "gaia board: tickets in columns by state, two of them at work", command: []string{"gaia", "board"}, columns: 124, rows: 12,
		until: []string{"run 1 running", "run 2 running", "held: person"},
	},
	{
		name: "status", title: "gaia conductor status: unit, hub and load of a conductor", command: []string{"gaia", "conductor", "status"}, columns: 124, rows: 14,
		until: []string{"2/2 running, hub ok", "2 of 2 slots in use"},
	},
	{
		name: "attach", title: "gaia attach SHOP-1: the terminal of the agent that works on the ticket", command: []string{"gaia", "attach", "SHOP-1"}, columns: 96, rows: 27, stays: true,
		until: []string{"prefers-color-scheme", subject, "esc to interrupt", "SHOP-1"},
	},
}

// pictures sets up a shop with its tickets, takes all pictures and writes them as an archive.
func pictures(out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	env, err := usermanager.NewEnv()
	if err != nil {
		return err
	}
	s := studio{ctx: ctx, env: env, checkout: filepath.Join(env.Home, "shop")}
	defer func() {
		if err != nil {
			fmt.Fprintln(os.Stderr, env.Story())
		}
		err = errors.Join(err, env.Close())
	}()
	program, err := codingagent.Program(codingagent.Claude)
	if err != nil {
		return err
	}
	m, err := model.Start()
	if err != nil {
		return err
	}
	defer m.Close()
	m.On("", codingagent.Work(thoughts))
	agent, err := codingagent.ScriptedClaude(program, m.URL(), filepath.Join(env.Home, "claude"))
	if err != nil {
		return err
	}
	if err := s.shop(agent); err != nil {
		return err
	}
	archive := tar.NewWriter(out)
	for _, p := range album {
		screen, err := s.take(p)
		if err != nil {
			return err
		}
		drawn := svg(p.title, screen)
		if err := archive.WriteHeader(&tar.Header{Name: p.name + ".svg", Mode: 0o644, Size: int64(len(drawn))}); err != nil {
			return fmt.Errorf("write the archive: %w", err)
		}
		if _, err := archive.Write(drawn); err != nil {
			return fmt.Errorf("write the archive: %w", err)
		}
	}
	if err := archive.Close(); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	return nil
}

// subject is too long for one line of the command and not for one of its output.
const subject = "Follow the colours that the visitor's system asks for"

// long is a thought that no picture waits for the end of.
var long = model.Say("").After(limit)

// thoughts are what the model does in the states in which agents are at work in the pictures.
var thoughts = map[string]model.Script{
	"coding": model.Steps(
		model.Use("Write", map[string]string{"file_path": "theme.css", "content": strings.Join([]string{
			":root { --paper: #ffffff; --ink: #1b1f27; }", "", "@media (prefers-color-scheme: dark) {",
			"  :root { --paper: #1b1f27; --ink: #e8eaf0; }", "}", "",
		}, "\n")}),
		model.Bash(`git add theme.css && git commit --quiet -m "`+subject+`" && git log --oneline -1`),
		long,
	),
	"review": model.Steps(model.Bash("git log --oneline main.."), long),
}

// studio is where the pictures are taken.
type studio struct {
	ctx      context.Context
	env      usermanager.Env
	checkout string
}

// shop makes a repository and a home for Gaia, starts a conductor, and hands in tickets.
func (s studio) shop(agent string) error {
	for path, text := range map[string]string{
		filepath.Join(s.checkout, "README.md"): "# The shop\n",
		// A machine that is busy otherwise is no reason to wait.
		filepath.Join(s.checkout, ".gaia/conductor.toml"): "schema = 1\nproject = \"SHOP\"\nslug = \"shop\"\nmax_parallel = 2\nmax_load = 0\n",
		filepath.Join(s.env.GaiaHome, "machine.toml"):     "user_id = \"ada\"\nhost_id = \"desk\"\ndefault_agent = \"claude\"\n\n" + agent,
		filepath.Join(s.env.Home, "tmux.conf"):            "set -g status off\nset -g remain-on-exit on\nset -g remain-on-exit-format ''\n",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return fmt.Errorf("make a place for the shop: %w", err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return fmt.Errorf("make a place for the shop: %w", err)
		}
	}
	for _, step := range [][]string{
		{"git", "init", "--quiet", "--initial-branch=main"},
		{"git", "config", "user.name", "Ada"},
		{"git", "config", "user.email", "ada@shop.invalid"},
		{"git", "add", "."},
		{"git", "commit", "--quiet", "-m", "A shop"},
		{"gaia", "init", "--yes", "--user-id", "ada", "--host-id", "desk", "--key", "SHOP", "--slug", "shop", "--instance", "shop"},
		{"gaia", "ticket", "create", "Add a dark mode", "--workflow", "gaia_feature", "--state", "coding", "--priority", "1"},
		{"gaia", "ticket", "create", "1,50 read as 150", "--workflow", "gaia_bug", "--state", "review", "--priority", "2"},
		{"gaia", "ticket", "create", "Sort by date", "--workflow", "gaia_feature", "--state", "human_input"},
		{"gaia", "ticket", "create", "Move to Go 1.26", "--workflow", "gaia_chore", "--state", "done"},
		{"gaia", "ticket", "create", "Import stops", "--workflow", "gaia_bug", "--state", "diagnose"},
		{"gaia", "ticket", "hold", "SHOP-5", "--note", "until the new catalogue is here"},
		{"gaia", "ticket", "create", "Name late orders"},
		{"gaia", "conductor", "enable", "--now"},
	} {
		if _, err := s.run(step...); err != nil {
			return err
		}
	}
	return nil
}

// take runs a command in a terminal until what is wanted is to be seen, and returns the screen.
func (s studio) take(p picture) (string, error) {
	last := ""
	for {
		screen, err := s.look(p)
		switch {
		case err != nil:
			return "", fmt.Errorf("%s, which waits for %q: %w; the last screen:\n%s", p.name, p.until, err, last)
		case shows(screen, p.until):
			if !p.stays {
				screen = "$ " + strings.Join(p.command, " ") + "\n" + screen
			}
			return anonymous(screen, s.env.Home, s.env.Prefix), nil
		}
		last = screen
	}
}

// look runs the command once, in a terminal of its own, and returns the screen when the picture can be taken or no more is to come.
func (s studio) look(p picture) (screen string, err error) {
	// A server that ends takes its socket along, and would take that of the next one.
	folder, err := os.MkdirTemp(s.env.Home, "screen-")
	if err != nil {
		return "", fmt.Errorf("make a terminal: %w", err)
	}
	tmux := func(args ...string) (string, error) {
		return s.run(append([]string{"tmux", "-u", "-S", filepath.Join(folder, "sock"), "-f", filepath.Join(s.env.Home, "tmux.conf")}, args...)...)
	}
	start := []string{"new-session", "-d", "-x", strconv.Itoa(p.columns), "-y", strconv.Itoa(p.rows), "-c", s.checkout}
	if _, err := tmux(append(start, p.command...)...); err != nil {
		return "", err
	}
	defer func() {
		_, killed := tmux("kill-server")
		err = errors.Join(err, killed)
	}()
	for {
		ended, err := tmux("list-panes", "-F", "#{pane_dead}")
		if err != nil {
			return "", err
		}
		if screen, err = tmux("capture-pane", "-p", "-e", "-N"); err != nil {
			return "", err
		}
		if p.stays && shows(screen, p.until) || strings.TrimSpace(ended) == "1" {
			return screen, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// shows tells whether all the words are on a screen, whatever colours they have.
func shows(screen string, words []string) bool {
	var text strings.Builder
	for _, row := range parse(screen) {
		for _, c := range row {
			text.WriteString(c.text)
		}
		text.WriteByte('\n')
	}
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text.String(), w) })
}

// anonymous puts the names of an ordinary installation in the place of the studio's. What stands behind them stays where it is.
func anonymous(screen, home, prefix string) string {
	for _, name := range []struct{ is, shall string }{{home, "/home/ada"}, {prefix, "gaia"}} {
		word := regexp.MustCompile(regexp.QuoteMeta(name.is) + `([^\s\x1b]*)`)
		screen = word.ReplaceAllString(screen, name.shall+"${1}"+strings.Repeat(" ", max(len(name.is)-len(name.shall), 0)))
	}
	return screen
}

// run runs a command as the shop's owner and returns what it prints.
func (s studio) run(words ...string) (string, error) {
	cmd := s.env.CommandContext(s.ctx, words[0], words[1:]...)
	cmd.Dir = s.checkout
	for i, kv := range cmd.Env {
		if strings.HasPrefix(kv, "NO_COLOR=") {
			cmd.Env = append(cmd.Env[:i:i], cmd.Env[i+1:]...)
			break
		}
	}
	out, err := cmd.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = fmt.Errorf("%w\n%s", err, failed.Stderr)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(words, " "), err)
	}
	return string(out), nil
}
