/* cast.c - casts the shards that have been written, in one pass. */
#include "shard/group/cast.h"

#include "base/alloc.h"
#include "device/kernels.h"
#include "shard/group/param_group.h"

bool fsdp__param_keeps_cast(const fsdp__param *param)
{
    return param->param_dtype != param->orig_dtype && param->extent.outer <= 1;
}

void fsdp__cast_lay_out(fsdp__residence *residence, fsdp__param *params, int64_t count)
{
    residence->cast_bytes = 0;
    residence->casts = false;
    for (int64_t i = 0; i < count; i++) {
        fsdp__param *p = &params[i];

        p->cast_offset = residence->cast_bytes;
        if (!fsdp__param_keeps_cast(p))
            continue;
        residence->casts = true;
        residence->cast_bytes += fsdp__device_rounded((size_t)p->chunk_numel * fsdp_dtype_size(p->param_dtype));
    }
}

void *fsdp__cast_of(const fsdp__residence *residence, const fsdp__param *param)
{
    size_t in_unsharded = param->unsharded_offset + (size_t)param->part.at * fsdp_dtype_size(param->param_dtype);

    if (residence->kind == FSDP__RESIDENCE_CAST)
        return (char *)residence->unsharded->data + in_unsharded;
    return (char *)residence->cast->data + param->cast_offset;
}

/* Returns the parameter whose shard lies in the storage; NULL if it keeps no cast. */
static fsdp__param *cast_param_of(fsdp__param_group *group, const fsdp__storage *storage)
{
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__param *p = &group->params[i];

        if (p->sharded && p->sharded->storage == storage)
            return fsdp__param_keeps_cast(p) && fsdp__param_shard_numel(p) > 0 ? p : NULL;
    }
    return NULL;
}

static void *copy_place(void *arg, const fsdp__storage *storage, fsdp_dtype *dtype)
{
    fsdp__param_group *group = arg;
    const fsdp__residence *r = &group->residence;
    /* Shards that are to rest in halves are not split yet: the next gather splits them, which writes the casts. */
    bool unsplit = r->splits && !fsdp__residence_is_split(r);
    const fsdp__param *p = r->casts && !fsdp__residence_is_offloaded(r) && !fsdp__residence_is_shared(r) && !unsplit
                               ? cast_param_of(group, storage)
                               : NULL;

    if (!p || p->sharded->dtype != p->orig_dtype)
        return NULL;
    *dtype = p->param_dtype;
    return fsdp__cast_of(r, p);
}

static void copied(void *arg, const fsdp__storage *storage)
{
    fsdp__param *p = cast_param_of(arg, storage);

    if (p)
        p->copied = true;
}

void fsdp__cast_serve_writers(fsdp__param_group *group)
{
    fsdp__region *shards = group->residence.shards;

    if (!shards)
        return;
    shards->copy_place = copy_place;
    shards->copied = copied;
}

void fsdp__cast_before_write(fsdp__param_group *group)
{
    group->residence.has_cast = false;
    for (int64_t i = 0; i < group->param_count; i++)
        group->params[i].copied = false;
}

fsdp_status fsdp__cast_shards(fsdp__param_group *group, fsdp_stream *stream)
{
    fsdp__residence *residence = &group->residence;
    int64_t count = group->param_count;
    fsdp__cast_spans_args args = {.count = 0};
    FSDP__FREED fsdp__span *spans = NULL;

    residence->cast_stream = stream;
    if (!residence->casts || residence->has_cast || fsdp__residence_is_offloaded(residence))
        return FSDP_OK;
    if (residence->splits) { /* they are upper halves: halves.h */
        residence->has_cast = true;
        return FSDP_OK;
    }
    FSDP__TRY_NEW(spans = fsdp__malloc((size_t)count * sizeof *spans));
    args.spans = spans;
    for (int64_t i = 0; i <= count; i++) { /* one more round, to launch what is left */
        const fsdp__param *p = i < count ? &group->params[i] : NULL;
        bool keeps = p && fsdp__param_keeps_cast(p) && fsdp__param_shard_numel(p) > 0 && !p->copied;

        if (args.count > 0 &&
            (!p || (keeps && (p->orig_dtype != args.src_dtype || p->param_dtype != args.dst_dtype)))) {
            FSDP_TRY(fsdp__launch_cast_spans(stream, &args));
            args.count = 0;
        }
        if (!keeps)
            continue;
        args.src_dtype = p->orig_dtype;
        args.dst_dtype = p->param_dtype;
        spans[args.count++] = (fsdp__span){
            .src = p->sharded->storage->data, .dst = fsdp__cast_of(residence, p), .numel = fsdp__param_shard_numel(p)};
    }
    residence->has_cast = true;
    return FSDP_OK;
}
