/* layout.c - makes the table of parts. */
#include "shard/group/layout.h"

#include "base/alloc.h"
#include "base/compiler.h"

static int64_t round_up(int64_t value, int64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

int64_t fsdp__extent_numel(const fsdp__extent *extent)
{
    return extent->outer * extent->rows * extent->inner;
}

int64_t fsdp__layout_part_numel(const fsdp__layout_part *part)
{
    return part->outer * part->inner;
}

/* Cuts one parameter by rows. */
static void cut_rows(const fsdp__extent *e, const fsdp__layout_options *o, struct fsdp__layout_entry *entry)
{
    int64_t chunk = (e->rows + o->ranks - 1) / o->ranks;
    int64_t first = FSDP__MIN(o->rank * chunk, e->rows), rows = FSDP__MIN(chunk, e->rows - first);

    entry->part.at = first * e->inner;
    entry->part.outer = e->outer;
    entry->part.stride = e->rows * e->inner;
    entry->part.inner = rows * e->inner;
    entry->chunk_numel = e->outer * chunk * e->inner;
}

static void lay_per_parameter(const fsdp__extent *extents, const fsdp__layout_options *o, fsdp__layout *out)
{
    for (int64_t i = 0; i < out->count; i++) {
        struct fsdp__layout_entry *entry = &out->entries[i];

        cut_rows(&extents[i], o, entry);
        entry->part.in_shard = out->shard_numel;
        entry->in_unsharded = out->unsharded_numel;
        out->shard_numel += entry->chunk_numel;
        out->unsharded_numel += round_up(entry->chunk_numel * o->ranks, o->unsharded_align);
    }
}

static void lay_flat(const fsdp__extent *extents, const fsdp__layout_options *o, fsdp__layout *out)
{
    int64_t total = 0, begin, end;

    for (int64_t i = 0; i < out->count; i++) {
        out->entries[i].in_unsharded = round_up(total, o->unsharded_align);
        total = out->entries[i].in_unsharded + fsdp__extent_numel(&extents[i]);
    }
    out->shard_numel = (total + o->ranks - 1) / o->ranks;
    out->unsharded_numel = out->shard_numel * o->ranks;
    begin = out->shard_numel * o->rank;
    end = begin + out->shard_numel;
    for (int64_t i = 0; i < out->count; i++) {
        struct fsdp__layout_entry *entry = &out->entries[i];
        int64_t numel = fsdp__extent_numel(&extents[i]);
        int64_t from = FSDP__MIN(FSDP__MAX(begin - entry->in_unsharded, 0), numel);
        int64_t to = FSDP__MIN(FSDP__MAX(end - entry->in_unsharded, 0), numel);

        entry->part.at = from;
        entry->part.outer = 1;
        entry->part.inner = to - from;
        entry->part.in_shard = to > from ? entry->in_unsharded + from - begin : 0;
        entry->chunk_numel = to - from;
    }
}

fsdp_status fsdp__layout_make(const fsdp__extent *extents, int64_t count, const fsdp__layout_options *options,
                              fsdp__layout *out)
{
    *out = (fsdp__layout){.count = count};
    out->entries = fsdp__calloc((size_t)FSDP__MAX(count, 1), sizeof *out->entries);
    if (!out->entries)
        return FSDP_NO_MEMORY;
    for (int64_t i = 0; i < count; i++)
        out->entries[i].part.parameter = i;
    if (options->kind == FSDP__LAYOUT_FLAT)
        lay_flat(extents, options, out);
    else
        lay_per_parameter(extents, options, out);
    return FSDP_OK;
}

void fsdp__layout_release(fsdp__layout *layout)
{
    fsdp__free(layout->entries);
    *layout = (fsdp__layout){0};
}
