/* trial.c - a case's numbers and buffers, and the comparison. */
#include "oracle/trial.h"

#include <math.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#define GUARD_BYTE 0xA5

uint32_t draw(test_case *c)
{
    uint32_t words[4];

    fsdp__philox(c->key, c->draws++, words);
    return words[0];
}

int64_t between(test_case *c, int64_t low, int64_t high)
{
    return low + (int64_t)(draw(c) % (uint64_t)(high - low + 1));
}

bool coin(test_case *c)
{
    return draw(c) >> 31;
}

double real(test_case *c, double low, double high)
{
    return low + (high - low) * (double)draw(c) * 0x1p-32;
}

fsdp_dtype any_float(test_case *c)
{
    static const fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16};

    return types[between(c, 0, 2)];
}

void *data_of(const buffer *b)
{
    return b->block + GUARD;
}

size_t bytes_of(const buffer *b)
{
    return (size_t)b->numel * fsdp_dtype_size(b->dtype);
}

/* How far the next buffer begins from an alignment of 16 bytes: a number of its elements. */
static size_t draw_shift(const test_case *c, fsdp_dtype dtype)
{
    uint32_t words[4];

    fsdp__philox(~c->key, (uint64_t)c->count, words); /* not one of the case's own draws */
    return c->key % 2 == 0 ? 0 : words[0] % 16 * fsdp_dtype_size(dtype) % 16;
}

void *a_buffer(test_case *c, fsdp_dtype dtype, int64_t numel, double low, double high, bool output, double relative,
               double absolute)
{
    buffer *b = &c->buffers[c->count++];
    size_t bytes = (size_t)numel * fsdp_dtype_size(dtype);

    *b = (buffer){.shift = draw_shift(c, dtype),
                  .dtype = dtype,
                  .numel = numel,
                  .output = output,
                  .relative = relative,
                  .absolute = absolute};
    b->block = (unsigned char *)malloc(b->shift + bytes + 2 * GUARD) + b->shift;
    b->initial = malloc(bytes + 2 * GUARD);
    b->expected = malloc(bytes + 2 * GUARD);
    b->first = malloc(bytes + 2 * GUARD);
    memset(b->block, GUARD_BYTE, bytes + 2 * GUARD);
    for (int64_t i = 0; i < numel; i++)
        oracle_put(dtype, data_of(b), i,
                   dtype == FSDP_I32 || dtype == FSDP_I64 || dtype == FSDP_U8 || dtype == FSDP_BOOL
                       ? (double)between(c, (int64_t)low, (int64_t)high)
                       : real(c, low, high));
    return data_of(b);
}

void *an_input(test_case *c, fsdp_dtype dtype, int64_t numel, double low, double high)
{
    return a_buffer(c, dtype, numel, low, high, false, 0.0, 0.0);
}

void *an_output(test_case *c, fsdp_dtype dtype, int64_t numel, double relative, double absolute)
{
    return a_buffer(c, dtype, numel, -1.0, 1.0, true, relative, absolute);
}

void also_output(test_case *c, const void *data, double relative, double absolute)
{
    for (int i = 0; i < c->count; i++)
        if (data_of(&c->buffers[i]) == data) {
            c->buffers[i].output = true;
            c->buffers[i].relative = relative;
            c->buffers[i].absolute = absolute;
        }
}

float *terms_of(test_case *c, const void *data)
{
    for (int i = 0; i < c->count; i++)
        if (data_of(&c->buffers[i]) == data)
            return c->buffers[i].terms = calloc((size_t)c->buffers[i].numel + 1, sizeof(float));
    TEST_FAIL("no buffer of the case");
}

void free_case(test_case *c)
{
    for (int i = 0; i < c->count; i++) {
        free(c->buffers[i].block - c->buffers[i].shift);
        free(c->buffers[i].initial);
        free(c->buffers[i].expected);
        free(c->buffers[i].first);
        free(c->buffers[i].terms);
    }
    c->count = 0;
}

double rounding(fsdp_dtype dtype)
{
    return dtype == FSDP_BF16 ? 0x1p-8 : dtype == FSDP_F16 ? 0x1p-11 : dtype == FSDP_F32 ? 0x1p-24 : 0.0;
}

/* Below this a float of the dtype is denormal and may be flushed to zero. */
static double smallest(fsdp_dtype dtype)
{
    return dtype == FSDP_F16 ? 0x1p-24 : 0x1p-126;
}

