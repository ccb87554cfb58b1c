/* clique_carrier.c - the carrier by NCCL: how a group gets it, what the ranks tell each other before each call, and how
 * it ends.
 *
 * [Note: nobody waits for NCCL alone]
 * NCCL never says that a rank will not come. So no rank blocks in it: the hosts check whether NCCL is done, and tell
 * each other. If a rank cannot join, all give up. If one dies, the hosts' own transport names it, and whoever waits on
 * the device is interrupted. */
#include "comm/clique/clique_carrier.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/hash.h"
#include "base/probe.h"
#include "comm/clique/clique_memory.h"
#include "comm/comm.h"
#include "comm/group_calls.h"
#include "comm/health/failure.h"
#include "device/device.h"

enum {
    ROUND_MS = 100, /* how long a rank waits for NCCL before it asks the others */
    LEAVE_MS = 2000 /* how long it waits for the others to leave, too */
};

/* Holds what each rank tells the others: of the first, how the cliques are called. */
typedef struct facts {
    int32_t version, own_order, buffers;
    unsigned char ids[FSDP__CLIQUE_WAYS][FSDP__CLIQUE_ID_BYTES];
} facts;

typedef struct carrier {
    fsdp__clique_group at; /* first */
    fsdp_process_group *group;
    fsdp_stream *host; /* for what the hosts tell each other */
    fsdp_nccl_buffers buffers;
    bool joined;            /* and so has every rank */
    _Atomic uint64_t calls; /* that were issued */
    const void *name;       /* the same on all ranks, and never followed */
} carrier;

static void nap(void)
{
    (void)nanosleep(&(struct timespec){0, 100000}, NULL);
}

/* ---- joining ---- */

static fsdp_status name_cliques(const carrier *c, unsigned char ids[][FSDP__CLIQUE_ID_BYTES])
{
    for (int way = 0; way < FSDP__CLIQUE_WAYS && c->at.rank == 0; way++)
        FSDP_TRY(c->at.ops->name_clique(c->at.device, ids[way]));
    return FSDP_OK;
}

/* Opens the library and names the cliques. */
static fsdp_status prepare(const carrier *c, facts *mine)
{
    int version;

    FSDP_TRY(c->at.ops->open(c->at.device, &version));
    mine->version = version;
    mine->own_order = c->at.own_order;
    mine->buffers = (int32_t)c->group->comm->nccl_buffers;
    return name_cliques(c, mine->ids);
}

/* Returns the failure of something that the group can do without. */
static fsdp_status do_without(void)
{
    char text[640];

    snprintf(text, sizeof text, "%s", fsdp_last_error());
    return FSDP_FAIL(FSDP_UNSUPPORTED, "%s", text);
}

/* Finds the ranks of the group that are on this machine. */
static void find_here(const fsdp_process_group *group, fsdp__clique_group *at)
{
    int each = fsdp_context_local_world_size(group->comm->context), machine = group->ranks[group->rank] / each;

    while (group->ranks[at->first] / each != machine)
        at->first++;
    while (at->first + at->here < group->size && group->ranks[at->first + at->here] / each == machine)
        at->here++;
}

static fsdp_status create(fsdp_process_group *group, fsdp_device *device, void *out_facts, void **out)
{
    const fsdp__clique_ops *ops = fsdp__device_cliques(device);
    FSDP__FREED carrier *c = fsdp__calloc(1, sizeof *c);

    _Static_assert(sizeof(facts) <= FSDP__CARRIER_FACTS, "facts have room");
    FSDP__TRY_NEW(c);
    c->at = (fsdp__clique_group){.ops = ops,
                                 .device = device,
                                 .rank = group->rank,
                                 .size = group->size,
                                 .machines = fsdp__process_group_machines(group),
                                 .block = group->ops->block ? group->ops->block(group->transport_group) : 0,
                                 .own_order = group->comm->nccl_sums};
    c->group = group;
    c->buffers = group->comm->nccl_buffers;
    find_here(group, &c->at);
    FSDP__TRY_NEW(c->host = fsdp__host_stream(group->comm->context));
    if (prepare(c, out_facts) != FSDP_OK)
        return do_without();
    *out = fsdp__take(&c);
    return FSDP_OK;
}

static const char *const buffers_names[] = {"registered", "copy_engines", "plain"};

