#!/usr/bin/env bash
# test.sh: every test that this machine can run. Its last line says which were not run, and why.
# Arguments are packages (default: all). TESTFLAGS is handed to go test.
set -euo pipefail
cd "$(dirname "$0")/.."
read -r -a flags <<<"${TESTFLAGS:-}"
(($# > 0)) || set -- ./...

tests() { grep -hoE "^func $1"'\w*' "${@:2}" | sed 's/^func //' | sort | paste -sd ' '; }
missed=""

# The tests that drive a real coding agent are in files of their own, each of which asks for the agent's program. What goes
# wrong with it fails them; only a missing npm has them skipped.
agents=0
packaging/agents.sh >/dev/null || agents=$?
if ((agents == 69)); then
  mapfile -t files < <(grep -rlE --include='*_test.go' '\bcodingagent\.Need\(' .)
  ((${#files[@]} == 0)) || missed+="; not run, because they need npm, which installs coding agents: $(tests Test "${files[@]}")"
fi

go test "${flags[@]}" "$@"
# At its full length only without the race detector, under which the database is many times slower.
[[ " ${flags[*]} " != *' -race '* ]] || go test -timeout 20m -run '^TestOneWinner$' ./hub

# The tests that take a whole user manager down and up are in files with the tag root; all are named TestRoot….
all="all passed"
mapfile -t files < <(grep -rlE --include='*_test.go' '^//go:build .*\broot\b' . | xargs -r grep -lE '^func TestRoot' | sort)
mapfile -t packages < <(((${#files[@]} == 0)) || dirname "${files[@]}" | sort -u)
if ((${#packages[@]} > 0)); then
  if ((EUID == 0)); then
    go test -tags root -run '^TestRoot' "${flags[@]}" "${packages[@]}"
    all+=", root-only tests included"
  else
    missed+="; not run, because they need root where PID 1 is not systemd (a container): $(tests TestRoot "${files[@]}")"
  fi
fi
echo "test: $all$missed"
