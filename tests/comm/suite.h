/* suite.h - the plain collectives against naive results, for ranks that are threads and ranks that are processes.
 *
 * Every rank can compute what every other one contributes, so each checks all of its own results. */
#pragma once

#include "fsdp/comm.h"
#include "support/test.h"

typedef struct suite {
    fsdp_process_group *group;
    fsdp_stream *stream;
    bool symmetric; /* buffers from fsdp_process_group_alloc, where the group has such memory */
} suite;

/* ---- numbers: small integers are exact in every dtype ---- */

uint16_t suite_bf16(float x);

/* What ranks contribute, in f32 and in the order in which it is added: machine by machine, each machine's sum rounded
 * to `dtype`. */
typedef struct suite_sum {
    int ranks;
    fsdp_dtype dtype;
    bool any;
    float value; /* after the end */
    int machine, of_machine_count;
    float of_machine;
} suite_sum;

void suite_sum_add(suite_sum *sum, int rank, float x);
void suite_sum_end(suite_sum *sum);

/* ---- buffers ---- */

void suite_sync(const suite *s);

/* ---- one collective each ---- */

/* The order of addition shows in the last bits of an f32 sum. */
void suite_rank_order(const suite *s, int64_t count);

/* ---- a call that is named, for tests that make it in two ways ---- */

typedef enum plain {
    GATHER,
    SCATTER,
    REDUCE,
    BROADCAST,
    SWAP,
    PLAINS
} plain;

typedef struct plain_call {
    plain what;
    fsdp_dtype dtype;
    int64_t count;
    fsdp_reduce_op op;
} plain_call;

/* The last rank broadcasts. */
fsdp_status plain_make(const plain_call *c, fsdp_process_group *group, void *send, void *recv, fsdp_stream *stream);

/* ---- all of them ---- */

void suite_plain_count(const suite *s, fsdp_dtype dtype, int64_t count);
/* Small, staged in several pieces, and never a round number. */
void suite_plain(const suite *s);
void suite_objects(fsdp_process_group *group);

/* Sets n elements to a rank's values of 0, 1, ...; after 4099 they come again, so that many cost little. */
void suite_fill(fsdp_dtype dtype, void *p, int64_t n, double (*value)(int rank, int64_t i), int rank);
