package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"gaia/domain"
	"gaia/internal/log"
	"gaia/internal/render"
	"gaia/journal"
	"gaia/registry"
	"gaia/remote"
	"gaia/session"
)

// defaultLines is how many lines of the journal are shown where nobody says how many, or from when on.
const defaultLines = 200

// logFlags are the flags of the commands that read the journal.
type logFlags struct {
	follow                 bool
	since, until, priority string
	lines                  string
	ticket, run            string
}

func (a *app) logFlags(cmd *cobra.Command) *logFlags {
	var f logFlags
	fl := cmd.Flags()
	fl.BoolVarP(&f.follow, "follow", "f", false, "go on until interrupted")
	fl.StringVar(&f.since, "since", "", `only from this time on: 90m, today, "2026-12-01 14:30", or any other of journalctl's`)
	fl.StringVar(&f.until, "until", "", "only up to this time")
	fl.StringVarP(&f.lines, "lines", "n", "", fmt.Sprintf("at most so many of the newest lines to begin with, or all (default %d, and all with --since or --until)", defaultLines))
	fl.StringVar(&f.priority, "priority", "", "only what is at least as urgent as this: err, warning, notice, info, debug")
	fl.StringVar(&f.ticket, "ticket", "", "only what is about this ticket")
	fl.StringVar(&f.run, "run", "", "only what is about this run")
	a.completeFlags(cmd, map[string]completer{"ticket": a.ticketNames, "run": a.runNames, "priority": func(context.Context) []string {
		return []string{"err", "warning", "notice", "info", "debug"}
	}})
	return &f
}

// query is what the flags say, but for what is looked for.
func (f *logFlags) query() (journal.Query, error) {
	q := journal.Query{Since: f.since, Until: f.until, Priority: f.priority, Follow: f.follow, Lines: defaultLines}
	if f.follow && f.until != "" {
		return q, usagef("--until goes not with --follow, which has no end")
	}
	if f.priority != "" {
		if _, err := journal.ParsePriority(f.priority); err != nil {
			return q, usagef("--priority: %w", err)
		}
	}
	switch {
	case f.lines == "all", f.lines == "" && (f.since != "" || f.until != ""):
		q.Lines = journal.All
	case f.lines != "":
		n, err := strconv.ParseUint(f.lines, 10, 31)
		if err != nil {
			return q, usagef("--lines %q is neither a number nor all", f.lines)
		}
		q.Lines = int(n)
	}
	return q, nil
}

// narrowed names the flags that leave out a part of what the journal has.
func (f *logFlags) narrowed() string {
	var words []string
	for _, w := range [][2]string{{"--since", f.since}, {"--until", f.until}, {"--priority", f.priority}, {"--lines", f.lines}} {
		if w[1] != "" && w[1] != "all" {
			words = append(words, w[0], w[1])
		}
	}
	return render.Command(words...)
}

// printJournal prints what the query finds, which is what the flags say.
func (a *app) printJournal(ctx context.Context, home registry.Home, q journal.Query, f *logFlags) error {
	a.waiting.stop()
	p := journalPrinter{a: a, runs: &runNumbers{home: home}}
	err := journal.Reader{Program: a.journalctl, UID: os.Getuid()}.Read(ctx, q, p.print)
	switch {
	case errors.Is(err, journal.ErrTime):
		return usageError{err}
	case err != nil:
		return err
	case p.any || q.Follow || a.format != render.Table:
	case f.narrowed() != "":
		a.say("Nothing of it matches %s. Without that the journal may have more", f.narrowed())
	default:
		a.say("The journal has nothing of it. On another machine its own journal has what happened there")
	}
	return nil
}

// journalPrinter prints entries as they come.
type journalPrinter struct {
	a    *app
	runs *runNumbers
	any  bool
}

