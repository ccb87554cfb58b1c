#!/usr/bin/env bash
# gpu_pack.sh [--fake] [BUILD [BEFORE..]] - packs what tools/gpu_check.sh runs into PACK (BUILD/gpu/pack.tar.xz): the
# program, its plug-in for CUDA, tests, benchmarks, an example, and the libraries that they need. So a machine with a GPU
# needs neither a compiler nor our packages. FSDP_REFERENCE names a folder with PyTorch's reference runs, for the stage
# "reference"; FSDP_PEER a program that measures the same steps with PyTorch, as the one of bench/compare.py does (on a GPU
# it prints cuda_peak_mb and cuda_reserved_mb, too), for the stage "bench". BEFORE are builds of older commits with their
# benchmarks, for the stage "cpu". --fake packs the plug-in of
# the fake GPU (tests/backend/fakecuda), to try gpu_check.sh itself.
set -eu
cd "$(dirname "$0")/.."
plugins=. products=bench
if [ "${1:-}" = --fake ]; then
    plugins=tests products=tests
    shift
fi
build=${1:-build}
shift || true
[ -f "$build/$plugins/libfsdp-cuda.so" ] ||
    { echo "gpu_pack: there is no $build/$plugins/libfsdp-cuda.so: build where nvcc is"; exit 1; }

tests="backend tensor ops autograd nn optim hub shard checkpoint train comm"
target=${PACK:-$build/gpu/pack.tar.xz}
mkdir -p "$(dirname "$target")"
pack=$(mktemp -d)
trap 'rm -rf "$pack"' EXIT
mkdir -p "$pack/tests" "$pack/lib" "$pack/bench"
cp "$build/fsdp" "$build/$plugins/libfsdp-cuda.so" "$build/examples/11_own_kernel" "$pack"
for test in $tests; do
    cp "$build/tests/test_$test" "$pack/tests"
done
cp "$build/tests/fsdp" "$pack/tests" # which tests start
cp "$build"/bench/bench_{step,kernels,collectives,gpus} "$build/$products/bench_products" "$pack/bench"
cp -L "$build/libfsdp.so.0" "$pack/lib" # of the example
for before in "${@}"; do
    name=$(basename "$(dirname "$(realpath "$before")")")
    mkdir -p "$pack/before/$name/bench"
    cp "$before/fsdp" "$pack/before/$name"
    cp "$before"/bench/bench_{step,collectives} "$pack/before/$name/bench"
done
find "$pack" -type f -exec strip {} +
# The C and C++ libraries are the machine's own: those of its compiler and its driver may be newer.
find "$pack" -type f -exec ldd {} + | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|ld-linux[^/]*|libfsdp)\.' |
    xargs -I{} cp -L {} "$pack/lib"
[ $plugins = . ] || cp "$build"/tests/lib{cublasLt.so.13,cupti.so.13,nccl.so.2} "$pack"
[ -z "${FSDP_REFERENCE:-}" ] || cp -r "$FSDP_REFERENCE" "$pack/reference"
[ -z "${FSDP_PEER:-}" ] || cp "$FSDP_PEER" "$pack/peer.py"
# Tests find the sources and the build folder where they were when they were compiled.
pwd >"$pack/sources"
# Most of the programs is the same library, so a large window is worth more than effort.
tar -C "$pack" -cf - . | xz -T1 --lzma2=preset=1,dict=64MiB >"$target"
echo "$target: $(du -h "$target" | cut -f1)"
