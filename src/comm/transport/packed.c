/* packed.c - packs, exchanges and unpacks pieces of the vector of all parts. */
#include "comm/transport/packed.h"

#include <string.h>

#include "base/compiler.h"
#include "comm/transport/sharded_buffer.h"
#include "device/device.h"

enum {
    ALIGN = 16 /* bytes: each buffer's part begins at a multiple, so that no element straddles two pieces */
};

/* Says where the next piece begins in the vector: byte `offset` of a buffer's longest part. */
typedef struct cursor {
    int64_t buffer, offset;
} cursor;

typedef struct exchange {
    fsdp__mover *mover;
    const fsdp__call *call;
    fsdp__traffic *traffic;
    const struct steps *steps;
    bool reduces;
    bool swaps;
    bool known; /* it is known who contributes: buffers to which nobody does are skipped */
} exchange;

/* Holds what is done with a piece before and after it is exchanged. */
typedef struct steps {
    /* Packs it, behind `bits` bytes that say what this rank contributes. */
    fsdp_status (*pack)(exchange *x, cursor c, int64_t bits, int64_t bytes);
    /* Uses what has come, and moves `c` to the next piece. */
    fsdp_status (*unpack)(exchange *x, cursor *c, int64_t bits, int64_t bytes);
    bool alike; /* all ranks contribute to the same buffers: there are only the bits of one */
} steps;

/* Describes the part of a piece that belongs to one buffer. */
typedef struct part {
    const fsdp_sharded_buffer *buffer;
    int64_t i;      /* the buffer's number */
    int64_t offset; /* elements, in the rank's part */
    int64_t at;     /* bytes, in the piece */
    int64_t numel;  /* including padding */
    fsdp_dtype dtype;
} part;

/* ---- who contributes ---- */

int64_t fsdp__packed_bits(const fsdp__call *call)
{
    return (call->buffer_count + 8 * ALIGN - 1) / (8 * ALIGN) * ALIGN;
}

static bool contributes(const exchange *x, int rank, int64_t i)
{
    const fsdp__mover *k = x->mover;

    if (k->contributes)
        return k->contributes(k, rank, i);
    return k->bits[rank * fsdp__packed_bits(x->call) + i / 8] >> i % 8 & 1;
}

static bool is_used(const exchange *x, int64_t i)
{
    bool used = !x->reduces || !x->known;
    int ranks = x->steps->alike ? 1 : x->mover->size;

    for (int r = 0; r < ranks && !used; r++)
        used = contributes(x, r, i);
    return used;
}

static void tell_contributed(exchange *x)
{
    x->known = true;
    for (int64_t i = 0; i < x->call->buffer_count; i++)
        fsdp__contributed(x->call, i, is_used(x, i), x->mover->size, x->traffic);
}

/* Writes what this rank contributes to. */
static void write_bits(const exchange *x, unsigned char *own)
{
    memset(own, 0, (size_t)fsdp__packed_bits(x->call));
    for (int64_t i = 0; i < x->call->buffer_count; i++)
        own[i / 8] |= (unsigned char)((x->call->buffers[i].unsharded != NULL) << i % 8);
}

/* Packs this rank's bits, in front of the data for each of the other ranks. */
static fsdp_status pack_bits(exchange *x, char *packed, int64_t bytes)
{
    fsdp__mover *k = x->mover;
    int64_t bits = fsdp__packed_bits(x->call);
    unsigned char *own = k->bits + k->rank * bits;

    write_bits(x, own);
    for (int r = 0; r < k->size; r++)
        FSDP_TRY(fsdp__run_copy_to_device(x->traffic->stream, packed + r * bytes, own, (size_t)bits));
    return FSDP_OK;
}

static fsdp_status unpack_bits(exchange *x)
{
    fsdp__mover *k = x->mover;
    int64_t bits = fsdp__packed_bits(x->call);

    for (int r = 0; r < k->size; r++)
        FSDP_TRY(fsdp__run_copy_to_host(x->traffic->stream, k->bits + r * bits, k->parts[r], (size_t)bits));
    tell_contributed(x);
    return FSDP_OK;
}

/* ---- geometry ---- */

static fsdp_dtype packed_dtype(const exchange *x, const fsdp_sharded_buffer *b)
{
    return x->reduces ? fsdp__wire_dtype(x->call, b) : b->unsharded_dtype;
}