// ofInstallation finds the prefix of the installation that a unit belongs to.
var ofInstallation = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([a-z][a-z0-9]{0,15})-(?:hub\.(?:service|socket)|(?:conductor|reap)@.+|run-.+-[0-9]+\.service)$`)
})

func (p *journalPrinter) print(e journal.Entry) error {
	// Another installation of the same user, a demo for one, may have a ticket of the same name.
	if m := ofInstallation().FindStringSubmatch(e.Unit); m != nil && m[1] != p.a.names().Prefix {
		return nil
	}
	p.any = true
	if p.a.format == render.Table {
		_, err := io.WriteString(p.a.out, p.row(e))
		return err
	}
	return render.PrintLine(p.a.out, p.a.format, render.Value{Data: e, Names: []string{e.Cursor}})
}

// The colours of a line by its level; the others have none.
const (
	colourRed    = "\x1b[31m"
	colourYellow = "\x1b[33m"
	colourBold   = "\x1b[1m"
	colourFaint  = "\x1b[2m"
	colourNone   = "\x1b[0m"
)

var levelColour = map[string]string{
	"emerg": colourRed, "alert": colourRed, "crit": colourRed, "err": colourRed, "warning": colourYellow, "notice": colourBold, "debug": colourFaint,
}

// row is an entry for people. The widths fit what Gaia's own programs say, so that columns stand below each other though
// no line waits for the next.
func (p *journalPrinter) row(e journal.Entry) string {
	run := p.runs.name(e)
	if _, number, ok := p.a.names().ParseRun(e.Unit); ok && run == "" && e.Run == "" { // systemd knows no ids of ours
		run = "run " + strconv.Itoa(number)
	}
	about := strings.TrimSpace(render.Clean(e.Ticket) + " " + run)
	head := e.At.Local().Format("2006-01-02 15:04:05") + "  "
	level, source := render.Pad(e.Level, 7), render.Pad(render.Clean(e.Source), 14)
	message := strings.TrimRight(render.CleanText(e.Message), "\n ")
	if e.Incomplete {
		message = strings.TrimSpace(message + " (this message is too long to be shown)")
	}
	lines := strings.Split(message, "\n")
	for i := 1; i < len(lines); i++ {
		lines[i] = strings.Repeat(" ", len("2006-01-02 15:04:05  ")) + lines[i]
	}
	text := strings.Join(lines, "\n")
	if colour := levelColour[e.Level]; colour != "" && p.a.colour() {
		level, text = colour+level+colourNone, colour+text+colourNone
	}
	if about == "" {
		about = "-"
	}
	return head + level + "  " + source + "  " + render.Pad(about, 14) + "  " + text + "\n"
}

// runNumbers names runs as people know them, by the run folders of this machine: the journal has their ids only, and the
// hub may be what the journal is read for.
type runNumbers struct {
	home  registry.Home
	known map[string]string
}

func (n *runNumbers) name(e journal.Entry) string {
	if e.Run == "" {
		return ""
	}
	name, there := n.known[e.Run]
	if !there {
		if isID(e.Run) {
			if spec, err := session.Folder(n.home.RunDir(e.Run)).Load(); err == nil {
				name = "run " + strconv.Itoa(spec.Number)
			}
		}
		if n.known == nil {
			n.known = map[string]string{}
		}
		n.known[e.Run] = name
	}
	return name
}

// isID reports whether a text has the form of an id. One from the journal, where anybody writes, is no path with it.
func isID(s string) bool {
	return len(s) == 36 && strings.Trim(s, "0123456789abcdef-") == ""
}

// subject is what a story is told of.
type subject struct {
	ticket string   // identifier; "" where it is a single run
	runs   []string // ids
	units  []string // of the runs
}

// matches are the alternatives of a subject's story: what names it, and what the user manager says of the units.
func (s subject) matches() [][]journal.Match {
	var out [][]journal.Match
	if s.ticket != "" {
		out = append(out, []journal.Match{{Field: log.Ticket, Value: s.ticket}})
	}
	each := func(field string, values []string) {
		var all []journal.Match
		for _, v := range values {
			all = append(all, journal.Match{Field: field, Value: v})
		}
		if len(all) > 0 {
			out = append(out, all)
		}
	}
	each(log.Run, s.runs)
	each(journal.FieldUnit, s.units)
	each(journal.FieldUnitOf, s.units)
	return out
}

// addRun adds a run of the hub's. One that was over before its start was told has no unit there; its folder has.
func (s *subject) addRun(home registry.Home, r domain.Run) {
	unit := string(r.Unit)
	if unit == "" && isID(r.ID) {
		if spec, err := session.Folder(home.RunDir(r.ID)).Load(); err == nil {
			unit = spec.Unit
		}
	}
	s.add(r.ID, unit)
}

func (s *subject) add(id, unit string) {
	s.runs = append(s.runs, id)
	if unit != "" {
		s.units = append(s.units, unit)
	}
}

// story finds what a person means by a run or a ticket. The hub is asked; where it does not answer, the run folders of
// this machine say what they know, since that is when the journal is needed.
func (a *app) story(ctx context.Context, home registry.Home, f *logFlags, args []string) (subject, error) {
	ref, kind := "", ""
	for _, v := range [][2]string{{f.ticket, "ticket"}, {f.run, "run"}, {strings.Join(args, ""), ""}} {
		if v[0] == "" {
			continue
		}
		if ref != "" {
			return subject{}, usagef("give either RUN or TICKET, or --ticket, or --run")
		}
		ref, kind = v[0], v[1]
	}
	if ref == "" {
		if ref, kind = a.getenv("GAIA_RUN"), "run"; ref == "" {
			return subject{}, usagef("which run or ticket? Give a number (gaia run list) or an identifier")
		}
	}
	c, err := a.client()
	if err != nil {
		return subject{}, err
	}
	s, err := a.storyAtHub(ctx, c, home, ref, kind)
	if !errors.Is(err, domain.ErrUnreachable) && !errors.Is(err, domain.ErrUnauthenticated) {
		return s, err
	}
	a.say("the hub does not tell what %s is, so this is what is known here: %v", ref, err)
	return a.storyHere(home, ref, kind)
}

func (a *app) storyAtHub(ctx context.Context, c *remote.Client, home registry.Home, ref, kind string) (subject, error) {
	var s subject
	var runErr error
	if kind == "run" || kind == "" && (numbered(ref) || isID(ref)) {
		var r domain.Run
		if r, runErr = a.findRun(ctx, c, ref); runErr == nil {
			s.addRun(home, r)
			a.sayElsewhere(home, s)
			return s, nil
		}
		if kind == "run" || !errors.Is(runErr, domain.ErrNotFound) {
			return s, runErr
		}
	}
	k, err := c.Ticket(ctx, ref)
	if errors.Is(err, domain.ErrNotFound) && runErr != nil {
		return s, runErr
	}
	if err != nil {
		return s, err
	}
	runs, err := c.RunList(ctx, remote.Query{Filter: map[string][]string{"ticket": {k.ID}}})
	if err != nil {
		return s, err
	}
	s.ticket = k.Identifier
	for _, r := range runs {
		s.addRun(home, r)
	}
	a.sayElsewhere(home, s)
	return s, nil
}

// sayElsewhere says that a part of a story is in other journals.
func (a *app) sayElsewhere(home registry.Home, s subject) {
	n := 0
	for _, id := range s.runs {
		if _, err := os.Stat(home.RunDir(id)); err != nil {
			n++
		}
	}
	if n > 0 {
		a.say("%d of %d runs left nothing on this machine: the journals of those that hosted them have the rest", n, len(s.runs))
	}
}

// numbered reports whether a text is a run's number, with or without the key of its project.
func numbered(ref string) bool {
	_, err := strconv.Atoi(ref[strings.LastIndexByte(ref, '/')+1:])
	return err == nil
}

func (a *app) storyHere(home registry.Home, ref, kind string) (subject, error) {
	folders, err := session.Folders(home.RunsDir())
	if err != nil {
		return subject{}, err
	}
	key := ""
	if _, co, err := a.checkout(); err == nil {
		key = co.Project
	}
	var run, ticket subject
	ticket.ticket = ref
	for _, folder := range folders {
		spec, err := folder.Load()
		if err != nil {
			continue // reserved, or damaged: the others are still there
		}
		number := strconv.Itoa(spec.Number)
		if ref == spec.Run || ref == spec.Project+"/"+number || ref == number && (key == "" || key == spec.Project) {
			run.add(spec.Run, spec.Unit)
		}
		if ref == spec.Identifier {
			ticket.add(spec.Run, spec.Unit)
		}
	}
	switch {
	case kind == "ticket", kind == "" && len(run.runs) == 0 && !numbered(ref):
		return ticket, nil // its lines name it, whether it had a run here or not
	case len(run.runs) > 1:
		return subject{}, usagef("several projects have a run %s here: give it as KEY/%s", ref, ref)
	case len(run.runs) == 0:
		return subject{}, fmt.Errorf("this machine knows no run %s: %w", ref, domain.ErrNotFound)
	}
	return run, nil
}

func (a *app) runLogs() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "logs [RUN|TICKET]",
		Short: "Show what the journal tells of a run or a ticket",
		Long: `Show what the journal of this machine tells of a run or a ticket: what hub, conductor and the run's host have logged of
