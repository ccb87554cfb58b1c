/* layouts.c - mesh dimensions that cut lists of indices one after the other. */
#include "support/layouts.h"

#include <string.h>

#include "support/dice.h"

/* ---- drawing ---- */

static void draw_order(uint64_t *dice, int count, int *order)
{
    for (int i = 0; i < count; i++) {
        int j = dice_below(dice, i + 1);

        order[i] = order[j];
        order[j] = i;
    }
}

static void draw_segments(uint64_t *dice, int64_t length, fsdp_placement *p)
{
    p->segment_count = 1 + dice_below(dice, FSDP_MAX_SEGMENTS);
    for (int i = 0; i < p->segment_count; i++) {
        p->segments[i] = i + 1 < p->segment_count ? dice_below(dice, (int)length + 1) : length;
        length -= p->segments[i];
    }
}

/* Shards a drawn dimension on mesh dimension order[k]: after those that come before in the order. */
static void draw_shard(uint64_t *dice, drawn_layout *l, int k, bool *segments)
{
    fsdp_placement *p = &l->placements[l->order[k]];
    bool first = true;

    *p = (fsdp_placement){.kind = FSDP_SHARD, .dim = dice_below(dice, l->ndim), .split_factor = 1};
    for (int before = 0; before < k; before++) {
        int i = l->order[before];

        if (l->placements[i].kind != FSDP_SHARD || l->placements[i].dim != p->dim)
            continue;
        first = false;
        if (i > l->order[k])
            p->split_factor *= l->mesh[i];
    }
    if (first && !*segments && dice_chance(dice, 40)) {
        draw_segments(dice, l->shape[p->dim], p);
        *segments = true;
    }
}

void layout_draw(uint64_t *dice, int mesh_ndim, const int64_t *mesh, int ndim, const int64_t *shape, drawn_layout *out)
{
    bool segments = false;

    *out = (drawn_layout){.mesh_ndim = mesh_ndim, .ndim = ndim};
    memcpy(out->mesh, mesh, (size_t)mesh_ndim * sizeof *mesh);
    memcpy(out->shape, shape, (size_t)ndim * sizeof *shape);
    draw_order(dice, mesh_ndim, out->order);
    for (int k = 0; k < mesh_ndim; k++) {
        out->placements[out->order[k]] = (fsdp_placement){.kind = FSDP_REPLICATE};
        if (ndim > 0 && dice_chance(dice, 75))
            draw_shard(dice, out, k, &segments);
    }
}

/* ---- who holds what ---- */

typedef struct indices {
    int64_t count, at[LAYOUT_MAX_LENGTH];
} indices;

/* Keeps what rank `rank` gets of `length` indices that begin at `first`: the chunk rule. */
static void chunk(const indices *from, int64_t first, int64_t length, int64_t ranks, int64_t rank, indices *to)
{
    int64_t size = (length + ranks - 1) / ranks;

    for (int64_t i = rank * size; i < (rank + 1) * size && i < length; i++)
        to->at[to->count++] = from->at[first + i];
}

static void cut(const fsdp_placement *p, int64_t ranks, int64_t rank, indices *held)
{
    indices left = {.count = 0};
    int64_t first = 0;

    if (ranks == 1)
        return;
    if (p->segment_count == 0)
        chunk(held, 0, held->count, ranks, rank, &left);
    for (int s = 0; s < p->segment_count; s++) {
        chunk(held, first, p->segments[s], ranks, rank, &left);
        first += p->segments[s];
    }
    *held = left;
}

int64_t layout_elements(const drawn_layout *l, const int *coordinates, int64_t *elements, int64_t *local_shape)
{
    indices held[FSDP_MAX_DIMS];
    int64_t count = 1;

    for (int d = 0; d < l->ndim; d++)
        for (held[d].count = 0; held[d].count < l->shape[d]; held[d].count++)
            held[d].at[held[d].count] = held[d].count;
    for (int k = 0; k < l->mesh_ndim; k++) {
        const fsdp_placement *p = &l->placements[l->order[k]];

        if (p->kind == FSDP_SHARD)
            cut(p, l->mesh[l->order[k]], coordinates[l->order[k]], &held[p->dim]);
    }
    for (int d = 0; d < l->ndim; d++)
        count *= local_shape[d] = held[d].count;
    for (int64_t i = 0; i < count; i++) {
        int64_t rest = i, stride = 1;

        elements[i] = 0;
        for (int d = l->ndim - 1; d >= 0; d--) {
            elements[i] += held[d].at[rest % held[d].count] * stride;
            rest /= held[d].count;
            stride *= l->shape[d];
        }
    }
    return count;
}

int64_t layout_copies(const drawn_layout *l)
{
    int64_t copies = 1;

    for (int i = 0; i < l->mesh_ndim; i++)
        copies *= l->placements[i].kind == FSDP_SHARD ? 1 : l->mesh[i];
    return copies;
}
