/* count_step.c - counts what a step brings, as a subscriber of its context (base/probe.h): after each change of a unit
 * the counters show what it has brought. */
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "device/kernels.h"
#include "explain/explain.h"
#include "nn/module.h"
#include "shard/state/module_state.h"
#include "train/run_steps.h"

typedef struct recorder {
    fsdp_explanation *e;
    fsdp_context *context;
    fsdp_device *device;
    const fsdp__module_state **states; /* one per unit */
    fsdp_explained_event *events;
    int64_t event_count, capacity;
    int64_t *life_capacity;    /* one per unit */
    int64_t *open, open_count; /* units whose forward or backward is going on, the innermost last */
    int64_t microbatch;
    fsdp_explained_phase phase;
    const fsdp_train_run *run;
    fsdp_comm_stats comm; /* at the previous event, without the team's */
    int64_t flops, charged;
    int64_t forwards;
    fsdp_explained_unit *began; /* the units, as they were when the microbatch began that stands for others */
    int64_t began_flops;
    fsdp_status status;
} recorder;

static fsdp_explained_unit *unit_of(const recorder *r, int64_t index)
{
    return (fsdp_explained_unit *)(uintptr_t)&r->e->units[index];
}

/* ---- lives ---- */

static fsdp_explained_life *last_life(const recorder *r, int64_t unit)
{
    const fsdp_explained_unit *u = unit_of(r, unit);

    return u->life_count ? (fsdp_explained_life *)(uintptr_t)&u->lives[u->life_count - 1] : NULL;
}

static bool is_live(const fsdp_explained_life *life)
{
    return life && life->end < 0;
}

static fsdp_status begin_life(recorder *r, int64_t unit)
{
    fsdp_explained_unit *u = unit_of(r, unit);
    fsdp_explained_life *lives = (fsdp_explained_life *)(uintptr_t)u->lives;

    if (is_live(last_life(r, unit)))
        return FSDP_OK;
    FSDP_TRY(fsdp__grow(&lives, u->life_count, &r->life_capacity[unit], sizeof *lives));
    u->lives = lives;
    lives[u->life_count++] = (fsdp_explained_life){.begin = r->event_count, .end = -1, .ahead = true};
    return FSDP_OK;
}

static void end_life(const recorder *r, int64_t unit, int64_t at)
{
    fsdp_explained_life *life = last_life(r, unit);

    if (!is_live(life))
        return;
    life->end = at;
    life->flops = (double)r->flops - r->events[life->begin].flops;
}

static void drop_lives(const recorder *r)
{
    for (int64_t i = 0; i < r->e->unit_count; i++) {
        fsdp_explained_unit *u = unit_of(r, i);

        fsdp__free((fsdp_explained_life *)(uintptr_t)u->lives);
        u->lives = NULL;
        u->life_count = 0;
    }
}

/* ---- what has happened since the previous event ---- */

/* Gets the counters of what is sent for units: not for activations that ranks of a team exchange. */
static void count_units(const recorder *r, fsdp_comm_stats *out)
{
    fsdp_comm_stats team;

    fsdp_context_comm_stats(r->context, out);
    fsdp__team_stats(r->run, &team);
    for (int kind = 0; kind < FSDP_COLLECTIVES; kind++) {
        out->calls[kind] -= team.calls[kind];
        out->bytes_sent[kind] -= team.bytes_sent[kind];
    }
}

/* Charges what has happened to its unit. A gather is issued after its event, a reduction before it. */
static void charge(recorder *r, int64_t unit, fsdp_shard_event event)
{
    bool reduces = event == FSDP_EVENT_REDUCE || r->phase == FSDP_PHASE_BACKWARD;
    fsdp_comm_stats now;

    count_units(r, &now);
    if (r->open_count > 0)
        unit_of(r, r->open[r->open_count - 1])->flops += (double)(r->flops - r->charged);
    r->charged = r->flops;
    if (r->event_count > 0) {
        const fsdp_explained_event *before = &r->events[r->event_count - 1];
        fsdp_explained_life *life = last_life(r, before->unit);
        int64_t bytes = now.bytes_sent[FSDP_ALL_GATHER] - r->comm.bytes_sent[FSDP_ALL_GATHER];

        if (before->event == FSDP_EVENT_UNSHARD) {
            unit_of(r, before->unit)->gathers += now.calls[FSDP_ALL_GATHER] - r->comm.calls[FSDP_ALL_GATHER];
            unit_of(r, before->unit)->gathered_bytes += bytes;
            if (life)
                life->bytes += bytes;
        }
    }
    /* Buckets are sent during the backward of a unit, which is the innermost open one. */
    if (event != FSDP_EVENT_REDUCE && r->open_count > 0)
        unit = r->open[r->open_count - 1];
    for (int kind = FSDP_REDUCE_SCATTER; kind <= FSDP_ALL_REDUCE && reduces; kind++) {
        unit_of(r, unit)->reductions += now.calls[kind] - r->comm.calls[kind];
        unit_of(r, unit)->reduced_bytes += now.bytes_sent[kind] - r->comm.bytes_sent[kind];
    }
    r->comm = now;
}

