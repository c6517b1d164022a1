package main

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"gaia/hub/events"
	"gaia/hub/store/sqlite"
)

// errLog is an event log that is damaged, was changed, or cannot be read.
var errLog = errors.New("the event log is not whole")

// verifyCommand is for programs; people use gaia hub verify.
func verifyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "verify FILE",
		Short: "Check that the event log in a database is whole and unchanged, and print what it is as JSON",
		Long: `Compute the hash chain of the event log in a hub's database anew, and print how many entries it has and the hash of the
last one as JSON. The file is only read, so it also works while the hub runs. gaia hub verify does this for people.`,
		Example: "  gaia-hub verify ~/.local/state/gaia/hub.db",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			log, err := sqlite.OpenLog(cmd.Context(), args[0])
			if err != nil {
				return fmt.Errorf("%w: %w", errLog, err)
			}
			defer log.Close()
			count, head, err := events.Verify(cmd.Context(), events.Reader(cmd.Context(), log))
			if err != nil {
				return fmt.Errorf("%w: %w", errLog, err)
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{
				"database": args[0], "count": count, "head": hex.EncodeToString(head[:]),
			})
		},
	}
}
