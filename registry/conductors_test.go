package registry

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gofrs/flock"
	"github.com/stretchr/testify/require"

	"gaia/domain"
)

func repository(t testing.TB, dir string) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	git(t, dir, "init", "-q", "-b", "main")
	git(t, dir, "commit", "-q", "--allow-empty", "-m", "first")
	return dir
}

func TestAConductorIsPutFoundAndRemoved(t *testing.T) {
	t.Parallel()
	h, ctx := newHome(t), t.Context()
	entries, err := h.Entries()
	require.NoError(t, err)
	require.Empty(t, entries)
	shop, blog := repository(t, filepath.Join(h.User, "shop")), repository(t, filepath.Join(h.User, "blog"))
	at := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	e := Entry{Instance: "shop", Checkout: shop, Project: "SHOP", CreatedAt: at}
	require.NoError(t, h.Put(ctx, e))
	require.NoError(t, h.Put(ctx, Entry{Instance: "blog", Checkout: blog, Project: "BLOG", CreatedAt: at}))
	e.Path = "/usr/bin"
	require.NoError(t, h.Put(ctx, Entry{Instance: "shop", Checkout: shop, Project: "SHOP", Path: "/usr/bin"}), "enable adds the PATH")
	got, err := h.Entry("shop")
	require.NoError(t, err)
	require.Equal(t, e, got)
	entries, err = h.Entries()
	require.NoError(t, err)
	require.Len(t, entries, 2)
	require.Equal(t, "blog", entries[0].Instance)

	require.ErrorIs(t, h.Put(ctx, Entry{Instance: "shop", Checkout: blog, Project: "SHOP"}), domain.ErrConflict)
	require.ErrorIs(t, h.Put(ctx, Entry{Instance: "other", Checkout: shop, Project: "SHOP"}), domain.ErrConflict)
	require.ErrorIs(t, h.Put(ctx, Entry{Instance: "A", Checkout: shop, Project: "SHOP"}), domain.ErrInvalid)
	require.ErrorIs(t, h.Put(ctx, Entry{Instance: "a", Checkout: shop, Project: "s"}), domain.ErrInvalid)

	require.NoError(t, h.Remove(ctx, "blog"))
	require.ErrorIs(t, h.Remove(ctx, "blog"), domain.ErrNotFound)
	_, err = h.Entry("blog")
	require.ErrorIs(t, err, domain.ErrNotFound)
	data, err := os.ReadFile(h.ConductorsFile() + ".bak")
	require.NoError(t, err)
	before, err := ParseEntries(data)
	require.NoError(t, err)
	require.Len(t, before, 2, "the backup is the state before")
}

func TestAnInstanceIsProposedOnce(t *testing.T) {
	t.Parallel()
	h, ctx := newHome(t), t.Context()
	proposed := func(checkout string) string {
		name, err := h.ProposeInstance(checkout)
		require.NoError(t, err)
		return name
	}
	require.Equal(t, "shop", proposed("/home/ada/shop"))
	require.NoError(t, h.Put(ctx, Entry{Instance: "shop", Checkout: h.User, Project: "SHOP"}))
	require.Equal(t, "shop-2", proposed("/home/ada/shop-2"))
	for _, folder := range []string{"shop", "My Shop"} {
		one, two := proposed("/home/ada/one/"+folder), proposed("/home/ada/two/"+folder)
		require.Regexp(t, `^(my-)?shop-[0-9a-f]{6}$`, one)
		require.Regexp(t, `^(my-)?shop-[0-9a-f]{6}$`, two)
		require.NotEqual(t, one, two, "the other's, when that is removed")
		require.Equal(t, one, proposed("/home/ada/one/"+folder), "the same checkout's, when it is set up again")
	}
}

