package journal

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestDecode(t *testing.T) {
	t.Parallel()
	const at = `"__REALTIME_TIMESTAMP":"1796102544587958"`
	base := Entry{At: time.UnixMicro(1796102544587958).UTC(), Priority: 6, Level: "info"}
	for _, c := range []struct {
		line string
		want func(*Entry)
	}{
		{`{` + at + `}`, func(*Entry) {}},
		{`{` + at + `,"MESSAGE":"hello","PRIORITY":"4","SYSLOG_IDENTIFIER":"gaia-hub","_COMM":"x","_PID":"54","__CURSOR":"s=1"}`, func(e *Entry) {
			e.Message, e.Priority, e.Level, e.Source, e.PID, e.Cursor = "hello", 4, "warning", "gaia-hub", 54, "s=1"
		}},
		{`{` + at + `,"GAIA_TICKET":"-x\ny","GAIA_RUN":"r","GAIA_PROJECT":"P","GAIA_CONDUCTOR":"a.b.c","GAIA_REASON":"stalled","MESSAGE_ID":"ab"}`, func(e *Entry) {
			e.Ticket, e.Run, e.Project, e.Conductor, e.Reason, e.MessageID = "-x\ny", "r", "P", "a.b.c", "stalled", "ab"
		}},
		{`{` + at + `,"MESSAGE":[104,105,27,255]}`, func(e *Entry) { e.Message = "hi\x1b\uFFFD" }},
		{`{` + at + `,"MESSAGE":null}`, func(e *Entry) { e.Incomplete = true }},
		{`{` + at + `,"MESSAGE":["","one","two"]}`, func(e *Entry) { e.Message = "one" }},
		{`{` + at + `,"MESSAGE":[null,[111,107],"two"]}`, func(e *Entry) { e.Message = "ok" }},
		{`{` + at + `,"MESSAGE":[[[1]],{},1.5,300,-1,true]}`, func(*Entry) {}},
		{`{` + at + `,"MESSAGE":[]}`, func(*Entry) {}},
		{`{` + at + `,"MESSAGE":{"a":1},"PRIORITY":6,"_PID":"many"}`, func(*Entry) {}},
		{`{` + at + `,"PRIORITY":"8"}`, func(*Entry) {}},
		{`{` + at + `,"PRIORITY":"-1"}`, func(*Entry) {}},
		{`{` + at + `,"_COMM":"systemd","_SYSTEMD_USER_UNIT":"init.scope","USER_UNIT":"gaia-run-shop-1.service"}`, func(e *Entry) { e.Source, e.Unit = "systemd", "gaia-run-shop-1.service" }},
		{`{` + at + `,"_SYSTEMD_USER_UNIT":"gaia-hub.service","NEW":{"deep":[1,{"x":null}]}}`, func(e *Entry) { e.Unit = "gaia-hub.service" }},
	} {
		want := base
		c.want(&want)
		got, err := Decode([]byte(c.line))
		require.NoError(t, err, c.line)
		require.Equal(t, want, got, c.line)
	}
	for _, line := range []string{
		``, `x`, `null`, `[]`, `"x"`, `{}`, `{` + at, `{` + at + `} {}`, `{"__REALTIME_TIMESTAMP":"soon"}`, `{"__REALTIME_TIMESTAMP":"-1"}`, `{"__REALTIME_TIMESTAMP":null}`,
		`{"a":` + strings.Repeat(`[`, 20000),
	} {
		_, err := Decode([]byte(line))
		require.ErrorContains(t, err, "not understood", "%.80s", line)
	}
}

// Whatever stands in a line, it is an entry that can be printed, or an error.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"__REALTIME_TIMESTAMP":"1796102544587958","MESSAGE":[104,105,255],"PRIORITY":"3","_PID":"1","GAIA_TICKET":["a",null,[98]]}`))
	f.Add([]byte(`{"__REALTIME_TIMESTAMP":"1","MESSAGE":null}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := Decode(line)
		if err != nil {
			require.Equal(t, Entry{}, e)
			return
		}
		require.False(t, e.At.IsZero())
		require.Equal(t, levels[e.Priority], e.Level)
		require.GreaterOrEqual(t, e.PID, 0)
		for _, s := range []string{e.Message, e.Ticket, e.Run, e.Source, e.Unit, e.Cursor} {
			require.True(t, utf8.ValidString(s), "%q", s)
		}
		again, err := json.Marshal(e)
		require.NoError(t, err)
		require.True(t, json.Valid(again))
	})
}

func TestParsePriority(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]int{"emerg": 0, "err": 3, "error": 3, "ERROR": 3, "warn": 4, "warning": 4, "info": 6, "debug": 7, "0": 0, "7": 7} {
		got, err := ParsePriority(word)
		require.NoError(t, err, word)
		require.Equal(t, want, got, word)
	}
	for _, word := range []string{"", "8", "-1", "loud", "3..5", "07"} {
		_, err := ParsePriority(word)
		require.ErrorContains(t, err, "warning", word)
	}
}

func TestParseTime(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"90m": "-90m", "1h30m": "-1h30m", "2d": "-2d", "2 days": "-2 days", "1.5h": "-1.5h", "-1h": "-1h", "today": "today", "10 min ago": "10 min ago",
		"2026-12-01": "2026-12-01", "2026-12-01 14:30": "2026-12-01 14:30", "14:30": "14:30", "@5": "@5",
		"2026-12-01T05:22:24Z": "@1796102544.000000", "2026-12-01T06:22:24.587958+01:00": "@1796102544.587958", "-x": "-x", "": "",
	} {
		require.Equal(t, want, ParseTime(given), given)
	}
}
