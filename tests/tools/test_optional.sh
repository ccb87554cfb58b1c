#!/usr/bin/env bash
# cmake/optional.cmake: a folder takes part where its dependency is found, and only there. In a copy of the sources with
# a folder comm/mpi and an MPI that is a header and nothing else.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -r "$FSDP_SOURCE/CMakeLists.txt" "$FSDP_SOURCE/cmake" "$FSDP_SOURCE/src" "$FSDP_SOURCE/include" "$folder"
rm -rf "$folder/src/comm/mpi"
mkdir "$folder/src/comm/mpi" "$folder/found"
cat >"$folder/src/comm/mpi/mpi.c" <<'END'
#include <mpi.h>
#ifndef FSDP_HAVE_MPI
#error "a folder takes part without its definition"
#endif
int fsdp__mpi_ranks(void);
int fsdp__mpi_ranks(void)
{
    return MPI_RANKS;
}
END
echo '#define MPI_RANKS 1' >"$folder/found/mpi.h"
cat >"$folder/found/FindMPI.cmake" <<'END'
set(MPI_FOUND TRUE)
add_library(MPI::MPI_C INTERFACE IMPORTED)
target_include_directories(MPI::MPI_C INTERFACE ${CMAKE_CURRENT_LIST_DIR})
END

# configure BUILD FLAGS...
configure() {
    cmake -G Ninja -S "$folder" -B "$folder/$1" -DFSDP_TESTS=OFF "${@:2}" >"$folder/$1.log" 2>&1 || {
        cat "$folder/$1.log"
        exit 1
    }
}

# has BUILD TEXT: whether any compile command has it
has() {
    grep -qF -- "$2" "$folder/$1/compile_commands.json"
}

configure with -DCMAKE_MODULE_PATH="$folder/found"
has with src/comm/mpi/mpi.c
[ "$(grep -c '"command"' "$folder/with/compile_commands.json")" = "$(grep -c -- -DFSDP_HAVE_MPI "$folder/with/compile_commands.json")" ]
cmake --build "$folder/with" --target CMakeFiles/fsdp_comm_objects.dir/src/comm/mpi/mpi.c.o >/dev/null
grep -q 'find_dependency(MPI COMPONENTS C)' "$folder/with/fsdp-config.cmake"

configure without -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON
has without src/comm/shm/shm.c
if has without src/comm/mpi/mpi.c || has without FSDP_HAVE_MPI; then
    echo "a folder takes part whose dependency was not found"
    exit 1
fi
grep -q 'src/comm/mpi: left out' "$folder/without.log"
