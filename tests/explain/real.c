/* real.c - the same step, taken. */
#include "explain/real.h"

#include <string.h>

/* The test's configs ask for so many. */
enum {
    STEPS = 3
};

static void keep_step(const fsdp_device *device, const fsdp_memory_stats *before, const fsdp_comm_stats *comm_before,
                      fsdp_explained_step *out)
{
    fsdp_memory_stats memory;
    fsdp_comm_stats comm;

    fsdp_device_memory(device, &memory);
    fsdp_context_comm_stats(fsdp_device_context(device), &comm);
    memcpy(out->live_bytes, before->live_bytes, sizeof out->live_bytes);
    memcpy(out->peak_bytes, memory.peak_bytes, sizeof out->peak_bytes);
    out->peak_total_bytes = memory.peak_without_workspace_bytes;
    for (int kind = 0; kind < FSDP_COLLECTIVES; kind++) {
        out->calls[kind] = comm.calls[kind] - comm_before->calls[kind];
        out->bytes_sent[kind] = comm.bytes_sent[kind] - comm_before->bytes_sent[kind];
        out->network.sent[kind] = comm.network_sent[kind] - comm_before->network_sent[kind];
        out->network.received[kind] = comm.network_received[kind] - comm_before->network_received[kind];
        out->network.messages[kind] = comm.network_messages[kind] - comm_before->network_messages[kind];
    }
}

void real_steps(fsdp_context *context, real_step step, void *arg, real_result *out)
{
    fsdp_device *device = fsdp_cpu(context);
    fsdp_memory_stats memory;
    fsdp_comm_stats comm;

    for (int i = 0; i < STEPS; i++) {
        fsdp_device_memory(device, &memory);
        fsdp_context_comm_stats(context, &comm);
        fsdp_device_reset_peak(device);
        step(arg);
    }
    keep_step(device, &memory, &comm, &out->steps[fsdp_context_rank(context)]);
}

/* ---- fsdp train ---- */

static void train_step(void *run)
{
    CHECK_OK(fsdp_train_step(run, NULL));
}

static void train(fsdp_context *context, void *arg)
{
    real_result *out = arg;
    fsdp_train_run *run = NULL;

    CHECK_OK(fsdp_train_run_create(context, out->config, &run));
    real_steps(context, train_step, run, out);
    CHECK_OK(fsdp_module_shard_map(fsdp_train_run_model(run), &out->maps[fsdp_context_rank(context)]));
    fsdp_train_run_free(run);
}

void real_train(int world, const fsdp_train_config *config, real_result *out)
{
    out->config = config;
    if (out->machines > 0)
        test_run_machines(out->machines, world / out->machines, out->one_level, train, out);
    else
        test_run_ranks(world, train, out);
}

void real_release(real_result *result)
{
    for (int rank = 0; rank < REAL_WORLDS; rank++)
        fsdp_shard_map_release(&result->maps[rank]);
}

/* ---- the comparison ---- */

static void check_step(const fsdp_explained_step *said, const fsdp_explained_step *was)
{
    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++) {
        if (kind == FSDP_MEMORY_WORKSPACE)
            continue; /* kernels' scratch */
        CHECK_EQ(said->live_bytes[kind], was->live_bytes[kind]);
        CHECK_EQ(said->peak_bytes[kind], was->peak_bytes[kind]);
    }
    CHECK_EQ(said->peak_total_bytes, was->peak_total_bytes);
    for (int kind = 0; kind < FSDP_COLLECTIVES; kind++) {
        CHECK_EQ(said->calls[kind], was->calls[kind]);
        CHECK_EQ(said->bytes_sent[kind], was->bytes_sent[kind]);
    }
}

static void check_network(const fsdp_explained_network *said, const fsdp_explained_network *was)
{
    for (int kind = 0; kind < FSDP_COLLECTIVES; kind++) {
        CHECK_EQ(said->sent[kind], was->sent[kind]);
        CHECK_EQ(said->received[kind], was->received[kind]);
        CHECK_EQ(said->messages[kind], was->messages[kind]);
    }
}