static int64_t packed_bytes(const exchange *x, int64_t i)
{
    const fsdp_sharded_buffer *b = &x->call->buffers[i];
    int64_t bytes = fsdp__chunk_numel(b) * (int64_t)fsdp_dtype_size(packed_dtype(x, b));

    return is_used(x, i) ? FSDP__ROUND_UP(bytes, ALIGN) : 0;
}

/* Returns how many bytes of the vector are left. */
static int64_t remaining(const exchange *x, const cursor *c)
{
    int64_t bytes = 0;

    for (int64_t i = c->buffer; i < x->call->buffer_count; i++)
        bytes += FSDP__MAX(packed_bytes(x, i) - (i == c->buffer ? c->offset : 0), 0);
    return bytes;
}

/* Gets the next part of a piece that ends at byte `end`, of which `*at` bytes have been seen; returns false at its
 * end. */
static bool next_part(const exchange *x, cursor *c, int64_t *at, int64_t end, part *out)
{
    int64_t bytes;
    size_t element;

    if (*at == end)
        return false;
    /* Buffers without rows are skipped here. */
    while (c->offset >= packed_bytes(x, c->buffer)) {
        c->buffer++;
        c->offset = 0;
    }
    bytes = FSDP__MIN(packed_bytes(x, c->buffer) - c->offset, end - *at);
    *out = (part){.buffer = &x->call->buffers[c->buffer], .i = c->buffer, .at = *at};
    out->dtype = packed_dtype(x, out->buffer);
    element = fsdp_dtype_size(out->dtype);
    out->offset = c->offset / (int64_t)element;
    out->numel = bytes / (int64_t)element;
    c->offset += bytes;
    *at += bytes;
    return true;
}

/* Returns how many elements of `p` are not padding at rank r. */
static int64_t valid_of(const part *p, int rank)
{
    int64_t left = fsdp__part_numel(p->buffer, rank) - p->offset;

    return left < 0 ? 0 : FSDP__MIN(left, p->numel);
}

/* ---- packing ---- */

static fsdp_status pack_own_rows(exchange *x, cursor c, int64_t bits, int64_t bytes)
{
    fsdp__copies in;
    char *packed = x->mover->place(x->mover, bytes);
    int64_t at = bits;
    part p;

    if (!packed)
        return fsdp_last_status();
    fsdp__copies_begin(&in, x->traffic);
    while (next_part(x, &c, &at, bytes, &p)) {
        FSDP_TRY(fsdp__copies_set(&in, p.buffer->shard_dtype, p.dtype));
        FSDP_TRY(fsdp__copies_add(&in, packed + p.at, fsdp__place(p.buffer->shard, p.offset, p.buffer->shard_dtype),
                                  valid_of(&p, x->mover->rank)));
    }
    return fsdp__copies_flush(&in);
}

/* Packs the rows of every rank. */
static fsdp_status pack_all_rows(exchange *x, cursor c, int64_t bits, int64_t bytes)
{
    fsdp__copies in;
    char *packed = x->mover->place(x->mover, bytes);

    if (!packed)
        return fsdp_last_status();
    fsdp__copies_begin(&in, x->traffic);
    in.divisor = x->call->predivide;
    if (bits > 0)
        FSDP_TRY(pack_bits(x, packed, bytes));
    for (int to = 0; to < x->mover->size; to++) {
        cursor walk = c;
        int64_t at = bits;
        part p;

        while (next_part(x, &walk, &at, bytes, &p)) {
            if (!p.buffer->unsharded)
                continue;
            FSDP_TRY(fsdp__copies_set(&in, p.buffer->unsharded_dtype, p.dtype));
            FSDP_TRY(fsdp__copies_collect(&in, p.buffer, p.buffer->unsharded, to, p.offset, valid_of(&p, to),
                                          packed + to * bytes + p.at));
        }
    }
    return fsdp__copies_flush(&in);
}

/* ---- gather, and swap ---- */

/* Copies a part of what rank r has packed to its place. In a gather this rank's own rows come from its shard, and
 * nothing is copied where that is their place. */
static fsdp_status unpack_part(const exchange *x, fsdp__copies *out, const part *p, int r)
{
    const char *packed = (const char *)x->mover->parts[r] + p->at;
    bool own = r == x->mover->rank && !x->swaps;

    FSDP_TRY(fsdp__copies_set(out, own ? p->buffer->shard_dtype : p->dtype, p->dtype));
    if (!x->swaps)
        return fsdp__copies_spread(out, p->buffer, r, p->offset, valid_of(p, r),
                                   own ? fsdp__place(p->buffer->shard, p->offset, p->buffer->shard_dtype) : packed);
    return fsdp__copies_add(out, fsdp__place(p->buffer->shard, r * p->buffer->chunk + p->offset, p->dtype), packed,
                            valid_of(p, x->mover->rank));
}

