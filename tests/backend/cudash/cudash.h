/* cudash.h - CUDA C on the host, for tests: what kernel.cuh needs to be compiled by a C++ compiler.
 *
 * The threads of a block are fibers of one thread of the host, each with a stack of its own. A warp runs until a
 * barrier, a shuffle or its end, then another; blocks run one after the other. Which warp and which block is next is
 * drawn (FSDP_SIM_SEED), so that nothing depends on an order that CUDA does not promise. A process ends with one line
 * on stderr that names file and line
 *   where some threads of a block are at a barrier, and others at another one or at their end;
 *   where lanes that a shuffle, a vote, __syncwarp or a product names are elsewhere;
 *   where an address is not aligned as an instruction needs it.
 * Shared memory holds 0xff before each block, a NaN in every floating dtype, and so does the target of an asynchronous
 * copy until it has been waited for. ThreadSanitizer sees the threads of a block as threads, which nothing but barriers
 * and __syncwarp orders, and half of the blocks as not ordered with the other half: so it finds races in shared and in
 * global memory; and a read of shared memory
 * that no thread of the block has written ends the process. AddressSanitizer sees accesses out of bounds. A stack that
 * overflows meets a page without access.
 *
 * Not seen: what depends on time or on the weaker memory order of a GPU. Without ThreadSanitizer, no race; and a read
 * of what has not been written gives NaNs or -1, which only a wrong result shows. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fsdp/device.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
/* A variable is a block's own, as a thread of the host runs one block at a time. The mark, a variable of the same
 * function, says which function's variables a thread of the block has come to. */
#define __shared__ CUDASH_SHARED(__COUNTER__)
#define CUDASH_SHARED(number) CUDASH_SHARED_OF(number)
#define CUDASH_SHARED_OF(number)                    \
    static thread_local size_t cudash_mark##number; \
    cudash_shared_begins(&cudash_mark##number);     \
    static thread_local

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};

/* Marks a variable of thread.c, which each thread of the host has. The __shared__ ones are too many for memory that a
 * thread finds without a call; these few are not, and lie in a library without the others. */
#define CUDASH_THREAD extern "C" __attribute__((tls_model("initial-exec"), visibility("default"))) __thread
CUDASH_THREAD uint3 threadIdx, blockIdx;
CUDASH_THREAD dim3 blockDim, gridDim;
CUDASH_THREAD unsigned char *cudash_shared;
#define SHARED_BYTES(type, name) type *name = (type *)cudash_shared

/* Makes a function's shared variables what they are at the start of a block, if no thread of the block has done it. */
void cudash_shared_begins(size_t *mark);
void cudash_barrier(const char *file, int line);
/* Returns what lane `from` gives, to those of the mask; all bits of what a lane outside gives are ones. */
uint64_t cudash_exchange(uint64_t value, int from, unsigned mask, const char *file, int line);
/* Returns a bit for every lane of the mask that gave true. */
unsigned cudash_ballot(bool value, unsigned mask, const char *file, int line);
void cudash_sync_warp(const char *file, int line, unsigned mask = 0xffffffffu);

#define __syncthreads() cudash_barrier(__FILE__, __LINE__)
#define __syncwarp(...) cudash_sync_warp(__FILE__, __LINE__, ##__VA_ARGS__)

/* Those of intrinsics.cuh. */
void cudash_multiply_add(float *d, const uint32_t *a, const uint32_t *b, float (*value)(uint16_t), const char *file,
                         int line);
void cudash_load_matrices(uint32_t *x, const void *row, int count, bool transposed, const char *file, int line);
void cudash_copy_16(void *shared, const void *global, int bytes, const char *file, int line);
void cudash_copies_commit(void);
void cudash_copies_wait(int left);

template <class T>
static inline T cudash_shuffle(T value, int from, unsigned mask, const char *file, int line)
{
    uint64_t bits = 0;

    static_assert(sizeof value <= sizeof bits, "a shuffle is of 8 bytes at most");
    memcpy(&bits, &value, sizeof value);
    bits = cudash_exchange(bits, from, mask, file, line);
    memcpy(&value, &bits, sizeof value);
    return value;
}

#define CUDASH_LANE (int)((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32)
#define __shfl_sync(mask, value, lane) cudash_shuffle(value, (lane) % 32, mask, __FILE__, __LINE__)
#define __shfl_xor_sync(mask, value, bits) cudash_shuffle(value, CUDASH_LANE ^ (bits), mask, __FILE__, __LINE__)
#define __shfl_down_sync(mask, value, by) \
    cudash_shuffle(value, CUDASH_LANE + (by) < 32 ? CUDASH_LANE + (by) : CUDASH_LANE, mask, __FILE__, __LINE__)
#define __shfl_up_sync(mask, value, by) \
    cudash_shuffle(value, CUDASH_LANE >= (by) ? CUDASH_LANE - (by) : CUDASH_LANE, mask, __FILE__, __LINE__)
#define __ballot_sync(mask, value) cudash_ballot(value, mask, __FILE__, __LINE__)
#define __any_sync(mask, value) (__ballot_sync(mask, value) != 0)
#define __all_sync(mask, value) (__ballot_sync(mask, !(value)) == 0)
#define __popc(x) __builtin_popcount(x)
#define __ffs(x) __builtin_ffs((int)(x))
#define __clz(x) ((x) ? __builtin_clz(x) : 32)

/* Loads and stores that say how they are cached. */
template <class T>
static inline T __ldg(const T *p)
{
    return *p;
}
#define __ldcs(p) __ldg(p)
#define __ldcg(p) __ldg(p)
template <class T>
static inline void __stcs(T *p, T value)
{
    *p = value;
}

/* Makes *p what `change` makes of it, and returns what it was. */
template <class T, class Change>
static inline T cudash_atomic(T *p, Change change)
{
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);

    while (!__atomic_compare_exchange_n(p, &old, change(old), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        continue;
    return old;
}
template <class T>
static inline T atomicAdd(T *p, T value)
{
    return cudash_atomic(p, [=](T old) { return old + value; });
}
template <class T>
static inline T atomicMin(T *p, T value)
{
    return cudash_atomic(p, [=](T old) { return value < old ? value : old; });
}
template <class T>
static inline T atomicMax(T *p, T value)
{
    return cudash_atomic(p, [=](T old) { return value > old ? value : old; });
}

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
/* The sine and cosine of pi x. */
static inline void sincospif(float x, float *sine, float *cosine)
{
    *sine = (float)sin(M_PI * (double)x);
    *cosine = (float)cos(M_PI * (double)x);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}

/* Whether CUDA would take this launch, with 163 KB of shared memory a block, as the oldest GPU has. */
fsdp_status cudash_check_launch(const char *name, dim3 grid, unsigned block, size_t shared_bytes);
/* Runs `body` for every thread of the grid, before it returns. */
void cudash_run(dim3 grid, unsigned block, size_t shared_bytes, void (*body)(const void *), const void *argument);

#include "cudash/launch.h"
