package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"gaia/internal/durable"
)

const (
	maxClaudeState  = 64 << 20         // the program keeps what was pasted and more in it
	claudeLockStale = 10 * time.Second // after which the program itself takes such a lock for left behind
	claudeLockWait  = 15 * time.Second
)

// claudeState returns the program's folder, and the file in which it keeps which folders its user trusts.
func claudeState(env map[string]string) (config, state string, err error) {
	home := env["HOME"]
	config = env["CLAUDE_CONFIG_DIR"]
	if config == "" {
		if !filepath.IsAbs(home) {
			return "", "", fmt.Errorf("the HOME of a run is %q and must be an absolute path: systemctl --user show-environment", home)
		}
		config = filepath.Join(home, ".claude")
	} else {
		if !filepath.IsAbs(config) {
			return "", "", fmt.Errorf("CLAUDE_CONFIG_DIR is %q and must be an absolute path", config)
		}
		home = config
	}
	old := filepath.Join(config, ".config.json") // where there is one, the program looks at no other
	if _, err := os.Stat(old); err == nil {
		return config, old, nil
	}
	return config, filepath.Join(home, ".claude.json"), nil
}

// trustClaude says in the program's file that its user trusts one folder, and that the API key that the machine's settings
// pass to runs may be used. The file is the user's: everything else in it stays as it is, byte for byte. It returns the file.
func trustClaude(ctx context.Context, state, folder, key string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, claudeLockWait)
	defer cancel()
	file, err := filepath.EvalSymlinks(state) // a link stays one
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(state); err == nil {
			return nil, fmt.Errorf("%s is a link to a file that is not there; mend or remove it", state)
		}
		file = state
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return nil, fmt.Errorf("making the folder of %s: %w", file, err)
		}
	case err != nil:
		return nil, fmt.Errorf("looking for %s: %w", state, err)
	}
	unlock, err := lockClaude(ctx, file)
	if err != nil {
		return nil, err
	}
	defer unlock()
	perm := fs.FileMode(0o600)
	data, err := durable.Read(file, maxClaudeState)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		data = []byte("{}\n")
	case err != nil:
		return nil, fmt.Errorf("reading the agent's settings: %w", err)
	default:
		st, err := os.Stat(file)
		if err != nil {
			return nil, fmt.Errorf("reading the agent's settings: %w", err)
		}
		perm = st.Mode().Perm()
	}
	changed, err := editClaude(data, folder, key)
	if err != nil {
		return nil, fmt.Errorf("%s was not changed: %w; start claude in a terminal, it offers to mend it", file, err)
	}
	if bytes.Equal(changed, data) {
		return changed, nil
	}
	return changed, durable.Replace(file, changed, perm)
}

