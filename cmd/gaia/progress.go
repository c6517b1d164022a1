package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"gaia/internal/render"
)

// progress is the line that says what a command waits for, once it has waited for a second. It stands on the standard
// error output, only where that is a terminal, and is gone before anything else is printed.
type progress struct {
	w io.Writer // nil where nobody looks

	mu    sync.Mutex
	what  string
	since time.Time
	quit  chan struct{} // nil while nothing is waited for
	width int           // columns that the line takes now
}

func (a *app) newProgress() *progress {
	p := &progress{}
	if f, ok := a.err.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.w = f
	}
	return p
}

// start says what is waited for from now on.
func (p *progress) start(what string) {
	if p == nil || p.w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.what = what
	if p.quit != nil {
		return
	}
	p.since, p.quit = time.Now(), make(chan struct{})
	go p.run(p.quit)
}

func (p *progress) run(quit chan struct{}) {
	for tick := time.NewTicker(time.Second); ; {
		select {
		case <-quit:
			tick.Stop()
			return
		case <-tick.C:
		}
		p.mu.Lock()
		if p.quit == quit {
			p.erase()
			line := fmt.Sprintf("%s … %ds", p.what, int(time.Since(p.since).Seconds()))
			p.width = render.Width(line)
			fmt.Fprint(p.w, line)
		}
		p.mu.Unlock()
	}
}

// erase takes the line away without an escape code, which not every terminal knows.
func (p *progress) erase() {
	if p.width > 0 {
		fmt.Fprint(p.w, "\r"+strings.Repeat(" ", p.width)+"\r")
		p.width = 0
	}
}

// hide makes room for another line; the wait goes on.
func (p *progress) hide() {
	if p == nil || p.w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
}

// stop ends the wait.
func (p *progress) stop() {
	if p == nil || p.w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quit != nil {
		close(p.quit)
		p.quit = nil
	}
	p.erase()
}
