package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"gaia/domain"
	"gaia/internal/durable"
	"gaia/session"
)

// What the conductor itself keeps in a run folder, so that a new process asks, starts and reports exactly what the old
// one did.
const (
	fileClaim   = "claim.json"   // claimFile; the question that reserved the folder
	fileBegin   = "begin.json"   // domain.StartReport; written before the tree file
	fileVerdict = "verdict.json" // domain.Failure; the run is to fail with this
	maxOwnFile  = 1 << 20
)

// claimFile is a claim as it was asked. A lost answer is asked for again with the same words.
type claimFile struct {
	Instance string              `json:"instance"`
	Request  domain.ClaimRequest `json:"request"`
}

func writeFile(f session.Folder, name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("writing %s: %w", f.Path(name), err)
	}
	return durable.Replace(f.Path(name), append(data, '\n'), 0o600)
}

// readFile returns domain.ErrNotFound where the file is not there.
func readFile[T any](f session.Folder, name string) (T, error) {
	var v T
	data, err := durable.Read(f.Path(name), maxOwnFile)
	if errors.Is(err, fs.ErrNotExist) {
		return v, fmt.Errorf("%s: %w", f.Path(name), domain.ErrNotFound)
	}
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return v, fmt.Errorf("reading %s: %w", f.Path(name), err)
	}
	return v, nil
}

// has reports whether a read found its file. A file that is there but cannot be read counts as there: what it stands for
// has happened.
func has(err error) bool { return err == nil || !errors.Is(err, domain.ErrNotFound) }
