package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"

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
			if err := verify(cmd.Context(), args[0], cmd.OutOrStdout()); err != nil {
				fmt.Fprintf(os.Stderr, "gaia-hub: %v\n", err)
				*code = exitFailed
			}
			return nil
		},
	}
}

func verify(ctx context.Context, path string, out io.Writer) error {
	log, err := sqlite.OpenLog(ctx, path)
	if err != nil {
		return err
	}
	defer log.Close()
	count, head, err := events.Verify(ctx, events.Reader(ctx, log))
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(map[string]any{"database": path, "count": count, "head": hex.EncodeToString(head[:])})
}
