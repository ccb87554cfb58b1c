/* choose_carrier.c - the ranks of a group decide which carrier it has. */
#include "comm/choose_carrier.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/lock.h"
#include "base/status.h"
#include "comm/carrier_watch.h"
#include "comm/clique/clique_carrier.h"
#include "comm/group_calls.h"
#include "comm/objects.h"
#include "comm/world.h"
#include "device/clique.h"

/* Holds what each rank says. */
typedef struct proposal {
    int32_t wanted, status;
    char why[640]; /* it refuses */
    unsigned char facts[FSDP__CARRIER_FACTS];
} proposal;

/* Holds a decision on its way. */
typedef struct draft {
    fsdp_process_group *group;
    fsdp_device *device;
    const fsdp__carrier_ops *ops; /* NULL: staged */
    void *state;
    char why[640];
} draft;

/* ---- what is chosen ---- */

const char *fsdp_carrier_name(fsdp_carrier carrier)
{
    static const char *const names[] = {"auto", "peer", "nccl", "staged"};

    return (unsigned)carrier < FSDP_CARRIERS ? names[carrier] : "unknown carrier";
}

static fsdp_status check(fsdp_carrier carrier)
{
    return (unsigned)carrier < FSDP_CARRIERS ? FSDP_OK : FSDP_FAIL(FSDP_INVALID, "unknown carrier %d", (int)carrier);
}

fsdp_status fsdp_process_group_set_carrier(fsdp_process_group *group, fsdp_carrier carrier)
{
    if (!group)
        return FSDP_FAIL(FSDP_INVALID, "cannot choose a carrier: the group is NULL");
    FSDP_TRY(check(carrier));
    if (group->carriage.decided)
        return FSDP_FAIL(FSDP_STATE, "cannot choose the carrier of group '%s': it has made calls on a GPU, by '%s'",
                         group->name, fsdp_carrier_name(fsdp_process_group_carrier(group)));
    group->wanted = carrier;
    return FSDP_OK;
}

fsdp_carrier fsdp_process_group_carrier(const fsdp_process_group *group)
{
    if (!group || !group->carriage.decided)
        return FSDP_CARRIER_AUTO;
    return group->carriage.ops ? group->carriage.ops->kind : FSDP_CARRIER_STAGED;
}

fsdp_status fsdp_context_set_nccl_sums(fsdp_context *context, bool on)
{
    fsdp__comm *comm = fsdp__comm_get(context);

    if (!comm)
        return fsdp_last_status();
    comm->nccl_sums = on;
    return FSDP_OK;
}

fsdp_status fsdp_context_set_nccl_buffers(fsdp_context *context, fsdp_nccl_buffers buffers)
{
    fsdp__comm *comm = fsdp__comm_get(context);

    if (!comm)
        return fsdp_last_status();
    if ((unsigned)buffers >= FSDP_NCCL_BUFFERS)
        return FSDP_FAIL(FSDP_INVALID, "unknown choice of what NCCL is shown: %d", (int)buffers);
    comm->nccl_buffers = buffers;
    return FSDP_OK;
}

/* Returns what is asked for: sums of NCCL's are NCCL's alone. */
static fsdp_carrier wish_of(const fsdp_process_group *group)
{
    return group->wanted == FSDP_CARRIER_AUTO && group->comm->nccl_sums ? FSDP_CARRIER_NCCL : group->wanted;
}

static bool are_threads(const fsdp_process_group *group)
{
    return group->ops->are_threads && group->ops->are_threads(group->comm->transport);
}

/* Returns the carrier that the group is to have; NULL and why: none. */
static const fsdp__carrier_ops *candidate(const fsdp_process_group *group, const fsdp_device *device, char *why,
                                          size_t bytes)
{
    fsdp_carrier wish = wish_of(group);
    int machines = fsdp__process_group_machines(group);
    bool peer = wish == FSDP_CARRIER_PEER || (wish == FSDP_CARRIER_AUTO && machines == 1);

    if (wish == FSDP_CARRIER_STAGED)
        snprintf(why, bytes, "as comm.carrier says");
    else if (wish == FSDP_CARRIER_AUTO && machines == 1 && are_threads(group))
        /* A call of CUDA's that waits for the GPU may hold up the thread whose word the GPU waits for. */
        snprintf(why, bytes, "its ranks are threads of one process, in which a GPU that waits may hold them all up");
    else if (peer && machines > 1)
        snprintf(why, bytes, "its ranks are on %d machines, and peers read each other's memory on one", machines);
    else if (peer && group->ops->peer)
        return group->ops->peer;
    else if (peer)
        snprintf(why, bytes, "the ranks' transport, %s, has no memory that they share", group->ops->name);
    else if (fsdp__device_cliques(device))
        return &fsdp__clique_carrier;
    else
        snprintf(why, bytes, "nothing joins devices like '%s'", fsdp_device_name(device));
    return NULL;
}

/* ---- the ranks decide ---- */

/* Makes this rank's part, and says what it has. */
static void propose(draft *d, proposal *mine)
{
    fsdp_status status = FSDP_UNSUPPORTED;

    mine->wanted = (int32_t)wish_of(d->group);
    d->ops = candidate(d->group, d->device, d->why, sizeof d->why);
    if (d->ops)
        status = d->ops->create(d->group, d->device, mine->facts, &d->state);
    mine->status = (int32_t)status;
    if (status != FSDP_OK)
        snprintf(mine->why, sizeof mine->why, "%s", d->ops ? fsdp_last_error() : d->why);
}

