package fakes

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"gaia/domain"
)

// Workspace gives each ticket an empty folder in the place of a worktree.
type Workspace struct {
	Root string
	// Call is asked around each call that may have an effect, as Client.Call is.
	Call func(name string, after bool) error

	mu      sync.Mutex
	locks   map[string]chan struct{}
	commits map[string]map[string][]byte
	base    string
	status  map[string]domain.TreeStatus
	ensure  func(domain.TreeRequest) error
	inspect error
	made    map[string]domain.Tree
	spares  func(ctx context.Context, n int, busy bool) error
}

// NewWorkspace returns a workspace whose trees lie in root and whose only commit, "base", is empty.
func NewWorkspace(root string) *Workspace {
	return &Workspace{
		Root: root, base: "base", locks: map[string]chan struct{}{}, commits: map[string]map[string][]byte{"base": {}},
		status: map[string]domain.TreeStatus{}, made: map[string]domain.Tree{},
	}
}

// Process returns the workspace as a new process meets it: same trees, same locks, a Call of its own.
func (w *Workspace) Process(call func(name string, after bool) error) *WorkspaceProcess {
	return &WorkspaceProcess{w: w, call: call}
}

// Commit sets what a commit holds, and makes it the base of new trees.
func (w *Workspace) Commit(sha string, files map[string][]byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.commits[sha], w.base = files, sha
}

// SetBase sets the base that is known before a fetch.
func (w *Workspace) SetBase(sha string) { w.mu.Lock(); defer w.mu.Unlock(); w.base = sha }

// SetStatus sets what Inspect finds.
func (w *Workspace) SetStatus(identifier string, s domain.TreeStatus) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status[identifier] = s
}

// OnEnsure sets what is asked before a tree is made; its error is that of Ensure.
func (w *Workspace) OnEnsure(fn func(domain.TreeRequest) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ensure = fn
}

// OnSpares sets what KeepSpares does.
func (w *Workspace) OnSpares(fn func(ctx context.Context, n int, busy bool) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spares = fn
}

// FailInspect makes every Inspect fail.
func (w *Workspace) FailInspect(err error) { w.mu.Lock(); defer w.mu.Unlock(); w.inspect = err }

// WorkspaceProcess is one process's Workspace.
type WorkspaceProcess struct {
	w    *Workspace
	call func(name string, after bool) error
}

var _ domain.Workspace = (*WorkspaceProcess)(nil)

func (p *WorkspaceProcess) around(name string, fn func() error) error {
	if p.call != nil {
		if err := p.call(name, false); err != nil {
			return err
		}
	}
	err := fn()
	if p.call != nil {
		if lost := p.call(name, true); lost != nil {
			return lost
		}
	}
	return err
}

// Lock implements domain.Workspace.
func (p *WorkspaceProcess) Lock(ctx context.Context, identifier string) (func(), error) {
	p.w.mu.Lock()
	l := p.w.locks[identifier]
	if l == nil {
		l = make(chan struct{}, 1)
		p.w.locks[identifier] = l
	}
	p.w.mu.Unlock()
	select {
	case l <- struct{}{}:
		return func() { <-l }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Ensure implements domain.Workspace.
func (p *WorkspaceProcess) Ensure(_ context.Context, r domain.TreeRequest) (domain.Tree, func(context.Context) error, error) {
	w := p.w
	var t domain.Tree
	err := p.around("Ensure", func() error {
		w.mu.Lock()
		check := w.ensure
		w.mu.Unlock()
		if check != nil {
			if err := check(r); err != nil {
				return err
			}
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if made, ok := w.made[r.Identifier]; ok {
			t = made
			return nil
		}
		dir := filepath.Join(w.Root, domain.WorkspaceKey(r.Identifier))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return &domain.WorkspaceError{Err: err}
		}
		t = domain.Tree{Path: dir, Branch: "gaia/" + r.Identifier, Base: w.base, Head: w.base, AfterCreate: true}
		w.made[r.Identifier] = t
		return nil
	})
	return t, func(context.Context) error { return p.around("Finish", func() error { return nil }) }, err
}

// Inspect implements domain.Workspace.
func (p *WorkspaceProcess) Inspect(_ context.Context, identifier, _ string, _ time.Time) (domain.TreeStatus, error) {
	w := p.w
	var st domain.TreeStatus
	err := p.around("Inspect", func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.inspect != nil {
			return w.inspect
		}
		if s, ok := w.status[identifier]; ok {
			st = s
			return nil
		}
		made, ok := w.made[identifier]
		if !ok {
			return domain.ErrNotFound
		}
		st = domain.TreeStatus{Path: made.Path, Branch: made.Branch, Head: made.Head}
		return nil
	})
	return st, err
}

// Files implements domain.Workspace.
func (p *WorkspaceProcess) Files(_ context.Context, commit string, paths ...string) (map[string][]byte, error) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	files, ok := p.w.commits[commit]
	if !ok {
		return nil, domain.ErrNotFound
	}
	out := map[string][]byte{}
	for name, data := range files {
		for _, want := range paths {
			if name == want || strings.HasPrefix(name, want+"/") {
				out[name] = data
			}
		}
	}
	return out, nil
}

// Base returns the commit that a new tree would start from.
func (p *WorkspaceProcess) Base(context.Context) (string, error) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return p.w.base, nil
}

// GitDir returns the git directory of a tree.
func (p *WorkspaceProcess) GitDir(_ context.Context, tree string) (string, error) {
	return filepath.Join(tree, ".git"), nil
}

// KeepSpares does what OnSpares says; without that there is nothing to do.
func (p *WorkspaceProcess) KeepSpares(ctx context.Context, n int, _ uint64, busy bool) error {
	p.w.mu.Lock()
	fn := p.w.spares
	p.w.mu.Unlock()
	if fn == nil {
		return nil
	}
	return fn(ctx, n, busy)
}
