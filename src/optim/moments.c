/* moments.c - the tensors that an optimizer keeps for a parameter, and how they follow the parameter. */
#include <string.h>

#include "base/alloc.h"
#include "base/context.h"
#include "fsdp/dist.h"
#include "optim/optim.h"
#include "tensor/tensor.h"

enum {
    FEWEST_BYTES = 4096 /* elements of a parameter whose moments are bytes, as bitsandbytes has it */
};

/* ---- what there is ---- */

bool fsdp__optimizer_has_bytes(const fsdp__optimizer_group *group, const fsdp_tensor *tensor)
{
    const int64_t *shape;
    int ndim = fsdp__optimizer_whole_shape(tensor, &shape);
    int64_t numel = 1;

    for (int d = 0; d < ndim; d++)
        numel *= shape[d];
    return group->kind <= FSDP__OPTIMIZER_ADAMW && group->options.adam.state_bits == 8 && ndim >= 2 &&
           numel >= FEWEST_BYTES;
}

/* Gives the parts of a parameter whose second moment is made of its rows and columns, and whole for a vector. */
static void parts_of_factors(fsdp__optimizer_param *param, fsdp__optimizer_part *parts)
{
    const int64_t *shape;

    if (fsdp__optimizer_whole_shape(param->tensor, &shape) < 2) {
        parts[0] = (fsdp__optimizer_part){"variance", &param->moment1, FSDP_F32, FSDP__PART_ELEMENTS};
        return;
    }
    parts[0] = (fsdp__optimizer_part){"row_var", &param->moment1, FSDP_F32, FSDP__PART_ROWS};
    parts[1] = (fsdp__optimizer_part){"col_var", &param->moment2, FSDP_F32, FSDP__PART_COLUMNS};
}

void fsdp__optimizer_parts(const fsdp__optimizer_group *group, fsdp__optimizer_param *param,
                           fsdp__optimizer_part parts[FSDP__OPTIMIZER_PARTS])
{
    fsdp__optimizer_part first = {"exp_avg", &param->moment1, FSDP_F32, FSDP__PART_ELEMENTS};

    memset(parts, 0, FSDP__OPTIMIZER_PARTS * sizeof *parts);
    if (group->kind == FSDP__OPTIMIZER_ADAFACTOR) {
        parts_of_factors(param, parts);
        return;
    }
    if (fsdp__optimizer_has_bytes(group, param->tensor)) {
        parts[0] = (fsdp__optimizer_part){"exp_avg_codes", &param->moment1, FSDP_U8, FSDP__PART_ELEMENTS};
        parts[1] = (fsdp__optimizer_part){"exp_avg_sq_codes", &param->moment2, FSDP_U8, FSDP__PART_ELEMENTS};
        parts[2] = (fsdp__optimizer_part){"exp_avg_scales", &param->scale1, FSDP_F32, FSDP__PART_BLOCKS};
        parts[3] = (fsdp__optimizer_part){"exp_avg_sq_scales", &param->scale2, FSDP_F32, FSDP__PART_BLOCKS};
        return;
    }
    if (group->kind <= FSDP__OPTIMIZER_ADAMW)
        parts[1] = (fsdp__optimizer_part){"exp_avg_sq", &param->moment2, FSDP_F32, FSDP__PART_ELEMENTS};
    if (group->kind == FSDP__OPTIMIZER_SGD || group->kind == FSDP__OPTIMIZER_MUON)
        first.name = "momentum_buffer";
    if (group->kind != FSDP__OPTIMIZER_SGD || group->options.sgd.momentum != 0)
        parts[0] = first;
}

/* Cuts the shape of a parameter, or of this rank's part of it, to rows of blocks. */
static void shape_of_blocks(int ndim, int64_t *shape)
{
    int64_t cols = 1;

    for (int d = 1; d < ndim; d++)
        cols *= shape[d];
    shape[1] = (cols + FSDP__BYTE_BLOCK - 1) / FSDP__BYTE_BLOCK;
}

/* Returns whether every rank has all of the part, however the parameter is spread. */
static bool is_whole(const fsdp__optimizer_part *part)
{
    return part->extent == FSDP__PART_ROWS || part->extent == FSDP__PART_COLUMNS;
}

