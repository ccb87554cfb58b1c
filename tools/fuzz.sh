#!/usr/bin/env bash
# fuzz.sh BUILD-DIRECTORY SECONDS [TARGET...]: runs every target of tests/fuzz, or those given, under libFuzzer for
# SECONDS each, as many at a time as there are cores, from its corpus and with its dictionary if it has one. An input
# that fails is left in BUILD-DIRECTORY, beside what libFuzzer printed. All targets run, even if one of them fails.
set -eu
cd "$(dirname "$0")/.."
export build=$1 seconds=$2
shift 2

fuzz() {
    local name=$1 dictionary=() subject
    subject=${name#fuzz_}
    [ -e "tests/fuzz/$subject.dict" ] && dictionary=("-dict=tests/fuzz/$subject.dict")
    mkdir -p "$build/corpus/$name"
    if "$build/tests/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -artifact_prefix="$build/$name-" "${dictionary[@]}" "$build/corpus/$name" "tests/fuzz/corpus/$subject" \
        >"$build/$name.log" 2>&1; then
        echo "$name: $(grep '^Done ' "$build/$name.log")"
    else
        printf '%s\nfailed: %s\n' "$(tail -n 60 "$build/$name.log")" "$name" >&2
        return 1
    fi
}

cmake -S . -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang -DFSDP_FUZZ=ON -DFSDP_OPENMP=OFF \
    -DFSDP_SANITIZE=address,undefined ${CMAKE_FLAGS:-} >/dev/null
if [ $# = 0 ]; then
    set -- tests/fuzz/fuzz_*.c
    set -- "${@##*/}"
    set -- "${@%.c}"
fi
cmake --build "$build" --target "$@"
export -f fuzz
printf '%s\n' "$@" | xargs -P "$(nproc)" -I NAME bash -c 'fuzz NAME'
