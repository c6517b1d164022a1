// Package version knows which build of Gaia this is. The build sets the three values by the linker; a binary built
// without that, by go install for one, falls back on what the Go toolchain noted in it.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Set by -ldflags "-X gaia/internal/version.version=…". Empty in a build that did not.
var version, commit, date string

// Info is what is known about this build. Fields that nobody knows are empty, except Version.
type Info struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Date    string `json:"date"`
	Go      string `json:"go"`
}

// Get returns what is known about this build.
func Get() Info {
	info, _ := debug.ReadBuildInfo()
	return get(version, commit, date, info)
}

// String is one line for a person.
func (i Info) String() string {
	s := i.Version
	if i.Commit != "" {
		s += fmt.Sprintf(" (%.12s", i.Commit)
		if i.Date != "" {
			s += ", " + i.Date
		}
		s += ")"
	}
	return s + " " + i.Go
}

// Version is the version alone, as it stands in registrations and user agents.
func Version() string { return Get().Version }

func get(version, commit, date string, build *debug.BuildInfo) Info {
	i := Info{Version: version, Commit: commit, Date: date, Go: runtime.Version()}
	if build != nil {
		if i.Version == "" && build.Main.Version != "(devel)" {
			i.Version = build.Main.Version
		}
		for _, s := range build.Settings {
			switch {
			case s.Key == "vcs.revision" && i.Commit == "":
				i.Commit = s.Value
			case s.Key == "vcs.time" && i.Date == "":
				i.Date = s.Value
			}
		}
	}
	if i.Version == "" {
		i.Version = "0.0.0-dev"
	}
	return i
}
