/* placements.c - the chunk rule, and placements by themselves: compared, and as text. */
#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "dist/dist.h"

int64_t fsdp_shard_range(int64_t n, int64_t world_size, int64_t rank, int64_t *start)
{
    int64_t first, end, chunk, unused;

    start = start ? start : &unused;
    if (world_size < 1 || n < 1 || rank < 0) {
        *start = n;
        return 0;
    }
    chunk = n / world_size + (n % world_size != 0); /* never more than n: rank * chunk is the only product */
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
    return distribution && fsdp__flat_dim(distribution->placements, distribution->placement_count) >= 0;
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
