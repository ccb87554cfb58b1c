/* pieces.c - which boxes of a tensor a rank holds: mesh dimensions cut one after the other, whole or by segments. */
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "dist/dist.h"

/* ---- in which order mesh dimensions cut ---- */

static bool shards(fsdp_placement placement, int dim)
{
    return placement.kind == FSDP_SHARD && placement.dim == dim;
}

/* Finds where in `order` a mesh dimension comes that cuts after `parts` parts were made: behind the dimensions that
 * make them. Returns -1 if the first of them never make as many. */
static int find_turn(const fsdp_mesh *mesh, const fsdp_placement *placements, int dim, int64_t parts, const int *order,
                     int count)
{
    int64_t made = 1;

    if (parts <= 1)
        return 0;
    for (int k = 0; k < count; k++) {
        made *= shards(placements[order[k]], dim) ? mesh->shape[order[k]] : 1;
        if (made == parts)
            return k + 1;
    }
    return -1;
}

int fsdp__cut_order(const fsdp_mesh *mesh, const fsdp_placement *placements, int *order)
{
    int count = 0, wrong = -1;

    for (int i = mesh->ndim - 1; i >= 0; i--) {
        const fsdp_placement *p = &placements[i];
        int at = p->kind == FSDP_SHARD ? find_turn(mesh, placements, p->dim, p->split_factor, order, count) : 0;

        if (at < 0) {
            wrong = i;
            at = count;
        }
        memmove(order + at + 1, order + at, (size_t)(count - at) * sizeof *order);
        order[at] = i;
        count++;
    }
    return wrong;
}

/* ---- one dimension of the tensor ---- */

/* Holds what a rank holds along one dimension: runs of indices. */
typedef struct line {
    int count; /* at least one, which is empty if all are */
    int64_t offset[FSDP_MAX_SEGMENTS], size[FSDP_MAX_SEGMENTS];
} line;

static int64_t length_of(const line *l)
{
    int64_t length = 0;

    for (int i = 0; i < l->count; i++)
        length += l->size[i];
    return length;
}

/* Adds a run that is not empty; one that follows the last immediately becomes part of it. */
static void add_run(line *l, int64_t offset, int64_t size)
{
    int last = l->count - 1;

    if (size == 0)
        return;
    if (last >= 0 && l->offset[last] + l->size[last] == offset) {
        l->size[last] += size;
        return;
    }
    l->offset[l->count] = offset;
    l->size[l->count++] = size;
}

/* Keeps `size` indices from `start` of those that the line has. */
static void keep(line *l, int64_t start, int64_t size)
{
    line kept = {.count = 0};
    int64_t end = l->offset[l->count - 1] + l->size[l->count - 1], passed = 0;

    for (int i = 0; i < l->count; i++) {
        int64_t first = FSDP__MAX(start - passed, 0), last = FSDP__MIN(start + size - passed, l->size[i]);

        add_run(&kept, l->offset[i] + first, FSDP__MAX(last - first, 0));
        passed += l->size[i];
    }
    if (kept.count == 0)
        kept = (line){.count = 1, .offset = {end}};
    *l = kept;
}

int fsdp__placement_parts(fsdp_placement placement, int64_t length, int64_t ranks, int64_t rank, int64_t *start,
                          int64_t *size)
{
    int64_t before = 0;

    if (placement.segment_count == 0) {
        size[0] = fsdp_shard_range(length, ranks, rank, &start[0]);
        return 1;
    }
    for (int i = 0; i < placement.segment_count; i++) {
        size[i] = fsdp_shard_range(placement.segments[i], ranks, rank, &start[i]);
        start[i] += before;
        before += placement.segments[i];
    }
    return placement.segment_count;
}

static void cut_line(line *l, fsdp_placement placement, int64_t ranks, int64_t rank)
{
    int64_t start[FSDP_MAX_SEGMENTS], size[FSDP_MAX_SEGMENTS], length = length_of(l);
    int count = fsdp__placement_parts(placement, length, ranks, rank, start, size);
    line parts = {.count = 0};

    if (count == 1) {
        keep(l, start[0], size[0]);
        return;
    }
    for (int i = 0; i < count; i++) /* segments: the line is the whole dimension, or there is one rank */
        add_run(&parts, start[i], size[i]);
    if (parts.count > 0 && ranks > 1)
        *l = parts;
    else if (ranks > 1)
        keep(l, length, 0);
}

static void make_lines(const fsdp_mesh *mesh, const fsdp_placement *placements, const int *order, int ndim,
                       const int64_t *shape, const int *coordinates, line *lines)
{
    for (int d = 0; d < ndim; d++)
        lines[d] = (line){.count = 1, .size = {shape[d]}};
    for (int k = 0; k < mesh->ndim; k++) {
        int i = order[k];

        if (placements[i].kind == FSDP_SHARD)
            cut_line(&lines[placements[i].dim], placements[i], mesh->shape[i], coordinates[i]);
    }
}

