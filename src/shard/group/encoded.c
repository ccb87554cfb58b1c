/* encoded.c - encodes, gathers and decodes groups. */
#include "shard/group/encoded.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/group_calls.h"
#include "device/kernels.h"
#include "shard/group/custom.h"
#include "shard/group/param_group.h"

enum {
    ALIGN = 16 /* bytes: each parameter's part begins at a multiple */
};

fsdp_status fsdp__encoded_check(const fsdp_gather_extension *e)
{
    const char *missing = !e->sent_bytes ? "sent_bytes" : !e->pre ? "pre" : !e->post ? "post" : NULL;

    if (missing)
        return FSDP_FAIL(FSDP_INVALID, "gather extension '%s' has no %s: it needs sent_bytes, pre and post",
                         e->name ? e->name : "?", missing);
    return FSDP_OK;
}

static fsdp_gather_parameter describe(const fsdp__param_group *group, const fsdp__param *p)
{
    const fsdp__residence *r = &group->residence;
    const fsdp__mesh_info *mesh = &r->mesh;
    const void *values = p->sharded->storage->data;

    if (fsdp__residence_is_offloaded(r))
        values = group->offload.staging ? fsdp__offload_place(group, p) : NULL;
    return (fsdp_gather_parameter){.name = p->name,
                                   .sharded = p->sharded,
                                   .values = values,
                                   .param_dtype = p->param_dtype,
                                   .ranks = mesh->ranks,
                                   .rank = mesh->rank,
                                   .outer = p->extent.outer,
                                   .rows = p->extent.rows,
                                   .inner = p->extent.inner};
}

/* ---- memory ---- */

void fsdp__encoded_lay_out(fsdp__param_group *group)
{
    fsdp__encoded *w = &group->encoded;
    bool any = false;

    for (int64_t i = 0; i < group->param_count; i++)
        any = any || group->params[i].extension.pre;
    for (int64_t i = 0; i < group->param_count && any; i++) {
        fsdp__param *p = &group->params[i];
        const fsdp_gather_extension *e = &p->extension;
        fsdp_gather_parameter described = describe(group, p);
        size_t bytes =
            e->pre ? e->sent_bytes(e->arg, &described) : (size_t)p->chunk_numel * fsdp_dtype_size(p->param_dtype);

        p->sent_offset = w->bytes;
        w->bytes += FSDP__ROUND_UP(bytes, ALIGN);
        w->measured += e->pre && e->measure;
    }
    if (any)
        w->bytes = fsdp__device_rounded(FSDP__MAX(w->bytes, 1));
}

fsdp_status fsdp__encoded_open(fsdp__param_group *group)
{
    const fsdp__residence *r = &group->residence;
    fsdp__encoded *w = &group->encoded;
    size_t measures = fsdp__device_rounded((size_t)w->measured * sizeof(float));

    if (w->bytes == 0)
        return FSDP_OK;
    FSDP_TRY(fsdp_event_create(r->device, &w->encoded));
    w->current = false;
    w->shared = fsdp__residence_can_share(r, r->device) && !group->all_gather.run;
    if (w->measured > 0)
        FSDP_TRY(fsdp__region_make(r->device, measures, FSDP_MEMORY_PARAMETER_SHARD, &w->measures));
    if (w->shared)
        return fsdp__region_of_ranks(r->device, &r->mesh, FSDP_MEMORY_SHARED, w->bytes * (size_t)r->mesh.ranks,
                                     FSDP_MEMORY_PARAMETER_SHARD, w->bytes, &w->sent);
    return fsdp__region_make(r->device, w->bytes, FSDP_MEMORY_PARAMETER_SHARD, &w->sent);
}

fsdp_status fsdp__encoded_fill(const fsdp__encoded *own)
{
    return own->shared ? fsdp__region_fill(own->sent) : FSDP_OK;
}

void fsdp__encoded_close(fsdp__encoded *own)
{
    fsdp__region_unref(own->sent);
    fsdp__region_unref(own->measures);
    fsdp_event_free(own->encoded);
    own->sent = own->measures = NULL;
    own->encoded = NULL;
    own->shared = false;
}

fsdp_status fsdp__encoded_await(const fsdp__encoded *own, fsdp_stream *stream)
{
    return own->encoded ? fsdp_stream_wait_event(stream, own->encoded) : FSDP_OK;
}

