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

/* A gather works in place, in one buffer of `size` parts. A scatter has one buffer to send and one to receive. */
static void *plain_place(fsdp__mover *mover, int64_t bytes)
{
    plain_mover *p = (plain_mover *)mover;
    int64_t parts = mover->size * mover->room;
    /* The two kernels of sharded_buffer.h need no workspace of their own. */
    char *buffer = fsdp__stream_workspace(p->traffic->stream, (size_t)((p->scatters ? 2 : 1) * parts));

    if (!buffer)
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

/* Returns the most bytes that one rank's part of a piece may have. */
static int64_t room_of(const fsdp__call *call, int ranks, bool reduces)
{
    int64_t bits = reduces ? fsdp__packed_bits(call) : 0;

    return (bits + FSDP__MAX(PIECE_BYTES / ranks, PART_BYTES)) / ALIGN * ALIGN;
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
                            .room = room_of(call, way->size, scatters),
                            .parts = scratch,
                            .operands = (const void **)(scratch + ranks),
                            .place = plain_place,
                            .exchange = plain_exchange,
                            .bits = (unsigned char *)(scratch + 2 * ranks)};
    FSDP_TRY(fsdp__packed_run(&p.mover, call, scatters ? FSDP__REDUCES : FSDP__GATHERS, traffic));
    return FSDP_OK;
}