it, and what systemd says of the run's unit. With -o json it is one object a line.

What the agent itself has printed is not in the journal: gaia run output`,
		Example: `  gaia run logs 12 --follow
  gaia run logs SHOP-7 --since 2h
  gaia run logs --ticket SHOP-7 --priority warning -o json`,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeFirst(func(ctx context.Context) []string {
			return append(a.runNames(ctx), a.ticketNames(ctx)...)
		}),
	}
	f := a.logFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		q, err := f.query()
		if err != nil {
			return err
		}
		home, err := a.home()
		if err != nil {
			return err
		}
		s, err := a.story(cmd.Context(), home, f, args)
		if err != nil {
			return err
		}
		q.Any = s.matches()
		return a.printJournal(cmd.Context(), home, q, f)
	}
	return cmd
}

func (a *app) conductorLogs() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "logs [INSTANCE]",
		Short: "Show what the journal tells of a conductor",
		Long: `Show what the journal tells of a conductor: what it has logged, and what systemd says of its unit. With -o json it is one
object a line. The whole story of a ticket, hub and agent's host included, is told by gaia run logs.`,
		Example: `  gaia conductor logs shop --follow
  gaia conductor logs --since '10 min ago' --priority warning
  gaia conductor logs --ticket SHOP-7`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeFirst(a.instanceNames),
	}
	f := a.logFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		q, err := f.query()
		if err != nil {
			return err
		}
		home, e, err := a.homeEntry(args)
		if err != nil {
			return err
		}
		var about []journal.Match
		if f.ticket != "" {
			about = append(about, journal.Match{Field: log.Ticket, Value: f.ticket})
		}
		if f.run != "" {
			s, err := a.story(cmd.Context(), home, &logFlags{run: f.run}, nil)
			if err != nil {
				return err
			}
			about = append(about, journal.Match{Field: log.Run, Value: s.runs[0]})
		}
		unit := a.names().Conductor(e.Instance)
		for _, field := range []string{journal.FieldUnit, journal.FieldUnitOf} {
			q.Any = append(q.Any, append([]journal.Match{{Field: field, Value: unit}}, about...))
		}
		return a.printJournal(cmd.Context(), home, q, f)
	}
	return cmd
}
