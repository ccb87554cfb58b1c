#!/usr/bin/env bash
# Checks that every public header compiles by itself, as strict C17 and as C++17, that uses of the macros compile in
# C++, and that fsdp.h includes all headers.
set -eu
cd "$(dirname "$0")/.."
failed=0
for header in include/fsdp/*.h; do
    name=fsdp/$(basename "$header")
    if [ "$name" != fsdp/fsdp.h ] && ! grep -qx "#include \"$name\"" include/fsdp/fsdp.h; then
        echo "include/fsdp/fsdp.h does not include $name"
        failed=1
    fi
    for language in "c -std=c17" "c++ -std=c++17"; do
        clang -x $language -fsyntax-only -Iinclude -Wall -Wextra -Wpedantic -Werror - <<<"#include <$name>" || failed=1
    done
done
clang++ -std=c++17 -fsyntax-only -Iinclude -Wall -Wextra -Wpedantic -Werror tests/nn/uses.cpp || failed=1
[ $failed = 0 ] && echo "headers: ok"
exit $failed
