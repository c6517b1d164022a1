package tmux

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

//go:embed gaia.conf
var conf []byte

// Conf returns the text of Gaia's tmux configuration.
func Conf() []byte { return bytes.Clone(conf) }

// Errors of the driver. Match them with errors.Is; the wrapping text has tmux's own words.
var (
	// ErrNoServer: nobody answers on the socket.
	ErrNoServer = errors.New("no tmux server")
	// ErrNoPane: the server has no such pane.
	ErrNoPane = errors.New("no such tmux pane")
)

const (
	program = "tmux"
	// callTimeout bounds one call of tmux. A healthy server answers within milliseconds.
	callTimeout = 10 * time.Second
	// killDelay is how long a call's pipes are waited for after its process group was killed.
	killDelay = time.Second
	// captureLines is how much of the history Capture returns above the visible screen.
	captureLines = 200
	// maxSocket is the longest path of a unix socket.
	maxSocket = 107
)

// Server is one tmux server, known by the path of its socket.
type Server struct {
	Socket string // absolute, at most 107 bytes
	Conf   string // path of a file with the text of Conf
}

// NewSession says what session to make.
type NewSession struct {
	Name       string   // see SessionName
	Title      string   // shown as the title of an attached terminal and in its status line
	Cols, Rows int      // size until somebody attaches
	Argv       []string // at least two words, because tmux hands a single one to a shell
	Output     *os.File // where it is given, the reading end of a pipe that gets what the pane writes
}

// IDs name what NewSession made. They stay valid whatever anybody renames.
type IDs struct {
	Session string // $0
	Window  string // @0
	Pane    string // %0
	PID     int    // of the pane's program
}

// Pane is what the server knows of a pane.
type Pane struct {
	ID   string
	PID  int
	Dead bool // the program has ended and its terminal is closed
	// Exit is the exit status once the program has exited, Signal the number of the signal that ended it. A child that
	// keeps the terminal open delays Dead, not these.
	Exit   *int
	Signal int
}

// Ended reports whether the pane's program is known to have ended.
func (p Pane) Ended() bool { return p.Dead || p.Exit != nil || p.Signal != 0 }

