/* distribution.c - checks of placements, and the distribution attached to a tensor. */
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/status.h"
#include "dist/dist.h"

/* ---- checks ---- */

static fsdp_status check_flat(const fsdp_mesh *mesh, const fsdp_placement *placements, int flat, int64_t numel)
{
    const fsdp_placement *p = &placements[flat];

    if (p->first < 0 || p->chunk < 0 || p->chunk > INT64_MAX / mesh->shape[flat])
        return FSDP_FAIL(FSDP_INVALID,
                         "flat placement on mesh dimension '%s': its chunk is %lld, and the tensor begins at %lld",
                         mesh->names[flat], (long long)p->chunk, (long long)p->first);
    if (numel > 0 && p->first > p->chunk * mesh->shape[flat] - numel)
        return FSDP_FAIL(
            FSDP_INVALID,
            "flat placement on mesh dimension '%s': the tensor's %lld elements from %lld on are not all in "
            "the vector, which has %lld",
            mesh->names[flat], (long long)numel, (long long)p->first, (long long)(p->chunk * mesh->shape[flat]));
    for (int i = 0; i < mesh->ndim; i++)
        if (i != flat && placements[i].kind != FSDP_REPLICATE)
            return FSDP_FAIL(FSDP_INVALID,
                             "flat placement on mesh dimension '%s': dimension '%s' must replicate beside it",
                             mesh->names[flat], mesh->names[i]);
    return FSDP_OK;
}

static fsdp_status check_kind(const fsdp_mesh *mesh, const fsdp_placement *p, int i, int ndim)
{
    if (p->kind != FSDP_FLAT && p->kind != FSDP_REPLICATE && p->kind != FSDP_SHARD && p->kind != FSDP_PARTIAL)
        return FSDP_FAIL(FSDP_INVALID, "placement on mesh dimension '%s' has an unknown kind %d", mesh->names[i],
                         (int)p->kind);
    if (p->kind == FSDP_SHARD && (p->dim < 0 || p->dim >= ndim))
        return FSDP_FAIL(FSDP_INVALID, "cannot shard dimension %d on mesh dimension '%s': the tensor has %d dimensions",
                         p->dim, mesh->names[i], ndim);
    if (p->kind == FSDP_PARTIAL && p->op != FSDP_SUM && p->op != FSDP_AVG && p->op != FSDP_MAX && p->op != FSDP_MIN)
        return FSDP_FAIL(FSDP_INVALID, "partial placement on mesh dimension '%s' has an unknown operation %d",
                         mesh->names[i], (int)p->op);
    return FSDP_OK;
}

/* Checks the segments of placement `i` by themselves. */
static fsdp_status check_segments(const fsdp_mesh *mesh, const fsdp_placement *placements, int i, const int64_t *shape)
{
    const fsdp_placement *p = &placements[i];
    int64_t sum = 0;
    bool fits = p->segment_count >= 0 && p->segment_count <= FSDP_MAX_SEGMENTS;

    for (int s = 0; fits && s < p->segment_count; s++)
        fits = p->segments[s] >= 0 && !__builtin_add_overflow(sum, p->segments[s], &sum);
    if (!fits)
        return FSDP_FAIL(FSDP_INVALID,
                         "placement on mesh dimension '%s' has %d segments: 0 to %d of 0 or more "
                         "elements are possible",
                         mesh->names[i], p->segment_count, FSDP_MAX_SEGMENTS);
    if (p->segment_count > 0 && sum != shape[p->dim])
        return FSDP_FAIL(FSDP_INVALID,
                         "%s on mesh dimension '%s': the segments are %lld long together, and dimension %d of the "
                         "tensor is %lld",
                         FSDP__PLACEMENTS(p, 1), mesh->names[i], (long long)sum, p->dim, (long long)shape[p->dim]);
    return FSDP_OK;
}

/* Checks that nothing else has segments, and nothing cuts the dimension before those of mesh dimension `order[k]` do.
 */
