package workspace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"gaia/domain"
	"gaia/internal/durable"
)

// markerName is the file in a worktree's own git directory that says that the tree is complete and whose it is. There,
// no agent sees or commits it, and git removes it with the tree.
const markerName = "gaia.json"

// Marker is what Gaia knows of a worktree that it has made.
type Marker struct {
	Ticket      string      `json:"ticket"` // ticket id
	Identifier  string      `json:"identifier"`
	Run         string      `json:"run"`            // the run that the tree was last given to
	Branch      string      `json:"branch"`         // the ticket's branch
	Base        string      `json:"base"`           // the commit that the branch started from
	Next        string      `json:"next,omitempty"` // the commit that the tree is being brought to, which becomes its base
	AfterCreate bool        `json:"after_create"`   // the hook after_create has finished
	CreatedAt   domain.Time `json:"created_at"`
}

// ReadMarker reads the marker in a worktree's own git directory; domain.ErrNotFound if there is none.
func ReadMarker(gitDir string) (Marker, error) {
	path := filepath.Join(gitDir, markerName)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Marker{}, fmt.Errorf("%s: %w", path, domain.ErrNotFound)
	}
	if err != nil {
		return Marker{}, fmt.Errorf("read what Gaia knows of the worktree: %w", err)
	}
	var m Marker
	if err := json.Unmarshal(b, &m); err != nil {
		return Marker{}, fmt.Errorf("%s is damaged: %w", path, err)
	}
	if m.Ticket == "" || m.Identifier == "" || m.Branch == "" {
		return Marker{}, fmt.Errorf("%s is damaged: ticket, identifier or branch is missing", path)
	}
	return m, nil
}

// write replaces the marker; after a crash there is the old one or the new one.
func (m Marker) write(gitDir string) error {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return durable.Replace(filepath.Join(gitDir, markerName), append(b, '\n'), 0o600)
}

// MarkAfterCreate notes in a worktree's own git directory that the hook after_create has finished, so that it is not
// run again.
func MarkAfterCreate(gitDir string) error {
	m, err := ReadMarker(gitDir)
	if err != nil {
		return fmt.Errorf("note that after_create has finished: %w", err)
	}
	m.AfterCreate = true
	return m.write(gitDir)
}
