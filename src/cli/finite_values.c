/* finite_values.c - looks at every value of every tensor: the exponent shows whether it is finite. */
#include "cli/finite_values.h"

#include <math.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/text.h"

enum {
    WINDOW_BYTES = 4 << 20
};

/* Returns the index of the first value that is not finite; `count` if all are. */
static int64_t find_16(const uint16_t *values, int64_t count, uint16_t exponent)
{
    int64_t i = 0;

    while (i < count && (values[i] & exponent) != exponent)
        i++;
    return i;
}

static int64_t find_32(const float *values, int64_t count)
{
    int64_t i = 0;

    while (i < count && isfinite(values[i]))
        i++;
    return i;
}

int64_t fsdp__first_not_finite(const void *values, int64_t count, fsdp_dtype dtype)
{
    switch (dtype) {
    case FSDP_F32:
        return find_32(values, count);
    case FSDP_BF16:
        return find_16(values, count, 0x7f80u);
    case FSDP_F16:
        return find_16(values, count, 0x7c00u);
    default: /* integers */
        return count;
    }
}

typedef struct look {
    fsdp__tensor_source *source;
    void *window;
    uint64_t done, all; /* in bytes */
    void (*progress)(void *arg, uint64_t done, uint64_t all);
    void *arg;
} look;

static const char *place_of(const fsdp__tensor_source *source, const fsdp__source_tensor *t)
{
    const fsdp_weights_entry *entry = t->entry;

    return source->reader ? fsdp_checkpoint_path(source->reader) : entry->file;
}

static fsdp_status look_at(look *l, const fsdp__source_tensor *t)
{
    int64_t size = (int64_t)fsdp_dtype_size(t->dtype);

    if (t->dtype == FSDP_DTYPE_NONE) /* its values cannot be read */
        return FSDP_OK;
    for (int64_t first = 0; first < t->numel; first += WINDOW_BYTES / size) {
        int64_t count = FSDP__MIN(t->numel - first, WINDOW_BYTES / size), bad;

        FSDP_TRY(fsdp__tensor_source_read(l->source, t, first, count, l->window));
        bad = fsdp__first_not_finite(l->window, count, t->dtype);
        if (bad < count)
            return FSDP_FAIL(FSDP_NOT_FINITE,
                             "'%s': tensor '%s' holds NaN or infinite values: the first is element %lld",
                             place_of(l->source, t), FSDP__SHOWN_NAME(t->name), (long long)(first + bad));
        l->done += (uint64_t)(count * size);
        if (l->progress)
            l->progress(l->arg, l->done, l->all);
    }
    return FSDP_OK;
}

fsdp_status fsdp__check_finite_weights(fsdp__tensor_source *source,
                                       void (*progress)(void *arg, uint64_t done, uint64_t all), void *arg)
{
    FSDP__FREED void *window = fsdp__malloc(WINDOW_BYTES);
    look l = {.source = source, .window = window, .progress = progress, .arg = arg};

    FSDP__TRY_NEW(window);
    FSDP_TRY(fsdp__tensor_source_list(source, true));
    for (int64_t i = 0; i < source->count; i++)
        l.all += source->tensors[i].bytes;
    for (int64_t i = 0; i < source->count; i++)
        FSDP_TRY(look_at(&l, &source->tensors[i]));
    return FSDP_OK;
}

fsdp_status fsdp__check_finite_path(const char *path)
{
    FSDP__SCOPED(fsdp__tensor_source_release) fsdp__tensor_source source;

    FSDP_TRY(fsdp__tensor_source_open_any(path, &source));
    return fsdp__check_finite_weights(&source, NULL, NULL);
}

static fsdp_status explain(const char *path, const fsdp__adapters *adapters, const char *what)
{
    fsdp_status status = fsdp__check_finite_path(path);

    for (int i = 0; i < adapters->count && status == FSDP_OK; i++)
        status = fsdp__check_finite_path(fsdp__adapters_at(adapters, i));
    if (status != FSDP_OK)
        return FSDP_FAIL(FSDP_NOT_FINITE, "%s: %s", what, fsdp_last_error());
    return FSDP_FAIL(FSDP_NOT_FINITE,
                     "%s, though all weights of '%s'%s are finite: values overflow while it computes, which a --dtype "
                     "of float32 may avoid",
                     what, path, adapters->count > 0 ? " and of its adapter" : "");
}

fsdp_status fsdp__fail_not_finite(fsdp_context *context, const char *path, const fsdp__adapters *adapters,
                                  const char *what)
{
    fsdp_status mine = fsdp_context_rank(context) == 0 ? explain(path, adapters, what) : FSDP_OK;

    return fsdp_context_world_size(context) > 1 ? fsdp_agree(fsdp_world(context), mine) : mine;
}
