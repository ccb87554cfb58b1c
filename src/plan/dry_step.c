/* dry_step.c - records the memory and the time of a dry step, as a subscriber of its context (base/probe.h). */
#include "plan/planned.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/group_calls.h"
#include "plan/timeline.h"

enum {
    OTHERS = FSDP__KERNELS,     /* as an index of by_op: no kernel of the device followed */
    WAITING = FSDP__KERNELS + 1 /* none has followed yet */
};

/* A live block of activations. */
typedef struct block {
    size_t bytes;
    int op;
} block;

typedef struct recorder {
    fsdp__plan *plan;
    fsdp_context *context;
    const fsdp_device *device;
    const fsdp__prices *prices;
    double share; /* of the whole device's time: 1 over the ranks that share it */
    int machine_ranks;
    /* memory */
    fsdp__pointer_table places; /* numbers of blocks, by their address */
    block *blocks;
    int64_t block_count, block_capacity, first_waiting;
    size_t by_op[WAITING + 1];
    size_t seen;    /* the highest peak so far */
    bool fresh;     /* it was reached since the last kernel */
    size_t waiting; /* of the peak's activations: no kernel has followed yet */
    int64_t events; /* of the units, before the peak */
    fsdp__plan_peak peak;
    /* time */
    const fsdp_train_run *run;
    int64_t forwards;
    fsdp__timeline timeline;
    double began_all[FSDP__PLAN_PARTS], began_seen[FSDP__PLAN_PARTS]; /* of the microbatch that stands for others */
    fsdp_comm_stats comm;                                             /* at the last call */
    int64_t computed_count, computed_capacity;
    fsdp_status status;
} recorder;

/* ---- memory ---- */

/* Notes the moment, if the ledger's peak has risen since it was last looked at. */
static void look(recorder *r)
{
    fsdp_memory_stats memory;

    fsdp_device_memory(r->device, &memory);
    if (memory.peak_without_workspace_bytes <= r->seen)
        return;
    r->seen = memory.peak_without_workspace_bytes;
    memcpy(r->peak.bytes, memory.live_bytes, sizeof r->peak.bytes);
    r->peak.bytes[FSDP_MEMORY_WORKSPACE] = 0;
    r->peak.workspace = memory.live_bytes[FSDP_MEMORY_WORKSPACE];
    memcpy(r->peak.by_op, r->by_op, sizeof r->peak.by_op);
    r->waiting = r->by_op[WAITING];
    r->events = r->plan->e->event_count;
    r->peak.op = NULL;
    r->fresh = true;
}

static fsdp_status take(recorder *r, const fsdp__probe_event *e)
{
    int64_t *number;

    if (e->kind != FSDP_MEMORY_ACTIVATION)
        return FSDP_OK;
    number = fsdp__pointer_table_at(&r->places, e->memory);
    if (!number || fsdp__grow(&r->blocks, r->block_count, &r->block_capacity, sizeof *r->blocks))
        return FSDP_NO_MEMORY;
    r->blocks[r->block_count] = (block){fsdp__device_rounded(e->bytes), WAITING};
    r->by_op[WAITING] += r->blocks[r->block_count].bytes;
    *number = ++r->block_count;
    return FSDP_OK;
}

static void give(recorder *r, const fsdp__probe_event *e)
{
    int64_t number = fsdp__pointer_table_find(&r->places, e->memory);

    if (number == 0)
        return; /* it is from before the step */
    r->by_op[r->blocks[number - 1].op] -= r->blocks[number - 1].bytes;
    r->blocks[number - 1].bytes = 0;
    *fsdp__pointer_table_at(&r->places, e->memory) = 0; /* the key is there: this cannot fail */
}

