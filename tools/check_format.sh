#!/usr/bin/env bash
# Names the files that clang-format would change; with --fix it changes them.
set -eu
cd "$(dirname "$0")/.."
mode=(--dry-run -Werror)
[ "${1:-}" != --fix ] || mode=(-i)
find src include tests examples bench \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \) -print0 2>/dev/null | sort -z | xargs -0 -n 64 -P "$(nproc)" clang-format "${mode[@]}"
echo "format: ok"
