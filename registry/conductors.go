package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"gaia/domain"
	"gaia/internal/durable"
)

// Entry is one conductor of this machine: a checkout and the name that it has here. The name never changes by itself,
// since machine_id, units and worktrees are called by it.
type Entry struct {
	Instance  string    `json:"instance"`
	Checkout  string    `json:"checkout"` // real path of the main work tree
	Project   string    `json:"project"`  // key
	Path      string    `json:"path"`     // the PATH of runs, captured by enable; "" is the user manager's
	CreatedAt time.Time `json:"created_at"`
}

func (e Entry) check() error {
	if err := domain.CheckSlug(e.Instance); err != nil {
		return fmt.Errorf("instance: %w", err)
	}
	if err := domain.CheckProjectKey(e.Project); err != nil {
		return fmt.Errorf("project of %s: %w", e.Instance, err)
	}
	if !filepath.IsAbs(e.Checkout) || filepath.Clean(e.Checkout) != e.Checkout {
		return fmt.Errorf("checkout of %s: %q is no clean absolute path", e.Instance, e.Checkout)
	}
	return nil
}

// register is the content of conductors.json.
type register struct {
	Schema     int     `json:"schema"`
	Conductors []Entry `json:"conductors"`
}

// ParseEntries reads conductors.json. The error is a *ConfigError without the file's name.
func ParseEntries(data []byte) ([]Entry, error) {
	wrong := func(offset int64, key string, err error) error {
		offset = min(max(offset, 0), int64(len(data)))
		return &ConfigError{Line: 1 + bytes.Count(data[:offset], []byte("\n")), Key: key, Err: err}
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, wrong(0, "", errors.New("the file is empty"))
	}
	var r register
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		var syntax *json.SyntaxError
		var typ *json.UnmarshalTypeError
		switch {
		case errors.As(err, &syntax):
			return nil, wrong(syntax.Offset, "", err)
		case errors.As(err, &typ):
			return nil, wrong(typ.Offset, typ.Field, fmt.Errorf("a JSON %s stands where %s belongs", typ.Value, typ.Type))
		case errors.Is(err, io.ErrUnexpectedEOF):
			return nil, wrong(int64(len(data)), "", errors.New("the file ends in the middle"))
		}
		if key, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
			return nil, wrong(int64(bytes.Index(data, []byte(key))), strings.Trim(key, `"`), errors.New("unknown key"))
		}
		return nil, wrong(dec.InputOffset(), "", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, wrong(dec.InputOffset(), "", errors.New("something follows the end of the list"))
	}
	if r.Schema != Schema {
		return nil, wrong(int64(bytes.Index(data, []byte(`"schema"`))), "schema", fmt.Errorf("is %d; this version of Gaia knows %d", r.Schema, Schema))
	}
	instances, checkouts := map[string]bool{}, map[string]bool{}
	for i, e := range r.Conductors {
		key := fmt.Sprintf("conductors[%d]", i+1)
		at := int64(entryOffset(data, i))
		if err := e.check(); err != nil {
			return nil, wrong(at, key, err)
		}
		if instances[e.Instance] {
			return nil, wrong(at, key, fmt.Errorf("instance %s is there twice", e.Instance))
		}
		if checkouts[e.Checkout] {
			return nil, wrong(at, key, fmt.Errorf("checkout %s is there twice", e.Checkout))
		}
		instances[e.Instance], checkouts[e.Checkout] = true, true
	}
	return r.Conductors, nil
}

// entryOffset returns where the n-th conductor stands in a conductors.json that could be read, n from 0.
func entryOffset(data []byte, n int) int {
	var raw struct {
		Conductors []json.RawMessage `json:"conductors"`
	}
	if json.Unmarshal(data, &raw) != nil || n >= len(raw.Conductors) {
		return 0
	}
	offset := 0
	for i := range n + 1 {
		at := bytes.Index(data[offset:], raw.Conductors[i])
		if at < 0 {
			return offset
		}
		if offset += at; i < n {
			offset += len(raw.Conductors[i])
		}
	}
	return offset
}

// Entries returns the conductors of this machine, sorted by instance. A damaged file is an error, never an empty list:
// what is not listed might be removed.
func (h Home) Entries() ([]Entry, error) {
	path := h.ConductorsFile()
	data, err := h.load(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the registry of conductors: %w", err)
	}
	entries, err := ParseEntries(data)
	var wrong *ConfigError
	if errors.As(err, &wrong) {
		return nil, damaged(path, data, wrong)
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Instance, b.Instance) })
	return entries, nil
}