var nameRule = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`) })

// SessionName makes a name of what a person calls the work. tmux rewrites some characters in silence and splits
// targets at others, so that only a-z, 0-9 and single dashes are left of it.
func SessionName(parts ...string) string {
	var b strings.Builder
	dash := false
	for _, r := range strings.ToLower(strings.Join(parts, "-")) {
		if (r >= 'a' && r <= 'z') || (r >= '0' && r <= '9') {
			if dash && b.Len() > 0 {
				b.WriteByte('-')
			}
			b.WriteRune(r)
			dash = false
		} else {
			dash = true
		}
		if b.Len() >= 48 {
			break
		}
	}
	if b.Len() == 0 {
		return "run"
	}
	return b.String()
}

// ClientEnv returns environ without what would make a tmux client think that it is inside another server.
func ClientEnv(environ []string) []string {
	out := make([]string, 0, len(environ))
	for _, kv := range environ {
		if !strings.HasPrefix(kv, "TMUX=") && !strings.HasPrefix(kv, "TMUX_PANE=") {
			out = append(out, kv)
		}
	}
	return out
}

// Command returns a call of tmux on the server. It never starts one. When ctx ends, the whole process group is killed.
func (s Server) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, append([]string{"-u", "-N", "-S", s.Socket, "-f", s.Conf}, args...)...)
	cmd.Env = ClientEnv(os.Environ())
	cmd.Dir = "/"
	killGroup(cmd)
	return cmd
}

// killGroup makes the end of a command's context end everything that the command started.
func killGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killDelay
}

// Foreground returns the command that is the server: it stays in the foreground, with / as its working directory and
// exactly env as its environment, which every pane can read. The caller starts it and waits for it.
func (s Server) Foreground(env []string) *exec.Cmd {
	cmd := exec.Command(program, "-u", "-D", "-S", s.Socket, "-f", s.Conf)
	cmd.Env = env
	cmd.Dir = "/"
	return cmd
}

// CheckSocket returns an error if the path of the socket is not absolute or too long for the kernel.
func (s Server) CheckSocket() error {
	switch {
	case !strings.HasPrefix(s.Socket, "/"):
		return fmt.Errorf("tmux socket %q: the path must be absolute", s.Socket)
	case len(s.Socket) > maxSocket:
		return fmt.Errorf("tmux socket %s: the path has %d bytes, at most %d are possible (set XDG_RUNTIME_DIR to a shorter one)", s.Socket, len(s.Socket), maxSocket)
	}
	return nil
}

// WaitReady returns when the server accepts connections, or with ctx's error.
func (s Server) WaitReady(ctx context.Context) error {
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", s.Socket)
		if err == nil {
			return c.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for tmux on %s: %w", s.Socket, errors.Join(ctx.Err(), ErrNoServer))
		case <-time.After(time.Millisecond):
		}
	}
}

// run calls tmux and returns what it wrote, without the last newline.
func (s Server) run(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	cmd := s.Command(ctx, args...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", fmt.Errorf("tmux %s: no answer: %w", args[0], ctx.Err())
		}
		return "", fmt.Errorf("tmux %s: %w", args[0], classify(stderr.String(), err))
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}

// The texts are equal in all versions from 3.3 on. What is not recognised stays an error of its own: it must never be
// read as "gone".
var messages = []struct {
	text string
	err  error
}{
	{"no server running", ErrNoServer},
	{"error connecting", ErrNoServer},
	{"server exited", ErrNoServer},
	{"lost server", ErrNoServer},
	{"can't find pane", ErrNoPane},
	{"no current target", ErrNoPane}, // a server that has no session yet
	{"can't find window", ErrNoPane},
}

// classify finds the sentinel for what tmux wrote to stderr.
func classify(stderr string, err error) error {
	text := strings.TrimSpace(stderr)
	for _, m := range messages {
		if strings.Contains(text, m.text) {
			return fmt.Errorf("%w (%s)", m.err, text)
		}
	}
	if text == "" {
		return err
	}
	return fmt.Errorf("%s: %w", text, err)
}

// word protects an argument from tmux's parser, which ends a command at an argument that ends in a semicolon.
func word(arg string) string {
	if strings.HasSuffix(arg, ";") {
		return arg[:len(arg)-1] + `\;`
	}
	return arg
}

// NewSession makes a detached session of one pane that runs n.Argv without a shell, in /: a process that waits in a worktree
// would be taken for one that works there.
func (s Server) NewSession(ctx context.Context, n NewSession) (IDs, error) {
	switch {
	case !nameRule().MatchString(n.Name):
		return IDs{}, fmt.Errorf("tmux session name %q: only a-z, 0-9 and single dashes are possible", n.Name)
	case len(n.Argv) < 2:
		return IDs{}, fmt.Errorf("tmux session %s: a command of one word would be run by a shell", n.Name)
	}
	// One call does all: a call more is a client more to start.
	args := []string{"set-option", "-g", "@gaia_title", word(title(n.Title)), ";", "new-session", "-d", "-P", "-F", "#{session_id} #{window_id} #{pane_id} #{pane_pid} #{session_name}",
		"-s", n.Name, "-x", strconv.Itoa(n.Cols), "-y", strconv.Itoa(n.Rows), "-c", "/", "--"}
	for _, a := range n.Argv {
		args = append(args, word(a))
	}
	if n.Output != nil {
		piped, err := pipePane("="+n.Name+":", n.Output)
		if err != nil {
			return IDs{}, err
		}
		args = append(append(args, ";"), piped...)
	}
	out, err := s.run(ctx, args...)
	if err != nil {
		return IDs{}, err
	}
	f := strings.Fields(out)
	if len(f) != 5 {
		return IDs{}, fmt.Errorf("tmux new-session answered %q", out)
	}
	pid, err := strconv.Atoi(f[3])
	if err != nil {
		return IDs{}, fmt.Errorf("tmux new-session answered %q: %w", out, err)
	}
	if f[4] != n.Name {
		return IDs{}, fmt.Errorf("tmux named the session %q instead of %q", f[4], n.Name)
	}
	return IDs{Session: f[0], Window: f[1], Pane: f[2], PID: pid}, nil
}

// Equip gives windows that people open from now on a working directory and these variables on top of what the server has.
func (s Server) Equip(ctx context.Context, dir string, env map[string]string) error {
	args := []string{"set-option", "-g", "@gaia_dir", word(dir)}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		args = append(args, ";", "set-environment", "-g", "--", name, word(env[name]))
	}
	_, err := s.run(ctx, args...)
	return err
}

// title makes one harmless line of s: tmux would read # as the start of a style.
func title(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r < ' ' || r == 0x7f:
			return ' '
		case r == '#':
			return -1
		}
		return r
	}, s)
}

// Panes returns every pane of the server.
func (s Server) Panes(ctx context.Context) ([]Pane, error) {
	out, err := s.run(ctx, "list-panes", "-a", "-F", "#{pane_id}:#{pane_pid}:#{pane_dead}:#{pane_dead_status}:#{pane_dead_signal}")
	if err != nil {
		return nil, err
	}
	return parsePanes(out)
}

func parsePanes(out string) ([]Pane, error) {
	var panes []Pane
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		f := strings.Split(line, ":")
		if len(f) != 5 || !paneRule().MatchString(f[0]) {
			return nil, fmt.Errorf("tmux list-panes answered %q", line)
		}
		p := Pane{ID: f[0], Dead: f[2] == "1"}
		var err error
		if p.PID, err = strconv.Atoi(f[1]); err != nil {
			return nil, fmt.Errorf("tmux list-panes answered %q: %w", line, err)
		}
		if f[3] != "" {
			status, err := strconv.Atoi(f[3])
			if err != nil {
				return nil, fmt.Errorf("tmux list-panes answered %q: %w", line, err)
			}
			p.Exit = &status
		}
		if f[4] != "" {
			if p.Signal, err = strconv.Atoi(f[4]); err != nil {
				return nil, fmt.Errorf("tmux list-panes answered %q: %w", line, err)
			}
		}
		panes = append(panes, p)
	}
	return panes, nil
}

var paneRule = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^%[0-9]+$`) })

