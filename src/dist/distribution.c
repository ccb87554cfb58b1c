/* distribution.c - who holds which part: the chunk rule, placements, boxes, and the distribution attached to a
 * tensor. */
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "dist/dist.h"

int64_t fsdp_shard_range(int64_t n, int64_t world_size, int64_t rank, int64_t *start)
{
    int64_t chunk = n / world_size + (n % world_size != 0); /* never more than n: rank * chunk is the only product */
    int64_t first, end;

    first = chunk > 0 && rank > n / chunk ? n : FSDP__MIN(n, rank * chunk);
    end = n - first < chunk ? n : first + chunk;
    *start = first;
    return end - first;
}

bool fsdp__placement_equal(fsdp_placement a, fsdp_placement b)
{
    if (a.kind != b.kind)
        return false;
    if (a.kind == FSDP_FLAT)
        return a.first == b.first && a.chunk == b.chunk;
    return a.kind == FSDP_SHARD ? a.dim == b.dim : a.kind == FSDP_PARTIAL ? a.op == b.op : true;
}

int fsdp__flat_dim(const fsdp_placement *placements, int count)
{
    for (int i = 0; i < count; i++)
        if (placements[i].kind == FSDP_FLAT)
            return i;
    return -1;
}

bool fsdp_distribution_is_flat(const fsdp_distribution *distribution)
{
    return fsdp__flat_dim(distribution->placements, distribution->placement_count) >= 0;
}

static fsdp_status check_flat(const fsdp_mesh *mesh, const fsdp_placement *placements, int flat)
{
    const fsdp_placement *p = &placements[flat];

    if (p->first < 0 || p->chunk < 0 || p->chunk > INT64_MAX / mesh->shape[flat])
        return FSDP_FAIL(FSDP_INVALID,
                         "flat placement on mesh dimension '%s': its chunk is %lld, and the tensor begins at %lld",
                         mesh->names[flat], (long long)p->chunk, (long long)p->first);
    for (int i = 0; i < mesh->ndim; i++)
        if (i != flat && placements[i].kind != FSDP_REPLICATE)
            return FSDP_FAIL(FSDP_INVALID,
                             "flat placement on mesh dimension '%s': dimension '%s' must replicate beside it",
                             mesh->names[flat], mesh->names[i]);
    return FSDP_OK;
}

fsdp_status fsdp__placements_check(const fsdp_mesh *mesh, const fsdp_placement *placements, int ndim)
{
    for (int i = 0; i < mesh->ndim; i++) {
        const fsdp_placement *p = &placements[i];

        if (p->kind == FSDP_FLAT)
            FSDP_TRY(check_flat(mesh, placements, i));
        else if (p->kind != FSDP_REPLICATE && p->kind != FSDP_SHARD && p->kind != FSDP_PARTIAL)
            return FSDP_FAIL(FSDP_INVALID, "placement on mesh dimension '%s' has an unknown kind %d", mesh->names[i],
                             (int)p->kind);
        if (p->kind == FSDP_SHARD && (p->dim < 0 || p->dim >= ndim))
            return FSDP_FAIL(FSDP_INVALID,
                             "cannot shard dimension %d on mesh dimension '%s': the tensor has %d "
                             "dimensions",
                             p->dim, mesh->names[i], ndim);
        if (p->kind == FSDP_PARTIAL && p->op != FSDP_SUM && p->op != FSDP_AVG && p->op != FSDP_MAX && p->op != FSDP_MIN)
            return FSDP_FAIL(FSDP_INVALID, "partial placement on mesh dimension '%s' has an unknown operation %d",
                             mesh->names[i], (int)p->op);
    }
    return FSDP_OK;
}

/* ---- boxes ---- */

/* Returns how many of the tensor's `numel` elements are in the part of the flat vector that `coordinate` has, and where
 * they start. */
static int64_t flat_run(const fsdp_placement *flat, int64_t numel, int64_t coordinate, int64_t *start)
{
    int64_t begin = FSDP__MAX(coordinate * flat->chunk - flat->first, 0);
    int64_t end = FSDP__MIN((coordinate + 1) * flat->chunk - flat->first, numel);

    *start = FSDP__MIN(begin, numel);
    return FSDP__MAX(end - *start, 0);
}

