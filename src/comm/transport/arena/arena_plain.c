/* arena_plain.c - the plain collectives, each by the rows of one buffer (arena_coalesced.c). */
#include "comm/transport/arena/arena_plain.h"

#include <string.h>

#include "base/compiler.h"
#include "comm/transport/arena/arena_coalesced.h"
#include "comm/transport/arena/rendezvous.h"
#include "comm/transport/sharded_buffer.h"

enum {
    AT_ONCE_BYTES = 4096 /* of an all_reduce up to this size every rank adds up all */
};

/* Exchanges the rows of one buffer. `self` is what this rank counts as, after rank `first`. */
static fsdp_status exchange(void *group, const fsdp__call *call, fsdp__pattern pattern, fsdp_sharded_buffer one,
                            int first, int self, fsdp__traffic *traffic)
{
    fsdp__call by_rows = fsdp__call_by_rows(call, &one, 1);
    fsdp__rows x = fsdp__rows_of(group, &by_rows, pattern, traffic);

    x.first = first;
    x.self = self;
    return fsdp__rows_exchange(&x);
}

fsdp_status fsdp__arena_all_gather(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    const fsdp__arena_group *g = group;
    fsdp_sharded_buffer one = fsdp__plain_buffer(call, call->recv, call->send, g->size * call->count, call->count);

    return exchange(group, call, FSDP__GATHERS, one, 0, g->rank, traffic);
}

/* The root counts as the first rank, and is the only one that has rows. */
fsdp_status fsdp__arena_broadcast(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    const fsdp__arena_group *g = group;
    const void *buffer = g->rank == call->root ? call->send : call->recv;
    fsdp_sharded_buffer one = fsdp__plain_buffer(call, buffer, buffer, call->count, call->count);

    return exchange(group, call, FSDP__GATHERS, one, call->root, (g->rank - call->root + g->size) % g->size, traffic);
}

/* Exchanges rows that each rank has for each. */
static fsdp_status scatter(void *group, const fsdp__call *call, fsdp__pattern pattern, fsdp__traffic *traffic)
{
    const fsdp__arena_group *g = group;
    fsdp_sharded_buffer one = fsdp__plain_buffer(call, call->send, call->recv, g->size * call->count, call->count);

    return exchange(group, call, pattern, one, 0, g->rank, traffic);
}

fsdp_status fsdp__arena_reduce_scatter(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    return scatter(group, call, FSDP__REDUCES, traffic);
}

fsdp_status fsdp__arena_all_to_all(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    return scatter(group, call, FSDP__SWAPS, traffic);
}

fsdp_status fsdp__arena_barrier(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    fsdp__entry entry = {0};

    return fsdp__show(group, call, &entry, traffic);
}

/* ---- all_reduce ---- */

fsdp_status fsdp__arena_join_flags(fsdp__arena_group *g, const fsdp__call *call, fsdp__traffic *traffic)
{
    fsdp__entry entry = {0};
    uint8_t *flags = call->flags;
    bool set = true;

    for (int r = 0; r < g->size; r++)
        set = set && fsdp__entry_of(g, r)->complete;
    if (!set && call->lacking)
        *call->lacking = true;
    for (int64_t at = 0, n; !set && at < call->flag_count; at += n) {
        n = FSDP__MIN(call->flag_count - at, FSDP__PAYLOAD_BYTES);
        if (flags)
            memcpy(fsdp__payload_to_show(g), flags + at, (size_t)n);
        else
            memset(fsdp__payload_to_show(g), 1, (size_t)n);
        FSDP_TRY(fsdp__show(g, call, &entry, traffic));
        for (int r = 0; r < g->size && flags; r++)
            for (int64_t i = 0; i < n; i++)
                flags[at + i] |= fsdp__payload_of(g, r)[i];
    }
    return FSDP_OK;
}

/* Every rank adds up all that the ranks have, as if it were the first and the rows were its own. */
static fsdp_status reduce_at_once(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    return exchange(group, call, FSDP__REDUCES,
                    fsdp__plain_buffer(call, call->send, call->recv, call->count, call->count), 0, 0, traffic);
}

/* Every rank adds up its chunk, and gathers the others'. */
static fsdp_status reduce_and_gather(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    const fsdp__arena_group *g = group;
    int64_t chunk = fsdp__even_chunk(call->count, g->size, fsdp_dtype_size(call->dtype));
    char *own = fsdp__place(call->recv, FSDP__MIN(g->rank * chunk, call->count), call->dtype);
    fsdp_sharded_buffer one = fsdp__plain_buffer(call, call->send, own, call->count, chunk);
    fsdp__call by_rows = fsdp__call_by_rows(call, &one, 1);
    fsdp__rows x = fsdp__rows_of(group, &by_rows, FSDP__REDUCES, traffic);

    x.goes_on = true;
    FSDP_TRY(fsdp__rows_exchange(&x));
    one.unsharded = call->recv;
    x.pattern = FSDP__GATHERS;
    x.goes_on = false;
    return fsdp__rows_exchange(&x);
}

fsdp_status fsdp__arena_all_reduce(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    bool at_once = (size_t)call->count * fsdp_dtype_size(call->dtype) <= AT_ONCE_BYTES;

    FSDP_TRY((at_once ? reduce_at_once : reduce_and_gather)(group, call, traffic));
    return fsdp__arena_join_flags(group, call, traffic);
}