static fsdp_status compare(const carrier *c, const void *const *all)
{
    const facts *first = all[0];
    const int *ranks = c->group->ranks;

    for (int r = 1; r < c->at.size; r++) {
        const facts *other = all[r];

        if (other->version != first->version)
            return FSDP_FAIL(
                FSDP_UNSUPPORTED, "rank %d has %s %d.%d.%d and rank %d %d.%d.%d: all ranks need the same version",
                ranks[0], c->at.ops->library, first->version / 10000, first->version / 100 % 100, first->version % 100,
                ranks[r], other->version / 10000, other->version / 100 % 100, other->version % 100);
        if (other->own_order != first->own_order)
            return FSDP_FAIL(FSDP_MISMATCH,
                             "ranks disagree in group '%s': comm.reduce is '%s' on rank %d but '%s' on rank %d",
                             c->group->name, first->own_order ? "nccl" : "exact", ranks[0],
                             other->own_order ? "nccl" : "exact", ranks[r]);
        if (other->buffers != first->buffers)
            return FSDP_FAIL(
                FSDP_MISMATCH, "ranks disagree in group '%s': comm.nccl_buffers is '%s' on rank %d but '%s' on rank %d",
                c->group->name, buffers_names[first->buffers], ranks[0], buffers_names[other->buffers], ranks[r]);
    }
    return FSDP_OK;
}

static fsdp_status begin_to_join(carrier *c, const unsigned char ids[][FSDP__CLIQUE_ID_BYTES])
{
    fsdp__clique_place place = {
        .members = c->at.size, .member = c->at.rank, .by_copies = c->buffers == FSDP_NCCL_COPY_ENGINES};

    for (int way = 0; way < FSDP__CLIQUE_WAYS; way++) {
        memcpy(place.id, ids[way], sizeof place.id);
        FSDP_TRY(c->at.ops->join(c->at.device, &place, &c->at.cliques[way]));
    }
    return FSDP_OK;
}

/* Checks until both cliques are idle, or `ms` are over. */
static fsdp_status look_for(const carrier *c, int64_t ms, bool *idle)
{
    int64_t end = fsdp__clock_ns() + ms * 1000000;

    do {
        *idle = true;
        for (int way = 0; way < FSDP__CLIQUE_WAYS; way++) {
            bool one = false;

            FSDP_TRY(c->at.ops->look(c->at.cliques[way], &one));
            *idle = *idle && one;
        }
        if (!*idle)
            nap();
    } while (!*idle && fsdp__clock_ns() < end);
    return FSDP_OK;
}

/* Makes a rank's failure to join a failure of all ranks, which the group can do without. */
static fsdp_status agree(const carrier *c, fsdp_status mine)
{
    fsdp_status all = fsdp_agree(c->group, mine);

    return all != FSDP_COMM || fsdp__comm_is_broken(c->group) ? all : do_without();
}

/* Waits until all ranks' cliques are idle. */
static fsdp_status await_all(const carrier *c)
{
    bool idle = false;

    while (!idle) {
        FSDP__SCOPED(fsdp__gathered_release) fsdp__gathered idles = {0};

        FSDP_TRY(agree(c, look_for(c, ROUND_MS, &idle)));
        FSDP_TRY(fsdp__gather(c->group, &idle, sizeof idle, &idles));
        for (int r = 0; r < c->at.size; r++)
            idle = idle && *(const bool *)idles.objects[r];
    }
    return FSDP_OK;
}

static fsdp_status join(carrier *c, const unsigned char ids[][FSDP__CLIQUE_ID_BYTES])
{
    FSDP_TRY(agree(c, begin_to_join(c, ids)));
    return await_all(c);
}

/* Shows NCCL the memory on all ranks, and gives what NCCL does with it. */
static fsdp_status show(carrier *c, fsdp__clique_sight *out)
{
    FSDP__SCOPED(fsdp__gathered_release) fsdp__gathered sights = {0};
    const fsdp_context *context = c->group->comm->context;
    fsdp__clique_sight seen[FSDP__CLIQUE_WAYS];

    FSDP_TRY(agree(c, fsdp__clique_memory_show(&c->at, context, c->buffers == FSDP_NCCL_COPY_ENGINES)));
    FSDP_TRY(await_all(c));
    *out = fsdp__clique_memory_seen(&c->at, seen);
    FSDP_TRY(fsdp__gather(c->group, seen, sizeof seen, &sights));
    for (int r = 0; r < c->at.size; r++)
        if (memcmp(sights.objects[r], seen, sizeof seen) != 0)
            return FSDP_FAIL(FSDP_UNSUPPORTED, "%s sees memory in another way on rank %d than on rank %d",
                             c->at.ops->library, c->group->ranks[r], c->group->ranks[c->at.rank]);
    return FSDP_OK;
}

static void release(void *argument)
{
    const carrier *c = argument;

    for (int way = 0; way < FSDP__CLIQUE_WAYS; way++)
        if (c->at.cliques[way])
            c->at.ops->interrupt(c->at.cliques[way]);
}

static void free_cliques(carrier *c)
{
    for (int way = 0; way < FSDP__CLIQUE_WAYS; way++) {
        c->at.ops->free(c->at.cliques[way]);
        c->at.cliques[way] = NULL;
    }
    fsdp__clique_memory_free(&c->at);
}