void fsdp_distribution_box(const fsdp_distribution *distribution, const int *coordinates, int64_t *offset,
                           int64_t *size)
{
    int flat = fsdp__flat_dim(distribution->placements, distribution->placement_count);

    if (flat >= 0) {
        size[0] =
            flat_run(&distribution->placements[flat], fsdp__shape_numel(distribution->ndim, distribution->global_shape),
                     coordinates[flat], offset);
        return;
    }
    for (int d = 0; d < distribution->ndim; d++) {
        offset[d] = 0;
        size[d] = distribution->global_shape[d];
    }
    /* Where several mesh dimensions shard the same dimension of the tensor, each splits what those to its left left
     * over. */
    for (int i = 0; i < distribution->placement_count; i++) {
        const fsdp_placement *p = &distribution->placements[i];
        int64_t start;

        if (p->kind != FSDP_SHARD)
            continue;
        size[p->dim] = fsdp_shard_range(size[p->dim], fsdp_mesh_size(distribution->mesh, i), coordinates[i], &start);
        offset[p->dim] += start;
    }
}

void fsdp_tensor_box(const fsdp_tensor *tensor, int64_t *offset, int64_t *size)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(tensor);

    if (distribution) {
        fsdp_distribution_box(distribution, distribution->mesh->coordinate, offset, size);
        return;
    }
    for (int d = 0; d < tensor->ndim; d++) {
        offset[d] = 0;
        size[d] = tensor->shape[d];
    }
}

/* ---- on tensors ---- */

static void free_distribution(void *state)
{
    fsdp_distribution *distribution = state;

    if (!distribution)
        return;
    fsdp_mesh_unref(distribution->mesh);
    fsdp__free(distribution);
}

const fsdp_distribution *fsdp_tensor_distribution(const fsdp_tensor *tensor)
{
    return tensor->distribution.state;
}

fsdp_status fsdp_tensor_set_distribution(fsdp_tensor *local, const fsdp_distribution *distribution)
{
    int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS];
    char expected[FSDP__SHAPE_TEXT], actual[FSDP__SHAPE_TEXT];
    fsdp_distribution *mine;
    int local_ndim;

    if (!local || !distribution || !distribution->mesh)
        return FSDP_FAIL(FSDP_INVALID, "cannot distribute a tensor: tensor and mesh are required");
    if (distribution->placement_count != distribution->mesh->ndim)
        return FSDP_FAIL(FSDP_INVALID, "cannot distribute a tensor: %d placements for a mesh of %d dimensions",
                         distribution->placement_count, distribution->mesh->ndim);
    FSDP_TRY(fsdp__placements_check(distribution->mesh, distribution->placements, distribution->ndim));
    local_ndim = fsdp_distribution_is_flat(distribution) ? 1 : distribution->ndim;
    if (local_ndim != local->ndim || fsdp__shape_numel(distribution->ndim, distribution->global_shape) < 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot distribute a tensor of %d dimensions: its global shape %s does not fit",
                         local->ndim,
                         fsdp__shape_text(FSDP__MIN(FSDP__MAX(distribution->ndim, 0), FSDP_MAX_DIMS),
                                          distribution->global_shape, expected));
    fsdp_distribution_box(distribution, distribution->mesh->coordinate, offset, size);
    if (memcmp(size, local->shape, (size_t)local->ndim * sizeof *size) != 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot distribute a tensor of shape %s: this rank's piece has shape %s",
                         fsdp__shape_text(local->ndim, local->shape, actual),
                         fsdp__shape_text(local->ndim, size, expected));
    FSDP__TRY_NEW(mine = fsdp__malloc(sizeof *mine));
    *mine = *distribution; /* `distribution` may be the tensor's own: copy it before that is freed */
    fsdp_mesh_ref(mine->mesh);
    if (local->distribution.state)
        local->distribution.free_state(local->distribution.state);
    local->distribution = (fsdp__attachment){mine, free_distribution};
    return FSDP_OK;
}
