package model

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ask sends one request as an agent would and returns the status, the headers and the body.
func ask(t *testing.T, s *Server, path string, body any) (*http.Response, string) {
	t.Helper()
	data, err := json.Marshal(body)
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL()+path, bytes.NewReader(data))
	require.NoError(t, err)
	req.Header.Set("X-Api-Key", "a-key")
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res, string(got)
}

// talk is the request of a conversation that has come so far.
func talk(stream bool, messages ...string) map[string]any {
	var list []map[string]any
	for i, m := range messages {
		list = append(list, map[string]any{"role": []string{"user", "assistant"}[i%2], "content": []map[string]string{{"type": "text", "text": m}}})
	}
	return map[string]any{"model": "some-model", "stream": stream, "messages": list, "tools": []map[string]string{{"name": "Bash"}}}
}

func TestConversationsFollowTheirOwnScripts(t *testing.T) {
	t.Parallel()
	s := New(t)
	s.On("apples", Steps(Bash("ls apples"), Say("Apples done.").Costing(Usage{Input: 7, Output: 3, CacheRead: 2, CacheWrite: 1})))
	s.On("pears", Steps(Say("Pears done.")))

	_, body := ask(t, s, "/v1/messages", talk(false, "count the apples"))
	require.Contains(t, body, `"name":"Bash"`)
	require.Contains(t, body, `"stop_reason":"tool_use"`)
	_, body = ask(t, s, "/v1/messages", talk(false, "count the pears"))
	require.Contains(t, body, "Pears done.")
	_, body = ask(t, s, "/v1/messages", talk(false, "count the apples", "…", "three of them, no pears"))
	require.Contains(t, body, "Apples done.")
	require.Contains(t, body, `"usage":{"input_tokens":7,"output_tokens":3,"cache_creation_input_tokens":1,"cache_read_input_tokens":2}`)
	// Another conversation with the same marker starts from the beginning.
	_, body = ask(t, s, "/v1/messages", talk(false, "count other apples"))
	require.Contains(t, body, "ls apples")

	requests := s.Requests("apples")
	require.Len(t, requests, 3)
	require.Equal(t, "three of them, no pears", requests[1].Last())
	require.Equal(t, "a-key", requests[1].Key)
	require.True(t, requests[1].Tool("Bash"))
	require.False(t, requests[1].Tool("Read"))
}

func TestAConversationIsKnownByItsSession(t *testing.T) {
	t.Parallel()
	s := New(t)
	s.On("", Steps(Say("one"), Say("two")))
	for _, c := range []struct{ session, want string }{{"a", "one"}, {"b", "one"}, {"a", "two"}} {
		q := talk(false, "the same beginning")
		q["metadata"] = map[string]string{"user_id": c.session}
		_, body := ask(t, s, "/v1/messages", q)
		require.Contains(t, body, `"text":"`+c.want+`"`)
	}
}

func TestAStreamHasTheEventsOfTheAPI(t *testing.T) {
	t.Parallel()
	s := New(t)
	s.On("", Always(Step{Text: "I look.", Calls: []Call{{"Read", map[string]string{"file_path": "/x"}}, {"Bash", map[string]string{"command": "ls"}}}}))
	res, body := ask(t, s, "/v1/messages", talk(true, "look"))
	require.Equal(t, "text/event-stream", res.Header.Get("Content-Type"))
	var events []string
	var pieces strings.Builder
	lines := bufio.NewScanner(strings.NewReader(body))
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			events = append(events, name)
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var e struct {
			Type  string
			Delta struct {
				Text   string
				Part   string `json:"partial_json"`
				Reason string `json:"stop_reason"`
			}
		}
		require.NoError(t, json.Unmarshal([]byte(data), &e))
		require.Equal(t, events[len(events)-1], e.Type)
		pieces.WriteString(e.Delta.Text + e.Delta.Part + e.Delta.Reason)
	}
	part := []string{"content_block_start", "content_block_delta", "content_block_stop"}
	want := append([]string{"message_start"}, append(append(append([]string{}, part...), part...), part...)...)
	require.Equal(t, append(want, "message_delta", "message_stop"), events)
	require.Equal(t, `I look.{"file_path":"/x"}{"command":"ls"}tool_use`, pieces.String())
}

