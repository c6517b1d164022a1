// Package model is a language model that says what a test, or the demo, has written down for it: a server on loopback
// that speaks as much of the Messages API as coding agents use, streaming and not. Each conversation follows a script of
// its own, and every request is kept, so that a test can say what the agent told the model.
//
// It must not be imported by anything that is installed, listen anywhere but on loopback, or ask for a real key.
package model

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Step is one answer of the model.
type Step struct {
	Text  string
	Calls []Call
	Usage Usage
	// Delay is how long the model thinks before it answers, and again before each further block of its answer.
	Delay time.Duration
	// Until, where not nil, holds the answer back until it is closed.
	Until <-chan struct{}
	// Fail answers with an error instead.
	Fail *Failure
}

// Call is the use of a tool of the agent's.
type Call struct {
	Name  string
	Input any
}

// Usage is what an answer is said to have cost, in tokens.
type Usage struct {
	Input      int `json:"input_tokens"`
	Output     int `json:"output_tokens"`
	CacheWrite int `json:"cache_creation_input_tokens"`
	CacheRead  int `json:"cache_read_input_tokens"`
}

// Failure is an answer that is an error.
type Failure struct {
	Status  int
	Type    string
	Message string
	Header  map[string]string
}

// Say is an answer that ends the model's turn.
func Say(text string) Step { return Step{Text: text} }

// Use is an answer that calls a tool.
func Use(name string, input any) Step { return Step{Calls: []Call{{Name: name, Input: input}}} }

// Bash is an answer that runs a command by the agent's shell tool.
func Bash(command string) Step {
	return Use("Bash", map[string]string{"command": command, "description": "Run a command"})
}

// Overloaded is the answer of a service with too much to do.
func Overloaded() Step {
	return Step{Fail: &Failure{Status: 529, Type: "overloaded_error", Message: "Overloaded"}}
}

// InvalidKey is the answer to a key that nobody knows.
func InvalidKey() Step {
	return Step{Fail: &Failure{Status: http.StatusUnauthorized, Type: "authentication_error", Message: "invalid x-api-key"}}
}

// Refused is the answer to a request that the service does not take, which no repetition mends.
func Refused(message string) Step {
	return Step{Fail: &Failure{Status: http.StatusBadRequest, Type: "invalid_request_error", Message: message}}
}

// Limited is the answer to an account that has used up what it may, until a time at which it may go on.
func Limited(until time.Time) Step {
	reset := fmt.Sprint(until.Unix())
	return Step{Fail: &Failure{
		Status: http.StatusTooManyRequests, Type: "rate_limit_error", Message: "This request would exceed your account's rate limit. Please try again later.",
		Header: map[string]string{
			"retry-after":                                      fmt.Sprint(max(0, int(time.Until(until).Seconds()))),
			"anthropic-ratelimit-unified-status":               "rejected",
			"anthropic-ratelimit-unified-reset":                reset,
			"anthropic-ratelimit-unified-representative-claim": "five_hour",
			"anthropic-ratelimit-unified-5h-status":            "rejected",
			"anthropic-ratelimit-unified-5h-reset":             reset,
			"anthropic-ratelimit-unified-5h-utilization":       "1.0",
			"x-should-retry":                                   "false",
		},
	}}
}

// After is the step with a delay.
func (s Step) After(d time.Duration) Step { s.Delay = d; return s }

// When is the step held back until a channel is closed.
func (s Step) When(open <-chan struct{}) Step { s.Until = open; return s }

// Costing is the step with what it cost.
func (s Step) Costing(u Usage) Step { s.Usage = u; return s }

// Script says what the model answers to a request of one conversation. turn counts that conversation's requests from 0.
type Script func(turn int, r Request) Step

// Steps is a script that goes through its steps one by one. A request beyond the last one is refused, and Trouble tells.
func Steps(steps ...Step) Script {
	return func(turn int, r Request) Step {
		if turn < len(steps) {
			return steps[turn]
		}
		return Refused(fmt.Sprintf("%s of %d steps: request %d", overrun, len(steps), turn+1))
	}
}

const overrun = "the script has an end"

// Always is a script of one step for ever.
func Always(step Step) Script { return func(int, Request) Step { return step } }

// Server is the model. Its methods may be called at any time, from anywhere.
type Server struct {
	http *http.Server
	url  string
	end  chan struct{}

	answers  atomic.Int64
	mu       sync.Mutex
	rules    []rule
	turns    map[string]int
	requests []Request
	trouble  []string
}

type rule struct {
	marker string
	script Script
}

// Start starts a model; its caller must Close it.
func Start() (*Server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the scripted model: %w", err)
	}
	s := &Server{url: "http://" + listener.Addr().String(), end: make(chan struct{}), turns: map[string]int{}}
	s.http = &http.Server{Handler: s.routes(), ReadHeaderTimeout: time.Minute}
	go func() {
		// It ends when the server is closed, which is what it then says.
		_ = s.http.Serve(listener)
	}()
	return s, nil
}

