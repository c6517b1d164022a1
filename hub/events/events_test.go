package events

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/gowebpki/jcs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gaia/domain"
	"gaia/hub/store"
)

func event(seq int64) domain.Event {
	return domain.Event{
		Seq: seq, Time: domain.At(time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)), Kind: "ticket.moved", Actor: "user/ada",
		Project: "p", Type: "ticket", Object: "t", Ticket: "t", Data: json.RawMessage(`{"state":"coding","a":1e2}`),
	}
}

// log returns a sealed log of n entries.
func log(t testing.TB, n int) []store.SealedEvent {
	var out []store.SealedEvent
	var prev [32]byte
	for i := range n {
		e, err := Seal(prev, event(int64(i+1)))
		require.NoError(t, err)
		out, prev = append(out, e), e.Hash
	}
	return out
}

func each(entries []store.SealedEvent) func() (store.SealedEvent, error) {
	return func() (store.SealedEvent, error) {
		if len(entries) == 0 {
			return store.SealedEvent{}, io.EOF
		}
		e := entries[0]
		entries = entries[1:]
		return e, nil
	}
}

// The format of the log is a promise to whoever checks it with other tools.
func TestSealFormat(t *testing.T) {
	t.Parallel()
	const want = `{"actor":"user/ada","data":{"a":100,"state":"coding"},"kind":"ticket.moved","object":"t","project":"p","seq":1,"ticket":"t","time":"2026-03-04T12:00:00.000Z","type":"ticket"}`
	e, err := Seal([32]byte{}, event(1))
	require.NoError(t, err)
	require.Equal(t, want, string(e.Bytes))
	require.EqualValues(t, 1, e.Seq)
	require.Equal(t, sha256.Sum256(append(make([]byte, 32), want...)), e.Hash)

	second, err := Seal(e.Hash, event(2))
	require.NoError(t, err)
	require.Equal(t, sha256.Sum256(append(e.Hash[:], second.Bytes...)), second.Hash)
}

func TestSealIsCanonical(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ data, want string }{
		"keys sorted":   {`{"b":1,"a":{"d":1,"c":2}}`, `{"a":{"c":2,"d":1},"b":1}`},
		"space":         {" { \"a\" :\n[ 1 , 2 ] } ", `{"a":[1,2]}`},
		"not for html":  {`"<&>"`, `"<&>"`},
		"escapes":       {`"\u00e9\u2028\/\u0007"`, "\"é\u2028/\\u0007\""},
		"numbers":       {`[1.0,1e21,0.1,-0]`, `[1,1e+21,0.1,0]`},
		"nothing":       {``, `null`},
		"null":          {`null`, `null`},
		"sorted utf-16": {`{"\ud83d\ude00":1,"\ufb33":2}`, "{\"😀\":1,\"\ufb33\":2}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := event(1)
			e.Data = json.RawMessage(c.data)
			if c.data == "" {
				e.Data = nil
			}
			sealed, err := Seal([32]byte{}, e)
			require.NoError(t, err)
			require.Contains(t, string(sealed.Bytes), `"data":`+c.want+`,"kind"`)
		})
	}
}

func TestSealRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(*domain.Event)
		says  string
	}{
		"seq":        {func(e *domain.Event) { e.Seq = 0 }, "seq"},
		"time":       {func(e *domain.Event) { e.Time = domain.Time{} }, "time"},
		"kind":       {func(e *domain.Event) { e.Kind = "" }, "kind"},
		"actor":      {func(e *domain.Event) { e.Actor = "" }, "actor"},
		"type":       {func(e *domain.Event) { e.Type = "" }, "type"},
		"object":     {func(e *domain.Event) { e.Object = "" }, "object"},
		"cut":        {func(e *domain.Event) { e.Data = []byte(`{"a"`) }, "ticket.moved"},
		"two values": {func(e *domain.Event) { e.Data = []byte(`1 2`) }, "ticket.moved"},
		"same key":   {func(e *domain.Event) { e.Data = []byte(`{"a":1,"a":2}`) }, "ticket.moved"},
		"surrogate":  {func(e *domain.Event) { e.Data = []byte(`"\ud800"`) }, "ticket.moved"},
		"too large":  {func(e *domain.Event) { e.Data = []byte(`1e999`) }, "ticket.moved"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := event(1)
			c.spoil(&e)
			_, err := Seal([32]byte{}, e)
			require.ErrorIs(t, err, domain.ErrInvalid)
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	n, head, err := Verify(t.Context(), each(nil))
	require.NoError(t, err)
	require.Zero(t, n)
	require.Zero(t, head)

	whole := log(t, 5)
	n, head, err = Verify(t.Context(), each(whole))
	require.NoError(t, err)
	require.EqualValues(t, 5, n)
	require.Equal(t, whole[4].Hash, head)

	// A cut tail is not seen by the chain; count and head tell.
	n, head, err = Verify(t.Context(), each(whole[:3]))
	require.NoError(t, err)
	require.EqualValues(t, 3, n)
	require.Equal(t, whole[2].Hash, head)
}

func TestVerifyTampered(t *testing.T) {
	t.Parallel()
	reseal := func(entries []store.SealedEvent, from int) {
		prev := entries[from-1].Hash
		for i := from; i < len(entries); i++ {
			entries[i].Hash = chain(prev, entries[i].Bytes)
			prev = entries[i].Hash
		}
	}
	for name, c := range map[string]struct {
		tamper func([]store.SealedEvent) []store.SealedEvent
		seq    int64
	}{
		"content": {func(l []store.SealedEvent) []store.SealedEvent {
			l[2].Bytes = bytes.Replace(l[2].Bytes, []byte("ada"), []byte("eve"), 1)
			return l
		}, 3},
		"content and its hash": {func(l []store.SealedEvent) []store.SealedEvent {
			l[2].Bytes = bytes.Replace(l[2].Bytes, []byte("ada"), []byte("eve"), 1)
			l[2].Hash = chain(l[1].Hash, l[2].Bytes)
			return l
		}, 4},
		"hash":      {func(l []store.SealedEvent) []store.SealedEvent { l[2].Hash[0] ^= 1; return l }, 3},
		"space":     {func(l []store.SealedEvent) []store.SealedEvent { l[2].Bytes = append(l[2].Bytes, ' '); return l }, 3},
		"first cut": {func(l []store.SealedEvent) []store.SealedEvent { return l[1:] }, 1},
		"removed":   {func(l []store.SealedEvent) []store.SealedEvent { return slices.Delete(l, 2, 3) }, 3},
		"removed and renumbered": {func(l []store.SealedEvent) []store.SealedEvent {
			l = slices.Delete(l, 2, 3)
			l[2].Seq, l[3].Seq = 3, 4
			return l
		}, 3},
		"removed and resealed": {func(l []store.SealedEvent) []store.SealedEvent {
			l = slices.Delete(l, 2, 3)
			l[2].Seq, l[3].Seq = 3, 4
			reseal(l, 2)
			return l
		}, 3},
		"repeated": {func(l []store.SealedEvent) []store.SealedEvent { return slices.Insert(l, 2, l[1]) }, 3},
		"swapped":  {func(l []store.SealedEvent) []store.SealedEvent { l[2], l[3] = l[3], l[2]; return l }, 3},
		"swapped and renumbered": {func(l []store.SealedEvent) []store.SealedEvent {
			l[2], l[3] = l[3], l[2]
			l[2].Seq, l[3].Seq = 3, 4
			return l
		}, 3},
		"foreign tail": {func(l []store.SealedEvent) []store.SealedEvent {
			e, err := Seal([32]byte{9}, event(6))
			if err != nil {
				panic(err)
			}
			return append(l, e)
		}, 6},
		"sealed, but no event": {func(l []store.SealedEvent) []store.SealedEvent {
			l[2].Bytes = []byte(`[]`)
			reseal(l, 2)
			return l
		}, 3},
		"sealed, but incomplete": {func(l []store.SealedEvent) []store.SealedEvent {
			l[2].Bytes = []byte(`{"seq":3}`)
			reseal(l, 2)
			return l
		}, 3},
		"sealed, but not canonical": {func(l []store.SealedEvent) []store.SealedEvent {
			l[2].Bytes = append(l[2].Bytes, ' ')
			reseal(l, 2)
			return l
		}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, _, err := Verify(t.Context(), each(c.tamper(log(t, 5))))
			var broken *BrokenError
			require.ErrorAs(t, err, &broken)
			require.ErrorIs(t, err, ErrBroken)
			require.Equal(t, c.seq, broken.Seq)
			require.Equal(t, c.seq-1, n, "what comes before it is sound")
		})
	}
}

