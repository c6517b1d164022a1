//go:build linux && (boot || vm)

package boot

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// release is the Debian that is booted. By default it is the oldest that Gaia is for.
var release = cmp.Or(os.Getenv("GAIA_BOOT_RELEASE"), "bookworm")

const (
	// cache holds the systems as they are before Gaia comes; a test works on a copy. It may be removed at any time.
	cache = "/var/cache/gaia-boot"
	// include is what the smallest Debian lacks to be one that people log in to.
	include = "systemd-sysv,dbus,libpam-systemd"
)

// need skips a test that this machine cannot run, and says what it takes. The prefix is what packaging/test.sh looks for.
func need(t *testing.T, ok bool, format string, args ...any) {
	t.Helper()
	if !ok {
		t.Skipf("not run: "+format, args...)
	}
}

// needPrograms skips the test where one of the programs is missing.
func needPrograms(t *testing.T, kind string, programs ...string) {
	t.Helper()
	for _, name := range programs {
		_, err := exec.LookPath(name)
		need(t, err == nil, "%s is missing; install it with: packaging/deps.sh --%s", name, kind)
	}
}

// debs are the packages of two versions, the older first.
func debs(t *testing.T) [2]string {
	t.Helper()
	var out [2]string
	dir := t.TempDir()
	for i, version := range []string{"1.0.0", "1.1.0"} {
		build := filepath.Join(dir, version)
		cmd := exec.CommandContext(t.Context(), "make", "--silent", "package", "VERSION="+version, "BUILD="+build)
		cmd.Dir = "../.."
		for _, v := range os.Environ() { // this test is itself run by make
			if k, _, _ := strings.Cut(v, "="); !slices.Contains([]string{"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "VERSION"}, k) {
				cmd.Env = append(cmd.Env, v)
			}
		}
		said, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", said)
		found, err := filepath.Glob(filepath.Join(build, "package", "*.deb"))
		require.NoError(t, err)
		require.Len(t, found, 1)
		out[i] = found[0]
	}
	return out
}

// mirror is the repository of Debian that this machine's apt is set up for; the test is skipped where there is none.
func mirror(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "apt-get", "indextargets", "--format", "$(REPO_URI)",
		"Created-By: Packages", "Label: Debian", "Component: main").Output()
	uri, _, _ := strings.Cut(string(out), "\n")
	need(t, err == nil && uri != "", "apt knows no mirror of Debian; name one in /etc/apt/sources.list and run apt-get update")
	return uri
}

// reachable skips the test where the mirror does not answer.
func reachable(t *testing.T, mirror string) {
	t.Helper()
	client := http.Client{Timeout: 30 * time.Second}
	answer, err := client.Head(mirror + "dists/" + release + "/InRelease")
	need(t, err == nil, "the mirror of Debian does not answer: %v", err)
	answer.Body.Close()
	need(t, answer.StatusCode == http.StatusOK, "the mirror of Debian does not have %s: %s", release, answer.Status)
}

// workspace is a folder beside the cached systems, on the same file system. What tests have left that were killed is
// removed: a folder whose lock is free is nobody's.
func workspace(t *testing.T) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(cache, 0o755))
	defer lock(t, filepath.Join(cache, "lock"))()
	left, err := filepath.Glob(filepath.Join(cache, "run-*"))
	require.NoError(t, err)
	for _, dir := range left {
		f, err := os.Open(dir)
		require.NoError(t, err)
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			forget(dir)
			require.NoError(t, os.RemoveAll(dir))
		}
		f.Close()
	}
	dir, err := os.MkdirTemp(cache, "run-")
	require.NoError(t, err)
	unlock := lock(t, dir)
	t.Cleanup(func() {
		forget(dir)
		require.NoError(t, os.RemoveAll(dir))
		unlock()
	})
	return dir
}

// lock waits for a lock on a file or folder, and returns what gives it back.
func lock(t *testing.T, path string) (unlock func()) {
	t.Helper()
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		f, err = os.Create(path)
	}
	require.NoError(t, err)
	require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	return func() { f.Close() }
}

// system copies a Debian to the folder, with everything beside it, but not installed, that the package depends on, so that
// apt installs it there without a network. kind is what it is for, and more are steps that change the Debian before it is cached.
func system(t *testing.T, kind, to, deb, mirror string, more ...[]string) {
	t.Helper()
	depends := strings.TrimSpace(output(t, "dpkg-deb", "--field", deb, "Depends"))
	steps := append([][]string{
		{"apt-get", "-q", "update"},
		{"apt-get", "-q", "--yes", "--no-install-recommends", "--download-only", "satisfy", depends},
	}, more...)
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %s %q", release, include, mirror, steps))
	kept := filepath.Join(cache, kind+"-"+hex.EncodeToString(sum[:8]))

	defer lock(t, filepath.Join(cache, "lock"))()
	if _, err := os.Stat(kept); errors.Is(err, os.ErrNotExist) {
		reachable(t, mirror)
		old, err := filepath.Glob(filepath.Join(cache, kind+"-*"))
		require.NoError(t, err)
		for _, dir := range append(old, kept+".new") {
			require.NoError(t, os.RemoveAll(dir))
		}
		t.Logf("making a Debian in %s, which is kept", kept)
		debootstrap(t, kept+".new", mirror, steps)
		require.NoError(t, os.Rename(kept+".new", kept))
	}
	output(t, "cp", "--archive", "--reflink=auto", "--", kept, to)
}

func debootstrap(t *testing.T, root, mirror string, steps [][]string) {
	t.Helper()
	output(t, "debootstrap", "--variant=minbase", "--include="+include, release, root, mirror)
	for _, step := range steps {
		in(t, root, []string{"--resolv-conf=bind-host", "--bind-ro=/etc/ssl"}, step...)
	}
	// An empty machine id is drawn at the first boot.
	for name, text := range map[string]string{"machine-id": "", "hostname": "box\n", "resolv.conf": ""} {
		require.NoError(t, os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o444))
	}
}

// in runs a program in a system that is not booted.
func in(t *testing.T, root string, options []string, argv ...string) string {
	t.Helper()
	args := append([]string{
		"--quiet", "--register=no", "--keep-unit", "--pipe", "--directory=" + root,
		"--setenv=DEBIAN_FRONTEND=noninteractive", "--setenv=LC_ALL=C.UTF-8",
	}, options...)
	for _, name := range []string{"http_proxy", "https_proxy", "no_proxy"} {
		if v, ok := os.LookupEnv(name); ok {
			args = append(args, "--setenv="+name+"="+v)
		}
	}
	return output(t, "systemd-nspawn", append(append(args, "--"), argv...)...)
}

// output runs a program on the machine that runs the test.
func output(t *testing.T, program string, args ...string) string {
	t.Helper()
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stderr = &stderr
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.Output()
	require.NoError(t, err, "%s\n%s%s", cmd, out, &stderr)
	return string(out)
}
