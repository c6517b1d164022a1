//go:build root

package packaging

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRootLintian(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "lintian", "--allow-root", "--fail-on", "error,warning", made(t).deb)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, string(out))
}

// machine is a folder with dpkg's database of one in which what Gaia depends on is installed as it is here.
type machine struct {
	*testing.T
	root string
}

func newMachine(t *testing.T) machine {
	t.Helper()
	m := machine{t, t.TempDir()}
	for _, dir := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "home/ada/.config/systemd/user", "home/ada/.gaia"} {
		require.NoError(t, os.MkdirAll(filepath.Join(m.root, dir), 0o755))
	}
	depends := []string{"git", "tmux", "systemd", "dbus-user-session", "procps"}
	var status strings.Builder
	for _, name := range depends {
		status.WriteString(output(t, "dpkg-query", "--status", name) + "\n")
		for _, list := range []string{name, name + ":" + strings.TrimSpace(output(t, "dpkg", "--print-architecture"))} {
			m.write("var/lib/dpkg/info/"+list+".list", "/.\n")
		}
	}
	m.write("var/lib/dpkg/status", status.String())
	m.write("home/ada/.config/systemd/user/gaia-hub.service", "[Service]\nExecStart=/home/ada/hub\n")
	m.write("home/ada/.gaia/machine.toml", "user_id = \"ada\"\nhost_id = \"desk\"\n")
	return m
}

func (m machine) write(name, text string) {
	m.Helper()
	require.NoError(m, os.WriteFile(filepath.Join(m.root, name), []byte(text), 0o644))
}

func (m machine) dpkg(args ...string) string {
	m.Helper()
	return output(m.T, "dpkg", append([]string{"--root=" + m.root, "--log=/dev/null"}, args...)...)
}

// files describes every file outside of dpkg's own database.
func (m machine) files() map[string]string {
	m.Helper()
	files := map[string]string{}
	require.NoError(m, filepath.WalkDir(m.root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(m.root, p)
		if rel == "var/lib/dpkg" {
			return fs.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		files[rel] = info.Mode().String()
		if d.Type().IsRegular() {
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(data)
			files[rel] += " " + hex.EncodeToString(sum[:])
		}
		return nil
	}))
	return files
}

// TestRootInstallUpgradeDowngradePurge: what dpkg does with the package, on a machine on which a hub runs meanwhile.
func TestRootInstallUpgradeDowngradePurge(t *testing.T) {
	t.Parallel()
	older := made(t).deb
	newer, _, err := pack("newer", "1.3.0-rc1")
	require.NoError(t, err)
	m := newMachine(t)
	before := m.files()
	// Only /usr is a package's, and what was there is as it was.
	check := func(version string) {
		t.Helper()
		require.Equal(t, "ii  "+version, m.query())
		require.Empty(t, m.dpkg("--verify", "gaia"))
		now := m.files()
		for name, is := range before {
			require.Equal(t, is, now[name], name)
		}
		for name := range now {
			if _, old := before[name]; !old {
				require.True(t, name == "usr" || strings.HasPrefix(name, "usr/"), name)
			}
		}
		require.NoFileExists(t, filepath.Join(m.root, "usr/bin/gaia.dpkg-tmp"))
	}

	m.dpkg("--install", older)
	check(packaged)
	first := m.files()
	hub := m.hub()
	m.dpkg("--install", newer)
	check("1.3.0~rc1")
	require.NoError(t, hub.Process.Signal(syscall.Signal(0)), "an upgrade ends nothing")
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", hub.Process.Pid))
	require.NoError(t, err)
	require.Contains(t, exe, "(deleted)")
	m.dpkg("--force-downgrade", "--install", older)
	check(packaged)
	require.Equal(t, first, m.files())
	m.dpkg("--remove", "gaia")
	require.Equal(t, before, m.files())
	m.dpkg("--purge", "gaia")
	require.Empty(t, m.query())
	require.Equal(t, before, m.files())
	require.NoError(t, hub.Process.Signal(syscall.SIGTERM))
	require.NoError(t, hub.Wait())
}

// TestRootRPM: what rpm does with the package, in a folder that has nothing of what it depends on.
func TestRootRPM(t *testing.T) {
	t.Parallel()
	older := made(t).rpm
	_, newer, err := pack("newer-rpm", "1.3.0-rc1")
	require.NoError(t, err)
	m := machine{t, t.TempDir()}
	// Debian's rpm has a default of its own for the database.
	rpm := func(args ...string) string {
		t.Helper()
		return output(t, "rpm", append([]string{"--root=" + m.root, "--dbpath=/var/lib/rpm"}, args...)...)
	}
	rpm("--initdb")
	check := func(version string) map[string]string {
		t.Helper()
		require.Equal(t, "gaia "+version+"\n", rpm("--query", "--queryformat=%{NAME} %{VERSION}\n", "gaia"))
		require.Empty(t, rpm("--verify", "--nodeps", "gaia"))
		files := m.files()
		for name := range files {
			require.True(t, name == "." || name == "usr" || name == "var" || strings.HasPrefix(name, "usr/") || strings.HasPrefix(name, "var/lib"), name)
		}
		return files
	}
	usr := func(files map[string]string) []string {
		var names []string
		for name, is := range files {
			if strings.HasPrefix(name, "usr/") && !strings.HasPrefix(is, "d") {
				names = append(names, name+" "+is)
			}
		}
		slices.Sort(names)
		return names
	}
	rpm("--install", "--nodeps", older)
	first := check(packaged)
	rpm("--upgrade", "--nodeps", newer)
	check("1.3.0~rc1")
	rpm("--upgrade", "--nodeps", "--oldpackage", older)
	require.Equal(t, usr(first), usr(check(packaged)))
	rpm("--erase", "gaia")
	left := m.files()
	require.Empty(t, usr(left))
	for name := range left { // folders that belong to other packages stay
		require.False(t, strings.HasPrefix(name, "usr/") && strings.Contains(name, "gaia"), name)
	}
}

// query is the package's state and version, "" where dpkg does not know it.
func (m machine) query() string {
	m.Helper()
	out, err := exec.CommandContext(m.Context(), "dpkg-query", "--admindir="+filepath.Join(m.root, "var/lib/dpkg"),
		"--show", "--showformat=${db:Status-Abbrev} ${Version}", "gaia").Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// hub starts the installed hub and waits until it serves.
func (m machine) hub() *exec.Cmd {
	m.Helper()
	home := m.TempDir()
	cmd := exec.CommandContext(m.Context(), filepath.Join(m.root, "usr/bin/gaia-hub"))
	cmd.Env = []string{"HOME=" + home, "XDG_RUNTIME_DIR=" + home, "PATH=" + os.Getenv("PATH")}
	require.NoError(m, cmd.Start())
	require.Eventually(m, func() bool {
		_, err := os.Stat(filepath.Join(home, "gaia/hub.sock"))
		return err == nil
	}, 30*time.Second, 20*time.Millisecond)
	return cmd
}