/* All ranks of the machine together. */
static void check_machine(const fsdp_explanation *e, const real_result *was)
{
    int ranks = e->world_size / e->machines, first = e->rank / ranks * ranks;
    fsdp_explained_network sum = {.sent = {0}};

    for (int rank = first; rank < first + ranks; rank++)
        for (int kind = 0; kind < FSDP_COLLECTIVES; kind++) {
            sum.sent[kind] += was->steps[rank].network.sent[kind];
            sum.received[kind] += was->steps[rank].network.received[kind];
            sum.messages[kind] += was->steps[rank].network.messages[kind];
        }
    check_network(&e->machine, &sum);
    CHECK(sum.sent[FSDP_ALL_GATHER] + sum.sent[FSDP_ALL_REDUCE] > 0);
}

/* What is called, and sent, for units: not within a team. */
static int64_t calls(const fsdp_explanation *e, fsdp_collective kind)
{
    return e->step.calls[kind] - e->step.team_calls[kind];
}

static int64_t bytes(const fsdp_explanation *e, fsdp_collective kind)
{
    return e->step.bytes_sent[kind] - e->step.team_bytes_sent[kind];
}

/* What each unit is said to have gathered and reduced is what the step has. All-reduces may be the norm's. */
static void check_units(const fsdp_explanation *e)
{
    int64_t gathers = 0, gathered = 0, reductions = 0, reduced = 0, numel = 0;
    double flops = 0;

    for (int64_t i = 0; i < e->unit_count; i++) {
        const fsdp_explained_unit *u = &e->units[i];

        gathers += u->gathers;
        gathered += u->gathered_bytes;
        reductions += u->reductions;
        reduced += u->reduced_bytes;
        numel += u->numel;
        flops += u->flops;
        for (int64_t k = 0; k < u->life_count; k++)
            CHECK(u->lives[k].begin < u->lives[k].end && u->lives[k].end <= e->event_count);
    }
    CHECK_EQ(numel, e->numel);
    CHECK_EQ(gathers, calls(e, FSDP_ALL_GATHER));
    CHECK_EQ(gathered, bytes(e, FSDP_ALL_GATHER));
    CHECK(reductions >= calls(e, FSDP_REDUCE_SCATTER));
    CHECK(reductions <= calls(e, FSDP_REDUCE_SCATTER) + calls(e, FSDP_ALL_REDUCE));
    CHECK(reduced >= bytes(e, FSDP_REDUCE_SCATTER));
    CHECK(flops > 0 && flops <= e->step.flops);
    if (e->world_size > 1)
        CHECK(reductions > 0 && reduced > 0);
}

static void check_parts(const fsdp_explanation *e, const real_result *was)
{
    for (int rank = 0; rank < e->part_count; rank++) {
        const fsdp_shard_map *map = &was->maps[rank];

        CHECK_EQ(e->parameter_count, map->count);
        for (int64_t i = 0; i < map->count; i++) {
            const fsdp_explained_parameter *p = &e->parameters[i];

            CHECK_STRING(p->name, map->items[i].name);
            CHECK_STRING(e->units[p->unit].name, map->items[i].unit);
            CHECK_EQ(p->dim, map->items[i].dim);
            CHECK_EQ(p->parts[rank].first, map->items[i].first);
            CHECK_EQ(p->parts[rank].count, map->items[i].count);
            CHECK_EQ(p->parts[rank].numel, map->items[i].local_numel);
        }
    }
}

void real_compare(int world, const fsdp_explain_model *model, const fsdp_train_config *config, const real_result *was)
{
    for (int rank = 0; rank < world; rank++) {
        fsdp_explanation *e = NULL;

        CHECK_OK(
            fsdp_explain(model, config,
                         &(fsdp_explain_options){
                             .world_size = world, .rank = rank, .machines = was->machines, .one_level = was->one_level},
                         &e));
        CHECK_EQ(e->world_size, world);
        if (was->machines > 0) {
            check_network(&e->step.network, &was->steps[rank].network);
            check_machine(e, was);
        }
        CHECK_EQ(e->part_count, world);
        check_step(&e->step, &was->steps[rank]);
        check_units(e);
        check_parts(e, was);
        fsdp_explanation_free(e);
    }
}
