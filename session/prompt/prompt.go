// Package prompt writes what the agent of a run is told: its skills are Markdown, built in or of the checkout, and the prompt
// is made of one of them, the checkout's WORKFLOW.md and the ticket. It works on values alone, reads no file and asks nobody.
package prompt

import (
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"gaia/domain"
	"gaia/registry"
)

//go:embed rules.md
var rules string

// Limits of what others have written, in bytes: an agent that has to read for long forgets what it was to do, and many
// read a file in parts only. What is cut is said to be cut, and `gaia ticket show` has it.
const (
	maxWorkflow    = 24 << 10
	maxDescription = 16 << 10
	maxComment     = 8 << 10  // one of them
	maxComments    = 64 << 10 // all of them
	maxFailure     = 4 << 10
	maxLine        = 2 << 10
)

// maxRows is how many links, tickets of one kind and findings are told.
const maxRows = 50

// kept are the types of comments of which the newest is always told, however many others came later: what a run hands to
// the next one.
var kept = []string{"qualification", "spec", "plan", "debug_diagnose", "summary", "acceptance"}

// about says where an agent is, before anything else. It holds for each agent, whatever it was started with.
const about = `You are a coding agent in a run of Gaia, which hands tickets to agents and gets the results back. This file is all that you
are told: read it to its end before you do anything, in parts if you must. It lies in ` + "`$GAIA_PROMPT`" + `; read it again whenever
you are no longer sure of what it says.
`

// Input is what a prompt is built from.
type Input struct {
	Assignment  domain.Assignment
	Skill       Skill
	Workflow    []byte // WORKFLOW.md of the base commit; nil where there is none
	Tree        domain.Tree
	Push        string // `[workspace] push` of the checkout
	LastFailure string // how the ticket's run before this one failed, "" if it did not
	Nonce       string // random; see NewNonce
}

// NewNonce draws what makes the fences of one prompt unlike those of any other.
func NewNonce() string {
	var b [9]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic("reading random bytes: " + err.Error()) // crypto/rand never fails on Linux
	}
	return hex.EncodeToString(b[:])
}

