#!/usr/bin/env bash
# fuzz.sh BUILD-DIRECTORY SECONDS: every target of tests/fuzz under libFuzzer, SECONDS each, from its corpus and with its
# dictionary where it has one. An input that fails is left in BUILD-DIRECTORY, beside what libFuzzer printed; all
# targets run, whatever one finds.
set -eu
cd "$(dirname "$0")/.."
build=$1
seconds=$2
failed=()
cmake -S . -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang -DFSDP_FUZZ=ON -DFSDP_OPENMP=OFF \
    -DFSDP_SANITIZE=address,undefined ${CMAKE_FLAGS:-} >/dev/null
for source in tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    subject=${name#fuzz_}
    dictionary=()
    [ -e "tests/fuzz/$subject.dict" ] && dictionary=("-dict=tests/fuzz/$subject.dict")
    cmake --build "$build" --target "$name"
    mkdir -p "$build/corpus/$name"
    if "$build/tests/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -artifact_prefix="$build/$name-" "${dictionary[@]}" "$build/corpus/$name" "tests/fuzz/corpus/$subject" \
        >"$build/$name.log" 2>&1; then
        echo "$name: $(grep '^Done ' "$build/$name.log")"
    else
        failed+=("$name")
        tail -n 60 "$build/$name.log"
    fi
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}" >&2
    exit 1
fi