// lockClaude takes the lock that the program itself takes before it writes its file, a folder beside it. Since one that was
// left behind must be taken over, which two could do at once, a lock on the folder of both comes first.
func lockClaude(ctx context.Context, file string) (unlock func(), err error) {
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", file, err)
	}
	lock := file + ".lock"
	ours := false
	for {
		if !ours {
			err = syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
			ours = err == nil
		}
		if ours {
			err = os.Mkdir(lock, 0o700)
			if st, statErr := os.Lstat(lock); errors.Is(err, fs.ErrExist) && statErr == nil && time.Since(st.ModTime()) > claudeLockStale {
				_ = os.Remove(lock) // the next try tells
			}
			if err == nil {
				return func() { _ = os.Remove(lock); _ = dir.Close() }, nil
			}
		}
		if !errors.Is(err, fs.ErrExist) && !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = dir.Close()
			return nil, fmt.Errorf("locking %s: %w", file, err)
		}
		select {
		case <-ctx.Done():
			_ = dir.Close()
			return nil, fmt.Errorf("locking %s: somebody else holds %s: %w", file, lock, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// editClaude returns data with the trust of one folder and of one key in it.
func editClaude(data []byte, folder, key string) ([]byte, error) {
	if !utf8.ValidString(folder) {
		return nil, fmt.Errorf("the folder %q cannot be written in it, since its name is no UTF-8", folder)
	}
	data, err := setJSON(data, []byte("true"), "projects", folder, "hasTrustDialogAccepted")
	if err != nil || key == "" {
		return data, err
	}
	if !utf8.ValidString(key) {
		return nil, errors.New("ANTHROPIC_API_KEY is no text")
	}
	const answers = "customApiKeyResponses"
	short := key[max(0, len(key)-20):] // by which the program knows keys
	var now struct {
		Answers struct{ Approved, Rejected []string } `json:"customApiKeyResponses"`
	}
	if err := json.Unmarshal(data, &now); err != nil {
		return nil, fmt.Errorf("%s is not as it should be: %w", answers, err)
	}
	if slices.Contains(now.Answers.Approved, short) || slices.Contains(now.Answers.Rejected, short) {
		return data, nil // the user has answered
	}
	approved, err := marshal(append(now.Answers.Approved, short))
	if err != nil {
		return nil, err
	}
	return setJSON(data, approved, answers, "approved")
}

func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

// member is one member of a JSON object, by offsets.
type member struct {
	key                  string
	begin, value, behind int // of the name; of the value; behind the value
}

// members returns the members of the object that begins at an offset, and the offset of its closing brace.
func members(data []byte, at int) (all []member, end int, err error) {
	dec := json.NewDecoder(bytes.NewReader(data[at:]))
	open, err := dec.Token()
	if err != nil {
		return nil, 0, err
	}
	if open != json.Delim('{') {
		return nil, 0, errors.New("is no object")
	}
	for dec.More() {
		before := at + int(dec.InputOffset())
		name, err := dec.Token()
		if err != nil {
			return nil, 0, err
		}
		key, ok := name.(string)
		if !ok {
			return nil, 0, errors.New("has a name that is no text")
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return nil, 0, err
		}
		behind := at + int(dec.InputOffset())
		all = append(all, member{
			key: key, begin: before + bytes.IndexByte(data[before:], '"'), value: behind - len(raw), behind: behind,
		})
	}
	if _, err := dec.Token(); err != nil {
		return nil, 0, err
	}
	return all, at + int(dec.InputOffset()) - 1, nil
}

// setJSON sets a value at a path of names. Objects on the way that are not there are made; all else keeps its bytes.
func setJSON(data, value []byte, path ...string) ([]byte, error) {
	if !json.Valid(data) {
		return nil, errors.New("it is damaged: it is no JSON")
	}
	at := len(data) - len(bytes.TrimLeft(data, " \t\r\n"))
	for i, name := range path {
		all, end, err := members(data, at)
		if err != nil {
			what := "its top"
			if i > 0 {
				what = fmt.Sprintf("%q", path[i-1])
			}
			return nil, fmt.Errorf("it is damaged: %s %w", what, err)
		}
		found := -1
		for j, m := range all {
			if m.key == name {
				found = j // of several, the last one counts for every reader
			}
		}
		if found < 0 {
			return insertJSON(data, all, at, end, value, path[i:])
		}
		m := all[found]
		if i == len(path)-1 {
			if bytes.Equal(data[m.value:m.behind], value) {
				return data, nil
			}
			return slices.Concat(data[:m.value], value, data[m.behind:]), nil
		}
		if bytes.Equal(data[m.value:m.behind], []byte("null")) {
			made, err := nest(value, path[i+1:])
			if err != nil {
				return nil, err
			}
			return slices.Concat(data[:m.value], made, data[m.behind:]), nil
		}
		at = m.value
	}
	return data, nil
}

// nest wraps a value in objects.
func nest(value []byte, path []string) ([]byte, error) {
	for _, name := range slices.Backward(path) {
		key, err := marshal(name)
		if err != nil {
			return nil, err
		}
		value = slices.Concat([]byte("{"), key, []byte(": "), value, []byte("}"))
	}
	return value, nil
}

// insertJSON adds a member behind the last one of an object, in lines as its others are.
func insertJSON(data []byte, all []member, at, end int, value []byte, path []string) ([]byte, error) {
	made, err := nest(value, path[1:])
	if err != nil {
		return nil, err
	}
	key, err := marshal(path[0])
	if err != nil {
		return nil, err
	}
	made = slices.Concat(key, []byte(": "), made)
	if len(all) == 0 {
		return slices.Concat(data[:end], made, data[end:]), nil
	}
	gap := data[at+1 : all[0].begin]
	last := all[len(all)-1].behind
	return slices.Concat(data[:last], []byte(","), gap, made, data[last:]), nil
}

// claudeTrusts reports whether the user has told the program to trust a folder or one above it.
func claudeTrusts(data []byte, folder string) bool {
	var state struct {
		Projects map[string]json.RawMessage `json:"projects"`
	}
	if json.Unmarshal(data, &state) != nil {
		return false
	}
	for {
		var p struct {
			Trusted bool `json:"hasTrustDialogAccepted"`
		}
		if raw, ok := state.Projects[folder]; ok && json.Unmarshal(raw, &p) == nil && p.Trusted {
			return true
		}
		up := filepath.Dir(folder)
		if up == folder {
			return false
		}
		folder = up
	}
}

// mainTree returns the main work tree of the repository of a worktree, by the files that git keeps there, or "".
func mainTree(tree string) string {
	link, err := durable.Read(filepath.Join(tree, ".git"), maxSmall)
	if err != nil {
		return ""
	}
	gitDir, ok := strings.CutPrefix(strings.TrimSpace(string(link)), "gitdir: ")
	if !ok {
		return ""
	}
	if !filepath.IsAbs(gitDir) {
		gitDir = filepath.Join(tree, gitDir)
	}
	common, err := durable.Read(filepath.Join(gitDir, "commondir"), maxSmall)
	if err != nil {
		return ""
	}
	dir := strings.TrimSpace(string(common))
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(gitDir, dir)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil || filepath.Base(dir) != ".git" {
		return ""
	}
	return filepath.Dir(dir)
}