func TestACheckoutIsFoundFromAnywhereInIt(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	shop := repository(t, filepath.Join(h.User, "shop"))
	require.NoError(t, os.MkdirAll(filepath.Join(shop, "a", "b"), 0o755))
	require.NoError(t, os.Symlink(shop, filepath.Join(h.User, "link")))
	git(t, shop, "worktree", "add", "-q", filepath.Join(h.User, "trees", "SHOP-1"))
	inner := repository(t, filepath.Join(shop, "vendor", "inner"))
	require.NoError(t, h.Put(t.Context(), Entry{Instance: "shop", Checkout: filepath.Join(h.User, "link", "a"), Project: "SHOP"}))
	for _, dir := range []string{shop, filepath.Join(shop, "a", "b"), filepath.Join(h.User, "link"), filepath.Join(h.User, "link", "a"), filepath.Join(h.User, "trees", "SHOP-1")} {
		e, err := h.EntryOf(dir)
		require.NoError(t, err, dir)
		require.Equal(t, "shop", e.Instance)
		require.Equal(t, shop, e.Checkout)
	}
	_, err := h.EntryOf(inner)
	require.ErrorIs(t, err, domain.ErrNotFound, "a repository in it is another checkout")
	_, err = h.EntryOf(h.User)
	require.ErrorIs(t, err, domain.ErrNotFound)
	_, err = h.EntryOf(filepath.Join(h.User, "none"))
	require.Error(t, err)
}

func TestASubmoduleIsACheckoutOfItsOwn(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	lib, shop := repository(t, filepath.Join(h.User, "lib")), repository(t, filepath.Join(h.User, "shop"))
	git(t, shop, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", lib, "lib")
	got, err := FindCheckout(filepath.Join(shop, "lib"))
	require.NoError(t, err)
	require.Equal(t, filepath.Join(shop, "lib"), got)
}

func TestTheWorktreesOfABareRepositoryAreOneCheckout(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	src, bare := repository(t, filepath.Join(h.User, "src")), filepath.Join(h.User, "shop.git")
	git(t, src, "clone", "-q", "--bare", src, bare)
	one, two := filepath.Join(h.User, "one"), filepath.Join(h.User, "two")
	git(t, bare, "worktree", "add", "-q", one, "main")
	git(t, bare, "worktree", "add", "-q", two, "-b", "two")
	require.NoError(t, h.Put(t.Context(), Entry{Instance: "shop", Checkout: one, Project: "SHOP"}))
	e, err := h.EntryOf(two)
	require.NoError(t, err)
	require.Equal(t, one, e.Checkout)
	require.NoError(t, h.Put(t.Context(), Entry{Instance: "shop-two", Checkout: two, Project: "SHOP"}))
	e, err = h.EntryOf(two)
	require.NoError(t, err)
	require.Equal(t, "shop-two", e.Instance)
	git(t, bare, "worktree", "add", "-q", filepath.Join(h.User, "three"), "-b", "three")
	_, err = h.EntryOf(filepath.Join(h.User, "three"))
	require.ErrorContains(t, err, "several conductors, shop and shop-two")
}

func TestManyWritersLoseNothing(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	var wg sync.WaitGroup
	for i := range 12 {
		dir := filepath.Join(h.User, fmt.Sprint("c", i))
		require.NoError(t, os.Mkdir(dir, 0o755))
		wg.Go(func() {
			require.NoError(t, h.Put(t.Context(), Entry{Instance: fmt.Sprint("c", i), Checkout: dir, Project: "SHOP"}))
			_, err := h.Entries()
			require.NoError(t, err)
		})
	}
	wg.Wait()
	entries, err := h.Entries()
	require.NoError(t, err)
	require.Len(t, entries, 12)
}

func TestAHeldLockIsWaitedForAndNamed(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	lock := flock.New(h.ConductorsFile() + ".lock")
	require.NoError(t, lock.Lock())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := h.Put(ctx, Entry{Instance: "shop", Checkout: h.User, Project: "SHOP"})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, h.ConductorsFile()+".lock")
	require.NoError(t, lock.Unlock())
	require.NoError(t, h.Put(t.Context(), Entry{Instance: "shop", Checkout: h.User, Project: "SHOP"}))
}

