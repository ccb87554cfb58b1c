/* rig.c - arrays, and the clock, for the rows of bench_kernels. */
#include "kernels/rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

double seconds(void)
{
    return (double)fsdp__clock_ns() * 1e-9;
}

void *array(bench *b, fsdp_dtype dtype, int64_t numel, int below)
{
    size_t bytes = ((size_t)numel * fsdp_dtype_size(dtype) + 63) / 64 * 64;
    unsigned char *p = aligned_alloc(64, bytes + 64);
    fsdp__random_args random = {
        .dst = p, .numel = numel, .key = 7, .a = -0.5f, .b = 1.0f, .distribution = FSDP__UNIFORM, .dtype = dtype};

    b->held[b->held_count++] = p;
    if (fsdp_dtype_is_floating(dtype))
        (void)b->kernels[FSDP__KERNEL_RANDOM](b->stream, &random);
    else
        for (int64_t i = 0; i < numel; i++)
            ((int32_t *)p)[i] = (int32_t)(i * 7919 % below);
    return p;
}

void release(bench *b)
{
    while (b->held_count > 0)
        free(b->held[--b->held_count]);
}

bool wanted(const bench *b, const char *name)
{
    for (int i = 0; i < b->word_count; i++)
        if (strstr(name, b->words[i]))
            return true;
    return b->word_count == 0;
}

void measure(bench *b, fsdp__kernel kernel, const void *args, double flops, double bytes, const char *what)
{
    double best = 1e30, spent = 0.0, floor = fmax(flops / b->flop_rate, bytes / b->byte_rate) * 1e-9;

    for (int i = 0; i < 3 || (spent < 0.3 && i < 200); i++) {
        double start = seconds(), took;
        (void)b->kernels[kernel](b->stream, args);
        took = seconds() - start;
        best = fmin(best, took);
        spent += took;
    }
    printf("%-20s %-34s %9.3f ms %8.1f GF/s %8.1f GB/s %6.0f%%\n", fsdp__kernel_infos[kernel].name, what, best * 1e3,
           flops / best * 1e-9, bytes / best * 1e-9, 100.0 * floor / best);
    fflush(stdout);
    release(b);
}
