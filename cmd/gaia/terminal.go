package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"gaia/domain"
	"gaia/internal/render"
)

func (a *app) print(v render.Value) error {
	a.waiting.stop()
	return render.Print(a.out, a.format, v)
}

// say prints a sentence for a person, never mixed with output.
func (a *app) say(format string, args ...any) {
	a.waiting.hide()
	fmt.Fprintln(a.err, render.CleanText(fmt.Sprintf(format, args...)))
}

// width is the terminal's width, or fallback where the output is none.
func (a *app) width(fallback int) int {
	if f, ok := a.out.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
			return w
		}
	}
	return fallback
}

func (a *app) terminal() bool {
	f, ok := a.out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// colour reports whether the output may have colours.
func (a *app) colour() bool {
	return a.terminal() && a.getenv("NO_COLOR") == "" && a.getenv("TERM") != "dumb"
}

// interactive reports whether a person can be asked.
func (a *app) interactive() bool {
	f, ok := a.in.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && !a.inRun()
}

// ask asks a person for a line; proposal is the answer to an empty one.
func (a *app) ask(question, proposal string) (string, error) {
	a.waiting.stop()
	if proposal != "" {
		question += " [" + proposal + "]"
	}
	fmt.Fprint(a.err, render.Clean(question)+": ")
	line, err := bufio.NewReader(unbuffered{a.in}).ReadString('\n')
	if err != nil && line == "" {
		return "", usagef("no answer to %q", question)
	}
	if line = strings.TrimSpace(line); line == "" {
		return proposal, nil
	}
	return line, nil
}

// askYes asks a person who has most likely no objection: an empty answer is a yes, and anything but yes is a no.
func (a *app) askYes(question string) (bool, error) {
	answer, err := a.ask(question+" (yes or no)", "yes")
	answer = strings.ToLower(answer)
	return answer == "y" || answer == "yes", err
}

// unbuffered gives one byte at a time, so that a later question finds its answer.
type unbuffered struct{ r io.Reader }

func (u unbuffered) Read(p []byte) (int, error) {
	if len(p) > 1 {
		p = p[:1]
	}
	return u.r.Read(p)
}

// text returns a long text: from a file, from standard input for "-", or as given.
func (a *app) text(given, file string) (string, error) {
	if file != "" && given != "" {
		return "", usagef("the text is given twice: leave out either it or -F")
	}
	if given == "-" {
		file = "-"
	}
	if file == "" {
		return given, nil
	}
	in := a.in
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", usagef("read the text: %w", err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, domain.MaxDescription+1))
	if err != nil {
		return "", usagef("read the text: %w", err)
	}
	if len(b) > domain.MaxDescription {
		return "", fmt.Errorf("%w: the text has more than %d bytes", domain.ErrInvalid, domain.MaxDescription)
	}
	return string(bytes.TrimRight(b, "\n")), nil
}