func TestADamagedRegisterIsSetAsideAndNeverOverwritten(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"cut":             `{"schema":1,"conductors":[{"instance":"sh`,
		"binary":          "\x00\x01\x7fELF",
		"wrong type":      `{"schema":1,"conductors":[{"instance":7,"checkout":"/a","project":"A"}]}`,
		"empty":           "",
		"no list":         "null",
		"later schema":    `{"schema":2,"conductors":[]}`,
		"unknown key":     `{"schema":1,"conductors":[],"x":1}`,
		"more after it":   `{"schema":1,"conductors":[]} {}`,
		"instance twice":  `{"schema":1,"conductors":[{"instance":"a","checkout":"/a","project":"A"},{"instance":"a","checkout":"/b","project":"A"}]}`,
		"checkout twice":  `{"schema":1,"conductors":[{"instance":"a","checkout":"/a","project":"A"},{"instance":"b","checkout":"/a","project":"A"}]}`,
		"relative":        `{"schema":1,"conductors":[{"instance":"a","checkout":"a","project":"A"}]}`,
		"no such project": `{"schema":1,"conductors":[{"instance":"a","checkout":"/a","project":"a"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			require.NoError(t, h.Put(t.Context(), Entry{Instance: "shop", Checkout: h.User, Project: "SHOP"}))
			require.NoError(t, h.Put(t.Context(), Entry{Instance: "shop", Checkout: h.User, Project: "SHOP", Path: "/bin"}))
			put(t, h.ConductorsFile(), text)
			for range 2 {
				_, err := h.Entries()
				require.ErrorContains(t, err, h.ConductorsFile()+":1: ")
				require.ErrorContains(t, err, "the file is damaged and is left as it is")
				require.ErrorContains(t, err, "cp "+h.ConductorsFile()+".bak "+h.ConductorsFile())
				require.Error(t, h.Put(t.Context(), Entry{Instance: "new", Checkout: h.User, Project: "SHOP"}))
				require.Error(t, h.Remove(t.Context(), "shop"))
				_, err = h.EntryOf(h.User)
				require.Error(t, err)
				require.NotErrorIs(t, err, domain.ErrNotFound, "damaged is not empty")
			}
			data, err := os.ReadFile(h.ConductorsFile())
			require.NoError(t, err)
			require.Equal(t, text, string(data))
			copies, err := filepath.Glob(h.ConductorsFile() + ".damaged-*")
			require.NoError(t, err)
			require.Len(t, copies, 1, "one copy per content, however often it is read")
			data, err = os.ReadFile(copies[0])
			require.NoError(t, err)
			require.Equal(t, text, string(data))

			bak, err := os.ReadFile(h.ConductorsFile() + ".bak")
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(h.ConductorsFile(), bak, 0o600))
			e, err := h.Entry("shop")
			require.NoError(t, err)
			require.Equal(t, h.User, e.Checkout)
		})
	}
}

func TestWhereARegisterIsWrongIsTold(t *testing.T) {
	t.Parallel()
	entry := func(instance, more string) string {
		return "    {\n      \"instance\": \"" + instance + "\",\n      \"checkout\": \"/" + instance + "\",\n      \"project\": \"A\"" + more + "\n    }"
	}
	file := func(entries ...string) string {
		return "{\n  \"schema\": 1,\n  \"conductors\": [\n" + strings.Join(entries, ",\n") + "\n  ]\n}\n"
	}
	for name, c := range map[string]struct {
		text string
		line int
		key  string
	}{
		"syntax":      {file(entry("a", "oops")), 7, ""},
		"unknown key": {file(entry("a", ""), entry("b", ",\n      \"colour\": 1")), 13, "colour"},
		"wrong type":  {file(entry("a", ",\n      \"path\": 7")), 8, "conductors.path"},
		"twice":       {file(entry("a", ""), entry("b", ""), entry("a", "")), 14, "conductors[3]"},
		"bad name":    {file(entry("a", ""), entry("B", "")), 9, "conductors[2]"},
		"schema":      {"{\n\n  \"schema\": 9}", 3, "schema"},
		"cut":         {"{\n\n", 3, ""},
		"empty":       {"", 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseEntries([]byte(c.text))
			var wrong *ConfigError
			require.ErrorAs(t, err, &wrong)
			require.Equal(t, c.line, wrong.Line, err)
			require.Equal(t, c.key, wrong.Key, err)
		})
	}
}

func TestAFileThatCannotBeReadIsAMistakeOfTheConfiguration(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	for path, read := range map[string]func() error{
		h.MachineFile():                     func() error { _, err := h.Machine(); return err },
		h.ConductorsFile():                  func() error { _, err := h.Entries(); return err },
		h.TrustFile():                       func() error { _, err := h.TrustedAll(h.User); return err },
		h.HubFile():                         func() error { _, err := h.Hub(); return err },
		filepath.Join(h.User, CheckoutFile): func() error { _, err := LoadCheckout(h.User); return err },
	} {
		require.NoError(t, os.MkdirAll(path, 0o700))
		var wrong *ConfigError
		require.ErrorAs(t, read(), &wrong)
		require.Equal(t, path, wrong.File)
		require.DirExists(t, path)
	}
}

func FuzzParseEntries(f *testing.F) {
	f.Add([]byte(`{"schema":1,"conductors":[{"instance":"a","checkout":"/a","project":"A","path":"","created_at":"2026-12-01T00:00:00Z"}]}`))
	f.Add([]byte(`{"schema":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := ParseEntries(data)
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, e := range entries {
			require.NoError(t, e.check())
			require.False(t, seen[e.Instance])
			seen[e.Instance] = true
		}
	})
}