/* ---- who computes ---- */

static void leave(recorder *r, int64_t unit)
{
    for (int64_t i = r->open_count; i-- > 0;)
        if (r->open[i] == unit) {
            memmove(&r->open[i], &r->open[i + 1], (size_t)(--r->open_count - i) * sizeof *r->open);
            return;
        }
}

static void follow(recorder *r, int64_t unit, fsdp_shard_event event)
{
    fsdp_explained_life *life = last_life(r, unit);
    bool enters = event == FSDP_EVENT_PRE_FORWARD || event == FSDP_EVENT_PRE_BACKWARD;

    if (event == FSDP_EVENT_PRE_FORWARD && unit == 0) {
        r->microbatch++;
        r->phase = FSDP_PHASE_FORWARD;
    }
    if (r->phase == FSDP_PHASE_OPTIMIZER && (event == FSDP_EVENT_POST_BACKWARD || event == FSDP_EVENT_REDUCE)) {
        for (int64_t i = r->event_count; i-- > 0 && r->events[i].phase == FSDP_PHASE_OPTIMIZER;)
            r->events[i].phase = FSDP_PHASE_BACKWARD; /* the root was not the last one */
        r->phase = FSDP_PHASE_BACKWARD;
    }
    if (enters || event == FSDP_EVENT_POST_FORWARD || event == FSDP_EVENT_POST_BACKWARD)
        leave(r, unit);
    if (enters)
        r->open[r->open_count++] = unit;
    if (event == FSDP_EVENT_WAIT && is_live(life) && life->begin == r->event_count - 1)
        life->ahead = false; /* nothing came in between */
}

/* ---- what the recorder hears ---- */

/* Adds the operations of a product that was launched on the device. */
static void add_flops(const fsdp_device *device, const fsdp__probe_event *e, int64_t *flops)
{
    if (fsdp__stream_device(e->stream) == device && e->kind < FSDP__KERNELS)
        *flops += fsdp__kernel_flops((fsdp__kernel)e->kind, e->object);
}

static void add_event(recorder *r, const fsdp__module_state *state, fsdp_shard_event event)
{
    fsdp_explained_event *out;
    fsdp_memory_stats memory;
    int64_t unit = 0;

    while (unit < r->e->unit_count && r->states[unit] != state)
        unit++;
    if (unit == r->e->unit_count || r->status != FSDP_OK)
        return;
    charge(r, unit, event);
    follow(r, unit, event);
    if (event == FSDP_EVENT_UNSHARD)
        r->status = begin_life(r, unit);
    if (r->status == FSDP_OK && fsdp__grow(&r->events, r->event_count, &r->capacity, sizeof *r->events))
        r->status = FSDP_NO_MEMORY;
    if (r->status != FSDP_OK)
        return;
    if (event == FSDP_EVENT_RESHARD)
        end_life(r, unit, r->event_count);
    out = &r->events[r->event_count++];
    r->e->events = r->events;
    r->e->event_count = r->event_count;
    *out = (fsdp_explained_event){event, r->phase, unit, FSDP__MAX(r->microbatch, 0), (double)r->flops, {0}};
    fsdp_device_memory(r->device, &memory);
    memcpy(out->live_bytes, memory.live_bytes, sizeof out->live_bytes);
    if (event == FSDP_EVENT_POST_FORWARD && unit == 0)
        r->phase = FSDP_PHASE_BACKWARD;
    if ((event == FSDP_EVENT_POST_BACKWARD || event == FSDP_EVENT_REDUCE) && r->open_count == 0 &&
        r->microbatch == r->e->microbatches - 1)
        r->phase = FSDP_PHASE_OPTIMIZER;
}

