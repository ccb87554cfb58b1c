/* ring_visits.h - brings keys and values of each rank to all others, in turn, and adds up their gradients.
 *
 * With a side stream the next turn is on its way while one is computed, and what the last one has made is added up: a
 * rank holds the keys and values of two other ranks, and has sent gradients of two. Without a side stream each comes
 * when it is its turn, and a rank holds those of one. */
#pragma once

#include "parallel/side_stream.h"
#include "tensor/tensor.h"

enum {
    FSDP__VISITS_AHEAD = 2
};

/* The ranks. */
typedef struct fsdp__visitors {
    fsdp__route route; /* of what travels */
    int64_t ranks, rank;
} fsdp__visitors;

/* Holds what travels in turn. Tensors are of the scope. */
typedef struct fsdp__visits {
    const fsdp__visitors *visitors;
    fsdp_tensor *kv[2]; /* this rank's keys and values: (B,T,G,D) */
    fsdp_tensor *both[FSDP__VISITS_AHEAD];
} fsdp__visits;

/* Returns for how many turns there is memory at once. */
int64_t fsdp__visits_ahead(const fsdp__visitors *visitors);
/* Returns which of these memories the turn of a rank uses. */
int64_t fsdp__visit_place(const fsdp__visitors *visitors, int64_t of);
/* Makes keys or values (or their gradients) a view (B,T,G,D) of memory of both, (2,B,T,G,D). */
fsdp_tensor *fsdp__side_of(fsdp_tensor *both, int64_t which);

/* Takes memory and sends for the first keys and values. Turns are then begun and ended in the order of the ranks. After
 * a failure of anything, fsdp__side_stream_settled comes before the memory is given back. [collective] */
fsdp_status fsdp__visits_begin(const fsdp__visitors *visitors, fsdp_tensor *k, fsdp_tensor *v, fsdp__visits *out);
/* Gives the keys and values of the rank whose turn it is. */
fsdp_status fsdp__visit_begin(const fsdp__visits *visits, int64_t of, fsdp_tensor *their[2]);
/* Ends the turn: nobody reads these keys and values any more. Sends for the next ones. [collective] */
fsdp_status fsdp__visit_end(const fsdp__visits *visits, int64_t of);

/* Adds up, as fsdp__wire_reduce_part, what a turn has made. [collective] */
fsdp_status fsdp__visit_add_up(const fsdp__visitors *visitors, int64_t of, const fsdp_tensor *made, fsdp_tensor *sums);
/* Waits for the last sums of what lies at a place, if there were any. */
fsdp_status fsdp__visit_await_sums(const fsdp__visitors *visitors, int64_t place, const fsdp_tensor *sums);
