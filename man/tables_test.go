package man

import (
	"encoding/xml"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5/introspect"
	"github.com/stretchr/testify/require"

	"gaia/agent"
	"gaia/daemon"
	"gaia/domain"
	"gaia/internal/log"
	"gaia/session"
	"gaia/session/prompt"
	"gaia/tmux"
	"gaia/units"
	"gaia/workspace"
)

// The workflows are those of the domain, table by table and row by row.
func TestWorkflows(t *testing.T) {
	t.Parallel()
	p := pageNamed(t, "gaia-workflows(7)")
	described := map[string][][]string{}
	for _, s := range (page{text: p.part(t, 2, "WORKFLOWS")}).parts(3) {
		id := s.heading
		if id == "No workflow yet" {
			id = domain.Unqualified
		}
		all := tables(s.text)
		require.Len(t, all, 1, s.heading)
		described[id] = all[0]
	}
	ids := []string{domain.Unqualified}
	for _, w := range domain.Workflows() {
		ids = append(ids, w.ID)
	}
	require.ElementsMatch(t, ids, slices.Collect(maps.Keys(described)))
	for _, id := range ids {
		w, ok := domain.WorkflowByID(id)
		require.True(t, ok)
		var want [][]string
		var open []string
		for _, s := range w.States {
			switch s.Name {
			case domain.StateHumanInput, domain.StateCancelled:
				continue // said once, for all
			}
			name, next := s.Name, "final"
			if s.Claimable {
				name += "*"
			}
			if !s.Terminal {
				open = append(open, s.Name)
				rest, common := s.Next[:len(s.Next)-2], s.Next[len(s.Next)-2:]
				require.Equal(t, []string{domain.StateHumanInput, domain.StateCancelled}, common)
				next = strings.Join(rest, ", ")
			}
			want = append(want, []string{name, next})
		}
		require.Equal(t, want, described[id], id)
		back, ok := w.State(domain.StateHumanInput)
		require.True(t, ok)
		require.Equal(t, append(open, domain.StateCancelled), back.Next)
	}
}

// The built-in skills are the ones that are listed, and the example is a skill.
func TestSkills(t *testing.T) {
	t.Parallel()
	part := pageNamed(t, "gaia-workflows(7)").part(t, 2, "SKILLS")
	set, err := prompt.Skills(nil)
	require.NoError(t, err)
	var want [][]string
	for _, s := range set.All() {
		workflows := slices.Clone(s.Workflows)
		for i, w := range workflows {
			if w == domain.Unqualified {
				workflows[i] = prompt.UnqualifiedName
			}
		}
		want = append(want, []string{s.Name, strings.Join(workflows, ", "), strings.Join(s.States, ", ")})
	}
	require.Equal(t, want, tables(part)[0])
	var leaves [][]string
	for _, s := range set.All() {
		var types []string
		for _, m := range regexp.MustCompile("comment of\\s+type `([a-z_]+)`").FindAllStringSubmatch(s.Body, -1) {
			types = append(types, m[1])
		}
		slices.Sort(types)
		leaves = append(leaves, []string{s.Name, strings.Join(slices.Compact(types), ", ")})
	}
	var described [][]string
	for _, row := range tables(part)[1] {
		described = append(described, row[:2])
	}
	require.Equal(t, leaves, described)
	require.Len(t, blocks(part), 1)
	s, err := prompt.ParseSkill("example", []byte(blocks(part)[0]))
	require.NoError(t, err)
	require.Len(t, s.Inputs, 1)
}

func TestRunStates(t *testing.T) {
	t.Parallel()
	states := []domain.RunState{domain.RunClaimed, domain.RunRunning, domain.RunDone, domain.RunFailed, domain.RunExpired}
	var want [][]string
	for _, from := range states {
		var next []string
		for _, to := range states {
			if from.CanMove(to) {
				next = append(next, string(to))
			}
		}
		if from.Ended() {
			next = []string{"final"}
		}
		want = append(want, []string{string(from), strings.Join(next, ", ")})
	}
	require.Equal(t, want, tables(pageNamed(t, "gaia-workflows(7)").part(t, 2, "RUNS"))[0])
}

func TestGates(t *testing.T) {
	t.Parallel()
	var want []string
	for _, g := range domain.Gates(domain.GateInput{}) {
		want = append(want, g.Gate)
	}
	require.Equal(t, want, column(tables(pageNamed(t, "gaia-workflows(7)").part(t, 2, "GATES"))[0], 0))
}

