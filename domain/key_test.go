package domain_test

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	. "gaia/domain"
)

var (
	plain     = regexp.MustCompile(`^[A-Z][A-Z0-9_]*-[0-9]+$`)
	generated = regexp.MustCompile(`-x[0-9a-f]{16}$`)
)

// identifiers returns a generator of what people, importers and attackers call tickets. It is not made for several
// goroutines, so that each test has its own.
func identifiers() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringMatching(`[A-Z][A-Z0-9_]{0,6}-[0-9]{1,6}`),
		rapid.StringMatching(`[A-Z]{36,42}-[0-9]{1,4}`),
		rapid.StringMatching(`[./\\-]{0,6}[a-zA-Z0-9._/~^:?*@{}\\ -]{0,60}(\.lock|/|\.|-x[0-9a-f]{16})?`),
		rapid.StringMatching(`[A-Z]{1,3}-[0-9]-x[0-9a-f]{16}`),
		rapid.String(),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
	)
}

func TestWorkspaceKeyExamples(t *testing.T) {
	t.Parallel()
	for identifier, want := range map[string]string{
		"SHOP-7":                          "SHOP-7",
		"A_B2-0":                          "A_B2-0",
		strings.Repeat("A", 38) + "-7":    strings.Repeat("A", 38) + "-7",
		strings.Repeat("A", 38) + "-77":   strings.Repeat("A", 38) + "-7-x",
		"shop-7":                          "shop-7-x",
		"team/ABC-1":                      "team_ABC-1-x",
		"../../etc/passwd":                "_____etc_passwd-x",
		"-rf":                             "_rf-x",
		".git":                            "_git-x",
		"a..b...c":                        "a_b_.c-x",
		"SHOP-7 ":                         "SHOP-7_-x",
		"SHOP-7\n":                        "SHOP-7_-x",
		"größe":                           "gr__e-x",
		"":                                "_-x",
		"SHOP-7-x0123456789abcdef":        "SHOP-7-x0123456789abcdef-x",
		"https://forge.example/issues/12": "https___forge.example_issues_12-x",
	} {
		got := WorkspaceKey(identifier)
		if !strings.HasSuffix(want, "-x") {
			require.Equal(t, want, got)
			continue
		}
		require.Regexp(t, generated, got, identifier)
		require.Equal(t, want, got[:len(got)-16], identifier)
	}
}

// A key stays in its folder, is short, and says by its form whether it was generated.
func TestWorkspaceKeyForm(t *testing.T) {
	t.Parallel()
	ids := identifiers()
	rapid.Check(t, func(t *rapid.T) {
		identifier := ids.Draw(t, "identifier")
		key := WorkspaceKey(identifier)
		require.Equal(t, key, WorkspaceKey(identifier))
		require.LessOrEqual(t, len(key), 40+18)
		require.Regexp(t, `^[A-Za-z0-9_][A-Za-z0-9._-]*$`, key)
		require.NotContains(t, key, "..")
		require.Equal(t, filepath.Join("/root", key), filepath.Clean("/root/"+key))
		require.Equal(t, "/root", filepath.Dir(filepath.Join("/root", key)))
		isPlain := plain.MatchString(identifier) && len(identifier) <= 40
		require.Equal(t, isPlain, key == identifier)
		require.Equal(t, !isPlain, generated.MatchString(key))
	})
}

// Two identifiers never share a key.
func TestWorkspaceKeyCollisions(t *testing.T) {
	t.Parallel()
	ids := identifiers()
	rapid.Check(t, func(t *rapid.T) {
		seen := map[string]string{}
		for _, identifier := range rapid.SliceOfDistinct(ids, rapid.ID[string]).Draw(t, "identifiers") {
			// Neighbours that the character rule alone would take for the same, and the key itself as an identifier.
			for _, i := range []string{identifier, strings.ToLower(identifier), strings.ReplaceAll(identifier, "/", "_"), WorkspaceKey(identifier)} {
				key := WorkspaceKey(i)
				if other, ok := seen[key]; ok {
					require.Equal(t, other, i, "both have the key %s", key)
				}
				seen[key] = i
			}
		}
	})
}

// git takes every key as the last part of a branch.
func TestWorkspaceKeyIsABranch(t *testing.T) {
	t.Parallel()
	git, err := exec.LookPath("git")
	require.NoError(t, err)
	accepted := func(t require.TestingT, identifier string) {
		for _, branch := range []string{"gaia/" + WorkspaceKey(identifier), WorkspaceKey(identifier)} {
			out, err := exec.Command(git, "check-ref-format", "--branch", branch).CombinedOutput()
			require.NoError(t, err, "%q is no branch: %s", branch, out)
		}
	}
	for _, identifier := range []string{"", "a.lock", ".", "..", "@", "a@{1}", "-", "HEAD", "a/", "refs/heads/x", "\xff", strings.Repeat(".", 50), strings.Repeat("a.", 30)} {
		accepted(t, identifier)
	}
	deadline := time.Now().Add(3 * time.Second) // each needs two processes, so as many as there is time for
	ids := identifiers()
	rapid.Check(t, func(t *rapid.T) {
		identifier := ids.Draw(t, "identifier")
		if time.Now().Before(deadline) {
			accepted(t, identifier)
		}
	})
}

