/* rank_gpu.h - ranks that have a fake GPU of their own each, and exchange by NCCL. */
#pragma once

#include "fsdp/comm.h"
#include "support/ranks.h"

typedef struct rank_gpu {
    fsdp_context *context;
    fsdp_process_group *group; /* the world */
    fsdp_device *device;
    fsdp_stream *stream;
    int rank, size;
} rank_gpu;

rank_gpu rank_gpu_open(fsdp_context *context);
/* Waits for the stream, whose work may have failed. */
void rank_gpu_close(const rank_gpu *g);
/* Memory of the GPU, with the host's bytes (NULL: with nothing yet). */
void *rank_gpu_new(const rank_gpu *g, const void *host, size_t bytes);
void rank_gpu_free(const rank_gpu *g, void *data, size_t bytes);
/* Runs `body` on threads, with eight GPUs. */
void rank_gpu_run(int world, test_rank_body body, void *arg);