// damaged sets a copy of a damaged file aside, once per content, and returns the error that says so.
func damaged(path string, data []byte, cause *ConfigError) error {
	sum := sha256.Sum256(data)
	aside := path + ".damaged-" + hex.EncodeToString(sum[:4])
	if err := durable.Create(aside, data, 0o600); err != nil && !errors.Is(err, fs.ErrExist) {
		aside = "nowhere: " + err.Error()
	}
	e := fmt.Errorf("the file is damaged and is left as it is: %w; a copy is set aside at %s", cause.Err, aside)
	if _, err := os.Stat(path + ".bak"); err == nil {
		e = fmt.Errorf("%w; to take the last good state: cp %s.bak %s", e, path, path)
	}
	return &ConfigError{File: path, Line: cause.Line, Key: cause.Key, Err: e}
}

// Entry returns one conductor. domain.ErrNotFound: there is none of that name.
func (h Home) Entry(instance string) (Entry, error) {
	entries, err := h.Entries()
	if err != nil {
		return Entry{}, err
	}
	if i := slices.IndexFunc(entries, func(e Entry) bool { return e.Instance == instance }); i >= 0 {
		return entries[i], nil
	}
	return Entry{}, fmt.Errorf("no conductor %q is registered in %s (gaia conductor list): %w", instance, h.ConductorsFile(), domain.ErrNotFound)
}

// EntryOf returns the conductor of the checkout that dir lies in: the checkout itself, a folder of it, or one of its
// worktrees wherever that is. domain.ErrNotFound: it has none.
func (h Home) EntryOf(dir string) (Entry, error) {
	p, err := locate(dir)
	if err != nil {
		return Entry{}, err
	}
	entries, err := h.Entries()
	if err != nil {
		return Entry{}, err
	}
	if i := slices.IndexFunc(entries, func(e Entry) bool { return e.Checkout == p.main() || e.Checkout == p.top }); i >= 0 {
		return entries[i], nil
	}
	// A bare repository has worktrees and no main one: they are one checkout all the same.
	var found []Entry
	for _, e := range entries {
		if q, err := locate(e.Checkout); err == nil && p.common != "" && q.common == p.common {
			found = append(found, e)
		}
	}
	switch len(found) {
	case 0:
		return Entry{}, fmt.Errorf("the checkout %s has no conductor here (gaia init): %w", p.main(), domain.ErrNotFound)
	case 1:
		return found[0], nil
	}
	return Entry{}, fmt.Errorf("the repository %s has several conductors, %s and %s: run the command in the folder of one of them", p.common, found[0].Instance, found[1].Instance)
}

// FindCheckout returns the real path of the checkout that dir lies in: the main work tree of its repository where there
// is one, else the top of its own; dir itself where there is no repository.
func FindCheckout(dir string) (string, error) {
	p, err := locate(dir)
	return p.main(), err
}

// place is where a folder lies in a repository.
type place struct {
	top    string // of the work tree
	common string // git directory that all work trees of the repository share; "" without a repository
}

func (p place) main() string {
	if filepath.Base(p.common) == ".git" {
		return filepath.Dir(p.common)
	}
	return p.top
}

// locate reads git's own files and starts no git: it is called before anything is known of the checkout, and must give
// the same answer under a hook's GIT_DIR and in a repository that git refuses to work in.
func locate(dir string) (place, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return place{}, fmt.Errorf("finding the checkout: %w", err)
	}
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return place{}, fmt.Errorf("finding the checkout: %w", err)
	}
	for top := real; ; top = filepath.Dir(top) {
		git := filepath.Join(top, ".git")
		st, err := os.Stat(git)
		switch {
		case err == nil && st.IsDir():
			if git, err = filepath.EvalSymlinks(git); err != nil {
				return place{}, fmt.Errorf("finding the checkout: %w", err)
			}
			return place{top: top, common: git}, nil
		case err == nil:
			return place{top: top, common: linked(top, git)}, nil
		case top == filepath.Dir(top):
			return place{top: real}, nil
		}
	}
}

