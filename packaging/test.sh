#!/usr/bin/env bash
# test.sh: every test that this machine can run. Its last line says which were not run, and why.
# Arguments are packages (default: all). TESTFLAGS is handed to go test.
set -euo pipefail
cd "$(dirname "$0")/.."
read -r -a flags <<<"${TESTFLAGS:-}"
(($# > 0)) || set -- ./...

go test "${flags[@]}" "$@"
# At its full length only without the race detector, under which the database is many times slower.
[[ " ${flags[*]} " != *' -race '* ]] || go test -timeout 20m -run '^TestOneWinner$' ./hub

# The tests that take a whole user manager down and up are in files with the tag root; all are named TestRoot….
mapfile -t files < <(grep -rlE --include='*_test.go' '^//go:build .*\broot\b' . | xargs -r grep -lE '^func TestRoot' | sort)
mapfile -t packages < <(((${#files[@]} == 0)) || dirname "${files[@]}" | sort -u)
if ((${#packages[@]} == 0)); then
  echo "test: all passed"
elif ((EUID == 0)); then
  go test -tags root -run '^TestRoot' "${flags[@]}" "${packages[@]}"
  echo "test: all passed, root-only tests included"
else
  names=$(grep -hoE '^func TestRoot\w*' "${files[@]}" | sed 's/^func //' | sort | paste -sd ' ')
  echo "test: all passed; not run, because they need root where PID 1 is not systemd (a container): $names"
fi
