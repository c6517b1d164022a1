package journal

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Match is a field that an entry must have with exactly this value.
type Match struct{ Field, Value string }

// Query says which entries are read.
type Query struct {
	// Any are the alternatives: an entry is read where it has every field of one of them. Of fields with the same name in
	// one alternative one will do. There must be at least one alternative.
	Any [][]Match

	Since, Until string // "" is no limit; see ParseTime
	Priority     string // this one and the more urgent ones, see ParsePriority; "" for all
	Lines        int    // at most so many of the newest to begin with; All for all
	Follow       bool   // go on with what is written from now on, until the context ends

	after string // only what comes after this cursor
}

// All is for Query.Lines.
const All = -1

// Reader reads the journal of one user.
type Reader struct {
	Program string // journalctl where it is ""
	UID     int
}

var (
	// ErrUnavailable is the cause where there is no journal that can be read.
	ErrUnavailable = errors.New("the journal cannot be read")
	// ErrTime is the cause where journalctl does not understand a time.
	ErrTime = errors.New("this is no time")
)

const (
	// maxLine bounds one line of journalctl: with the fields that are wanted a longer one is no message for people.
	maxLine = 4 << 20
	// maxComplaint bounds what is kept of what journalctl says on its standard error output.
	maxComplaint = 4 << 10
	// endTime is how long journalctl has to end after it was told to.
	endTime = 5 * time.Second
	// followBeat is how often it is looked for more.
	followBeat = 500 * time.Millisecond
)

var span = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?:\d+(?:\.\d+)?\s*[a-zA-Z]+\s*)+$`) })

// ParseTime turns a time as people write it into one that journalctl understands. It has words of its own ("today",
// "-2h", "10 min ago", "2026-12-01 14:30"); added are a length such as 90m or 2d, which means that long ago, and RFC 3339.
func ParseTime(s string) string {
	if span().MatchString(s) {
		return "-" + s
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return fmt.Sprintf("@%d.%06d", t.Unix(), t.Nanosecond()/1000)
	}
	return s
}

// Read calls each with every entry, in the order of the journal, until there is no more, the context ends or each fails.
// When it returns, journalctl has ended. That the context ended is no error.
//
// To follow it looks again and again for what comes after the last entry, each time with a new journalctl. One that follows
// by itself misses lines: that of systemd 252 does where a query had no entry yet, and where lines are written while it
// begins.
func (r Reader) Read(ctx context.Context, q Query, each func(Entry) error) error {
	began := time.Now()
	cursor := ""
	look := func(q Query) (int, error) {
		args, err := r.args(q)
		if err != nil {
			return 0, err
		}
		return r.run(ctx, args, func(e Entry) error {
			cursor = e.Cursor
			return each(e)
		})
	}
	n := 0
	if q.Lines != 0 || !q.Follow {
		var err error
		if n, err = look(q); err != nil {
			return err
		}
	}
	if n == 0 { // because there is nothing, or nothing that may be read
		if err := r.Readable(ctx); err != nil {
			return err
		}
	}
	if !q.Follow {
		return nil
	}
	if q.Since == "" || q.Lines == 0 {
		q.Since = fmt.Sprintf("@%d.%06d", began.Unix(), began.Nanosecond()/1000)
	}
	q.Lines = All
	for {
		if q.after = cursor; cursor != "" {
			q.Since = ""
		}
		if _, err := look(q); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followBeat):
		}
	}
}

// run starts journalctl, calls each with every entry that it prints, and returns how many there were.
func (r Reader) run(ctx context.Context, args []string, each func(Entry) error) (n int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd, complaint := r.command(ctx, args)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, fmt.Errorf("read the journal: %w", err)
	}
	if err := cmd.Start(); err != nil {
		if ctx.Err() != nil {
			return 0, nil
		}
		return 0, fmt.Errorf("%w: %w", ErrUnavailable, r.explain(err))
	}
	err = lines(out, func(line []byte, long bool) error {
		n++
		if long {
			return each(Entry{At: time.Now().UTC(), Priority: info, Level: levels[info], Incomplete: true, Cursor: string(line)})
		}
		e, err := Decode(line)
		if err != nil {
			return err
		}
		return each(e)
	})
	ended := ctx.Err() != nil // before it is ended by us
	if err != nil {
		cancel()
	}
	waitErr := cmd.Wait()
	switch {
	case ended:
		return n, nil
	case err == nil && waitErr != nil:
		return n, r.refused(complaint.String(), waitErr)
	}
	return n, err
}

func (r Reader) program() string {
	if r.Program == "" {
		return "journalctl"
	}
	return r.Program
}

func (r Reader) command(ctx context.Context, args []string) (*exec.Cmd, *bounded) {
	cmd := exec.CommandContext(ctx, r.program(), args...)
	complaint := &bounded{}
	cmd.Stderr = complaint
	// Ctrl-C at a terminal is for us alone, so that an end that was asked for is told from one that was not. Where we are
	// killed it ends by itself, since nobody reads its output any more.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = endTime // then it is killed
	return cmd, complaint
}

// args are the arguments of journalctl. It is not told --user, which reads the user's own journal files only: where the
// journal is not kept on disk there are none, and a user who may read the whole journal has the lines in there. The
// user's id as a part of every alternative leaves out what others wrote.
func (r Reader) args(q Query) ([]string, error) {
	args := []string{"--output=json", "--all", "--output-fields=" + strings.Join(wanted, ","), "--no-pager", "--quiet"}
	if q.Priority != "" {
		p, err := ParsePriority(q.Priority)
		if err != nil {
			return nil, err
		}
		args = append(args, "--priority="+strconv.Itoa(p))
	}
	for _, t := range [][2]string{{"--since=", q.Since}, {"--until=", q.Until}} {
		if t[1] != "" {
			args = append(args, t[0]+ParseTime(t[1]))
		}
	}
	if q.after != "" {
		args = append(args, "--after-cursor="+q.after)
	}
	count := "all"
	if q.Lines >= 0 {
		count = strconv.Itoa(q.Lines)
	}
	args = append(args, "--lines="+count, "--")
	if len(q.Any) == 0 {
		return nil, errors.New("read the journal: nothing is looked for")
	}
	for i, all := range q.Any {
		if i > 0 {
			args = append(args, "+")
		}
		args = append(args, fieldUID+"="+strconv.Itoa(r.UID))
		for _, m := range all {
			if strings.ContainsRune(m.Value, 0) {
				return nil, fmt.Errorf("read the journal: %q holds a zero byte, which no program can be told", m.Value)
			}
			args = append(args, m.Field+"="+m.Value)
		}
	}
	return args, nil
}

// cursorForm finds the cursor in a line of JSON. Within a text of it the quotes would be escaped.
var cursorForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`"__CURSOR":"([^"\\]{1,500})"`) })

