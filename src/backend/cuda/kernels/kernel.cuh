/* kernel.cuh - what every kernel file starts from: elements of the three floating dtypes, launches, loops over sizes,
 * sums of a warp and of a block.
 *
 * Kernel files are CUDA C++ in a subset that g++ compiles as well, against tests/backend/cudash (FSDP_CUDASH), where a
 * block's threads are run one by one on the host: templates for dtypes and sizes, no library, no inline assembler
 * outside intrinsics.cuh except for conversions of 16 bits, below. Each file defines the entries of its kernels,
 * `extern "C" fsdp_status fsdp__cuda_<kernel>`, which pick a template and launch it.
 *
 * [Note: bits]
 * The same call gives the same bits on every card of one kind, so nothing here may depend on the number of
 * multiprocessors or on who comes first: sums are cut into panels of fixed sizes and added in order, and no float is
 * added by an atomic. */
#pragma once

#ifdef FSDP_CUDASH
#include "cudash/cudash.h"
#else
#include <cuda_runtime.h>
#define SHARED_BYTES(type, name)                                  \
    extern __shared__ __align__(16) unsigned char shared_bytes[]; \
    type *name = (type *)shared_bytes
#endif

#include <math.h>
#include <string.h>

#include "base/compiler.h"
#include "device/kernel_args.h"

/* Ends the parameters of a function that threads of a warp or block call together: on the host it knows who called. */
#ifdef FSDP_CUDASH
#define CALLER , const char *file = __builtin_FILE(), int line = __builtin_LINE()
#else
#define CALLER
#endif

/* Declares a parameter that all threads of a launch read in one place: on the host no thread copies it. */
#ifdef FSDP_CUDASH
#define GRID_CONSTANT(...) const __VA_ARGS__ &
#else
#define GRID_CONSTANT(...) const __grid_constant__ __VA_ARGS__
#endif

#define HOST_DEVICE __host__ __device__ __forceinline__
#define DEVICE __device__ __forceinline__

/* Begins the definition of an entry of the table of kernels, whose arguments are `k`. ENTRY_LIKE does so for one with
 * the arguments of the kernel `like`. */
#define ENTRY(name, k) ENTRY_LIKE(name, name, k)
#define ENTRY_LIKE(name, like, k)                                                       \
    static fsdp_status name##_entry(fsdp_stream *stream, const fsdp__##like##_args *k); \
    extern "C" fsdp_status fsdp__cuda_##name(fsdp_stream *stream, const void *args)     \
    {                                                                                   \
        return name##_entry(stream, (const fsdp__##like##_args *)args);                 \
    }                                                                                   \
    static fsdp_status name##_entry(fsdp_stream *stream, const fsdp__##like##_args *k)

enum {
    WARP = 32,
    BLOCK = 256 /* threads of a block, where nothing speaks for another number */
};

/* ---- launches ---- */

extern "C" {
/* Returns grow-only scratch of the stream, in device memory, valid until the next call with the same stream; NULL and a
 * last error when out of memory (device/device.h). What it held may be overwritten: a kernel asks once, for all it
 * needs. */
void *fsdp__stream_workspace(fsdp_stream *stream, size_t bytes);
/* Tells what the stream's card has, by which a launch may be cut: not the order of sums. */
void fsdp__cuda_card(fsdp_stream *stream, int *multiprocessors, size_t *shared_bytes_of_block);
#ifndef FSDP_CUDASH
/* Issues a kernel (cuda_launch.c). */
fsdp_status fsdp__cuda_launch(fsdp_stream *stream, const char *name, const void *kernel, dim3 grid, unsigned block,
                              size_t shared_bytes, void **args);
/* Sets bytes of the device, in stream order. */
fsdp_status fsdp__cuda_set_bytes(fsdp_stream *stream, void *device, int byte, size_t bytes);
#endif
}

template <class T>
struct just {
    typedef T type;
};

/* Issues `kernel` on the stream: grid blocks of `block` threads, with `shared` bytes of dynamic shared memory
 * (SHARED_BYTES). An empty grid is no launch. The arguments are copied; tables that the kernel reads go by value, as a
 * struct; all arguments together take at most 32,764 bytes. */
template <class... Parameters>
static fsdp_status launch(fsdp_stream *stream, const char *name, void (*kernel)(Parameters...), dim3 grid,
                          unsigned block, size_t shared, typename just<Parameters>::type... args)
{
    static_assert((0 + ... + sizeof(typename just<Parameters>::type)) <= 32700, "a launch has too many arguments");

    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return FSDP_OK;
#ifdef FSDP_CUDASH
    return cudash_launch(stream, name, (const void *)kernel, grid, block, shared, [=] { kernel(args...); });
#else
    void *list[] = {(void *)&args...};

    return fsdp__cuda_launch(stream, name, (const void *)kernel, grid, block, shared, list);
#endif
}

/* Returns the number of blocks for n items, `each` a block: at most 2^31 - 1, so kernels loop over the rest. */
static inline unsigned blocks_for(int64_t n, int64_t each)
{
    int64_t blocks = (n + each - 1) / each;

    return (unsigned)(blocks < 0x7fffffff ? blocks : 0x7fffffff);
}

/* The threads of the grid take n items in turns. */
#define EACH_ITEM(i, n) \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (int64_t)gridDim.x * blockDim.x)

/* The blocks of the grid take n rows in turns. */
#define EACH_ROW(row, n) for (int64_t row = blockIdx.x; row < (n); row += gridDim.x)

