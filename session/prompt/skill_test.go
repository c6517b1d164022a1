package prompt_test

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/session/prompt"
)

func skill(name, workflows, states string) []byte {
	return []byte("---\nname: " + name + "\nworkflows: [" + workflows + "]\nstates: [" + states + "]\n---\nDo " + name + ".\n")
}

func TestTheBuiltInSkillsOwnEveryClaimableStateOnce(t *testing.T) {
	t.Parallel()
	set, err := prompt.Skills(nil)
	require.NoError(t, err)
	want := []string{"/qualification"}
	for _, w := range domain.Workflows() {
		for _, s := range w.States {
			if s.Claimable {
				want = append(want, domain.ServeKey(w.ID, s.Name))
			}
		}
	}
	slices.Sort(want)
	require.Equal(t, want, set.Serves())
	for pair, name := range map[[2]string]string{
		{"", "qualification"}: "qualify", {"gaia_chore", "todo"}: "qualify", {"gaia_feature", "spec"}: "spec",
		{"gaia_bug", "diagnose"}: "diagnose", {"gaia_bug", "coding"}: "code", {"gaia_chore", "review"}: "review",
		{"gaia_task", "working"}: "task", {"gaia_review", "review"}: "judge",
	} {
		s, err := set.For(pair[0], pair[1])
		require.NoError(t, err)
		require.Equal(t, name, s.Name)
	}
	_, err = set.For("gaia_feature", "backlog")
	require.ErrorContains(t, err, "no skill owns the state backlog of gaia_feature")
}

// TestASkillNamesEveryWayOnAndNoOther: a line `gaia ticket move … # where: why` holds for the workflows and states that its
// comment begins with, or for all that the skill owns. So read, the lines are exactly what the workflows allow.
func TestASkillNamesEveryWayOnAndNoOther(t *testing.T) {
	t.Parallel()
	set, err := prompt.Skills(nil)
	require.NoError(t, err)
	for _, s := range set.All() {
		require.LessOrEqual(t, strings.Count(s.Body, "\n")+1, 120, "%s is read each time", s.Name)
		for _, w := range s.Workflows {
			for _, state := range s.States {
				if domain.Claimable(w, state) {
					require.Equal(t, allowed(w, state), named(t, s, w, state), "%s, %s %s", s.Name, w, state)
				}
			}
		}
	}
}

