#!/usr/bin/env bash
# check_hardening.sh BUILD-DIRECTORY: checks that program and shared library are built as cmake/hardening.cmake says.
set -eu
build=$1
failed=0

if ! grep -Eq '^CMAKE_BUILD_TYPE:STRING=(Release|RelWithDebInfo|MinSizeRel)$' "$build/CMakeCache.txt"; then
    echo "hardening: not looked at, this build does not optimise"
    exit 0
fi

complain() {
    echo "$1"
    failed=1
}

for file in "$build/fsdp" "$build/libfsdp.so"; do
    segments=$(readelf -lW "$file")
    dynamic=$(readelf -dW "$file")
    symbols=$(readelf --dyn-syms -W "$file")
    grep -q GNU_RELRO <<<"$segments" || complain "$file has no RELRO segment (-z relro)"
    grep -Eq 'BIND_NOW|FLAGS_1.*NOW' <<<"$dynamic" || complain "$file binds lazily, so RELRO is partial (-z now)"
    grep -Eq 'GNU_STACK.* RWE' <<<"$segments" && complain "$file has an executable stack (-z noexecstack)"
    readelf -nW "$file" | grep -q 'Build ID: [0-9a-f]\{40\}' || complain "$file has no build id, which ranks compare"
    grep -Eq '\((TEXTREL|RPATH|RUNPATH)\)' <<<"$dynamic" && complain "$file has text relocations or a search path"
    grep -q '__stack_chk_fail' <<<"$symbols" || complain "$file has no stack protector (-fstack-protector-strong)"
    grep -Eq '__(memcpy|snprintf|vsnprintf|read|fprintf|printf)_chk' <<<"$symbols" ||
        complain "$file calls no checked function (_FORTIFY_SOURCE)"
done
readelf -dW "$build/fsdp" | grep -Eq 'FLAGS_1.*PIE' || complain "$build/fsdp is not position independent (-pie)"
# The first leaves nothing to see in the file where no frame is larger than a page, nor does the second where a library
# that is linked in was compiled without. A compiler may not know the second, which is for x86.
flags=(-fstack-clash-protection)
! grep -q '^FSDP_HAS_fcf_protection:INTERNAL=1' "$build/CMakeCache.txt" || flags+=(-fcf-protection)
for flag in "${flags[@]}"; do
    lacking=$(grep '"command"' "$build/compile_commands.json" | grep -- '-c [^ ]*/src/' | grep -vc -- "$flag" || true)
    [ "$lacking" = 0 ] || complain "$lacking sources are compiled without $flag"
done

[ $failed = 0 ] && echo "hardening: ok"
exit $failed