func TestFailures(t *testing.T) {
	t.Parallel()
	until := time.Now().Add(time.Hour).Truncate(time.Second)
	for _, c := range []struct {
		name, kind string
		step       Step
		status     int
	}{
		{"overloaded", "overloaded_error", Overloaded(), 529},
		{"limited", "rate_limit_error", Limited(until), http.StatusTooManyRequests},
		{"key", "authentication_error", InvalidKey(), http.StatusUnauthorized},
		{"refused", "invalid_request_error", Refused("no"), http.StatusBadRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := New(t)
			s.On("", Steps(c.step, Say("well again")))
			res, body := ask(t, s, "/v1/messages", talk(true, "hello"))
			require.Equal(t, c.status, res.StatusCode)
			var e struct {
				Type  string
				Error struct{ Type, Message string }
			}
			require.NoError(t, json.Unmarshal([]byte(body), &e))
			require.Equal(t, "error", e.Type)
			require.Equal(t, c.kind, e.Error.Type)
			require.NotEmpty(t, e.Error.Message)
			if c.kind == "rate_limit_error" {
				require.Equal(t, fmt.Sprint(until.Unix()), res.Header.Get("Anthropic-Ratelimit-Unified-Reset"))
				require.NotEmpty(t, res.Header.Get("Retry-After"))
			}
			_, body = ask(t, s, "/v1/messages", talk(false, "hello"))
			require.Contains(t, body, "well again")
		})
	}
}

func TestAnAnswerThatIsHeldBack(t *testing.T) {
	t.Parallel()
	s := New(t)
	open := make(chan struct{})
	s.On("", Always(Say("at last").When(open)))
	got := make(chan string, 1)
	go func() { _, body := ask(t, s, "/v1/messages", talk(false, "wait")); got <- body }()
	require.Eventually(t, func() bool { return len(s.Requests("wait")) == 1 }, time.Minute, time.Millisecond)
	select {
	case body := <-got:
		t.Fatalf("answered too early: %s", body)
	default:
	}
	close(open)
	require.Contains(t, <-got, "at last")
}

func TestWhatIsBesideTheWork(t *testing.T) {
	t.Parallel()
	s := New(t)
	// A question without tools takes no step of a script.
	aside := talk(false, "a title, please")
	delete(aside, "tools")
	_, body := ask(t, s, "/v1/messages", aside)
	require.Contains(t, body, `"type":"text"`)
	_, body = ask(t, s, "/v1/messages/count_tokens", talk(false, "how many?"))
	require.Contains(t, body, "input_tokens")
	for _, method := range []string{http.MethodHead, http.MethodGet} {
		req, err := http.NewRequestWithContext(t.Context(), method, s.URL()+"/", nil)
		require.NoError(t, err)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusOK, res.StatusCode)
	}
}

func TestTroubleIsTold(t *testing.T) {
	t.Parallel()
	s, err := Start()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	res, _ := ask(t, s, "/v1/messages", talk(false, "nobody knows me"))
	require.Equal(t, http.StatusBadRequest, res.StatusCode)
	s.On("short", Steps(Say("one")))
	for range 2 {
		ask(t, s, "/v1/messages", talk(false, "a short one"))
	}
	trouble := s.Trouble()
	require.Len(t, trouble, 2)
	require.Contains(t, trouble[0], "nobody knows me")
	require.Contains(t, trouble[1], "short one")

	res, _ = ask(t, s, "/v1/messages", "no request")
	require.Equal(t, http.StatusBadRequest, res.StatusCode)
}
