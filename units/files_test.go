package units

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gaia/domain"
)

var update = flag.Bool("update", false, "write the golden files anew")

// oddHome has every character that a unit file gives a meaning.
const oddHome = `/home/ada/a b%h 100% $HOME ${X} "q" 'p' \x41 \ # ; ä/.gaia`

func goldens() map[string]map[string][]byte {
	plain, _ := NewNames("")
	demo, _ := NewNames("demo")
	return map[string]map[string][]byte{
		"plain": Files(plain, Paths{Bin: "/usr/bin"}),
		"odd":   Files(demo, Paths{Bin: "/opt/my tools/100%", Env: map[string]string{"GAIA_PREFIX": "demo", "GAIA_HOME": oddHome}}),
	}
}

func TestFilesAreTheGoldenOnes(t *testing.T) {
	t.Parallel()
	for dir, files := range goldens() {
		dir = filepath.Join("testdata", dir)
		if *update {
			require.NoError(t, os.RemoveAll(dir))
			require.NoError(t, os.MkdirAll(dir, 0o755))
			for name, text := range files {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o644))
			}
		}
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
			want, err := os.ReadFile(filepath.Join(dir, e.Name()))
			require.NoError(t, err)
			require.Equal(t, string(want), string(files[e.Name()]), "go test ./units -run Golden -update writes them anew")
		}
		require.Equal(t, slices.Sorted(maps.Keys(files)), names)
	}
}

// What breaks on the oldest systemd that is supported (252), removes live sockets, or ends agents.
func TestFilesHoldNothingHarmful(t *testing.T) {
	t.Parallel()
	n, _ := NewNames("")
	for name, text := range Files(n, Paths{Bin: "/usr/bin"}) {
		for _, bad := range []string{
			"RuntimeDirectory", "notify-reload", "KillMode=process", "KillMode=none", "RestartMode", "RestartSteps", "FileDescriptorStorePreserve",
			"PrivateTmp", "PrivateDevices", "ProtectClock", "ProtectKernel", "CapabilityBoundingSet", "%I",
		} {
			for _, line := range strings.Split(string(text), "\n") {
				if !strings.HasPrefix(line, "#") {
					require.NotContains(t, line, bad, name)
				}
			}
		}
	}
	conductor := string(Files(n, Paths{Bin: "/usr/bin"})[n.Conductor("")])
	for _, line := range []string{
		"Type=notify", "NotifyAccess=main", "WatchdogSec=60", "Restart=on-failure", "RestartSec=2s", "RestartPreventExitStatus=78",
		"ExecReload=kill -HUP $MAINPID", `ExecReload="/usr/bin/gaia-conductor" --check %i`, `ExecStart="/usr/bin/gaia-conductor" %i`, "WantedBy=default.target", "StartLimitBurst=5",
	} {
		require.Contains(t, conductor, "\n"+line+"\n")
	}
	require.NotContains(t, conductor, "MemoryDenyWriteExecute")
}

func TestPathsThatUnitFilesCannotSay(t *testing.T) {
	t.Parallel()
	require.NoError(t, Paths{Bin: "/usr/bin"}.Check())
	require.NoError(t, Paths{Bin: "/a b/100%", Env: map[string]string{"GAIA_HOME": oddHome + "\n\t"}}.Check())
	for _, p := range []Paths{
		{}, {Bin: "bin"}, {Bin: `/a"b`}, {Bin: "/a'b"}, {Bin: `/a\b`}, {Bin: "/a$b"}, {Bin: "/a;b"}, {Bin: "/a\nb"}, {Bin: "/a\xffb"}, {Bin: "/a\x00"},
		{Bin: "/b", Env: map[string]string{"A B": ""}}, {Bin: "/b", Env: map[string]string{"": ""}}, {Bin: "/b", Env: map[string]string{"A": "\x1b"}},
		{Bin: "/b", Env: map[string]string{"A": "\xff"}}, {Bin: "/b", Env: map[string]string{"A": "a\rb"}},
	} {
		require.ErrorIs(t, p.Check(), domain.ErrInvalid, "%q", p)
	}
}

func TestPristine(t *testing.T) {
	t.Parallel()
	n, _ := NewNames("")
	text := Files(n, Paths{Bin: "/usr/bin"})[n.Hub()]
	ok, err := pristine(text)
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = pristine(append(slices.Clone(text), "Nice=5\n"...))
	require.NoError(t, err)
	require.False(t, ok)
	for _, foreign := range []string{"", "[Unit]\n", "# Written by somebody\n"} {
		_, err = pristine([]byte(foreign))
		require.ErrorIs(t, err, errForeign)
	}
}

func TestFindDriftJudgesFilesByTheirPlace(t *testing.T) {
	t.Parallel()
	n, _ := NewNames("")
	want := Files(n, Paths{Bin: "/usr/bin"})[n.Hub()]
	stale := Files(n, Paths{Bin: "/old/bin"})[n.Hub()]
	touched := append(slices.Clone(stale), "Nice=5\n"...)
	for _, c := range []struct {
		name          string
		own, packaged string
		kind          DriftKind
	}{
		{"as shipped", string(want), "", ""},
		{"another version", string(stale), "", DriftStale},
		{"edited", string(touched), "", DriftEdited},
		{"shadow", string(want), string(want), DriftShadow},
		{"stale shadow", string(stale), string(want), DriftShadow},
		{"edited shadow", string(touched), string(want), DriftEdited},
		{"a person's own", "[Service]\nExecStart=/bin/true\n", string(want), ""},
		{"a package's alone", "", string(stale), ""},
	} {
		own, pkg := t.TempDir(), t.TempDir()
		path := filepath.Join(own, n.Hub())
		if c.own != "" {
			require.NoError(t, os.WriteFile(path, []byte(c.own), 0o644))
		}
		if c.packaged != "" {
			require.NoError(t, os.WriteFile(filepath.Join(pkg, n.Hub()), []byte(c.packaged), 0o644))
		}
		hits, err := find([]string{own, filepath.Join(own, "absent"), pkg}, n.Hub())
		require.NoError(t, err)
		d, err := compare(path, hits, want)
		require.NoError(t, err)
		if c.kind == "" {
			require.Nil(t, d, c.name)
			continue
		}
		require.NotNil(t, d, c.name)
		require.Equal(t, c.kind, d.Kind, c.name)
		require.Equal(t, c.packaged != "", d.Packaged != "", c.name)
		require.Contains(t, d.String(), path)
	}
}

func TestSetAsideReplacesNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.service")
	for i, text := range []string{"one", "two"} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		require.NoError(t, setAside(path))
		require.NoFileExists(t, path)
		got, err := os.ReadFile(path + ".edited-" + string(rune('1'+i)))
		require.NoError(t, err)
		require.Equal(t, text, string(got))
	}
}
