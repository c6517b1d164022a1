package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gaia/domain"
)

// claudeEvents are the program's events on which it calls Gaia.
var claudeEvents = []string{
	"SessionStart", "UserPromptSubmit", "PreToolUse", "PermissionRequest", "PostToolUse", "PostToolUseFailure", "Notification",
	"Elicitation", "Stop", "StopFailure",
}

// claudeEvent is what is read of what a hook is given.
type claudeEvent struct {
	Event        string            `json:"hook_event_name"`
	Session      string            `json:"session_id"`
	Tool         string            `json:"tool_name"`
	Notification string            `json:"notification_type"`
	Prompt       string            `json:"prompt"`
	Transcript   string            `json:"transcript_path"`
	Error        string            `json:"error"`
	Last         string            `json:"last_assistant_message"`
	Tasks        []json.RawMessage `json:"background_tasks"`
	Crons        []json.RawMessage `json:"session_crons"`
}

// claudeAsks are the tools that do nothing but ask a person.
var claudeAsks = []string{"AskUserQuestion", "ExitPlanMode"}

func claudeHookCall(ctx context.Context, c HookCall) ([]byte, error) {
	var e claudeEvent
	if err := json.Unmarshal(c.Input, &e); err != nil {
		return nil, fmt.Errorf("what the agent tells of itself cannot be read: %w", err)
	}
	switch e.Event {
	case "SessionStart":
		r, err := readClaude(c.Folder)
		if err != nil {
			return nil, err
		}
		return nil, r.begun(c.Folder, e.Session)
	case "UserPromptSubmit":
		// The first prompt, or a person's: either way the agent begins anew. News of its own background work is no prompt.
		if !strings.HasPrefix(e.Prompt, "<task-notification>") {
			if err := c.Folder.ClearTurn(); err != nil {
				return nil, err
			}
		}
		return nil, c.act(domain.ActivityWorking)
	case "PreToolUse":
		if slices.Contains(claudeAsks, e.Tool) {
			return nil, c.act(domain.ActivityBlocked)
		}
		return nil, c.act(domain.ActivityWorking)
	case "PostToolUse", "PostToolUseFailure":
		return nil, c.act(domain.ActivityWorking)
	case "PermissionRequest", "Elicitation":
		return nil, c.act(domain.ActivityBlocked)
	case "Notification":
		switch {
		case e.Notification == "permission_prompt", strings.HasSuffix(e.Notification, "_permission_prompt"), e.Notification == "elicitation_dialog":
			return nil, c.act(domain.ActivityBlocked)
		case e.Notification == "idle_prompt" && interrupted(e.Transcript):
			return nil, c.act(domain.ActivityIdle) // a person has stopped the turn
		}
		return nil, nil
	case "Stop":
		if len(e.Tasks)+len(e.Crons) > 0 {
			return nil, c.act(domain.ActivityWorking) // what it waits for wakes it
		}
		return c.turnEnds(ctx, e.Last)
	case "StopFailure":
		if over, err := c.Over(ctx); err == nil && !over {
			if err := c.Folder.WriteHalt(claudeFailure(e.Error, e.Last, c.Now())); err != nil {
				return nil, err
			}
		}
		return nil, c.act(domain.ActivityIdle)
	}
	return nil, nil
}

// turnEnds answers the end of a turn. If the ticket was not moved, the agent is told so, once.
func (c HookCall) turnEnds(ctx context.Context, last string) ([]byte, error) {
	over, err := c.Over(ctx)
	if err != nil || over {
		// Where the hub cannot be asked, nothing is held against the agent.
		return nil, errors.Join(err, c.act(domain.ActivityIdle))
	}
	again, err := c.Folder.Reminded()
	if err != nil {
		return nil, err
	}
	if !again {
		if err := c.Folder.MarkReminded(); err != nil {
			return nil, err
		}
		return json.Marshal(map[string]string{"decision": "block", "reason": reminder})
	}
	note := "the agent ended its turn without moving the ticket, was told so, and ended it again"
	if last = excerpt(last); last != "" {
		note += "; its last words: " + last
	}
	return nil, errors.Join(c.Folder.WriteHalt(domain.Failure{Reason: domain.ReasonStalled, Note: note}), c.act(domain.ActivityIdle))
}

// reminder is what an agent is told that stops too early.
const reminder = `You have ended your turn, but the ticket is still in the state in which you got it, so your work counts for nothing yet.
If something is left to do, do it now. Then commit what is to be kept, write the comment that your instructions ask for, and
move the ticket as your last command:

    gaia ticket move STATE

The instructions name the states that you may move it to. If you cannot go on without a person, say in a comment what you
need and what you have found, and move the ticket to human_input. If you stop again without a move, the run has failed.`

// act writes what the agent is doing. The time is that of the change.
func (c HookCall) act(status string) error {
	if now, err := c.Folder.Activity(); err == nil && now.Status == status {
		return nil
	}
	return c.Folder.WriteActivity(domain.Activity{Status: status, Since: domain.At(c.Now())})
}

const maxExcerpt = 300

// excerpt is the beginning of what an agent said, for a note in one line.
func excerpt(s string) string {
	s = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))), " ")
	if r := []rune(s); len(r) > maxExcerpt {
		return string(r[:maxExcerpt]) + " …"
	}
	return s
}