/* Adds to a counter, of the microbatch that stands for those that are passed over, what they bring. */
#define PASS_OVER(r, now, began) ((now) += (r)->run->passed_over * ((now) - (began)))

/* Counts what was passed over for each unit and for the step. */
static void pass_over(recorder *r)
{
    int64_t flops = r->flops;

    for (int64_t i = 0; i < r->e->unit_count; i++) {
        fsdp_explained_unit *u = unit_of(r, i);

        PASS_OVER(r, u->gathers, r->began[i].gathers);
        PASS_OVER(r, u->gathered_bytes, r->began[i].gathered_bytes);
        PASS_OVER(r, u->reductions, r->began[i].reductions);
        PASS_OVER(r, u->reduced_bytes, r->began[i].reduced_bytes);
        u->flops += (double)r->run->passed_over * (u->flops - r->began[i].flops);
    }
    PASS_OVER(r, r->flops, r->began_flops);
    r->charged += r->flops - flops;
    r->microbatch += r->run->passed_over;
}

static void see_stage(recorder *r, const fsdp__probe_event *e)
{
    fsdp__alike at = fsdp__alike_at(r->run, e, &r->forwards);

    if (at == FSDP__ALIKE_BEGINS) {
        memcpy(r->began, r->e->units, (size_t)r->e->unit_count * sizeof *r->began);
        r->began_flops = r->flops;
    } else if (at == FSDP__ALIKE_ENDS)
        pass_over(r);
}

static fsdp_status see(void *arg, fsdp__probe_event *e)
{
    recorder *r = arg;

    if (e->point == FSDP__POINT_STAGE_BEGUN)
        see_stage(r, e);
    else if (e->point == FSDP__POINT_SHARD_CHANGED)
        add_event(r, e->object, (fsdp_shard_event)e->kind);
    else
        add_flops(r->device, e, &r->flops);
    return FSDP_OK;
}

/* ---- steps ---- */

fsdp_status fsdp__settle_steps(fsdp_train_run *run)
{
    for (int i = 0; i < FSDP__STEPS_TO_SETTLE; i++)
        FSDP_TRY(fsdp_train_step(run, NULL));
    return FSDP_OK;
}

fsdp__alike fsdp__alike_at(const fsdp_train_run *run, const fsdp__probe_event *e, int64_t *forwards)
{
    int64_t before;

    if (run->passed_over == 0 || strcmp(e->name, "forward") != 0)
        return FSDP__ALIKE_ELSEWHERE;
    before = (*forwards)++;
    return before == FSDP__MICROBATCHES_TAKEN - 1 ? FSDP__ALIKE_BEGINS
           : before == FSDP__MICROBATCHES_TAKEN   ? FSDP__ALIKE_ENDS
                                                  : FSDP__ALIKE_ELSEWHERE;
}

/* What counters show at one time. */
typedef struct counters {
    fsdp_comm_stats comm, team;
    int64_t flops;
} counters;

typedef struct counting {
    const fsdp_train_run *run;
    int64_t forwards;
    counters now, begins, ends; /* begins, ends: of the microbatch that stands for others */
} counting;

static void read_counters(counting *c)
{
    fsdp_context_comm_stats(c->run->context, &c->now.comm);
    fsdp__team_stats(c->run, &c->now.team);
}

static fsdp_status hear_count(void *arg, fsdp__probe_event *e)
{
    counting *c = arg;
    fsdp__alike at = FSDP__ALIKE_ELSEWHERE;

    if (e->point == FSDP__POINT_KERNEL_ISSUED)
        add_flops(c->run->device, e, &c->now.flops);
    else
        at = fsdp__alike_at(c->run, e, &c->forwards);
    if (at == FSDP__ALIKE_ELSEWHERE)
        return FSDP_OK;
    read_counters(c);
    *(at == FSDP__ALIKE_BEGINS ? &c->begins : &c->ends) = c->now;
    return FSDP_OK;
}

/* Runs a step, and counts. */
static fsdp_status step(counting *c)
{
    uint64_t heard = FSDP__POINT_BIT(FSDP__POINT_KERNEL_ISSUED) | FSDP__POINT_BIT(FSDP__POINT_STAGE_BEGUN);
    fsdp__subscriber *counter = fsdp__context_subscribe(c->run->context, heard, hear_count, c);
    fsdp_status status = counter ? fsdp_train_step((fsdp_train_run *)(uintptr_t)c->run, NULL) : FSDP_NO_MEMORY;

    fsdp__unsubscribe(counter);
    read_counters(c);
    return status;
}

