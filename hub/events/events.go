// Package events seals the entries of the hub's log into a hash chain and verifies such a chain. An entry is the
// RFC 8785 form of a domain.Event; its hash covers the previous hash and exactly those bytes, so that anybody with
// SHA-256 can check a log without knowing anything of Gaia.
//
// It must not read or write a database, and it never repairs a log.
package events

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/gowebpki/jcs"

	"gaia/domain"
	"gaia/hub/store"
)

// ErrBroken marks a log that does not verify.
var ErrBroken = errors.New("the event log is broken")

// BrokenError says where a log stops to verify. Everything before Seq is sound.
type BrokenError struct {
	Seq int64 // the first entry that is missing or wrong
	Why string
}

func (e *BrokenError) Error() string {
	return fmt.Sprintf("%v at entry %d: %s", ErrBroken, e.Seq, e.Why)
}

// Unwrap makes a BrokenError match ErrBroken.
func (e *BrokenError) Unwrap() error { return ErrBroken }

// Seal returns e as an entry of a log whose last hash is prev (32 zero bytes for the first). An event that lacks
// sequence number, time, kind, actor, type or object is domain.ErrInvalid, as is one whose data is no I-JSON.
func Seal(prev [32]byte, e domain.Event) (store.SealedEvent, error) {
	if missing := incomplete(e); missing != "" {
		return store.SealedEvent{}, fmt.Errorf("%w event: %s is not set", domain.ErrInvalid, missing)
	}
	e.Time = domain.At(e.Time.Time)
	raw, err := json.Marshal(e)
	if err != nil {
		return store.SealedEvent{}, fmt.Errorf("%w event %s of %s: %w", domain.ErrInvalid, e.Kind, e.Object, err)
	}
	sealed, err := canonical(raw)
	if err != nil {
		return store.SealedEvent{}, fmt.Errorf("%w event %s of %s: %w", domain.ErrInvalid, e.Kind, e.Object, err)
	}
	return store.SealedEvent{Seq: e.Seq, Bytes: sealed, Hash: chain(prev, sealed)}, nil
}

// Verify recomputes the chain over the entries that next returns until io.EOF. It returns how many entries are sound
// and the hash of the last of them; a log that is not what was sealed is a *BrokenError. A log that was cut at its end
// verifies: compare count and head with an anchor that was kept elsewhere.
func Verify(ctx context.Context, next func() (store.SealedEvent, error)) (count int64, head [32]byte, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return count, head, fmt.Errorf("verifying the event log after entry %d: %w", count, err)
		}
		e, err := next()
		if errors.Is(err, io.EOF) {
			return count, head, nil
		}
		if err != nil {
			return count, head, fmt.Errorf("reading the event log after entry %d: %w", count, err)
		}
		if why := check(head, count+1, e); why != "" {
			return count, head, &BrokenError{Seq: count + 1, Why: why}
		}
		count, head = count+1, e.Hash
	}
}

// pageSize is how many entries Reader asks for at a time.
const pageSize = 500

// Log is where Reader reads: a store.Store, or a part of one.
type Log interface {
	Events(ctx context.Context, after int64, limit int) ([]store.SealedEvent, error)
}

// Reader returns a function for Verify that reads a whole log from its beginning.
func Reader(ctx context.Context, log Log) func() (store.SealedEvent, error) {
	var page []store.SealedEvent
	var after int64
	return func() (store.SealedEvent, error) {
		if len(page) == 0 {
			var err error
			if page, err = log.Events(ctx, after, pageSize); err != nil {
				return store.SealedEvent{}, err
			}
			if len(page) == 0 {
				return store.SealedEvent{}, io.EOF
			}
		}
		e := page[0]
		page, after = page[1:], e.Seq
		return e, nil
	}
}

// check returns what is wrong with e as entry seq after prev, or "".
func check(prev [32]byte, seq int64, e store.SealedEvent) string {
	if e.Seq != seq {
		return fmt.Sprintf("the next entry that exists is %d", e.Seq)
	}
	if chain(prev, e.Bytes) != e.Hash {
		return "its bytes, its hash or the hash before it were changed"
	}
	// From here on the chain is sound, so whatever is wrong was sealed that way: by something that is not the hub.
	var ev domain.Event
	if err := json.Unmarshal(e.Bytes, &ev); err != nil {
		return "it is no event: " + err.Error()
	}
	if ev.Seq != seq {
		return fmt.Sprintf("its bytes say that it is entry %d", ev.Seq)
	}
	if missing := incomplete(ev); missing != "" {
		return missing + " is not set"
	}
	if c, err := jcs.Transform(e.Bytes); err != nil || !bytes.Equal(c, e.Bytes) {
		return "its bytes are not in RFC 8785 form"
	}
	return ""
}

// incomplete returns the JSON name of the first field that every event must have and this one has not.
func incomplete(e domain.Event) string {
	switch {
	case e.Seq < 1:
		return "seq"
	case e.Time.IsZero():
		return "time"
	case e.Kind == "":
		return "kind"
	case e.Actor == "":
		return "actor"
	case e.Type == "":
		return "type"
	case e.Object == "":
		return "object"
	}
	return ""
}

func chain(prev [32]byte, data []byte) [32]byte {
	h := sha256.New()
	h.Write(prev[:])
	h.Write(data)
	return [32]byte(h.Sum(nil))
}
