/* trial.h - runs one kernel call on the oracle and on every table that is held to it, and compares all memory it could
 * touch.
 *
 * A case makes its buffers with an_input() and an_output(), points a struct of arguments at them and calls check().
 * check() runs the oracle, puts the buffers back as they were, runs a table, compares; with 1, 2, ... threads, which
 * must all give the same bits. Guard bytes around the buffers must stay as they are. */
#pragma once

#include "base/compiler.h"
#include "base/rng.h"
#include "device/device.h"
#include "oracle/oracle.h"
#include "support/test.h"

enum {
    GUARD = 256 /* bytes before and behind a buffer */
};

/* Kernels that are held to the oracle: of the host's memory, or of a device of its own. */
typedef struct oracle_table {
    const char *name;
    const fsdp__kernel_function *kernels;
    int most_threads;         /* they run with 1, 2, ... of them */
    bool products_by_threads; /* the bits of a matrix product depend on their number */
    bool own_functions;       /* their logarithm, sine and cosine are not libm's: normal numbers have other last bits */
    bool rounds_factors; /* attention's probabilities and their gradients are rounded to its dtype, then multiplied */
    bool same_bits;      /* as the table before it has; without a device of its own */
    bool lists;          /* the list of buffers (device/kernel_buffers.c) is held to what they do */
    fsdp_device *device; /* the call is launched there, on copies of the buffers; `kernels` is not asked for */
    bool own_bits;       /* the device's: not those of the table before it, but the same in two runs */
} oracle_table;

typedef struct buffer {
    size_t shift;                              /* bytes from an alignment of 16 */
    unsigned char *block;                      /* guard, data, guard */
    unsigned char *initial, *expected, *first; /* contents before, of the oracle, of one thread */
    fsdp_dtype dtype;
    int64_t numel;
    bool output;
    double relative, absolute; /* tolerance beyond one rounding to dtype */
    float *terms;              /* NULL, or for each element the sum of its terms' sizes: each may be rounded to dtype */
} buffer;

typedef struct test_case {
    fsdp_stream *stream;
    const oracle_table *tables;
    int table_count;
    uint64_t key, draws; /* random numbers of this case */
    fsdp_dtype dtype;    /* the case's main dtype */
    buffer buffers[24];
    int count;
    char text[256]; /* shape and flags, for messages */
    fsdp__kernel kernel;
} test_case;

/* 32 random bits. */
uint32_t draw(test_case *c);
/* A random integer in [low, high]. */
int64_t between(test_case *c, int64_t low, int64_t high);
bool coin(test_case *c);
double real(test_case *c, double low, double high);
fsdp_dtype any_float(test_case *c);
/* `numel` random values of [low, high]. In every other case each buffer is aligned to its elements only. */
void *a_buffer(test_case *c, fsdp_dtype dtype, int64_t numel, double low, double high, bool output, double relative,
               double absolute);
void *an_input(test_case *c, fsdp_dtype dtype, int64_t numel, double low, double high);
/* Also for memory that is read and written. Starts with random values: those not written must stay. */
void *an_output(test_case *c, fsdp_dtype dtype, int64_t numel, double relative, double absolute);
/* The buffer at `data` is written too. */
void also_output(test_case *c, const void *data, double relative, double absolute);
/* Returns the terms of the buffer at `data`, for the caller to fill in. */
float *terms_of(test_case *c, const void *data);
void free_case(test_case *c);
void *data_of(const buffer *b);
size_t bytes_of(const buffer *b);
double rounding(fsdp_dtype dtype);
/* Every buffer against what it should hold, and its guards. */
void compare_all(const test_case *c, const char *who);
void run(test_case *c, fsdp__kernel_function function, const void *args, const char *who);
/* Threads of kernels, where they have any. */
void use_threads(int threads);
/* Keeps what the buffers hold. */
void keep_first(test_case *c);
/* The buffers hold the very bits that were kept last; without `nan_bits` a NaN may be any other. */
void check_bits(const test_case *c, const char *who, bool nan_bits);
/* With every number of threads of the table. */
void check_table(test_case *c, const oracle_table *table, const void *args);
/* Runs the oracle and keeps what it gave. The text says what was drawn. */
void expect(test_case *c, const void *args, const char *format, ...) FSDP_PRINTF(3, 4);
/* Runs every table (everywhere.c), then frees the buffers. */
void check_everywhere(test_case *c, const void *args);

/* The call on every table against the oracle. */
#define check(c, args, ...) (expect((c), (args), __VA_ARGS__), check_everywhere((c), (args)))