static fsdp_status unpack_all_rows(exchange *x, cursor *c, int64_t bits, int64_t bytes)
{
    const fsdp__mover *k = x->mover;
    fsdp__copies out;
    cursor walk = *c;

    fsdp__copies_begin(&out, x->traffic);
    for (int i = 0; i < k->size; i++) {
        int r = (k->rank + i) % k->size; /* so that not all read from the same rank at once */
        int64_t at = bits;
        part p;

        walk = *c;
        while (next_part(x, &walk, &at, bytes, &p))
            FSDP_TRY(unpack_part(x, &out, &p, r));
    }
    *c = walk;
    return fsdp__copies_flush(&out);
}

/* ---- reduce ---- */

static fsdp_status add_part(const exchange *x, const part *p, int64_t rows)
{
    const fsdp__mover *k = x->mover;
    fsdp__sum sum = {.srcs = k->operands, .ranks = k->size, .block = k->block, .dtype = p->dtype};
    bool any = false;

    for (int r = 0; r < k->size; r++) {
        bool there = contributes(x, r, p->i);

        fsdp__sum_add(&sum, there ? (char *)k->parts[r] + p->at : NULL);
        if (there && k->reads_peers && r != k->rank) /* otherwise the exchange has moved and counted them */
            x->traffic->moved_bytes += rows * (int64_t)fsdp_dtype_size(p->dtype);
        any = any || there;
    }
    if (any)
        FSDP_TRY(fsdp__sum_rows(x->call, x->traffic->stream, p->buffer, &sum,
                                fsdp__place(p->buffer->shard, p->offset, p->buffer->shard_dtype), rows));
    return FSDP_OK;
}

/* Adds up this rank's rows of a piece. */
static fsdp_status add_own_rows(exchange *x, cursor *c, int64_t bits, int64_t bytes)
{
    bool known = x->known;
    int64_t at = bits;
    part p;

    if (!known)
        FSDP_TRY(unpack_bits(x));
    /* The first piece lies as it was packed, before who contributes was known. */
    x->known = known;
    while (next_part(x, c, &at, bytes, &p)) {
        int64_t rows = valid_of(&p, x->mover->rank);

        if (rows > 0)
            FSDP_TRY(add_part(x, &p, rows));
    }
    return FSDP_OK;
}

/* ---- on paper ---- */

static fsdp_status pack_nothing(exchange *x, cursor c, int64_t bits, int64_t bytes)
{
    (void)c, (void)bytes;
    if (bits > 0)
        write_bits(x, x->mover->bits);
    return FSDP_OK;
}

static fsdp_status pass_over(exchange *x, cursor *c, int64_t bits, int64_t bytes)
{
    int64_t at = bits;
    part p;

    while (next_part(x, c, &at, bytes, &p))
        continue;
    return FSDP_OK;
}

/* ---- an exchange ---- */

fsdp_status fsdp__packed_run(fsdp__mover *k, const fsdp__call *call, fsdp__pattern pattern, fsdp__traffic *traffic)
{
    static const steps of[] = {[FSDP__GATHERS] = {pack_own_rows, unpack_all_rows, false},
                               [FSDP__REDUCES] = {pack_all_rows, add_own_rows, false},
                               [FSDP__SWAPS] = {pack_all_rows, unpack_all_rows, false}};
    static const steps counts = {pack_nothing, pass_over, true};
    exchange x = {.mover = k,
                  .call = call,
                  .traffic = traffic,
                  .steps = k->on_paper ? &counts : &of[pattern],
                  .reduces = pattern == FSDP__REDUCES,
                  .swaps = pattern == FSDP__SWAPS};
    int64_t bits = x.reduces && !k->contributes ? fsdp__packed_bits(call) : 0;
    cursor c = {0};

    if (k->contributes && x.reduces)
        tell_contributed(&x);
    do { /* make one exchange even of nothing: a transport compares the calls in it */
        int64_t bytes = FSDP__MIN(bits + remaining(&x, &c), k->room);

        FSDP_TRY(x.steps->pack(&x, c, bits, bytes));
        FSDP_TRY(k->exchange(k, bytes));
        FSDP_TRY(x.steps->unpack(&x, &c, bits, bytes));
        x.known = true;
        bits = 0;
    } while (remaining(&x, &c) > 0);
    return FSDP_OK;
}
