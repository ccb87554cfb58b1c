/* buckets.c - divides parameters into buckets, and gives their gradients places. */
#include "shard/reduce/buckets.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "device/device.h"

enum {
    MIB = 1 << 20,
    DEFAULT_CAP = 25 * MIB,
    DEFAULT_FIRST = MIB,
    DTYPES = 3 /* f32, bf16, f16 */
};

/* ---- life cycle ---- */

fsdp_status fsdp__buckets_create(const fsdp__param_group *group, const fsdp_replicate_options *options,
                                 fsdp__buckets **out)
{
    size_t n = (size_t)group->param_count;
    fsdp__buckets *b = fsdp__calloc(1, sizeof *b);

    FSDP__TRY_NEW(b);
    b->options = *options;
    b->options.mesh = NULL;
    b->options.ignored_params = NULL;
    b->options.ignored_modules = NULL;
    b->buffers_due = !options->keep_buffers;
    b->items = fsdp__calloc(n, sizeof *b->items);
    b->order = fsdp__calloc(n, sizeof *b->order);
    b->places = fsdp__calloc(n, sizeof *b->places);
    b->arrivals = fsdp__calloc(n, sizeof *b->arrivals);
    b->late = fsdp__calloc(n, sizeof *b->late);
    if (b->items && b->order && b->places && b->arrivals && b->late) {
        b->place_count = group->param_count;
        *out = b;
        return FSDP_OK;
    }
    fsdp__buckets_free(b);
    return FSDP_NO_MEMORY;
}

void fsdp__buckets_free(fsdp__buckets *buckets)
{
    if (!buckets)
        return;
    fsdp__buckets_reset(buckets);
    for (int64_t i = 0; i < buckets->count; i++)
        fsdp__bucket_leave_region(&buckets->items[i]);
    FSDP__FREE_ALL(buckets->items, buckets->order, buckets->places, buckets->arrivals, buckets->late, buckets->ignored,
                   buckets);
}

void fsdp__buckets_reset(fsdp__buckets *buckets)
{
    while (buckets->late_count > 0)
        fsdp_tensor_unref(buckets->late[--buckets->late_count].result);
    for (int64_t i = 0; i < buckets->place_count; i++)
        buckets->places[i].expected = false;
    buckets->running = buckets->lacking = buckets->open = false;
    buckets->next = 0;
}

/* ---- dividing ---- */

typedef struct division {
    const fsdp__param_group *group;
    int32_t *params, count; /* in the order in which they are put into buckets */
    int32_t *bucket;        /* of each parameter; buckets are numbered as they are opened */
    int32_t *closed;        /* bucket -> its number in the order of closing */
    int32_t buckets;
    int64_t limits[2]; /* in bytes: of a dtype's first bucket, and of the others */
    /* The result: the parameters bucket after bucket, with room for one number behind them; sizes[i] of them are in
     * bucket i. */
    int32_t *order, *sizes;
} division;

static int dtype_index(fsdp_dtype dtype)
{
    return dtype == FSDP_F32 ? 0 : dtype == FSDP_BF16 ? 1 : 2;
}

/* Divides with one open bucket for each dtype, which is closed as soon as it is full. */
static void divide(division *d)
{
    struct {
        int32_t bucket;
        int64_t bytes, closed;
    } open[DTYPES] = {{-1, 0, 0}, {-1, 0, 0}, {-1, 0, 0}};
    int32_t closed = 0;

    for (int32_t i = 0; i < d->count; i++) {
        const fsdp__param *p = &d->group->params[d->params[i]];
        int k = dtype_index(p->param_dtype);

        if (open[k].bucket < 0)
            open[k].bucket = d->buckets++;
        d->bucket[i] = open[k].bucket;
        open[k].bytes += fsdp__param_numel(p) * (int64_t)fsdp_dtype_size(p->param_dtype);
        if (open[k].bytes < d->limits[open[k].closed > 0])
            continue;
        d->closed[open[k].bucket] = closed++;
        open[k].bucket = -1;
        open[k].bytes = 0;
        open[k].closed++;
    }
    for (int32_t b = 0; b < d->buckets; b++) /* what is left is closed in the order of opening */
        for (int k = 0; k < DTYPES; k++)
            if (open[k].bucket == b)
                d->closed[b] = closed++;
}

