#!/usr/bin/env bash
# check_hardening.sh BUILD-DIRECTORY: the program and the shared library are built as cmake/hardening.cmake says.
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
    grep -Eq '\((TEXTREL|RPATH|RUNPATH)\)' <<<"$dynamic" && complain "$file has text relocations or a search path"
    grep -q '__stack_chk_fail' <<<"$symbols" || complain "$file has no stack protector (-fstack-protector-strong)"
    grep -Eq '__(memcpy|snprintf|vsnprintf|read|fprintf|printf)_chk' <<<"$symbols" ||
        complain "$file calls no checked function (_FORTIFY_SOURCE)"
done
readelf -dW "$build/fsdp" | grep -Eq 'FLAGS_1.*PIE' || complain "$build/fsdp is not position independent (-pie)"
# Leaves nothing to see in the file where no frame is larger than a page.
lacking=$(grep '"command"' "$build/compile_commands.json" | grep -- '-c [^ ]*/src/' | grep -vc -- '-fstack-clash-protection' || true)
[ "$lacking" = 0 ] || complain "$lacking sources are compiled without -fstack-clash-protection"

[ $failed = 0 ] && echo "hardening: ok"
exit $failed
