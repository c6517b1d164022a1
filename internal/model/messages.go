package model

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// largest is the largest request that is read. Agents send their whole conversation each time.
const largest = 64 << 20

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/messages", s.messages)
	mux.HandleFunc("POST /v1/messages/count_tokens", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, largest))
		if err != nil {
			return
		}
		// Four bytes a token is as good a guess as any.
		reply(w, http.StatusOK, map[string]int{"input_tokens": len(body)/4 + 1})
	})
	// Agents look whether somebody is there, and ask for things that a model need not know.
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) { reply(w, http.StatusOK, struct{}{}) })
	mux.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) { reply(w, http.StatusOK, struct{}{}) })
	return mux
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// Whoever has hung up does not read it.
	_ = json.NewEncoder(w).Encode(v)
}

func fail(w http.ResponseWriter, f Failure) {
	for name, value := range f.Header {
		w.Header().Set(name, value)
	}
	reply(w, f.Status, map[string]any{"type": "error", "error": map[string]string{"type": f.Type, "message": f.Message}})
}

// block is one part of an answer.
type block struct {
	Type  string          `json:"type"`
	Text  *string         `json:"text,omitempty"`
	ID    string          `json:"id,omitempty"`
	Name  string          `json:"name,omitempty"`
	Input json.RawMessage `json:"input,omitempty"`
}

// answer is a message of the model.
type answer struct {
	ID           string  `json:"id"`
	Type         string  `json:"type"`
	Role         string  `json:"role"`
	Model        string  `json:"model"`
	Content      []block `json:"content"`
	StopReason   *string `json:"stop_reason"`
	StopSequence *string `json:"stop_sequence"`
	Usage        Usage   `json:"usage"`
}

func (s *Server) messages(w http.ResponseWriter, r *http.Request) {
	var q Request
	if err := json.NewDecoder(io.LimitReader(r.Body, largest)).Decode(&q); err != nil {
		fail(w, *Refused("the request is no JSON: " + err.Error()).Fail)
		return
	}
	if q.Key = r.Header.Get("X-Api-Key"); q.Key == "" {
		q.Key = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	}
	step := s.next(q)
	if !s.think(r, step) {
		return
	}
	if step.Fail != nil {
		fail(w, *step.Fail)
		return
	}
	a, err := s.answer(q, step)
	if err != nil {
		fail(w, *Refused(err.Error()).Fail)
		return
	}
	if !q.Stream {
		reply(w, http.StatusOK, a)
		return
	}
	stream(w, a, func() bool { return s.pause(r, step.Delay) })
}

// think waits as long as a step wants and reports whether there still is somebody to answer.
func (s *Server) think(r *http.Request, step Step) bool {
	if step.Until != nil {
		select {
		case <-step.Until:
		case <-r.Context().Done():
			return false
		case <-s.end:
			return false
		}
	}
	return s.pause(r, step.Delay)
}

func (s *Server) pause(r *http.Request, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
	case <-s.end:
	}
	return false
}

// answer makes the message of a step.
func (s *Server) answer(q Request, step Step) (answer, error) {
	n := s.answers.Add(1)
	reason := "end_turn"
	a := answer{ID: fmt.Sprintf("msg_%04d", n), Type: "message", Role: "assistant", Model: q.Model, Content: []block{}, Usage: step.Usage}
	if step.Usage == (Usage{}) {
		a.Usage = Usage{Input: 10, Output: 5}
	}
	if step.Text != "" {
		a.Content = append(a.Content, block{Type: "text", Text: &step.Text})
	}
	for i, c := range step.Calls {
		input, err := json.Marshal(c.Input)
		if err != nil {
			return answer{}, fmt.Errorf("the input of a call of %s: %w", c.Name, err)
		}
		a.Content = append(a.Content, block{Type: "tool_use", ID: fmt.Sprintf("toolu_%04d_%d", n, i), Name: c.Name, Input: input})
		reason = "tool_use"
	}
	a.StopReason = &reason
	return a, nil
}

// stream sends an answer in pieces, with a pause before each block.
func stream(w http.ResponseWriter, a answer, pause func() bool) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	send := func(event string, data map[string]any) {
		data["type"] = event
		text, err := json.Marshal(data)
		if err != nil {
			return
		}
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, text)
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
	}
	begun := a
	begun.Content, begun.StopReason = []block{}, nil
	begun.Usage.Output = 1
	send("message_start", map[string]any{"message": begun})
	for i, b := range a.Content {
		if i > 0 && !pause() {
			return
		}
		empty := ""
		start, delta := block{Type: b.Type, Text: &empty}, map[string]any{"type": "text_delta", "text": b.Text}
		if b.Type == "tool_use" {
			start = block{Type: b.Type, ID: b.ID, Name: b.Name, Input: json.RawMessage("{}")}
			delta = map[string]any{"type": "input_json_delta", "partial_json": string(b.Input)}
		}
		send("content_block_start", map[string]any{"index": i, "content_block": start})
		send("content_block_delta", map[string]any{"index": i, "delta": delta})
		send("content_block_stop", map[string]any{"index": i})
	}
	send("message_delta", map[string]any{
		"delta": map[string]any{"stop_reason": a.StopReason, "stop_sequence": nil},
		"usage": map[string]int{"output_tokens": a.Usage.Output},
	})
	send("message_stop", map[string]any{})
}
