package host

import (
	"errors"
	"os"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"gaia/domain"
	"gaia/internal/cgroup"
	fields "gaia/internal/log"
	"gaia/session"
)

// Post completes the record of a run whose unit has ended with what only systemd and the kernel know, or writes it if the
// host could not. It is called by systemd with what happened in the environment, when no other process of the unit is left.
func Post(folder session.Folder, log zerolog.Logger) int {
	started, err := folder.Started()
	switch {
	case errors.Is(err, domain.ErrNotFound):
		log.Warn().Msg("no host has begun with this run, so there is nothing to record")
		return 0
	case err != nil:
		log.Error().Str(fields.MessageID, fields.RunFolderBroken).Err(err).Msg("the run folder is not usable")
		return ExitConfig
	}
	log = log.With().Str(fields.Run, started.Run).Logger()
	if spec, err := folder.Load(); err == nil {
		log = log.With().Str(fields.Ticket, spec.Identifier).Str(fields.Project, spec.Project).Logger()
	}
	if id := invocationID(); id == "" || id != started.InvocationID {
		log.Warn().Msg("this is not the unit that the run was started by; its record is left alone")
		return 0
	}
	rec, err := folder.Record()
	if errors.Is(err, domain.ErrNotFound) {
		rec = hostless(folder, started)
	} else if err != nil {
		log.Error().Str(fields.MessageID, fields.RunFolderBroken).Err(err).Msg("the record is not readable and is written anew")
		rec = hostless(folder, started)
	}
	rec.ServiceResult, rec.ExitCode, rec.ExitStatus = os.Getenv("SERVICE_RESULT"), os.Getenv("EXIT_CODE"), os.Getenv("EXIT_STATUS")
	if group, err := cgroup.Of("self"); err == nil {
		rec.CPUMS = counter(group, "cpu.stat", "usage_usec") / 1000
		rec.MemoryPeak = counter(group, "memory.peak", "")
		// The group is the unit's from its first process on, so that its count is the growth.
		rec.OOMKill = max(rec.OOMKill, oomKills(group))
	}
	if rec.WrittenBy == session.WrittenByPost && (rec.ExitCode == "killed" || rec.ExitCode == "dumped") {
		rec.Signal = "SIG" + strings.TrimPrefix(rec.ExitStatus, "SIG")
	}
	if err := folder.WriteRecord(rec); err != nil {
		log.Error().Str(fields.MessageID, fields.RecordLost).Err(err).Msg("the record of the run's end is lost")
		return ExitFailed
	}
	if spec, err := folder.Load(); err == nil {
		_ = os.Remove(spec.Socket) // left if tmux was killed; nobody listens on it any more
	}
	return 0
}

// hostless is the record of a host that died.
func hostless(folder session.Folder, started session.Started) session.Record {
	asked, err := folder.Stopping()
	note := "the run's host died before it could say how the run ended"
	if err != nil {
		note += "; whether its end was asked for is not known: " + err.Error()
	}
	return session.Record{
		Run: started.Run, BootID: started.BootID, InvocationID: started.InvocationID, EndedAt: domain.At(time.Now()),
		Cause: session.CauseHost, Note: note, TermRequested: asked, WrittenBy: session.WrittenByPost,
	}
}
