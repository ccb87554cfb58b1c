/* piece_runs.c - walks a piece by runs of elements that lie together in the local tensor and in the global one. */
#include "dist/dist.h"

/* Returns the first dimension of those that make up a run. */
static int first_dim(const fsdp_piece *piece, int ndim, const int64_t *local, const int64_t *global)
{
    int d = ndim - 1;

    while (d > 0 && piece->size[d] == local[d] && piece->size[d] == global[d])
        d--;
    return d;
}

/* Returns the element of a contiguous tensor of `shape` at which run `number` of a box at `offset` begins. */
static int64_t place_of(const fsdp_piece *piece, const int64_t *offset, int ndim, const int64_t *shape, int first,
                        int64_t number)
{
    int64_t place = 0, times = 1;

    for (int d = ndim - 1; d >= 0; d--) {
        int64_t at = offset[d];

        if (d < first) {
            at += number % piece->size[d];
            number /= piece->size[d];
        }
        place += at * times;
        times *= shape[d];
    }
    return place;
}

bool fsdp__next_run(const fsdp_tensor *tensor, const fsdp_piece *piece, fsdp__piece_run *run)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(tensor);
    const int64_t *local = tensor->shape, *global = distribution ? distribution->global_shape : local;
    int ndim = tensor->ndim, first = first_dim(piece, ndim, local, global);

    if (run->next >= fsdp__shape_numel(first, piece->size))
        return false;
    run->numel = fsdp__shape_numel(ndim - first, piece->size + first);
    run->local = place_of(piece, piece->local_offset, ndim, local, first, run->next);
    run->global = place_of(piece, piece->offset, ndim, global, first, run->next);
    run->next++;
    return true;
}