static char *own_bytes(const fsdp__param_group *group)
{
    const fsdp__encoded *w = &group->encoded;

    return (char *)w->sent->data + (w->shared ? (size_t)group->residence.mesh.rank * w->bytes : 0);
}

/* ---- values that lie on the host ---- */

/* Brings offloaded shards to the device, for as long as they are measured or encoded. */
static fsdp_status bring(fsdp__param_group *group, fsdp__comm_context *comm)
{
    const fsdp__residence *r = &group->residence;
    bool fresh;

    if (!fsdp__residence_is_offloaded(r))
        return FSDP_OK;
    FSDP_TRY(fsdp__offload_take_staging(group, &fresh));
    FSDP_TRY(fsdp__comm_context_follow_compute(comm, r->device));
    return fsdp__offload_send(group, comm->stream);
}

static void let_go(fsdp__param_group *group, fsdp__comm_context *comm)
{
    if (!group->offload.staging)
        return;
    fsdp__comm_context_precede_compute(comm, group->residence.device);
    fsdp__offload_drop_staging(group);
}

/* ---- measures: [Note: measures] ---- */

/* Measures this rank's shards of a group that was written. */
static fsdp_status measure(const fsdp__param_group *group, fsdp_stream *stream)
{
    float *out = group->encoded.measures->data;

    for (int64_t i = 0; i < group->param_count; i++) {
        const fsdp__param *p = &group->params[i];
        fsdp_gather_parameter described = describe(group, p);

        if (p->extension.pre && p->extension.measure)
            FSDP_TRY(p->extension.measure(p->extension.arg, &described, out++, stream));
    }
    return FSDP_OK;
}

/* Puts the measures of all groups where one all-reduce takes them: `*out` is memory of the context, until the next
 * call. */
static fsdp_status collect(fsdp__param_group *const *groups, int64_t count, int64_t total, fsdp__comm_context *comm,
                           float **out)
{
    FSDP__FREED fsdp__span *spans = fsdp__malloc((size_t)count * sizeof *spans);
    fsdp__cast_spans_args args = {.spans = spans, .src_dtype = FSDP_F32, .dst_dtype = FSDP_F32};
    float *at;

    FSDP__TRY_NEW(spans);
    FSDP_TRY(fsdp__comm_context_measures(comm, groups[0]->residence.device, (size_t)total * sizeof *at, out));
    at = *out;
    for (int64_t i = 0; i < count; i++) {
        const fsdp__encoded *w = &groups[i]->encoded;

        if (w->measured > 0)
            spans[args.count++] = (fsdp__span){.src = w->measures->data, .dst = at, .numel = w->measured};
        at += w->measured;
    }
    return fsdp__launch_cast_spans(comm->stream, &args);
}

static fsdp_status measure_all(fsdp__param_group *const *groups, int64_t count, fsdp__comm_context *comm, float **out)
{
    fsdp_process_group *pg = groups[0]->residence.mesh.shard_pg;
    int64_t total = 0;

    for (int64_t i = 0; i < count; i++) {
        fsdp_status status;

        total += groups[i]->encoded.measured;
        if (groups[i]->encoded.current || groups[i]->encoded.measured == 0)
            continue;
        status = bring(groups[i], comm);
        if (status == FSDP_OK)
            status = measure(groups[i], comm->stream);
        let_go(groups[i], comm);
        FSDP_TRY(status);
    }
    *out = NULL;
    if (total == 0)
        return FSDP_OK;
    FSDP_TRY(collect(groups, count, total, comm, out));
    if (groups[0]->residence.mesh.ranks == 1)
        return FSDP_OK;
    return fsdp_all_reduce(pg, *out, *out, total, FSDP_F32, FSDP_MAX, comm->stream);
}

/* ---- encode ---- */

static fsdp_status encode_plain(const fsdp__param *p, const void *values, void *to, fsdp_stream *stream)
{
    const fsdp__span span = {.src = values, .dst = to, .numel = fsdp__param_shard_numel(p)};

    if (span.numel == 0)
        return FSDP_OK;
    return fsdp__launch_cast_spans(stream, &(fsdp__cast_spans_args){&span, 1, p->orig_dtype, p->param_dtype});
}

