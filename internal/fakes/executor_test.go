package fakes_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"gaia/domain"
	"gaia/internal/fakes"
	"gaia/session"
	"gaia/tmux/executortest"
)

func TestExecutorConforms(t *testing.T) {
	t.Parallel()
	executortest.Run(t, func(t *testing.T) executortest.Harness {
		e := fakes.NewExecutor(t.TempDir())
		return executortest.Harness{
			Executor: e,
			Prepare: func(t testing.TB, number int) domain.Launch {
				run := uuid.Must(uuid.NewV7()).String()
				folder := filepath.Join(e.Runs, run)
				_, err := session.Create(folder, session.Spec{Run: run, Number: number, Unit: fmt.Sprintf("fake-%d.service", number)}, "token")
				require.NoError(t, err)
				return domain.Launch{Run: run, Number: number, Folder: folder}
			},
			End: func(t testing.TB, run string, status int) {
				require.NoError(t, e.End(run, session.Record{Cause: session.CausePane, Exit: &status}))
			},
			Break: func(testing.TB) func() {
				e.Fail(errors.New("the bus is away"))
				return func() { e.Fail(nil) }
			},
		}
	})
}
