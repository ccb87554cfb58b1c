/* fsdp/trace.h - shows where the time and the memory of a loop go.
 *
 * A trace is a file that Perfetto (ui.perfetto.dev) and chrome://tracing open: every kernel, copy, collective, wait,
 * gather, optimizer step, batch and part of a checkpoint of every rank, with names, bytes and operations, and the
 * device's memory by kind, all on one clock:
 *
 *     fsdp_trace *trace = NULL;
 *
 *     FSDP_TRY(fsdp_trace_begin(context, "step.json.gz", NULL, &trace));
 *     for (int step = 0; step < 3; step++)
 *         FSDP_TRY(take_a_step());
 *     FSDP_TRY(fsdp_trace_end(trace));
 *
 * `fsdp train` does this for metrics.trace; docs/train.md says what the rows mean. Nothing is slower while no trace
 * records.
 */
#ifndef FSDP_TRACE_H
#define FSDP_TRACE_H

#include "fsdp/context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_trace fsdp_trace;

typedef struct fsdp_trace_options {
    /* Memory of each rank for its events, of 56 bytes each; 0: 64 MiB. Events that no longer fit are left out, and the
     * file and the log say how many. */
    int64_t most_bytes;
    /* A name that tells this run from others; `otherData` of the file has it as "run". Only rank 0's counts. NULL:
     * none. */
    const char *run;
} fsdp_trace_options;

/* Begins to record what the context's ranks do. At the end rank 0 alone writes `path`, compressed by gzip if it ends in
 * ".gz", otherwise as plain JSON. A trace that is there already is replaced, and any other file refused. `options` may
 * be NULL. On several machines their clocks are compared, by a few barriers. The names of modules are known from the
 * sharding of units; what else runs is shown by its kernels. There is one trace at a time in a context (FSDP_STATE);
 * end it before the context is freed. [collective] [blocks] */
FSDP_API fsdp_status fsdp_trace_begin(fsdp_context *context, const char *path, const fsdp_trace_options *options,
                                      fsdp_trace **out);
/* Pauses the recording, or resumes it, for steps that are not of interest. Call it while the device has nothing to
 * do. */
FSDP_API void fsdp_trace_pause(fsdp_trace *trace, bool paused);
/* Ends the recording, collects what all ranks have recorded, and writes the file; the trace is gone, also on failure.
 * If the file cannot be written, all ranks get that failure, nothing is left of it, and a file that was there before
 * stays. If ranks are missing, the call fails, and rank 0 writes what it has recorded itself; the file says so.
 * [collective] [blocks] */
FSDP_API fsdp_status fsdp_trace_end(fsdp_trace *trace);
/* Ends it without the other ranks, as after a failure: rank 0 writes what it has recorded itself. NULL is allowed. */
FSDP_API void fsdp_trace_abandon(fsdp_trace *trace);

#ifdef __cplusplus
}
#endif
#endif
