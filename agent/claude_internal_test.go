package agent

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gaia/domain"
)

// drawJSON draws a JSON text in any layout.
func drawJSON(depth int) *rapid.Generator[string] {
	blank := rapid.SampledFrom([]string{"", " ", "\n", "\n  ", "\t", "\r\n"})
	name := rapid.OneOf(rapid.SampledFrom([]string{`"projects"`, `"/tree"`, `"hasTrustDialogAccepted"`, `"customApiKeyResponses"`, `"a\u00e9"`, `"\""`}),
		rapid.Map(rapid.String(), func(s string) string { b, _ := json.Marshal(s); return string(b) }))
	leaf := rapid.SampledFrom([]string{"null", "true", "false", "0", "-1.50e+3", "12345678901234567890", `"x"`, `"{,:}"`, "[1, 2]", "[]"})
	if depth == 0 {
		return leaf
	}
	return rapid.Custom(func(t *rapid.T) string {
		if depth < 3 && rapid.Bool().Draw(t, "leaf") {
			return leaf.Draw(t, "value")
		}
		var b strings.Builder
		b.WriteString("{" + blank.Draw(t, "blank"))
		for i := range rapid.IntRange(0, 4).Draw(t, "members") {
			if i > 0 {
				b.WriteString("," + blank.Draw(t, "blank"))
			}
			b.WriteString(name.Draw(t, "name") + blank.Draw(t, "blank") + ":" + blank.Draw(t, "blank") + drawJSON(depth-1).Draw(t, "value") + blank.Draw(t, "blank"))
		}
		b.WriteString("}")
		return b.String()
	})
}

// everything returns every value of a file but the ones that are ours to write, numbers as they are written.
func everything(t interface{ Fatalf(string, ...any) }, data []byte, folder string) any {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var all map[string]any
	if err := d.Decode(&all); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	if p, ok := all["projects"].(map[string]any); ok {
		if f, ok := p[folder].(map[string]any); ok {
			if delete(f, "hasTrustDialogAccepted"); len(f) == 0 {
				delete(p, folder)
			}
		} else if p[folder] == nil {
			delete(p, folder)
		}
		if len(p) == 0 {
			delete(all, "projects")
		}
	} else if all["projects"] == nil {
		delete(all, "projects")
	}
	return all
}

// checkEdit holds what a change of the file must never break.
func checkEdit(t interface{ Fatalf(string, ...any) }, data []byte, folder string) {
	after, err := editClaude(data, folder, "")
	if err != nil {
		return
	}
	if raw, _ := value(after, "projects", folder, "hasTrustDialogAccepted"); string(raw) != "true" {
		t.Fatalf("no trust: %s", after)
	}
	again, err := editClaude(after, folder, "")
	if err != nil || !bytes.Equal(again, after) {
		t.Fatalf("a second change differs (%v):\n%s\n%s", err, after, again)
	}
	// One place changed: what comes before it and what comes behind it are the bytes that were there.
	head := 0
	for head < len(data) && head < len(after) && data[head] == after[head] {
		head++
	}
	tail := 0
	for tail < len(data)-head && tail < len(after)-head && data[len(data)-1-tail] == after[len(after)-1-tail] {
		tail++
	}
	if gone := data[head : len(data)-tail]; len(gone) > 0 && !replaces(data, folder) {
		t.Fatalf("%q is gone:\n%s\n%s", gone, data, after)
	}
}

// value returns what stands at a path of names; of several, the last one counts. If the path breaks off, it is what stands
// there, and false.
func value(data []byte, path ...string) (raw json.RawMessage, whole bool) {
	raw = data
	for _, name := range path {
		var object map[string]json.RawMessage
		if json.Unmarshal(raw, &object) != nil || object == nil {
			return raw, false
		}
		next, ok := object[name]
		if !ok {
			return nil, false
		}
		raw = next
	}
	return raw, true
}

// replaces reports whether there is a value in our place, or null on the way to it.
func replaces(data []byte, folder string) bool {
	raw, whole := value(data, "projects", folder, "hasTrustDialogAccepted")
	return whole || string(raw) == "null"
}

func TestEveryOtherKeySurvives(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		data := []byte(drawJSON(3).Draw(t, "file"))
		folder := rapid.OneOf(rapid.Just("/tree"), rapid.Map(rapid.StringMatching(`[ -~é"\\]{0,12}`), func(s string) string { return "/" + s })).Draw(t, "folder")
		checkEdit(t, data, folder)
		after, err := editClaude(data, folder, "")
		if err != nil || repeats(data) {
			return // of a name that is there twice, the last one counts for every reader, and is the one that is changed
		}
		if want, got := everything(t, data, folder), everything(t, after, folder); !jsonEqual(want, got) {
			t.Fatalf("%s\nbecame\n%s", data, after)
		}
	})
}