// interrupted reports whether the last that a transcript tells of is a person's interruption.
func interrupted(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	const tail = 64 << 10
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return false
	} else if st.Size() > tail {
		if _, err := f.Seek(-tail, io.SeekEnd); err != nil {
			return false
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, tail))
	if err != nil {
		return false
	}
	last := false
	for line := range bytes.Lines(data) {
		var l claudeLine
		if json.Unmarshal(line, &l) != nil {
			continue
		}
		switch l.Type {
		case "assistant":
			last = false
		case "user":
			last = strings.HasPrefix(contentText(l.Message.Content), "[Request interrupted by user")
		}
	}
	return last
}

// claudeFailure says why a session stands still in which the model answered with an error. kind is the program's own word
// for it.
func claudeFailure(kind, text string, now time.Time) domain.Failure {
	said := excerpt(text)
	switch {
	case kind == "authentication_failed", kind == "oauth_org_not_allowed", strings.Contains(text, "Please run /login"):
		return domain.Failure{Reason: domain.ReasonLoginMissing, Note: "claude is not logged in (" + said + "): start claude in a terminal and log in"}
	case kind == "rate_limit", kind == "billing_error", usageLimit().MatchString(text):
		return domain.Failure{Reason: domain.ReasonLimited, Note: "claude's usage limit: " + said, Until: resetTime(text, now)}
	}
	return domain.Failure{Reason: domain.ReasonStalled, Note: "the model answered with an error, and the agent stopped: " + said}
}

var (
	usageLimit = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?i)(usage|session|weekly|5-hour|opus|sonnet) limit (has been )?reached|you've hit your [\w -]*limit|out of extra usage`)
	})
	resetEpoch = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`limit reached\|(\d{10})\b`) })
	resetClock = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`resets?(?: at)? (?:([A-Z][a-z]{2}) (\d{1,2})(?:,| at) )?(\d{1,2})(?::(\d{2}))?\s?([ap]m)(?: \(([A-Za-z_]+(?:/[A-Za-z_+-]+)*)\))?`)
	})
)

// resetTime reads when a usage limit ends, or returns the zero time.
func resetTime(text string, now time.Time) domain.Time {
	if m := resetEpoch().FindStringSubmatch(text); m != nil {
		if s, err := strconv.ParseInt(m[1], 10, 64); err == nil {
			return domain.At(time.Unix(s, 0))
		}
	}
	m := resetClock().FindStringSubmatch(text)
	if m == nil {
		return domain.Time{}
	}
	zone := time.Local
	if m[6] != "" {
		z, err := time.LoadLocation(m[6])
		if err != nil {
			return domain.Time{}
		}
		zone = z
	}
	hour, _ := strconv.Atoi(m[3])
	minute, _ := strconv.Atoi("0" + m[4])
	if hour < 1 || hour > 12 || minute > 59 {
		return domain.Time{}
	}
	hour %= 12
	if m[5] == "pm" {
		hour += 12
	}
	now = now.In(zone)
	if m[1] == "" {
		at := time.Date(now.Year(), now.Month(), now.Day(), hour, minute, 0, 0, zone)
		if !at.After(now) {
			at = time.Date(now.Year(), now.Month(), now.Day()+1, hour, minute, 0, 0, zone)
		}
		return domain.At(at)
	}
	month, err := time.Parse("Jan", m[1])
	if err != nil {
		return domain.Time{}
	}
	day, _ := strconv.Atoi(m[2])
	at := time.Date(now.Year(), month.Month(), day, hour, minute, 0, 0, zone)
	if at.Before(now.AddDate(0, -6, 0)) {
		at = at.AddDate(1, 0, 0)
	}
	return domain.At(at)
}

var (
	escapes = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()*+][0-9A-Za-z]|[ -/]*[0-~])`)
	})
	blanks = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[\s\x00-\x1f]+`) })
)

// claudeQuestions are what the program asks before it takes a prompt, without blanks: on the wire it moves the cursor in their
// place.
var claudeQuestions = []struct {
	words  []string
	reason domain.Reason
	note   string
}{
	{[]string{"Yes,Itrustthisfolder", "Doyoutrustthefilesinthisfolder"}, domain.ReasonTrustPrompt,
		"claude asked whether to trust the worktree, although its file says so already: was ~/.claude.json changed meanwhile?"},
	{[]string{"NewMCPserverfound", "newMCPserversfound"}, domain.ReasonTrustPrompt,
		"claude asked whether to use the MCP servers that the repository names: start claude in the checkout and answer, or set enabledMcpjsonServers in its settings"},
	{[]string{"DetectedacustomAPIkeyinyourenvironment"}, domain.ReasonLoginMissing,
		"claude asked whether to use the API key: start claude in a terminal and answer"},
	{[]string{"Selectloginmethod", "Choosethetextstyle", "Notloggedin·", "UnabletoconnecttoAnthropicservices"}, domain.ReasonLoginMissing,
		"claude is not set up for this user: start claude in a terminal, answer its questions and log in"},
}

// claudeScreen finds out from what the program printed what it waits for.
func claudeScreen(printed string) domain.Failure {
	bare := blanks().ReplaceAllString(escapes().ReplaceAllString(printed, ""), "")
	for _, q := range claudeQuestions {
		for _, w := range q.words {
			if strings.Contains(bare, w) {
				return domain.Failure{Reason: q.reason, Note: q.note}
			}
		}
	}
	return domain.Failure{}
}