// Write writes what an agent reads first. Everything that people or programs have written about the ticket stands
// between markers that the text itself cannot contain; outside of them stand only Gaia's own words, the skill and
// WORKFLOW.md. The error is one that people see: a WORKFLOW.md that is no text must not be passed over.
func Write(in Input) ([]byte, error) {
	workflow, err := plain(registry.WorkflowFile, in.Workflow)
	if err != nil {
		return nil, err
	}
	if in.Nonce == "" {
		return nil, errors.New("a prompt needs a nonce")
	}
	a := in.Assignment
	ticket := ticketText(a)
	tree := treeText(in.Tree)
	comments, shown := commentsText(a.Comments)
	others := othersText(a)
	failure, _ := cut(strings.TrimSpace(clean(in.LastFailure)), maxFailure)
	f := fence{marker: marker(in.Nonce, rules, in.Skill.Body, inputsText(in.Skill.Inputs), workflow, ticket, tree, comments, others, failure)}

	var b strings.Builder
	section := func(title string) { fmt.Fprintf(&b, "\n## %s\n\n", title) }
	para := func(format string, v ...any) { fmt.Fprintf(&b, format+"\n", v...) }

	para("# Run %d: %s\n", a.Run.Number, stateName(a.Ticket))
	b.WriteString(about + "\n")
	push := "Do not push: nothing leaves this machine unasked."
	if in.Push == registry.PushAgent {
		push = "Push the branch before you hand over: `git push -u origin HEAD`. Never force it, and push nothing else."
	}
	b.WriteString(strings.NewReplacer("{{marker}}", f.marker, "{{push}}", push).Replace(strings.TrimSpace(rules)) + "\n")

	section("Your task: " + in.Skill.Name)
	b.WriteString(clean(in.Skill.Body) + "\n")
	if len(in.Skill.Inputs) > 0 {
		para("\nInputs of this task:\n")
		b.WriteString(inputsText(in.Skill.Inputs))
	}

	section("How this repository works (" + registry.WorkflowFile + ")")
	switch text, whole := cut(strings.TrimSpace(workflow), maxWorkflow); {
	case in.Workflow == nil:
		para("The repository has no %s. Find out from its files how it is built and tested, and keep to its ways.", registry.WorkflowFile)
	case text == "":
		para("The repository's %s is empty.", registry.WorkflowFile)
	case !whole:
		para("%s\n\n(%s goes on: `git show \"$GAIA_BASE\":%[2]s` has all of it. Read the rest, too.)", text, registry.WorkflowFile)
	default:
		b.WriteString(text + "\n")
	}

	section("The ticket")
	b.WriteString(f.put("ticket", ticket))
	section("Its comments")
	if comments == "" {
		para("There are none.")
	} else {
		if left := len(a.Comments) - shown; left > 0 {
			para("%d of %d are left out here; `gaia ticket show` has them.\n", left, len(a.Comments))
		}
		b.WriteString(f.put("comments, oldest first", comments))
	}
	if others != "" {
		section("Other tickets that it has to do with")
		b.WriteString(f.put("tickets", others))
	}

	section("This attempt")
	para("This is attempt %d in the state `%s`.", max(1, a.Run.Attempt), word(a.Ticket.State))
	if failure != "" {
		before := "The run before this one"
		if a.LastRun != nil {
			before = fmt.Sprintf("Run %d, the one before this,", a.LastRun.Number)
		}
		para("\n%s did not get to its end. This is what is known of it:\n", before)
		b.WriteString(f.put("last failure", failure))
		if a.LastRun != nil && lessons[a.LastRun.EndReason] != "" {
			para("\n%s", lessons[a.LastRun.EndReason])
		}
	}
	section("The worktree")
	para("You are in a git worktree made for this ticket. Its path is in `$GAIA_WORKTREE`, its branch in `$GAIA_BRANCH`, and the commit\n" +
		"that it started from in `$GAIA_BASE`.\n")
	b.WriteString(f.put("worktree", tree))
	if len(in.Tree.Findings) > 0 {
		para("\nWhat is listed under \"found\" was there before you. Look at it with `git status` and `git log` before you change anything, and\n" +
			"go on from it if it is good.")
	}

	section("The end of this run")
	b.WriteString(ending(a.Ticket))
	return []byte(b.String()), nil
}

// lessons say what to do otherwise after a run that did not get to its end.
var lessons = map[domain.Reason]string{
	domain.ReasonAgentExit:   "It never moved the ticket. Whatever you find: the run ends with a move.",
	domain.ReasonStalled:     "Nothing moved any more, or it asked in the terminal, where nobody answers. Ask by a comment and `human_input`.",
	domain.ReasonRunTime:     "It ran out of time. Commit step by step, and hand over what is done rather than begin what you cannot finish.",
	domain.ReasonOutOfMemory: "It used more memory than a run may. Run less at the same time, and heavy checks one by one.",
	domain.ReasonSessionLost: "It was cut off from outside. What it did may be half done, but need not be wrong.",
	domain.ReasonMachineLost: "It was cut off from outside. What it did may be half done, but need not be wrong.",
	domain.ReasonStopped:     "A person stopped it. Look in the newest comments for the reason, and do not simply do the same again.",
}

// fence puts foreign text between markers.
type fence struct{ marker string }

func (f fence) put(what, text string) string {
	return fmt.Sprintf("[%s begin: %s]\n%s\n[%s end]\n", f.marker, what, strings.TrimRight(text, "\n"), f.marker)
}

// marker returns a marker that none of the texts contains. The nonce alone is all but certain; this makes it certain.
func marker(nonce string, texts ...string) string {
	m := "data-" + nonce
	for slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(strings.ToLower(t), strings.ToLower(m)) }) {
		sum := sha256.Sum256([]byte(m))
		m = "data-" + hex.EncodeToString(sum[:9])
	}
	return m
}

// clean returns text with \n as its only line end and without what a terminal or a reader's eye could be led astray by:
// control characters, and those that turn the direction of writing.
func clean(s string) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	s = strings.ReplaceAll(s, "\r\n", "\n")
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r == '\r' || r == '\u2028' || r == '\u2029' || r == '\u0085':
			return '\n'
		case unicode.IsControl(r), r >= '\u202a' && r <= '\u202e', r >= '\u2066' && r <= '\u2069', r == '\ufeff':
			return -1
		}
		return r
	}, s)
}

