package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"gaia/domain"
	"gaia/internal/render"
	"gaia/remote"
)

// beat is how often --watch looks without being told to: ages and waits change without an event.
const beat = 2 * time.Second

func (a *app) watchFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&a.watch, "watch", "w", false, "print again whenever something changes, until interrupted")
}

// show prints once or, with --watch, again whenever the hub says that something has changed. What fails at once is the
// command's failure; what fails later is said, and watching goes on.
func (a *app) show(ctx context.Context, c *remote.Client, frame func(context.Context) (render.Value, error)) error {
	v, err := frame(ctx)
	a.waiting.stop()
	if err != nil || !a.watch {
		if err != nil {
			return err
		}
		return a.print(v)
	}
	wake := make(chan struct{}, 1)
	go func() {
		for ctx.Err() == nil {
			_ = c.Follow(ctx, remote.FromNow, func(domain.Event) {
				select {
				case wake <- struct{}{}:
				default:
				}
			})
			pause(ctx, time.Second)
		}
	}()
	last, said := "", ""
	for {
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if text := explain(err); text != said {
				a.say("%s", text)
				last, said = "", text
			}
		default:
			said = ""
			var b bytes.Buffer
			if err := render.Print(&b, a.format, v); err != nil {
				return err
			}
			if s := b.String(); s != last {
				if err := a.frame(s, last == ""); err != nil {
					return err
				}
				last = s
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-time.After(beat):
		}
		v, err = frame(ctx)
		a.waiting.stop()
	}
}

// frame prints one picture of a watch. On a terminal it takes the place of the one before and leaves out what would
// scroll it away; otherwise, and for programs, one follows the other.
func (a *app) frame(s string, first bool) error {
	switch {
	case a.format == render.YAML:
		s = "---\n" + s
	case a.format != render.Table:
	case a.drawable():
		if f, ok := a.out.(*os.File); ok {
			if _, height, err := term.GetSize(int(f.Fd())); err == nil && height > 2 {
				lines := strings.SplitAfter(strings.TrimSuffix(s, "\n"), "\n")
				if hidden := len(lines) - (height - 1); hidden > 0 {
					s = strings.Join(lines[:height-2], "") + fmt.Sprintf("… and %d more lines\n", hidden+1)
				}
			}
		}
		s = "\x1b[H\x1b[2J" + s
	case !first:
		s = "\n" + s
	}
	_, err := io.WriteString(a.out, s)
	return err
}

// drawable reports whether the output is a terminal on which the cursor can be moved.
func (a *app) drawable() bool { return a.terminal() && a.getenv("TERM") != "dumb" }

// pause waits, or returns earlier when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
