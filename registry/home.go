package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"gaia/domain"
	"gaia/internal/durable"
)

// DefaultPrefix starts the names of units, bus names and the runtime folder where GAIA_PREFIX is not set.
const DefaultPrefix = "gaia"

// maxConfig bounds what is read of any file here.
const maxConfig = 4 << 20

// maxSocket is the longest path of a unix socket, in bytes.
const maxSocket = 107

// Home says where a user's Gaia lives. Use Open.
type Home struct {
	Dir         string // ~/.gaia, or GAIA_HOME
	State       string // hub.db, run folders, locks
	Data        string // parent folder of worktrees/<instance>
	Runtime     string // sockets; "" where there is no runtime folder, see NeedRuntime
	RuntimeRoot string // XDG_RUNTIME_DIR or what stands in for it; ""
	User        string // the user's home folder
}

var prefixForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z][a-z0-9]{0,15}$`) })

// Open works out a user's folders and the prefix from the environment. It makes nothing; see Prepare.
func Open(getenv func(string) string) (Home, string, error) {
	return open(getenv, "/run/user/"+strconv.Itoa(os.Getuid()))
}

func open(getenv func(string) string, runtimeFallback string) (Home, string, error) {
	prefix := getenv("GAIA_PREFIX")
	if prefix == "" {
		prefix = DefaultPrefix
	}
	if !prefixForm().MatchString(prefix) {
		return Home{}, "", fmt.Errorf("GAIA_PREFIX %q must be a lower-case letter and at most 15 more of a-z and 0-9 (no dash: slices nest at dashes)", prefix)
	}
	h := Home{User: getenv("HOME"), Dir: getenv("GAIA_HOME")}
	if h.Dir == "" && !filepath.IsAbs(h.User) {
		return Home{}, "", errors.New("HOME is not set to an absolute path, so ~/.gaia cannot be found: set HOME or GAIA_HOME")
	}
	// The XDG specification: a relative path is invalid and is to be ignored.
	xdg := func(name, def string) string {
		if v := getenv(name); filepath.IsAbs(v) {
			return filepath.Clean(v)
		}
		return def
	}
	if h.Dir != "" {
		if !filepath.IsAbs(h.Dir) {
			return Home{}, "", fmt.Errorf("GAIA_HOME %q must be an absolute path", h.Dir)
		}
		h.Dir = filepath.Clean(h.Dir)
		h.State, h.Data = filepath.Join(h.Dir, "state"), h.Dir
	} else {
		h.Dir = filepath.Join(h.User, ".gaia")
		h.State = filepath.Join(xdg("XDG_STATE_HOME", filepath.Join(h.User, ".local", "state")), "gaia")
		h.Data = filepath.Join(xdg("XDG_DATA_HOME", filepath.Join(h.User, ".local", "share")), "gaia")
	}
	if h.RuntimeRoot = xdg("XDG_RUNTIME_DIR", ""); h.RuntimeRoot == "" {
		if st, err := os.Stat(runtimeFallback); err == nil && st.IsDir() {
			h.RuntimeRoot = runtimeFallback
		}
	}
	if h.RuntimeRoot != "" {
		h.Runtime = filepath.Join(h.RuntimeRoot, prefix)
	}
	return h, prefix, nil
}

// NeedRuntime returns an error that says what to do where there is no runtime folder.
func (h Home) NeedRuntime() error {
	if h.Runtime != "" {
		return nil
	}
	return fmt.Errorf("XDG_RUNTIME_DIR is not set and /run/user/%d does not exist, so there is no place for sockets and no user manager: log in as this user (ssh, machinectl shell), or let the user manager run without a log-in: sudo loginctl enable-linger %d",
		os.Getuid(), os.Getuid())
}

// RunsDir is where the run folders are.
func (h Home) RunsDir() string { return filepath.Join(h.State, "runs") }

// RunDir is the run folder of a run.
func (h Home) RunDir(runID string) string { return filepath.Join(h.RunsDir(), runID) }

// TreesDir is where the worktrees of an instance are unless its checkout names another place.
func (h Home) TreesDir(instance string) string { return filepath.Join(h.Data, "worktrees", instance) }

// LocksDir is where the locks of worktrees are.
func (h Home) LocksDir() string { return filepath.Join(h.State, "locks") }

// HubDB is the database of the user's own hub.
func (h Home) HubDB() string { return filepath.Join(h.State, "hub.db") }

// HubSocket is the socket of the user's own hub; "" without a runtime folder.
func (h Home) HubSocket() string { return h.socket("hub.sock") }

// RunSocket is the tmux socket of a run; "" without a runtime folder. It is named by the last 12 hex digits of the run's
// id, the random ones: the first are its time, which runs of one moment share.
func (h Home) RunSocket(runID string) string {
	digits := strings.ReplaceAll(runID, "-", "")
	return h.socket(filepath.Join("r", digits[max(0, len(digits)-12):]+".sock"))
}

func (h Home) socket(name string) string {
	if h.Runtime == "" {
		return ""
	}
	return filepath.Join(h.Runtime, name)
}

// MachineFile is the path of machine.toml.
func (h Home) MachineFile() string { return filepath.Join(h.Dir, "machine.toml") }

// ConductorsFile is the path of conductors.json.
func (h Home) ConductorsFile() string { return filepath.Join(h.Dir, "conductors.json") }

// TrustFile is the path of trust.toml.
func (h Home) TrustFile() string { return filepath.Join(h.Dir, "trust.toml") }

// HubFile is the path of hub.toml.
func (h Home) HubFile() string { return filepath.Join(h.Dir, "hub.toml") }

// TokenFile is where the token of a machine_id is kept, or of anything else that is named like one.
func (h Home) TokenFile(machineID string) string {
	return filepath.Join(h.Dir, "credentials", machineID+".token")
}

// Prepare makes the folders, and mends permissions of the folder and its secrets that are too open. It returns a
// sentence for each thing that it mended.
func (h Home) Prepare() ([]string, error) {
	var notes []string
	credentials := filepath.Join(h.Dir, "credentials")
	for _, dir := range []string{h.Dir, credentials, h.State, h.RunsDir(), h.LocksDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return notes, fmt.Errorf("making %s: %w", dir, err)
		}
	}
	paths := []string{h.Dir, credentials, h.State}
	entries, err := os.ReadDir(credentials)
	if err != nil {
		return notes, fmt.Errorf("looking at the credentials: %w", err)
	}
	for _, e := range entries {
		if e.Type().IsRegular() {
			paths = append(paths, filepath.Join(credentials, e.Name()))
		}
	}
	for _, p := range paths {
		note, err := mend(p)
		if err != nil {
			return notes, err
		}
		if note != "" {
			notes = append(notes, note)
		}
	}
	return notes, nil
}

// mend takes group and others all rights to a path.
func mend(path string) (string, error) {
	st, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("looking at the permissions of %s: %w", path, err)
	}
	mode := st.Mode().Perm()
	if mode&0o077 == 0 {
		return "", nil
	}
	if err := os.Chmod(path, mode&0o700); err != nil {
		return "", fmt.Errorf("%s is open to others (%04o) and could not be closed: %w", path, mode, err)
	}
	return fmt.Sprintf("%s was open to others (%04o); it is %04o now", path, mode, mode&0o700), nil
}

// PrepareRuntime makes the folder of sockets. It fails where there is none, and where a socket's path would be too long.
func (h Home) PrepareRuntime() error {
	if err := h.NeedRuntime(); err != nil {
		return err
	}
	if s := h.RunSocket(strings.Repeat("0", 12)); len(s) > maxSocket {
		return fmt.Errorf("the socket %s would have a path of %d bytes, and at most %d are possible: set XDG_RUNTIME_DIR to a shorter path", s, len(s), maxSocket)
	}
	if err := os.MkdirAll(filepath.Join(h.Runtime, "r"), 0o700); err != nil {
		return fmt.Errorf("making the folder of sockets: %w", err)
	}
	return nil
}

// Token reads the token of a machine_id. domain.ErrNotFound: there is none. One that others can read is refused.
func (h Home) Token(machineID string) (string, error) {
	path := h.TokenFile(machineID)
	if err := private(path, 0o077); err != nil {
		return "", err
	}
	data, err := durable.Read(path, 4096)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("token of %s: %w", machineID, domain.ErrNotFound)
	}
	if err != nil {
		return "", fmt.Errorf("reading the token of %s: %w", machineID, err)
	}
	return strings.TrimSpace(string(data)), nil
}

// WriteToken stores the token of a machine_id, in place of an earlier one.
func (h Home) WriteToken(machineID, token string) error {
	path := h.TokenFile(machineID)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("making the folder of credentials: %w", err)
	}
	return durable.Replace(path, []byte(token+"\n"), 0o600)
}

// private refuses a path that belongs to somebody else or has one of the permissions of mask. One that is not there
// is fine.
func private(path string, mask fs.FileMode) error {
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking at the permissions of %s: %w", path, err)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Uid != 0 && int(sys.Uid) != os.Getuid() {
		return fmt.Errorf("%s belongs to the user %d and is not used: it must be yours", path, sys.Uid)
	}
	if mode := st.Mode().Perm(); mode&mask != 0 {
		return fmt.Errorf("%s is open to others (%04o) and is not used: chmod %04o %s", path, mode, mode&^mask, path)
	}
	return nil
}

// load reads a file of Home that others must not be able to write, since it decides what is run. A file that is not
// there matches fs.ErrNotExist.
func (h Home) load(path string) ([]byte, error) {
	for _, p := range []string{h.Dir, path} {
		if err := private(p, 0o022); err != nil {
			return nil, &ConfigError{File: p, Err: err}
		}
	}
	return readConfig(path)
}

// readConfig reads a file that a person looks after. One that cannot be read is as much a mistake of the configuration as
// one that cannot be understood, and the next start would meet it again. A file that is not there matches fs.ErrNotExist.
func readConfig(path string) ([]byte, error) {
	data, err := durable.Read(path, maxConfig)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return data, err
	}
	var pe *fs.PathError
	if errors.As(err, &pe) && pe.Path == path {
		err = pe.Err // the path is said already
	}
	return nil, &ConfigError{File: path, Err: fmt.Errorf("the file cannot be read: %w", err)}
}
