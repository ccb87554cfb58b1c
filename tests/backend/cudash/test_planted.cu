/* test_planted.cu - kernels with a fault each, and without it. */
#include "backend/cuda/kernels/intrinsics.cuh"
#include "cudash/test_kernels.h"

enum {
    THREADS = 128,
    BLOCKS = 4
};

static __global__ void barrier_not_reached(bool wrong, int *)
{
    if (!wrong || threadIdx.x < 64)
        __syncthreads(); /* LINE barrier_not_reached */
}

static __global__ void barriers_apart(bool wrong, int *)
{
    if (wrong && threadIdx.x < 64)
        __syncthreads();
    else
        __syncthreads(); /* LINE barriers_apart */
}

static __global__ void lane_missing(bool wrong, int *out)
{
    if (wrong && threadIdx.x == 77)
        return;
    int x = __shfl_xor_sync(ALL_LANES, 1, 1); /* LINE lane_missing */
    out[threadIdx.x + THREADS * blockIdx.x] = x;
}

static __global__ void vote_apart(bool wrong, int *out)
{
    bool all = false;

    if (wrong && threadIdx.x % 2)
        all = __ballot_sync(ALL_LANES, true) == ALL_LANES;
    else
        all = __ballot_sync(ALL_LANES, true) == ALL_LANES; /* LINE vote_apart */
    out[threadIdx.x + THREADS * blockIdx.x] = all;
}

static __global__ void mask_of_others(bool wrong, int *out)
{
    unsigned half = wrong ? 0xffffu : threadIdx.x % WARP < 16 ? 0xffffu : 0xffff0000u;

    out[threadIdx.x + THREADS * blockIdx.x] = __shfl_xor_sync(half, 1, 1); /* LINE mask_of_others */
}

static __global__ void not_written(bool wrong, int *out)
{
    __shared__ int x[THREADS];

    if (!wrong || threadIdx.x != 9)
        x[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x + THREADS * blockIdx.x] = x[THREADS - 1 - threadIdx.x]; /* LINE not_written */
}

static __global__ void dynamic_not_written(bool wrong, int *out)
{
    SHARED_BYTES(int, x);

    if (!wrong || threadIdx.x != 9)
        x[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x + THREADS * blockIdx.x] = x[THREADS - 1 - threadIdx.x]; /* LINE dynamic_not_written */
}

static __global__ void barrier_missing(bool wrong, int *out)
{
    __shared__ int x[THREADS];

    x[threadIdx.x] = 0;
    __syncthreads();
    x[threadIdx.x] = 1;
    if (!wrong)
        __syncthreads();
    out[threadIdx.x + THREADS * blockIdx.x] = x[(threadIdx.x + 32) % THREADS]; /* LINE barrier_missing */
}

/* The next round writes what some still read: a barrier at its end is missing. */
static __global__ void second_barrier_missing(bool wrong, int *out)
{
    int sum = 0;
    SHARED_BYTES(int, x);

    for (int round = 0; round < 3; round++) {
        x[threadIdx.x] = 1; /* LINE second_barrier_missing */
        __syncthreads();
        sum += x[(threadIdx.x + 64) % THREADS];
        if (!wrong)
            __syncthreads();
    }
    out[threadIdx.x + THREADS * blockIdx.x] = sum == 3;
}

static __global__ void warp_not_synchronised(bool wrong, int *out)
{
    __shared__ int x[THREADS];

    x[threadIdx.x] = 0;
    __syncthreads();
    x[threadIdx.x] = 1;
    if (!wrong)
        __syncwarp();
    out[threadIdx.x + THREADS * blockIdx.x] = x[threadIdx.x ^ 1]; /* LINE warp_not_synchronised */
}

static __global__ void blocks_race(bool wrong, int *out)
{
    if (threadIdx.x == 0)
        out[wrong ? 0 : blockIdx.x * THREADS] = (int)gridDim.x / BLOCKS; /* LINE blocks_race */
    if (threadIdx.x == 1)
        atomicMax(&out[1], 1);
}

static __global__ void out_of_bounds(bool wrong, int *out)
{
    if (threadIdx.x == 5 && blockIdx.x == 0)
        out[wrong ? BLOCKS * THREADS : 5] = 1; /* LINE out_of_bounds */
}

static __global__ void shared_out_of_bounds(bool wrong, int *)
{
    SHARED_BYTES(int, x);

    x[threadIdx.x + wrong] = 1; /* LINE shared_out_of_bounds */
}

static __device__ int deep(volatile int *above, int depth)
{
    volatile int local[1024];

    local[depth % 1024] = above ? above[(depth + 1) % 1024] : 0;
    return depth == 0 ? local[0] : deep(local, depth - 1) + local[1];
}

static __global__ void stack_overflow(bool wrong, int *)
{
    (void)deep(NULL, wrong ? 100 : 5);
}

static __global__ void misaligned_copy(bool wrong, int *out)
{
    __shared__ __align__(16) int x[THREADS * 4 + 4];

    copy_16(&x[threadIdx.x * 4 + (wrong ? 1 : 0)], out, 16); /* LINE misaligned_copy */
    copies_commit();
    copies_wait<0>();
}

/* Gives what has come. */
static __global__ void wait_missing(bool wrong, int *out)
{
    __shared__ __align__(16) int x[THREADS];
    int at = (int)threadIdx.x * 4;

    if (at >= THREADS)
        return;
    copy_16(&x[at], &out[blockIdx.x * THREADS + at], 16);
    copies_commit();
    if (wrong)
        copies_wait<1>();
    else
        copies_wait<0>();
    for (int i = 0; i < 4; i++)
        out[blockIdx.x * THREADS + at + i] = x[at + i];
}

struct planted {
    const char *name;
    void (*kernel)(bool wrong, int *out);
};

static const planted KERNELS[] = {
    {"barrier_not_reached", barrier_not_reached},
    {"barriers_apart", barriers_apart},
    {"lane_missing", lane_missing},
    {"vote_apart", vote_apart},
    {"mask_of_others", mask_of_others},
    {"not_written", not_written},
    {"dynamic_not_written", dynamic_not_written},
    {"barrier_missing", barrier_missing},
    {"second_barrier_missing", second_barrier_missing},
    {"warp_not_synchronised", warp_not_synchronised},
    {"blocks_race", blocks_race},
    {"out_of_bounds", out_of_bounds},
    {"shared_out_of_bounds", shared_out_of_bounds},
    {"stack_overflow", stack_overflow},
    {"misaligned_copy", misaligned_copy},
    {"wait_missing", wait_missing},
};

fsdp_status cudash_test_planted(const char *name, bool wrong, int *out)
{
    for (const planted &p : KERNELS)
        if (strcmp(name, p.name) == 0)
            return launch(NULL, name, p.kernel, dim3(BLOCKS), THREADS, THREADS * sizeof(int), wrong, out);
    return FSDP_FAIL(FSDP_NOT_FOUND, "no kernel %s", name);
}
