package units

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"

	"gaia/domain"
)

// DriftKind says what is wrong with a unit file.
type DriftKind string

// The kinds of drift.
const (
	// DriftShadow: a copy of ours hides the file of a package, which gets the updates.
	DriftShadow DriftKind = "shadow"
	// DriftStale: a copy of ours is that of another version or installation.
	DriftStale DriftKind = "stale"
	// DriftEdited: a copy of ours was changed by hand; mending keeps it beside the new one.
	DriftEdited DriftKind = "edited"
	// DriftMissing: other files of the set are there, this one is not.
	DriftMissing DriftKind = "missing"
)

// Drift is one unit file that is not as it should be.
type Drift struct {
	Kind     DriftKind
	Unit     string // file name
	Path     string // our copy, or where it would be
	Packaged string // the file that a shadow hides
	want     []byte
}

// String words the finding for a person.
func (d Drift) String() string {
	switch d.Kind {
	case DriftShadow:
		return fmt.Sprintf("%s hides %s, which the package keeps up to date", d.Path, d.Packaged)
	case DriftEdited:
		return fmt.Sprintf("%s was edited by hand; changes belong into: systemctl --user edit %s", d.Path, d.Unit)
	case DriftMissing:
		return fmt.Sprintf("%s is missing", d.Path)
	}
	return fmt.Sprintf("%s is not the file that this version writes", d.Path)
}

// setAside moves a file that was changed by hand to a free name beside it, which systemd does not read.
func setAside(path string) error {
	for i := 1; ; i++ {
		to := fmt.Sprintf("%s.edited-%d", path, i)
		switch err := os.Link(path, to); { // unlike a rename, it never replaces
		case err == nil:
			return os.Remove(path)
		case !errors.Is(err, fs.ErrExist):
			return fmt.Errorf("set an edited unit file aside: %w", err)
		}
	}
}

// folders returns where the manager looks for unit files, in its order, and which of them is the user's own. Both are the
// manager's word: the environment of the command that asks may be another.
func (m *Manager) folders(ctx context.Context) (search []string, own string, err error) {
	if err := m.property(ctx, "UnitPath", &search); err != nil {
		return nil, "", err
	}
	env, err := m.Environment(ctx)
	if err != nil {
		return nil, "", err
	}
	config := env["XDG_CONFIG_HOME"]
	if config == "" {
		config = filepath.Join(env["HOME"], ".config")
	}
	own = filepath.Join(config, "systemd", "user")
	if !slices.Contains(search, own) {
		return nil, "", fmt.Errorf("the user manager does not read unit files from %s, only from %q; was XDG_CONFIG_HOME changed after it was started? Then: systemctl --user daemon-reexec", own, search)
	}
	return search, own, nil
}

// find returns every file of that name in the manager's order.
func find(search []string, name string) ([]string, error) {
	var out []string
	for _, dir := range search {
		path := filepath.Join(dir, name)
		_, err := os.Lstat(path) // a mask is a link to /dev/null and counts: it is somebody's will
		if err == nil {
			out = append(out, path)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("look for unit files: %w", err)
		}
	}
	return out, nil
}

// Install writes the unit files that the manager finds nowhere to the user's own folder, makes the manager read them, and
// returns their paths. It replaces nothing; see FindDrift.
func Install(ctx context.Context, m *Manager, n Names, p Paths) ([]string, error) {
	if err := p.Check(); err != nil {
		return nil, fmt.Errorf("install the unit files: %w", err)
	}
	search, own, err := m.folders(ctx)
	if err != nil {
		return nil, fmt.Errorf("install the unit files: %w", err)
	}
	files := Files(n, p)
	var written []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		hits, err := find(search, name)
		if err != nil {
			return written, err
		}
		path := filepath.Join(own, name)
		if len(hits) > 0 {
			if hits[0] != path {
				if err := serves(hits[0], files[name], p); err != nil {
					return written, err
				}
			}
			continue
		}
		if err := write(path, files[name]); err != nil {
			return written, err
		}
		written = append(written, path)
	}
	if len(written) == 0 {
		return nil, nil
	}
	return written, m.Reload(ctx)
}

// serves refuses a package's unit file that would run as another installation than the one that asks: a package's are for
// the places that every user has by default.
func serves(path string, want []byte, p Paths) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read a unit file: %w", err)
	}
	if _, err := pristine(text); err != nil {
		return nil // a person's own, or a mask
	}
	for k, v := range p.Env {
		if k == "GAIA_PREFIX" && v == DefaultPrefix {
			continue // so it is without being said
		}
		line := []byte("Environment=" + quote(k+"="+v) + "\n")
		if bytes.Contains(want, line) && !bytes.Contains(text, line) {
			return fmt.Errorf("%w: %s does not set %s, so its units would belong to another installation; set GAIA_PREFIX too, which gives this one units of its own", domain.ErrInvalid, path, k)
		}
	}
	return nil
}

func write(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write a unit file: %w", err)
	}
	if err := renameio.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("write the unit file %s: %w", path, err)
	}
	return nil
}

// FindDrift compares the unit files in the user's own folder with those of this version. A file there that Gaia did not
// write is the user's will and no drift; nor is a package's.
func FindDrift(ctx context.Context, m *Manager, n Names, p Paths) ([]Drift, error) {
	if err := p.Check(); err != nil {
		return nil, fmt.Errorf("compare the unit files: %w", err)
	}
	search, own, err := m.folders(ctx)
	if err != nil {
		return nil, fmt.Errorf("compare the unit files: %w", err)
	}
	files := Files(n, p)
	var out, missing []Drift
	found := false
	for _, name := range slices.Sorted(maps.Keys(files)) {
		hits, err := find(search, name)
		if err != nil {
			return nil, err
		}
		path := filepath.Join(own, name)
		if len(hits) == 0 {
			missing = append(missing, Drift{Kind: DriftMissing, Unit: name, Path: path, want: files[name]})
			continue
		}
		found = true
		d, err := compare(path, hits, files[name])
		if err != nil {
			return nil, err
		}
		if d != nil {
			d.Unit = name
			out = append(out, *d)
		}
	}
	if found {
		out = append(out, missing...)
	}
	return out, nil
}

func compare(path string, hits []string, want []byte) (*Drift, error) {
	i := slices.Index(hits, path)
	if i < 0 {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read a unit file: %w", err)
	}
	untouched, err := pristine(text)
	if err != nil {
		return nil, nil
	}
	d := &Drift{Kind: DriftStale, Path: path, want: want}
	if !untouched {
		d.Kind = DriftEdited
	}
	if i+1 < len(hits) {
		d.Packaged = hits[i+1]
		if untouched {
			d.Kind = DriftShadow
		}
		return d, nil
	}
	if bytes.Equal(text, want) {
		return nil, nil
	}
	return d, nil
}

// Mend puts every drift right and makes the manager read the files anew. What was edited by hand is kept beside, under a
// name that systemd does not read. Units that run go on with what they were started with.
func Mend(ctx context.Context, m *Manager, drifts []Drift) error {
	if len(drifts) == 0 {
		return nil
	}
	for _, d := range drifts {
		if d.Kind == DriftEdited {
			if err := setAside(d.Path); err != nil {
				return err
			}
		}
		if d.Packaged == "" {
			if err := write(d.Path, d.want); err != nil {
				return err
			}
			continue
		}
		if err := os.Remove(d.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a unit file that hides %s: %w", d.Packaged, err)
		}
	}
	return m.Reload(ctx)
}
