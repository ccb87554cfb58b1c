/* network_coalesced.c - sends rows to and receives rows from the counterparts.
 *
 * gather   shared memory: each rank puts its own rows into place, its counterparts' rows arrive straight in theirs, and
 *          the ranks of the machine meet. Nothing is packed, and a byte enters a machine once.
 *          other memory: packed (comm/transport/packed.h), over this transport's all_gather.
 *
 * reduce   memory that the ranks of the machine see: reduction.h.
 *          other memory: packed; contributions travel, and are added in the same order. */
#include "comm/transport/network/network_calls.h"

#include "comm/transport/arena/arena_coalesced.h"
#include "comm/transport/arena/arena_memory.h"
#include "comm/transport/arena/arena_plain.h"
#include "comm/transport/network/crossing.h"
#include "comm/transport/network/reduction.h"
#include "comm/transport/sharded_buffer.h"
#include "device/device.h"

int fsdp__network_block(const void *g)
{
    const fsdp__network_group *group = g;

    if (fsdp__network_is_local(group))
        return group->local ? fsdp__arena_block(group->local) : 0;
    return group->flat ? group->block : group->locals > 1 ? group->locals : 0;
}

static fsdp__plain_way packed_way(fsdp__network_group *group)
{
    return (fsdp__plain_way){.group = group,
                             .rank = group->rank,
                             .size = group->size,
                             .block = fsdp__network_block(group),
                             .on_paper = fsdp__network_on_paper(group),
                             .all_gather = group->world->acts->all_gather,
                             .all_to_all = group->world->acts->all_to_all};
}

/* ---- gather ---- */

/* Copies the rank's own rows to their places, before its peers on this machine may read them. */
static fsdp_status place_own_rows(const fsdp__crossing *r)
{
    return fsdp__network_on_paper(r->group) ? FSDP_OK : fsdp__place_own_rows(r->call, r->group->rank, r->traffic);
}

static fsdp_status gather_shared(fsdp__crossing *r)
{
    FSDP_TRY(place_own_rows(r));
    FSDP_TRY(fsdp__crossing_gather(r, r->call, NULL));
    FSDP_TRY(fsdp__crossing_meet_and_exchange(r));
    if (r->group->local) /* after this all rows of the machine's ranks are there */
        FSDP_TRY(fsdp__arena_barrier(r->group->local, r->call, r->traffic));
    return FSDP_OK;
}

fsdp_status fsdp__network_all_gather_coalesced(void *g, const fsdp__call *call, fsdp__traffic *traffic)
{
    fsdp__network_group *group = g;
    fsdp__plain_way way = packed_way(group);
    bool follows = !group->flat && fsdp__device_host_access(fsdp__stream_device(traffic->stream));
    fsdp__crossing r;
    fsdp_status status;

    if (fsdp__network_is_local(group))
        return fsdp__arena_all_gather_coalesced(group->local, call, traffic);
    if (!fsdp__gathers_in_place(call, follows))
        return fsdp__coalesced_by(&way, call, traffic);
    status = fsdp__crossing_begin(&r, group, call, traffic, fsdp__crossing_segments(group, call));
    if (status == FSDP_OK)
        status = gather_shared(&r);
    return fsdp__crossing_end(&r, status);
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

/* Reduces where every machine sees its contributions: all its ranks see them, or it has only one rank. */
static fsdp_status reduce_visible(fsdp__network_group *group, const fsdp__call *call, fsdp__traffic *traffic,
                                  bool *done)
{
    bool visible = false;

    *done = false;
    if (group->flat || !fsdp__device_host_access(fsdp__stream_device(traffic->stream)))
        return FSDP_OK;
    FSDP_TRY(group->world->acts->show(group, call, traffic, &visible));
    if (group->locals == 1)
        visible = !call->force_copy;
    return fsdp__network_reduce(group, call, traffic, visible, done);
}

fsdp_status fsdp__network_reduce_scatter_coalesced(void *g, const fsdp__call *call, fsdp__traffic *traffic)
{
    fsdp__network_group *group = g;
    fsdp__plain_way way = packed_way(group);
    bool done;

    if (fsdp__network_is_local(group))
        return fsdp__arena_reduce_scatter_coalesced(group->local, call, traffic);
    FSDP_TRY(reduce_visible(group, call, traffic, &done));
    if (!done)
        FSDP_TRY(fsdp__coalesced_by(&way, call, traffic));
    return FSDP_OK;
}
