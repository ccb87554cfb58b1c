/* fake_network.c - counts messages that nobody gets. */
#include "comm/transport/fake/fake_network.h"

#include <string.h>

#include "comm/coalesced.h"
#include "comm/packed.h"
#include "comm/sharded_buffer.h"
#include "comm/transport/arena/shown.h"
#include "comm/transport/fake/fake_machines.h"
#include "comm/transport/network/batches.h"
#include "comm/transport/network/meeting.h"
#include "device/device.h"

/* A call that is being counted. */
typedef struct count {
    const fsdp_process_group *group;
    const fsdp__call *call;
    fsdp__traffic *traffic;
    fsdp__fake *fake;
    fsdp__group_shape shape;
} count;

/* Begins to count a call; returns whether anything may go to another machine. */
static bool begin(count *c, const fsdp_process_group *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    *c = (count){.group = group, .call = call, .traffic = traffic, .fake = fsdp__fake_of(group)};
    if (!c->fake)
        return false;
    c->shape = fsdp__group_shape_of(group->ranks, group->size, group->rank, c->fake->machine_ranks, c->fake->one_level);
    return c->shape.elsewhere > 0;
}

static int member_at(const count *c, int place)
{
    return place * c->shape.locals + c->shape.local_rank;
}

/* Returns whether the rank of this column at `place` is on another machine. */
static bool is_elsewhere(const count *c, int place)
{
    int machine_ranks = c->fake->machine_ranks;

    return c->group->ranks[member_at(c, place)] / machine_ranks != c->group->ranks[c->group->rank] / machine_ranks;
}

static void exchange(count *c, int peers, int64_t sent, int64_t received)
{
    c->traffic->network_sent += peers * sent;
    c->traffic->network_received += peers * received;
    c->traffic->network_messages += peers * fsdp__messages_of(sent);
}

static void add_along(count *c, fsdp__parts parts, int peers, int64_t sent, int64_t received)
{
    exchange(c, peers, sent, received);
    if (fsdp__goes_along(c->shape.columns, c->shape.rounds, parts, sent))
        c->traffic->network_messages -= peers * fsdp__messages_of(sent);
}

/* Counts the first exchange of a call: what is small goes along with its headers. */
static void exchange_first(count *c, int peers, int64_t sent, int64_t received)
{
    add_along(c, FSDP__ANY_PARTS, peers, sent, received);
}

/* Counts the same number of bytes to and from every rank that is on another machine. */
static void exchange_first_with_all(count *c, int64_t bytes)
{
    add_along(c, FSDP__SAME_PARTS, c->shape.elsewhere, bytes, bytes);
}

/* Counts the headers. */
static void meet(count *c)
{
    c->traffic->network_messages += fsdp__meeting_messages(&c->shape);
}

static int64_t bytes_of(const count *c, int64_t numel)
{
    return numel * (int64_t)fsdp_dtype_size(c->call->dtype);
}

/* ---- plain ---- */

/* Counts a gather of this rank's part and of each counterpart's. */
static void gather_parts(count *c, int64_t bytes)
{
    meet(c);
    exchange_first_with_all(c, bytes);
}

void fsdp__fake_count_all_gather(const fsdp_process_group *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    count c;

    if (begin(&c, group, call, traffic))
        gather_parts(&c, bytes_of(&c, call->count));
}

void fsdp__fake_count_reduce_scatter(const fsdp_process_group *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    int64_t bytes;
    count c;

    if (!begin(&c, group, call, traffic))
        return;
    bytes = bytes_of(&c, call->count);
    meet(&c);
    if (fsdp__goes_along(c.shape.columns, c.shape.rounds, FSDP__EQUAL_PARTS, bytes)) {
        traffic->network_sent += fsdp__meeting_scatters(&c.shape, bytes);
        traffic->network_received += fsdp__meeting_scatters(&c.shape, bytes);
    } else {
        exchange(&c, c.shape.elsewhere, bytes, bytes);
    }
}

void fsdp__fake_count_broadcast(const fsdp_process_group *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    count c;
    int from, local_root;

    if (!begin(&c, group, call, traffic))
        return;
    meet(&c);
    from = call->root / c.shape.locals;
    local_root = call->root % c.shape.locals;
    if (c.shape.local_rank != local_root)
        return;
    if (c.shape.place == from)
        exchange_first(&c, c.shape.elsewhere, bytes_of(&c, call->count), 0);
    else if (is_elsewhere(&c, from))
        exchange_first(&c, 1, 0, bytes_of(&c, call->count));
}

static void exchange_with_all(count *c, int64_t bytes)
{
    meet(c);
    exchange(c, c->shape.elsewhere * c->shape.locals, bytes, bytes);
}

void fsdp__fake_count_all_to_all(const fsdp_process_group *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    count c;

    if (begin(&c, group, call, traffic))
        exchange_with_all(&c, bytes_of(&c, call->count));
}

void fsdp__fake_count_barrier(const fsdp_process_group *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    count c;

    if (begin(&c, group, call, traffic))
        meet(&c);
}

static int64_t share_of(const count *c, int place)
{
    int64_t length;

    (void)fsdp__share_of(c->shape.columns, c->shape.locals, c->call->count, fsdp_dtype_size(c->call->dtype),
                         c->shape.local_rank, place, &length);
    return bytes_of(c, length);
}