// lines calls each with every line; of one that is too long with its cursor alone, which is needed to go on behind it.
func lines(in io.Reader, each func(line []byte, long bool) error) error {
	b := bufio.NewReaderSize(in, 64<<10)
	var line, cursor []byte
	long := false
	for {
		part, err := b.ReadSlice('\n')
		line = append(line, part...)
		if long = long || len(line) > maxLine; long {
			if m := cursorForm().FindSubmatch(line); m != nil {
				cursor = bytes.Clone(m[1])
			}
			line = append(line[:0], line[max(0, len(line)-1024):]...) // a cursor may be cut in two
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		// A last line without its end was cut off with the program.
		if whole := bytes.TrimSpace(line); err == nil && len(whole) > 0 {
			if long {
				whole = cursor
			}
			if err := each(whole, long); err != nil {
				return err
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
				return nil
			}
			return fmt.Errorf("read the journal: %w", err)
		}
		line, cursor, long = line[:0], nil, false
	}
}

// refused words the failure of journalctl.
func (r Reader) refused(said string, err error) error {
	said = strings.TrimSpace(said)
	switch {
	case strings.Contains(said, "parse timestamp"):
		return fmt.Errorf("%w: %s; write it like 90m, today, \"10 min ago\", \"2026-12-01 14:30\" or 2026-12-01T14:30:00Z", ErrTime, said)
	case strings.Contains(said, "must be before --until"):
		return fmt.Errorf("%w: %s", ErrTime, said)
	case strings.Contains(said, "Permission denied"), strings.Contains(said, "insufficient permissions"):
		return r.noAccess(said)
	case said == "":
		said = "it says nothing"
	}
	return fmt.Errorf("%w: %s (%s: %w)", ErrUnavailable, said, r.program(), err)
}

func (r Reader) explain(err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the program %s is not there; it comes with systemd: sudo apt-get install systemd", r.program())
	}
	return fmt.Errorf("start %s: %w", r.program(), err)
}

// journalFolder is where journald keeps a journal that outlives a boot.
const journalFolder = "/var/log/journal"

// AccessError is a journal that the user may not read, or that is not kept.
type AccessError struct {
	Said string // what journalctl complains of
	Mend string // the command that most likely mends it

	hint string // what else there is to know of it
}

func (e *AccessError) Error() string {
	return fmt.Sprintf("%v: %s; %s", ErrUnavailable, e.Said, e.hint)
}
func (e *AccessError) Unwrap() error { return ErrUnavailable }

func (r Reader) noAccess(said string) error {
	group := "sudo usermod --append --groups systemd-journal " + userName(r.UID) + ", and log in anew"
	if _, err := os.Stat(journalFolder); err != nil {
		mend := "sudo mkdir -p " + journalFolder + " && sudo systemctl restart systemd-journald"
		return &AccessError{said, mend, fmt.Sprintf("journald keeps a journal for each user only where %s is there: %s; or become one who may read everybody's lines: %s", journalFolder, mend, group)}
	}
	return &AccessError{said, group, "either nothing was ever logged for you, or you may not read it: become one who may read everybody's lines: " + group}
}

func userName(uid int) string {
	if name := os.Getenv("USER"); name != "" && uid == os.Getuid() {
		return name
	}
	return strconv.Itoa(uid)
}

// Readable returns an error unless there is a journal file that the user may read: where there is none, journalctl prints
// nothing and is content.
func (r Reader) Readable(ctx context.Context) error {
	cmd, complaint := r.command(ctx, []string{"--header", "--quiet"})
	out, err := cmd.Output()
	switch {
	case ctx.Err() != nil, len(bytes.TrimSpace(out)) > 0:
		return nil
	case cmd.Process == nil:
		return fmt.Errorf("%w: %w", ErrUnavailable, r.explain(err))
	case err != nil && complaint.String() != "":
		return r.refused(complaint.String(), err)
	}
	return r.noAccess("there is no journal that this user may read")
}

// bounded keeps the beginning of what is written to it.
type bounded struct{ text []byte }

func (b *bounded) Write(p []byte) (int, error) {
	b.text = append(b.text, p[:min(len(p), maxComplaint-len(b.text))]...)
	return len(p), nil
}

func (b *bounded) String() string { return string(b.text) }
