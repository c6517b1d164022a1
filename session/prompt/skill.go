package prompt

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"gaia/domain"
	"gaia/registry"
)

//go:embed skills/*.md
var builtin embed.FS

// UnqualifiedName is how a skill's front matter names tickets that have no workflow yet.
const UnqualifiedName = "unqualified"

// maxSkill is the largest skill, in bytes.
const maxSkill = 256 << 10

// Skill tells an agent how to work on tickets in the states that it owns.
type Skill struct {
	Name      string
	Body      string // Markdown
	Source    string // where it comes from, for people
	Workflows []string
	States    []string
	Inputs    map[string]string // name and value; shown to the agent
}

// SkillSet is every skill that a commit offers.
type SkillSet struct {
	skills []Skill
	owners map[string][]int // ServeKey to indices of skills
}

var skillName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z][a-z0-9_-]{0,63}$`) })

// ParseSkill reads a skill: Markdown under a front matter of name, workflows, states and inputs.
func ParseSkill(source string, data []byte) (Skill, error) {
	fail := func(format string, a ...any) (Skill, error) {
		return Skill{}, fmt.Errorf("skill %s: %w", source, fmt.Errorf(format, a...))
	}
	if len(data) > maxSkill {
		return fail("has %d bytes; at most %d are allowed", len(data), maxSkill)
	}
	if !utf8.Valid(data) {
		return fail("is not UTF-8 text")
	}
	text := strings.ReplaceAll(strings.TrimPrefix(string(data), "\ufeff"), "\r\n", "\n")
	rest, ok := strings.CutPrefix(text, "---\n")
	if !ok {
		return fail("has no front matter: its first line must be ---")
	}
	front, body, ok := strings.Cut("\n"+rest, "\n---\n")
	if !ok {
		return fail("has a front matter without an end: a line --- must close it")
	}
	var meta struct {
		Name      string            `yaml:"name"`
		Workflows []string          `yaml:"workflows"`
		States    []string          `yaml:"states"`
		Inputs    map[string]string `yaml:"inputs"`
	}
	dec := yaml.NewDecoder(strings.NewReader(front))
	dec.KnownFields(true)
	if err := dec.Decode(&meta); err != nil && !errors.Is(err, io.EOF) {
		return fail("front matter: %w", err)
	}
	if err := dec.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		return fail("front matter: only one document is allowed")
	}
	s := Skill{Name: meta.Name, Body: strings.TrimSpace(body), Source: source, Inputs: meta.Inputs}
	switch {
	case !skillName().MatchString(s.Name):
		return fail("name %q must be a lower-case letter and at most 63 more of a-z, 0-9, _ and -", s.Name)
	case s.Body == "":
		return fail("has no text under its front matter")
	case len(meta.Workflows) == 0:
		return fail("workflows is missing")
	case len(meta.States) == 0:
		return fail("states is missing")
	}
	for _, w := range meta.Workflows {
		id := w
		if w == UnqualifiedName {
			id = domain.Unqualified
		} else if _, ok := domain.WorkflowByID(w); !ok || w == domain.Unqualified {
			return fail("%w, or %s for tickets without one", domain.UnknownWorkflow(w), UnqualifiedName)
		}
		s.Workflows = append(s.Workflows, id)
	}
	for _, state := range meta.States {
		state = domain.NormaliseState(state)
		if !slices.ContainsFunc(s.Workflows, func(w string) bool { return domain.Claimable(w, state) }) {
			return fail("no agent works in the state %q of %s", state, strings.Join(meta.Workflows, ", "))
		}
		s.States = append(s.States, state)
	}
	return s, nil
}

// pairs returns the claimable states that s owns, as ServeKeys.
func (s Skill) pairs() []string {
	var out []string
	for _, w := range s.Workflows {
		for _, state := range s.States {
			if domain.Claimable(w, state) {
				out = append(out, domain.ServeKey(w, state))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Skills returns the built-in skills, overridden by the files of .gaia/skills (by path, as they stand in a commit): one of
// the same name replaces, others add. The error tells every file that cannot be read and every state that no skill or
// more than one owns; the set is usable even then, for the states that Serves lists.
func Skills(override map[string][]byte) (SkillSet, error) {
	var errs []error
	byName := map[string]Skill{}
	own := map[string]Skill{}
	for _, name := range builtinNames() {
		data, err := builtin.ReadFile(name)
		if err != nil {
			return SkillSet{}, fmt.Errorf("reading a built-in skill: %w", err)
		}
		s, err := ParseSkill("built-in "+path.Base(name), data)
		if err != nil {
			return SkillSet{}, err
		}
		byName[s.Name] = s
	}
	for _, file := range slices.Sorted(maps.Keys(override)) {
		if path.Dir(file) != registry.SkillsDir || path.Ext(file) != ".md" || strings.EqualFold(path.Base(file), "README.md") {
			continue
		}
		s, err := ParseSkill(file, override[file])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if first, ok := own[s.Name]; ok {
			errs = append(errs, fmt.Errorf("skill %s: the name %s is that of %s already", file, s.Name, first.Source))
			continue
		}
		own[s.Name], byName[s.Name] = s, s
	}
	set := SkillSet{owners: map[string][]int{}}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		set.skills = append(set.skills, byName[name])
		for _, key := range byName[name].pairs() {
			set.owners[key] = append(set.owners[key], len(set.skills)-1)
		}
	}
	for _, p := range claimablePairs() {
		if _, err := set.For(p[0], p[1]); err != nil {
			errs = append(errs, err)
		}
	}
	return set, errors.Join(errs...)
}

func builtinNames() []string {
	names, err := fs.Glob(builtin, "skills/*.md")
	if err != nil {
		panic("globbing the built-in skills: " + err.Error()) // the pattern is a constant
	}
	return names
}

// claimablePairs returns every workflow and state that an agent can work in.
func claimablePairs() [][2]string {
	var out [][2]string
	unqualified, _ := domain.WorkflowByID(domain.Unqualified)
	for _, w := range append([]domain.Workflow{unqualified}, domain.Workflows()...) {
		for _, s := range w.States {
			if s.Claimable {
				out = append(out, [2]string{w.ID, s.Name})
			}
		}
	}
	return out
}

// For returns the skill that owns a state, or an error that says that none does or names those that do.
func (s SkillSet) For(workflow, state string) (Skill, error) {
	owners := s.owners[domain.ServeKey(workflow, state)]
	if workflow == domain.Unqualified {
		workflow = "tickets without a workflow"
	}
	switch len(owners) {
	case 0:
		return Skill{}, fmt.Errorf("no skill owns the state %s of %s: add one to %s", state, workflow, registry.SkillsDir)
	case 1:
		return s.skills[owners[0]], nil
	}
	var names []string
	for _, i := range owners {
		names = append(names, fmt.Sprintf("%s (%s)", s.skills[i].Name, s.skills[i].Source))
	}
	return Skill{}, fmt.Errorf("the state %s of %s is owned by %s: only one may own it", state, workflow, strings.Join(names, " and "))
}

// Serves returns the ServeKey of every claimable state that exactly one skill owns, sorted.
func (s SkillSet) Serves() []string {
	var out []string
	for key, owners := range s.owners {
		if len(owners) == 1 {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

// All returns every skill, sorted by name.
func (s SkillSet) All() []Skill { return slices.Clone(s.skills) }

// bom is what some editors put before a text.
var bom = []byte("\ufeff")

// plain returns a committed text file as UTF-8 with \n, or an error that people see.
func plain(name string, data []byte) (string, error) {
	if !utf8.Valid(data) {
		return "", fmt.Errorf("%s is not UTF-8 text", name)
	}
	return clean(string(bytes.TrimPrefix(data, bom))), nil
}