int fsdp__optimizer_part_shape(const fsdp_tensor *tensor, const fsdp__optimizer_part *part,
                               int64_t shape[FSDP_MAX_DIMS])
{
    const int64_t *own = tensor->shape;
    int ndim = is_whole(part) ? fsdp__optimizer_whole_shape(tensor, &own) : tensor->ndim;

    memcpy(shape, own, sizeof tensor->shape);
    if (is_whole(part))
        shape[ndim - (part->extent == FSDP__PART_ROWS ? 1 : 2)] = 1;
    if (part->extent == FSDP__PART_BLOCKS)
        shape_of_blocks(tensor->ndim, shape);
    return part->extent == FSDP__PART_BLOCKS ? 2 : ndim;
}

/* Makes the distribution of a parameter that of its blocks. Columns that are cut by segments have whole blocks. */
static void distribute_blocks(fsdp_distribution *d)
{
    for (int i = 0; i < d->placement_count; i++) {
        fsdp_placement *p = &d->placements[i];

        for (int s = 0; s < p->segment_count && p->dim == 1; s++)
            p->segments[s] = (p->segments[s] + FSDP__BYTE_BLOCK - 1) / FSDP__BYTE_BLOCK;
    }
    shape_of_blocks(d->ndim, d->global_shape);
    d->ndim = 2;
}

/* Gives the distribution of a part of the state; returns false where it has none. */
static bool distribution_of(const fsdp_tensor *tensor, const fsdp__optimizer_part *part, fsdp_distribution *out)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(tensor);

    if (!distribution || is_whole(part))
        return false;
    *out = *distribution;
    if (part->extent == FSDP__PART_BLOCKS)
        distribute_blocks(out);
    return true;
}

/* Returns whether a rank's part of a matrix, and its part of the blocks, have the same blocks, all of them whole. */
static bool has_whole_blocks(const fsdp_distribution *elements, const fsdp_distribution *blocks, const int *coordinates)
{
    fsdp_piece piece[FSDP_MAX_SEGMENTS], its[FSDP_MAX_SEGMENTS];
    int count = fsdp_distribution_pieces(elements, coordinates, piece);
    bool whole = fsdp_distribution_pieces(blocks, coordinates, its) == count;

    for (int i = 0; i < count && whole; i++)
        whole = piece[i].offset[1] == its[i].offset[1] * FSDP__BYTE_BLOCK &&
                piece[i].local_offset[1] == its[i].local_offset[1] * FSDP__BYTE_BLOCK &&
                (piece[i].size[1] + FSDP__BYTE_BLOCK - 1) / FSDP__BYTE_BLOCK == its[i].size[1];
    return whole;
}

/* Returns whether that holds on all ranks. */
static bool all_have_whole_blocks(const fsdp_distribution *elements)
{
    fsdp_distribution blocks = *elements;
    int64_t ranks = fsdp_mesh_size(elements->mesh, -1);
    bool whole = true;

    distribute_blocks(&blocks);
    for (int64_t i = 0; i < ranks && whole; i++) {
        int coordinates[FSDP_MAX_MESH_DIMS];
        int64_t rest = i;

        for (int d = elements->placement_count - 1; d >= 0; d--) {
            coordinates[d] = (int)(rest % fsdp_mesh_size(elements->mesh, d));
            rest /= fsdp_mesh_size(elements->mesh, d);
        }
        whole = has_whole_blocks(elements, &blocks, coordinates);
    }
    return whole;
}

/* Checks that no block of bytes is cut: ranks have whole rows, or the rows of a matrix are cut between blocks. */
static fsdp_status check_rows(const fsdp__optimizer_param *param)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(param->tensor);
    bool rows = true, flat = distribution && fsdp_distribution_is_flat(distribution);

    for (int i = 0; distribution && i < distribution->placement_count; i++)
        rows = rows && (distribution->placements[i].kind != FSDP_SHARD || distribution->placements[i].dim == 0);
    if (!flat && (rows || (distribution->ndim == 2 && all_have_whole_blocks(distribution))))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_UNSUPPORTED,
                     "cannot keep moments of '%s' as bytes: its rows are cut between ranks, and blocks of %d elements "
                     "are of whole rows: shard dimension 0, cut columns at multiples of %d, or set state_bits to 32",
                     param->name, FSDP__BYTE_BLOCK, FSDP__BYTE_BLOCK);
}

/* ---- how it follows the parameter ---- */