// allowed returns where a ticket may go from a state, as "workflow state".
func allowed(workflow, state string) []string {
	var out []string
	for _, w := range append(domain.Workflows(), domain.Workflow{ID: workflow}) {
		for _, to := range append(domain.OpenStates(), domain.StateDone, domain.StateCancelled) {
			if w.ID != workflow && (to == domain.StateHumanInput || to == domain.StateCancelled) {
				continue // a ticket that is asked about or given up keeps the workflow that it has
			}
			if w, to, err := domain.Transition(domain.Ticket{Workflow: domain.Ref(workflow), State: state}, &w.ID, to); err == nil {
				out = append(out, w+" "+to)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

var moveLine = regexp.MustCompile(`(?m)^gaia ticket move (?:--workflow (\S+) )?(\S+) +# (.+)$`)

// named returns where a skill lets a ticket go, in the same form.
func named(t *testing.T, s prompt.Skill, workflow, state string) []string {
	t.Helper()
	names := []string{prompt.UnqualifiedName}
	for _, w := range domain.Workflows() {
		names = append(names, w.ID)
		for _, st := range w.States {
			names = append(names, st.Name)
		}
	}
	var out []string
	for _, m := range moveLine.FindAllStringSubmatch(s.Body, -1) {
		var workflows, states []string
		if scope, _, ok := strings.Cut(m[3], ": "); ok {
			words := strings.Split(scope, ", ")
			if !slices.ContainsFunc(words, func(w string) bool { return !slices.Contains(names, w) }) {
				for _, w := range words {
					if _, ok := domain.WorkflowByID(w); ok {
						workflows = append(workflows, w)
					} else {
						states = append(states, w)
					}
				}
			}
		}
		if len(workflows) > 0 && !slices.Contains(workflows, workflow) || len(states) > 0 && !slices.Contains(states, state) {
			continue
		}
		out = append(out, cmp.Or(m[1], workflow)+" "+m[2])
	}
	slices.Sort(out)
	return out
}

func TestASkillOfTheRepositoryReplacesOneOfTheSameName(t *testing.T) {
	t.Parallel()
	set, err := prompt.Skills(map[string][]byte{
		".gaia/skills/my-code.md":     skill("code", "gaia_feature, gaia_bug, gaia_chore", "coding"),
		".gaia/skills/README.md":      []byte("not a skill"),
		".gaia/skills/pictures/a.md":  []byte("not a skill"),
		".gaia/skills/something.json": []byte("{}"),
	})
	require.NoError(t, err)
	s, err := set.For("gaia_bug", "coding")
	require.NoError(t, err)
	require.Equal(t, "Do code.", s.Body)
	require.Equal(t, ".gaia/skills/my-code.md", s.Source)
}

func TestAStateOfNoneOrTwoIsAnErrorBeforeAnythingIsClaimed(t *testing.T) {
	t.Parallel()
	set, err := prompt.Skills(map[string][]byte{
		".gaia/skills/hunt.md": skill("hunt", "gaia_bug", "diagnose"),
		".gaia/skills/code.md": skill("code", "gaia_feature, gaia_bug", "coding"),
	})
	require.ErrorContains(t, err, "the state diagnose of gaia_bug is owned by diagnose (built-in diagnose.md) and hunt (.gaia/skills/hunt.md)")
	require.ErrorContains(t, err, "no skill owns the state coding of gaia_chore")
	require.NotContains(t, set.Serves(), "gaia_bug/diagnose")
	require.NotContains(t, set.Serves(), "gaia_chore/coding")
	require.Contains(t, set.Serves(), "gaia_bug/coding")

	_, err = prompt.Skills(map[string][]byte{
		".gaia/skills/a.md": skill("code", "gaia_bug, gaia_feature, gaia_chore", "coding"),
		".gaia/skills/b.md": skill("code", "gaia_bug, gaia_feature, gaia_chore", "coding"),
	})
	require.ErrorContains(t, err, "skill .gaia/skills/b.md: the name code is that of .gaia/skills/a.md already")
}

func TestParseSkillNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"no front matter":  {"Do it.", "its first line must be ---"},
		"no end":           {"---\nname: a\n", "a line --- must close it"},
		"unknown key":      {"---\nname: a\nstate: [coding]\n---\nx", "field state not found"},
		"key twice":        {"---\nname: a\nname: b\n---\nx", "already"},
		"wrong type":       {"---\nname: [a]\n---\nx", "cannot unmarshal"},
		"no name":          {"---\nworkflows: [gaia_bug]\nstates: [coding]\n---\nx", `name ""`},
		"bad name":         {"---\nname: ../a\nworkflows: [gaia_bug]\nstates: [coding]\n---\nx", `name "../a"`},
		"no workflows":     {"---\nname: a\nstates: [coding]\n---\nx", "workflows is missing"},
		"no states":        {"---\nname: a\nworkflows: [gaia_bug]\n---\nx", "states is missing"},
		"no text":          {"---\nname: a\nworkflows: [gaia_bug]\nstates: [coding]\n---\n\n", "no text"},
		"unknown workflow": {"---\nname: a\nworkflows: [gaia_bugs]\nstates: [coding]\n---\nx", `no workflow "gaia_bugs"`},
		"empty workflow":   {"---\nname: a\nworkflows: ['']\nstates: [coding]\n---\nx", "unqualified for tickets without one"},
		"unknown state":    {"---\nname: a\nworkflows: [gaia_bug]\nstates: [spec]\n---\nx", `no agent works in the state "spec" of gaia_bug`},
		"people's state":   {"---\nname: a\nworkflows: [gaia_bug]\nstates: [backlog]\n---\nx", `"backlog"`},
		"two documents":    {"---\nname: a\n--- \nname: b\n---\nx", "only one document"},
		"no text file":     {"---\nname: \xff\n---\nx", "not UTF-8"},
		"too large":        {"---\n" + strings.Repeat("x", 300<<10), "at most"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := prompt.ParseSkill(".gaia/skills/a.md", []byte(c.text))
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, ".gaia/skills/a.md")
		})
	}
}

func TestParseSkillTakesOtherLineEnds(t *testing.T) {
	t.Parallel()
	s, err := prompt.ParseSkill("a.md", []byte("\ufeff---\r\nname: a\r\nworkflows: [unqualified]\r\nstates: [Qualification]\r\ninputs:\r\n  tests: make check\r\n---\r\nDo\r\nit.\r\n"))
	require.NoError(t, err)
	require.Equal(t, prompt.Skill{
		Name: "a", Body: "Do\nit.", Source: "a.md", Workflows: []string{""}, States: []string{"qualification"},
		Inputs: map[string]string{"tests": "make check"},
	}, s)
}

func FuzzParseSkill(f *testing.F) {
	f.Add(string(skill("a", "gaia_bug", "coding")))
	f.Add("---\nname: &a [*a]\n---\nx")
	f.Add("---\n---\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := prompt.ParseSkill("a.md", []byte(text))
		if err != nil {
			return
		}
		require.NotEmpty(t, s.Name)
		require.NotEmpty(t, s.Body)
		require.NotEmpty(t, s.Workflows)
		require.NotEmpty(t, s.States)
	})
}
