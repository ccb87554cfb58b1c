#!/usr/bin/env bash
# run_tests.sh BUILD-DIRECTORY [ctest arguments]: runs the tests, and ends with "N passed, N failed, N skipped".
# The cases of a cmocka program count one by one, and every other test counts as one.
set -u
tools=$(cd "$(dirname "$0")" && pwd)
build=$1
shift

# Of each thread 64 KB of frames are kept after their return: the usual 1 MB of each of eleven sizes costs more time than
# what a thread of most tests does.
asan=strict_string_checks=1:detect_stack_use_after_return=1:max_uar_stack_size_log=16
asan=$asan:handle_sigill=1 # what is undefined traps (CMakeLists.txt)
# What was freed is kept longer, and the callers of each allocation further up, where time is no matter.
[ -n "${TEST_LONG:-}" ] || asan=$asan:malloc_context_size=8:quarantine_size_mb=16:thread_local_quarantine_size_kb=256
export ASAN_OPTIONS="$asan:${ASAN_OPTIONS:-}"
export LSAN_OPTIONS="suppressions=$tools/lsan.supp:print_suppressions=0:${LSAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
export TSAN_OPTIONS="suppressions=$tools/tsan.supp:second_deadlock_stack=1:${TSAN_OPTIONS:-}"

# A shell has what it runs in the background ignore interrupts, and nohup hangups, which some tests send.
runner=(env --default-signal=HUP,INT,QUIT)
# ThreadSanitizer's fixed shadow does not fit the random layout of newer kernels.
if grep -q '^FSDP_SANITIZE:STRING=.*thread' "$build/CMakeCache.txt" && setarch -R true 2>/dev/null; then
    runner+=(setarch -R)
fi

# Tests write many small files. In memory these take half as much of the system's time, and nothing waits for a disk.
# A memory where no program can be started, or with less room than this, in KiB, is left alone.
room=$((2 << 20))
if [ -z "${TMPDIR:-}${TEST_LONG:-}" ] && awk -v room=$room '/^MemAvailable:/ { exit $2 < room }' /proc/meminfo &&
    memory=$(mktemp -d -p /dev/shm fsdp-tests-XXXXXX 2>/dev/null); then
    trap 'rm -rf "$memory"' EXIT
    chmod 711 "$memory" # some tests are another user as well
    if cp "$(type -P true)" "$memory" && "$memory/true" 2>/dev/null &&
        [ "$(df --output=avail "$memory" | tail -n 1)" -ge $room ]; then
        export TMPDIR=$memory
    fi
fi

log=$build/Testing/Temporary/LastTest.log
verdicts=$build/Testing/verdicts.log
mkdir -p "$build/Testing"
rm -f "$log"
set -o pipefail
# More than there are processors: in many tests ranks wait for each other, awake where nobody else has work to do. Two
# more still where clusters are tested: two of those tests at a time, which wait for processes and networks.
lanes=$(($(nproc) + 4))
grep -q '^FSDP_SANITIZE:STRING=$' "$build/CMakeCache.txt" && lanes=$((lanes + 2))
"${runner[@]}" ctest --test-dir "$build" --output-on-failure -j"$lanes" "$@" </dev/null 2>&1 |
    tee "$verdicts"
status=$?

if [ ! -s "$log" ]; then
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
awk '
    FNR == 1 { file++ }
    # What ctest says of each test: "3/7 Test #3: name .....***Failed  0.01 sec"
    file == 1 && /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / {
        sub(/^.*Test +#[0-9]+: /, "")
        verdict[$1] = /\*\*\*Skipped/ ? "skipped" : / Passed +[0-9.]+ sec/ ? "passed" : "failed"
    }
    # What cmocka says of each case in the test.
    file == 2 && /^[0-9]+\/[0-9]+ Testing: / { name = $3 }
    file == 2 && /^\[       OK \] /           { result[name "/" $4] = "passed" }
    file == 2 && /^\[  SKIPPED \] [^0-9]/     { result[name "/" $4] = "skipped" }
    file == 2 && /^\[  FAILED  \] [^0-9]/     { result[name "/" $4] = "failed" }
    END {
        for (key in result) {
            test = key
            sub(/\/.*/, "", test)
            split_up[test] = 1
            count[result[key]]++
            if (result[key] == "failed") explained[test] = 1
        }
        # A test without cases counts as one; so does a failure that no case explains, as a leak or a crash.
        for (test in verdict)
            if (!split_up[test] || (verdict[test] == "failed" && !explained[test])) count[verdict[test]]++
        printf "%d passed, %d failed, %d skipped\n", count["passed"], count["failed"], count["skipped"]
        exit count["failed"] > 0
    }
' "$verdicts" "$log" || status=1
exit $status
