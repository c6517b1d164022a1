//go:build linux

// Package packaging holds the packages against what an administrator expects of them: what is in them and what is not,
// that a commit gives the same bytes each time, and that systemd takes their units. It holds tests only.
package packaging

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// described is a version as git describe words it, and packaged what a package makes of it.
const (
	described = "1.2.3-4-gabcdef0"
	packaged  = "1.2.3+4.gabcdef0"
)

var scratch string

func TestMain(m *testing.M) {
	// The mode of a file in a package is nobody's own choice.
	syscall.Umask(0o077)
	var err error
	if scratch, err = os.MkdirTemp("", "gaia-packages-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := os.RemoveAll(scratch); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// pack makes both packages of a version in a folder of its own, and returns their paths.
func pack(name, version string, env ...string) (deb, rpm string, err error) {
	build := filepath.Join(scratch, name)
	cmd := exec.Command("make", "--silent", "package", "VERSION="+version, "BUILD="+build)
	cmd.Dir = ".."
	for _, v := range os.Environ() { // these tests are themselves run by make
		if k, _, _ := strings.Cut(v, "="); !slices.Contains([]string{"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "VERSION"}, k) {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("make package: %w\n%s", err, out)
	}
	debs, _ := filepath.Glob(filepath.Join(build, "package", "*.deb"))
	rpms, _ := filepath.Glob(filepath.Join(build, "package", "*.rpm"))
	if len(debs) != 1 || len(rpms) != 1 {
		return "", "", fmt.Errorf("not one package of each kind: %q %q", debs, rpms)
	}
	return debs[0], rpms[0], nil
}

type packages struct{ deb, rpm string }

// first are the packages that most tests look at.
var first = sync.OnceValues(func() (p packages, err error) {
	p.deb, p.rpm, err = pack("first", described)
	return p, err
})

func made(t *testing.T) packages {
	t.Helper()
	p, err := first()
	require.NoError(t, err)
	return p
}

func output(t *testing.T, program string, args ...string) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s: %s", cmd, &stderr)
	return string(out)
}

type entry struct {
	tar.Header
	data []byte
}

// archive reads a tar of a deb, data or control, by path.
func archive(t *testing.T, deb, which string) map[string]entry {
	t.Helper()
	files := map[string]entry{}
	r := tar.NewReader(strings.NewReader(output(t, "dpkg-deb", which, deb)))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		data, err := io.ReadAll(r)
		require.NoError(t, err)
		files[strings.TrimPrefix(path.Clean(h.Name), "./")] = entry{*h, data}
	}
}

// common are the files of both packages, manual pages apart.
var common = []string{
	"usr/bin/gaia", "usr/bin/gaia-conductor", "usr/bin/gaia-hub", "usr/bin/gaia-session",
	"usr/lib/systemd/catalog/gaia.catalog",
	"usr/lib/systemd/user/gaia-conductor@.service", "usr/lib/systemd/user/gaia-hub.service", "usr/lib/systemd/user/gaia-hub.socket",
	"usr/lib/systemd/user/gaia-reap@.service", "usr/lib/systemd/user/gaia-reap@.timer", "usr/lib/systemd/user/gaia.slice",
	"usr/share/bash-completion/completions/gaia", "usr/share/fish/vendor_completions.d/gaia.fish",
	"usr/share/dbus-1/interfaces/org.gaia.Conductor1.xml",
	"usr/share/doc/gaia/admin.md", "usr/share/doc/gaia/developer.md", "usr/share/doc/gaia/machine.md", "usr/share/doc/gaia/operator.md",
	"usr/share/doc/gaia/pictures/attach.svg", "usr/share/doc/gaia/pictures/board.svg", "usr/share/doc/gaia/pictures/status.svg",
	"usr/share/doc/gaia/NEWS.gz", "usr/share/doc/gaia/gaia.conf", "usr/share/doc/gaia/openapi.yaml", "usr/share/doc/gaia/third-party.gz",
}

// aliases are the second names of manual pages: people ask for the page of a file by the name of the file.
var aliases = map[string]string{
	"usr/share/man/man5/conductor.toml.5.gz": "gaia-conductor.toml.5.gz",
	"usr/share/man/man5/hub.toml.5.gz":       "gaia-hub.toml.5.gz",
	"usr/share/man/man5/machine.toml.5.gz":   "gaia-machine.toml.5.gz",
}

func expected(t *testing.T, more ...string) []string {
	t.Helper()
	pages, err := filepath.Glob("../man/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	names := slices.Concat(common, more, slices.Collect(maps.Keys(aliases)))
	for _, p := range pages {
		name := strings.TrimSuffix(filepath.Base(p), ".md")
		names = append(names, "usr/share/man/man"+name[len(name)-1:]+"/"+name+".gz")
	}
	slices.Sort(names)
	return names
}

func modeOf(name string) int64 {
	if strings.HasPrefix(name, "usr/bin/") {
		return 0o755
	}
	return 0o644
}

func TestDeb(t *testing.T) {
	t.Parallel()
	p := made(t)
	require.Equal(t, "gaia_"+packaged+"_"+runtime.GOARCH+".deb", filepath.Base(p.deb))
	var names []string
	for name, f := range archive(t, p.deb, "--fsys-tarfile") {
		require.Equal(t, []any{"root", "root", 0, 0}, []any{f.Uname, f.Gname, f.Uid, f.Gid}, name)
		if f.Typeflag == tar.TypeDir {
			require.EqualValues(t, 0o755, f.Mode, name)
			continue
		}
		names = append(names, name)
		if to, ok := aliases[name]; ok {
			require.EqualValues(t, tar.TypeSymlink, f.Typeflag, name)
			require.Equal(t, to, f.Linkname, name)
			continue
		}
		require.EqualValues(t, tar.TypeReg, f.Typeflag, name)
		require.Equal(t, modeOf(name), f.Mode, name)
		if strings.HasSuffix(name, ".gz") {
			z, err := gzip.NewReader(bytes.NewReader(f.data))
			require.NoError(t, err, name)
			require.True(t, z.ModTime.IsZero() && z.Name == "", "%s: as of gzip -n", name)
			text, err := io.ReadAll(z)
			require.NoError(t, err, name)
			require.NotEmpty(t, text, name)
		}
	}
	slices.Sort(names)
	require.Equal(t, expected(t, "usr/share/doc/gaia/copyright", "usr/share/doc/gaia/changelog.gz", "usr/share/lintian/overrides/gaia",
		"usr/share/zsh/vendor-completions/_gaia"), names)

	// Nothing is run, and nothing is a conffile: units belong to users, and systemd has a trigger for the catalog.
	control := archive(t, p.deb, "--ctrl-tarfile")
	require.ElementsMatch(t, []string{"control", "md5sums"}, slices.DeleteFunc(keys(control), func(n string) bool { return n == "." }))
	for _, line := range []string{
		"Package: gaia", "Version: " + packaged, "Architecture: " + runtime.GOARCH,
		"Depends: git (>= 1:2.34), tmux (>= 3.3), systemd (>= 252), dbus-user-session, procps",
		"Suggests: bash-completion",
	} {
		require.Contains(t, string(control["control"].data), line+"\n")
	}
}

func keys(m map[string]entry) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	return names
}

func TestRpm(t *testing.T) {
	t.Parallel()
	p := made(t)
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	require.Equal(t, "gaia-"+packaged+"-1."+arch+".rpm", filepath.Base(p.rpm))
	var names []string
	for line := range strings.Lines(output(t, "rpm", "-qp", "--queryformat", `[%{FILEMODES:octal} %{FILEUSERNAME} %{FILEGROUPNAME} %{FILENAMES}\n]`, p.rpm)) {
		mode, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, ok := strings.CutPrefix(rest, "root root /")
		require.True(t, ok, line)
		if strings.HasPrefix(mode, "40") {
			require.Equal(t, "40755", mode, name)
			require.Regexp(t, `/gaia(/|$)`, name, "no folder of somebody else's")
			continue
		}
		names = append(names, name)
		if _, ok := aliases[name]; ok {
			require.True(t, strings.HasPrefix(mode, "120"), "%s: %s is no link", name, mode)
			continue
		}
		require.Equal(t, fmt.Sprintf("100%o", modeOf(name)), mode, name)
	}
	slices.Sort(names)
	require.Equal(t, expected(t, "usr/share/licenses/gaia/LICENSE", "usr/share/zsh/site-functions/_gaia"), names)
	require.Empty(t, output(t, "rpm", "-qp", "--scripts", "--triggers", "--filetriggers", "--configfiles", p.rpm))
	requires := output(t, "rpm", "-qp", "--requires", p.rpm)
	for _, line := range []string{"git-core >= 2.34", "tmux >= 3.3", "systemd >= 252"} {
		require.Contains(t, requires, line+"\n")
	}
	require.Equal(t, "bash-completion\n", output(t, "rpm", "-qp", "--suggests", p.rpm))
}

// In another time zone, language and folder, by the same commit.
func TestPackagesAreReproducible(t *testing.T) {
	t.Parallel()
	p := made(t)
	deb, rpm, err := pack("another", described, "TZ=Asia/Tokyo", "LC_ALL=C", "LANG=C")
	require.NoError(t, err)
	for one, other := range map[string]string{p.deb: deb, p.rpm: rpm} {
		a, err := os.ReadFile(one)
		require.NoError(t, err)
		b, err := os.ReadFile(other)
		require.NoError(t, err)
		require.True(t, bytes.Equal(a, b), "%s and %s differ", one, other)
		require.Equal(t, filepath.Base(one), filepath.Base(other))
	}
}

// unpack extracts the deb, and returns the folder and the files.
func unpack(t *testing.T) (string, map[string]entry) {
	t.Helper()
	p := made(t)
	root := t.TempDir()
	output(t, "dpkg-deb", "--extract", p.deb, root)
	return root, archive(t, p.deb, "--fsys-tarfile")
}

func TestPackagedUnits(t *testing.T) {
	t.Parallel()
	root, files := unpack(t)
	program := regexp.MustCompile(`(?m)^Exec\w+="/([^"]*)"`)
	manual := regexp.MustCompile(`man:([a-z.-]+)\(([1-8])\)`)
	verify := []string{"--user", "verify", "--man=no"}
	for name, f := range files {
		if f.Typeflag == tar.TypeDir || path.Dir(name) != "usr/lib/systemd/user" {
			continue
		}
		text := string(f.data)
		require.NotContains(t, text, "Environment=", "%s: a package is for every user's default place", name)
		for _, m := range program.FindAllStringSubmatch(text, -1) {
			require.Contains(t, files, m[1], name)
		}
		pages := manual.FindAllStringSubmatch(text, -1)
		require.NotEmpty(t, pages, name)
		for _, m := range pages {
			require.Contains(t, files, fmt.Sprintf("usr/share/man/man%s/%s.%s.gz", m[2], m[1], m[2]), name)
		}
		// Systemd looks for the programs, which are not installed here, so it is shown where they are.
		at := filepath.Join(root, name)
		require.NoError(t, os.WriteFile(at, []byte(strings.ReplaceAll(text, `"/usr/bin/`, `"`+root+`/usr/bin/`)), 0o600))
		verify = append(verify, at)
	}
	require.Len(t, verify, 3+6)
	cmd := exec.CommandContext(t.Context(), "systemd-analyze", verify...)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, string(out))
}

func TestPackagedFilesAreTakenByTheirReaders(t *testing.T) {
	t.Parallel()
	root, files := unpack(t)
	require.True(t, strings.HasPrefix(output(t, filepath.Join(root, "usr/bin/gaia"), "version"), "gaia "+described+" "))
	output(t, "journalctl", "--root="+root, "--update-catalog")
	require.FileExists(t, filepath.Join(root, "var/lib/systemd/catalog/database"))
	require.NoError(t, xml.Unmarshal(files["usr/share/dbus-1/interfaces/org.gaia.Conductor1.xml"].data, new(struct{})))
	for name, begins := range map[string]string{
		"usr/share/bash-completion/completions/gaia":    "# bash completion",
		"usr/share/zsh/vendor-completions/_gaia":        "#compdef gaia\n",
		"usr/share/fish/vendor_completions.d/gaia.fish": "# fish completion for gaia",
	} {
		require.True(t, strings.HasPrefix(string(files[name].data), begins), name)
	}
}
