/* meter.c - measures what a step costs, and computes its loss over all ranks. */
#include <string.h>

#include "base/clock.h"
#include "base/compiler.h"
#include "base/hash.h"
#include "train/mfu.h"
#include "train/run_config.h"
#include "train/run_steps.h"

/* Adds `sign` times the counters of `other`. */
static void combine(fsdp_comm_stats *stats, const fsdp_comm_stats *other, int64_t sign)
{
    for (int kind = 0; kind < FSDP_COLLECTIVES; kind++) {
        stats->calls[kind] += sign * other->calls[kind];
        stats->bytes_sent[kind] += sign * other->bytes_sent[kind];
        stats->bytes_moved[kind] += sign * other->bytes_moved[kind];
        stats->network_sent[kind] += sign * other->network_sent[kind];
        stats->network_received[kind] += sign * other->network_received[kind];
        stats->network_messages[kind] += sign * other->network_messages[kind];
        for (int op = 0; op < FSDP_REDUCE_OPS; op++)
            stats->calls_of[kind][op] += sign * other->calls_of[kind][op];
    }
}

/* Asks for the exposed time. With one rank a GPU waits for no other, so the host need not wait for its stamps. */
static fsdp_status ask_exposed(const fsdp_train_run *run, int64_t *gather_ns, int64_t *reduce_ns)
{
    *gather_ns = *reduce_ns = 0;
    return run->ahead.device ? FSDP_OK : fsdp_module_exposed_time(run->model, gather_ns, reduce_ns);
}

fsdp_status fsdp__meter_begin(fsdp__meter *meter, const fsdp_train_run *run)
{
    fsdp_device_reset_peak(run->device);
    fsdp_context_comm_stats(run->context, &meter->comm);
    fsdp__team_stats(run, &meter->team);
    FSDP_TRY(ask_exposed(run, &meter->gather_ns, &meter->reduce_ns));
    meter->data_ns = run->data_ns;
    meter->tokens = run->load.tokens;
    meter->began_ns = fsdp__clock_ns();
    return FSDP_OK;
}

void fsdp__team_stats(const fsdp_train_run *run, fsdp_comm_stats *out)
{
    const fsdp_mesh *const meshes[] = {run->meshes.tp, run->meshes.cp};
    fsdp_comm_stats own;

    *out = (fsdp_comm_stats){.calls = {0}};
    for (size_t i = 0; i < FSDP__COUNT_OF(meshes); i++)
        if (meshes[i]) {
            fsdp_process_group_stats(fsdp_mesh_process_group(meshes[i], 0), &own);
            combine(out, &own, 1);
        }
}

void fsdp__meter_time(const fsdp__meter *meter, const fsdp_train_run *run, fsdp_train_report *report)
{
    double seconds = (double)(fsdp__clock_ns() - meter->began_ns) * 1e-9;

    report->step_ms = seconds * 1e3;
    if (report->left_out) /* almost no time for tokens that were only counted is no speed */
        return;
    report->tokens_per_second = (double)meter->tokens / seconds;
    if (run->has_rows)
        report->padded_tokens_per_second = (double)(run->sequences * run->config->training.seq_len) / seconds;
    if (run->peak_flops > 0)
        report->mfu = report->tokens_per_second / run->peak_flops *
                      fsdp__mfu_of_trained(run, fsdp_model_config_mfu_flops_per_token(&run->model_config,
                                                                                      run->config->training.seq_len));
}