/* ---- elements ----
 *
 * A GPU has an instruction for each conversion. CUDA's headers of such numbers, which have the same ones, would
 * take half a second of each file's compilation. */

#define FSDP__CONVERSION HOST_DEVICE
#include "device/conversions.h"

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

HOST_DEVICE float to_float(float x)
{
    return x;
}

HOST_DEVICE float to_float(bf16 x)
{
    return fsdp__from_bf16(x.bits);
}

HOST_DEVICE float to_float(f16 x)
{
#if defined(__CUDA_ARCH__)
    float y;

    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#else
    return fsdp__from_f16(x.bits);
#endif
}

/* from_float<T>(x): rounded to nearest even; a NaN stays one. */
template <class T>
HOST_DEVICE T from_float(float x);

template <>
HOST_DEVICE float from_float<float>(float x)
{
    return x;
}

template <>
HOST_DEVICE bf16 from_float<bf16>(float x)
{
#if defined(__CUDA_ARCH__)
    bf16 y;

    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
#else
    return bf16{fsdp__to_bf16(x)};
#endif
}

template <>
HOST_DEVICE f16 from_float<f16>(float x)
{
#if defined(__CUDA_ARCH__)
    f16 y;

    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
#else
    return f16{fsdp__to_f16(x)};
#endif
}

/* Reads element i of an array as the f32 that arithmetic is done in, and writes it back. */
template <class T>
DEVICE float load(const T *p, int64_t i)
{
    return to_float(p[i]);
}

template <class T>
DEVICE void store(T *p, int64_t i, float x)
{
    p[i] = from_float<T>(x);
}

/* Do the same for a dtype that is the same for all threads. */
DEVICE float load_any(fsdp_dtype dtype, const void *p, int64_t i)
{
    return dtype == FSDP_F32    ? load((const float *)p, i)
           : dtype == FSDP_BF16 ? load((const bf16 *)p, i)
                                : load((const f16 *)p, i);
}

DEVICE void store_any(fsdp_dtype dtype, void *p, int64_t i, float x)
{
    if (dtype == FSDP_F32)
        store((float *)p, i, x);
    else if (dtype == FSDP_BF16)
        store((bf16 *)p, i, x);
    else
        store((f16 *)p, i, x);
}

static inline bool is_float(fsdp_dtype dtype)
{
    return dtype == FSDP_F32 || dtype == FSDP_BF16 || dtype == FSDP_F16;
}

/* Expands to a statement, the last argument, that calls the type of a floating dtype T. */
#define EACH_FLOAT(dtype, T, ...) \
    switch (dtype) {              \
    case FSDP_F32: {              \
        using T = float;          \
        __VA_ARGS__;              \
    } break;                      \
    case FSDP_BF16: {             \
        using T = bf16;           \
        __VA_ARGS__;              \
    } break;                      \
    case FSDP_F16: {              \
        using T = f16;            \
        __VA_ARGS__;              \
    } break;                      \
    default:                      \
        break;                    \
    }

/* Expands to a statement, the last argument, that calls the types of two floating dtypes T and W. */
#define EACH_PAIR(t, w, T, W, ...) EACH_FLOAT(t, T, EACH_FLOAT(w, W, __VA_ARGS__))

/* Defines the entry that calls function<T>(stream, arguments) for the type of the kernel's dtype. */
#define FLOAT_ENTRY(name, function)                                                          \
    ENTRY(name, k)                                                                           \
    {                                                                                        \
        if (k->dtype == FSDP_F32)                                                            \
            return function<float>(stream, k);                                               \
        return k->dtype == FSDP_BF16 ? function<bf16>(stream, k) : function<f16>(stream, k); \
    }

/* A product that the compiler does not join with an addition. */
DEVICE float times(float a, float b)
{
#ifdef FSDP_CUDASH
    return a * b; /* compiled with -ffp-contract=off */
#else
    return __fmul_rn(a, b);
#endif
}

/* ---- warps and blocks ---- */

#define ALL_LANES 0xffffffffu

DEVICE int lane_of_warp(void)
{
    return (int)(threadIdx.x % WARP);
}

/* Returns the larger one; a NaN wins. */
DEVICE float larger(float a, float b)
{
    return a > b || a != a ? a : b;
}

DEVICE float warp_sum(float x)
{
    for (int step = WARP / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

DEVICE float warp_max(float x)
{
    for (int step = WARP / 2; step > 0; step /= 2)
        x = larger(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

/* Returns the sum over a block of whole warps, to all of its threads. `partial` is shared memory for one number a warp;
 * all threads call this. */
DEVICE float block_sum(float x, float *partial)
{
    int warps = (int)blockDim.x / WARP;

    x = warp_sum(x);
    __syncthreads(); /* somebody may still read what an earlier call has left there */
    if (lane_of_warp() == 0)
        partial[threadIdx.x / WARP] = x;
    __syncthreads();
    return warp_sum(lane_of_warp() < warps ? partial[lane_of_warp()] : 0.0f);
}

DEVICE float block_max(float x, float *partial)
{
    int warps = (int)blockDim.x / WARP;

    x = warp_max(x);
    __syncthreads();
    if (lane_of_warp() == 0)
        partial[threadIdx.x / WARP] = x;
    __syncthreads();
    return warp_max(lane_of_warp() < warps ? partial[lane_of_warp()] : -INFINITY);
}