static fsdp_status check_wishes(const fsdp_process_group *group, const fsdp__gathered *all)
{
    const proposal *first = all->objects[0];

    for (int r = 1; r < group->size; r++) {
        const proposal *other = all->objects[r];

        if (other->wanted != first->wanted)
            return FSDP_FAIL(FSDP_MISMATCH,
                             "ranks disagree in group '%s': its carrier is to be '%s' on rank %d but '%s' on rank %d",
                             group->name, fsdp_carrier_name((fsdp_carrier)first->wanted), group->ranks[0],
                             fsdp_carrier_name((fsdp_carrier)other->wanted), group->ranks[r]);
    }
    if (group->comm->nccl_sums && first->wanted != FSDP_CARRIER_NCCL)
        return FSDP_FAIL(FSDP_INVALID,
                         "group '%s' cannot have the carrier '%s' (comm.carrier) and sums by NCCL (comm.reduce): take "
                         "the carrier 'nccl', or let sums be exact",
                         group->name, fsdp_carrier_name((fsdp_carrier)first->wanted));
    return FSDP_OK;
}

/* Returns the first rank that refuses; -1: none. */
static int refuses(const fsdp_process_group *group, const fsdp__gathered *all)
{
    for (int r = 0; r < group->size; r++)
        if (((const proposal *)all->objects[r])->status != FSDP_OK)
            return r;
    return -1;
}

/* Does without the carrier, or fails if it was asked for by name. */
static fsdp_status do_without(draft *d, fsdp_status status, const char *why)
{
    const fsdp_process_group *group = d->group;
    fsdp_carrier wish = wish_of(group);

    if (d->ops && d->state)
        d->ops->free(d->state);
    d->ops = NULL;
    d->state = NULL;
    if (wish == FSDP_CARRIER_STAGED ||
        (wish == FSDP_CARRIER_AUTO && (status == FSDP_UNSUPPORTED || status == FSDP_NO_MEMORY))) {
        snprintf(d->why, sizeof d->why, "%s", why);
        return FSDP_OK;
    }
    return FSDP_FAIL(status, "group '%s' cannot have the carrier '%s' (comm.carrier): %s", group->name,
                     fsdp_carrier_name(wish), why);
}

static fsdp_status open_all(draft *d, const fsdp__gathered *all)
{
    FSDP__FREED const void **facts = fsdp__malloc((size_t)d->group->size * sizeof *facts);
    fsdp_status status = facts ? FSDP_OK : FSDP_NO_MEMORY, agreed;
    char why[sizeof d->why];

    for (int r = 0; r < d->group->size && facts; r++)
        facts[r] = ((const proposal *)all->objects[r])->facts;
    if (status == FSDP_OK)
        status = d->ops->open(d->state, facts, d->why, sizeof d->why);
    if (status == FSDP_OK)
        status = fsdp__carrier_watch_start(d->group->comm);
    agreed = fsdp__comm_agree(d->group, FSDP__CALL_CARRIER, status);
    if (agreed == FSDP_OK)
        return FSDP_OK;
    if (agreed != FSDP_UNSUPPORTED && agreed != FSDP_NO_MEMORY) /* nobody has refused: the world, or a device, fails */
        return agreed;
    snprintf(why, sizeof why, "%s", fsdp_last_error());
    return do_without(d, agreed, why);
}

static fsdp_status decide(draft *d)
{
    FSDP__SCOPED(fsdp__gathered_release) fsdp__gathered all = {0};
    proposal mine = {0};
    char why[sizeof mine.why + 32];
    int refused;

    propose(d, &mine);
    FSDP_TRY(fsdp__gather(d->group, &mine, sizeof mine, &all));
    FSDP_TRY(check_wishes(d->group, &all));
    refused = refuses(d->group, &all);
    if (refused >= 0) {
        const proposal *other = all.objects[refused];

        if (d->ops)
            snprintf(why, sizeof why, "rank %d: %s", d->group->ranks[refused], other->why);
        else
            snprintf(why, sizeof why, "%s", other->why);
        return do_without(d, (fsdp_status)other->status, why);
    }
    return open_all(d, &all);
}

/* Lets the group have what was decided. */
static void settle_on(const draft *d)
{
    fsdp_process_group *group = d->group;

    FSDP__HELD(&group->comm->mutex);
    group->carriage =
        (fsdp__carriage){.decided = true, .ops = d->ops, .state = d->state, .device = d->ops ? d->device : NULL};
}

fsdp_status fsdp__carrier_ready(fsdp_process_group *group, fsdp_stream *stream)
{
    draft d = {.group = group, .device = fsdp__stream_device(stream)};
    fsdp__error_aside aside;
    fsdp_status status;

    if (group->size == 1 || group->carriage.decided || !fsdp__device_carries(d.device))
        return FSDP_OK;
    fsdp__put_error_aside(&aside);
    status = decide(&d);
    if (status == FSDP_OK)
        fsdp__put_error_back(&aside); /* what was refused is no failure */
    if (status != FSDP_OK) {
        if (d.state)
            d.ops->free(d.state);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    settle_on(&d);
    if (group->rank == 0)
        fsdp_log(group->comm->context, FSDP_LOG_INFO, "group '%s' of %d ranks exchanges by carrier '%s': %s",
                 group->name, group->size, fsdp_carrier_name(fsdp_process_group_carrier(group)), d.why);
    return FSDP_OK;
}

fsdp_status fsdp__process_group_find_common(fsdp_process_group *group, fsdp_device *device, bool *out)
{
    const fsdp__carriage *c = &group->carriage;

    *out = false;
    FSDP_TRY(fsdp__carrier_ready(group, fsdp_device_stream(device)));
    *out = c->ops && c->device == device && c->ops->shares && c->ops->shares(c->state);
    return FSDP_OK;
}
