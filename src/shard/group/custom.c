/* custom.c - packs buffers for functions of the caller's, and unpacks the results. */
#include "shard/group/custom.h"

#include "base/compiler.h"
#include "comm/transport/sharded_buffer.h"

/* The buffers of one call, as they are packed. */
typedef struct packing {
    const fsdp_custom_collective *custom;
    fsdp_process_group *pg;
    const fsdp_sharded_buffer *buffers;
    int64_t count;
    fsdp_stream *stream;
    fsdp_dtype dtype; /* of all buffers; NONE: they differ, and are sent as bytes */
    size_t align;     /* bytes of the largest element: with mixed dtypes each buffer begins at a multiple */
    size_t part;      /* bytes of one rank */
} packing;

static size_t bytes_of(const packing *p, const fsdp_sharded_buffer *buffer, fsdp_dtype dtype)
{
    size_t bytes = (size_t)fsdp__chunk_numel(buffer) * fsdp_dtype_size(dtype);

    return FSDP__ROUND_UP(bytes, p->align);
}

/* Takes memory, in the order of the device's stream, which `stream` then waits for. */
static fsdp_status take(const packing *p, fsdp__comm_context *comm, size_t bytes, fsdp_memory_kind kind,
                        fsdp__region **out)
{
    fsdp_device *device = fsdp__stream_device(p->stream);
    fsdp__region *region;

    FSDP_TRY(fsdp__region_of_device(device, bytes, kind, out));
    region = *out;
    if (!p->custom->allocate) {
        FSDP_TRY(fsdp__region_fill(region));
    } else {
        FSDP_TRY(p->custom->allocate(p->custom->arg, device, bytes, &region->data));
        region->release = p->custom->release;
        region->release_arg = p->custom->arg;
        if (!region->data)
            return FSDP_FAIL(FSDP_INVALID, "allocate of a custom collective gave no memory");
    }
    return fsdp__comm_context_follow_compute_on(comm, device, p->stream);
}

static fsdp_status run(const packing *p, const char *send, char *recv, fsdp_reduce_op op)
{
    fsdp_dtype dtype = p->dtype == FSDP_DTYPE_NONE ? FSDP_U8 : p->dtype;
    const fsdp_custom_call call = {.group = p->pg,
                                   .send = send,
                                   .recv = recv,
                                   .count = (int64_t)(p->part / fsdp_dtype_size(dtype)),
                                   .dtype = dtype,
                                   .op = op,
                                   .stream = p->stream};

    return p->custom->run(p->custom->arg, &call);
}

/* ---- gather ---- */

static void lay_out_gather(packing *p)
{
    p->dtype = p->count > 0 ? p->buffers[0].unsharded_dtype : FSDP_U8;
    for (int64_t i = 0; i < p->count; i++) {
        p->align = FSDP__MAX(p->align, fsdp_dtype_size(p->buffers[i].unsharded_dtype));
        if (p->buffers[i].unsharded_dtype != p->dtype)
            p->dtype = FSDP_DTYPE_NONE;
    }
    for (int64_t i = 0; i < p->count; i++)
        p->part += bytes_of(p, &p->buffers[i], p->buffers[i].unsharded_dtype);
}

static fsdp_status pack_shards(const packing *p, fsdp__copies *copies, char *to)
{
    int rank = fsdp_process_group_rank(p->pg);

    for (int64_t i = 0; i < p->count; i++) {
        const fsdp_sharded_buffer *b = &p->buffers[i];

        FSDP_TRY(fsdp__copies_set(copies, b->shard_dtype, b->unsharded_dtype));
        FSDP_TRY(fsdp__copies_add(copies, to, b->shard, fsdp__part_numel(b, rank)));
        to += bytes_of(p, b, b->unsharded_dtype);
    }
    return fsdp__copies_flush(copies);
}

static fsdp_status unpack_shards(const packing *p, fsdp__copies *copies, const char *from)
{
    for (int rank = 0; rank < fsdp_process_group_size(p->pg); rank++)
        for (int64_t i = 0; i < p->count; i++) {
            const fsdp_sharded_buffer *b = &p->buffers[i];

            FSDP_TRY(fsdp__copies_set(copies, b->unsharded_dtype, b->unsharded_dtype));
            FSDP_TRY(fsdp__copies_spread(copies, b, rank, 0, fsdp__part_numel(b, rank), from));
            from += bytes_of(p, b, b->unsharded_dtype);
        }
    return fsdp__copies_flush(copies);
}

