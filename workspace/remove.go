package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// remains starts the names of folders that are being removed; no key starts with a dot. goingMark is the file in such a
// folder that says that its removal is decided: everything was checked and saved.
const (
	remains   = ".gone."
	goingMark = ".gaia-removing"
)

// goneAdmins starts the names of registrations that are being deleted, in the common git directory.
const goneAdmins = "gaia-gone-"

// takeAway removes one worktree, folder and registration. The folder first goes to another name, where look may still
// object, so that nobody is in it who came after the checks. Cut short before the registration is gone, settle puts
// the folder back; cut short later, settle ends the removal.
func (g *Git) takeAway(a admin, path string, look func(path string) error) error {
	aside, err := g.setAside(a, path, look)
	if err != nil || aside == "" {
		return err
	}
	return deleteAside(aside)
}

// setAside is the first part of takeAway. It returns where the folder is, "" if there was none. What a person has moved
// elsewhere, and left a link to, is not in the root any more, and so not ours to delete.
func (g *Git) setAside(a admin, path string, look func(path string) error) (string, error) {
	aside := filepath.Join(g.root, remains+filepath.Base(path))
	if st, err := os.Lstat(path); err == nil && !st.IsDir() {
		return "", hold("%s, where a worktree of Gaia's should be, is no folder; move it away: mv %s %s", path, quote(path), quote(path+".old"))
	}
	if err := os.Rename(path, aside); errors.Is(err, fs.ErrNotExist) {
		return "", g.unregister(a)
	} else if err != nil {
		return "", fmt.Errorf("set %s aside: %w", path, err)
	}
	err := look(aside)
	if err == nil {
		err = os.WriteFile(filepath.Join(aside, goingMark), nil, 0o600)
	}
	if err == nil {
		err = g.unregister(a)
	}
	if err != nil {
		return "", errors.Join(err, putBack(aside, path))
	}
	return aside, nil
}

func putBack(aside, path string) error {
	if err := os.Remove(filepath.Join(aside, goingMark)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(aside, path)
}

// deleteAside deletes a folder whose removal is decided, its mark last.
func deleteAside(aside string) error {
	entries, err := os.ReadDir(aside)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != goingMark {
			if err := removeAll(filepath.Join(aside, e.Name())); err != nil {
				return err
			}
		}
	}
	return removeAll(aside)
}

// settle deals with what a removal that was cut short has left of a key. The tree's lock is held.
func (g *Git) settle(key string) error {
	path, aside := filepath.Join(g.root, key), filepath.Join(g.root, remains+key)
	st, err := os.Lstat(aside)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", aside, err)
	}
	a, err := g.adminOf(path)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(path); a != nil && errors.Is(err, fs.ErrNotExist) && pointsTo(aside, a.dir) {
		return putBack(aside, path)
	}
	_, err = os.Lstat(filepath.Join(aside, goingMark))
	empty, _ := isEmpty(aside)
	if st.IsDir() && (err == nil || empty) {
		return deleteAside(aside)
	}
	return hold("%s is in the way, and Gaia has not put it there; move it away: mv %s %s", aside, quote(aside), quote(filepath.Join(g.root, key+".old")))
}

// removeAll removes a folder, also one with folders that cannot be written, such as a module cache.
func removeAll(path string) error {
	err := os.RemoveAll(path)
	if err == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(p, 0o700)
		}
		return nil
	})
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// unregister takes away one worktree's own git directory, at once and whole, as `git worktree remove` does; git itself
// refuses where a crash has left it half made.
func (g *Git) unregister(a admin) error {
	aside := filepath.Join(g.common, goneAdmins+filepath.Base(a.dir))
	if err := os.RemoveAll(aside); err != nil {
		return fmt.Errorf("remove %s: %w", aside, err)
	}
	if err := os.Rename(a.dir, aside); errors.Is(err, fs.ErrNotExist) {
		return nil // it has been taken away already
	} else if err != nil {
		return fmt.Errorf("drop the registration of a worktree: %w", err)
	}
	if err := os.RemoveAll(aside); err != nil {
		return fmt.Errorf("remove %s: %w", aside, err)
	}
	return nil
}