fsdp_status fsdp__meter_end(const fsdp__meter *meter, const fsdp_train_run *run, fsdp_train_report *report)
{
    static const fsdp_collective counted[] = {FSDP_ALL_GATHER, FSDP_REDUCE_SCATTER, FSDP_ALL_REDUCE, FSDP_BROADCAST,
                                              FSDP_ALL_TO_ALL};
    int64_t gather_ns, reduce_ns;
    fsdp_comm_stats team;

    FSDP_TRY(ask_exposed(run, &gather_ns, &reduce_ns));
    fsdp_device_memory(run->device, &report->memory);
    fsdp_context_comm_stats(run->context, &report->comm);
    combine(&report->comm, &meter->comm, -1);
    fsdp__team_stats(run, &team);
    combine(&team, &meter->team, -1);
    report->gather_ms = (double)(gather_ns - meter->gather_ns) * 1e-6;
    report->reduce_ms = (double)(reduce_ns - meter->reduce_ns) * 1e-6;
    report->data_ms = (double)(run->data_ns - meter->data_ns) * 1e-6;
    report->memory_live_bytes = report->memory.live_total_bytes;
    report->memory_peak_bytes = report->memory.peak_total_bytes;
    report->all_gather = report->comm.calls[FSDP_ALL_GATHER];
    report->reduce_scatter = report->comm.calls[FSDP_REDUCE_SCATTER];
    report->all_reduce = report->comm.calls[FSDP_ALL_REDUCE];
    report->broadcast = report->comm.calls[FSDP_BROADCAST];
    report->all_to_all = report->comm.calls[FSDP_ALL_TO_ALL];
    report->bytes_sent = report->team_bytes_sent = report->network_sent = report->network_received = 0;
    for (size_t i = 0; i < sizeof counted / sizeof counted[0]; i++) {
        report->bytes_sent += report->comm.bytes_sent[counted[i]];
        report->team_bytes_sent += team.bytes_sent[counted[i]];
    }
    for (int kind = 0; kind < FSDP_COLLECTIVES; kind++) {
        report->network_sent += report->comm.network_sent[kind];
        report->network_received += report->comm.network_received[kind];
    }
    return FSDP_OK;
}

/* ---- what all ranks tell each other ---- */

static uint64_t hash_in(const fsdp_train_run *run, const double *told)
{
    uint64_t hash;

    memcpy(&hash, told + run->microbatches + FSDP__RANK_TIMES, sizeof hash);
    return hash;
}

void fsdp__note_batch(fsdp_train_run *run, const fsdp_batch *batch)
{
    size_t count = (size_t)(run->config->training.local_batch_size * run->config->training.seq_len);
    uint64_t hash;

    if (fsdp__train_team(run->config) == 1)
        return;
    hash = fsdp__hash_bytes(hash_in(run, run->losses), batch->inputs, count * sizeof *batch->inputs);
    hash = fsdp__hash_bytes(hash, batch->targets, count * sizeof *batch->targets); /* with what is no answer */
    if (batch->positions)
        hash = fsdp__hash_bytes(hash, batch->positions, count * sizeof *batch->positions);
    memcpy(run->losses + run->microbatches + FSDP__RANK_TIMES, &hash, sizeof hash);
}

/* Checks that ranks of a team have had the same batches: what they compute together would be of no text at all, or
 * learned from other answers than it says. */
static fsdp_status check_teams(const fsdp_train_run *run, void *const *all, int ranks)
{
    int together = fsdp__train_team(run->config);

    for (int rank = 0; together > 1 && rank < ranks; rank++) {
        int first = rank - rank % together;

        if (hash_in(run, all[rank]) != hash_in(run, all[first]))
            return FSDP_FAIL(
                FSDP_MISMATCH,
                "ranks %d and %d are of one team, which has the same sequences, but were given different "
                "tokens or answers by step %lld: data.path must hold the same on both, and must not change",
                first, rank, (long long)run->step);
    }
    return FSDP_OK;
}

/* Computes the mean; `all` begins with the losses of each of `ranks` ranks. The loader gives the microbatches of one
 * number to those that have data of their own in turn. */
static double mean_of(const fsdp_train_run *run, void *const *all, int ranks)
{
    int together = fsdp__train_team(run->config); /* have the same losses, as their microbatches are the same */
    double sum = 0;

    for (int64_t micro = 0; micro < run->microbatches; micro++)
        for (int rank = 0; rank < ranks; rank += together)
            sum += ((const double *)all[rank])[micro];
    return sum / ((double)run->microbatches * run->data_ranks);
}

fsdp_status fsdp__mean_loss(fsdp_train_run *run, double *mean)
{
    fsdp_process_group *world = fsdp_world(run->context);
    int ranks = fsdp_context_world_size(run->context);
    void **all = NULL, *mine = run->losses;
    size_t *bytes = NULL, count = (size_t)run->microbatches + FSDP__RANK_TIMES + (fsdp__train_team(run->config) > 1);
    fsdp_status status;

    if (ranks == 1) {
        *mean = mean_of(run, &mine, 1);
        fsdp__notice_ranks(run, &mine, 1);
        return FSDP_OK;
    }
    if (!world)
        return fsdp_last_status();
    FSDP_TRY(fsdp_gather_objects(world, mine, count * sizeof(double), &all, &bytes));
    status = check_teams(run, all, ranks);
    *mean = mean_of(run, all, ranks);
    fsdp__notice_ranks(run, all, ranks);
    fsdp_objects_free(world, all, bytes);
    return status;
}