// linked follows the .git file of a worktree to the common git directory. A submodule's has none: it stands for itself.
func linked(top, file string) string {
	data, err := durable.Read(file, 1<<16)
	if err != nil {
		return ""
	}
	gitdir, ok := strings.CutPrefix(strings.TrimSpace(string(data)), "gitdir:")
	if !ok {
		return ""
	}
	gitdir = under(top, strings.TrimSpace(gitdir))
	data, err = durable.Read(filepath.Join(gitdir, "commondir"), 1<<16)
	if err != nil {
		return gitdir
	}
	common, err := filepath.EvalSymlinks(under(gitdir, strings.TrimSpace(string(data))))
	if err != nil {
		return gitdir
	}
	return common
}

func under(dir, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, path)
}

// ProposeInstance returns the name that the conductor of a new checkout gets: that of its folder, or where that is no
// instance's name or is taken, one with digits that are the checkout's own. Machine_id and worktrees are called by it, so no
// name must be proposed for one checkout that another one had before, unless their folders are called the same.
func (h Home) ProposeInstance(checkout string) (string, error) {
	entries, err := h.Entries()
	if err != nil {
		return "", err
	}
	return domain.SlugFor(filepath.Base(checkout), checkout, func(s string) bool {
		return slices.ContainsFunc(entries, func(e Entry) bool { return e.Instance == s })
	}), nil
}

// Put adds a conductor, or changes the one of that instance and checkout. domain.ErrConflict: the instance belongs to
// another checkout, or the checkout has another instance.
func (h Home) Put(ctx context.Context, e Entry) error {
	checkout, err := FindCheckout(e.Checkout)
	if err != nil {
		return err
	}
	e.Checkout = checkout
	if err := e.check(); err != nil {
		return fmt.Errorf("%w: %w", domain.ErrInvalid, err)
	}
	return h.change(ctx, func(entries []Entry) ([]Entry, error) {
		for i, have := range entries {
			switch {
			case have.Instance == e.Instance && have.Checkout == e.Checkout:
				if e.CreatedAt.IsZero() {
					e.CreatedAt = have.CreatedAt
				}
				entries[i] = e
				return entries, nil
			case have.Instance == e.Instance:
				return nil, fmt.Errorf("the instance %s belongs to the checkout %s: %w", e.Instance, have.Checkout, domain.ErrConflict)
			case have.Checkout == e.Checkout:
				return nil, fmt.Errorf("the checkout %s is the instance %s already: %w", e.Checkout, have.Instance, domain.ErrConflict)
			}
		}
		return append(entries, e), nil
	})
}

// Remove takes a conductor out of the registry; its trees, runs and units stay as they are. domain.ErrNotFound: there is
// none of that name.
func (h Home) Remove(ctx context.Context, instance string) error {
	return h.change(ctx, func(entries []Entry) ([]Entry, error) {
		rest := slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return e.Instance == instance })
		if len(rest) == len(entries) {
			return nil, fmt.Errorf("no conductor %q is registered: %w", instance, domain.ErrNotFound)
		}
		return rest, nil
	})
}

// change replaces conductors.json under its lock and keeps the state before as the backup.
func (h Home) change(ctx context.Context, fn func([]Entry) ([]Entry, error)) error {
	path := h.ConductorsFile()
	return h.locked(ctx, path, func() error {
		entries, err := h.Entries()
		if err != nil {
			return err
		}
		if entries, err = fn(entries); err != nil {
			return err
		}
		data, err := json.MarshalIndent(register{Schema: Schema, Conductors: entries}, "", "  ")
		if err != nil {
			return fmt.Errorf("writing the registry of conductors: %w", err)
		}
		return replace(path, append(data, '\n'))
	})
}

// replace writes a file of Home and keeps what was there as path.bak.
func replace(path string, data []byte) error {
	old, err := durable.Read(path, maxConfig)
	if err == nil {
		err = durable.Replace(path+".bak", old, 0o600)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keeping a backup of %s: %w", path, err)
	}
	return durable.Replace(path, data, 0o600)
}

// locked holds the lock of a file of Home while fn runs. The lock is a file of its own, since the file itself is replaced.
func (h Home) locked(ctx context.Context, path string, fn func() error) (err error) {
	if err := os.MkdirAll(h.Dir, 0o700); err != nil {
		return fmt.Errorf("making %s: %w", h.Dir, err)
	}
	lock := flock.New(path+".lock", flock.SetPermissions(0o600))
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := lock.TryLockContext(ctx, 20*time.Millisecond); err != nil {
		return fmt.Errorf("waiting for the lock %s.lock, which another gaia command holds: %w", path, err)
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	return fn()
}