/* Encodes a group. `*measures` advances past the group's. */
static fsdp_status encode(fsdp__param_group *group, const float **measures, fsdp_stream *stream)
{
    fsdp__encoded *w = &group->encoded;
    char *own = own_bytes(group);

    if (w->shared)
        FSDP_TRY(fsdp__process_group_await_readers(group->residence.mesh.shard_pg, w->sent->data, stream));
    for (int64_t i = 0; i < group->param_count; i++) {
        const fsdp__param *p = &group->params[i];
        const fsdp_gather_extension *e = &p->extension;
        fsdp_gather_parameter described = describe(group, p);

        if (e->pre)
            FSDP_TRY(e->pre(e->arg, &described, e->measure ? (*measures)++ : NULL, !w->current, own + p->sent_offset,
                            stream));
        else if (!w->current)
            FSDP_TRY(encode_plain(p, described.values, own + p->sent_offset, stream));
    }
    w->current = true;
    return FSDP_OK;
}

static fsdp_status encode_all(fsdp__param_group *const *groups, int64_t count, fsdp__comm_context *comm)
{
    const float *at;
    float *measures;

    FSDP_TRY(measure_all(groups, count, comm, &measures));
    at = measures;
    for (int64_t i = 0; i < count; i++) {
        fsdp_status status = bring(groups[i], comm);

        if (status == FSDP_OK)
            status = encode(groups[i], &at, comm->stream);
        let_go(groups[i], comm);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

fsdp_status fsdp__encoded_encode(fsdp__param_group *const *groups, int64_t count, fsdp__comm_context *comm)
{
    bool written = false;
    fsdp_status status;

    for (int64_t i = 0; i < count; i++) {
        written = written || groups[i]->written;
        groups[i]->written = false;
    }
    if (written)
        FSDP_TRY(fsdp__comm_context_follow_writes(comm, groups[0]->residence.shard_device));
    status = encode_all(groups, count, comm);
    for (int64_t i = 0; i < count; i++) /* even after a failure: the stream may use a part of it */
        FSDP_KEEP_FIRST(status, fsdp_event_record(groups[i]->encoded.encoded, comm->stream));
    return status;
}

/* ---- gather ---- */

/* Decodes a rank's rows of a parameter without an extension. */
static fsdp_status decode_plain(const fsdp_gather_parameter *d, int rank, const void *from, void *unsharded,
                                fsdp_stream *stream)
{
    fsdp_dtype dtype = d->param_dtype;
    int64_t start, rows = fsdp_shard_range(d->rows, d->ranks, rank, &start);
    const fsdp__copy_args args = {.src = from,
                                  .dst = (char *)unsharded + (size_t)(start * d->inner) * fsdp_dtype_size(dtype),
                                  .src_dtype = dtype,
                                  .dst_dtype = dtype,
                                  .ndim = 2,
                                  .shape = {d->outer, rows * d->inner},
                                  .src_strides = {rows * d->inner, 1},
                                  .dst_strides = {d->rows * d->inner, 1}};

    return args.shape[0] * args.shape[1] > 0 ? fsdp__launch_copy(stream, &args) : FSDP_OK;
}

/* Decodes all parameters of the group. `parts` has room for one address for each rank. */
static fsdp_status decode(const fsdp__param_group *group, const char *received, const void **parts, fsdp_stream *stream)
{
    for (int64_t i = 0; i < group->param_count; i++) {
        const fsdp__param *p = &group->params[i];
        const fsdp_gather_extension *e = &p->extension;
        fsdp_gather_parameter described = describe(group, p);
        void *unsharded = p->unsharded->storage->data;

        for (int r = 0; r < described.ranks; r++) {
            parts[r] = received + (size_t)r * group->encoded.bytes + p->sent_offset;
            if (!e->pre)
                FSDP_TRY(decode_plain(&described, r, parts[r], unsharded, stream));
        }
        if (e->pre)
            FSDP_TRY(e->post(e->arg, &described, parts, unsharded, stream));
    }
    return FSDP_OK;
}

static fsdp_status exchange(fsdp__param_group *group, fsdp__comm_context *comm, void *received)
{
    const fsdp__mesh_info *mesh = &group->residence.mesh;
    const fsdp_sharded_buffer buffer = {.unsharded = received,
                                        .shard = own_bytes(group),
                                        .numel = (int64_t)group->encoded.bytes * mesh->ranks,
                                        .chunk = (int64_t)group->encoded.bytes,
                                        .unsharded_dtype = FSDP_U8,
                                        .shard_dtype = FSDP_U8};

    if (mesh->ranks == 1)
        return FSDP_OK;
    /* Every gather writes what comes from other machines, not only a gather after an encoding. */
    if (group->encoded.shared && fsdp__process_group_machines(mesh->shard_pg) > 1)
        FSDP_TRY(fsdp__process_group_await_readers(mesh->shard_pg, received, comm->stream));
    return fsdp__all_gather(&group->all_gather, comm, mesh->shard_pg, &buffer, 1, &group->packed);
}

/* Gives the memory that the gather arrives in: where the ranks' bytes lie anyway, or memory of the context. The ledger
 * counts the same either way. */
static fsdp_status take_received(fsdp__param_group *group, fsdp__comm_context *comm, size_t bytes, void **out)
{
    const fsdp__encoded *w = &group->encoded;

    *out = w->sent->data;
    if (group->residence.mesh.ranks == 1)
        return FSDP_OK;
    if (!w->shared)
        return fsdp__comm_context_take_received(comm, group->residence.device, bytes, out);
    fsdp__device_account(group->residence.device, group->owner, FSDP_MEMORY_UNSHARDED_PARAMETER, (int64_t)bytes, true);
    return FSDP_OK;
}

static void arrive(fsdp__param_group *group, fsdp__comm_context *comm)
{
    if (group->encoded.receiving)
        fsdp__comm_context_give_received(comm, group->residence.device, true);
    group->encoded.receiving = false;
}

/* Gives that memory back once the work that uses it has been issued. */
static void give_received(fsdp__param_group *group, fsdp__comm_context *comm, size_t bytes, fsdp_status status)
{
    fsdp_device *device = group->residence.device;

    if (group->residence.mesh.ranks == 1)
        return;
    if (group->encoded.shared) {
        fsdp__device_account(device, group->owner, FSDP_MEMORY_UNSHARDED_PARAMETER, -(int64_t)bytes, true);
        return;
    }
    fsdp__comm_context_give_received(comm, device, false);
    group->encoded.receiving = comm->stream != fsdp_device_stream(device);
    if (status == FSDP_OK)
        return;
    fsdp__comm_context_precede_compute(comm, device); /* nobody will wait for it */
    arrive(group, comm);
}

static fsdp_status exchange_and_decode(fsdp__param_group *group, fsdp__comm_context *comm)
{
    const fsdp__encoded *w = &group->encoded;
    fsdp_process_group *pg = group->residence.mesh.shard_pg;
    size_t ranks = (size_t)group->residence.mesh.ranks, bytes = fsdp__device_rounded(w->bytes * ranks);
    FSDP__FREED const void **parts = fsdp__malloc(ranks * sizeof *parts);
    fsdp_status status;
    void *received;

    FSDP__TRY_NEW(parts);
    FSDP_TRY(take_received(group, comm, bytes, &received));
    status = exchange(group, comm, received);
    if (status == FSDP_OK) {
        if (w->shared) /* before looking: a peer may finish all of it, and write, before this rank reads */
            fsdp__process_group_begin_read(pg, w->sent->data);
        status = decode(group, received, parts, comm->stream);
        if (w->shared && fsdp__process_group_end_read(pg, w->sent->data, comm->stream) != FSDP_OK)
            fsdp_abort(fsdp_process_group_context(pg), fsdp_last_error()); /* otherwise writers wait for ever */
    }
    give_received(group, comm, bytes, status);
    return status;
}

/* ---- the way of a gather ---- */

static fsdp_status gather(fsdp__param_group *group, fsdp__comm_context *comm)
{
    FSDP_TRY(fsdp__gather_order(group, comm));
    if (!group->encoded.current)
        FSDP_TRY(fsdp__encoded_encode(&group, 1, comm));
    return exchange_and_decode(group, comm);
}

static fsdp_status before_write(fsdp__param_group *group)
{
    group->encoded.current = false;
    FSDP_TRY(fsdp__encoded_await(&group->encoded, fsdp_device_stream(group->residence.shard_device)));
    return fsdp__offload_await_read(group);
}

const fsdp__gather_way fsdp__gather_encoded = {.gather = gather, .arrive = arrive, .before_write = before_write};
