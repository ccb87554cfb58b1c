/* halves.c - splits shards into halves, and joins them. */
#include "shard/group/halves.h"

#include "base/alloc.h"
#include "base/context.h"
#include "device/kernels.h"
#include "shard/group/cast.h"
#include "shard/group/param_group.h"

static fsdp_status refuse(const fsdp__param *param, const char *why)
{
    char text[256];

    return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot split the shard of parameter %s (split_shards): %s",
                     fsdp__param_text(param, text, sizeof text), why);
}

fsdp_status fsdp__halves_check(const fsdp__param_group *group)
{
    const fsdp__residence *r = &group->residence;

    for (int64_t i = 0; i < group->param_count && r->splits; i++) {
        const fsdp__param *p = &group->params[i];

        if (group->buffers != group->params)
            return refuse(p, "it lies in a flat parameter");
        if (group->encoded.bytes > 0)
            return refuse(p, "other bytes are gathered of it");
        if (fsdp__residence_is_offloaded(r))
            return refuse(p, "it lies on the host");
        if (fsdp__residence_is_shared(r))
            return refuse(p, "ranks share the memory of what is gathered (no_shared_memory)");
        if (p->orig_dtype != FSDP_F32 || p->param_dtype != FSDP_BF16)
            return refuse(p, "only float32 that is gathered in bfloat16 is split");
        if (!fsdp__param_keeps_cast(p))
            return refuse(p, "it is sharded in a later dimension than 0");
    }
    return FSDP_OK;
}

static void *low_of(const fsdp__residence *residence, const fsdp__param *param)
{
    return (char *)residence->low->data + param->cast_offset;
}

/* Launches the kernel over all shards, between halves and wholes that both have bytes. */
static fsdp_status launch(const fsdp__param_group *group, bool join)
{
    const fsdp__residence *r = &group->residence;
    FSDP__FREED fsdp__split_span *spans = fsdp__malloc((size_t)group->param_count * sizeof *spans);
    fsdp__split_spans_args args = {.spans = spans, .join = join};

    FSDP__TRY_NEW(spans);
    for (int64_t i = 0; i < group->param_count; i++) {
        const fsdp__param *p = &group->params[i];

        if (fsdp__param_shard_numel(p) > 0)
            spans[args.count++] = (fsdp__split_span){.whole = fsdp__residence_shard(r, p),
                                                     .high = fsdp__cast_of(r, p),
                                                     .low = low_of(r, p),
                                                     .numel = fsdp__param_shard_numel(p)};
    }
    return args.count > 0 ? fsdp__launch_split_spans(fsdp_device_stream(r->device), &args) : FSDP_OK;
}

/* Fills a region, and empties it again if what it is for fails. */
static fsdp_status convert(const fsdp__param_group *group, fsdp__region *to, bool join)
{
    fsdp_status status;

    FSDP_TRY(fsdp__region_fill(to));
    status = launch(group, join);
    if (status != FSDP_OK)
        fsdp__region_empty(to);
    return status;
}

static bool is_due(const fsdp__residence *residence)
{
    return residence->splits && !fsdp__residence_is_split(residence) && residence->cast_bytes > 0;
}

fsdp_status fsdp__halves_follow(const fsdp__param_group *group, fsdp_event *written)
{
    if (!written || !is_due(&group->residence))
        return FSDP_OK;
    return fsdp_stream_wait_event(fsdp_device_stream(group->residence.device), written);
}

fsdp_status fsdp__halves_split(fsdp__param_group *group)
{
    fsdp__residence *r = &group->residence;

    if (!is_due(r))
        return FSDP_OK;
    FSDP_TRY(convert(group, r->low, false));
    for (int64_t i = 0; i < group->param_count; i++)
        fsdp__storage_drop(group->params[i].sharded->storage);
    fsdp__region_empty(r->shards);
    r->has_cast = true;
    r->cast_stream = fsdp_device_stream(r->device);
    return FSDP_OK;
}

fsdp_status fsdp__halves_join(fsdp__param_group *group)
{
    fsdp__residence *r = &group->residence;

    if (!fsdp__residence_is_split(r))
        return FSDP_OK;
    FSDP_TRY(convert(group, r->shards, true));
    for (int64_t i = 0; i < group->param_count; i++)
        fsdp__residence_lend_shard(r, &group->params[i], group->params[i].sharded->storage);
    fsdp__region_empty(r->low);
    /* Whoever asks may be the host. */
    return fsdp__device_host_access(r->device) ? fsdp_stream_synchronize(fsdp_device_stream(r->device)) : FSDP_OK;
}

void fsdp__halves_end(fsdp__param_group *group)
{
    bool held = false;

    if (!fsdp__residence_is_split(&group->residence))
        return;
    for (int64_t i = 0; i < group->param_count; i++)
        held = held || group->params[i].sharded->refs > 1 || group->params[i].sharded->storage->refs > 1;
    if (held && fsdp__halves_join(group) == FSDP_OK)
        return;
    for (int64_t i = 0; i < group->param_count; i++)
        group->params[i].sharded->storage->guard = (fsdp__storage_guard){.arg = NULL};
}

/* ---- for those who ask ---- */

static fsdp_status bring(void *arg, fsdp__storage *storage)
{
    (void)storage;
    return fsdp__halves_join(arg);
}

static void *low_place(void *arg, const fsdp__storage *storage)
{
    const fsdp__param_group *group = arg;
    const fsdp__residence *r = &group->residence;

    for (int64_t i = 0; i < group->param_count && fsdp__residence_is_split(r); i++)
        if (group->params[i].sharded->storage == storage)
            return low_of(r, &group->params[i]);
    return NULL;
}

void fsdp__halves_serve(fsdp__param_group *group)
{
    if (!group->residence.splits)
        return;
    group->residence.shards->bring = bring;
    group->residence.shards->low_place = low_place;
}
