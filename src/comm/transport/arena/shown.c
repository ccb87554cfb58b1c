/* shown.c - the table of addresses that ranks show in the payload. */
#include "comm/transport/arena/shown.h"

#include <string.h>

#include "comm/transport/arena/rendezvous.h"
#include "comm/transport/sharded_buffer.h"

enum {
    TABLE_BUFFERS = FSDP__PAYLOAD_BYTES / (int)sizeof(uint64_t), /* addresses that a rank can show */
    BITS_BUFFERS = FSDP__PAYLOAD_BYTES * 8
};

/* Stands in place of an address in a reduction: this rank has nothing to add. */
static const uint64_t nothing = UINT64_MAX;

bool fsdp__shown_is_readable(const fsdp__arena_group *group, const fsdp__call *call, bool follows)
{
    if (call->plain && group->world->all_readable && follows)
        return true;
    for (int64_t i = 0; i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];
        size_t bytes = (size_t)fsdp__unsharded_numel(b) * fsdp_dtype_size(b->unsharded_dtype);

        if (bytes > 0 && b->unsharded && !fsdp__arena_holds(group->world->arena, b->unsharded, bytes))
            return false;
    }
    return true;
}

bool fsdp__shown_is_direct(const fsdp__call *call)
{
    return !call->force_copy && call->buffer_count <= TABLE_BUFFERS;
}

bool fsdp__shown_is_complete(const fsdp__call *call)
{
    bool reduces = call->name == FSDP__CALL_REDUCE_SCATTER_COALESCED, complete = true;

    if (call->flags)
        return !memchr(call->flags, 0, (size_t)call->flag_count);
    for (int64_t i = 0; reduces && i < call->buffer_count; i++)
        complete = complete && call->buffers[i].unsharded;
    return complete;
}

/* Fills in where the buffers are, and which of them have nothing to add. If there is no room for all addresses only the
 * latter is shown, as bits. */
static fsdp_status fill_payload(fsdp__arena_group *group, const fsdp__call *call, fsdp__entry *entry)
{
    unsigned char *bits = fsdp__payload_to_show(group);
    uint64_t *table = (uint64_t *)bits;
    bool fits = call->buffer_count <= TABLE_BUFFERS;

    if (!fits && !entry->complete && call->buffer_count > BITS_BUFFERS)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "reduction of %lld buffers in group '%s': if there are more than %d, none may be NULL",
                         (long long)call->buffer_count, group->name, BITS_BUFFERS);
    if (!fits && !entry->complete)
        memset(bits, 0, FSDP__PAYLOAD_BYTES);
    for (int64_t i = 0; (entry->readable || !entry->complete) && !call->shared && i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];
        uint64_t offset = b->numel == 0 ? 0 : fsdp__to_offset(group, b->unsharded);

        offset = !entry->complete && !b->unsharded ? nothing : offset;
        if (fits)
            table[i] = offset;
        else if (!entry->complete && b->unsharded)
            bits[i / 8] |= (unsigned char)(1 << i % 8);
    }
    return FSDP_OK;
}

fsdp_status fsdp__shown_meet(fsdp__arena_group *g, const fsdp__call *call, bool readable, fsdp__traffic *traffic,
                             fsdp__shown_path *out)
{
    bool direct = fsdp__shown_is_direct(call);
    fsdp__entry entry = {.readable = readable, .complete = fsdp__shown_is_complete(call)};

    FSDP_TRY(fill_payload(g, call, &entry));
    FSDP_TRY(fsdp__show(g, call, &entry, traffic));
    /* Shared memory is used even with force_copy, as there is no other way then. */
    *out = call->shared ? FSDP__SHOWN_SHARED : direct ? FSDP__SHOWN_IN_PLACE : FSDP__SHOWN_STAGING;
    for (int r = 0; r < g->size; r++)
        if (!fsdp__entry_of(g, r)->readable)
            *out = FSDP__SHOWN_STAGING;
    return FSDP_OK;
}

void *fsdp__shown_place(const fsdp__arena_group *group, int rank, int64_t buffer)
{
    const uint64_t *table = (const uint64_t *)fsdp__payload_of(group, rank);

    return fsdp__from_offset(group, table[buffer]);
}

bool fsdp__shown_adds(const fsdp__arena_group *group, const fsdp__call *call, int rank, int64_t buffer)
{
    const unsigned char *bits = fsdp__payload_of(group, rank);

    if (fsdp__entry_of(group, rank)->complete)
        return true;
    if (call->buffer_count <= TABLE_BUFFERS)
        return ((const uint64_t *)bits)[buffer] != nothing;
    return bits[buffer / 8] >> buffer % 8 & 1;
}
