/* distribution.c - the chunk rule, checks of placements, and the distribution attached to a tensor. */
#include <stdio.h>
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
    if (a.kind == FSDP_SHARD)
        return a.dim == b.dim && FSDP__MAX(a.split_factor, 1) == FSDP__MAX(b.split_factor, 1) &&
               a.segment_count == b.segment_count &&
               memcmp(a.segments, b.segments, (size_t)a.segment_count * sizeof *a.segments) == 0;
    return a.kind == FSDP_PARTIAL ? a.op == b.op : true;
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

/* ---- texts ---- */

/* Writes a part of a text; `used` counts what the whole would need. */
#define ADD(...) used += snprintf(text + FSDP__MIN(used, bytes - 1), (size_t)FSDP__MAX(bytes - used, 1), __VA_ARGS__)

/* Writes "Shard(dim=0)", as PyTorch prints it. Returns the length. */
static int write_placement(const fsdp_placement *p, char *text, int bytes)
{
    static const char *const ops[] = {[FSDP_SUM] = "sum", [FSDP_AVG] = "avg", [FSDP_MAX] = "max", [FSDP_MIN] = "min"};
    bool known = (int)p->op >= 0 && (size_t)p->op < sizeof ops / sizeof *ops;
    int used = 0;

    if (p->kind == FSDP_REPLICATE)
        ADD("Replicate()");
    else if (p->kind == FSDP_PARTIAL)
        ADD("Partial(%s)", known && ops[p->op] ? ops[p->op] : "?");
    else if (p->kind == FSDP_FLAT)
        ADD("Flat(first=%lld, chunk=%lld)", (long long)p->first, (long long)p->chunk);
    else if (p->split_factor > 1)
        ADD("_StridedShard(dim=%d, sf=%lld", p->dim, (long long)p->split_factor);
    else
        ADD("Shard(dim=%d", p->dim);
    if (p->kind != FSDP_SHARD)
        return used;
    for (int i = 0; i < FSDP__MIN(p->segment_count, FSDP_MAX_SEGMENTS); i++)
        ADD("%s%lld", i == 0 ? ", segments=(" : ", ", (long long)p->segments[i]);
    ADD("%s", p->segment_count > 0 ? "))" : ")");
    return used;
}

const char *fsdp__placements_text(const fsdp_placement *placements, int count, char text[FSDP__PLACEMENTS_TEXT])
{
    int used = 0, bytes = FSDP__PLACEMENTS_TEXT;

    ADD("(");
    for (int i = 0; i < count; i++) {
        ADD("%s", i > 0 ? ", " : "");
        used += write_placement(&placements[i], text + used, bytes - used);
    }
    ADD(count == 1 ? ",)" : ")");
    return text;
}

const char *fsdp__mesh_text(const fsdp_mesh *mesh, char text[FSDP__MESH_TEXT])
{
    int used = 0, bytes = FSDP__MESH_TEXT;

    ADD("(");
    for (int d = 0; d < mesh->ndim; d++)
        ADD("%s%.32s=%lld", d > 0 ? ", " : "", mesh->names[d], (long long)mesh->shape[d]);
    ADD(")");
    return text;
}

#undef ADD

/* ---- checks ---- */

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
    char text[FSDP__PLACEMENTS_TEXT];
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
                         fsdp__placements_text(p, 1, text), mesh->names[i], (long long)sum, p->dim,
                         (long long)shape[p->dim]);
    return FSDP_OK;
}

/* Checks that nothing else has segments, and nothing cuts the dimension before those of mesh dimension `order[k]` do.
 */
static fsdp_status check_first_cut(const fsdp_mesh *mesh, const fsdp_placement *placements, const int *order, int k)
{
    char text[FSDP__PLACEMENTS_TEXT];

    for (int j = 0; j < mesh->ndim; j++) {
        const fsdp_placement *p = &placements[order[k]], *other = &placements[order[j]];

        if (j == k || other->kind != FSDP_SHARD)
            continue;
        if (other->segment_count > 0)
            return FSDP_FAIL(FSDP_INVALID,
                             "placements %s: both '%s' and '%s' have segments: one mesh dimension can have them",
                             fsdp__placements_text(placements, mesh->ndim, text), mesh->names[order[FSDP__MIN(j, k)]],
                             mesh->names[order[FSDP__MAX(j, k)]]);
        if (j < k && other->dim == p->dim && mesh->shape[order[j]] > 1 && mesh->shape[order[k]] > 1)
            return FSDP_FAIL(FSDP_INVALID,
                             "placements %s: mesh dimension '%s' cuts by segments what '%s' has cut before: the one "
                             "with segments must be the first to cut dimension %d",
                             fsdp__placements_text(placements, mesh->ndim, text), mesh->names[order[k]],
                             mesh->names[order[j]], p->dim);
    }
    return FSDP_OK;
}

/* Checks in which order mesh dimensions cut. */
static fsdp_status check_order(const fsdp_mesh *mesh, const fsdp_placement *placements)
{
    char text[FSDP__PLACEMENTS_TEXT], shape[FSDP__MESH_TEXT];
    int order[FSDP_MAX_MESH_DIMS], wrong = fsdp__cut_order(mesh, placements, order);

    if (wrong >= 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "placements %s do not fit mesh %s: mesh dimension '%s' has split factor %lld, and the "
                         "dimensions to its right do not cut dimension %d of the tensor into so many parts",
                         fsdp__placements_text(placements, mesh->ndim, text), fsdp__mesh_text(mesh, shape),
                         mesh->names[wrong], (long long)placements[wrong].split_factor, placements[wrong].dim);
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
            FSDP_TRY(check_flat(mesh, placements, i));
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
    char text[FSDP__PLACEMENTS_TEXT];

    if (d->partial_gradients >> d->placement_count != 0)
        return FSDP_FAIL(FSDP_INVALID, "partial gradients 0x%x of a tensor over a mesh of %d dimensions",
                         d->partial_gradients, d->placement_count);
    for (int i = 0; i < d->placement_count; i++)
        if ((d->partial_gradients >> i & 1) && d->placements[i].kind != FSDP_REPLICATE)
            return FSDP_FAIL(FSDP_INVALID,
                             "gradients cannot be partial over mesh dimension '%s' with placements %s: it does not "
                             "replicate the tensor",
                             d->mesh->names[i], fsdp__placements_text(d->placements, d->placement_count, text));
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
    for (int d = 0; d < tensor->ndim; d++) {
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
    if (distribution->ndim < 0 || distribution->ndim > FSDP_MAX_DIMS)
        return FSDP_FAIL(FSDP_INVALID, "cannot distribute a tensor of %d dimensions", distribution->ndim);
    FSDP_TRY(fsdp__placements_check(distribution->mesh, distribution->placements, distribution->ndim,
                                    distribution->global_shape));
    FSDP_TRY(check_partial_gradients(distribution));
    local_ndim = fsdp_distribution_is_flat(distribution) ? 1 : distribution->ndim;
    if (local_ndim != local->ndim || fsdp__shape_numel(distribution->ndim, distribution->global_shape) < 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot distribute a tensor of %d dimensions: its global shape %s does not fit",
                         local->ndim, fsdp__shape_text(distribution->ndim, distribution->global_shape, expected));
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
