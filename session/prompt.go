package session

import (
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"gaia/domain"
	"gaia/registry"
)

//go:embed rules.md
var rules string

// maxComments bounds the comments in a prompt, in bytes; the newest are kept, and the agent can read the others.
const maxComments = 192 << 10

// PromptInput is what a prompt is built from.
type PromptInput struct {
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

// Prompt writes what an agent reads first. Everything that people or programs have written about the ticket stands
// between markers that the text itself cannot contain; outside of them stand only Gaia's own words, the skill and
// WORKFLOW.md. The error is one that people see: a WORKFLOW.md that is no text must not be passed over.
func Prompt(in PromptInput) ([]byte, error) {
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
	comments, left := commentsText(a.Comments)
	others := othersText(a)
	failure := clean(in.LastFailure)
	f := fence{marker: marker(in.Nonce, rules, in.Skill.Body, inputsText(in.Skill.Inputs), workflow, ticket, tree, comments, others, failure)}

	var b strings.Builder
	section := func(title string) { fmt.Fprintf(&b, "\n## %s\n\n", title) }
	para := func(format string, v ...any) { fmt.Fprintf(&b, format+"\n", v...) }

	para("# Run %d: %s", a.Run.Number, stateName(a.Ticket))
	section("Rules")
	b.WriteString(strings.ReplaceAll(strings.TrimSpace(rules), "{{marker}}", f.marker) + "\n")
	if in.Push == registry.PushAgent {
		para("- Push the branch before you hand over: `git push -u origin HEAD`. Never force it.")
	} else {
		para("- Do not push: nothing leaves this machine unasked.")
	}

	section("Your task: " + in.Skill.Name)
	b.WriteString(clean(in.Skill.Body) + "\n")
	if len(in.Skill.Inputs) > 0 {
		para("\nInputs of this task:\n")
		b.WriteString(inputsText(in.Skill.Inputs))
	}

	section("How this repository works (" + registry.WorkflowFile + ")")
	switch {
	case in.Workflow == nil:
		para("The repository has no %s. Find out from its files how it is built and tested, and keep to its ways.", registry.WorkflowFile)
	case strings.TrimSpace(workflow) == "":
		para("The repository's %s is empty.", registry.WorkflowFile)
	default:
		b.WriteString(strings.TrimSpace(workflow) + "\n")
	}

	section("The ticket")
	b.WriteString(f.put("ticket", ticket))
	section("Its comments")
	switch {
	case comments == "":
		para("There are none.")
	case left > 0:
		para("The oldest %d are left out here; `gaia ticket show` has them.\n", left)
		fallthrough
	default:
		b.WriteString(f.put("comments, oldest first", comments))
	}
	if others != "" {
		section("Other tickets that it has to do with")
		b.WriteString(f.put("tickets", others))
	}

	section("This attempt")
	para("This is attempt %d in the state `%s`.", max(1, a.Run.Attempt), word(a.Ticket.State))
	if failure != "" {
		para("\nThe attempt before it did not get to its end. This is what is known of it:\n")
		b.WriteString(f.put("last failure", failure))
	}
	section("The worktree")
	para("You are in a git worktree made for this ticket; its path is in `$GAIA_WORKTREE`.\n")
	b.WriteString(f.put("worktree", tree))
	if len(in.Tree.Findings) > 0 {
		para("\nAn earlier run left what is listed under \"found\". Look at it before you start, and go on from it if it is good.")
	}

	section("Commands")
	b.WriteString(commands(a.Ticket))
	return []byte(b.String()), nil
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
func line(s string) string { return strings.Join(strings.Fields(clean(s)), " ") }

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
	for _, l := range t.Links {
		row("link", line(l.URI+" "+l.Title))
	}
	if d := strings.TrimSpace(clean(t.Description)); d != "" {
		b.WriteString("description:\n\n" + d + "\n")
	} else {
		b.WriteString("description: none\n")
	}
	return b.String()
}

// commentsText returns the newest comments that fit, oldest first, and how many are left out.
func commentsText(comments []domain.Comment) (string, int) {
	var parts []string
	size := 0
	for i := len(comments) - 1; i >= 0; i-- {
		c := comments[i]
		text := fmt.Sprintf("%s by %s at %s:\n\n%s\n", line(c.Type), line(c.Author), c.CreatedAt, indent(strings.TrimSpace(clean(c.Body))))
		if size += len(text); size > maxComments && len(parts) > 0 {
			return join(parts), i + 1
		}
		parts = append(parts, text)
	}
	return join(parts), 0
}

func join(newestFirst []string) string {
	slices.Reverse(newestFirst)
	return strings.Join(newestFirst, "\n")
}

// indent keeps a comment from looking like the head of another one, with another author.
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
		for _, t := range group.tickets {
			fmt.Fprintf(&b, "%s: %s (%s) %s\n", group.name, line(t.Identifier), line(t.State), line(t.Title))
		}
	}
	return b.String()
}

func treeText(t domain.Tree) string {
	var b strings.Builder
	fmt.Fprintf(&b, "path: %s\nbranch: %s\nbase: %s\nhead: %s\n", line(t.Path), line(t.Branch), line(t.Base), line(t.Head))
	for _, f := range t.Findings {
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

// commands lists what an agent may use. Inside a run no command needs the ticket's name.
func commands(t domain.Ticket) string {
	var b strings.Builder
	b.WriteString(strings.TrimLeft(`
- `+"`gaia ticket show`"+` prints the ticket as it is now, with every comment.
- `+"`gaia ticket comment --type TYPE -F FILE`"+` adds a comment from a file, or from standard input with `+"`-F -`"+`.
- `+"`gaia ticket edit --title TITLE -F FILE`"+` changes title or description.
- `+"`gaia ticket label \"$GAIA_TICKET\" LABEL`"+` adds a label.
- `+"`gaia ticket create TITLE -F FILE`"+` makes a sub-ticket for work that does not belong to this one.
- `+"`gaia ticket block --by OTHER`"+` lets this ticket wait for one of its sub-tickets.

Your last command is one of these. It ends the run:

`, "\n"))
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
		return b.String()
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
	return b.String()
}
