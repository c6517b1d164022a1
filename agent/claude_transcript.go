package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gaia/domain"
	"gaia/internal/durable"
	"gaia/session"
)

const (
	maxTranscript     = 256 << 20 // of one file; the rest of a larger one is left out
	maxTranscriptLine = 16 << 20  // a line holds a whole answer of a tool, pictures too; a longer one is passed over
	maxTranscripts    = 1000      // of sub-agents
)

// claudeUsage is what the program's transcripts tell.
type claudeUsage struct {
	answers map[string]claudeTokens // by the model's message id: a message is written in several lines
	models  []string                // in the order of their first answer
	cost    float64
	failed  *claudeError // the last answer, if it is an error
}

// claudeError is an answer that the program made up from an error of the model's.
type claudeError struct{ kind, text string }

type claudeTokens struct{ in, out, read, write int64 }

// claudeLine is what is read of one line. All else is passed over, so that a newer program's lines can be read too.
type claudeLine struct {
	Type    string   `json:"type"`
	Cost    *float64 `json:"costUSD"`
	Failed  bool     `json:"isApiErrorMessage"`
	Error   string   `json:"error"`
	Message struct {
		ID      string          `json:"id"`
		Model   string          `json:"model"`
		Content json.RawMessage `json:"content"`
		Usage   struct {
			In    int64 `json:"input_tokens"`
			Out   int64 `json:"output_tokens"`
			Read  int64 `json:"cache_read_input_tokens"`
			Write int64 `json:"cache_creation_input_tokens"`
		} `json:"usage"`
	} `json:"message"`
}

// read adds one transcript. Lines that cannot be read are passed over: the last one of a program that was killed is often
// cut.
func (u *claudeUsage) read(r io.Reader) error {
	if u.answers == nil {
		u.answers = map[string]claudeTokens{}
	}
	in := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := readLine(in, maxTranscriptLine)
		if len(line) > 0 {
			u.line(line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading a transcript: %w", err)
		}
	}
}

// readLine reads a line without its end. Of a line longer than limit nothing is returned.
func readLine(in *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := in.ReadSlice('\n')
		if long = long || len(line)+len(part) > limit; long {
			line = nil
		} else {
			line = append(line, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		return bytes.TrimRight(line, "\r\n"), err
	}
}

// synthetic is the model of answers that the program makes up itself.
const synthetic = "<synthetic>"

func (u *claudeUsage) line(data []byte) {
	var l claudeLine
	if json.Unmarshal(data, &l) != nil || l.Type != "assistant" {
		return
	}
	if l.Cost != nil && *l.Cost > 0 {
		u.cost += *l.Cost
	}
	u.failed = nil
	m := l.Message
	if l.Failed || m.Model == synthetic {
		if l.Failed {
			u.failed = &claudeError{kind: l.Error, text: contentText(m.Content)}
		}
		return
	}
	if m.ID == "" {
		return
	}
	// Each line of a message repeats its numbers as they then were.
	had := u.answers[m.ID]
	u.answers[m.ID] = claudeTokens{
		in: max(had.in, m.Usage.In), out: max(had.out, m.Usage.Out),
		read: max(had.read, m.Usage.Read), write: max(had.write, m.Usage.Write),
	}
	if m.Model != "" && !slices.Contains(u.models, m.Model) {
		u.models = append(u.models, m.Model)
	}
}

// contentText returns the text of a message.
func contentText(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var blocks []struct{ Text string }
	_ = json.Unmarshal(raw, &blocks)
	var all []string
	for _, b := range blocks {
		if b.Text != "" {
			all = append(all, b.Text)
		}
	}
	return strings.Join(all, " ")
}

func (u *claudeUsage) footprint() domain.Footprint {
	f := domain.Footprint{Turns: int64(len(u.answers)), Cost: u.cost}
	for _, t := range u.answers {
		f.TokensIn = plus(f.TokensIn, t.in)
		f.TokensOut = plus(f.TokensOut, t.out)
		f.TokensCacheRead = plus(f.TokensCacheRead, t.read)
		f.TokensCacheWrite = plus(f.TokensCacheWrite, t.write)
	}
	if len(u.models) > 0 {
		f.Model = u.models[0]
	}
	return f
}

// maxTokens is more than anybody pays for: a sum never runs over.
const maxTokens = 1 << 53

func plus(a, b int64) int64 { return min(a+min(max(b, 0), maxTokens), maxTokens) }

// Report implements domain.Agent.
func (c claude) Report(ctx context.Context, folder string) (domain.AgentReport, error) {
	f := session.Folder(folder)
	r, err := readClaude(f)
	if errors.Is(err, fs.ErrNotExist) {
		return domain.AgentReport{}, nil // nothing was prepared
	}
	if err != nil {
		return domain.AgentReport{}, err
	}
	mains, others, err := r.transcripts()
	if err != nil {
		return domain.AgentReport{}, err
	}
	var u, sub claudeUsage
	var rep domain.AgentReport
	if len(mains) > 0 {
		rep.Transcript = f.Path(fileTranscript)
		if err := u.readFiles(ctx, mains, rep.Transcript); err != nil {
			return domain.AgentReport{}, err
		}
	}
	if err := sub.readFiles(ctx, others, ""); err != nil {
		return domain.AgentReport{}, err
	}
	sum := u.and(sub)
	rep.Footprint = sum.footprint()
	if rep.Footprint.Cost == 0 {
		rep.Footprint.Cost = r.cost()
	}
	verdict := c.why(f, u.failed)
	if verdict.Reason == "" && len(mains) > 0 && waits(mains[len(mains)-1], time.Now()) {
		verdict = domain.Failure{Reason: domain.ReasonStalled, Note: "a person stopped the agent in the middle of its turn, and nobody had it go on"}
	}
	rep.Reason, rep.Note, rep.Until = verdict.Reason, verdict.Note, verdict.Until
	return rep, nil
}

const maxSmall = 1 << 20

// transcripts returns those of the run's sessions in their order, and those of their sub-agents. The folder between is the
// program's own spelling of the worktree.
func (r claudeRun) transcripts() (mains, others []string, err error) {
	projects := filepath.Join(r.Config, "projects")
	dirs, err := os.ReadDir(projects)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("looking for the agent's transcript: %w", err)
	}
	for _, id := range r.Sessions {
		if !sessionID().MatchString(id) {
			continue
		}
		for _, d := range dirs {
			own := filepath.Join(projects, d.Name(), id)
			if st, err := os.Stat(own + ".jsonl"); err != nil || !st.Mode().IsRegular() {
				continue
			}
			mains = append(mains, own+".jsonl")
			_ = filepath.WalkDir(own, func(path string, e fs.DirEntry, err error) error {
				if err != nil || len(others) >= maxTranscripts {
					return fs.SkipAll // what cannot be seen is not counted
				}
				if e.Type().IsRegular() && strings.HasSuffix(path, ".jsonl") {
					others = append(others, path)
				}
				return nil
			})
			break
		}
	}
	return mains, others, nil
}