static fsdp_status check_first_cut(const fsdp_mesh *mesh, const fsdp_placement *placements, const int *order, int k)
{
    for (int j = 0; j < mesh->ndim; j++) {
        const fsdp_placement *p = &placements[order[k]], *other = &placements[order[j]];

        if (j == k || other->kind != FSDP_SHARD)
            continue;
        if (other->segment_count > 0)
            return FSDP_FAIL(FSDP_INVALID,
                             "placements %s: both '%s' and '%s' have segments: one mesh dimension can have them",
                             FSDP__PLACEMENTS(placements, mesh->ndim), mesh->names[order[FSDP__MIN(j, k)]],
                             mesh->names[order[FSDP__MAX(j, k)]]);
        if (j < k && other->dim == p->dim && mesh->shape[order[j]] > 1 && mesh->shape[order[k]] > 1)
            return FSDP_FAIL(FSDP_INVALID,
                             "placements %s: mesh dimension '%s' cuts by segments what '%s' has cut before: the one "
                             "with segments must be the first to cut dimension %d",
                             FSDP__PLACEMENTS(placements, mesh->ndim), mesh->names[order[k]], mesh->names[order[j]],
                             p->dim);
    }
    return FSDP_OK;
}

/* Checks in which order mesh dimensions cut. */
static fsdp_status check_order(const fsdp_mesh *mesh, const fsdp_placement *placements)
{
    int order[FSDP_MAX_MESH_DIMS], wrong = fsdp__cut_order(mesh, placements, order);

    if (wrong >= 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "placements %s do not fit mesh %s: mesh dimension '%s' has split factor %lld, and the "
                         "dimensions to its right do not cut dimension %d of the tensor into so many parts",
                         FSDP__PLACEMENTS(placements, mesh->ndim), FSDP__MESH(mesh), mesh->names[wrong],
                         (long long)placements[wrong].split_factor, placements[wrong].dim);
    for (int k = 0; k < mesh->ndim; k++)
        if (placements[order[k]].kind == FSDP_SHARD && placements[order[k]].segment_count > 0)
            FSDP_TRY(check_first_cut(mesh, placements, order, k));
    return FSDP_OK;
}

fsdp_status fsdp__placements_check(const fsdp_mesh *mesh, const fsdp_placement *placements, int ndim,
                                   const int64_t *shape)
{
    for (int i = 0; i < mesh->ndim; i++) {
        const fsdp_placement *p = &placements[i];

        FSDP_TRY(check_kind(mesh, p, i, ndim));
        if (p->kind == FSDP_FLAT)
            FSDP_TRY(check_flat(mesh, placements, i, fsdp__shape_numel(ndim, shape)));
        if (p->kind == FSDP_SHARD && p->split_factor < 0)
            return FSDP_FAIL(FSDP_INVALID, "placement on mesh dimension '%s' has split factor %lld", mesh->names[i],
                             (long long)p->split_factor);
        if (p->kind == FSDP_SHARD)
            FSDP_TRY(check_segments(mesh, placements, i, shape));
    }
    return check_order(mesh, placements);
}

/* Checks that gradients are partial only over mesh dimensions that exist and replicate. */
static fsdp_status check_partial_gradients(const fsdp_distribution *d)
{
    if (d->partial_gradients >> d->placement_count != 0)
        return FSDP_FAIL(FSDP_INVALID, "partial gradients 0x%x of a tensor over a mesh of %d dimensions",
                         d->partial_gradients, d->placement_count);
    for (int i = 0; i < d->placement_count; i++)
        if ((d->partial_gradients >> i & 1) && d->placements[i].kind != FSDP_REPLICATE)
            return FSDP_FAIL(FSDP_INVALID,
                             "gradients cannot be partial over mesh dimension '%s' with placements %s: it does not "
                             "replicate the tensor",
                             d->mesh->names[i], FSDP__PLACEMENTS(d->placements, d->placement_count));
    return FSDP_OK;
}

/* ---- on tensors ---- */

void fsdp_tensor_box(const fsdp_tensor *tensor, int64_t *offset, int64_t *size)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(tensor);

    if (distribution) {
        fsdp_distribution_box(distribution, distribution->mesh->coordinate, offset, size);
        return;
    }
    for (int d = 0; offset && size && d < fsdp_tensor_ndim(tensor); d++) {
        offset[d] = 0;
        size[d] = tensor->shape[d];
    }
}

