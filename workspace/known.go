package workspace

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// known is what the repository last said of itself: the conductor asks at every tick, and it hardly ever changes.
type known struct {
	stamp string // of the files that it was read from
	ref   string // the default branch
	sha   string // its commit
	url   string // of the remote, "" without one
}

// settled is how long nothing may have changed before what was read is kept. Within the grain of the file system's clock
// a file can change twice and look the same.
const settled = time.Second

// ask returns what the repository says of itself. As long as none of the files that git would read has changed, no git is
// started for it. Where a configuration file includes another one, a change in that alone is not seen.
func (g *Git) ask(ctx context.Context) (known, error) {
	g.knownMu.Lock()
	defer g.knownMu.Unlock()
	if g.known.ref != "" && g.known.stamp == g.stamp(g.known.ref, time.Time{}) {
		return g.known, nil
	}
	begun := time.Now()
	k, err := g.askNow(ctx)
	if err != nil {
		return known{}, err
	}
	// Nothing has changed since well before git was asked, so this is the state that it has seen.
	if k.stamp = g.stamp(k.ref, begun.Add(-settled)); k.stamp != "" {
		g.known = k
	}
	return k, nil
}

func (g *Git) askNow(ctx context.Context) (k known, err error) {
	if k.ref, _, err = defaultBranch(ctx, g.git()); err != nil {
		return k, err
	}
	if k.sha, err = g.git().commit(ctx, k.ref); err != nil {
		return k, err
	}
	k.url, err = g.git().line(ctx, "config", "--get", "remote."+remote+".url")
	if err != nil && exitCode(err) != 1 {
		return k, fmt.Errorf("look for the remote %s: %w", remote, err)
	}
	return k, nil
}

// configFiles returns where git looks for configuration, apart from the repository's own file.
func (g *Git) configFiles() []string {
	files := []string{
		filepath.Join(g.gitDir, "config.worktree"), "/etc/gitconfig",
		filepath.Join(os.Getenv("HOME"), ".gitconfig"), filepath.Join(os.Getenv("HOME"), ".config/git/config"),
		filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "git/config"), os.Getenv("GIT_CONFIG_GLOBAL"), os.Getenv("GIT_CONFIG_SYSTEM"),
	}
	return slices.DeleteFunc(files, func(f string) bool { return !filepath.IsAbs(f) }) // of a variable that is not set
}

// stamp identifies the state of everything that the answers depend on. It is "" where one of the files cannot be looked
// at, or was changed after before, if that is given.
func (g *Git) stamp(ref string, before time.Time) string {
	if to, err := readLine(filepath.Join(g.common, ref)); err != nil || strings.HasPrefix(to, "ref:") {
		return "" // it stands for another branch, whose changes would not be seen
	}
	paths := append(g.configFiles(), filepath.Join(g.gitDir, "HEAD"))
	for _, name := range []string{ref, "config", "packed-refs", "reftable/tables.list", "refs/heads", "refs/remotes", "refs/remotes/" + remote, "refs/remotes/" + remote + "/HEAD"} {
		paths = append(paths, filepath.Join(g.common, name))
	}
	var b strings.Builder
	for _, p := range paths {
		st, err := os.Stat(p)
		if err != nil {
			if !os.IsNotExist(err) && p != "" {
				return ""
			}
			fmt.Fprintf(&b, "%s is not there\n", p)
			continue
		}
		sys, ok := st.Sys().(*syscall.Stat_t)
		if !ok {
			return ""
		}
		changed := time.Unix(sys.Ctim.Unix())
		if !before.IsZero() && changed.After(before) {
			return ""
		}
		fmt.Fprintf(&b, "%s %d %d %d %d\n", p, sys.Dev, sys.Ino, sys.Size, changed.UnixNano())
	}
	return b.String()
}
