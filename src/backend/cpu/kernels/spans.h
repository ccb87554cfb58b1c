/* spans.h - one parallel pass over many pieces of memory, balanced by elements, for loops whose elements do not depend
 * on each other (so that the cut between threads does not show in the result). */
#pragma once

#include "backend/cpu/kernels/kernel.h"

/* fsdp__for_spans calls body(args, span, begin, end) for pieces that together are elements [0, numel(i)) of every span
 * i. */
typedef void (*fsdp__span_body)(const void *args, int64_t span, int64_t begin, int64_t end);
typedef int64_t (*fsdp__span_numel)(const void *args, int64_t span);

/* Defines a function that returns `numel`, the elements of span `span` by the arguments `a` of that type. */
#define FSDP__SPAN_NUMEL(name, type, numel)             \
    static int64_t name(const void *args, int64_t span) \
    {                                                   \
        const type *a = args;                           \
                                                        \
        return numel;                                   \
    }

/* Runs one thread's share of `total` elements. Cuts fall on multiples of FSDP__CODE_BLOCK elements of the whole. */
static inline void fsdp__spans_share(int64_t count, fsdp__span_numel numel, fsdp__span_body body, const void *args,
                                     int64_t total, int64_t thread, int64_t threads)
{
    int64_t share = fsdp__round_up(fsdp__ceil_div(total, threads), FSDP__CODE_BLOCK);
    int64_t begin = share * thread, end = FSDP__MIN(begin + share, total), at = 0;

    for (int64_t s = 0; s < count && at < end; s++) {
        int64_t n = numel(args, s), from = FSDP__MAX(begin - at, 0), to = FSDP__MIN(end - at, n);
        if (from < to)
            body(args, s, from, to);
        at += n;
    }
}

static inline void fsdp__for_spans(int64_t count, fsdp__span_numel numel, fsdp__span_body body, const void *args)
{
    int64_t total = 0;

    for (int64_t s = 0; s < count; s++)
        total += numel(args, s);
#ifdef _OPENMP
    if (total > FSDP__PARALLEL_MIN) {
#pragma omp parallel
        fsdp__spans_share(count, numel, body, args, total, fsdp__thread(), omp_get_num_threads());
        return;
    }
#endif
    fsdp__spans_share(count, numel, body, args, total, 0, 1); /* even a parallel region of one thread takes time */
}
