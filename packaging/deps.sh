#!/usr/bin/env bash
# deps.sh [--test | --lint | --agents | --boot | --vm]: makes sure that what Gaia needs at run time is installed, with --test also what its
# tests need; with --lint what the checks of its source need, and nothing else; with --agents what installs the coding agents
# that some tests drive, and nothing else; with --boot or --vm what make boot-test or make vm-test
# needs, and nothing else.
# Installs what is missing as root on Debian 12 and its like; says the command otherwise. Does nothing where nothing
# is missing.
set -euo pipefail

# program or file : package that brings it
needs=(git:git tmux:tmux systemctl:systemd /usr/lib/systemd/systemd-journald:systemd dbus-daemon:dbus
  /usr/lib/systemd/user/dbus.socket:dbus-user-session)
if [[ ${1:-} == --test ]]; then
  # gcc and libc6-dev are for the race detector, the others for scripts and tests.
  needs+=(gcc:gcc /usr/include/stdlib.h:libc6-dev useradd:passwd ps:procps unshare:util-linux
    dpkg-deb:dpkg rpm:rpm)
  # For tests that only root runs.
  ((EUID != 0)) || needs+=(lintian:lintian mkfs.ext4:e2fsprogs mount:mount)
elif [[ ${1:-} == --lint ]]; then
  needs=(mandoc:mandoc)
elif [[ ${1:-} == --agents ]]; then
  needs=(npm:npm)
elif [[ ${1:-} == --boot ]]; then
  needs=(debootstrap:debootstrap systemd-nspawn:systemd-container)
elif [[ ${1:-} == --vm ]]; then
  needs=(debootstrap:debootstrap systemd-nspawn:systemd-container qemu-system-x86_64:qemu-system-x86 mkfs.ext4:e2fsprogs)
fi

has() {
  # Debian may still keep systemd's own programs under /lib.
  if [[ $1 == /* ]]; then [[ -e $1 || -e ${1#/usr} ]]; else PATH=$PATH:/usr/sbin:/sbin type -P "$1" >/dev/null; fi
}

missing=()
for need in "${needs[@]}"; do
  package=${need##*:}
  has "${need%:*}" || [[ " ${missing[*]-} " == *" $package "* ]] || missing+=("$package")
done
if ((${#missing[@]} > 0)); then
  if ((EUID == 0)) && type -P apt-get >/dev/null; then
    echo "deps: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -q -o DPkg::Lock::Timeout=300 update
    apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "${missing[@]}"
  else
    echo "deps: missing: ${missing[*]}. Install with: sudo apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
fi

if [[ ${1:-} == --test ]]; then
  type -P go >/dev/null || { echo "deps: the go command is missing. Install Go 1.26 or later: https://go.dev/doc/install" >&2; exit 1; }
fi
