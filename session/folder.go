package session

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gaia/domain"
	"gaia/internal/durable"
)

// The files of a run folder.
const (
	FileSpec     = "run.json"      // Spec, written once
	FileToken    = "token"         // the run's token; removed at finalise
	FileEnv      = "env.json"      // the environment of agent and hooks; removed at finalise
	FilePrompt   = "prompt.md"     // what the agent reads first
	FileTree     = "tree.json"     // TreeFile; written last: it lets the host go on
	FileStarted  = "started"       // Started; created once, for ever
	FileGate     = "gate"          // when the pane was let go on; by it Exec tells that from the host's death
	FileRecord   = "record.json"   // Record; how the run ended
	FileOutput   = "output.log"    // what the pane printed, bounded
	FileScreen   = "screen.txt"    // the last screen
	FileActivity = "activity.json" // domain.Activity, written by the agent's status hooks
	FileReported = "reported"      // the hub knows how the run ended
	FileStopping = "stopping"      // conductor or person has asked for the run's end
	FileReminded = "reminded"      // the agent ended its turn without a state write and was told so
	FileHalt     = "halt.json"     // domain.Failure; the agent will do nothing more by itself, written by its status hooks
)

// maxFile bounds what is read from a run folder: the agent can write there, and a conductor must not be felled by it.
const maxFile = 8 << 20

// Folder is the path of a run folder. It is the only thing that conductor, host, agent and post share, and it outlives
// them all: each file is written whole or not at all, 0600 in a folder of mode 0700.
type Folder string

// Path returns the path of one of its files.
func (f Folder) Path(name string) string { return filepath.Join(string(f), name) }

// Run returns the id of the run that the folder is for.
func (f Folder) Run() string { return filepath.Base(string(f)) }

// Spec is what a run is. It is written before the run's unit is started and never changes.
type Spec struct {
	Run         string        `json:"run"`        // run id
	Ticket      string        `json:"ticket"`     // ticket id
	Identifier  string        `json:"identifier"` // of the ticket
	Title       string        `json:"title"`
	Instance    string        `json:"instance"`
	Prefix      string        `json:"prefix"`
	Project     string        `json:"project"` // key
	Number      int           `json:"number"`
	Attempt     int           `json:"attempt"`
	State       string        `json:"state"`
	Unit        string        `json:"unit"`
	Socket      string        `json:"socket"`       // of the run's tmux server
	Hub         string        `json:"hub"`          // address
	GaiaBin     string        `json:"gaia_bin"`     // folder of the binaries
	Cols        int           `json:"cols"`         // of the pane
	Rows        int           `json:"rows"`         // of the pane
	TreeTimeout time.Duration `json:"tree_timeout"` // nanoseconds; how long the host waits for FileTree
}

// DefaultTreeTimeout is how long a host waits for the tree where the spec names no time.
const DefaultTreeTimeout = 20 * time.Minute

// TreeFile tells the host that the tree is ready, and what to run in it.
type TreeFile struct {
	domain.Tree
	Argv   []string     `json:"argv"`    // of the agent; Argv[0] is absolute
	Hooks  domain.Hooks `json:"hooks"`   // trusted ones only
	GitDir string       `json:"git_dir"` // the tree's own git directory
}

// Started says that a host has begun with the run. A run folder has at most one, so a run is started at most once.
type Started struct {
	Run          string      `json:"run"`
	BootID       string      `json:"boot_id"`
	InvocationID string      `json:"invocation_id"`
	PID          int         `json:"pid"`
	At           domain.Time `json:"at"`
}

// Reserve makes a run folder that holds nothing but the run's token. It comes before the claim, so that a claim whose
// answer is lost loses nothing. domain.ErrExists: the folder is there.
func Reserve(folder string, token string) (Folder, error) {
	if err := os.MkdirAll(filepath.Dir(folder), 0o700); err != nil {
		return "", fmt.Errorf("making the folder of runs: %w", err)
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("run folder %s: %w", folder, domain.ErrExists)
		}
		return "", fmt.Errorf("making the run folder: %w", err)
	}
	f := Folder(folder)
	if err := errors.Join(durable.Create(f.Path(FileToken), []byte(token+"\n"), 0o600), durable.SyncDir(filepath.Dir(folder))); err != nil {
		// On a full disk one such folder would be left for each try.
		return "", errors.Join(fmt.Errorf("writing the run's token: %w", err), os.RemoveAll(folder))
	}
	return f, nil
}

