package events

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/gowebpki/jcs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The short way writes what the library writes, and refuses what that refuses.
func TestCanonicalAgreesWithTheLibrary(t *testing.T) {
	t.Parallel()
	texts := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-z"!#\\<\n\t]{0,4}`), rapid.SampledFrom([]string{"a", "a!", "ab", "é", "\u2028", "\U0001F600", "\uFB33", "\x00", "\x7f"}))
	var values func(depth int) *rapid.Generator[any]
	values = func(depth int) *rapid.Generator[any] {
		kinds := []*rapid.Generator[any]{
			rapid.Just[any](nil), rapid.Bool().AsAny(), texts.AsAny(), rapid.Float64Range(-1e300, 1e300).AsAny(), rapid.Int().AsAny(),
			rapid.SampledFrom([]any{0, -1, 0.1, 1e21, math.Copysign(0, -1), 999999999999999, 1000000000000000, json.Number("-0"), json.Number("1E2"), json.Number("10")}),
		}
		if depth > 0 {
			kinds = append(kinds, rapid.SliceOfN(values(depth-1), 0, 4).AsAny(), rapid.MapOfN(texts, values(depth-1), 0, 6).AsAny())
		}
		return rapid.OneOf(kinds...)
	}
	rapid.Check(t, func(t *rapid.T) {
		raw, err := json.Marshal(rapid.MapOfN(texts, values(3), 0, 5).Draw(t, "value"))
		require.NoError(t, err)
		want, err := jcs.Transform(raw)
		require.NoError(t, err)
		got, err := canonical(raw)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
	})
}

func FuzzCanonical(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"b":1,"a":[true,false,null]}`, `{"a!":1,"a":2}`, `{"a":1,"a":1}`, `{"a": 1}`, `{"a":01}`, `{"a":-0}`, `{"a":1.0}`, `{"a":"\u0061"}`,
		`{"a":"\/"}`, "{\"a\":\"\xff\"}", `{"a":tru}`, `{"a":1}x`, `{"a":1,}`, `{,"a":1}`, `{"a" :1}`, `[]`, `[1,]`, `{"a":12345678901234567890}`, `{"a":[{"d":1,"c":{}}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		want, wrong := jcs.Transform(raw)
		got, err := canonical(raw)
		if wrong != nil {
			require.Error(t, err)
			return
		}
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
	})
}
