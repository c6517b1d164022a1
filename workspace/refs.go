package workspace

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// maxPacked bounds the file of packed refs that is read; in a larger one git searches faster.
const maxPacked = 8 << 20

// noRefs reports whether the repository's files alone show that it has none of these refs, and none that keeps git from making
// them: a parent or a child of one. Where anything about them is unusual it says no, and git has to be asked. Loose refs come
// first, as git looks: one that is packed meanwhile is still found in one of the two places.
func (g *Git) noRefs(refs ...string) bool {
	if st, err := os.Lstat(filepath.Join(g.common, "refs/heads")); err != nil || !st.IsDir() { // reftable has a file there
		return false
	}
	for _, ref := range refs {
		if !g.noLooseRef(ref) {
			return false
		}
	}
	packed := filepath.Join(g.common, "packed-refs")
	st, err := os.Lstat(packed)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil || !st.Mode().IsRegular() || st.Size() > maxPacked {
		return false
	}
	b, err := os.ReadFile(packed)
	if err != nil {
		return false
	}
	for _, ref := range refs {
		if bytes.Contains(b, []byte(" "+ref+"/")) {
			return false
		}
		for ; strings.Count(ref, "/") > 1; ref = path.Dir(ref) { // down to the first part behind refs/heads
			if bytes.Contains(b, []byte(" "+ref+"\n")) || bytes.Contains(b, []byte(" "+ref+"\r")) {
				return false
			}
		}
	}
	return true
}

// noLooseRef reports whether surely no file holds the ref: a folder on the way to it, or itself, is not there.
func (g *Git) noLooseRef(ref string) bool {
	parts := strings.Split(ref, "/")
	at := g.common
	for i, part := range parts {
		at = filepath.Join(at, part)
		st, err := os.Lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return i > 0
		case err != nil || i == len(parts)-1 || !st.IsDir():
			return false
		}
	}
	return false
}