/* Measures a step. What fsdp_train_step itself resets and adds up is the same as in a run. */
static fsdp_status measure(fsdp_train_run *run, fsdp_explained_step *out)
{
    counting c = {.run = run};
    counters before;
    fsdp_memory_stats memory;

    fsdp_device_memory(run->device, &memory);
    read_counters(&c);
    before = c.now;
    memcpy(out->live_bytes, memory.live_bytes, sizeof out->live_bytes);
    FSDP_TRY(step(&c));
    fsdp_device_memory(run->device, &memory);
    memcpy(out->peak_bytes, memory.peak_bytes, sizeof out->peak_bytes);
    out->peak_total_bytes = memory.peak_without_workspace_bytes;
    out->peak_with_workspace_bytes = memory.peak_total_bytes;
    out->reserved_bytes = fsdp__device_host_access(run->device) ? 0 : memory.reserved_bytes;
#define COUNTED(field) (c.now.field - before.field + run->passed_over * (c.ends.field - c.begins.field))
    out->flops = (double)COUNTED(flops);
    for (int kind = 0; kind < FSDP_COLLECTIVES; kind++) {
        out->calls[kind] = COUNTED(comm.calls[kind]);
        out->bytes_sent[kind] = COUNTED(comm.bytes_sent[kind]);
        out->team_calls[kind] = COUNTED(team.calls[kind]);
        out->team_bytes_sent[kind] = COUNTED(team.bytes_sent[kind]);
        out->network.sent[kind] = COUNTED(comm.network_sent[kind]);
        out->network.received[kind] = COUNTED(comm.network_received[kind]);
        out->network.messages[kind] = COUNTED(comm.network_messages[kind]);
    }
#undef COUNTED
    return FSDP_OK;
}

fsdp_status fsdp__measure_step(fsdp_train_run *run, fsdp_explained_step *out)
{
    FSDP_TRY(fsdp__settle_steps(run));
    return measure(run, out);
}

static fsdp_status add_module(void *arg, fsdp_module *module, const char *name)
{
    recorder *r = arg;

    (void)name;
    if (fsdp__explain_is_unit(module))
        r->states[r->open_count++] = fsdp__module_state_of(module);
    return FSDP_OK;
}

static fsdp_status open_recorder(recorder *r, fsdp_train_run *run)
{
    size_t units = (size_t)r->e->unit_count + 1;

    r->states = fsdp__calloc(units, sizeof(fsdp__module_state *));
    r->life_capacity = fsdp__calloc(units, sizeof *r->life_capacity);
    r->open = fsdp__calloc(units, sizeof *r->open);
    r->began = fsdp__calloc(units, sizeof *r->began);
    FSDP__TRY_NEW(r->states && r->life_capacity && r->open && r->began);
    FSDP_TRY(fsdp__module_walk(run->model, add_module, r));
    r->open_count = 0;
    count_units(r, &r->comm);
    return FSDP_OK;
}

fsdp_status fsdp__record_step(fsdp_train_run *run, fsdp_explanation *e)
{
    recorder r = {.e = e, .run = run, .context = run->context, .device = run->device, .microbatch = -1};
    fsdp__subscriber *subscriber = NULL;
    fsdp_status status;

    FSDP_TRY_GOTO(status, open_recorder(&r, run), out);
    subscriber = fsdp__context_subscribe(run->context,
                                         FSDP__POINT_BIT(FSDP__POINT_SHARD_CHANGED) |
                                             FSDP__POINT_BIT(FSDP__POINT_KERNEL_ISSUED) |
                                             FSDP__POINT_BIT(FSDP__POINT_STAGE_BEGUN),
                                         see, &r);
    FSDP_TRY_GOTO(status, subscriber ? measure(run, &e->step) : FSDP_NO_MEMORY, out);
    for (int64_t i = 0; i < e->unit_count; i++)
        end_life(&r, i, r.event_count);
    if (e->step.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER] == 0) /* every rank has everything: nothing came and went */
        drop_lives(&r);
    status = r.status;
out:
    fsdp__unsubscribe(subscriber);
    FSDP__FREE_ALL(r.states, r.life_capacity, r.open, r.began);
    return status;
}
