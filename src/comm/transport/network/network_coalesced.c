/* network_coalesced.c - sends rows to and receives rows from the counterparts.
 *
 * gather   shared memory: each rank puts its own rows into place, its counterparts' rows arrive straight in theirs, and
 *          the ranks of the machine meet. Nothing is packed, and a byte enters a machine once.
 *          other memory: packed (comm/transport/packed.h), over this transport's all_gather.
 *
 * reduce   memory that the ranks of the machine see: reduction.h.
 *          other memory: packed; contributions travel, and are added in the same order. */
#include "comm/transport/network/network_coalesced.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/coalesced.h"
#include "comm/transport/arena/arena_coalesced.h"
#include "comm/transport/arena/arena_memory.h"
#include "comm/transport/arena/arena_plain.h"
#include "comm/transport/arena/shown.h"
#include "comm/transport/network/network_plain.h"
#include "comm/transport/network/reduction.h"
#include "comm/transport/sharded_buffer.h"
#include "device/device.h"
#include "device/kernels.h"

static fsdp__plain_way packed_way(fsdp__network_group *group)
{
    return (fsdp__plain_way){.group = group,
                             .rank = group->rank,
                             .size = group->size,
                             .block = group->flat         ? group->block
                                      : group->locals > 1 ? group->locals
                                                          : 0,
                             .on_paper = fsdp__network_on_paper(group),
                             .all_gather = group->world->acts->all_gather,
                             .all_to_all = group->world->acts->all_to_all};
}

/* ---- gather ---- */

typedef struct gather {
    fsdp__network_group *group;
    const fsdp__call *call;
    fsdp_stream *stream;
    fsdp__traffic *traffic;
    fsdp__segment *segments; /* [columns][runs] */
    fsdp__leg *legs;         /* first those of what is sent, then those of what comes */
} gather;

/* Makes a leg on paper of all rows of the rank at a place. */
static void add_up_rows(const gather *x, int place, fsdp__leg *leg)
{
    fsdp__segment *all = (fsdp__segment *)(uintptr_t)leg->segments;
    int member = fsdp__network_member(x->group, place, x->group->local_rank);

    for (int64_t i = 0; i < x->call->buffer_count; i++)
        all->bytes += (size_t)fsdp__part_numel(&x->call->buffers[i], member) *
                      fsdp_dtype_size(x->call->buffers[i].unsharded_dtype);
    leg->count = 1;
}

/* Fills a leg with all rows of the rank at a place, where they lie. */
static fsdp_status find_rows(gather *x, int place, fsdp__leg *leg)
{
    int member = fsdp__network_member(x->group, place, x->group->local_rank);
    bool own = place == x->group->place;
    fsdp__segment *segments = (fsdp__segment *)(uintptr_t)leg->segments;

    if (fsdp__network_on_paper(x->group)) {
        add_up_rows(x, place, leg);
        return FSDP_OK;
    }
    for (int64_t i = 0; i < x->call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &x->call->buffers[i];
        int64_t numel = fsdp__part_numel(b, member);

        for (int64_t at = 0, index, n; at < numel; at += n) {
            size_t bytes;
            char *rows;

            n = fsdp__part_run(b, member, at, numel - at, &index);
            bytes = (size_t)n * fsdp_dtype_size(b->unsharded_dtype);
            rows = fsdp__place(b->unsharded, index, b->unsharded_dtype);
            segments[leg->count++] = (fsdp__segment){rows, bytes};
            FSDP_TRY(fsdp__stream_uses(x->stream, rows, bytes, own ? FSDP__READS : FSDP__WRITES, "message"));
        }
    }
    return FSDP_OK;
}

static fsdp_status find_all_rows(gather *x)
{
    const fsdp__network_group *g = x->group;
    int64_t runs = 1;

    for (int64_t i = 0; i < x->call->buffer_count && !fsdp__network_on_paper(g); i++)
        runs += FSDP__MAX(x->call->buffers[i].outer, 1);
    x->segments = fsdp__calloc((size_t)(g->columns * runs), sizeof *x->segments);
    x->legs = fsdp__calloc(2 * (size_t)g->columns, sizeof *x->legs);
    if (!x->segments || !x->legs)
        return FSDP_NO_MEMORY;
    for (int p = 0; p < g->columns; p++) {
        x->legs[g->columns + p] = (fsdp__leg){.rank = g->column[p], .segments = x->segments + p * runs};
        FSDP_TRY(find_rows(x, p, &x->legs[g->columns + p]));
    }
    for (int p = 0; p < g->columns; p++) {
        x->legs[p] = x->legs[g->columns + g->place];
        x->legs[p].rank = g->column[p];
    }
    /* A rank sends nothing to itself, and receives nothing from itself. */
    x->legs[g->place].count = x->legs[g->columns + g->place].count = 0;
    return FSDP_OK;
}

