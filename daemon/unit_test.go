package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"gaia/domain"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestNothingIsEndedOrBegunWithoutKnowledge holds for every view that there can be.
func TestNothingIsEndedOrBegunWithoutKnowledge(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := func(name string) bool { return rapid.Bool().Draw(t, name) }
		v := view{
			answered: b("answered"), known: b("known"),
			fate: domain.Fate{
				State:     rapid.SampledFrom([]domain.RunState{domain.RunClaimed, domain.RunRunning, domain.RunDone, domain.RunFailed, domain.RunExpired}).Draw(t, "state"),
				Finalized: b("finalised"),
			},
			session:   rapid.SampledFrom([]domain.SessionState{domain.SessionAlive, domain.SessionGone, domain.SessionUnknown}).Draw(t, "session"),
			goneTwice: b("gone twice"), folder: b("folder"), spec: b("spec"), started: b("started"), otherBoot: b("other boot"),
			tree: b("tree"), record: b("record"), verdict: b("verdict"), old: b("old"),
			busy: b("busy"), waits: b("waits"), graceOver: b("grace over"), idle: b("idle"), stalled: b("stalled"), mute: b("mute"),
		}
		a := decide(v)
		acts := a == actDispatch || a == actStarted || a == actReport || a == actStall || a == actQuestion || a == actFinalise || a == actClose
		switch {
		case v.busy || !v.answered || !v.known:
			require.False(t, acts, "without the hub's word")
		case v.fate.State.Live() && a == actReport && !v.verdict:
			require.Equal(t, domain.SessionGone, v.session, "only a session that is gone is reported dead")
			require.True(t, v.record || v.otherBoot || v.goneTwice, "a death has a proof or a second witness")
		}
		if a == actDispatch {
			require.True(t, v.fate.State.Live() && v.folder && !v.waits)
			require.False(t, v.session == domain.SessionGone && v.started, "a run is started once")
		}
		if a == actFinalise || a == actClose {
			require.True(t, v.fate.State.Ended())
			if v.fate.State == domain.RunDone && !v.fate.Finalized && v.session != domain.SessionGone {
				require.True(t, v.graceOver || v.idle, "an agent that may be there has its grace to end its turn")
			}
		}
		if a == actDiscard {
			require.False(t, v.spec || v.session == domain.SessionAlive)
		}
	})
}

func TestPressure(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, file, text, want string
		disk                   uint64
		load                   int
	}{
		{name: "nothing can be read"},
		{name: "disk", disk: 1 << 62, want: "less than min_free_disk (4.0 EiB)"},
		{name: "another disk", disk: 1, want: "/proc/no/such has 0 B free"},
		{name: "stall", file: "pressure/memory", text: "some avg10=90.00 avg60=0 avg300=0 total=1\nfull avg10=35.10 avg60=0 avg300=0 total=1\n", want: "waited 35% of the last 10 s"},
		{name: "some stall", file: "pressure/memory", text: "some avg10=90.00 avg60=0 avg300=0 total=1\nfull avg10=1.10 avg60=0 avg300=0 total=1\n"},
		{name: "memory", file: "meminfo", text: "MemTotal: 1000000 kB\nMemFree: 1 kB\nMemAvailable: 10000 kB\n", want: "9.8 MiB available of 976.6 MiB"},
		{name: "enough memory", file: "meminfo", text: "MemTotal: 1000000 kB\nMemAvailable: 500000 kB\n"},
		{name: "load", file: "loadavg", text: "99999.5 1 1 1/1 1\n", load: 8, want: "load average 99999.5"},
		{name: "load without limit", file: "loadavg", text: "99999.5 1 1 1/1 1\n"},
		{name: "garbage", file: "loadavg", text: "\x00", load: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := Host{Proc: t.TempDir(), Disks: []string{filepath.Join(t.TempDir(), "not", "yet", "there"), "/proc/no/such"}}
			if c.file != "" {
				path := filepath.Join(h.Proc, c.file)
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
				require.NoError(t, os.WriteFile(path, []byte(c.text), 0o644))
			}
			got := h.Pressure(c.disk, c.load)
			if c.want == "" {
				require.Empty(t, got)
			} else {
				require.Contains(t, got, c.want)
				require.Equal(t, c.disk == 0, strings.HasPrefix(got, domain.MachineBusy), "only a disk waits for a person: %s", got)
			}
		})
	}
}