func TestTrustIsPerCheckoutAndHash(t *testing.T) {
	t.Parallel()
	h, ctx := newHome(t), t.Context()
	shop, blog := repository(t, filepath.Join(h.User, `sh"op`)), repository(t, filepath.Join(h.User, "blog"))
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	is := func(checkout, sha string, want bool) {
		t.Helper()
		got, err := h.Trusted(checkout, sha)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	is(shop, a, false)
	is(shop, "", true)
	require.NoError(t, h.Trust(ctx, shop, a))
	require.NoError(t, h.Trust(ctx, shop, a))
	require.NoError(t, h.Trust(ctx, shop, b))
	require.NoError(t, h.Trust(ctx, shop, ""))
	require.Error(t, h.Trust(ctx, shop, "short"))
	is(shop, a, true)
	is(shop, b, true)
	is(blog, a, false)
	tr, err := h.LoadTrust()
	require.NoError(t, err)
	require.Len(t, tr.Hooks, 2)

	granted, refused, err := h.Permissions(shop, "all")
	require.NoError(t, err)
	require.Equal(t, "edits", granted)
	require.True(t, refused)
	require.NoError(t, h.TrustAll(ctx, shop))
	require.NoError(t, h.TrustAll(ctx, shop))
	granted, refused, err = h.Permissions(shop, "all")
	require.NoError(t, err)
	require.Equal(t, "all", granted)
	require.False(t, refused)
	granted, _, err = h.Permissions(blog, "all")
	require.NoError(t, err)
	require.Equal(t, "edits", granted)
	granted, refused, err = h.Permissions(blog, "ask")
	require.NoError(t, err)
	require.Equal(t, "ask", granted)
	require.False(t, refused)
	is(shop, a, true)
}

func TestADamagedTrustFileTrustsNothingAndIsLeftAlone(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	put(t, h.TrustFile(), "[[all]]\ncheckout = \""+h.User+"\"\nx = 1\n")
	ok, err := h.TrustedAll(h.User)
	require.ErrorContains(t, err, h.TrustFile()+":1: all[1].x: unknown key")
	require.False(t, ok)
	granted, refused, err := h.Permissions(h.User, "all")
	require.Error(t, err)
	require.True(t, refused)
	require.Equal(t, "edits", granted)
	require.Error(t, h.TrustAll(t.Context(), h.User))
	data, err := os.ReadFile(h.TrustFile())
	require.NoError(t, err)
	require.Contains(t, string(data), "x = 1")
}