static fsdp_status exchange_rows(gather *x)
{
    fsdp__network_group *g = x->group;
    fsdp__header own = {.complete = true};
    fsdp__meeting meeting;
    fsdp__exchange exchange = {0};
    fsdp__legs legs = {x->legs, x->legs + g->columns, g->columns, g->columns, FSDP__ANY_PARTS};
    fsdp_status status = fsdp__meeting_begin(&meeting, g, x->call, &own, &legs);

    if (status == FSDP_OK)
        status =
            fsdp__exchange_begin(&exchange, g, FSDP__TAG_DATA, x->legs, g->columns, x->legs + g->columns, g->columns);
    if (status == FSDP_OK)
        status = fsdp__meeting_end(&meeting, x->traffic);
    if (status == FSDP_OK)
        status = fsdp__exchange_end(&exchange, x->traffic);
    else
        fsdp__exchange_give_up(&exchange);
    fsdp__meeting_release(&meeting);
    return status;
}

static fsdp_status gather_shared(gather *x)
{
    fsdp_status status = FSDP_OK;

    if (!fsdp__network_on_paper(x->group))
        status = fsdp__place_own_rows(x->call, x->group->rank, x->stream, x->traffic);
    if (status == FSDP_OK)
        status = find_all_rows(x);
    if (status == FSDP_OK)
        status = exchange_rows(x);
    if (status == FSDP_OK && x->group->local) /* after this all rows of the machine's ranks are there */
        status = fsdp__arena_barrier(x->group->local, x->call, x->stream, x->traffic);
    fsdp__free(x->legs);
    fsdp__free(x->segments);
    return status;
}

fsdp_status fsdp__network_all_gather_coalesced(void *g, const fsdp__call *call, fsdp_stream *stream,
                                               fsdp__traffic *traffic)
{
    fsdp__network_group *group = g;
    fsdp__plain_way way = packed_way(group);
    gather x = {.group = group, .call = call, .stream = stream, .traffic = traffic};
    bool follows = !group->flat && fsdp__device_host_access(fsdp__stream_device(stream));

    if (fsdp__network_is_local(group))
        return fsdp__arena_all_gather_coalesced(group->local, call, stream, traffic);
    if (fsdp__gathers_in_place(call, follows))
        return gather_shared(&x);
    return fsdp__coalesced_gather_by(&way, call, stream, traffic);
}

/* Gives back what this rank has received, as each rank does: nobody writes there until the rank's next gather. */
void fsdp__network_give_back(void *g, const fsdp_sharded_buffer *buffer)
{
    fsdp__network_group *group = g;

    if (group->flat || fsdp__network_is_local(group))
        return;
    for (int p = 0; p < group->columns; p++) {
        int member = fsdp__network_member(group, p, group->local_rank);
        int64_t numel = p == group->place ? 0 : fsdp__part_numel(buffer, member);

        for (int64_t at = 0, index, n; at < numel; at += n) {
            n = fsdp__part_run(buffer, member, at, numel - at, &index);
            fsdp__arena_give_pages(group->local->world, fsdp__place(buffer->unsharded, index, buffer->unsharded_dtype),
                                   (size_t)n * fsdp_dtype_size(buffer->unsharded_dtype));
        }
    }
}

/* ---- reduce ---- */

fsdp_status fsdp__network_show(fsdp__network_group *group, const fsdp__call *call, fsdp__traffic *traffic,
                               bool *visible)
{
    fsdp__shown_path path;

    FSDP_TRY(fsdp__shown_meet(group->local, call, fsdp__shown_is_readable(group->local, call, true), traffic, &path));
    *visible = path == FSDP__SHOWN_IN_PLACE;
    return FSDP_OK;
}

bool fsdp__network_adds(const fsdp__network_group *group, const fsdp__call *call, int local, int64_t i)
{
    return fsdp__shown_adds(group->local, call, local, i);
}

/* Reduces where every machine sees its contributions: all its ranks see them, or it has only one rank. */
static fsdp_status reduce_visible(fsdp__network_group *group, const fsdp__call *call, fsdp_stream *stream,
                                  fsdp__traffic *traffic, bool *done)
{
    bool visible = false;

    *done = false;
    if (group->flat || !fsdp__device_host_access(fsdp__stream_device(stream)))
        return FSDP_OK;
    FSDP_TRY(group->world->acts->show(group, call, traffic, &visible));
    if (group->locals == 1)
        visible = !call->force_copy;
    return fsdp__network_reduce(group, call, stream, traffic, visible, done);
}

fsdp_status fsdp__network_reduce_scatter_coalesced(void *g, const fsdp__call *call, fsdp_stream *stream,
                                                   fsdp__traffic *traffic)
{
    fsdp__network_group *group = g;
    fsdp__plain_way way = packed_way(group);
    bool done;

    if (fsdp__network_is_local(group))
        return fsdp__arena_reduce_scatter_coalesced(group->local, call, stream, traffic);
    FSDP_TRY(reduce_visible(group, call, stream, traffic, &done));
    if (!done)
        FSDP_TRY(fsdp__coalesced_reduce_by(&way, call, stream, traffic));
    return FSDP_OK;
}
