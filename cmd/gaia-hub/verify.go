package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"gaia/hub/events"
	"gaia/hub/store/sqlite"
)

// verifyCommand is for programs; people use gaia hub verify. code is set where the log is damaged, was changed, or cannot be
// read, which is no wrong use of the command.
func verifyCommand(code *int) *cobra.Command {
	return &cobra.Command{
		Use:   "verify FILE",
		Short: "Check that the event log in a database is whole and unchanged, and print what it is as JSON",
		Long: `Compute the hash chain of the event log in a hub's database anew, and print how many entries it has and the hash of the
last one as JSON. The file is only read, so it also works while the hub runs. gaia hub verify does this for people.`,
		Example: "  gaia-hub verify ~/.local/state/gaia/hub.db",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := verify(cmd.Context(), args[0])
			*code = report(found, err, cmd.OutOrStdout())
			return nil
		},
	}
}

// backupCommand is for programs; people use gaia hub backup.
func backupCommand(code *int) *cobra.Command {
	return &cobra.Command{
		Use:   "backup DATABASE FILE",
		Short: "Write a verified copy of a database to a new file, and print what it is as JSON",
		Long: `Write a consistent copy of a hub's database to a new file, verify the event log in it, and print how many entries it has and the
hash of the last one as JSON. It also works while the hub runs. gaia hub backup does this for people.`,
		Example: "  gaia-hub backup ~/.local/state/gaia/hub.db ~/hub-backup.db",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			// A half copy is removed before the program ends, also where the terminal is gone.
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
			defer stop()
			found, err := backup(ctx, args[0], args[1])
			*code = report(found, err, cmd.OutOrStdout())
			return nil
		},
	}
}

// finding is what was found in a database, as it is printed.
type finding struct {
	Database string `json:"database"`
	Count    int64  `json:"count"`
	Head     string `json:"head"`
}

func verify(ctx context.Context, path string) (finding, error) {
	log, err := sqlite.OpenLog(ctx, path)
	if err != nil {
		return finding{}, err
	}
	defer log.Close()
	count, head, err := events.Verify(ctx, events.Reader(ctx, log))
	return finding{path, count, hex.EncodeToString(head[:])}, err
}

func backup(ctx context.Context, path, to string) (found finding, err error) {
	err = sqlite.Backup(ctx, path, to, func(copied string) (err error) {
		found, err = verify(ctx, copied)
		return err
	})
	found.Database = to
	return found, err
}

// report prints what was found, or why nothing was, and returns the exit code.
func report(found finding, err error, out io.Writer) int {
	if err == nil {
		err = json.NewEncoder(out).Encode(found)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "gaia-hub: %v\n", err)
		return exitFailed
	}
	return 0
}