// line is clean for text that must stay on one line.
func line(s string) string {
	s, whole := cut(strings.Join(strings.Fields(clean(s)), " "), maxLine)
	if !whole {
		s += " …"
	}
	return s
}

// cut returns the beginning of a text, up to the end of a line if there is one near, and whether that is all of it.
func cut(s string, limit int) (string, bool) {
	if len(s) <= limit {
		return s, true
	}
	s = strings.ToValidUTF8(s[:limit], "")
	if i := strings.LastIndexByte(s, '\n'); i > limit/2 {
		s = s[:i]
	}
	return s, false
}

// named returns what is the name of a person, a run or a ticket, in quotes where it could be read as more than that.
func named(s string) string {
	if s = line(s); plainName().MatchString(s) {
		return s
	}
	return strconv.Quote(s)
}

var plainName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/@#-]*$`) })

// word returns a state or workflow name, which is one of Gaia's own unless something is wrong; then it is shown as what
// it is.
func word(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_") == "" {
		return s
	}
	return strings.ReplaceAll(strconv.QuoteToASCII(s), "`", "'")
}

func stateName(t domain.Ticket) string {
	if t.Workflow == domain.Unqualified {
		return word(t.State) + " of a ticket without a workflow"
	}
	return word(t.State) + " in " + word(string(t.Workflow))
}

func ticketText(a domain.Assignment) string {
	t := a.Ticket
	var b strings.Builder
	row := func(name, value string) {
		if value != "" {
			b.WriteString(name + ": " + value + "\n")
		}
	}
	row("identifier", line(t.Identifier))
	row("title", line(t.Title))
	row("project", line(a.Project.Key+" "+a.Project.Name))
	row("workflow", line(string(t.Workflow)))
	row("state", line(t.State))
	if t.Priority != nil {
		row("priority", strconv.FormatFloat(*t.Priority, 'g', -1, 64))
	}
	row("labels", line(strings.Join(t.Labels, ", ")))
	row("origin", line(string(t.Origin)))
	for i, l := range t.Links {
		if i == maxRows {
			row("links left out", strconv.Itoa(len(t.Links)-i))
			break
		}
		row("link", line(l.URI+" "+l.Title))
	}
	d := strings.TrimSpace(clean(t.Description))
	switch text, whole := cut(d, maxDescription); {
	case d == "":
		b.WriteString("description: none\n")
	case !whole:
		fmt.Fprintf(&b, "description, cut after %d of %d bytes (`gaia ticket show` has all of it):\n\n%s\n", len(text), len(d), text)
	default:
		b.WriteString("description:\n\n" + text + "\n")
	}
	return b.String()
}

// commentsText returns the comments that fit, oldest first, and how many they are. The newest of each kept type comes
// before all others, and these from the newest on.
func commentsText(comments []domain.Comment) (string, int) {
	var order []int
	var have []string
	for i, c := range slices.Backward(comments) {
		if slices.Contains(kept, c.Type) && !slices.Contains(have, c.Type) {
			order, have = append(order, i), append(have, c.Type)
		}
	}
	first := len(order)
	for i := range slices.Backward(comments) {
		if !slices.Contains(order[:first], i) {
			order = append(order, i)
		}
	}
	shown := map[int]string{}
	size := 0
	for _, i := range order {
		text := commentText(comments[i], i, len(comments))
		if size += len(text); size > maxComments {
			break
		}
		shown[i] = text
	}
	var parts []string
	for _, i := range slices.Sorted(maps.Keys(shown)) {
		parts = append(parts, shown[i])
	}
	return strings.Join(parts, "\n"), len(parts)
}

// commentText is one comment below a head of Gaia's own. In the head the type stands last, since whoever wrote the
// comment chose it; the body is indented, so that nothing in it looks like a head, with another author.
func commentText(c domain.Comment, i, of int) string {
	body := strings.TrimSpace(clean(c.Body))
	text, whole := cut(body, maxComment)
	note := ""
	if !whole {
		note = fmt.Sprintf(", cut after %d of %d bytes (`gaia ticket show` has all of it)", len(text), len(body))
	}
	return fmt.Sprintf("comment %d of %d by %s at %s%s, type %s:\n\n%s\n", i+1, of, named(c.Author), c.CreatedAt, note, named(c.Type), indent(text))
}