static fsdp_status make_moment(const fsdp_tensor *like, const fsdp__optimizer_part *part, fsdp_tensor **out)
{
    fsdp_context *context = fsdp_device_context(like->storage->device);
    fsdp__taker before = fsdp__context_enter(context, like->storage->owner);
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *moment = NULL;
    int64_t shape[FSDP_MAX_DIMS];
    int ndim = fsdp__optimizer_part_shape(like, part, shape);
    fsdp_status status =
        fsdp_tensor_create(like->storage->device, part->dtype, ndim, shape, FSDP_MEMORY_OPTIMIZER_STATE, &moment);

    fsdp__context_set_taker(context, before);
    FSDP_TRY(status);
    FSDP_TRY(fsdp_tensor_fill_(moment, 0));
    *out = fsdp__take(&moment);
    return FSDP_OK;
}

static bool has_shape(const fsdp_tensor *tensor, int ndim, const int64_t *shape)
{
    return tensor->ndim == ndim && memcmp(tensor->shape, shape, (size_t)ndim * sizeof *shape) == 0;
}

/* Cuts the state of a parameter that was sharded after its last step. The state is still unsharded, and every rank has
 * stepped alike so far, so this rank's rows are cut out of it. */
static fsdp_status cut_moment(const fsdp__optimizer_param *param, const fsdp_distribution *distribution,
                              fsdp_tensor **moment)
{
    fsdp_tensor *rows;

    if (!distribution || !has_shape(*moment, distribution->ndim, distribution->global_shape))
        return FSDP_FAIL(
            FSDP_STATE,
            "cannot optimize '%s': its shape is %s, but its state was made for shape %s: make a new optimizer",
            param->name, FSDP__SHAPE_OF(param->tensor), FSDP__SHAPE_OF(*moment));
    FSDP_TRY(fsdp_distribute_tensor(*moment, distribution->mesh, distribution->placements, &rows));
    fsdp_tensor_unref(*moment);
    *moment = rows;
    return FSDP_OK;
}

/* Moves the state of a parameter that was offloaded after its last step, which is still on the device. It is moved on
 * return. */
static fsdp_status move_moment(const fsdp_tensor *like, const fsdp__optimizer_part *part)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *moved = NULL;

    FSDP_TRY(make_moment(like, part, &moved));
    FSDP_TRY(fsdp__tensor_copy_across(moved, *part->moment));
    fsdp_tensor_unref(*part->moment);
    *part->moment = fsdp__take(&moved);
    return FSDP_OK;
}

/* Makes the moment fit the parameter; it is zero before the first step. */
static fsdp_status fit_moment(const fsdp__optimizer_param *param, const fsdp__optimizer_part *part)
{
    fsdp_tensor **moment = part->moment;
    fsdp_distribution its;
    const fsdp_distribution *distribution = distribution_of(param->tensor, part, &its) ? &its : NULL;
    int64_t shape[FSDP_MAX_DIMS];
    int ndim = fsdp__optimizer_part_shape(param->tensor, part, shape);

    if (!*moment)
        FSDP_TRY(make_moment(param->tensor, part, moment));
    else if (!has_shape(*moment, ndim, shape))
        FSDP_TRY(cut_moment(param, distribution, moment));
    if ((*moment)->storage->device != param->tensor->storage->device)
        FSDP_TRY(move_moment(param->tensor, part));
    /* Whoever looks at the state can see which part of it this is. */
    if (distribution && !fsdp_tensor_distribution(*moment))
        FSDP_TRY(fsdp_tensor_set_distribution(*moment, distribution));
    return FSDP_OK;
}

fsdp_status fsdp__optimizer_fit_state(const fsdp__optimizer_group *group, fsdp__optimizer_param *param)
{
    fsdp__optimizer_part parts[FSDP__OPTIMIZER_PARTS];

    if (fsdp__optimizer_has_bytes(group, param->tensor))
        FSDP_TRY(check_rows(param));
    fsdp__optimizer_parts(group, param, parts);
    for (int p = 0; p < FSDP__OPTIMIZER_PARTS; p++)
        if (parts[p].moment)
            FSDP_TRY(fit_moment(param, &parts[p]));
    return FSDP_OK;
}

void fsdp__optimizer_forget_state(fsdp__optimizer_param *param)
{
    fsdp_tensor **const parts[] = {&param->moment1, &param->moment2, &param->scale1, &param->scale2};

    for (size_t p = 0; p < FSDP__COUNT_OF(parts); p++)
        fsdp_tensor_unref(fsdp__take(parts[p]));
    param->steps = 0;
}