fsdp_status fsdp__all_gather(const fsdp_custom_collective *custom, fsdp__comm_context *comm, fsdp_process_group *pg,
                             const fsdp_sharded_buffer *buffers, int64_t count, fsdp__region **packed)
{
    packing p = {.custom = custom, .pg = pg, .buffers = buffers, .count = count, .stream = comm->stream, .align = 1};
    fsdp__traffic traffic = {.stream = comm->stream};
    fsdp__copies copies = {.traffic = &traffic, .issues = true};
    char *recv, *send;

    if (!custom->run || fsdp_process_group_size(pg) == 1)
        return fsdp_all_gather_coalesced(pg, buffers, count, comm->stream);
    lay_out_gather(&p);
    if (p.part == 0)
        return FSDP_OK;
    FSDP_TRY(take(&p, comm, p.part * (size_t)fsdp_process_group_size(pg), FSDP_MEMORY_UNSHARDED_PARAMETER, packed));
    recv = (*packed)->data;
    send = recv + p.part * (size_t)fsdp_process_group_rank(pg);
    FSDP_TRY(pack_shards(&p, &copies, send));
    FSDP_TRY(run(&p, send, recv, FSDP_SUM));
    return unpack_shards(&p, &copies, recv);
}

/* ---- reduce ---- */

static const fsdp_dtype reduce_dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16};

/* Sums up the bytes of the buffers that are reduced in `dtype`. */
static void lay_out_scatter(packing *p, fsdp_dtype dtype)
{
    p->dtype = dtype;
    p->part = 0;
    for (int64_t i = 0; i < p->count; i++)
        if (fsdp__reduce_dtype(&p->buffers[i]) == dtype)
            p->part += bytes_of(p, &p->buffers[i], dtype);
}

static fsdp_status pack_gradients(const packing *p, fsdp__copies *copies, char *to)
{
    for (int rank = 0; rank < fsdp_process_group_size(p->pg); rank++)
        for (int64_t i = 0; i < p->count; i++) {
            const fsdp_sharded_buffer *b = &p->buffers[i];
            int64_t numel = fsdp__part_numel(b, rank);

            if (fsdp__reduce_dtype(b) != p->dtype)
                continue;
            if (b->unsharded) {
                FSDP_TRY(fsdp__copies_set(copies, b->unsharded_dtype, p->dtype));
                FSDP_TRY(fsdp__copies_collect(copies, b, b->unsharded, rank, 0, numel, to));
            } else {
                FSDP_TRY(fsdp__launch_fill_run(p->stream, to, p->dtype, numel, 0.0));
            }
            to += bytes_of(p, b, p->dtype);
        }
    return fsdp__copies_flush(copies);
}

static fsdp_status unpack_gradients(const packing *p, const fsdp_reduce_options *options, const char *from)
{
    int rank = fsdp_process_group_rank(p->pg);

    for (int64_t i = 0; i < p->count; i++) {
        const fsdp_sharded_buffer *b = &p->buffers[i];

        if (fsdp__reduce_dtype(b) != p->dtype)
            continue;
        FSDP_TRY(fsdp__divide_run(p->stream, from, p->dtype, b->shard, b->shard_dtype, fsdp__part_numel(b, rank),
                                  options->divisor, options->accumulate));
        from += bytes_of(p, b, p->dtype);
    }
    return FSDP_OK;
}

fsdp_status fsdp__custom_reduce_scatter(const fsdp_custom_collective *custom, fsdp__comm_context *comm,
                                        fsdp_process_group *pg, const fsdp_sharded_buffer *buffers, int64_t count,
                                        const fsdp_reduce_options *options, fsdp_stream *stream, fsdp__region **packed)
{
    packing p = {.custom = custom, .pg = pg, .buffers = buffers, .count = count, .stream = stream, .align = 1};
    fsdp__traffic traffic = {.stream = stream};
    fsdp__copies copies = {.traffic = &traffic, .issues = true, .divisor = options->predivide};
    size_t ranks = (size_t)fsdp_process_group_size(pg), bytes = 0;
    char *send;

    for (size_t i = 0; i < FSDP__COUNT_OF(reduce_dtypes); i++) {
        lay_out_scatter(&p, reduce_dtypes[i]);
        bytes += p.part * (ranks + 1);
    }
    if (bytes == 0)
        return FSDP_OK;
    FSDP_TRY(take(&p, comm, bytes, FSDP_MEMORY_GRADIENT, packed));
    send = (*packed)->data;
    for (size_t i = 0; i < FSDP__COUNT_OF(reduce_dtypes); i++) { /* by decreasing size, so that all are aligned */
        lay_out_scatter(&p, reduce_dtypes[i]);
        if (p.part == 0)
            continue;
        FSDP_TRY(pack_gradients(&p, &copies, send));
        FSDP_TRY(run(&p, send, send + p.part * ranks, options->op));
        FSDP_TRY(unpack_gradients(&p, options, send + p.part * ranks));
        send += p.part * (ranks + 1);
    }
    return FSDP_OK;
}
