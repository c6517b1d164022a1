//go:build linux && (boot || vm)

package boot

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/internal/scriptagent"
)

const (
	user     = "ada"
	uid      = 1000 // of the first ordinary user of a Debian
	home     = "/home/" + user
	checkout = home + "/shop"
	// patience is how long a test waits for what must come. It is far more than an idle machine needs.
	patience = 10 * time.Minute
)

// command is what is to be run on the machine under test, with its arguments as they are.
type command struct {
	user, dir, stdin string
	argv             []string
}

// environ is what somebody has who has not logged in, but asked for the user's own rights.
func (c command) environ() []string {
	env := []string{"LANG=C.UTF-8", "TERM=dumb", "NO_COLOR=1", "DEBIAN_FRONTEND=noninteractive"}
	if c.user == "root" {
		return append(env, "USER=root", "LOGNAME=root", "HOME=/root", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	}
	return append(env, "USER="+user, "LOGNAME="+user, "HOME="+home, "SHELL=/bin/bash", "PATH=/usr/local/bin:/usr/bin:/bin",
		fmt.Sprintf("XDG_RUNTIME_DIR=/run/user/%d", uid))
}

// args are the arguments of a program that runs as root and becomes the command.
func (c command) args() []string {
	args := []string{"env", "--ignore-environment", "--chdir=" + c.dir}
	args = append(args, c.environ()...)
	if c.user != "root" {
		args = append(args, "setpriv", fmt.Sprintf("--reuid=%d", uid), fmt.Sprintf("--regid=%d", uid), "--init-groups", "--")
	}
	return append(args, c.argv...)
}

type result struct {
	stdout, stderr string
	code           int
}

// machine is a Debian that is up: a container or a virtual machine.
type machine struct {
	t *testing.T
	// run runs a command to its end. An error says that it could not be run, not that it failed.
	run func(command) (result, error)
}

func (m machine) try(c command) result {
	m.t.Helper()
	r, err := m.run(c)
	require.NoError(m.t, err, "%q", c.argv)
	return r
}

func (m machine) must(c command) string {
	m.t.Helper()
	r := m.try(c)
	require.Zero(m.t, r.code, "%q\n%s%s", c.argv, r.stdout, r.stderr)
	return r.stdout
}

// root runs a command as the administrator would.
func (m machine) asRoot(argv ...string) string {
	m.t.Helper()
	return m.must(command{user: "root", dir: "/", argv: argv})
}

// ada runs a command of the ordinary user in the checkout.
func (m machine) ada(argv ...string) string {
	m.t.Helper()
	return m.must(command{user: user, dir: checkout, argv: argv})
}

// write writes a file of the ordinary user's.
func (m machine) write(path, text string) {
	m.t.Helper()
	m.must(command{user: user, dir: "/", argv: []string{"mkdir", "-p", filepath.Dir(path)}})
	m.must(command{user: user, dir: "/", stdin: text, argv: []string{"tee", path}})
}

// wait waits until the machine is as wanted. Asking it takes as long as it takes, so there is no more than a breath between.
func (m machine) wait(what string, cond func() bool) {
	m.t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			m.t.Fatalf("waited %s in vain until %s", patience, what)
		}
	}
}

// booted waits until the machine has come up, and everything on it.
func (m machine) booted() {
	m.t.Helper()
	m.wait("systemd answers", func() bool {
		r, err := m.run(command{user: "root", dir: "/", argv: []string{"systemctl", "is-system-running"}})
		return err == nil && !strings.Contains("offline unknown initializing starting", strings.TrimSpace(r.stdout))
	})
	require.Equal(m.t, "running", strings.TrimSpace(m.try(command{user: "root", dir: "/", argv: []string{"systemctl", "is-system-running"}}).stdout),
		m.try(command{user: "root", dir: "/", argv: []string{"systemctl", "--failed", "--no-pager"}}).stdout)
}

func (m machine) bootID() string {
	m.t.Helper()
	return strings.TrimSpace(m.asRoot("cat", "/proc/sys/kernel/random/boot_id"))
}

// versions are those of the programs that Gaia stands on.
func (m machine) versions() string {
	m.t.Helper()
	var found []string
	for _, name := range []string{"systemd", "tmux", "git"} {
		found = append(found, name+" "+m.asRoot("dpkg-query", "--show", "--showformat=${Version}", name))
	}
	return strings.Join(found, ", ")
}

// status is what gaia conductor status tells, standard error included.
func (m machine) status() string {
	m.t.Helper()
	r := m.try(command{user: user, dir: checkout, argv: []string{"gaia", "conductor", "status", "shop"}})
	require.Zero(m.t, r.code, "%s%s", r.stdout, r.stderr)
	return r.stdout + r.stderr
}

// property is one property of a unit of the ordinary user's.
func (m machine) property(unit, name string) string {
	m.t.Helper()
	return strings.TrimSpace(m.ada("systemctl", "--user", "show", "--value", "--property="+name, unit))
}

// agent is a script that takes a ticket to done, except that in coding it waits for the file go-TICKET, with work of its
// tree not committed. A ticket that is called hungry eats all the memory there is.
const agent = `#!/bin/sh
set -eu
note() { echo "$GAIA_TICKET $GAIA_STATE $GAIA_RUN $1" >>"$HOME/noted"; }
note started
cd "$GAIA_WORKTREE"
if [ "$GAIA_STATE" = coding ]; then
	case $(gaia ticket show -o json) in *'"title": "hungry"'*) exec tail /dev/zero ;; esac
	if [ ! -e boot ]; then
		cat /proc/sys/kernel/random/boot_id >boot.new
		sync boot.new
		mv boot.new boot
		sync .
	fi
	note waits
	until [ -e "$HOME/go-$GAIA_TICKET" ]; do sleep 0.2; done
	git add boot
	git commit --quiet --allow-empty -m "Note the boot"
fi
"$HOME/bin/script-agent"
note ended
`

