#!/usr/bin/env bash
# fuzz.sh BUILD-DIRECTORY SECONDS: every target of tests/fuzz under libFuzzer, SECONDS each, from its corpus, with the
# words of its dictionary where it has one.
set -eu
cd "$(dirname "$0")/.."
build=$1
seconds=$2
cmake -S . -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang -DFSDP_FUZZ=ON -DFSDP_OPENMP=OFF \
    -DFSDP_SANITIZE=address,undefined >/dev/null
for source in tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    cmake --build "$build" --target "$name"
    mkdir -p "$build/corpus/$name"
    words=()
    [ -f "tests/fuzz/${name#fuzz_}.dict" ] && words=("-dict=tests/fuzz/${name#fuzz_}.dict")
    "$build/tests/$name" "${words[@]}" -max_total_time="$seconds" -print_final_stats=1 -artifact_prefix="$build/" \
        "$build/corpus/$name" "tests/fuzz/corpus/${name#fuzz_}"
done
