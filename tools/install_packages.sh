#!/usr/bin/env bash
# Installs the packages of packages.txt that this machine lacks; with --check also those that only the checks need.
set -eu
cd "$(dirname "$0")/.."

wanted=$(sed '/^#/d' packages.txt)
if [ "${1:-}" != --check ]; then
    wanted=$(grep -v '# check:' <<<"$wanted")
fi
wanted=$(sed 's/#.*//' <<<"$wanted" | xargs)

if ! command -v dpkg-query >/dev/null; then
    echo "no dpkg here: packages.txt names what must be installed by hand" >&2
    exit 0
fi
missing=()
for package in $wanted; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

root=()
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "these packages are missing and there is no sudo to install them: ${missing[*]}" >&2
        exit 1
    fi
    root=(sudo)
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${root[@]}" apt-get update -qq </dev/null
"${root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null >/dev/null
