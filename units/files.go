package units

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/template"
	"unicode"

	"gaia/domain"
)

//go:embed templates/*.in
var templateFiles embed.FS

var templates = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{
		"program": program, "env": environmentLine,
	}).ParseFS(templateFiles, "templates/*.in"))
})

// Paths says where an installation lives, as far as unit files need it.
type Paths struct {
	// Bin is the folder of the binaries.
	Bin string
	// Env is written as Environment= lines: GAIA_PREFIX, and GAIA_HOME where that is set.
	Env map[string]string
}

// Check refuses what a unit cannot say. Systemd takes no quote, backslash or control character in a program's path, cannot
// keep some others in a run's (see RunUnit), and drops a variable whose value has a control character, after which the unit
// would run as another installation.
func (p Paths) Check() error {
	if !filepath.IsAbs(p.Bin) || !clean(p.Bin) || strings.ContainsAny(p.Bin, "\"'\\"+lostInCommands) || strings.ContainsFunc(p.Bin, unicode.IsControl) {
		return fmt.Errorf("%w: systemd runs no program from %q: the folder must be absolute, without quotes, backslashes, $, ; and control characters", domain.ErrInvalid, p.Bin)
	}
	for k, v := range p.Env {
		if !envName().MatchString(k) || !clean(v) || strings.ContainsFunc(v, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }) {
			return fmt.Errorf("%w: a unit file cannot set %s to %q", domain.ErrInvalid, k, v)
		}
	}
	return nil
}

// stamp starts the first line of every unit file of ours. The digest of the other lines follows: a copy whose lines
// still have it was written by some version of Gaia and not touched since.
const stamp = "# Written by Gaia, to be changed by: systemctl --user edit. sha256 "

// Files returns the text of every unit file, by file name.
func Files(n Names, p Paths) map[string][]byte {
	out := map[string][]byte{}
	data := struct {
		Names
		Paths
	}{n, p}
	for _, f := range []struct{ template, name string }{
		{"hub.service.in", n.Hub()},
		{"hub.socket.in", n.HubSocket()},
		{"conductor@.service.in", n.Conductor("")},
		{"reap@.service.in", n.Reap("")},
		{"reap@.timer.in", n.ReapTimer("")},
		{"slice.in", n.Slice()},
	} {
		var b bytes.Buffer
		if err := templates().ExecuteTemplate(&b, f.template, data); err != nil {
			panic(err) // the templates are part of the program, and writing to memory does not fail
		}
		out[f.name] = sealed(b.Bytes())
	}
	return out
}

func sealed(body []byte) []byte {
	return slices.Concat([]byte(stamp+digest(body)+"\n"), body)
}

func digest(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:16])
}

// errForeign: a unit file that Gaia did not write.
var errForeign = errors.New("not written by Gaia")

// pristine reports whether a unit file of ours is as it was written.
func pristine(text []byte) (bool, error) {
	first, body, _ := bytes.Cut(text, []byte("\n"))
	sum, ok := strings.CutPrefix(string(first), stamp)
	if !ok {
		return false, errForeign
	}
	return sum == digest(body), nil
}

// program renders the path of a binary as the first word of a command line: quoted, specifiers off.
func program(bin, name string) string { return quote(filepath.Join(bin, name)) }

// environmentLine renders the assignments in a fixed order, one per line.
func environmentLine(env map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(env)) {
		b.WriteString("Environment=" + quote(k+"="+env[k]) + "\n")
	}
	return b.String()
}

var quoter = strings.NewReplacer(`\`, `\\`, `"`, `\"`, `%`, `%%`, "\n", `\n`, "\t", `\t`)

// quote renders s as one quoted word of a unit file.
func quote(s string) string { return `"` + quoter.Replace(s) + `"` }
