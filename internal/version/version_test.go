package version

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGet(t *testing.T) {
	noted := &debug.BuildInfo{
		Main:     debug.Module{Version: "v1.2.3"},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.time", Value: "2026-12-01T00:00:00Z"}},
	}
	for name, c := range map[string]struct {
		version, commit, date string
		build                 *debug.BuildInfo
		want                  Info
	}{
		"the linker's values win":            {"1.0.0", "c0ffee", "2026-11-30T00:00:00Z", noted, Info{Version: "1.0.0", Commit: "c0ffee", Date: "2026-11-30T00:00:00Z"}},
		"the toolchain's where there are no": {"", "", "", noted, Info{Version: "v1.2.3", Commit: "0123456789abcdef", Date: "2026-12-01T00:00:00Z"}},
		"a working tree has no version":      {"", "", "", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, Info{Version: "0.0.0-dev"}},
		"nothing is known":                   {"", "", "", nil, Info{Version: "0.0.0-dev"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := get(c.version, c.commit, c.date, c.build)
			require.NotEmpty(t, got.Go)
			got.Go = ""
			require.Equal(t, c.want, got)
		})
	}
}

func TestString(t *testing.T) {
	require.Equal(t, "1.0.0 (0123456789ab, 2026-12-01) go1.26", Info{Version: "1.0.0", Commit: "0123456789abcdef", Date: "2026-12-01", Go: "go1.26"}.String())
	require.Equal(t, "1.0.0 go1.26", Info{Version: "1.0.0", Go: "go1.26"}.String())
}
