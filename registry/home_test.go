package registry

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/domain"
)

func TestOpenFollowsTheEnvironment(t *testing.T) {
	t.Parallel()
	none, some := filepath.Join(t.TempDir(), "none"), t.TempDir()
	for name, c := range map[string]struct {
		env      []string
		fallback string
		want     Home
		prefix   string
	}{
		"nothing but HOME": {[]string{"HOME", "/home/ada"}, none, Home{
			Dir: "/home/ada/.gaia", State: "/home/ada/.local/state/gaia", Data: "/home/ada/.local/share/gaia", User: "/home/ada",
		}, "gaia"},
		"the XDG names": {[]string{"HOME", "/home/ada", "XDG_STATE_HOME", "/s", "XDG_DATA_HOME", "/d/", "XDG_RUNTIME_DIR", "/run/user/7"}, some, Home{
			Dir: "/home/ada/.gaia", State: "/s/gaia", Data: "/d/gaia", User: "/home/ada", RuntimeRoot: "/run/user/7", Runtime: "/run/user/7/gaia",
		}, "gaia"},
		"relative XDG names are invalid": {[]string{"HOME", "/home/ada", "XDG_STATE_HOME", "s", "XDG_RUNTIME_DIR", "r"}, none, Home{
			Dir: "/home/ada/.gaia", State: "/home/ada/.local/state/gaia", Data: "/home/ada/.local/share/gaia", User: "/home/ada",
		}, "gaia"},
		"the runtime folder is there though its name is not set": {[]string{"HOME", "/home/ada"}, some, Home{
			Dir: "/home/ada/.gaia", State: "/home/ada/.local/state/gaia", Data: "/home/ada/.local/share/gaia", User: "/home/ada",
			RuntimeRoot: some, Runtime: filepath.Join(some, "gaia"),
		}, "gaia"},
		"a demo beside a real installation": {[]string{"HOME", "/home/ada", "XDG_STATE_HOME", "/s", "GAIA_HOME", "/demo/", "GAIA_PREFIX", "demo1", "XDG_RUNTIME_DIR", "/r"}, none, Home{
			Dir: "/demo", State: "/demo/state", Data: "/demo", User: "/home/ada", RuntimeRoot: "/r", Runtime: "/r/demo1",
		}, "demo1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, prefix, err := open(env(c.env...), c.fallback)
			require.NoError(t, err)
			require.Equal(t, c.want, h)
			require.Equal(t, c.prefix, prefix)
		})
	}
	for name, c := range map[string]struct {
		env  []string
		want string
	}{
		"no HOME":         {nil, "set HOME or GAIA_HOME"},
		"relative HOME":   {[]string{"HOME", "ada"}, "HOME"},
		"relative home":   {[]string{"HOME", "/h", "GAIA_HOME", "x"}, "GAIA_HOME"},
		"dash in prefix":  {[]string{"HOME", "/h", "GAIA_PREFIX", "my-gaia"}, "GAIA_PREFIX"},
		"long prefix":     {[]string{"HOME", "/h", "GAIA_PREFIX", "abcdefghijklmnopq"}, "GAIA_PREFIX"},
		"upper in prefix": {[]string{"HOME", "/h", "GAIA_PREFIX", "Gaia"}, "GAIA_PREFIX"},
	} {
		_, _, err := open(env(c.env...), none)
		require.ErrorContains(t, err, c.want, name)
	}
}

func TestTheRuntimeFolderIsMissedOnlyWhereItIsNeeded(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	require.Empty(t, h.HubSocket())
	require.ErrorContains(t, h.NeedRuntime(), "loginctl enable-linger")
	require.ErrorContains(t, h.PrepareRuntime(), "XDG_RUNTIME_DIR is not set")
	h.Runtime = filepath.Join(t.TempDir(), strings.Repeat("x", 90))
	require.ErrorContains(t, h.PrepareRuntime(), "at most 107")

	short, err := os.MkdirTemp("", "g")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(short)) })
	h.Runtime = filepath.Join(short, "gaia")
	require.NoError(t, h.PrepareRuntime())
	require.Equal(t, filepath.Join(h.Runtime, "hub.sock"), h.HubSocket())
	require.Equal(t, filepath.Join(h.Runtime, "r", "0123456789ab.sock"), h.RunSocket("019aa0b0-1111-7222-8333-0123456789ab"))
	st, err := os.Stat(filepath.Join(h.Runtime, "r"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o700), st.Mode().Perm())
}

func TestPrepareClosesWhatIsOpenToOthersAndSaysSo(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	for _, dir := range []string{h.Dir, filepath.Dir(h.TokenFile("a.b.c")), h.State} {
		st, err := os.Stat(dir)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o700), st.Mode().Perm(), dir)
	}
	require.NoError(t, h.WriteToken("a.b.c", "secret"))
	st, err := os.Stat(h.TokenFile("a.b.c"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), st.Mode().Perm())
	notes, err := h.Prepare()
	require.NoError(t, err)
	require.Empty(t, notes)

	require.NoError(t, os.Chmod(h.TokenFile("a.b.c"), 0o644))
	require.NoError(t, os.Chmod(h.Dir, 0o755))
	_, err = h.Token("a.b.c")
	require.ErrorContains(t, err, "chmod 0600 "+h.TokenFile("a.b.c"), "until it is mended it is not used")
	notes, err = h.Prepare()
	require.NoError(t, err)
	require.Equal(t, []string{
		h.Dir + " was open to others (0755); it is 0700 now",
		h.TokenFile("a.b.c") + " was open to others (0644); it is 0600 now",
	}, notes)
	token, err := h.Token("a.b.c")
	require.NoError(t, err)
	require.Equal(t, "secret", token)
	_, err = h.Token("a.b.d")
	require.ErrorIs(t, err, domain.ErrNotFound)
}

func TestAFileThatOthersCanWriteDecidesNothing(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	put(t, h.MachineFile(), "user_id = \"a\"\nhost_id = \"b\"\n")
	require.NoError(t, os.Chmod(h.MachineFile(), 0o666))
	_, err := h.Machine()
	require.ErrorContains(t, err, "chmod 0644 "+h.MachineFile())
	require.NoError(t, os.Chmod(h.MachineFile(), 0o644))
	_, err = h.Machine()
	require.NoError(t, err)
	require.NoError(t, os.Chmod(h.Dir, 0o777))
	_, err = h.LoadTrust()
	require.ErrorContains(t, err, "open to others")
}