// moveIn makes an ordinary user whose units start with the machine, with a repository on which Gaia is to work. more are
// lines of its conductor.toml, in front of the first table and behind the last.
func (m machine) moveIn(scalars, tables string) {
	m.t.Helper()
	m.asRoot("loginctl", "enable-linger", user)
	m.wait("the user manager is up", func() bool {
		return m.try(command{user: user, dir: "/", argv: []string{"systemctl", "--user", "is-active", "default.target"}}).code == 0
	})
	m.write(home+"/.gitconfig", "[user]\n\tname = Ada\n\temail = ada@gaia.invalid\n")
	m.write(checkout+"/README.md", "# A shop\n")
	m.ada("git", "init", "--quiet", "--initial-branch=main")
	m.ada("git", "add", ".")
	m.ada("git", "commit", "--quiet", "-m", "A shop")

	path, err := scriptagent.Write(m.t.TempDir())
	require.NoError(m.t, err)
	script, err := os.ReadFile(path)
	require.NoError(m.t, err)
	m.write(home+"/bin/script-agent", string(script))
	m.write(home+"/bin/agent", agent)
	m.ada("chmod", "755", home+"/bin/script-agent", home+"/bin/agent")
	m.write(home+"/.gaia/machine.toml", fmt.Sprintf("user_id = %q\nhost_id = \"box\"\ndefault_agent = \"script\"\n\n[agents.script]\nprogram = [%q]\n", user, home+"/bin/agent"))
	m.ada("chmod", "700", home+"/.gaia")
	m.ada("gaia", "init", "--yes", "--key", "SHOP", "--slug", "shop", "--agent", "script")
	// However busy the machine is on which this one is: tickets are claimed, and soon.
	m.write(checkout+"/.gaia/conductor.toml", "schema = 1\nproject = \"SHOP\"\nslug = \"shop\"\nmax_load = 0\n"+scalars+"\n[timing]\ntick = \"1s\"\n"+tables)
	m.ada("git", "add", ".gaia")
	m.ada("git", "commit", "--quiet", "-m", "Let Gaia work here")
	m.ada("gaia", "conductor", "enable", "--now", "--no-linger")
}

// ticket creates a ticket and returns its identifier.
func (m machine) ticket(title string) string {
	m.t.Helper()
	return strings.TrimSpace(m.ada("gaia", "ticket", "create", "-o", "name", "--", title))
}

// release lets the agent of a ticket go on.
func (m machine) release(identifier string) {
	m.t.Helper()
	m.write(home+"/go-"+identifier, "")
}

// view is what `gaia ticket show -o json` prints.
type view struct {
	domain.Ticket
	Runs []domain.Run `json:"runs"`
}

func (m machine) show(identifier string) view {
	m.t.Helper()
	var v view
	require.NoError(m.t, json.Unmarshal([]byte(m.ada("gaia", "ticket", "show", "-o", "json", "--", identifier)), &v))
	return v
}

// coding waits until the agent of a ticket waits in coding, and returns its run.
func (m machine) coding(identifier string) domain.Run {
	m.t.Helper()
	var run domain.Run
	m.wait(identifier+" is at work in coding", func() bool {
		for _, r := range m.show(identifier).Runs {
			if r.State == domain.RunRunning && r.StateAtStart == "coding" && m.noted(identifier, "coding", r.ID, "waits") {
				run = r
				return true
			}
		}
		return false
	})
	return run
}

// noted reports whether the agent has written such a line.
func (m machine) noted(words ...string) bool {
	m.t.Helper()
	r := m.try(command{user: user, dir: home, argv: []string{"grep", "--fixed-strings", "--line-regexp", "--quiet", "--", strings.Join(words, " "), "noted"}})
	return r.code == 0
}

// done waits until a ticket is done and its runs are closed, and returns it.
func (m machine) done(identifier string) view {
	m.t.Helper()
	var v view
	m.wait(identifier+" is done", func() bool {
		v = m.show(identifier)
		for _, r := range v.Runs {
			if r.FinalizedAt.IsZero() {
				return false
			}
		}
		return v.State == "done"
	})
	require.Nil(m.t, v.Hold)
	require.Contains(m.t, m.ada("gaia", "hub", "verify"), "whole")
	return v
}

// none is no run.
var none domain.Run

// onlyLost checks that every run has ended as it should, but for one that the machine took with it.
func (m machine) onlyLost(v view, lost domain.Run) {
	m.t.Helper()
	for _, r := range v.Runs {
		want := domain.Run{State: domain.RunDone}
		if r.ID == lost.ID {
			want = domain.Run{State: domain.RunFailed, EndReason: domain.ReasonMachineLost}
		}
		require.Equal(m.t, [2]string{string(want.State), string(want.EndReason)}, [2]string{string(r.State), string(r.EndReason)}, "run %d: %s", r.Number, r.EndNote)
	}
	want := scriptagent.Runs
	if lost.ID != "" {
		want++
	}
	require.Len(m.t, v.Runs, want)
}

// lines are the non-empty lines of a text.
func lines(text string) (out []string) {
	for line := range bytes.Lines([]byte(text)) {
		if s := strings.TrimSpace(string(line)); s != "" {
			out = append(out, s)
		}
	}
	return out
}
