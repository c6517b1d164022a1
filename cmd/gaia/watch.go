package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"gaia/domain"
	"gaia/internal/render"
	"gaia/remote"
)

// show prints once or, with --watch, again whenever the hub says that something has changed.
func (a *app) show(ctx context.Context, c *remote.Client, frame func(context.Context) (render.Value, error)) error {
	if !a.watch {
		v, err := frame(ctx)
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
	last := ""
	for {
		v, err := frame(ctx)
		if ctx.Err() != nil {
			return nil
		}
		var b bytes.Buffer
		if err != nil {
			fmt.Fprintln(&b, render.CleanText(a.explain(err)))
		} else if err := render.Print(&b, a.format, v); err != nil {
			return err
		}
		if s := b.String(); s != last {
			last = s
			if a.terminal() {
				s = "\x1b[H\x1b[2J" + s
			} else {
				s += "\n"
			}
			if _, err := io.WriteString(a.out, s); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-time.After(2 * time.Second): // ages and waits change without an event
		}
	}
}

// pause waits, or returns earlier when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (a *app) watchFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&a.watch, "watch", "w", false, "print again whenever something changes, until interrupted")
}