void fsdp__fake_count_all_reduce(const fsdp_process_group *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    count c;
    int64_t own, bytes = call->count * (int64_t)fsdp_dtype_size(call->dtype);
    bool along = true; /* the first exchange goes along with the headers */

    if (!begin(&c, group, call, traffic))
        return;
    meet(&c);
    if (call->flags && memchr(call->flags, 0, (size_t)call->flag_count))
        traffic->network_messages += c.shape.elsewhere * fsdp__messages_of(call->flag_count);
    if (bytes <= FSDP__AT_ONCE_BYTES) {
        exchange_first_with_all(&c, bytes);
        return;
    }
    if (fsdp__reduces_by_machine(c.shape.block, bytes)) {
        c.shape = fsdp__group_by_machine(group->rank, group->size, c.shape.block);
        along = false; /* that exchange stays on the machine */
    }
    if (!along && bytes <= FSDP__WHOLE_BYTES) {
        exchange(&c, c.shape.elsewhere, bytes, bytes);
        return;
    }
    own = share_of(&c, c.shape.place);
    for (int p = 0; p < c.shape.columns; p++) {
        if (!is_elsewhere(&c, p))
            continue;
        (along ? exchange_first : exchange)(&c, 1, share_of(&c, p), own); /* the contributions */
        exchange(&c, 1, own, share_of(&c, p));                            /* the sums */
    }
}

/* ---- buffers ---- */

/* Returns whether the host may follow pointers to memory that the machine's ranks see. */
static bool follows(const count *c)
{
    return !c->shape.flat && fsdp__device_host_access(fsdp__stream_device(c->traffic->stream));
}

/* Returns whether the machine's ranks see what this one contributes; also true if it contributes nothing. */
static bool is_visible(const count *c)
{
    for (int64_t i = 0; i < c->call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &c->call->buffers[i];
        size_t bytes = (size_t)fsdp__unsharded_numel(b) * fsdp_dtype_size(b->unsharded_dtype);

        if (bytes > 0 && b->unsharded && (!follows(c) || !fsdp__fake_shares(c->fake, b->unsharded, bytes)))
            return false;
    }
    return true;
}

static int64_t rows_of(const count *c, int place)
{
    int64_t bytes = 0;

    for (int64_t i = 0; i < c->call->buffer_count; i++)
        bytes += fsdp__part_numel(&c->call->buffers[i], member_at(c, place)) *
                 (int64_t)fsdp_dtype_size(c->call->buffers[i].unsharded_dtype);
    return bytes;
}

static void gather_piece(void *c, int64_t bytes)
{
    gather_parts(c, bytes);
}

void fsdp__fake_count_gather_coalesced(const fsdp_process_group *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    count c;

    if (!begin(&c, group, call, traffic))
        return;
    if (!fsdp__gathers_in_place(call, follows(&c))) {
        fsdp__packed_walk(call, fsdp__coalesced_room(call, group->size, false), false, gather_piece, &c);
        return;
    }
    meet(&c);
    for (int p = 0; p < c.shape.columns; p++)
        if (is_elsewhere(&c, p))
            exchange_first(&c, 1, rows_of(&c, c.shape.place), rows_of(&c, p));
}

static void reduce_piece(void *c, int64_t bytes)
{
    exchange_with_all(c, bytes);
}

static int64_t batch_bytes(const count *c, const fsdp__batch_piece *pieces, int piece_count, int place)
{
    int64_t bytes = 0;

    for (int i = 0; i < piece_count; i++)
        bytes += fsdp__batch_bytes(c->call, &pieces[i], member_at(c, place));
    return bytes;
}

static bool is_complete(const fsdp__call *call)
{
    for (int64_t i = 0; i < call->buffer_count; i++)
        if (!call->buffers[i].unsharded)
            return false;
    return true;
}

/* Counts the sums that this machine sends for each counterpart's rows, batch by batch. */
static void exchange_sums(count *c)
{
    fsdp__batch_piece pieces[FSDP__BATCH_PIECES];
    fsdp__batches batches = {.call = c->call, .room = fsdp__batches_room(c->shape.columns, c->shape.locals)};

    if (!is_complete(c->call)) /* each tells each who contributes to what */
        c->traffic->network_messages += c->shape.elsewhere;
    for (int n; (n = fsdp__batches_next(&batches, pieces)) > 0;) {
        int64_t own = batch_bytes(c, pieces, n, c->shape.place);

        for (int p = 0; p < c->shape.columns; p++)
            if (is_elsewhere(c, p))
                exchange(c, 1, batch_bytes(c, pieces, n, p), own);
    }
}

void fsdp__fake_count_reduce_coalesced(const fsdp_process_group *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    count c;
    bool reads;

    if (!begin(&c, group, call, traffic))
        return;
    reads = c.shape.locals == 1 ? !call->force_copy : fsdp__shown_is_direct(call) && is_visible(&c);
    if (follows(&c)) {
        meet(&c);
        if (reads) {
            exchange_sums(&c);
            return;
        }
    }
    fsdp__packed_walk(call, fsdp__coalesced_room(call, group->size, true), true, reduce_piece, &c);
}