func TestReasons(t *testing.T) {
	t.Parallel()
	p := pageNamed(t, "gaia-workflows(7)")
	got := map[domain.Reason]string{}
	for _, row := range tables(p.part(t, 2, "REASONS"))[0] {
		got[domain.Reason(row[0])] = row[1]
	}
	want := map[domain.Reason]string{}
	for _, r := range domain.Reasons() {
		want[r] = "-"
		switch {
		case r.CountsAttempt():
			want[r] = "attempt"
		case r.CountsInfra():
			want[r] = "machinery"
		}
	}
	require.Equal(t, want, got)

	source, err := os.ReadFile("../domain/reason.go")
	require.NoError(t, err)
	var holds []string
	for _, m := range regexp.MustCompile(`Reason[A-Za-z]+\s+Reason = "([a-z_]+)"`).FindAllStringSubmatch(string(source), -1) {
		if !domain.Reason(m[1]).EndsRun() {
			holds = append(holds, m[1])
		}
	}
	require.ElementsMatch(t, holds, column(tables(p.part(t, 2, "ATTEMPTS AND HOLDS"))[0], 0))
}

// The numbers that the text names are the built-in ones.
func TestLimitsInTheText(t *testing.T) {
	t.Parallel()
	l := domain.DefaultLimits()
	require.Equal(t, "10s 5m0s 3 10 24h0m0s 15m0s 5 5m0s 30m0s", strings.Join([]string{
		l.BackoffBase.String(), l.BackoffMax.String(), string(rune('0' + l.MaxAttempts)), "10", l.InfraWindow.String(), l.LimitedWait.String(),
		string(rune('0' + l.MaxEntries)), l.FinaliseGrace.String(), l.WaitingAfter.String(),
	}, " "), "gaia-workflows(7) names these numbers in its text; change it there, too")
	require.Equal(t, 10, l.MaxInfra)
}

func TestReapRules(t *testing.T) {
	t.Parallel()
	var want [][]string
	for _, r := range workspace.ReapRules() {
		want = append(want, []string{r.Name, r.Text})
	}
	require.Equal(t, want, tables(pageNamed(t, "gaia-conductor(1)").part(t, 3, "gaia conductor reap [INSTANCE]"))[0])
}

func TestUnits(t *testing.T) {
	t.Parallel()
	n, err := units.NewNames("")
	require.NoError(t, err)
	want := []string{n.Run("shop", 12)}
	for name, text := range units.Files(n, units.Paths{Bin: "/usr/bin"}) {
		want = append(want, strings.Replace(name, "@.", "@shop.", 1))
		m := regexp.MustCompile(`(?m)^Documentation=man:(\S+)$`).FindSubmatch(text)
		require.NotNil(t, m, "%s names no page", name)
		require.Contains(t, pageNamed(t, string(m[1])).text, strings.NewReplacer("@.", "@").Replace(strings.TrimSuffix(name, filepath.Ext(name))), "%s is not in the page that it names", name)
	}
	p := pageNamed(t, "gaia-systemd(7)")
	require.ElementsMatch(t, want, column(tables(p.part(t, 2, "UNITS"))[0], 0))

	source, err := os.ReadFile("../units/transient.go")
	require.NoError(t, err)
	for _, row := range tables(p.part(t, 2, "UNITS OF RUNS"))[0] {
		for _, name := range strings.Split(row[0], ", ") {
			require.Regexp(t, `[Pp]rop(\("|)`+name+`\b`, string(source), "runs have no property %s", name)
		}
	}
}

func TestPlainTmux(t *testing.T) {
	t.Parallel()
	want := strings.Join(tmux.Server{Socket: "/run/user/1000/gaia/r/0123456789ab.sock"}.AttachArgs(false), " ") + "\n"
	require.Contains(t, blocks(pageNamed(t, "gaia-systemd(7)").part(t, 2, "SESSIONS")), want)
}

func TestJournal(t *testing.T) {
	t.Parallel()
	all := tables(pageNamed(t, "gaia-systemd(7)").part(t, 2, "JOURNAL"))
	require.Len(t, all, 2)
	require.Equal(t, []string{log.Project, log.Ticket, log.Run, log.Conductor, log.Reason, log.MessageID}, column(all[0], 0))
	var want [][]string
	for _, e := range strings.Split(string(log.Catalog()), "\n-- ")[1:] {
		lines := strings.SplitN(e, "\n", 3)
		want = append(want, []string{lines[0], strings.TrimPrefix(lines[1], "Subject: ")})
	}
	require.Equal(t, want, all[1])
	for _, p := range pages(t) {
		for _, m := range regexp.MustCompile(`MESSAGE_ID=([0-9a-f]{32})`).FindAllStringSubmatch(p.text, -1) {
			require.Contains(t, column(want, 0), m[1], p)
		}
	}
}