static void free_distribution(void *state)
{
    fsdp_distribution *distribution = state;

    if (!distribution)
        return;
    fsdp_mesh_unref(distribution->mesh);
    fsdp__free(distribution);
}

static void *share_distribution(void *state)
{
    fsdp_distribution *copy = fsdp__malloc(sizeof *copy);

    if (copy) {
        *copy = *(const fsdp_distribution *)state;
        fsdp_mesh_ref(copy->mesh);
    }
    return copy;
}

const fsdp_distribution *fsdp_tensor_distribution(const fsdp_tensor *tensor)
{
    return tensor ? tensor->distribution.state : NULL;
}

int fsdp_tensor_pieces(const fsdp_tensor *tensor, fsdp_piece *pieces)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(tensor);

    if (distribution)
        return fsdp_distribution_pieces(distribution, distribution->mesh->coordinate, pieces);
    if (!tensor || !pieces)
        return 0;
    pieces[0] = (fsdp_piece){.local_offset = {0}};
    memcpy(pieces[0].size, tensor->shape, (size_t)tensor->ndim * sizeof *tensor->shape);
    return fsdp_tensor_numel(tensor) > 0;
}

fsdp_status fsdp_tensor_runs(const fsdp_tensor *tensor, fsdp_box_run run, void *arg)
{
    const fsdp_distribution *d = fsdp_tensor_distribution(tensor);
    fsdp_piece pieces[FSDP_MAX_SEGMENTS];
    int count = fsdp_tensor_pieces(tensor, pieces);

    if (!tensor)
        return FSDP__FAIL_NULL("cannot go through a tensor: it is NULL");
    return fsdp__pieces_runs(d && fsdp_distribution_is_flat(d), d ? d->ndim : tensor->ndim,
                             d ? d->global_shape : tensor->shape, pieces, count, run, arg);
}

fsdp_status fsdp_tensor_set_distribution(fsdp_tensor *local, const fsdp_distribution *distribution)
{
    int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS];
    fsdp_distribution *mine;
    int local_ndim;

    if (!local || !distribution || !distribution->mesh)
        return FSDP_FAIL(FSDP_INVALID, "cannot distribute a tensor: tensor and mesh are required");
    if (distribution->placement_count != distribution->mesh->ndim)
        return FSDP_FAIL(FSDP_INVALID, "cannot distribute a tensor: %d placements for a mesh of %d dimensions",
                         distribution->placement_count, distribution->mesh->ndim);
    if (distribution->ndim < 0 || distribution->ndim > FSDP_MAX_DIMS)
        return FSDP_FAIL(FSDP_INVALID, "cannot distribute a tensor of %d dimensions", distribution->ndim);
    FSDP_TRY(fsdp__placements_check(distribution->mesh, distribution->placements, distribution->ndim,
                                    distribution->global_shape));
    FSDP_TRY(check_partial_gradients(distribution));
    local_ndim = fsdp_distribution_is_flat(distribution) ? 1 : distribution->ndim;
    if (local_ndim != local->ndim || fsdp__shape_numel(distribution->ndim, distribution->global_shape) < 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot distribute a tensor of %d dimensions: its global shape %s does not fit",
                         local->ndim, FSDP__SHOWN_SHAPE(distribution->ndim, distribution->global_shape));
    fsdp_distribution_box(distribution, distribution->mesh->coordinate, offset, size);
    if (memcmp(size, local->shape, (size_t)local->ndim * sizeof *size) != 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot distribute a tensor of shape %s: this rank's piece has shape %s",
                         FSDP__SHAPE_OF(local), FSDP__SHOWN_SHAPE(local->ndim, size));
    FSDP__TRY_NEW(mine = fsdp__malloc(sizeof *mine));
    *mine = *distribution; /* `distribution` may be the tensor's own: copy it before that is freed */
    fsdp_mesh_ref(mine->mesh);
    if (local->distribution.state)
        local->distribution.free_state(local->distribution.state);
    local->distribution = (fsdp__attachment){mine, free_distribution, fsdp_tensor_runs, share_distribution};
    return FSDP_OK;
}
