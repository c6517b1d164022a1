// Package log makes the logger of a daemon: fields straight into the journal where stderr is a journal stream, coloured
// lines on a terminal, JSON lines elsewhere. It names the fields that tell one ticket's story over all daemons.
//
// Nothing here is global: a logger is made in cmd and handed on. Neither secrets nor prompt text belong in any line.
package log

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/rs/zerolog"
	"github.com/rs/zerolog/journald"
	"golang.org/x/term"
)

// The fields that people filter by, such as `journalctl --user GAIA_TICKET=SHOP-12`.
const (
	Project   = "GAIA_PROJECT"   // project key
	Ticket    = "GAIA_TICKET"    // identifier
	Run       = "GAIA_RUN"       // run id
	Conductor = "GAIA_CONDUCTOR" // machine_id
	Reason    = "GAIA_REASON"    // why a run ended or a ticket is held
	MessageID = "MESSAGE_ID"     // kind of event; one of the ids of this package
)

// identifier is the journal's field for a program's name.
const identifier = "SYSLOG_IDENTIFIER"

//go:embed gaia.catalog
var catalog []byte

// Catalog returns the journal's message catalog for the ids of this package.
func Catalog() []byte { return bytes.Clone(catalog) }

// Options say who logs, and how much.
type Options struct {
	Name  string // name of the program
	Debug bool
}

// New returns a logger that writes to stderr, or to the journal that stderr leads to.
func New(o Options) zerolog.Logger {
	inJournal, err := journal.StderrIsJournalStream()
	if err == nil && inJournal {
		// Where journald is gone, its end of stderr is closed, and Go ends a program that writes there. Not ignored but
		// heard and dropped: what the daemon starts would inherit the former.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
		return build(o, &journalWriter{to: journald.NewJournalDWriter(), other: os.Stderr}).With().Str(identifier, o.Name).Logger()
	}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		_, plain := os.LookupEnv("NO_COLOR")
		w := zerolog.ConsoleWriter{
			Out: os.Stderr, NoColor: plain, TimeFormat: time.TimeOnly, FieldsExclude: []string{MessageID},
		}
		return build(o, w).With().Timestamp().Logger()
	}
	return build(o, os.Stderr).With().Timestamp().Str("program", o.Name).Logger()
}

func build(o Options, w io.Writer) zerolog.Logger {
	level := zerolog.InfoLevel
	if o.Debug {
		level = zerolog.DebugLevel
	}
	return zerolog.New(calm{w}).Level(level)
}

// calm turns zerolog's panic level into an error: the journal's priority for it is "emergency", which is broadcast to
// every terminal of the machine.
type calm struct{ io.Writer }

// WriteLevel implements zerolog.LevelWriter.
func (c calm) WriteLevel(level zerolog.Level, p []byte) (int, error) {
	if level != zerolog.PanicLevel {
		return c.Write(p)
	}
	_, err := c.Write(bytes.Replace(p, []byte(`"level":"panic"`), []byte(`"level":"error"`), 1))
	return len(p), err
}

// journalWriter falls back to the stream where the journal's own protocol fails, so that no line is lost.
type journalWriter struct{ to, other io.Writer }

func (w *journalWriter) Write(p []byte) (int, error) {
	if _, err := w.to.Write(withCause(p)); err == nil {
		return len(p), nil
	}
	return w.other.Write(p)
}

// withCause puts the error of a line behind its message: journalctl shows people the message and no other field.
func withCause(line []byte) []byte {
	var fields map[string]json.RawMessage
	var message, cause string
	if json.Unmarshal(line, &fields) != nil ||
		json.Unmarshal(fields[zerolog.ErrorFieldName], &cause) != nil || cause == "" ||
		json.Unmarshal(fields[zerolog.MessageFieldName], &message) != nil || strings.Contains(message, cause) {
		return line
	}
	var err error
	if fields[zerolog.MessageFieldName], err = json.Marshal(message + ": " + cause); err != nil {
		return line
	}
	if out, err := json.Marshal(fields); err == nil {
		return out
	}
	return line
}
