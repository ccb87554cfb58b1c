/* kernel.h - what every file of kernels/ starts from.
 *
 * Each file is compiled once per instruction set (flags.cmake), with FSDP__ISA set to base, v3 or v4; KERNEL(x) is
 * the name of x in this set. Everything else in these files is static or inline.
 *
 * A loop is written once for all floating dtypes: as an always-inline function whose dtype arguments are constants
 * where it is called (FSDP__EACH_FLOAT), so that fsdp__load and fsdp__store become plain moves or shifts.
 */
#pragma once

#ifdef _OPENMP
#include <omp.h>
#endif

#include "base/compiler.h"
#include "device/device.h"
#include "device/kernels.h"

#ifndef FSDP__ISA
#define FSDP__ISA base
#endif
#define FSDP__ISA_PASTE(name, isa) name##_##isa
#define FSDP__ISA_NAME(name, isa) FSDP__ISA_PASTE(name, isa)
#define KERNEL(name) FSDP__ISA_NAME(fsdp__cpu_##name, FSDP__ISA)

#define FSDP__KERNEL_DECLARE(NAME, name, class) fsdp_status KERNEL(name)(fsdp_stream * stream, const void *args);
FSDP__KERNEL_MAP(FSDP__KERNEL_DECLARE)
#undef FSDP__KERNEL_DECLARE

#define FSDP__INLINE static inline __attribute__((always_inline))

/* Size of the widest float vector of this instruction set, in elements. */
#if defined(__AVX512F__)
#define FSDP__LANES 16
#elif defined(__AVX__)
#define FSDP__LANES 8
#else
#define FSDP__LANES 4
#endif

/* Starting threads costs some microseconds: loops over fewer elements than this run on one thread. */
#define FSDP__PARALLEL_MIN 16384
/* Counts the elements of one piece of a parallel elementwise loop: a few pages, and a multiple of every vector. */
#define FSDP__CHUNK 8192

/* Expands to a statement, the last argument, in which T is a constant that equals `dtype`. */
#define FSDP__EACH_FLOAT(dtype, T, ...) \
    switch (dtype) {                    \
    case FSDP_F32: {                    \
        const fsdp_dtype T = FSDP_F32;  \
        __VA_ARGS__;                    \
    } break;                            \
    case FSDP_BF16: {                   \
        const fsdp_dtype T = FSDP_BF16; \
        __VA_ARGS__;                    \
    } break;                            \
    default: {                          \
        const fsdp_dtype T = FSDP_F16;  \
        __VA_ARGS__;                    \
    }                                   \
    }

/* fsdp__threads returns how many threads a parallel loop started here would have, and fsdp__thread the calling thread's
 * number in it. */
FSDP__INLINE int fsdp__threads(void)
{
#ifdef _OPENMP
    return omp_in_parallel() ? 1 : omp_get_max_threads();
#else
    return 1;
#endif
}

FSDP__INLINE int fsdp__thread(void)
{
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

FSDP__INLINE int64_t fsdp__ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

FSDP__INLINE int64_t fsdp__round_up(int64_t n, int64_t unit)
{
    return fsdp__ceil_div(n, unit) * unit;
}

/* fsdp__for_ranges calls body(args, begin, end) for pieces of [0, n), `unit` elements of work for each index, on all
 * threads if that pays. */
typedef void (*fsdp__range_body)(const void *args, int64_t begin, int64_t end);

static inline void fsdp__for_ranges(int64_t n, int64_t unit, fsdp__range_body body, const void *args)
{
    int64_t chunk = FSDP__MAX(FSDP__CHUNK / FSDP__MAX(unit, 1), 1), chunks = fsdp__ceil_div(n, chunk);

    if (n * unit <= FSDP__PARALLEL_MIN || chunks == 1) { /* a region of one thread takes time, too */
        body(args, 0, n);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < chunks; c++)
        body(args, c * chunk, FSDP__MIN((c + 1) * chunk, n));
}

/* Begins the definition of a kernel, whose arguments are `k`. */
#define FSDP__KERNEL(name, k)                                                            \
    static fsdp_status name##_kernel(fsdp_stream *stream, const fsdp__##name##_args *k); \
    fsdp_status KERNEL(name)(fsdp_stream * stream, const void *args)                     \
    {                                                                                    \
        return name##_kernel(stream, args);                                              \
    }                                                                                    \
    static fsdp_status name##_kernel(fsdp_stream *stream FSDP__UNUSED, const fsdp__##name##_args *k)

/* Begins the definition of a kernel that takes pieces [begin, end) of [0, n), with its arguments as `k` in `n` and
 * `unit`. */
#define FSDP__RANGE_KERNEL(name, k, n, unit)                                            \
    static void name##_range(const fsdp__##name##_args *k, int64_t begin, int64_t end); \
    static void name##_body(const void *args, int64_t begin, int64_t end)               \
    {                                                                                   \
        name##_range(args, begin, end);                                                 \
    }                                                                                   \
    FSDP__KERNEL(name, k)                                                               \
    {                                                                                   \
        fsdp__for_ranges((n), (unit), name##_body, k);                                  \
        return FSDP_OK;                                                                 \
    }                                                                                   \
    static void name##_range(const fsdp__##name##_args *k, int64_t begin, int64_t end)
