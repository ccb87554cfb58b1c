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
#ifndef BACKEND_CUDA_KERNEL_CUH
#define BACKEND_CUDA_KERNEL_CUH

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

/* Defines an entry of the table of kernels. */
#define ENTRY(name) extern "C" fsdp_status fsdp__cuda_##name(fsdp_stream *stream, const void *args)

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

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

HOST_DEVICE uint32_t float_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

HOST_DEVICE float bits_float(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

HOST_DEVICE float to_float(float x)
{
    return x;
}

HOST_DEVICE float to_float(bf16 x)
{
    return bits_float((uint32_t)x.bits << 16);
}

HOST_DEVICE float to_float(f16 x)
{
#if defined(__CUDA_ARCH__)
    float y;

    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#else
    uint32_t sign = (uint32_t)(x.bits & 0x8000u) << 16, magnitude = x.bits & 0x7fffu;
    float tiny = (float)(int32_t)magnitude * 0x1p-24f;
    uint32_t normal = (magnitude << 13) + (112u << 23);
    uint32_t bits = magnitude >= 0x7c00u ? normal + (112u << 23) : magnitude < 0x400u ? float_bits(tiny) : normal;

    return bits_float(sign | bits);
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
    uint32_t bits = float_bits(x);
    uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1), quiet = bits | 0x400000u;
    bf16 y = {(uint16_t)((x != x ? quiet : rounded) >> 16)};

    return y;
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
    uint32_t bits = float_bits(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    /* Adding 0.5 leaves a result below 2^-14 in the sum's last bits, rounded by the adder. */
    uint32_t tiny = float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1)) >> 13;
    uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    uint32_t half = magnitude >= 0x47800000u ? large : magnitude < 0x38800000u ? tiny : normal;
    f16 y = {(uint16_t)(sign | half)};

    return y;
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

/* Expands CALL(T) for the type of a floating dtype, as a statement of a function that returns a status. */
#define EACH_FLOAT(dtype, CALL) \
    switch (dtype) {            \
    case FSDP_F32:              \
        CALL(float);            \
        break;                  \
    case FSDP_BF16:             \
        CALL(bf16);             \
        break;                  \
    case FSDP_F16:              \
        CALL(f16);              \
        break;                  \
    default:                    \
        break;                  \
    }

/* Defines the entry that calls function<T>(stream, arguments) for the type of the kernel's dtype. */
#define FLOAT_ENTRY(name, function)                                                          \
    ENTRY(name)                                                                              \
    {                                                                                        \
        const fsdp__##name##_args *k = (const fsdp__##name##_args *)args;                    \
                                                                                             \
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

#endif