// Discard removes a reserved folder whose claim came to nothing. It refuses a folder that has become a run's.
func (f Folder) Discard() error {
	switch _, err := os.Lstat(f.Path(FileSpec)); {
	case err == nil:
		return fmt.Errorf("run folder %s belongs to a run: %w", f, domain.ErrExists)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("looking for the spec of a run: %w", err)
	}
	if err := os.RemoveAll(string(f)); err != nil {
		return fmt.Errorf("removing an unused run folder: %w", err)
	}
	return nil
}

// Create writes the spec of a run into its folder, which it makes with the token if it is not reserved yet. A token of
// "" leaves the reserved one. domain.ErrExists: the folder has a spec, and nothing was changed.
func Create(folder string, s Spec, token string) (Folder, error) {
	f := Folder(folder)
	if _, err := os.Lstat(folder); errors.Is(err, fs.ErrNotExist) {
		if f, err = Reserve(folder, token); err != nil {
			return "", err
		}
	} else if token != "" {
		if have, err := f.Token(); err != nil || have != token {
			return "", fmt.Errorf("run folder %s is reserved with another token: %w", folder, domain.ErrExists)
		}
	}
	data, err := marshal(f, FileSpec, s)
	if err != nil {
		return "", err
	}
	if err := durable.Create(f.Path(FileSpec), data, 0o600); err != nil {
		return "", f.taken(FileSpec, err)
	}
	return f, nil
}

// Folders returns the run folders below dir, oldest first, reserved ones too; ids are UUIDv7, whose order is that of
// time. No dir means no runs.
func Folders(dir string) ([]Folder, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the run folders: %w", err)
	}
	var out []Folder
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, Folder(filepath.Join(dir, e.Name())))
		}
	}
	slices.Sort(out)
	return out, nil
}

// Load reads the spec. domain.ErrNotFound: the folder has none.
func (f Folder) Load() (Spec, error) { return read[Spec](f, FileSpec) }

// Token reads the run's token. domain.ErrNotFound: it has been removed.
func (f Folder) Token() (string, error) {
	data, err := f.read(FileToken)
	if err != nil {
		return "", err
	}
	for len(data) > 0 && data[len(data)-1] == '\n' {
		data = data[:len(data)-1]
	}
	return string(data), nil
}

// RemoveSecrets removes what nobody needs any more after the run's end and what may be secret: its token, and its
// environment, which may hold keys that machine.toml passes on. It is no error if they are gone.
func (f Folder) RemoveSecrets() error {
	for _, name := range []string{FileToken, FileEnv} {
		if err := os.Remove(f.Path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing the secrets of a run: %w", err)
		}
	}
	return nil
}

// WriteEnv writes the environment of agent and hooks, which the disk keeps with the tree file at the latest.
func (f Folder) WriteEnv(env map[string]string) error {
	data, err := marshal(f, FileEnv, env)
	if err != nil {
		return err
	}
	return durable.Write(f.Path(FileEnv), data, 0o600)
}

// Env reads the environment of agent and hooks.
func (f Folder) Env() (map[string]string, error) { return read[map[string]string](f, FileEnv) }

// WritePrompt writes the prompt, which the disk keeps with the tree file at the latest.
func (f Folder) WritePrompt(prompt []byte) error {
	return durable.Write(f.Path(FilePrompt), prompt, 0o600)
}

// WriteTree tells the host that the tree is ready. Environment and prompt must have been written before.
func (f Folder) WriteTree(t TreeFile) error { return write(f, FileTree, t) }

// Tree reads what WriteTree wrote. domain.ErrNotFound: nothing yet.
func (f Folder) Tree() (TreeFile, error) { return read[TreeFile](f, FileTree) }

// MarkStarted says that a host begins with the run. domain.ErrExists: one has done so before, and the caller must
// start nothing. The file is complete from its first moment. Nothing of the run may begin before keep, which is to be called
// once, has returned without an error: until then a power cut may lose the mark, or what is in it.
func (f Folder) MarkStarted(s Started) (keep func() error, err error) {
	data, err := marshal(f, FileStarted, s)
	if err != nil {
		return nil, err
	}
	keep, err = durable.CreateAhead(f.Path(FileStarted), data, 0o600)
	return keep, f.taken(FileStarted, err)
}

// Started reads what MarkStarted wrote. domain.ErrNotFound: no host has begun.
func (f Folder) Started() (Started, error) { return read[Started](f, FileStarted) }