void fsdp__cut_shape(const fsdp_mesh *mesh, const fsdp_placement *placements, const int *order, int ndim,
                     const int64_t *shape, int64_t *out)
{
    line lines[FSDP_MAX_DIMS];

    make_lines(mesh, placements, order, ndim, shape, mesh->coordinate, lines);
    for (int d = 0; d < ndim; d++)
        out[d] = length_of(&lines[d]);
}

/* ---- boxes ---- */

/* Finds how many of the tensor's elements are in the part of the flat vector that `coordinates` have, and where they
 * start. */
static void flat_run(const fsdp_distribution *distribution, int flat, const int *coordinates, int64_t *start,
                     int64_t *size)
{
    const fsdp_placement *p = &distribution->placements[flat];
    int64_t numel = fsdp__shape_numel(distribution->ndim, distribution->global_shape);
    int64_t begin = FSDP__MAX(coordinates[flat] * p->chunk - p->first, 0);
    int64_t end = FSDP__MIN((coordinates[flat] + 1) * p->chunk - p->first, numel);

    *start = FSDP__MIN(begin, numel);
    *size = FSDP__MAX(end - *start, 0);
}

static void lines_of(const fsdp_distribution *d, const int *coordinates, line *lines)
{
    int order[FSDP_MAX_MESH_DIMS];

    fsdp__cut_order(d->mesh, d->placements, order);
    make_lines(d->mesh, d->placements, order, d->ndim, d->global_shape, coordinates, lines);
}

void fsdp_distribution_box(const fsdp_distribution *distribution, const int *coordinates, int64_t *offset,
                           int64_t *size)
{
    int flat;
    line lines[FSDP_MAX_DIMS];

    if (!distribution || !coordinates || !offset || !size)
        return;
    flat = fsdp__flat_dim(distribution->placements, distribution->placement_count);
    if (flat >= 0) {
        flat_run(distribution, flat, coordinates, offset, size);
        return;
    }
    lines_of(distribution, coordinates, lines);
    for (int d = 0; d < distribution->ndim; d++) {
        offset[d] = lines[d].offset[0];
        size[d] = length_of(&lines[d]);
    }
}

/* Lists the pieces of lines of which at most one has several runs. */
static int list_pieces(const line *lines, int ndim, fsdp_piece *pieces)
{
    int several = 0, count = 1;
    int64_t passed = 0;

    for (int d = 0; d < ndim; d++) {
        if (length_of(&lines[d]) == 0)
            return 0;
        if (lines[d].count > 1)
            several = d;
        count = FSDP__MAX(count, lines[d].count);
    }
    for (int i = 0; i < count; i++) {
        pieces[i] = (fsdp_piece){.local_offset = {0}};
        for (int d = 0; d < ndim; d++) {
            int run = d == several ? i : 0;

            pieces[i].offset[d] = lines[d].offset[run];
            pieces[i].size[d] = lines[d].size[run];
        }
        pieces[i].local_offset[several] = passed;
        passed += pieces[i].size[several];
    }
    return count;
}

int fsdp_distribution_pieces(const fsdp_distribution *distribution, const int *coordinates, fsdp_piece *pieces)
{
    int flat;
    line lines[FSDP_MAX_DIMS];

    if (!distribution || !coordinates || !pieces)
        return 0;
    flat = fsdp__flat_dim(distribution->placements, distribution->placement_count);
    if (flat < 0) {
        lines_of(distribution, coordinates, lines);
        return list_pieces(lines, distribution->ndim, pieces);
    }
    pieces[0] = (fsdp_piece){.local_offset = {0}};
    flat_run(distribution, flat, coordinates, pieces[0].offset, pieces[0].size);
    return pieces[0].size[0] > 0;
}

/* ---- copies ---- */

static fsdp_status narrow(const fsdp_tensor *tensor, const int64_t *offset, const int64_t *size, fsdp_tensor **out)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *view = NULL;

    FSDP_TRY(fsdp__tensor_alias(tensor, &view));
    for (int d = 0; d < tensor->ndim; d++) {
        fsdp_tensor *next;

        FSDP_TRY(fsdp__view_narrow(view, d, offset[d], size[d], &next));
        fsdp_tensor_unref(view);
        view = next;
    }
    *out = fsdp__take(&view);
    return FSDP_OK;
}

fsdp_status fsdp__piece_views(const fsdp_piece *piece, const fsdp_tensor *local, const fsdp_tensor *whole,
                              fsdp_tensor **out_local, fsdp_tensor **out_whole)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *in_local = NULL;

    FSDP_TRY(narrow(local, piece->local_offset, piece->size, &in_local));
    FSDP_TRY(narrow(whole, piece->offset, piece->size, out_whole));
    *out_local = fsdp__take(&in_local);
    return FSDP_OK;
}