// readFiles adds transcripts. Where keep is not "", a copy of them, one behind the other, is left there: the program removes
// old ones.
func (u *claudeUsage) readFiles(ctx context.Context, paths []string, keep string) error {
	var copied io.Writer = io.Discard
	if keep != "" {
		out, err := os.CreateTemp(filepath.Dir(keep), "."+filepath.Base(keep)+"-")
		if err != nil {
			return fmt.Errorf("copying a transcript: %w", err)
		}
		defer os.Remove(out.Name())
		defer out.Close()
		copied = out
	}
	for _, path := range paths {
		if err := ctx.Err(); err != nil {
			return err
		}
		in, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("opening a transcript: %w", err)
		}
		err = u.read(io.TeeReader(io.LimitReader(in, maxTranscript), copied))
		if err := errors.Join(err, in.Close()); err != nil {
			return fmt.Errorf("copying a transcript: %w", err)
		}
	}
	out, ok := copied.(*os.File)
	if !ok {
		return nil
	}
	if err := errors.Join(out.Sync(), os.Rename(out.Name(), keep)); err != nil {
		return fmt.Errorf("copying a transcript: %w", err)
	}
	return nil
}

// and returns the sum of two readings. A message that stands in both counts once.
func (u claudeUsage) and(o claudeUsage) claudeUsage {
	sum := claudeUsage{answers: map[string]claudeTokens{}, models: slices.Concat(u.models, o.models), cost: u.cost + o.cost}
	maps.Copy(sum.answers, o.answers)
	maps.Copy(sum.answers, u.answers)
	return sum
}

// cost returns what the program reckoned this session to have cost, if it was its last one in the repository: it keeps the
// figures of that one, under the main work tree, and writes them when it ends in order.
func (r claudeRun) cost() float64 {
	data, err := durable.Read(r.State, maxClaudeState)
	if err != nil {
		return 0
	}
	var state struct {
		Projects map[string]struct {
			LastSessionID string   `json:"lastSessionId"`
			LastCost      *float64 `json:"lastCost"`
		} `json:"projects"`
	}
	if json.Unmarshal(data, &state) != nil {
		return 0
	}
	for _, p := range state.Projects {
		if slices.Contains(r.Sessions, p.LastSessionID) && p.LastCost != nil {
			return max(*p.LastCost, 0)
		}
	}
	return 0
}

// silence is how long the program may take, on a machine that does much else, to show that it has its prompt.
const silence = 5 * time.Minute

// waits reports whether the session has stood still since a person stopped its turn. The program calls no hook for that.
func waits(transcript string, now time.Time) bool {
	st, err := os.Stat(transcript)
	return err == nil && now.Sub(st.ModTime()) > stopped && interrupted(transcript)
}

// stopped is how long a person may think about what to say next.
const stopped = 15 * time.Minute

// why tells what only the program's own words can tell: a question before the prompt was taken, or an error of the model
// with which the session stood still.
func (claude) why(f session.Folder, failed *claudeError) domain.Failure {
	if failed != nil {
		return claudeFailure(failed.kind, failed.text, time.Now())
	}
	if _, err := f.Activity(); !errors.Is(err, domain.ErrNotFound) {
		return domain.Failure{} // it has taken its prompt
	}
	screen, _ := f.Screen() // there is none while it runs
	printed, err := os.ReadFile(f.Path(session.FileOutput))
	if err != nil && screen == "" {
		return domain.Failure{}
	}
	if v := claudeScreen(screen + "\n" + string(printed)); v.Reason != "" {
		return v
	}
	begun, err := f.Begun() // not the start of the run: worktree and hooks may take long
	if _, ended := f.Record(); err == nil && errors.Is(ended, domain.ErrNotFound) && time.Since(begun.Time) > silence {
		return domain.Failure{Reason: domain.ReasonPromptNotDelivered, Note: "the agent shows no sign of having taken its prompt; look at its screen: gaia run show"}
	}
	return domain.Failure{}
}
