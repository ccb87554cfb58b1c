#!/usr/bin/env bash
# Checks cmake/optional.cmake: a folder is compiled if its dependency is found, and only then. It uses a copy of the
# sources with a folder comm/nccl, and an NCCL that is only a header.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -r "$FSDP_SOURCE/CMakeLists.txt" "$FSDP_SOURCE/cmake" "$FSDP_SOURCE/src" "$FSDP_SOURCE/include" "$folder"
rm -rf "$folder/src/comm/nccl"
mkdir "$folder/src/comm/nccl" "$folder/found"
cat >"$folder/src/comm/nccl/nccl.c" <<'END'
#include <nccl.h>
#ifndef FSDP_HAVE_NCCL
#error "a folder takes part without its definition"
#endif
int fsdp__nccl_ranks(void);
int fsdp__nccl_ranks(void)
{
    return NCCL_RANKS;
}
END
echo '#define NCCL_RANKS 1' >"$folder/found/nccl.h"
cat >"$folder/found/FindNCCL.cmake" <<'END'
set(NCCL_FOUND TRUE)
add_library(NCCL::NCCL INTERFACE IMPORTED)
target_include_directories(NCCL::NCCL INTERFACE ${CMAKE_CURRENT_LIST_DIR})
END

# configure BUILD FLAGS...
configure() {
    cmake -G Ninja -S "$folder" -B "$folder/$1" -DFSDP_TESTS=OFF -DFSDP_MPI=OFF -DFSDP_CUDA=OFF "${@:2}" >"$folder/$1.log" 2>&1 || {
        cat "$folder/$1.log"
        exit 1
    }
}

# has BUILD TEXT: whether any compile command has it
has() {
    grep -qF -- "$2" "$folder/$1/compile_commands.json"
}

configure with -DCMAKE_MODULE_PATH="$folder/found"
has with src/comm/nccl/nccl.c
[ "$(grep -c '"command"' "$folder/with/compile_commands.json")" = "$(grep -c -- -DFSDP_HAVE_NCCL "$folder/with/compile_commands.json")" ]
cmake --build "$folder/with" --target CMakeFiles/fsdp_comm_objects.dir/src/comm/nccl/nccl.c.o >/dev/null
grep -q 'find_dependency(NCCL COMPONENTS )' "$folder/with/fsdp-config.cmake"

configure without -DCMAKE_DISABLE_FIND_PACKAGE_NCCL=ON
has without src/comm/transport/arena/shm.c
if has without src/comm/nccl/nccl.c || has without FSDP_HAVE_NCCL; then
    echo "a folder takes part whose dependency was not found"
    exit 1
fi
grep -q 'src/comm/nccl: left out' "$folder/without.log"