/* Marks all blocks that were taken since the last kernel as this kernel's. */
static void own(recorder *r, int kernel)
{
    for (; r->first_waiting < r->block_count; r->first_waiting++) {
        block *b = &r->blocks[r->first_waiting];

        r->by_op[WAITING] -= b->bytes;
        r->by_op[kernel] += b->bytes;
        b->op = kernel;
    }
    if (!r->fresh)
        return;
    r->peak.by_op[kernel] += r->waiting;
    r->peak.op = fsdp__kernel_infos[kernel].name;
    r->fresh = false;
}

/* Adds what is live from here on. */
static fsdp_status add_moment(recorder *r)
{
    fsdp__plan *p = r->plan;
    fsdp_memory_stats memory;
    fsdp__plan_moment *m;

    if (fsdp__grow(&p->moments, p->moment_count, &p->moment_capacity, sizeof *p->moments))
        return FSDP_NO_MEMORY;
    fsdp_device_memory(r->device, &memory);
    m = &p->moments[p->moment_count++];
    *m = (fsdp__plan_moment){.at = r->prices ? r->timeline.host : (double)(p->moment_count - 1),
                             .events = p->e->event_count};
    memcpy(m->bytes, memory.live_bytes, sizeof m->bytes);
    m->bytes[FSDP_MEMORY_WORKSPACE] = 0;
    return FSDP_OK;
}

/* ---- time ---- */

static fsdp__plan_part part_of(fsdp__kernel kernel)
{
    switch (fsdp__kernel_infos[kernel].class) {
    case FSDP__KERNEL_CLASS_GEMM:
        return FSDP__PLAN_PRODUCTS;
    case FSDP__KERNEL_CLASS_ATTENTION:
        return FSDP__PLAN_ATTENTION;
    case FSDP__KERNEL_CLASS_OPTIMIZER:
        return FSDP__PLAN_OPTIMIZER;
    default:
        return FSDP__PLAN_MEMORY_BOUND;
    }
}

static void run_kernel(recorder *r, const fsdp__probe_event *e)
{
    const fsdp_device *device = fsdp__stream_device(e->stream);

    if (e->kind >= FSDP__KERNELS)
        return;
    if (device == r->device)
        own(r, e->kind);
    if (r->prices)
        fsdp__timeline_work(&r->timeline, e->stream, part_of((fsdp__kernel)e->kind),
                            fsdp__price_kernel(r->prices, (fsdp__kernel)e->kind, e->object) / r->share);
}

static void call(recorder *r, const fsdp__probe_event *e)
{
    const fsdp_process_group *group = e->object;
    fsdp_comm_stats now;
    fsdp__price_call c = {.kind = (fsdp_collective)e->kind,
                          .bytes = (double)e->bytes,
                          .ranks = e->ranks,
                          .machines = fsdp__process_group_machines(group),
                          .machine_ranks = r->machine_ranks};
    double sent = 0, received = 0;

    fsdp_context_comm_stats(r->context, &now);
    for (int kind = 0; kind < FSDP_COLLECTIVES; kind++) {
        sent += (double)(now.network_sent[kind] - r->comm.network_sent[kind]);
        received += (double)(now.network_received[kind] - r->comm.network_received[kind]);
    }
    r->comm = now;
    c.network = FSDP__MAX(sent, received);
    fsdp__timeline_work(&r->timeline, e->stream,
                        e->kind == FSDP_ALL_GATHER ? FSDP__PLAN_GATHERS : FSDP__PLAN_REDUCTIONS,
                        fsdp__price_collective(r->prices, &c));
}

static void copy(recorder *r, const fsdp__probe_event *e)
{
    if (r->prices->host.per_second > 0 && fsdp__stream_device(e->stream) == r->device)
        fsdp__timeline_work(&r->timeline, e->stream, FSDP__PLAN_COPIES,
                            r->prices->host.latency + (double)e->bytes / r->prices->host.per_second);
}