func FuzzWorkspaceKey(f *testing.F) {
	for _, s := range []string{"SHOP-1", "../x", "-", "a..b", "\xff\xfe", "SHOP-1-x0123456789abcdef"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, identifier string) {
		key := WorkspaceKey(identifier)
		require.Regexp(t, `^[A-Za-z0-9_][A-Za-z0-9._-]{0,57}$`, key)
		require.NotContains(t, key, "..")
		require.Equal(t, generated.MatchString(key), key != identifier)
	})
}

func TestSlugExamples(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"shop": "shop", "web-shop2": "web-shop2", strings.Repeat("a", 32): strings.Repeat("a", 32),
		"Shop": "shop-######", "web_shop": "web-shop-######", "2fast": "p-2fast-######", "": "p-######", "---": "p-######", "größe": "gr-e-######",
		"a--b": "a-b-######", "-a-": "a-######", strings.Repeat("a", 33): strings.Repeat("a", 25) + "-######",
		strings.Repeat("a", 24) + "-b" + strings.Repeat("c", 9): strings.Repeat("a", 24) + "-######",
	} {
		got := Slug(name, nil)
		require.NoError(t, CheckSlug(got), name)
		require.Regexp(t, "^"+strings.ReplaceAll(want, "######", "[0-9a-f]{6}")+"$", got, name)
	}
	for _, bad := range []string{"", "-", "a-", "-a", "a--b", "A", "1a", "a_b", "ä", "a\n", "a.b", strings.Repeat("a", 33)} {
		require.ErrorContains(t, CheckSlug(bad), "slug", bad)
	}
}

// A slug is one whatever the name, is free, and is the name itself exactly where that is possible.
func TestSlugs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		taken := map[string]bool{}
		for _, name := range rapid.SliceOfN(rapid.OneOf(rapid.StringMatching(`[a-z0-9 _A-Z-]{0,40}`), rapid.SampledFrom([]string{"shop", "Shop"}), rapid.String()), 0, 8).Draw(t, "names") {
			was := taken[name]
			s := Slug(name, func(s string) bool { return taken[s] })
			require.NoError(t, CheckSlug(s))
			require.False(t, taken[s])
			require.Equal(t, CheckSlug(name) == nil && !was, s == name)
			taken[s] = true
		}
	})
}

func TestProjectKeys(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"A", "SHOP", "A1_B", "A" + strings.Repeat("9", 19)} {
		require.NoError(t, CheckProjectKey(good))
		require.Equal(t, good+"-1", WorkspaceKey(good+"-1"), "identifiers of a project need no generated key")
	}
	for _, bad := range []string{"", "a", "1A", "_A", "A-B", "A B", "Ä", "A\n", "A" + strings.Repeat("9", 20)} {
		require.ErrorContains(t, CheckProjectKey(bad), "project key", bad)
	}
}

func TestMachineIDs(t *testing.T) {
	t.Parallel()
	id, err := MachineID("ada", "lab-2", "shop")
	require.NoError(t, err)
	require.Equal(t, "ada.lab-2.shop", id)
	u, h, i, err := SplitMachineID(id)
	require.NoError(t, err)
	require.Equal(t, []string{"ada", "lab-2", "shop"}, []string{u, h, i})
	for _, bad := range []string{"", "A", "a.b", "a b", "ä", "a_b", "a\n", strings.Repeat("a", 64)} {
		for n, what := range []string{"user_id", "host_id", "instance"} {
			parts := []string{"a", "b", "c"}
			parts[n] = bad
			_, err := MachineID(parts[0], parts[1], parts[2])
			require.ErrorContains(t, err, what, "a missing part is named, never guessed")
		}
	}
	for _, bad := range []string{"", "a", "a.b", "a.b.c.d", "a..c", ".b.c", "a.b.", "A.b.c", "a.b.c\n"} {
		_, _, _, err := SplitMachineID(bad)
		require.ErrorContains(t, err, "machine_id", bad)
	}
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.StringMatching(`[a-z0-9-]{1,63}`)
		a, b, c := part.Draw(t, "user"), part.Draw(t, "host"), part.Draw(t, "instance")
		id, err := MachineID(a, b, c)
		require.NoError(t, err)
		x, y, z, err := SplitMachineID(id)
		require.NoError(t, err)
		require.Equal(t, []string{a, b, c}, []string{x, y, z})
	})
}
