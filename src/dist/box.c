/* box.c - boxes in row-major tensors. */
#include "base/compiler.h"
#include "dist/dist.h"

#define NO_RUN "cannot go through a box: there is no function that is called"

bool fsdp_box_intersect(int ndim, const int64_t *offset_a, const int64_t *size_a, const int64_t *offset_b,
                        const int64_t *size_b, int64_t *offset, int64_t *size)
{
    bool some = true;

    if (ndim > 0 && (!offset_a || !size_a || !offset_b || !size_b || !offset || !size))
        return false;
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
    if (ndim > 0 && (!shape || !offset || !size))
        return FSDP_FAIL(FSDP_INVALID, "a box needs a shape, an offset and a size");
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

    if (!run)
        return FSDP_FAIL(FSDP_INVALID, NO_RUN);
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

/* ---- several boxes ---- */

/* Runs of one box of several. */
typedef struct shifted {
    fsdp_box_run run;
    void *arg;
    int64_t base; /* where the box begins in the local tensor */
} shifted;

static fsdp_status run_shifted(void *arg, int64_t global, int64_t local, int64_t numel)
{
    const shifted *s = arg;

    return s->run(s->arg, global, s->base + local, numel);
}

/* Returns the dimension along which pieces lie one after the other. */
static int stacked_dim(const fsdp_piece *pieces)
{
    int d = 0;

    while (pieces[1].local_offset[d] == 0)
        d++;
    return d;
}

fsdp__piece_place fsdp__piece_place_of(const fsdp_piece *pieces, int count, int ndim, int k)
{
    int dim = count > 1 ? stacked_dim(pieces) : 0;
    fsdp__piece_place place = {.outer = 1, .inner = 1};
    int64_t behind = 1;

    for (int d = 0; d < dim; d++)
        place.outer *= pieces[k].size[d];
    for (int d = dim + 1; d < ndim; d++)
        behind *= pieces[k].size[d];
    for (int i = 0; i < count; i++)
        place.stride += (ndim > 0 ? pieces[i].size[dim] : 1) * behind;
    place.inner = (ndim > 0 ? pieces[k].size[dim] : 1) * behind;
    place.first = (ndim > 0 ? pieces[k].local_offset[dim] : 0) * behind;
    return place;
}

/* Calls `run` for what a piece has in row `row` of the dimensions outside of the one along which pieces lie. */
static fsdp_status row_runs(int ndim, const int64_t *shape, const fsdp_piece *piece, int dim, int64_t row,
                            const shifted *to)
{
    fsdp_piece part = *piece;

    for (int d = dim - 1; d >= 0; d--) {
        part.offset[d] += row % piece->size[d];
        part.size[d] = 1;
        row /= piece->size[d];
    }
    return fsdp_box_runs(ndim, shape, part.offset, part.size, run_shifted, (void *)(uintptr_t)to);
}

fsdp_status fsdp__pieces_runs(bool flat, int ndim, const int64_t *shape, const fsdp_piece *pieces, int count,
                              fsdp_box_run run, void *arg)
{
    int dim;

    if (!run)
        return FSDP_FAIL(FSDP_INVALID, NO_RUN);
    if (count == 0)
        return FSDP_OK;
    if (flat)
        return run(arg, pieces[0].offset[0], 0, pieces[0].size[0]);
    if (count == 1)
        return fsdp_box_runs(ndim, shape, pieces[0].offset, pieces[0].size, run, arg);
    dim = stacked_dim(pieces);
    for (int64_t row = 0; row < fsdp__piece_place_of(pieces, count, ndim, 0).outer; row++)
        for (int k = 0; k < count; k++) {
            fsdp__piece_place place = fsdp__piece_place_of(pieces, count, ndim, k);
            shifted to = {.run = run, .arg = arg, .base = row * place.stride + place.first};

            FSDP_TRY(row_runs(ndim, shape, &pieces[k], dim, row, &to));
        }
    return FSDP_OK;
}
