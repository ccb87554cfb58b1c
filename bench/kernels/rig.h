/* rig.h - what measures the rows of bench_kernels. */
#pragma once

#include "device/kernels.h"

typedef struct bench {
    fsdp_stream *stream;
    const fsdp__kernel_function *kernels;
    char **words;
    int word_count, threads;
    double flop_rate, byte_rate; /* 1e9 per second */
    void *held[64];
    int held_count;
} bench;

double seconds(void);
/* Makes an array of values in [-0.5, 0.5), or of whole numbers below `below` for indices, which are int32. release
 * frees it. */
void *array(bench *b, fsdp_dtype dtype, int64_t numel, int below);
void release(bench *b); /* frees the arrays */
bool wanted(const bench *b, const char *name);
/* Runs the call, prints its line, and releases the arrays. */
void measure(bench *b, fsdp__kernel kernel, const void *args, double flops, double bytes, const char *what);

#define WANT(NAME)                                                \
    if (!wanted(b, fsdp__kernel_infos[FSDP__KERNEL_##NAME].name)) \
        return;

/* elements.c */
void bench_elements(bench *b, fsdp_dtype t, int64_t rows, int64_t cols);
/* images.c */
void bench_images(bench *b);
