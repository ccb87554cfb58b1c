/* packed.c - pieces of the vector of all chunks: packed, exchanged, unpacked. */
#include "comm/packed.h"

#include "base/compiler.h"
#include "comm/sharded_buffer.h"

typedef struct exchange {
    fsdp__carrier *carrier;
    const fsdp__call *call;
    fsdp_stream *stream;
    fsdp__traffic *traffic;
} exchange;

/* Where the next piece begins in the vector: element `offset` of a buffer's chunk. */
typedef struct cursor {
    int64_t buffer, offset;
} cursor;

/* What one buffer has of a piece. */
typedef struct part {
    const fsdp_sharded_buffer *buffer;
    int64_t offset; /* in the chunk */
    int64_t at;     /* in the piece */
    int64_t numel;  /* padding included */
} part;

/* ---- geometry ---- */

static int64_t total_chunks(const fsdp__call *call)
{
    int64_t total = 0;

    for (int64_t i = 0; i < call->buffer_count; i++)
        total += call->buffers[i].chunk;
    return total;
}

/* The next part of a piece of `count` elements, of which `*at` have been seen; false at its end. */
static bool next_part(const fsdp__call *call, cursor *c, int64_t *at, int64_t count, part *out)
{
    if (*at == count)
        return false;
    /* Buffers without rows are passed over here. */
    while (c->offset == call->buffers[c->buffer].chunk) {
        c->buffer++;
        c->offset = 0;
    }
    *out = (part){.buffer = &call->buffers[c->buffer], .offset = c->offset, .at = *at};
    out->numel = FSDP__MIN(out->buffer->chunk - c->offset, count - *at);
    c->offset += out->numel;
    *at += out->numel;
    return true;
}

/* How much of `p` is not padding at rank r. */
static int64_t valid_of(const part *p, int rank)
{
    int64_t left = fsdp__sharded_buffer_rows(p->buffer, rank) - p->offset;

    return left < 0 ? 0 : FSDP__MIN(left, p->numel);
}

static char *unsharded_of(const exchange *x, const part *p, int rank)
{
    return fsdp__place(p->buffer->unsharded, rank * p->buffer->chunk + p->offset, x->call->unsharded_dtype);
}

/* ---- gather ---- */

static fsdp_status pack_own_rows(const exchange *x, cursor c, int64_t count)
{
    const fsdp__call *call = x->call;
    fsdp__copies in = {
        .stream = x->stream, .traffic = x->traffic, .src_dtype = call->shard_dtype, .dst_dtype = call->unsharded_dtype};
    char *packed = x->carrier->place(x->carrier, count);
    int64_t at = 0;
    part p;

    if (!packed)
        return fsdp_last_status();
    while (next_part(call, &c, &at, count, &p))
        FSDP_TRY(fsdp__copies_add(&in, fsdp__place(packed, p.at, call->unsharded_dtype),
                                  fsdp__place(p.buffer->shard, p.offset, call->shard_dtype),
                                  valid_of(&p, x->carrier->rank)));
    return fsdp__copies_flush(&in);
}

/* `c` moves to the next piece. */
static fsdp_status unpack_all_rows(const exchange *x, cursor *c, int64_t count)
{
    const fsdp__carrier *k = x->carrier;
    fsdp_dtype dtype = x->call->unsharded_dtype;
    fsdp__copies out = {.stream = x->stream, .traffic = x->traffic, .src_dtype = dtype, .dst_dtype = dtype};
    cursor walk = *c;

    for (int i = 0; i < k->size; i++) {
        int r = (k->rank + i) % k->size; /* not all from the same rank at once */
        int64_t at = 0;
        part p;

        walk = *c;
        while (next_part(x->call, &walk, &at, count, &p))
            FSDP_TRY(
                fsdp__copies_add(&out, unsharded_of(x, &p, r), fsdp__place(k->parts[r], p.at, dtype), valid_of(&p, r)));
    }
    *c = walk;
    return fsdp__copies_flush(&out);
}

fsdp_status fsdp__packed_gather(fsdp__carrier *carrier, const fsdp__call *call, fsdp_stream *stream,
                                fsdp__traffic *traffic)
{
    exchange x = {carrier, call, stream, traffic};
    int64_t left = total_chunks(call);
    cursor c = {0};

    do { /* one exchange also of nothing: a transport compares the calls in it */
        int64_t count = FSDP__MIN(left, carrier->room);

        FSDP_TRY(pack_own_rows(&x, c, count));
        FSDP_TRY(carrier->exchange(carrier, count));
        FSDP_TRY(unpack_all_rows(&x, &c, count));
        left -= count;
    } while (left > 0);
    return FSDP_OK;
}

/* ---- reduce ---- */

static fsdp_status pack_all_rows(const exchange *x, cursor c, int64_t count)
{
    const fsdp__call *call = x->call;
    fsdp__copies in = {
        .stream = x->stream, .traffic = x->traffic, .src_dtype = call->unsharded_dtype, .dst_dtype = call->wire_dtype};
    char *packed = x->carrier->place(x->carrier, count);

    if (!packed)
        return fsdp_last_status();
    for (int to = 0; to < x->carrier->size; to++) {
        cursor walk = c;
        int64_t at = 0;
        part p;

        while (next_part(call, &walk, &at, count, &p))
            FSDP_TRY(fsdp__copies_add(&in, fsdp__place(packed, to * count + p.at, call->wire_dtype),
                                      unsharded_of(x, &p, to), valid_of(&p, to)));
    }
    return fsdp__copies_flush(&in);
}

/* `c` moves to the next piece. */
static fsdp_status add_own_rows(const exchange *x, cursor *c, int64_t count)
{
    const fsdp__call *call = x->call;
    const fsdp__carrier *k = x->carrier;
    int64_t at = 0;
    part p;

    while (next_part(call, c, &at, count, &p)) {
        int64_t rows = valid_of(&p, k->rank);

        if (rows == 0)
            continue;
        for (int r = 0; r < k->size; r++)
            k->operands[r] = fsdp__place(k->parts[r], p.at, call->wire_dtype);
        if (k->reads_peers) /* else the exchange has moved and counted them */
            x->traffic->moved_bytes += (k->size - 1) * rows * (int64_t)fsdp_dtype_size(call->wire_dtype);
        FSDP_TRY(fsdp__sum_rows(call, x->stream, k->operands, k->size, call->wire_dtype,
                                fsdp__place(p.buffer->shard, p.offset, call->shard_dtype), rows));
    }
    return FSDP_OK;
}

fsdp_status fsdp__packed_reduce(fsdp__carrier *carrier, const fsdp__call *call, fsdp_stream *stream,
                                fsdp__traffic *traffic)
{
    exchange x = {carrier, call, stream, traffic};
    int64_t left = total_chunks(call);
    cursor c = {0};

    do {
        int64_t count = FSDP__MIN(left, carrier->room);

        FSDP_TRY(pack_all_rows(&x, c, count));
        FSDP_TRY(carrier->exchange(carrier, count));
        FSDP_TRY(add_own_rows(&x, &c, count));
        left -= count;
    } while (left > 0);
    return FSDP_OK;
}
