//go:build linux

package usermanager

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofrs/flock"
)

// binaries are what the tests may start, as far as the tree has them.
var binaries = []string{"gaia", "gaia-hub", "gaia-conductor", "gaia-session"}

// module finds the root of the module that the working directory belongs to, and the way down from it.
func module() (root, rel string, err error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", "", fmt.Errorf("find the module: %w", err)
	}
	for root = dir; !exists(filepath.Join(root, "go.mod")); root = filepath.Dir(root) {
		if root == filepath.Dir(root) {
			return "", "", fmt.Errorf("no go.mod in %s or above it: run this by go test, or from inside the source tree", dir)
		}
	}
	rel, err = filepath.Rel(root, dir)
	return root, rel, err
}

// stageBinaries puts fresh binaries into dir. The go command knows how to build only what has changed, so they are
// built in one place for all packages, one at a time, and linked from there.
func stageBinaries(root, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make a folder for the binaries: %w", err)
	}
	var packages []string
	for _, name := range binaries {
		if files, _ := filepath.Glob(filepath.Join(root, "cmd", name, "*.go")); len(files) > 0 {
			packages = append(packages, "./cmd/"+name)
		}
	}
	if len(packages) == 0 {
		return nil
	}
	cache, err := buildCache(root)
	if err != nil {
		return err
	}
	lock := flock.New(filepath.Join(cache, "lock"))
	if err := lock.Lock(); err != nil {
		return fmt.Errorf("lock %s: %w", cache, err)
	}
	defer lock.Unlock()
	built := filepath.Join(cache, "bin")
	// Without a slash at its end a single package would be written to a file of that name. With the temporary folder
	// beside it a new binary is renamed into place, so that an old one may be running meanwhile.
	build := func(packages ...string) error {
		cmd := exec.Command("go", append([]string{"build", "-trimpath", "-buildvcs=false", "-o", built + "/"}, packages...)...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOTMPDIR="+cache)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", strings.Join(packages, " "), err, out)
		}
		return nil
	}
	if build(packages...) != nil {
		// One that does not compile fails the tests that start it, and no others.
		packages = slices.DeleteFunc(packages, func(pkg string) bool {
			err := build(pkg)
			if err != nil {
				fmt.Fprintf(os.Stderr, "usermanager: %v\n", err)
			}
			return err != nil
		})
	}
	for _, pkg := range packages {
		name := filepath.Base(pkg)
		if err := linkFile(filepath.Join(built, name), filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("take the binary %s: %w", name, err)
		}
	}
	return nil
}

// buildCache is a folder for one tree's binaries that lasts from one run to the next.
func buildCache(root string) (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache folder for the binaries: %w", err)
	}
	cache := filepath.Join(base, "gaia-usermanager", strings.ReplaceAll(strings.Trim(root, "/"), "/", "-"))
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", fmt.Errorf("make a cache folder for the binaries: %w", err)
	}
	return cache, nil
}

// linkFile gives a program a second name that everybody may execute, by a copy where a link is not possible.
func linkFile(from, to string) error {
	if info, err := os.Stat(from); err == nil && info.Mode().Perm()&0o005 == 0o005 && os.Link(from, to) == nil {
		return nil
	}
	return copyFile(from, to, 0o755)
}

func copyFile(from, to string, mode fs.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to, data, mode); err != nil {
		return err
	}
	return os.Chmod(to, mode)
}

// copyPackage copies a package's own files and its testdata, for a user who may be unable to read the source.
func copyPackage(from, to string, owner account) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() && rel != "." && rel != "testdata" && !strings.HasPrefix(rel, "testdata/") {
			return fs.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			err = os.Mkdir(target, 0o755)
		case d.Type().IsRegular():
			err = copyFile(path, target, info.Mode().Perm()|0o444)
		case d.Type() == fs.ModeSymlink:
			var link string
			if link, err = os.Readlink(path); err == nil {
				err = os.Symlink(link, target)
			}
		default:
			return nil
		}
		return errors.Join(err, os.Lchown(target, int(owner.UID), int(owner.GID)))
	})
}

// copyBack brings the regular files that are new or different in from to the folder to. What is a link stays.
func copyBack(from, to string) error {
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if old, err := os.ReadFile(target); err == nil && bytes.Equal(old, data) {
			return nil
		}
		return errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), os.WriteFile(target, data, 0o644))
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// outputs are the files and folders that the flags of go test name, and which the ordinary user could not write.
type outputs struct {
	stage string
	owner account
	moves []func() error
}

// rewrite returns the arguments of this test binary with every output inside the stage.
func (o *outputs) rewrite() ([]string, error) {
	base := filepath.Join(o.stage, "out")
	if err := o.makeDir(base); err != nil {
		return nil, err
	}
	outputDir := ""
	if f := flag.Lookup("test.outputdir"); f != nil {
		outputDir = f.Value.String()
	}
	var args []string
	var failed error
	flag.Visit(func(f *flag.Flag) {
		value := f.Value.String()
		inStage := filepath.Join(base, f.Name)
		switch f.Name {
		case "test.testlogfile":
			// It would let go test reuse a result that depends on much more than the files named in it.
			return
		case "test.outputdir":
			return
		case "test.gocoverdir", "test.fuzzcachedir":
			failed = errors.Join(failed, o.makeDir(inStage), o.copyTree(value, inStage))
			o.moves = append(o.moves, func() error { return copyBack(inStage, value) })
			value = filepath.Join(inside, "out", f.Name)
		case "test.coverprofile", "test.cpuprofile", "test.memprofile", "test.blockprofile", "test.mutexprofile", "test.trace":
			target := value
			if outputDir != "" && !filepath.IsAbs(target) {
				target = filepath.Join(outputDir, target)
			}
			o.moves = append(o.moves, func() error {
				if !exists(inStage) {
					return nil
				}
				return copyFile(inStage, target, 0o644)
			})
			value = filepath.Join(inside, "out", f.Name)
		}
		args = append(args, "-"+f.Name+"="+value)
	})
	return append(args, flag.Args()...), failed
}

func (o *outputs) makeDir(dir string) error {
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, int(o.owner.UID), int(o.owner.GID))); err != nil {
		return fmt.Errorf("make a folder for the output of the tests: %w", err)
	}
	return nil
}

// copyTree gives the ordinary user what an output folder holds already.
func (o *outputs) copyTree(from, to string) error {
	if !exists(from) {
		return nil
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return fmt.Errorf("copy %s for the ordinary user: %w", from, err)
	}
	return filepath.WalkDir(to, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(o.owner.UID), int(o.owner.GID))
	})
}

// deliver brings the outputs to where the flags want them.
func (o *outputs) deliver() error {
	var err error
	for _, move := range o.moves {
		err = errors.Join(err, move())
	}
	return err
}
