/* box.c - boxes in row-major tensors. */
#include "base/compiler.h"
#include "fsdp/state.h"

bool fsdp_box_intersect(int ndim, const int64_t *offset_a, const int64_t *size_a, const int64_t *offset_b,
                        const int64_t *size_b, int64_t *offset, int64_t *size)
{
    bool some = true;

    for (int d = 0; d < ndim; d++) {
        int64_t end_a = offset_a[d] + size_a[d], end_b = offset_b[d] + size_b[d];
        int64_t first = FSDP__MAX(offset_a[d], offset_b[d]), end = FSDP__MIN(end_a, end_b);

        offset[d] = first;
        size[d] = FSDP__MAX(end - first, 0);
        some = some && size[d] > 0;
    }
    return some;
}

static fsdp_status check_box(int ndim, const int64_t *shape, const int64_t *offset, const int64_t *size)
{
    if (ndim < 0 || ndim > FSDP_MAX_DIMS)
        return FSDP_FAIL(FSDP_INVALID, "a box has 0 to %d dimensions, not %d", FSDP_MAX_DIMS, ndim);
    for (int d = 0; d < ndim; d++)
        if (offset[d] < 0 || size[d] < 0 || offset[d] > shape[d] || size[d] > shape[d] - offset[d])
            return FSDP_FAIL(FSDP_INVALID, "box of %lld from %lld does not fit dimension %d of size %lld",
                             (long long)size[d], (long long)offset[d], d, (long long)shape[d]);
    return FSDP_OK;
}

fsdp_status fsdp_box_runs(int ndim, const int64_t *shape, const int64_t *offset, const int64_t *size, fsdp_box_run run,
                          void *arg)
{
    int64_t strides[FSDP_MAX_DIMS], index[FSDP_MAX_DIMS] = {0};
    int64_t stride = 1, numel = 1, first = 0, length = 1, local = 0;
    int outer = ndim; /* dimensions outside of a run */

    FSDP_TRY(check_box(ndim, shape, offset, size));
    for (int d = ndim - 1; d >= 0; d--) {
        strides[d] = stride;
        stride *= shape[d];
        first += offset[d] * strides[d];
        numel *= size[d];
    }
    if (numel == 0)
        return FSDP_OK;
    /* The last dimension that is cut, together with all behind it, is one run. */
    while (outer > 0) {
        length *= size[--outer];
        if (size[outer] != shape[outer])
            break;
    }
    while (local < numel) {
        int64_t global = first;

        for (int d = 0; d < outer; d++)
            global += index[d] * strides[d];
        FSDP_TRY(run(arg, global, local, length));
        local += length;
        for (int d = outer - 1; d >= 0 && ++index[d] == size[d]; d--)
            index[d] = 0;
    }
    return FSDP_OK;
}

fsdp_status fsdp_state_dict_entry_runs(const fsdp_state_dict_entry *entry, fsdp_box_run run, void *arg)
{
    if (!entry->flat)
        return fsdp_box_runs(entry->ndim, entry->global_shape, entry->offset, entry->size, run, arg);
    return entry->size[0] > 0 ? run(arg, entry->offset[0], 0, entry->size[0]) : FSDP_OK;
}