/* Joins once more, with nothing to show: what NCCL was doing when it failed has spoilt the cliques. */
static fsdp_status join_again(carrier *c)
{
    FSDP__SCOPED(fsdp__gathered_release) fsdp__gathered all = {0};
    unsigned char ids[FSDP__CLIQUE_WAYS][FSDP__CLIQUE_ID_BYTES] = {{0}};

    release(c);
    free_cliques(c);
    c->buffers = FSDP_NCCL_PLAIN;
    FSDP_TRY(agree(c, name_cliques(c, ids)));
    FSDP_TRY(fsdp__gather(c->group, ids, sizeof ids, &all));
    return join(c, all.objects[0]);
}

/* Shows NCCL memory, or joins again if that fails; `says` tells which. */
static fsdp_status show_or_not(carrier *c, char *says, size_t bytes)
{
    static const char *const kinds[] = {[FSDP__CLIQUE_SEEN] = "through registered memory",
                                        [FSDP__CLIQUE_WINDOW] = "through windows",
                                        [FSDP__CLIQUE_COPIES] =
                                            "by copy engines where one machine's links join all, through windows"};
    fsdp__clique_sight seen = FSDP__CLIQUE_UNSEEN;
    fsdp_status status;

    if (c->buffers == FSDP_NCCL_PLAIN) {
        snprintf(says, bytes, "nothing registered (comm.nccl_buffers)");
        return FSDP_OK;
    }
    status = show(c, &seen);
    if (status != FSDP_OK && fsdp__comm_is_broken(c->group))
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    if (status != FSDP_OK) {
        snprintf(says, bytes, "nothing registered: %s", fsdp_last_error());
        return join_again(c);
    }
    if (seen == FSDP__CLIQUE_UNSEEN)
        snprintf(says, bytes, "nothing registered, since it does not take the GPU's memory");
    else
        snprintf(says, bytes, "%s of %zu MiB", kinds[seen], fsdp__clique_memory_bytes(&c->at) >> 20);
    return FSDP_OK;
}

static fsdp_status open(void *argument, const void *const *all, char *why, size_t bytes)
{
    carrier *c = argument;
    const facts *first = all[0];
    char says[512];

    FSDP_TRY(compare(c, all));
    c->name = (const void *)(uintptr_t)fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, first->ids, sizeof first->ids);
    FSDP_TRY(join(c, first->ids));
    FSDP_TRY(show_or_not(c, says, sizeof says));
    c->joined = true;
    snprintf(why, bytes, "%s %d.%d.%d, %s%s", c->at.ops->library, first->version / 10000, first->version / 100 % 100,
             first->version % 100, says, c->at.own_order ? "; it adds in its own order" : "");
    return FSDP_OK;
}

/* ---- leaving ---- */

/* Only the end of the last call is known, so the number grows as calls are issued. A host is only a few calls ahead of
 * a device that stands still. */
static uint64_t busy(void *argument)
{
    const carrier *c = argument;
    bool is = false;

    for (int way = 0; way < FSDP__CLIQUE_WAYS && !is; way++)
        is = c->at.cliques[way] && c->at.ops->busy(c->at.cliques[way]);
    return is ? c->calls + 1 : 0;
}

/* Leaves with the others, for whom it waits a while: they may free the group later. */
static void leave(carrier *c)
{
    bool idle = false, all = true;

    for (int way = 0; way < FSDP__CLIQUE_WAYS; way++)
        all = c->at.cliques[way] && c->at.ops->leave(c->at.cliques[way]) == FSDP_OK && all;
    for (int64_t end = fsdp__clock_ns() + LEAVE_MS * INT64_C(1000000); all && !idle && fsdp__clock_ns() < end;)
        all = !fsdp__comm_is_broken(c->group) && look_for(c, 1, &idle) == FSDP_OK;
}

static void carrier_free(void *argument)
{
    carrier *c = argument;
    bool held = fsdp_hold_error(true);

    if (c->joined && !fsdp__comm_is_broken(c->group))
        leave(c);
    else
        release(c); /* releases all cliques before it waits for the end of one */
    free_cliques(c);
    fsdp__free(c);
    fsdp_release_error(held);
}

/* ---- what the hosts tell each other before a call ---- */

/* Tells the race check that work queued on the ranks' streams before this call comes before all work queued after it,
 * because the device makes the call when all ranks' devices have reached it. */
static void tell_order(const carrier *c, fsdp_stream *stream, bool after)
{
    if (after)
        FSDP__TELL(ORDER_ACQUIRED, .context = c->group->comm->context, .stream = stream, .object = c->name,
                   .number = c->calls);
    else
        FSDP__TELL(ORDER_PUBLISHED, .context = c->group->comm->context, .stream = stream, .object = c->name,
                   .number = c->calls);
}

