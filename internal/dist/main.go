// Command dist writes what an installation has beside its binaries and what only Gaia's code knows: the unit files and the
// description of the bus interface. They go below a root folder, to the places where systemd and D-Bus look for them. It
// must not write anything else, and nothing for one user.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"gaia/daemon"
	"gaia/units"
)

func main() {
	prefix := flag.String("prefix", "/usr", "where the installation is to be found when it is used")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: dist [-prefix PREFIX] ROOT")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := write(flag.Arg(0), *prefix); err != nil {
		fmt.Fprintf(os.Stderr, "dist: %v\n", err)
		os.Exit(1)
	}
}

func write(root, prefix string) error {
	names, err := units.NewNames("")
	if err != nil {
		return err
	}
	paths := units.Paths{Bin: filepath.Join(prefix, "bin")}
	if err := paths.Check(); err != nil {
		return err
	}
	bus, err := daemon.BusDescription(names.Prefix)
	if err != nil {
		return err
	}
	files := map[string][]byte{filepath.Join("share/dbus-1/interfaces", "org."+names.Prefix+".Conductor1.xml"): bus}
	for name, text := range units.Files(names, paths) {
		files[filepath.Join("lib/systemd/user", name)] = text
	}
	for name, text := range files {
		path := filepath.Join(root, prefix, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("make the folder of a file: %w", err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return fmt.Errorf("write a file: %w", err)
		}
	}
	return nil
}
