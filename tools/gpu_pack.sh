#!/usr/bin/env bash
# gpu_pack.sh [BUILD] - packs what tools/gpu_check.sh runs into BUILD/gpu/pack.tar.xz: the program, its plug-in for CUDA,
# tests, and the libraries that they need. So a machine with a GPU needs neither a compiler nor our packages.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
[ -f "$build/libfsdp-cuda.so" ] || { echo "gpu_pack: there is no $build/libfsdp-cuda.so: build where nvcc is"; exit 1; }

tests="backend tensor ops autograd nn optim shard checkpoint train"
pack=$build/gpu/pack
rm -rf "$pack"
mkdir -p "$pack/tests" "$pack/lib"
cp "$build/fsdp" "$build/libfsdp-cuda.so" "$pack"
for test in $tests; do
    cp "$build/tests/test_$test" "$pack/tests"
done
cp "$build/tests/fsdp" "$pack/tests" # which tests start
strip "$pack/fsdp" "$pack/libfsdp-cuda.so" "$pack"/tests/*
# The C and C++ libraries are the machine's own: those of its compiler and its driver may be newer.
ldd "$pack/fsdp" "$pack"/tests/* | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|ld-linux[^/]*)\.' | xargs -I{} cp -L {} "$pack/lib"
# Tests find the sources and the build folder where they were when they were compiled.
pwd >"$pack/sources"
tar -C "$pack" -cf - . | xz -T0 -6 >"$build/gpu/pack.tar.xz"
rm -rf "$pack"
echo "$build/gpu/pack.tar.xz: $(du -h "$build/gpu/pack.tar.xz" | cut -f1)"