// The interface is described as it describes itself, down to types and order.
func TestBusObject(t *testing.T) {
	t.Parallel()
	p := pageNamed(t, "org.gaia.Conductor1(5)")
	text, err := daemon.BusDescription("gaia")
	require.NoError(t, err)
	var node introspect.Node
	require.NoError(t, xml.Unmarshal(text, &node))
	require.Len(t, node.Interfaces, 1)
	all := node.Interfaces[0]
	require.Equal(t, p.name, all.Name)
	table := func(heading string, columns int) (out [][]string) {
		for _, row := range tables(p.part(t, 2, heading))[0] {
			out = append(out, row[:columns])
		}
		return out
	}
	types := func(args []introspect.Arg, direction string) string {
		var out []string
		for _, a := range args {
			if a.Direction == direction {
				out = append(out, a.Type)
			}
		}
		return strings.Join(out, ", ")
	}
	var properties, methods, signals [][]string
	for _, v := range all.Properties {
		require.Equal(t, "read", v.Access)
		properties = append(properties, []string{v.Name, v.Type, v.Annotations[0].Value})
	}
	for _, m := range all.Methods {
		methods = append(methods, []string{m.Name, types(m.Args, "in"), types(m.Args, "out")})
	}
	for _, s := range all.Signals {
		var args []string
		for _, a := range s.Args {
			args = append(args, a.Type+" "+a.Name)
		}
		signals = append(signals, []string{s.Name, strings.Join(args, ", ")})
	}
	require.Equal(t, properties, table("PROPERTIES", 3))
	require.Equal(t, methods, table("METHODS", 3))
	require.Equal(t, signals, table("SIGNALS", 2))

	source, err := os.ReadFile("../daemon/bus.go")
	require.NoError(t, err)
	var failures []string
	for _, m := range regexp.MustCompile(`(?m)^\terr[A-Z]\w+\s+= "([A-Z]\w+)"`).FindAllStringSubmatch(string(source), -1) {
		failures = append(failures, m[1])
	}
	require.Equal(t, failures, column(table("ERRORS", 1), 0))
	require.Equal(t, 15.0, daemon.DefaultTick.Seconds(), "gaia-conductor(8) names the tick")
}

func TestRunFolder(t *testing.T) {
	t.Parallel()
	p := pageNamed(t, "gaia-session(8)")
	want := []string{"hook-NAME.log"}
	for _, f := range []string{"../session/folder.go", "../daemon/files.go", "../session/host/host.go", "../session/host/gate.go", "../agent/claude.go"} {
		source, err := os.ReadFile(f)
		require.NoError(t, err)
		found := regexp.MustCompile(`(?m)^(?:const)?\s*[fF]ile[A-Z]\w+\s+= "([a-z.-]+)"`).FindAllStringSubmatch(string(source), -1)
		require.NotEmpty(t, found, f)
		for _, m := range found {
			want = append(want, m[1])
		}
	}
	require.ElementsMatch(t, want, column(tables(p.part(t, 2, "RUN FOLDER"))[0], 0))

	record := tables(p.part(t, 2, "RECORD"))
	require.Len(t, record, 2)
	require.Equal(t, jsonKeys(session.Record{}), slices.Sorted(slices.Values(column(record[0], 0))))
	source, err := os.ReadFile("../session/record.go")
	require.NoError(t, err)
	var causes []string
	for _, m := range regexp.MustCompile(`Cause[A-Z]\w+\s+= "([a-z]+)"`).FindAllStringSubmatch(string(source), -1) {
		causes = append(causes, m[1])
	}
	require.Equal(t, causes, column(record[1], 0))
	for _, row := range record[1] {
		for _, word := range regexp.MustCompile(`[a-z]+_[a-z_]+`).FindAllString(row[2], -1) {
			require.True(t, domain.Reason(word).EndsRun(), "%s is no reason", word)
		}
	}
}

func TestEnvironmentOfRuns(t *testing.T) {
	t.Parallel()
	want := slices.Sorted(maps.Keys(session.Folder("/r").Variables(session.Spec{}, "", "", domain.Tree{}, "/h")))
	source, err := os.ReadFile("../session/host/hook.go")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`env\["(GAIA_[A-Z_]+)"\]`).FindAllStringSubmatch(string(source), -1) {
		want = append(want, m[1])
	}
	slices.Sort(want)
	var got []string
	for _, term := range terms(pageNamed(t, "gaia-session(8)").part(t, 2, "ENVIRONMENT OF AGENTS")) {
		for _, m := range regexp.MustCompile(`\*\*(GAIA_[A-Z_]+)\*\*`).FindAllStringSubmatch(term, -1) {
			got = append(got, m[1])
		}
	}
	slices.Sort(got)
	require.Equal(t, slices.Compact(want), got)
}

// Every profile has its part, and what claude takes over from the user manager is named.
func TestAgents(t *testing.T) {
	t.Parallel()
	p := pageNamed(t, "gaia-agents(7)")
	for _, name := range agent.Known() {
		require.NotEmpty(t, p.part(t, 2, strings.ToUpper(name)))
	}
	named := regexp.MustCompile(`\b[A-Z]+(?:_[A-Z]+)+\b`).FindAllString(p.part(t, 3, "Environment"), -1)
	require.ElementsMatch(t, append([]string{"DISABLE_AUTOUPDATER"}, agent.EnvNames(agent.Claude)...), named)
	for _, row := range tables(p.part(t, 3, "What it tells"))[1] {
		require.True(t, domain.Reason(row[1]).EndsRun(), row[1])
	}
}
