package workspace

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// fingerprint returns what identifies the state of all that lies in a folder, by what the file system says of each thing: nothing
// is read. As long as it is the same, nobody has written there.
func fingerprint(ctx context.Context, folder string) (string, error) {
	p := &printer{ctx: ctx}
	p.group.SetLimit(runtime.NumCPU())
	err := p.dir(folder, ".")
	if e := p.group.Wait(); err == nil {
		err = e
	}
	if err != nil {
		return "", fmt.Errorf("look at all that is in %s: %w", folder, err)
	}
	return hex.EncodeToString(p.sum[:]), nil
}

type printer struct {
	ctx   context.Context
	group errgroup.Group
	mu    sync.Mutex
	sum   [sha256.Size]byte // of the folders, in whatever order they are looked at
}

func (p *printer) dir(path, name string) error {
	if p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	all := append([]byte(name), 0)
	for _, e := range entries {
		var st unix.Stat_t
		if err := unix.Fstatat(int(f.Fd()), e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		all = append(append(all, e.Name()...), 0)
		for _, v := range []int64{int64(st.Ino), int64(st.Mode), st.Size, st.Mtim.Nano(), st.Ctim.Nano()} {
			all = binary.LittleEndian.AppendUint64(all, uint64(v))
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			down := func() error { return p.dir(filepath.Join(path, e.Name()), name+"/"+e.Name()) }
			if !p.group.TryGo(down) {
				if err := down(); err != nil {
					return err
				}
			}
		}
	}
	sum := sha256.Sum256(all)
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range sum {
		p.sum[i] ^= sum[i]
	}
	return nil
}
