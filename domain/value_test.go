package domain_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	. "gaia/domain"
)

func TestParseTime(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                              "",
		"2026-03-04T12:00:00Z":          "2026-03-04T12:00:00.000Z",
		"2026-03-04T12:00:00.1239999Z":  "2026-03-04T12:00:00.123Z",
		"2026-03-04T12:00:00+01:00":     "2026-03-04T11:00:00.000Z",
		"9999-12-31T23:59:59.999Z":      "9999-12-31T23:59:59.999Z",
		"0001-01-01T00:00:01Z":          "0001-01-01T00:00:01.000Z",
		"2026-03-04T12:00:00.000-23:59": "2026-03-05T11:59:00.000Z",
	} {
		got, err := ParseTime(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got.String())
	}
	for _, bad := range []string{
		" ", "now", "2026-03-04", "2026-03-04 12:00:00Z", "2026-03-04T12:00:00", "2026-13-04T12:00:00Z", "1772625600",
		"9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+01:00", "0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z",
	} {
		_, err := ParseTime(bad)
		require.ErrorContains(t, err, bad)
	}
}

// Times survive text and JSON, and sort as text, which stores rely on.
func TestTimes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) Time {
			s := rapid.Int64Range(time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC).Unix(), time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC).Unix()).Draw(t, name)
			zone := time.FixedZone("", rapid.IntRange(-12*3600, 14*3600).Draw(t, name+" zone"))
			return At(time.Unix(s, rapid.Int64Range(0, 999_999_999).Draw(t, name+" ns")).In(zone))
		}
		a, b := draw("a"), draw("b")
		require.Equal(t, time.UTC, a.Location())
		require.Zero(t, a.Nanosecond()%1e6)
		back, err := ParseTime(a.String())
		require.NoError(t, err)
		require.Equal(t, a, back)
		data, err := json.Marshal(a)
		require.NoError(t, err)
		var c Time
		require.NoError(t, json.Unmarshal(data, &c))
		require.Equal(t, a, c)
		require.Equal(t, a.Compare(b.Time), strings.Compare(a.String(), b.String()))
	})
}

func TestTimeJSON(t *testing.T) {
	t.Parallel()
	data, err := json.Marshal(struct{ A, B Time }{B: At(time.Date(2026, 3, 4, 13, 0, 0, 5_999_999, time.FixedZone("", 3600)))})
	require.NoError(t, err)
	require.JSONEq(t, `{"A":null,"B":"2026-03-04T12:00:00.005Z"}`, string(data))
	v := At(time.Now())
	require.NoError(t, json.Unmarshal([]byte("null"), &v))
	require.True(t, v.IsZero())
	for _, bad := range []string{`1`, `"x"`, `{}`, `[]`, `true`} {
		require.Error(t, json.Unmarshal([]byte(bad), &v), bad)
	}
	require.True(t, At(time.Time{}).IsZero())
}

func FuzzParseTime(f *testing.F) {
	f.Add("2026-03-04T12:00:00.5+01:00")
	f.Add("9999-12-31T23:59:59-01:00")
	f.Fuzz(func(t *testing.T, s string) {
		v, err := ParseTime(s)
		if err != nil {
			return
		}
		again, err := ParseTime(v.String())
		require.NoError(t, err)
		require.Equal(t, v, again)
	})
}

func TestRefs(t *testing.T) {
	t.Parallel()
	data, err := json.Marshal(struct{ A, B Ref }{B: "x\"y"})
	require.NoError(t, err)
	require.JSONEq(t, `{"A":null,"B":"x\"y"}`, string(data))
	v := struct{ A, B, C Ref }{A: "old", C: "kept"}
	require.NoError(t, json.Unmarshal([]byte(`{"A":null,"B":"new"}`), &v))
	require.Equal(t, struct{ A, B, C Ref }{"", "new", "kept"}, v)
	require.Error(t, json.Unmarshal([]byte(`{"A":1}`), &v))
}