// Whatever single byte of whatever entry is changed, the log does not verify.
func TestVerifyAnyByte(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		l := log(t, 4)
		e := &l[rapid.IntRange(0, 3).Draw(r, "entry")]
		mask := byte(rapid.IntRange(1, 255).Draw(r, "mask"))
		if rapid.Bool().Draw(r, "hash") {
			e.Hash[rapid.IntRange(0, 31).Draw(r, "byte")] ^= mask
		} else {
			e.Bytes[rapid.IntRange(0, len(e.Bytes)-1).Draw(r, "byte")] ^= mask
		}
		n, _, err := Verify(context.Background(), each(l))
		require.ErrorIs(r, err, ErrBroken)
		require.Equal(r, e.Seq-1, n)
	})
}

func TestVerifyEnds(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	l := log(t, 3)
	next := each(l)
	n, head, err := Verify(t.Context(), func() (store.SealedEvent, error) {
		if e, err := next(); err == nil {
			return e, nil
		}
		return store.SealedEvent{}, boom
	})
	require.ErrorIs(t, err, boom)
	require.NotErrorIs(t, err, ErrBroken, "a log that cannot be read is not said to be broken")
	require.EqualValues(t, 3, n)
	require.Equal(t, l[2].Hash, head)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = Verify(ctx, each(l))
	require.ErrorIs(t, err, context.Canceled)
}

type paged []store.SealedEvent

func (p paged) Events(_ context.Context, after int64, limit int) ([]store.SealedEvent, error) {
	from := min(int(after), len(p))
	return p[from:min(from+limit, len(p))], nil
}

func TestReader(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, pageSize - 1, pageSize, pageSize + 1, 2*pageSize + 3} {
		got, _, err := Verify(t.Context(), Reader(t.Context(), paged(log(t, n))))
		require.NoError(t, err)
		require.EqualValues(t, n, got)
	}
}

// Whatever is sealed verifies, is canonical and reads back as the same event; whatever is not sealed is refused with
// domain.ErrInvalid.
func FuzzSeal(f *testing.F) {
	f.Add("ticket.moved", "user/ada", `{"b":1,"a":[1.5e3,"é\u0000"]}`)
	f.Add("", "", ``)
	f.Add("k", "a\xff", `"\ud800"`)
	f.Add("k", "a", `{"a":1,"a":1}`)
	f.Add("k", "a", `12345678901234567890`)
	f.Fuzz(func(t *testing.T, kind, actor, data string) {
		e := event(1)
		e.Kind, e.Actor, e.Data = kind, actor, json.RawMessage(data)
		sealed, err := Seal([32]byte{}, e)
		if err != nil {
			require.ErrorIs(t, err, domain.ErrInvalid)
			return
		}
		canonical, err := jcs.Transform(sealed.Bytes)
		require.NoError(t, err)
		require.Equal(t, string(canonical), string(sealed.Bytes))
		n, head, err := Verify(context.Background(), each([]store.SealedEvent{sealed}))
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		require.Equal(t, sealed.Hash, head)
		var back domain.Event
		require.NoError(t, json.Unmarshal(sealed.Bytes, &back))
		again, err := Seal([32]byte{}, back)
		require.NoError(t, err)
		require.Equal(t, sealed, again)
	})
}

// Verify reads what may have been tampered with in any way, and never panics.
func FuzzVerify(f *testing.F) {
	f.Add(int64(1), []byte(`{"seq":1}`), true)
	f.Add(int64(1), []byte(`null`), true)
	f.Add(int64(1), log(f, 1)[0].Bytes, true)
	f.Add(int64(2), []byte{}, false)
	f.Fuzz(func(t *testing.T, seq int64, data []byte, sealed bool) {
		e := store.SealedEvent{Seq: seq, Bytes: data}
		if sealed {
			e.Hash = chain([32]byte{}, data)
		}
		n, _, err := Verify(context.Background(), each([]store.SealedEvent{e}))
		if err != nil {
			require.ErrorIs(t, err, ErrBroken)
			require.Zero(t, n)
		}
	})
}
