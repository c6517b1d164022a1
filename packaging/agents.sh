#!/usr/bin/env bash
# agents.sh: installs the coding agents that the tests and the demo drive, in the versions of agents/package-lock.json,
# and prints the folder of their programs. They go into a cache outside the tree, once for each lock file; where they are
# there already nothing is done. Their install scripts are not run, and the registry is the one that npm is set up for.
# Exit status 69: something is to be installed, and npm is missing.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/agents

# Tests that are started by root run as an ordinary user, who cannot look into root's home.
if ((EUID == 0)); then cache=/var/cache/gaia-agents; else cache=${XDG_CACHE_HOME:-$HOME/.cache}/gaia/agents; fi
id=$(cat "$here/package.json" "$here/package-lock.json" | sha256sum)
dir=$cache/${id:0:16}

if [[ ! -d $dir ]]; then
  type -P npm >/dev/null || { echo "agents: npm is missing, which installs the coding agents: sudo apt-get install npm" >&2; exit 69; }
  umask 022
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  flock 9
  if [[ ! -d $dir ]]; then
    echo "agents: installing into $dir" >&2
    new=$(mktemp -d "$cache/new.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    chmod 755 "$new"
    cp "$here/package.json" "$here/package-lock.json" "$new"
    npm ci --prefix "$new" --ignore-scripts --omit-lockfile-registry-resolved --no-audit --no-fund --loglevel=error >&2
    # The package's own program is a stand-in until its install script has put the native one in its place.
    for package in "$new"/node_modules/@anthropic-ai/claude-code-linux-*; do
      [[ ! -x $package/claude ]] || ln -sfn "../${package#"$new/node_modules/"}/claude" "$new/node_modules/.bin/claude"
    done
    mv "$new" "$dir"
  fi
fi
echo "$dir/node_modules/.bin"