/* Notes how long the device had computed at the events since the last call. */
static fsdp_status note_events(recorder *r)
{
    const double *seen = r->timeline.seen;

    while (r->computed_count < r->plan->e->event_count) {
        if (fsdp__grow(&r->plan->computed, r->computed_count, &r->computed_capacity, sizeof *r->plan->computed))
            return FSDP_NO_MEMORY;
        r->plan->computed[r->computed_count++] =
            seen[FSDP__PLAN_PRODUCTS] + seen[FSDP__PLAN_ATTENTION] + seen[FSDP__PLAN_MEMORY_BOUND];
    }
    return FSDP_OK;
}

/* ---- what is heard ---- */

/* Counts the time of microbatches that are passed over: each takes as long as the one before them. */
static void hear_stage(recorder *r, const fsdp__probe_event *e)
{
    fsdp__timeline *t = &r->timeline;
    fsdp__alike at = fsdp__alike_at(r->run, e, &r->forwards);

    if (at == FSDP__ALIKE_BEGINS) {
        memcpy(r->began_all, t->all, sizeof t->all);
        memcpy(r->began_seen, t->seen, sizeof t->seen);
    } else if (at == FSDP__ALIKE_ENDS)
        for (int part = 0; part < FSDP__PLAN_PARTS; part++) {
            t->all[part] += (double)r->run->passed_over * (t->all[part] - r->began_all[part]);
            t->seen[part] += (double)r->run->passed_over * (t->seen[part] - r->began_seen[part]);
        }
}

static fsdp_status hear_time(recorder *r, const fsdp__probe_event *e)
{
    switch (e->point) {
    case FSDP__POINT_COLLECTIVE_DONE:
        if (e->kind < FSDP_COLLECTIVES)
            call(r, e);
        return FSDP_OK;
    case FSDP__POINT_COPY_ISSUED:
        copy(r, e);
        return FSDP_OK;
    case FSDP__POINT_EVENT_RECORDED:
        return fsdp__timeline_mark_event(&r->timeline, e->event, e->stream);
    case FSDP__POINT_EVENT_AWAITED:
        fsdp__timeline_await(&r->timeline, e->event, e->stream);
        return FSDP_OK;
    case FSDP__POINT_EVENT_REACHED:
        fsdp__timeline_await(&r->timeline, e->event, NULL);
        return FSDP_OK;
    case FSDP__POINT_STREAM_REACHED:
        fsdp__timeline_join(&r->timeline, e->stream);
        return FSDP_OK;
    default:
        return FSDP_OK;
    }
}

static fsdp_status hear(void *arg, fsdp__probe_event *e)
{
    recorder *r = arg;
    fsdp_status status = r->prices ? note_events(r) : FSDP_OK;

    if (e->point == FSDP__POINT_STAGE_BEGUN) { /* the first one comes before the peak of the last step is forgotten */
        hear_stage(r, e);
        r->status = r->status == FSDP_OK ? status : r->status;
        return FSDP_OK;
    }
    if (e->point == FSDP__POINT_MEMORY_TAKEN || e->point == FSDP__POINT_MEMORY_GIVEN_BACK) {
        if (fsdp__stream_device(e->stream) != r->device)
            return FSDP_OK;
        if (e->point == FSDP__POINT_MEMORY_TAKEN)
            status = status == FSDP_OK ? take(r, e) : status;
    }
    look(r);
    if (e->point == FSDP__POINT_MEMORY_COUNTED)
        status = fsdp__stream_device(e->stream) == r->device ? add_moment(r) : FSDP_OK;
    else if (e->point == FSDP__POINT_MEMORY_GIVEN_BACK)
        give(r, e);
    else if (e->point == FSDP__POINT_KERNEL_ISSUED)
        run_kernel(r, e);
    else if (r->prices && status == FSDP_OK)
        status = hear_time(r, e);
    if (status != FSDP_OK && r->status == FSDP_OK)
        r->status = status;
    return FSDP_OK;
}

/* ---- the step ---- */