static void compare(const test_case *c, int index, const char *who)
{
    const buffer *b = &c->buffers[index];

    for (int64_t i = 0; i < b->numel; i++) {
        double got = oracle_get(b->dtype, data_of(b), i), want = oracle_get(b->dtype, b->expected + GUARD, i);
        /* Both sides round: a value next to a boundary may come out one step apart. */
        double tolerance = (2.0 * rounding(b->dtype) + b->relative) * fabs(want) + b->absolute + smallest(b->dtype);

        if (b->terms)
            tolerance += rounding(b->dtype) * (double)b->terms[i];
        bool same = (isnan(got) && isnan(want)) || got == want;

        if (!same) /* codes may be a step apart, too, where a case says so */
            same = fabs(got - want) <= (fsdp_dtype_is_floating(b->dtype) ? tolerance : b->absolute);
        if (!same)
            TEST_FAIL("%s %s (%s): buffer %d of %s, element %ld: %.9g, expected %.9g +- %.3g",
                      fsdp__kernel_infos[c->kernel].name, c->text, who, index, fsdp_dtype_name(b->dtype), (long)i, got,
                      want, tolerance);
    }
}

void compare_all(const test_case *c, const char *who)
{
    for (int i = 0; i < c->count; i++) {
        const buffer *b = &c->buffers[i];
        size_t bytes = bytes_of(b);
        for (size_t g = 0; g < GUARD; g++)
            if (b->block[g] != GUARD_BYTE || b->block[GUARD + bytes + g] != GUARD_BYTE)
                TEST_FAIL("%s %s (%s): wrote outside buffer %d", fsdp__kernel_infos[c->kernel].name, c->text, who, i);
        if (b->output)
            compare(c, i, who);
        else if (memcmp(b->block, b->initial, bytes + 2 * GUARD) != 0)
            TEST_FAIL("%s %s (%s): changed input %d", fsdp__kernel_infos[c->kernel].name, c->text, who, i);
    }
}

void run(test_case *c, fsdp__kernel_function function, const void *args, const char *who)
{
    for (int i = 0; i < c->count; i++)
        memcpy(c->buffers[i].block, c->buffers[i].initial, bytes_of(&c->buffers[i]) + 2 * GUARD);
    if (function(c->stream, args) != FSDP_OK)
        TEST_FAIL("%s %s (%s): %s", fsdp__kernel_infos[c->kernel].name, c->text, who, fsdp_last_error());
}

void use_threads(int threads)
{
#ifdef _OPENMP
    omp_set_num_threads(threads);
#else
    (void)threads;
#endif
}

void keep_first(test_case *c)
{
    for (int i = 0; i < c->count; i++)
        memcpy(c->buffers[i].first, c->buffers[i].block, bytes_of(&c->buffers[i]) + 2 * GUARD);
}

/* Returns whether element i of a buffer is a NaN now, and was one when the buffers were kept. */
static bool stays_nan(const buffer *b, int64_t i)
{
    return fsdp_dtype_is_floating(b->dtype) && isnan(oracle_get(b->dtype, data_of(b), i)) &&
           isnan(oracle_get(b->dtype, b->first + GUARD, i));
}

void check_bits(const test_case *c, const char *who, bool nan_bits)
{
    for (int i = 0; i < c->count; i++) {
        const buffer *b = &c->buffers[i];
        size_t size = fsdp_dtype_size(b->dtype);

        if (memcmp(b->block, b->first, bytes_of(b) + 2 * GUARD) == 0)
            continue;
        if (memcmp(b->block, b->first, GUARD) != 0 ||
            memcmp(b->block + GUARD + bytes_of(b), b->first + GUARD + bytes_of(b), GUARD) != 0)
            TEST_FAIL("%s %s (%s): wrote outside buffer %d", fsdp__kernel_infos[c->kernel].name, c->text, who, i);
        for (int64_t k = 0; k < b->numel; k++)
            if (memcmp(b->block + GUARD + (size_t)k * size, b->first + GUARD + (size_t)k * size, size) != 0 &&
                (nan_bits || !stays_nan(b, k)))
                TEST_FAIL("%s %s (%s): other bits than before in buffer %d, element %lld",
                          fsdp__kernel_infos[c->kernel].name, c->text, who, i, (long long)k);
    }
}

void check_table(test_case *c, const oracle_table *table, const void *args)
{
    bool by_threads = table->products_by_threads && c->kernel == FSDP__KERNEL_MATMUL;

    for (int threads = 1; threads <= table->most_threads; threads++) {
        char who[32];
        snprintf(who, sizeof who, "%s, %d threads", table->name, threads);
        use_threads(threads);
        run(c, table->kernels[c->kernel], args, who);
        if (threads == 1 || by_threads) {
            if (table->same_bits)
                check_bits(c, who, true);
            compare_all(c, who);
            keep_first(c);
            run(c, table->kernels[c->kernel], args, who);
        }
        check_bits(c, who, true);
    }
}

void expect(test_case *c, const void *args, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    vsnprintf(c->text, sizeof c->text, format, list);
    va_end(list);
    for (int i = 0; i < c->count; i++)
        memcpy(c->buffers[i].initial, c->buffers[i].block, bytes_of(&c->buffers[i]) + 2 * GUARD);
    run(c, oracle_kernels[c->kernel], args, "oracle");
    for (int i = 0; i < c->count; i++)
        memcpy(c->buffers[i].expected, c->buffers[i].block, bytes_of(&c->buffers[i]) + 2 * GUARD);
}