func TestLabels(t *testing.T) {
	t.Parallel()
	got, err := NormaliseLabels([]string{" UI", "api", "ui", "Größe", "a b"})
	require.NoError(t, err)
	require.Equal(t, []string{"a b", "api", "größe", "ui"}, got)
	got, err = NormaliseLabels(nil)
	require.NoError(t, err)
	require.Equal(t, []string{}, got)
	_, err = NormaliseLabels([]string{strings.Repeat("a", MaxLabel)})
	require.NoError(t, err)
	for _, bad := range []string{"", " \t", "a,b", "a\nb", "a\x1b[0m", "a\xff", strings.Repeat("a", MaxLabel+1)} {
		_, err := NormaliseLabels([]string{"fine", bad})
		require.ErrorContains(t, err, "label", "%q", bad)
	}
	rapid.Check(t, func(t *rapid.T) {
		once, err := NormaliseLabels(rapid.SliceOf(rapid.OneOf(rapid.String(), rapid.StringMatching(`[ a-cA-C]{1,3}`))).Draw(t, "labels"))
		if err != nil {
			return
		}
		twice, err := NormaliseLabels(once)
		require.NoError(t, err)
		require.Equal(t, once, twice)
	})
}

func TestTextChecks(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"SHOP-1", "any text, even größe", strings.Repeat("a", MaxIdentifier)} {
		require.NoError(t, CheckIdentifier(good))
	}
	for _, bad := range []string{"", "  ", "a\nb", "a\x00", "a\xff", strings.Repeat("a", MaxIdentifier+1)} {
		require.ErrorContains(t, CheckIdentifier(bad), "identifier", "%q", bad)
	}
	require.NoError(t, CheckTitle("Sell more: größer!"))
	for _, bad := range []string{"", " ", "a\nb", "a\x1b", "a\xff", strings.Repeat("a", MaxTitle+1)} {
		require.ErrorContains(t, CheckTitle(bad), "title", "%q", bad)
	}
	require.NoError(t, CheckText("body", "a\n\tb\x1b", 10))
	require.NoError(t, CheckText("body", "", 0))
	require.ErrorContains(t, CheckText("body", "abc", 2), "body has at most 2 bytes, this one has 3")
	require.ErrorContains(t, CheckText("body", "\xff", 2), "body is not valid UTF-8")
	require.Equal(t, "human_input", NormaliseState("\t Human_Input\n"))
}

func TestFootprints(t *testing.T) {
	t.Parallel()
	require.Empty(t, Footprint{}.Negative())
	for name, f := range map[string]Footprint{
		"tokens_in": {TokensIn: -1}, "tokens_out": {TokensOut: -1}, "tokens_cache_read": {TokensCacheRead: -1},
		"tokens_cache_write": {TokensCacheWrite: -1}, "turns": {Turns: -1}, "cost": {Cost: math.NaN()}, "wall_ms": {WallMS: -1},
		"cpu_ms": {CPUMS: -1}, "memory_peak": {MemoryPeak: -1}, "io_read": {IORead: -1}, "io_write": {IOWrite: math.MinInt64},
	} {
		require.Equal(t, name, f.Negative())
	}
	sum := Footprint{TokensIn: 1, Cost: 0.5, Model: "a", MemoryPeak: 9}
	sum.Add(Footprint{TokensIn: 2, TokensOut: 3, TokensCacheRead: 4, TokensCacheWrite: 5, Turns: 6, Cost: 0.25, WallMS: 7, CPUMS: 8, MemoryPeak: 5, IORead: 10, IOWrite: 11})
	require.Equal(t, Footprint{TokensIn: 3, TokensOut: 3, TokensCacheRead: 4, TokensCacheWrite: 5, Turns: 6, Cost: 0.75, Model: "a", WallMS: 7, CPUMS: 8, MemoryPeak: 9, IORead: 10, IOWrite: 11}, sum)
	rapid.Check(t, func(t *rapid.T) {
		big := rapid.Int64Range(0, math.MaxInt64)
		f := Footprint{TokensIn: big.Draw(t, "a"), IOWrite: big.Draw(t, "b")}
		f.Add(Footprint{TokensIn: big.Draw(t, "c"), IOWrite: big.Draw(t, "d")})
		require.Empty(t, f.Negative(), "a sum is never negative")
	})
}

func TestFieldError(t *testing.T) {
	t.Parallel()
	err := error(&FieldError{Field: "title", Err: ErrConflict})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorIs(t, err, ErrConflict)
	require.Equal(t, "title: conflict", err.Error())
}
