/* coalesced.c - carries pieces by plain collectives. */
#include "comm/transport/coalesced.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/transport/packed.h"
#include "comm/transport/sharded_buffer.h"
#include "device/device.h"

enum {
    PIECE_BYTES = 4 << 20, /* for all ranks together */
    PART_BYTES = 16 << 10, /* for one rank, at least */
    ALIGN = 64
};

typedef struct plain_mover {
    fsdp__mover mover; /* first */
    const fsdp__plain_way *way;
    fsdp__call call; /* the coalesced call; its plain fields change from piece to piece */
    fsdp__traffic *traffic;
    bool scatters;
} plain_mover;

static bool zero(const fsdp__traffic *traffic, void *memory, int64_t bytes)
{
    fsdp__fill_args args = {.dst = memory, .dtype = FSDP_U8, .numel = bytes};

    return bytes == 0 || fsdp__run_kernel(traffic->stream, FSDP__KERNEL_FILL, &args) == FSDP_OK;
}

/* A gather works in place, in one buffer of `size` parts. A scatter has one buffer to send and one to receive. */
static void *plain_place(fsdp__mover *mover, int64_t bytes)
{
    plain_mover *p = (plain_mover *)mover;
    int64_t parts = mover->size * mover->room, all = (p->scatters ? 2 : 1) * parts;
    char *buffer = all <= p->way->memory_bytes ? p->way->memory : NULL;

    if (!buffer) /* the two kernels of sharded_buffer.h need no workspace of their own */
        buffer = fsdp__stream_workspace(p->traffic->stream, (size_t)all);
    if (!buffer)
        return NULL;
    if (p->way->zeroes && !zero(p->traffic, buffer, mover->size * bytes))
        return NULL;
    p->call.recv = p->scatters ? buffer + parts : buffer;
    p->call.send = p->scatters ? buffer : buffer + mover->rank * bytes;
    /* A reduction packs for all ranks from here on, a gather only its own part of the result. */
    return (void *)(uintptr_t)p->call.send;
}

static fsdp_status plain_exchange(fsdp__mover *mover, int64_t bytes)
{
    plain_mover *p = (plain_mover *)mover;

    p->call.count = bytes;
    FSDP_TRY((p->scatters ? p->way->all_to_all : p->way->all_gather)(p->way->group, &p->call, p->traffic));
    for (int r = 0; r < mover->size; r++)
        mover->parts[r] = (char *)p->call.recv + r * bytes;
    return FSDP_OK;
}

static bool plain_contributes(const fsdp__mover *mover, int rank, int64_t buffer)
{
    const fsdp__plain_way *way = ((const plain_mover *)mover)->way;

    return way->adds(way->group, rank, buffer);
}

/* Returns no less than what a rank's part of all buffers has. */
static int64_t part_bytes(const fsdp__call *call)
{
    int64_t bytes = 0;

    for (int64_t i = 0; i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];
        size_t element = FSDP__MAX(fsdp_dtype_size(b->unsharded_dtype), fsdp_dtype_size(fsdp__reduce_dtype(b)));

        bytes += fsdp__chunk_numel(b) * (int64_t)element + ALIGN;
    }
    return bytes;
}

/* Returns the most bytes that one rank's part of a piece may have. Large pieces take no more than there is. */
static int64_t room_of(const fsdp__plain_way *way, const fsdp__call *call, bool reduces)
{
    int64_t bits = reduces && !way->adds ? fsdp__packed_bits(call) : 0, most = PIECE_BYTES / way->size;

    if (way->piece_bytes > 0)
        most = FSDP__MIN(way->piece_bytes / way->size, part_bytes(call) + ALIGN);
    return (bits + FSDP__MAX(most, PART_BYTES)) / ALIGN * ALIGN;
}

fsdp_status fsdp__coalesced_by(const fsdp__plain_way *way, const fsdp__call *call, fsdp__traffic *traffic)
{
    bool scatters = call->name == FSDP__CALL_REDUCE_SCATTER_COALESCED;
    size_t ranks = (size_t)way->size;
    int64_t bits = scatters ? fsdp__packed_bits(call) : 0;
    FSDP__FREED void **scratch = fsdp__calloc(ranks, 2 * sizeof *scratch + (size_t)bits);
    plain_mover p = {.way = way, .call = *call, .traffic = traffic, .scatters = scatters};

    FSDP__TRY_NEW(scratch);
    p.call.dtype = FSDP_U8;
    p.call.send = p.call.recv = scratch; /* until a place is asked for, and on paper */
    p.mover = (fsdp__mover){.rank = way->rank,
                            .size = way->size,
                            .block = way->block,
                            .on_paper = way->on_paper,
                            .room = room_of(way, call, scatters),
                            .parts = scratch,
                            .operands = (const void **)(scratch + ranks),
                            .place = plain_place,
                            .exchange = plain_exchange,
                            .contributes = scatters && way->adds ? plain_contributes : NULL,
                            .bits = (unsigned char *)(scratch + 2 * ranks)};
    return fsdp__packed_run(&p.mover, call, scatters ? FSDP__REDUCES : FSDP__GATHERS, traffic);
}