func jsonEqual(a, b any) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return bytes.Equal(x, y)
}

// repeats reports whether an object on the way to our value has a name twice.
func repeats(data []byte) bool {
	all, _, err := members(data, 0)
	if err != nil {
		return false
	}
	seen := map[string]bool{}
	for _, m := range all {
		if seen[m.key] || (m.key == "projects" || strings.HasPrefix(m.key, "/")) && repeats(data[m.value:m.behind]) {
			return true
		}
		seen[m.key] = true
	}
	return false
}

func FuzzClaudeState(f *testing.F) {
	for _, s := range []string{`{}`, "{\n  \"projects\": {\n    \"/tree\": {\n      \"hasTrustDialogAccepted\": false\n    }\n  }\n}\n", `{"projects":null}`, `{"projects":{"/tree":null}} `, "{"} {
		f.Add([]byte(s), "/tree", "")
	}
	f.Fuzz(func(t *testing.T, data []byte, folder, key string) {
		checkEdit(t, data, folder)
		if after, err := editClaude(data, folder, key); err == nil && !json.Valid(after) {
			t.Fatalf("damaged:\n%s\n%s", data, after)
		}
	})
}

func FuzzClaudeTranscript(f *testing.F) {
	f.Add([]byte(`{"type":"assistant","message":{"id":"m","model":"x","usage":{"input_tokens":1,"output_tokens":9223372036854775807}}}` + "\n" + `{"type":"assistant","isApiErrorMessage":true,"error":"rate_limit","message":{"content":[{"text":"x"}]}}`))
	f.Add([]byte(`{"type":"assistant","costUSD":-1e308,"message":{"id":"m","usage":{"input_tokens":-5}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var u claudeUsage
		if err := u.read(bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		if name := u.footprint().Negative(); name != "" {
			t.Fatalf("%s is negative", name)
		}
		if u.failed != nil {
			if v := claudeFailure(u.failed.kind, u.failed.text, time.Now()); !v.Reason.EndsRun() {
				t.Fatal(v)
			}
		}
		claudeScreen(string(data))
		resetTime(string(data), time.Now())
	})
}

func TestWhenALimitResets(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	now := time.Date(2026, 12, 1, 2, 30, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"You've hit your session limit · resets 4:37am (UTC)":           time.Date(2026, 12, 1, 4, 37, 0, 0, time.UTC),
		"You've hit your session limit · resets 2am (UTC)":              time.Date(2026, 12, 2, 2, 0, 0, 0, time.UTC),
		"You've hit your session limit · resets 12pm (UTC)":             time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC),
		"You've hit your weekly limit · resets 12am (Europe/Berlin)":    time.Date(2026, 12, 2, 0, 0, 0, 0, berlin),
		"You've hit your weekly limit · resets Dec 5, 5:47pm (UTC)":     time.Date(2026, 12, 5, 17, 47, 0, 0, time.UTC),
		"You've hit your weekly limit · resets Jan 2 at 5pm (UTC)":      time.Date(2027, 1, 2, 17, 0, 0, 0, time.UTC),
		"Claude AI usage limit reached|1796100000":                      time.Unix(1796100000, 0),
		"You've hit your session limit · resets 4:37am (Nowhere/There)": {},
		"You've hit your session limit · resets 14:37am (UTC)":          {},
		"Request rejected (429)":                                        {},
	} {
		got := resetTime(text, now)
		if want.IsZero() {
			require.True(t, got.IsZero(), text)
			continue
		}
		require.Equal(t, domain.At(want), got, text)
	}
}

func TestALineThatIsTooLongIsPassedOver(t *testing.T) {
	t.Parallel()
	var u claudeUsage
	line := `{"type":"assistant","message":{"id":"ID","model":"m","usage":{"output_tokens":1}}}` + "\n"
	long := `{"type":"assistant","message":{"id":"` + strings.Repeat("x", maxTranscriptLine) + `"}}` + "\n"
	require.NoError(t, u.read(strings.NewReader(strings.Replace(line, "ID", "a", 1)+long+strings.Replace(line, "ID", "b", 1)+line[:20])))
	require.Equal(t, int64(2), u.footprint().Turns)
}