// New starts a model for one test, which fails if a conversation had no script or went beyond its end.
func New(t testing.TB) *Server {
	t.Helper()
	s, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("end the scripted model: %v", err)
		}
		for _, line := range s.Trouble() {
			t.Errorf("scripted model: %s", line)
		}
	})
	return s
}

// Close ends the model and every answer that is under way.
func (s *Server) Close() error {
	close(s.end)
	return s.http.Close()
}

// URL is where the model listens.
func (s *Server) URL() string { return s.url }

// On gives every conversation that has the marker in its instructions or in its first message a script; each one starts
// it from the beginning. The latest script whose marker is there holds, so that a test can change its mind; a
// conversation that has begun keeps its count. An empty marker is in every conversation.
func (s *Server) On(marker string, script Script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = append(s.rules, rule{marker, script})
}

// Requests are the requests so far of conversations with the marker, oldest first.
func (s *Server) Requests(marker string) []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.requests), func(r Request) bool { return !r.Has(marker) })
}

// Trouble is what went wrong in the eyes of the model: conversations without a script and requests after its end.
func (s *Server) Trouble() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.trouble)
}

// next keeps a request and says what is answered.
func (s *Server) next(r Request) Step {
	s.mu.Lock()
	r.At = time.Now()
	s.requests = append(s.requests, r)
	if r.Aside() {
		s.mu.Unlock()
		return Say("Work on a ticket")
	}
	i := len(s.rules) - 1
	for i >= 0 && !r.Has(s.rules[i].marker) {
		i--
	}
	if i < 0 {
		s.trouble = append(s.trouble, "no script for: "+short(r.Opening()))
		s.mu.Unlock()
		return Refused("no script")
	}
	script, turn := s.rules[i].script, s.turns[r.Conversation()]
	s.turns[r.Conversation()]++
	s.mu.Unlock()

	// Not under the lock: a script may wait for what its test does with the server.
	step := script(turn, r)
	if f := step.Fail; f != nil && strings.HasPrefix(f.Message, overrun) {
		s.mu.Lock()
		s.trouble = append(s.trouble, f.Message+": "+short(r.Last()))
		s.mu.Unlock()
	}
	return step
}

func short(text string) string {
	if len(text) > 400 {
		return text[:200] + " … " + text[len(text)-200:]
	}
	return text
}

// Request is what an agent sent to the model.
type Request struct {
	At       time.Time       `json:"-"`
	Key      string          `json:"-"` // the key that came with it
	Model    string          `json:"model"`
	Stream   bool            `json:"stream"`
	Instruct json.RawMessage `json:"system"`
	Messages []Message       `json:"messages"`
	Tools    []struct {
		Name string `json:"name"`
	} `json:"tools"`
	Metadata struct {
		User string `json:"user_id"`
	} `json:"metadata"`
}

// Message is one message of a conversation.
type Message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// Text is everything in a message that is text, results of tools included.
func (m Message) Text() string { return text(m.Content) }

// text takes the text out of a string or of a list of blocks.
func text(raw json.RawMessage) string {
	var whole string
	if json.Unmarshal(raw, &whole) == nil {
		return whole
	}
	var blocks []struct {
		Text    string          `json:"text"`
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(raw, &blocks) != nil {
		return ""
	}
	var parts []string
	for _, b := range blocks {
		if b.Text != "" {
			parts = append(parts, b.Text)
		}
		if len(b.Content) > 0 {
			parts = append(parts, text(b.Content))
		}
	}
	return strings.Join(parts, "\n")
}

// System is the text of the instructions.
func (r Request) System() string { return text(r.Instruct) }

// Opening is the text of the first message.
func (r Request) Opening() string {
	if len(r.Messages) == 0 {
		return ""
	}
	return r.Messages[0].Text()
}

// Last is the text of the last message: a question, or what a tool gave back.
func (r Request) Last() string {
	if len(r.Messages) == 0 {
		return ""
	}
	return r.Messages[len(r.Messages)-1].Text()
}

// Has tells whether the instructions or the first message hold a marker.
func (r Request) Has(marker string) bool {
	return strings.Contains(r.Opening(), marker) || strings.Contains(r.System(), marker)
}

// Tool tells whether the agent offers a tool.
func (r Request) Tool(name string) bool {
	for _, t := range r.Tools {
		if t.Name == name {
			return true
		}
	}
	return false
}

// Aside tells whether this is no turn of the work but a question beside it, for a title for one: it offers no tools.
func (r Request) Aside() bool { return len(r.Tools) == 0 }

// Conversation tells conversations apart: the agent's own name for the session where it sends one, else how it begins.
func (r Request) Conversation() string {
	if r.Metadata.User != "" {
		return r.Metadata.User
	}
	return r.Opening()
}