// Capture returns the text of a pane: what is visible, and a few screens of what has scrolled away.
func (s Server) Capture(ctx context.Context, pane string) (string, error) {
	if !paneRule().MatchString(pane) {
		return "", fmt.Errorf("tmux pane %q is not a pane id", pane)
	}
	out, err := s.run(ctx, "capture-pane", "-p", "-J", "-S", strconv.Itoa(-captureLines), "-t", pane)
	if err != nil {
		return "", err
	}
	return strings.TrimRight(out, " \n") + "\n", nil
}

// pipePane returns the tmux command that copies what a pane writes from now on into the pipe of which r is the reading
// end. tmux can only start a shell command for that, so the command holds two numbers and nothing else: this process opens
// the pipe for it.
func pipePane(target string, r *os.File) ([]string, error) {
	raw, err := r.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("piping the pane: %w", err)
	}
	var number uintptr
	if err := raw.Control(func(fd uintptr) { number = fd }); err != nil {
		return nil, fmt.Errorf("piping the pane: %w", err)
	}
	if fi, err := r.Stat(); err != nil || fi.Mode()&fs.ModeNamedPipe == 0 {
		return nil, errors.New("piping the pane: the file is not a pipe")
	}
	return []string{"pipe-pane", "-O", "-t", target, fmt.Sprintf("exec cat >/proc/%d/fd/%d", os.Getpid(), number)}, nil
}

// Kill ends the server. It is no error if there is none.
func (s Server) Kill(ctx context.Context) error {
	if _, err := s.run(ctx, "kill-server"); err != nil && !errors.Is(err, ErrNoServer) {
		return err
	}
	return nil
}

// AttachArgs returns the command by which a person attaches to the server's session.
func (s Server) AttachArgs(readonly bool) []string {
	args := []string{program, "-u", "-N", "-S", s.Socket, "attach-session"}
	if readonly {
		args = append(args, "-r")
	}
	return args
}

// Version returns the version of the installed tmux.
func Version(ctx context.Context) (major, minor int, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-V")
	killGroup(cmd)
	out, err := cmd.Output()
	if err != nil {
		return 0, 0, fmt.Errorf("tmux -V: %w (is tmux installed, and on the PATH?)", err)
	}
	return parseVersion(string(out))
}

var versionRule = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^tmux (?:next-|openbsd-)?([0-9]{1,4})\.([0-9]{1,4})`)
})

func parseVersion(out string) (major, minor int, err error) {
	m := versionRule().FindStringSubmatch(out)
	if m == nil {
		return 0, 0, fmt.Errorf("tmux -V answered %.60q, which names no version", out)
	}
	major, _ = strconv.Atoi(m[1]) // four digits at most
	minor, _ = strconv.Atoi(m[2])
	return major, minor, nil
}