/* Compares the ranks' calls. */
static fsdp_status meet(carrier *c, const fsdp__call *call, fsdp__traffic *traffic)
{
    c->calls++;
    tell_order(c, traffic->stream, false);
    FSDP_TRY(c->group->ops->collectives->barrier(c->group->transport_group, call, traffic));
    tell_order(c, traffic->stream, true);
    return FSDP_OK;
}

/* Does the same, and joins the ranks' flags by an all_reduce. That touches only memory of the host, so it is no part of
 * the stream's work. */
static fsdp_status meet_and_join(carrier *c, const fsdp__call *call, uint8_t *flags, int64_t count, bool *lacking,
                                 fsdp__traffic *traffic)
{
    fsdp__traffic told = {.stream = c->host};
    const fsdp__call joins = {.name = FSDP__CALL_ALL_REDUCE,
                              .sequence = call->sequence,
                              .dtype = FSDP_U8,
                              .flags = flags,
                              .flag_count = count,
                              .lacking = lacking,
                              .plain = call};

    c->calls++;
    tell_order(c, traffic->stream, false);
    FSDP_TRY(c->group->ops->collectives->all_reduce(c->group->transport_group, &joins, &told));
    tell_order(c, traffic->stream, true);
    traffic->waiting_ns += told.waiting_ns;
    return FSDP_OK;
}

/* Finds out who adds to what: `all` has a flag for each buffer of each rank. One meeting says whether all add to all;
 * if not, a second one joins what each rank has written in a row of its own. */
static fsdp_status learn_who_adds(carrier *c, const fsdp__call *call, uint8_t *all, fsdp__traffic *traffic)
{
    int64_t count = call->buffer_count;
    bool lacking = false;

    for (int64_t i = 0; i < count; i++)
        all[i] = call->buffers[i].unsharded != NULL;
    FSDP_TRY(meet_and_join(c, call, all, count, &lacking, traffic));
    memset(all, !lacking, (size_t)(c->at.size * count));
    if (!lacking)
        return FSDP_OK;
    for (int64_t i = 0; i < count; i++)
        all[c->at.rank * count + i] = call->buffers[i].unsharded != NULL;
    return meet_and_join(c, call, all, c->at.size * count, NULL, traffic);
}

/* ---- the collectives ---- */

/* Defines a collective before which the ranks' calls are compared, and no more. */
#define COMPARED(name)                                                                      \
    static fsdp_status name(void *argument, const fsdp__call *call, fsdp__traffic *traffic) \
    {                                                                                       \
        carrier *c = argument;                                                              \
                                                                                            \
        FSDP_TRY(meet(c, call, traffic));                                                   \
        return fsdp__clique_##name(&c->at, call, traffic);                                  \
    }
COMPARED(all_gather)
COMPARED(broadcast)
COMPARED(all_to_all)
COMPARED(reduce_scatter)
COMPARED(all_gather_coalesced)
#undef COMPARED

static fsdp_status all_reduce(void *argument, const fsdp__call *call, fsdp__traffic *traffic)
{
    carrier *c = argument;

    if (call->flag_count > 0)
        FSDP_TRY(meet_and_join(c, call, call->flags, call->flag_count, call->lacking, traffic));
    else
        FSDP_TRY(meet(c, call, traffic));
    return fsdp__clique_all_reduce(&c->at, call, traffic);
}

static fsdp_status reduce_scatter_coalesced(void *argument, const fsdp__call *call, fsdp__traffic *traffic)
{
    carrier *c = argument;
    FSDP__FREED uint8_t *adds = fsdp__malloc((size_t)(c->at.size * call->buffer_count));
    fsdp__clique_group at = c->at;

    FSDP__TRY_NEW(adds);
    FSDP_TRY(learn_who_adds(c, call, adds, traffic));
    at.adds = adds;
    at.adds_count = call->buffer_count;
    return fsdp__clique_reduce_scatter_coalesced(&at, call, traffic);
}

static const fsdp__collective_ops collectives = {.all_gather = all_gather,
                                                 .reduce_scatter = reduce_scatter,
                                                 .all_reduce = all_reduce,
                                                 .broadcast = broadcast,
                                                 .all_to_all = all_to_all,
                                                 .all_gather_coalesced = all_gather_coalesced,
                                                 .reduce_scatter_coalesced = reduce_scatter_coalesced};

const fsdp__carrier_ops fsdp__clique_carrier = {.kind = FSDP_CARRIER_NCCL,
                                                .collectives = &collectives,
                                                .create = create,
                                                .open = open,
                                                .free = carrier_free,
                                                .busy = busy,
                                                .release = release};
