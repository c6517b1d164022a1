// Command gaia is how people and agents use Gaia: tickets, runs, conductors and the hub. It holds flags, wiring and
// what is printed; the rules are the hub's, and what is known of a machine comes from systemd and the registry.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv, getwd: os.Getwd}
	if code, called := a.agentHookAtOnce(os.Args[1:]); called {
		os.Exit(code)
	}
	a.attachAtOnce(os.Args[1:])
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := a.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}
