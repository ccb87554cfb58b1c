/* meter.c - what a step cost, and its loss over all ranks. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "train/run.h"

void fsdp__meter_begin(fsdp__meter *meter, fsdp_device *device)
{
    fsdp_device_reset_peak(device);
    fsdp_context_comm_stats(fsdp_device_context(device), &meter->comm);
    meter->began_ns = fsdp__clock_ns();
}

void fsdp__meter_end(const fsdp__meter *meter, fsdp_device *device, int64_t tokens, fsdp_train_report *report)
{
    static const fsdp_collective counted[] = {FSDP_ALL_GATHER, FSDP_REDUCE_SCATTER, FSDP_ALL_REDUCE, FSDP_BROADCAST,
                                              FSDP_ALL_TO_ALL};
    double seconds = (double)(fsdp__clock_ns() - meter->began_ns) * 1e-9;
    fsdp_memory_stats memory;
    fsdp_comm_stats comm;

    fsdp_device_memory(device, &memory);
    fsdp_context_comm_stats(fsdp_device_context(device), &comm);
    report->step_ms = seconds * 1e3;
    report->tokens_per_second = (double)tokens / seconds;
    report->memory_live_bytes = memory.live_total_bytes;
    report->memory_peak_bytes = memory.peak_total_bytes;
    report->all_gather = comm.calls[FSDP_ALL_GATHER] - meter->comm.calls[FSDP_ALL_GATHER];
    report->reduce_scatter = comm.calls[FSDP_REDUCE_SCATTER] - meter->comm.calls[FSDP_REDUCE_SCATTER];
    report->all_reduce = comm.calls[FSDP_ALL_REDUCE] - meter->comm.calls[FSDP_ALL_REDUCE];
    report->bytes_sent = 0;
    for (size_t i = 0; i < sizeof counted / sizeof counted[0]; i++)
        report->bytes_sent += comm.bytes_sent[counted[i]] - meter->comm.bytes_sent[counted[i]];
}

fsdp_status fsdp__mean_over_ranks(fsdp_context *context, double mine, double *mean)
{
    fsdp_process_group *world = fsdp_world(context);
    int ranks = fsdp_context_world_size(context);
    void **all = NULL;
    size_t *bytes = NULL;
    double sum = 0;

    if (ranks == 1) {
        *mean = mine;
        return FSDP_OK;
    }
    if (!world)
        return fsdp_last_status();
    FSDP_TRY(fsdp_gather_objects(world, &mine, sizeof mine, &all, &bytes));
    /* In rank order, so that every rank has the same bits. */
    for (int rank = 0; rank < ranks; rank++) {
        double other = NAN;

        if (bytes[rank] == sizeof other)
            memcpy(&other, all[rank], sizeof other);
        sum += other;
    }
    fsdp_objects_free(world, all, bytes);
    *mean = sum / ranks;
    return FSDP_OK;
}