/* Sets the group's division, into `count` buckets. */
static void apply(fsdp__param_group *group, const division *d, int64_t count)
{
    fsdp__buckets *b = group->buckets;
    const int32_t *next = b->order, *order = d->order;

    for (int64_t i = 0; i < b->count; i++)
        fsdp__bucket_leave_region(&b->items[i]);
    for (int64_t i = 0; i < group->param_count; i++)
        b->places[i] =
            (fsdp__bucket_place){.bucket = -1, .used = b->places[i].used, .used_here = b->places[i].used_here};
    b->count = count;
    for (int64_t i = 0; i < count; i++) {
        fsdp__bucket *bucket = &b->items[i];

        *bucket = (fsdp__bucket){.params = next, .count = d->sizes[i]};
        for (int32_t k = 0; k < d->sizes[i]; k++) {
            int32_t index = *order++;
            const fsdp__param *p = &group->params[index];

            b->order[next - b->order] = index;
            next++;
            b->places[index].bucket = i;
            b->places[index].at = bucket->numel;
            bucket->numel += fsdp__param_numel(p);
            bucket->dtype = p->param_dtype;
        }
    }
}

static fsdp_status division_open(const fsdp__param_group *group, division *d)
{
    size_t n = (size_t)group->param_count;
    double cap = group->buckets->options.bucket_cap_mb;

    *d = (division){.group = group, .limits = {DEFAULT_FIRST, DEFAULT_CAP}};
    if (cap > 0)
        d->limits[0] = d->limits[1] = (int64_t)(cap * MIB);
    d->params = fsdp__calloc(n, sizeof *d->params);
    d->bucket = fsdp__calloc(n, sizeof *d->bucket);
    d->closed = fsdp__calloc(n, sizeof *d->closed);
    d->order = fsdp__calloc(n * 2 + 1, sizeof *d->order);
    d->sizes = d->order + n + 1;
    return d->params && d->bucket && d->closed && d->order ? FSDP_OK : FSDP_NO_MEMORY;
}

static void division_close(division *d)
{
    FSDP__FREE_ALL(d->params, d->bucket, d->closed, d->order);
}

/* Lists the divided parameters bucket after bucket, in the order of `rank[bucket]`. */
static void list_in_order(division *d, const int32_t *rank)
{
    int32_t *order = d->order;

    for (int32_t r = 0; r < d->buckets; r++) {
        d->sizes[r] = 0;
        for (int32_t i = 0; i < d->count; i++)
            if (rank[d->bucket[i]] == r) {
                *order++ = d->params[i];
                d->sizes[r]++;
            }
    }
}

static bool is_trained(const fsdp__param *param)
{
    return fsdp_tensor_requires_grad(param->sharded);
}

fsdp_status fsdp__buckets_assign(fsdp__param_group *group)
{
    fsdp__buckets *b = group->buckets;
    FSDP__SCOPED(division_close) division d = {0};

    FSDP_TRY(division_open(group, &d));
    if (!b->options.find_unused_parameters) /* the first iteration will tell how to divide */
        d.limits[0] = INT64_MAX;
    for (int32_t i = 0; i < group->param_count; i++)
        if (is_trained(&group->params[i]))
            d.params[d.count++] = i;
    divide(&d);
    for (int32_t i = 0; i < d.buckets; i++) /* parameters registered last are sent first */
        d.closed[i] = d.buckets - 1 - i;
    list_in_order(&d, d.closed);
    apply(group, &d, d.buckets);
    b->rebuilt = b->options.find_unused_parameters;
    b->backwards = b->arrival_count = 0;
    return FSDP_OK;
}

bool fsdp__buckets_are_outdated(const fsdp__param_group *group)
{
    bool outdated = false;

    for (int64_t i = 0; i < group->param_count; i++) {
        const fsdp__param *p = &group->params[i];
        int64_t bucket = group->buckets->places[i].bucket;

        outdated = outdated || is_trained(p) != (bucket >= 0) ||
                   (bucket >= 0 && group->buckets->items[bucket].dtype != p->param_dtype);
    }
    return outdated;
}

/* ---- dividing anew ---- */

/* Lists the parameters that arrived, in their order, and behind them those that nobody uses. */
static int32_t list_arrivals(const fsdp__param_group *group, int32_t *out)
{
    const fsdp__buckets *b = group->buckets;
    int32_t count = 0;

    for (int64_t i = 0; i < b->arrival_count; i++)
        out[count++] = b->arrivals[i];
    for (int32_t i = 0; i < group->param_count; i++) {
        bool listed = b->places[i].bucket < 0;

        for (int32_t k = 0; k < b->arrival_count && !listed; k++)
            listed = b->arrivals[k] == i;
        if (!listed)
            out[count++] = i;
    }
    return count;
}

