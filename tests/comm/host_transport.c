/* host_transport.c - out of the device's memory, between the ranks, and back. */
#include "comm/host_transport.h"

#include <stdlib.h>

#include "comm/transport/arena/arena_transport.h"
#include "comm/transport/coalesced.h"
#include "device/device.h"

/* `sent` and `received`: elements that this rank gives and gets. */
static fsdp_status through_host(fsdp__collective exchange, void *group, const fsdp__call *call, int64_t sent,
                                int64_t received, fsdp__traffic *traffic)
{
    size_t element = fsdp_dtype_size(call->dtype);
    fsdp_stream *stream = traffic->stream;
    void *send = malloc((size_t)sent * element + 1), *recv = malloc((size_t)received * element + 1);
    fsdp__call on_host = *call;
    fsdp_status status = send && recv ? FSDP_OK : FSDP_NO_MEMORY;

    on_host.send = send;
    on_host.recv = recv;
    if (status == FSDP_OK)
        status = fsdp__run_copy_to_host(stream, send, call->send, (size_t)sent * element);
    traffic->stream = fsdp__host_stream(fsdp_device_context(fsdp__stream_device(stream)));
    if (status == FSDP_OK)
        status = exchange(group, &on_host, traffic);
    traffic->stream = stream;
    if (status == FSDP_OK)
        status = fsdp__run_copy_to_device(stream, call->recv, recv, (size_t)received * element);
    free(send);
    free(recv);
    return status;
}

static int64_t size_of(const void *group)
{
    return ((const fsdp__arena_group *)group)->size;
}

static fsdp_status host_all_gather(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    return through_host(fsdp__arena_all_gather, group, call, call->count, size_of(group) * call->count, traffic);
}

static fsdp_status host_reduce_scatter(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    return through_host(fsdp__arena_reduce_scatter, group, call, size_of(group) * call->count, call->count, traffic);
}

static fsdp_status host_all_reduce(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    return through_host(fsdp__arena_all_reduce, group, call, call->count, call->count, traffic);
}

static fsdp_status host_broadcast(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    bool is_root = ((const fsdp__arena_group *)group)->rank == call->root;

    return through_host(fsdp__arena_broadcast, group, call, is_root ? call->count : 0, is_root ? 0 : call->count,
                        traffic);
}

static fsdp_status host_all_to_all(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    int64_t all = size_of(group) * call->count;

    return through_host(fsdp__arena_all_to_all, group, call, all, all, traffic);
}

fsdp_status host_transport_packed(fsdp__collective all_gather, fsdp__collective all_to_all, void *group,
                                  const fsdp__call *call, fsdp__traffic *traffic)
{
    const fsdp__arena_group *g = group;
    const fsdp__plain_way way = {
        .group = group, .rank = g->rank, .size = g->size, .all_gather = all_gather, .all_to_all = all_to_all};

    return fsdp__coalesced_by(&way, call, traffic);
}

static fsdp_status host_coalesced(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    return host_transport_packed(host_all_gather, host_all_to_all, group, call, traffic);
}

static const fsdp__collective_ops host_collectives = {
    .all_gather = host_all_gather,
    .reduce_scatter = host_reduce_scatter,
    .all_reduce = host_all_reduce,
    .broadcast = host_broadcast,
    .all_to_all = host_all_to_all,
    .barrier = fsdp__arena_barrier,
    .all_gather_coalesced = host_coalesced,
    .reduce_scatter_coalesced = host_coalesced,
};
const fsdp__comm_ops host_transport_ops = {
    .name = "host",
    .collectives = &host_collectives,
    .group_open = fsdp__arena_group_open,
    .group_ready = fsdp__arena_group_ready,
    .group_free = fsdp__arena_group_free,
    .abort = fsdp__arena_abort,
    .close = fsdp__arena_close,
};
