#!/usr/bin/env bash
# bench/compare.py: a build that lacks a program is named before anything is measured.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# refused WORDS LINE..: the command fails at once, with these words.
refused() {
    local words=$1
    shift
    if "$@" >"$work/out" 2>&1; then
        echo "test_bench_compare: $* passed" >&2
        exit 1
    fi
    grep -qF -- "$words" "$work/out" || { cat "$work/out" >&2; exit 1; }
}

mkdir -p "$work/whole/bench" "$work/half/bench"
for program in whole/fsdp whole/bench/bench_step whole/bench/bench_kernels half/bench/bench_step; do
    printf '#!/bin/sh\necho started >>"%s/started"\n' "$work" >"$work/$program"
    chmod +x "$work/$program"
done
refused "'$work/half' has no program fsdp: build it with" \
    "$FSDP_SOURCE/bench/compare.py" --build "$work/whole" --against "$work/half"
refused "'$work/none' has no program fsdp" "$FSDP_SOURCE/bench/compare.py" --build "$work/none" --against "$work/whole"
refused "'$work/none' has no program fsdp" python3 "$FSDP_SOURCE/bench/grow.py" --build "$work/none"
[ ! -e "$work/started" ]
