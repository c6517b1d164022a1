package workspace

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// fresh is how long a fetch, or its failure, is good for.
const fresh = time.Minute

// fetchNote lies in the lock file of the fetch, so that all conductors of a repository share it.
type fetchNote struct {
	FetchedAt time.Time `json:"fetched_at,omitzero"`
	FailedAt  time.Time `json:"failed_at,omitzero"`
	Error     string    `json:"error,omitempty"`
}

// fetch brings the remote's branches up to date unless that was done within the last minute. It does not hold the
// repository's lock. It is no error if that fails; the finding says so, and how old the known state is.
func (g *Git) fetch(ctx context.Context) (finding string, err error) {
	k, err := g.ask(ctx)
	if err != nil || k.url == "" {
		return "", err
	}
	limited, cancel := context.WithTimeoutCause(ctx, g.config.FetchTimeout, fmt.Errorf("not done within %s", g.config.FetchTimeout))
	defer cancel()
	f, err := flock(limited, filepath.Join(g.common, "gaia.fetch"))
	if err != nil {
		if ctx.Err() != nil {
			return "", err
		}
		return g.stale(fetchNote{}, err.Error()), nil
	}
	defer unflock(f)
	var note fetchNote
	if b, err := os.ReadFile(f.Name()); err == nil {
		_ = json.Unmarshal(b, &note) // a damaged note says nothing, and is replaced
	}
	now := time.Now()
	recent := func(t time.Time) bool { return !t.IsZero() && t.Before(now.Add(time.Second)) && now.Sub(t) < fresh }
	switch {
	case recent(note.FetchedAt):
		return "", nil
	case recent(note.FailedAt):
		return g.stale(note, note.Error), nil
	}
	err = g.fetchNow(limited)
	if ctx.Err() != nil {
		return "", fmt.Errorf("fetch from %s: %w", remote, context.Cause(ctx))
	}
	if err != nil {
		note.FailedAt, note.Error = now, err.Error()
		finding = g.stale(note, note.Error)
	} else {
		note = fetchNote{FetchedAt: now}
	}
	if b, err := json.Marshal(note); err == nil && f.Truncate(0) == nil {
		_, _ = f.WriteAt(b, 0) // without the note the next dispatch fetches again
	}
	return finding, nil
}

func (g *Git) fetchNow(ctx context.Context) error {
	c := g.git()
	c.env = g.sshEnvironment(ctx)
	args := []string{"fetch", "--quiet", "--no-recurse-submodules", "--no-auto-maintenance", "--no-write-fetch-head", remote}
	_, err := c.run(ctx, args...)
	if err != nil && strings.Contains(stderrOf(err), "cannot lock ref") {
		_, err = c.run(ctx, args...) // somebody's own fetch came between
	}
	if err != nil {
		return err
	}
	// Without knowing its default branch, a new tree could start from the wrong one. An existing answer is the person's.
	to, _ := c.line(ctx, "symbolic-ref", "--quiet", "refs/remotes/"+remote+"/HEAD")
	if sha, err := c.commit(ctx, to); to == "" || err == nil && sha == "" {
		_, _ = c.run(ctx, "remote", "set-head", remote, "--auto") // an empty remote has none
	}
	return nil
}

// sshEnvironment makes ssh fail instead of asking. The command comes from the person's own configuration.
func (g *Git) sshEnvironment(ctx context.Context) []string {
	ssh := os.Getenv("GIT_SSH_COMMAND")
	if ssh == "" {
		ssh, _ = g.git().line(ctx, "config", "--get", "core.sshCommand")
	}
	if ssh == "" {
		if os.Getenv("GIT_SSH") != "" {
			return nil
		}
		ssh = "ssh"
	}
	if word := strings.Fields(ssh); len(word) > 0 && strings.TrimSuffix(filepath.Base(word[0]), ".exe") == "ssh" {
		ssh += " -oBatchMode=yes"
	}
	return []string{"GIT_SSH_COMMAND=" + ssh}
}

// stale says that a fetch failed and how old the remote's known state is.
func (g *Git) stale(note fetchNote, why string) string {
	at := note.FetchedAt
	if at.IsZero() {
		// Not by us: the person's last fetch, else when the remote's branches were last written.
		for _, pattern := range []string{"FETCH_HEAD", "logs/refs/remotes/" + remote + "/*", "packed-refs"} {
			names, _ := fs.Glob(os.DirFS(g.common), pattern)
			for _, name := range names {
				if st, err := os.Stat(filepath.Join(g.common, name)); err == nil && st.ModTime().After(at) {
					at = st.ModTime()
				}
			}
			if !at.IsZero() {
				break
			}
		}
	}
	age := "of unknown age"
	if !at.IsZero() {
		age = "of " + at.UTC().Format("2006-01-02 15:04 UTC") + " (" + since(time.Since(at)) + " old)"
	}
	return fmt.Sprintf("The fetch from %s failed (%s); what is known of it is %s.", remote, strings.Join(strings.Fields(why), " "), age)
}

// since says a duration as people do.
func since(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d seconds", int(max(d, 0).Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d minutes", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d hours", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}
