#!/usr/bin/env bash
# package.sh VERSION FOLDER: makes a deb and an rpm in FOLDER of FOLDER/root, into which `make install` has put everything
# for the prefix /usr. What is written depends on the source alone, not on when, where and by whom it is made.
set -euo pipefail
umask 022
folder=$(realpath "$2")
root=$folder/root
cd "$(dirname "$0")/.."

# A package's version has no dash: 1.2.3-rc1 comes before 1.2.3, and 1.2.3-4-gabc, four commits on, after it.
GAIA_VERSION=$(sed -E 's/-dirty$/+dirty/; s/-([0-9]+)-g([0-9a-f]+)/+\1.g\2/; s/-/~/; s/-/./g' <<<"$1")
GAIA_ARCH=$(go env GOARCH)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
maintainer=$(sed -n 's/^maintainer: *//p' packaging/nfpm.yaml)
export GAIA_VERSION GAIA_ARCH SOURCE_DATE_EPOCH GAIA_FOLDER=$folder

# Where the two kinds of packages differ.
mv "$root/usr/share/zsh/site-functions/_gaia" "$folder/_gaia"
rm -r "$root/usr/share/zsh" "$root/usr/share/doc/gaia/LICENSE"

find "$root/usr/share/man" -type f -exec gzip -9n {} +
find "$root/usr/share/man" -type l -print0 | while IFS= read -rd '' link; do
  ln -s "$(readlink "$link").gz" "$link.gz"
  rm "$link"
done
doc=$root/usr/share/doc/gaia
gzip -9n <CHANGELOG.md >"$doc/NEWS.gz"
# The licences of what is linked into the programs ask for their text to come with them.
{
  echo "The programs of Gaia contain these Go modules, and Go's own library."
  licences=("Go $(go env GOVERSION):$(go env GOROOT)")
  mapfile -t -O 1 licences < <(CGO_ENABLED=0 go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}:{{.Dir}}{{end}}{{end}}' ./cmd/... | LC_ALL=C sort -u)
  for licence in "${licences[@]}"; do
    printf '\n==== %s\n' "${licence%%:*}"
    found=0
    for text in "${licence#*:}"/{LICENSE,LICENCE,COPYING,NOTICE}*; do
      [[ ! -f $text ]] || { echo; cat "$text"; found=1; }
    done
    ((found)) || { echo "package: ${licence%%:*} has no licence" >&2; exit 1; }
  done
} | gzip -9n >"$doc/third-party.gz"

printf 'gaia (%s) unstable; urgency=medium\n\n  * What has changed is in /usr/share/doc/gaia/NEWS.gz.\n\n -- %s  %s\n' \
  "$GAIA_VERSION" "$maintainer" "$(LC_ALL=C date -uRd "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$folder/changelog.gz"

find "$root" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
touch -d "@$SOURCE_DATE_EPOCH" "$folder/_gaia" "$folder/changelog.gz"
for kind in deb rpm; do
  env -u GOOS -u GOARCH go tool -modfile=tools/go.mod nfpm package --config packaging/nfpm.yaml --packager "$kind" --target "$folder/"
done