/* Finds out whose forward or backward the peak falls into: the last one that has begun and not ended. */
static void place(const fsdp_explanation *e, int64_t events, fsdp__plan_peak *peak)
{
    peak->unit = -1;
    peak->phase = events > 0 ? e->events[events - 1].phase : FSDP_PHASE_FORWARD;
    peak->microbatch = events > 0 ? e->events[events - 1].microbatch : 0;
    for (int64_t i = events, closed = 0; i-- > 0 && peak->unit < 0;) {
        fsdp_shard_event event = e->events[i].event;

        if (event == FSDP_EVENT_POST_FORWARD || event == FSDP_EVENT_POST_BACKWARD)
            closed++;
        else if ((event == FSDP_EVENT_PRE_FORWARD || event == FSDP_EVENT_PRE_BACKWARD) && closed-- <= 0)
            peak->unit = e->events[i].unit;
    }
}

static void finish(recorder *r)
{
    fsdp__plan *plan = r->plan;

    look(r);
    r->peak.by_op[OTHERS] += r->fresh ? r->waiting : 0;
    r->peak.total = r->seen;
    plan->peak = r->peak;
    place(plan->e, r->events, &plan->peak);
    if (r->prices)
        fsdp__timeline_end(&r->timeline, &plan->time);
}

/* Returns the part of the whole device that a rank has. */
static double share_of(const fsdp__prices *prices, const fsdp_train_config *config, int machine_ranks)
{
    double threads = (double)config->training.threads;

    if (!prices || prices->gpu)
        return 1;
    threads = threads > 0 ? threads : FSDP__MAX((double)prices->cores / machine_ranks, 1);
    return FSDP__MIN(1.0 / machine_ranks, threads / FSDP__MAX(prices->cores, 1));
}

fsdp_status fsdp__plan_record(fsdp__plan *plan, fsdp_train_run *run, const fsdp__plan_options *options)
{
    static const fsdp__point points[] = {
        FSDP__POINT_MEMORY_TAKEN,   FSDP__POINT_MEMORY_GIVEN_BACK, FSDP__POINT_KERNEL_ISSUED,
        FSDP__POINT_SHARD_CHANGED,  FSDP__POINT_COLLECTIVE_DONE,   FSDP__POINT_COPY_ISSUED,
        FSDP__POINT_EVENT_RECORDED, FSDP__POINT_EVENT_AWAITED,     FSDP__POINT_EVENT_REACHED,
        FSDP__POINT_STREAM_REACHED, FSDP__POINT_STAGE_BEGUN};
    recorder r = {.plan = plan,
                  .context = run->context,
                  .device = run->device,
                  .run = run,
                  .prices = options->prices,
                  .machine_ranks = options->world_size / options->machines};
    fsdp__subscriber *subscriber;
    uint64_t heard = 0;
    fsdp_status status;

    for (size_t i = 0; i < FSDP__COUNT_OF(points); i++)
        heard |= FSDP__POINT_BIT(points[i]);
    if (options->moments)
        heard |= FSDP__POINT_BIT(FSDP__POINT_MEMORY_COUNTED);
    r.share = share_of(options->prices, run->config, r.machine_ranks);
    r.timeline.launch = options->prices ? options->prices->launch : 0;
    r.timeline.compute = fsdp_device_stream(run->device);
    fsdp_context_comm_stats(run->context, &r.comm);
    subscriber = fsdp__context_subscribe(run->context, heard, hear, &r);
    if (subscriber && options->moments)
        r.status = add_moment(&r);
    status = subscriber ? fsdp__record_step(run, plan->e) : FSDP_NO_MEMORY;
    if (status == FSDP_OK)
        status = r.status;
    if (status == FSDP_OK && options->prices)
        status = note_events(&r);
    fsdp__unsubscribe(subscriber);
    if (status == FSDP_OK)
        finish(&r);
    fsdp__pointer_table_release(&r.places);
    fsdp__free(r.blocks);
    fsdp__timeline_release(&r.timeline);
    return status;
}