func indent(s string) string {
	var b strings.Builder
	for l := range strings.Lines(s) {
		if strings.TrimSpace(l) != "" {
			b.WriteString("  ")
		}
		b.WriteString(l)
	}
	return b.String()
}

func othersText(a domain.Assignment) string {
	var b strings.Builder
	for _, group := range []struct {
		name    string
		tickets []domain.Ticket
	}{{"it waited for", a.Blockers}, {"part of it is", a.Children}} {
		for i, t := range group.tickets {
			if i == maxRows {
				fmt.Fprintf(&b, "%s: %d more, left out here\n", group.name, len(group.tickets)-i)
				break
			}
			fmt.Fprintf(&b, "%s: %s (%s) %s\n", group.name, named(t.Identifier), named(t.State), line(t.Title))
		}
	}
	return b.String()
}

func treeText(t domain.Tree) string {
	var b strings.Builder
	fmt.Fprintf(&b, "path: %s\nbranch: %s\nbase: %s\nhead: %s\n", line(t.Path), line(t.Branch), line(t.Base), line(t.Head))
	for i, f := range t.Findings {
		if i == maxRows {
			fmt.Fprintf(&b, "found: %d more things, left out here\n", len(t.Findings)-i)
			break
		}
		b.WriteString("found: " + line(f) + "\n")
	}
	return b.String()
}

func inputsText(inputs map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(inputs)) {
		fmt.Fprintf(&b, "- %s: %s\n", line(name), line(inputs[name]))
	}
	return b.String()
}

// meanings say what a move to a state means, where its name does not.
var meanings = map[string]string{
	domain.StateHumanInput: "only a person can go on; ask in a comment first",
	domain.StateCancelled:  "nothing is to be done; say why in a comment first",
	domain.StateDone:       "everything is done",
	"backlog":              "a person decides later whether it is done at all",
	"todo":                 "it is ready to be taken up later",
	"spec":                 "it needs a specification",
	"diagnose":             "the cause is to be found",
	"coding":               "it is to be implemented",
	"working":              "it is to be done",
	"review":               "the work is to be reviewed",
	"customer_review":      "a person has to accept the result",
	"changes_requested":    "the author has to change something",
	"qualification":        "it was understood wrongly",
}

// ending says how a run ends, and lists every move that is open.
func ending(t domain.Ticket) string {
	var b strings.Builder
	b.WriteString(`The comments that your task asks for are written, what is to be kept is committed, and ` + "`git status`" + ` is clean: what your
task does not have you commit is removed. Then exactly one of these, alone in its call of the shell:

`)
	move := func(workflow, state string) {
		flag := ""
		if workflow != "" {
			flag = "--workflow " + workflow + " "
		}
		fmt.Fprintf(&b, "- `gaia ticket move %s%s`", flag, state)
		if m := meanings[state]; m != "" {
			b.WriteString(": " + m)
		}
		b.WriteString("\n")
	}
	for _, state := range domain.Open(string(t.Workflow), t.State) {
		move("", state)
	}
	if t.State != domain.StateQualification {
		return b.String() + afterMove
	}
	for _, w := range domain.Workflows() {
		if w.ID == string(t.Workflow) {
			continue
		}
		next := []string{w.First}
		if s, ok := w.State(domain.StateQualification); ok {
			next = s.Next
		}
		for _, state := range next {
			if state != domain.StateHumanInput && state != domain.StateCancelled {
				move(w.ID, state)
			}
		}
	}
	return b.String() + afterMove
}

// afterMove is what there is to know of the last command.
const afterMove = `
- If it refuses, do what its answer says, then try again. ` + "`gaia ticket move --anyway STATE`" + ` goes past its look at the worktree; that
  is only for changes of an earlier run that your task does not let you touch.
- Where the hub does not answer, it waits up to 10 minutes. Give it that time; if it was cut short, run the same again. The
  answer ` + "`stale_run`" + ` then says that the ticket was moved already.
- After it, stop: call no tool any more, and write nothing.
`
