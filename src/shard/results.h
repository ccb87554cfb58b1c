/* results.h - where the results of a reduction go. */
#ifndef SHARD_RESULTS_H
#define SHARD_RESULTS_H

#include "shard/reduction.h"

/* Gives every result a place: the gradient that a shard has, a new one, or one that arrives when all is done. The
 * flight holds them. Of a reduction that is not complete there are none. */
fsdp_status fsdp__make_results(fsdp__reduction *r);
/* How many results there are, and whose gradients they are to be: of a flat group's one parameter one. */
int64_t fsdp__result_count(const fsdp__reduction *r);
fsdp_tensor *fsdp__result_shard(const fsdp__reduction *r, int64_t i);
/* Where the reduction writes what params[i] gets of it, and in which dtype. */
void *fsdp__result_place(const fsdp__reduction *r, int64_t i);
fsdp_dtype fsdp__result_dtype(const fsdp__reduction *r, int64_t i);
/* Of a flat group: where this rank's part of the vector goes, which all results are in. */
void *fsdp__result_vector(const fsdp__reduction *r);
/* Whether the reduction itself adds to what shards have. */
bool fsdp__adds_in_place(const fsdp__reduction *r);

#endif
