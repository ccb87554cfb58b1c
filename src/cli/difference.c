/* difference.c - compares two tensors, window by window. */
#include "cli/difference.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"

enum {
    WINDOW = 1 << 19 /* elements */
};

/* A window of one of the two, as it is in the file and as numbers. */
typedef struct window {
    fsdp_dtype dtype;
    void *raw;
    double *numbers;
} window;

static double integer_at(fsdp_dtype dtype, const void *raw, int64_t i)
{
    if (dtype == FSDP_I32)
        return (double)((const int32_t *)raw)[i];
    return dtype == FSDP_I64 ? (double)((const int64_t *)raw)[i] : (double)((const uint8_t *)raw)[i];
}

static fsdp_status widen(fsdp_context *context, window *w, int64_t n)
{
    float *floats = (float *)w->numbers + n; /* the upper half, which is read before it is written */
    fsdp_tensor *tensor;
    fsdp_status status;

    for (int64_t i = 0; i < n && !fsdp_dtype_is_floating(w->dtype); i++)
        w->numbers[i] = integer_at(w->dtype, w->raw, i);
    if (!fsdp_dtype_is_floating(w->dtype))
        return FSDP_OK;
    FSDP_TRY(fsdp_scope_begin(context));
    tensor = fsdp_from_data(fsdp_cpu(context), w->dtype, FSDP_SHAPE(n), w->raw);
    status = tensor ? fsdp_tensor_read(tensor, FSDP_F32, floats) : fsdp_last_status();
    fsdp_scope_end(context, NULL);
    for (int64_t i = 0; i < n && status == FSDP_OK; i++)
        w->numbers[i] = (double)floats[i];
    return status;
}

static void note(fsdp__difference *d, double a, double b, int64_t element)
{
    double apart = a == b ? 0 : fabs(a - b); /* integers beyond 2^53 can be equal here */

    if (isnan(apart))
        apart = INFINITY;
    if (d->count++ > 0 && apart <= d->most)
        return;
    d->most = apart;
    d->a = a;
    d->b = b;
    d->element = element;
}

static bool are_same(const window w[2], int64_t i)
{
    double a = w[0].numbers[i], b = w[1].numbers[i];
    size_t size = fsdp_dtype_size(w[0].dtype), at = (size_t)i * size;

    if (w[0].dtype != w[1].dtype)
        return a == b || (isnan(a) && isnan(b));
    if (fsdp_dtype_is_floating(w[0].dtype) && !isnan(a))
        return a == b; /* 0 and -0 are equal */
    return memcmp((const char *)w[0].raw + at, (const char *)w[1].raw + at, size) == 0;
}

static void compare(const window w[2], int64_t first, int64_t n, fsdp__difference *out)
{
    for (int64_t i = 0; i < n; i++)
        if (!are_same(w, i))
            note(out, w[0].numbers[i], w[1].numbers[i], first + i);
}

static fsdp_status compare_window(fsdp_context *context, window w[2], int64_t first, int64_t n, fsdp__difference *out)
{
    if (w[0].dtype == w[1].dtype && memcmp(w[0].raw, w[1].raw, (size_t)n * fsdp_dtype_size(w[0].dtype)) == 0)
        return FSDP_OK;
    FSDP_TRY(widen(context, &w[0], n));
    FSDP_TRY(widen(context, &w[1], n));
    compare(w, first, n, out);
    return FSDP_OK;
}

static fsdp_status allocate(window *w, fsdp_dtype dtype, int64_t numel)
{
    size_t n = (size_t)FSDP__MAX(FSDP__MIN(numel, WINDOW), 1);

    w->dtype = dtype;
    w->raw = fsdp__malloc(n * fsdp_dtype_size(dtype));
    w->numbers = fsdp__malloc(n * sizeof *w->numbers);
    return w->raw && w->numbers ? FSDP_OK : fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot compare tensors");
}

fsdp_status fsdp__difference_find(fsdp_context *context, fsdp__tensor_source *const sources[2],
                                  const fsdp__source_tensor *const tensors[2], fsdp__difference_progress progress,
                                  void *arg, fsdp__difference *out)
{
    int64_t numel = tensors[0]->numel;
    window w[2] = {{.raw = NULL}};
    fsdp_status status = FSDP_OK;

    memset(out, 0, sizeof *out);
    for (int side = 0; side < 2 && status == FSDP_OK; side++)
        status = allocate(&w[side], tensors[side]->dtype, numel);
    for (int64_t first = 0; first < numel && status == FSDP_OK; first += WINDOW) {
        int64_t n = FSDP__MIN(numel - first, WINDOW);

        for (int side = 0; side < 2 && status == FSDP_OK; side++)
            status = fsdp__tensor_source_read(sources[side], tensors[side], first, n, w[side].raw);
        if (status == FSDP_OK)
            status = compare_window(context, w, first, n, out);
        progress(arg, (uint64_t)n * (fsdp_dtype_size(w[0].dtype) + fsdp_dtype_size(w[1].dtype)));
    }
    for (int side = 0; side < 2; side++) {
        fsdp__free(w[side].raw);
        fsdp__free(w[side].numbers);
    }
    return status;
}
