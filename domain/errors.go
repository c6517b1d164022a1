package domain

import "errors"

// Errors that cross the ports. Match them with errors.Is; the wrapping text says what was being done.
var (
	// ErrNotFound: the object does not exist, or the caller may not know that it does.
	ErrNotFound = errors.New("not found")
	// ErrConflict: the object exists already, or was changed by somebody else.
	ErrConflict = errors.New("conflict")
	// ErrInvalid: the input breaks a rule; the text names the field.
	ErrInvalid = errors.New("invalid")
	// ErrForbidden: the caller is known but may not do this.
	ErrForbidden = errors.New("forbidden")
	// ErrUnauthenticated: the caller is not known.
	ErrUnauthenticated = errors.New("not authenticated")
	// ErrStaleRun: the run that the caller acts for has ended.
	ErrStaleRun = errors.New("stale_run")
	// ErrSuperseded: a newer process has registered as this conductor.
	ErrSuperseded = errors.New("superseded")
	// ErrUnreachable: the hub gave no answer; nothing is known about the effect of the call.
	ErrUnreachable = errors.New("hub unreachable")
	// ErrStorage: the hub is up but cannot write.
	ErrStorage = errors.New("storage_unavailable")
	// ErrExists: a unit, session or run folder of this run is there already. Nothing was started.
	ErrExists = errors.New("exists already")
)

// FieldError is an ErrInvalid that names the field.
type FieldError struct {
	Field string // JSON name
	Err   error
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

// Unwrap makes a FieldError match ErrInvalid and its cause.
func (e *FieldError) Unwrap() []error { return []error{ErrInvalid, e.Err} }
