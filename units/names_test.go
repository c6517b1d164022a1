package units

import (
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gaia/domain"
)

func TestNewNames(t *testing.T) {
	t.Parallel()
	for prefix, ok := range map[string]bool{
		"": true, "gaia": true, "t0": true, "a234567890123456": true,
		"a2345678901234567": false, "Gaia": false, "0a": false, "a-b": false, "a_b": false, "a.b": false, "ä": false, "a\n": false, "a@": false,
	} {
		n, err := NewNames(prefix)
		if !ok {
			require.ErrorIs(t, err, domain.ErrInvalid, "%q", prefix)
			continue
		}
		require.NoError(t, err, "%q", prefix)
		if prefix == "" {
			require.Equal(t, "gaia", n.Prefix)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	n, err := NewNames("demo")
	require.NoError(t, err)
	require.Equal(t, "demo-conductor@shop-12.service", n.Conductor("shop-12"))
	require.Equal(t, "demo-hub.service", n.Hub())
	require.Equal(t, "demo-hub.socket", n.HubSocket())
	require.Equal(t, "demo.slice", n.Slice())
	require.Equal(t, "demo-run-shop-12-3.service", n.Run("shop-12", 3))
	require.Equal(t, "org.demo.Conductor1.shop_12", n.BusName("shop-12"))
	require.Equal(t, "demo-reap@shop.timer", n.ReapTimer("shop"))
}

func TestParseRunTakesNothingElse(t *testing.T) {
	t.Parallel()
	n, _ := NewNames("")
	for _, u := range []string{
		"", "gaia-run-.service", "gaia-run-shop.service", "gaia-run-shop-.service", "gaia-run-shop-0.service", "gaia-run-shop-01.service",
		"gaia-run-shop-+1.service", "gaia-run-shop--1.service", "gaia-run-shop-1.scope", "gaia-run-Shop-1.service", "gaia-run-shop-x.service",
		"gaia-run-shop-99999999999999999999.service", "gaia-run-1-1.service", "gaia2-run-shop-1.service", "xgaia-run-shop-1.service", "gaia-run-sh/op-1.service",
	} {
		_, _, ok := n.ParseRun(u)
		require.False(t, ok, u)
	}
}

// Two instances of which one's name starts with the other's, and ends in what looks like a run's number.
func TestRunsOfTwoInstancesAreNeverMixedUp(t *testing.T) {
	t.Parallel()
	n, _ := NewNames("")
	require.True(t, n.IsRun("shop", n.Run("shop", 12)))
	require.True(t, n.IsRun("shop-12", n.Run("shop-12", 3)))
	require.False(t, n.IsRun("shop", n.Run("shop-12", 3)))
	require.False(t, n.IsRun("shop-12", n.Run("shop", 12)))

	rapid.Check(t, func(t *rapid.T) {
		slug := rapid.StringMatching(`[a-z][a-z0-9]{0,4}(-[a-z0-9]{1,4}){0,3}`)
		number := rapid.IntRange(1, 1<<31)
		a, b := slug.Draw(t, "a"), slug.Draw(t, "b")
		i, j := number.Draw(t, "i"), number.Draw(t, "j")
		instance, got, ok := n.ParseRun(n.Run(a, i))
		if !ok || instance != a || got != i {
			t.Fatalf("ParseRun(Run(%q, %d)) = %q, %d, %v", a, i, instance, got, ok)
		}
		if (n.Run(a, i) == n.Run(b, j)) != (a == b && i == j) {
			t.Fatalf("one unit for %s/%d and %s/%d", a, i, b, j)
		}
		if (n.BusName(a) == n.BusName(b)) != (a == b) {
			t.Fatalf("one bus name for %s and %s", a, b)
		}
		if m, err := path.Match(n.RunPattern(a), n.Run(a, i)); !m || err != nil {
			t.Fatalf("%s does not match %s", n.RunPattern(a), n.Run(a, i))
		}
		if a != b && n.IsRun(a, n.Run(b, j)) {
			t.Fatalf("run %d of %s is taken for one of %s", j, b, a)
		}
		if err := checkUnit(n.Run(a, i)); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCheckUnit(t *testing.T) {
	t.Parallel()
	for _, u := range []string{"gaia-hub.service", "gaia-conductor@shop.service", "gaia-conductor@.service", `a\x2db.service`, "gaia.slice"} {
		require.NoError(t, checkUnit(u), u)
	}
	for _, u := range []string{
		"", "gaia", "gaia-hub", "-", "a b.service", "../x.service", "a/b.service", "a\x00.service", "a\n.service", "ä.service", "\xff.service",
		"a@b@c.service", "gaia-run-*-1.service", "a.exe", "$(id).service", strings.Repeat("a", 250) + ".service",
	} {
		require.ErrorIs(t, checkUnit(u), domain.ErrInvalid, "%q", u)
	}
}

func TestObjectPathRoundTrip(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, "/org/freedesktop/systemd1/unit/gaia_2drun_2dshop_2d12_2eservice", objectPath("gaia-run-shop-12.service"))
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.StringMatching(`[A-Za-z0-9:_.\\@-]{1,40}\.service`).Draw(t, "unit")
		if got := unitOf(objectPath(unit)); got != unit {
			t.Fatalf("%q became %q", unit, got)
		}
	})
	require.Empty(t, unitOf("/org/freedesktop/systemd1/job/12"))
	require.Empty(t, unitOf("/org/freedesktop/systemd1/unit/a/b"))
}

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"252.38-1~deb12u1": 252, "v256.7": 256, "257": 257, "254~rc1": 254} {
		got, err := parseVersion(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"", "v", "systemd", "99999999999999999999"} {
		_, err := parseVersion(text)
		require.Error(t, err)
	}
}
