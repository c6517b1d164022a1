// Package store is what the hub needs of a database: durable transactions over typed rows, and the sealed event log.
// It holds no rule about tickets; those are in domain and hub. Implementations live below it, one per database, and
// each must pass the suite in storetest.
package store

import (
	"context"
	"errors"
	"time"

	"gaia/domain"
)

// ErrUnavailable marks an error of the database itself (full disk, lost file, connection). Nothing was written.
var ErrUnavailable = domain.ErrStorage

// Store is one database.
type Store interface {
	// Update runs fn in a transaction that is durable when Update returns nil. Transactions are serialised: fn sees
	// no other one's half. An error of fn, or a panic, rolls everything back. fn may be called once only.
	Update(ctx context.Context, fn func(Tx) error) error
	// View runs fn on a consistent snapshot. Writing methods of its Tx return an error.
	View(ctx context.Context, fn func(Tx) error) error
	// Events returns sealed entries with a sequence number above after, oldest first, at most limit of them.
	Events(ctx context.Context, after int64, limit int) ([]SealedEvent, error)
	// Head returns the newest entry's sequence number and hash; 0 and 32 zero bytes when the log is empty.
	Head(ctx context.Context) (int64, [32]byte, error)
	// Ready returns nil if the database can be read and written now.
	Ready(ctx context.Context) error
	// Checkpoint brings the database's files into a tidy state; the hub calls it in idle time.
	Checkpoint(ctx context.Context) error
	Close() error
}

// SealedEvent is one entry of the log, as stored. Bytes is the RFC 8785 form of the domain.Event; Hash is
// SHA-256(previous hash, Bytes), where the first previous hash is 32 zero bytes.
type SealedEvent struct {
	Seq   int64
	Bytes []byte
	Hash  [32]byte
}

// ErrReadOnly is returned by writing methods inside View.
var ErrReadOnly = errors.New("the transaction is read-only")

// Tx is one transaction. Lookups of a single row return domain.ErrNotFound where there is none. Put methods insert or
// replace the row with that id; a unique column taken by another row is domain.ErrConflict, and the error names it.
type Tx interface {
	User(id string) (domain.User, error)
	Users() ([]domain.User, error)
	PutUser(domain.User) error

	Project(id string) (domain.Project, error)
	ProjectByKey(key string) (domain.Project, error)
	Projects(Query) ([]domain.Project, int, error)
	PutProject(domain.Project) error

	Ticket(id string) (domain.Ticket, error)
	TicketByIdentifier(identifier string) (domain.Ticket, error)
	Tickets(Query) ([]domain.Ticket, int, error)
	PutTicket(domain.Ticket) error
	// Parked returns tickets in one of the states, of one project or, for "", of all, that are held, whose not_before or
	// retry_at is after now, or whose tree_at is one of machines; oldest first. It must not slow down with the number of
	// other tickets.
	Parked(project string, states, machines []string, now domain.Time) ([]domain.Ticket, error)
	// Blocked returns tickets in one of the states, of one project or, for "", of all, that are blocked by a ticket in one of
	// the states; oldest first. It must not slow down with the number of tickets that neither block nor are blocked.
	Blocked(project string, states []string) ([]domain.Ticket, error)
	// NextTicketNumber returns the number for a new identifier (KEY-n) of the project and uses it up. A number whose
	// identifier a ticket has already, because somebody chose it, is passed over.
	NextTicketNumber(project string) (int, error)
	// Candidates calls fn with tickets for whom in claim order (domain.CompareClaim) until it returns false or an error.
	// Tickets that fail a cheap gate (another project, state, target or assignee, held, not_before or retry_at after now, a
	// live run) may be left out. It must not slow down with the number of tickets that are not candidates.
	Candidates(whom Claimer, now domain.Time, fn func(domain.Ticket) (bool, error)) error

	Run(id string) (domain.Run, error)
	Runs(Query) ([]domain.Run, int, error)
	PutRun(domain.Run) error
	NextRunNumber(project string) (int, error)
	// LiveRun returns the ticket's live run. There is never more than one: a unique index says so.
	LiveRun(ticket string) (domain.Run, error)
	// LastEndedRun returns the ticket's run that ended last.
	LastEndedRun(ticket string) (domain.Run, error)
	// LiveRuns returns every live run, of one conductor or, for "", of all.
	LiveRuns(conductor string) ([]domain.Run, error)
	// UnfinishedRuns returns a conductor's runs that are live or not finalised, oldest first.
	UnfinishedRuns(conductor string) ([]domain.Run, error)
	// CountLive counts the live runs of a project.
	CountLive(project string) (int, error)
	// LiveByState counts a conductor's live runs by the ticket state that they began in.
	LiveByState(conductor string) (map[string]int, error)
	// UsedByTicket sums the footprints of a ticket's runs.
	UsedByTicket(ticket string) (domain.Footprint, error)
	// Used counts the runs of a project or, for "", of all, and sums their footprints. It reads no run.
	Used(project string) (int, domain.Footprint, error)

	Conductor(id string) (domain.Conductor, error)
	ConductorByMachineID(machineID string) (domain.Conductor, error)
	Conductors(Query) ([]domain.Conductor, int, error)
	PutConductor(domain.Conductor) error

	Comment(id string) (domain.Comment, error)
	Comments(Query) ([]domain.Comment, int, error)
	PutComment(domain.Comment) error
	// Labels returns every label in use on tickets of a project or, for "", of all, sorted, with how many tickets carry it.
	Labels(project string) ([]domain.Label, error)

	// PutToken stores who a token is; only its SHA-256 is known. A token of the same holder is replaced.
	PutToken(Token) error
	// TokenByHash returns the holder of a token.
	TokenByHash(hash [32]byte) (Token, error)

	// Answer returns the stored answer to a write, younger than since; domain.ErrNotFound where there is none.
	Answer(principal, key string, since time.Time) (Answer, error)
	PutAnswer(Answer) error
	DropAnswers(before time.Time) error

	// Append adds one entry to the log. Seq is set by the store; Time, Kind, Actor, Type and Object must be set.
	Append(domain.Event) error
}

// Claimer is a conductor that asks for tickets.
type Claimer struct {
	Project   string
	States    []string
	Conductor string // the target that a ticket may have
	Owner     string // the assignee that it may have
}

// TokenKind says what a token's holder is.
type TokenKind string

// The token kinds. A run's token is looked up by its run's state, too: an ended run's token is stale.
const (
	TokenConductor TokenKind = "conductor"
	TokenRun       TokenKind = "run"
)

// Token is a credential's public half.
type Token struct {
	Hash   [32]byte
	Kind   TokenKind
	Holder string // conductor id or run id
}

// Answer is the stored outcome of a write, kept for a repeat with the same key.
type Answer struct {
	Principal string
	Key       string
	Request   [32]byte // SHA-256 of operation and body
	Body      []byte   // JSON of the result; holds no secret
	At        time.Time
}

// Query selects rows of a collection. Fields are the JSON names of the domain type; a field that the collection
// does not allow is domain.ErrInvalid and the error names it.
type Query struct {
	Filters []Filter
	Sort    []Sort // ties are broken by id
	Offset  int
	Limit   int // 0: no limit
}

// Filter keeps rows whose field has one of the values. For a list field (labels, blocked_by) it keeps rows whose list
// holds one of them. The value "" matches null.
type Filter struct {
	Field  string
	Values []string
}

// Sort is one sort key.
type Sort struct {
	Field      string
	Descending bool
}
