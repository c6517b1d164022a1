package daemon

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"gaia/domain"
	"gaia/registry"
	"gaia/session/prompt"
)

// The committed files that a run depends on.
const (
	pathConfig   = registry.CheckoutFile
	pathSkills   = registry.SkillsDir
	pathWorkflow = registry.WorkflowFile
)

// commit is what a commit of the checkout says about its runs. It is never read from a worktree, where an agent could
// have changed it.
type commit struct {
	sha      string
	hooks    domain.Hooks
	skills   prompt.SkillSet
	workflow []byte // nil: there is none
}

// configError is a commit that no run can be based on. Only a person can mend that.
type configError struct{ err error }

func (e *configError) Error() string { return e.err.Error() }
func (e *configError) Unwrap() error { return e.err }

// skillError is a commit whose skills contradict each other.
type skillError struct{ err error }

func (e *skillError) Error() string { return e.err.Error() }
func (e *skillError) Unwrap() error { return e.err }

// commitCache keeps the last commit read: it is asked for at every tick and hardly ever changes.
type commitCache struct {
	mu   sync.Mutex
	last *commit
}

// base returns the commit that a new tree would start from.
func (d *Conductor) base(ctx context.Context) (*commit, error) {
	sha, err := d.cfg.Workspace.Base(ctx)
	if err != nil {
		return nil, fmt.Errorf("finding the base of new trees: %w", err)
	}
	return d.commit(ctx, sha)
}

func (d *Conductor) commit(ctx context.Context, sha string) (*commit, error) {
	d.commits.mu.Lock()
	defer d.commits.mu.Unlock()
	if c := d.commits.last; c != nil && c.sha == sha {
		return c, nil
	}
	files, err := d.cfg.Workspace.Files(ctx, sha, pathConfig, pathSkills, pathWorkflow)
	if err != nil {
		return nil, fmt.Errorf("reading the committed files of %.12s: %w", sha, err)
	}
	c := &commit{sha: sha}
	skills := map[string][]byte{}
	for path, data := range files {
		switch {
		case path == pathConfig:
			conf, err := registry.ParseCheckout(pathConfig, data)
			if err != nil {
				return nil, &configError{fmt.Errorf("commit %.12s: %w", sha, err)}
			}
			c.hooks = conf.Hooks
		case path == pathWorkflow:
			c.workflow = data
			if c.workflow == nil {
				c.workflow = []byte{}
			}
		case strings.HasPrefix(path, pathSkills+"/") && strings.HasSuffix(path, ".md"):
			skills[path] = data
		}
	}
	if c.skills, err = prompt.Skills(skills); err != nil {
		return nil, &skillError{fmt.Errorf("commit %.12s: %w", sha, err)}
	}
	d.commits.last = c
	return c, nil
}