// MarkBegun says that the pane may become the agent, which was let in at that time. Nobody waits for the disk: a power cut
// ends the run.
func (f Folder) MarkBegun(at domain.Time) error {
	data, err := json.Marshal(at)
	if err == nil {
		err = os.WriteFile(f.Path(FileGate), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("letting the pane go on: %w", err)
	}
	return nil
}

// Begun returns when the agent was let in, which may be long after the host has begun: worktree and hooks come before it.
// domain.ErrNotFound: it was not yet.
func (f Folder) Begun() (domain.Time, error) { return read[domain.Time](f, FileGate) }

// WriteRecord writes how the run ended, or replaces it by a fuller account.
func (f Folder) WriteRecord(r Record) error { return write(f, FileRecord, r) }

// Record reads how the run ended. domain.ErrNotFound: nobody has written it.
func (f Folder) Record() (Record, error) {
	data, err := f.read(FileRecord)
	if err != nil {
		return Record{}, err
	}
	r, err := ParseRecord(data)
	if err != nil {
		return Record{}, fmt.Errorf("reading %s: %w", f.Path(FileRecord), err)
	}
	return r, nil
}

// WriteScreen writes the last screen.
func (f Folder) WriteScreen(text string) error {
	return durable.Replace(f.Path(FileScreen), []byte(text), 0o600)
}

// Screen reads the last screen. domain.ErrNotFound: none was taken.
func (f Folder) Screen() (string, error) {
	data, err := f.read(FileScreen)
	return string(data), err
}

// WriteActivity writes what the agent is doing.
func (f Folder) WriteActivity(a domain.Activity) error { return write(f, FileActivity, a) }

// Activity reads what the agent is doing. domain.ErrNotFound: its profile tells nothing.
func (f Folder) Activity() (domain.Activity, error) { return read[domain.Activity](f, FileActivity) }

// MarkStopping says that the run's end is asked for. It is written before the unit is stopped, so that whoever writes the
// record can tell a TERM that was asked for from any other.
func (f Folder) MarkStopping() error { return durable.Replace(f.Path(FileStopping), nil, 0o600) }

// Stopping reports whether the run's end was asked for.
func (f Folder) Stopping() (bool, error) { return f.exists(FileStopping) }

// MarkReminded says that the agent ended its turn without a state write, and was told so.
func (f Folder) MarkReminded() error { return durable.Replace(f.Path(FileReminded), nil, 0o600) }

// Reminded reports whether the agent was told so.
func (f Folder) Reminded() (bool, error) { return f.exists(FileReminded) }

// WriteHalt says that the agent will do nothing more by itself, and why the run has failed then.
func (f Folder) WriteHalt(why domain.Failure) error { return write(f, FileHalt, why) }

// Halt reads what WriteHalt wrote. domain.ErrNotFound: the agent goes on. It was written inside the run, so it may hold
// anything.
func (f Folder) Halt() (domain.Failure, error) { return read[domain.Failure](f, FileHalt) }

// ClearTurn forgets what was held against the agent's last turn: a new one begins.
func (f Folder) ClearTurn() error {
	for _, name := range []string{FileReminded, FileHalt} {
		if err := os.Remove(f.Path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("beginning a new turn: %w", err)
		}
	}
	return nil
}

// MarkReported says that the hub knows how the run ended.
func (f Folder) MarkReported() error { return durable.Replace(f.Path(FileReported), nil, 0o600) }

// Reported reports whether the hub knows how the run ended.
func (f Folder) Reported() (bool, error) { return f.exists(FileReported) }

func (f Folder) exists(name string) (bool, error) {
	_, err := os.Lstat(f.Path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for a mark in a run folder: %w", err)
	}
	return true, nil
}

// taken words the error of a file that was to be created and is there already.
func (f Folder) taken(name string, err error) error {
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s: %w", f.Path(name), domain.ErrExists)
	}
	return err
}

func (f Folder) read(name string) ([]byte, error) {
	data, err := durable.Read(f.Path(name), maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", f.Path(name), domain.ErrNotFound)
	}
	return data, err
}

func write[T any](f Folder, name string, v T) error {
	data, err := marshal(f, name, v)
	if err != nil {
		return err
	}
	return durable.Replace(f.Path(name), data, 0o600)
}

func marshal(f Folder, name string, v any) ([]byte, error) {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("writing %s: %w", f.Path(name), err)
	}
	return append(data, '\n'), nil
}

// read accepts keys that it does not know: a run outlives an upgrade, and its host may be newer or older than the reader.
func read[T any](f Folder, name string) (T, error) {
	var v T
	data, err := f.read(name)
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return v, fmt.Errorf("reading %s: %w", f.Path(name), err)
	}
	return v, nil
}
