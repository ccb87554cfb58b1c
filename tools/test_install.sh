#!/usr/bin/env bash
# test_install.sh BUILD-DIRECTORY: installs into a new folder, then builds and runs an example as a user of the library
# would: with pkg-config, and with CMake's find_package. It also runs a first program with every front door in worlds of
# 1 to 4 ranks.
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/installed" >/dev/null
library=$(dirname "$(find "$work/installed" -name libfsdp.so)")
export LD_LIBRARY_PATH=$library PKG_CONFIG_PATH=$library/pkgconfig
example=$source/examples/02_mlp_sharded.c

# shellcheck disable=SC2046
cc "$example" $(pkg-config --cflags --libs fsdp) -o "$work/by_pkg_config"
"$work/installed/bin/fsdp" run -n 2 -- "$work/by_pkg_config" >"$work/first.txt"

mkdir "$work/project"
cat >"$work/project/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.20)
project(example C)
find_package(fsdp REQUIRED)
add_executable(by_cmake $example)
target_link_libraries(by_cmake fsdp::fsdp)
EOF
cmake -S "$work/project" -B "$work/project/build" -DCMAKE_PREFIX_PATH="$work/installed" >/dev/null
cmake --build "$work/project/build" >/dev/null
"$work/installed/bin/fsdp" run -n 2 -- "$work/project/build/by_cmake" >"$work/second.txt"
cmp "$work/first.txt" "$work/second.txt"
test -s "$work/first.txt"

# The plug-ins of MPI, found from the program and from the library.
if [ -e "$build/libfsdp-openmpi.so" ] && command -v mpirun.openmpi >/dev/null; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    mpirun.openmpi -n 2 "$work/by_pkg_config" >"$work/third.txt"
    cmp "$work/first.txt" "$work/third.txt"
    mpirun.openmpi -n 2 env -u LD_LIBRARY_PATH "$work/installed/bin/fsdp" train --model.preset=llama-1m \
        --data.path="$source/tests/reference/tokens.bin" --training.steps=1 --training.seq_len=32 >"$work/fourth.txt"
    grep -q '^ranks: *2' "$work/fourth.txt"
fi

# shellcheck disable=SC2046
cc "$source/tests/tools/first_program.c" $(pkg-config --cflags --libs fsdp) -lm -o "$work/first_program"
for ranks in 1 2 3 4; do
    "$work/installed/bin/fsdp" run -n "$ranks" -- "$work/first_program" "$work/model" \
        ddp zero1 zero2 zero3 fsdp1 fsdp2 >"$work/said.txt"
    test "$(grep -c 'as plain$' "$work/said.txt")" = 6
done