/* Broadcasts numbers of the speaker's to all ranks, or adds up those of all ranks. */
static fsdp_status exchange(const fsdp__param_group *group, int32_t *numbers, int64_t count, bool sum)
{
    const fsdp__residence *r = &group->residence;
    fsdp_stream *stream = fsdp_device_stream(r->device);
    fsdp_process_group *pg = r->mesh.replicate_pg;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *tensor = NULL;
    void *data;

    if (r->mesh.replicas == 1)
        return FSDP_OK;
    FSDP_TRY(fsdp_tensor_create(r->device, FSDP_I32, 1, &count, FSDP_MEMORY_WORKSPACE, &tensor));
    FSDP_TRY(fsdp_tensor_write(tensor, FSDP_I32, numbers));
    data = fsdp_tensor_data(tensor);
    if (sum)
        FSDP_TRY(fsdp_all_reduce(pg, data, data, count, FSDP_I32, FSDP_SUM, stream));
    else
        FSDP_TRY(fsdp_broadcast(pg, data, count, FSDP_I32, group->buckets->speaker, stream));
    /* Without bytes there are no other ranks, and this rank's own numbers count. */
    return fsdp__device_has_bytes(r->device) ? fsdp_tensor_read(tensor, FSDP_I32, numbers) : FSDP_OK;
}

fsdp_status fsdp__buckets_add_up(const fsdp__param_group *group, int32_t *numbers, int64_t count)
{
    return exchange(group, numbers, count, true);
}

fsdp_status fsdp__buckets_rebuild(fsdp__param_group *group)
{
    fsdp__buckets *b = group->buckets;
    FSDP__SCOPED(division_close) division d = {0};

    FSDP_TRY(division_open(group, &d));
    d.count = list_arrivals(group, d.params);
    divide(&d);
    list_in_order(&d, d.closed);
    /* Gradients may have arrived in another order on each rank, so all take the speaker's division. */
    d.order[d.count] = d.buckets;
    FSDP_TRY(exchange(group, d.order, d.count + 1, false));
    FSDP_TRY(exchange(group, d.sizes, d.order[d.count], false));
    apply(group, &d, d.order[d.count]);
    b->rebuilt = true;
    return FSDP_OK;
}

/* ---- gradients ---- */

size_t fsdp__bucket_bytes(const fsdp__bucket *bucket)
{
    return fsdp__device_rounded((size_t)bucket->numel * fsdp_dtype_size(bucket->dtype));
}

fsdp_status fsdp__bucket_make_region(const fsdp__param_group *group, const fsdp__bucket *bucket, fsdp__region **out)
{
    const fsdp__residence *r = &group->residence;
    fsdp_process_group *pg = r->mesh.replicate_pg;
    bool shared = r->mesh.replicas > 1 && !group->buckets->options.no_shared_memory &&
                  fsdp__device_shared_memory(r->device) && fsdp_process_group_can_share(pg, FSDP_MEMORY_SYMMETRIC);

    return fsdp__residence_gradients(r, pg, shared, fsdp__bucket_bytes(bucket), out);
}

fsdp_status fsdp__bucket_region(fsdp__param_group *group, fsdp__bucket *bucket, fsdp__region **out)
{
    if (bucket->region) {
        bucket->region->refs++;
        *out = bucket->region;
        return FSDP_OK;
    }
    FSDP_TRY(fsdp__bucket_make_region(group, bucket, out));
    (*out)->weak = &bucket->region;
    bucket->region = *out;
    return FSDP_OK;
}

void fsdp__bucket_leave_region(fsdp__bucket *bucket)
{
    if (bucket->region)
        bucket->region->weak = NULL;
    bucket->region = NULL;
}

fsdp_status fsdp__bucket_tensor(const fsdp__param *param, fsdp__region *region, fsdp_tensor **out)
{
    const fsdp__bucket_place *place = &param->group->buckets->places[param - param->group->params];
    size_t size = fsdp_dtype_size(param->param_dtype);

    FSDP_TRY(fsdp__region_tensor(region, (size_t)place->at * size, param->param_dtype, param->unsharded->ndim,
                                 param->unsharded->shape, out));
    fsdp__device_name_memory(region->device, (*out)->storage->data, (size_t)fsdp__param_numel(param) * size,
                             FSDP_MEMORY_GRADIENT, param->name);
    return FSDP_OK;
}
