/* results.h - decides where the results of a reduction go. */
#pragma once

#include "shard/reduce/reduction.h"

/* Gives every result a place: the gradient that a shard has, a new one, or one that arrives when all is done. The
 * flight holds them. A reduction that is not complete has no results. */
fsdp_status fsdp__make_results(fsdp__reduction *r);
/* Return how many results there are, and the tensor whose gradient the i-th is to be. A flat group's one parameter has
 * one result. */
int64_t fsdp__result_count(const fsdp__reduction *r);
fsdp_tensor *fsdp__result_shard(const fsdp__reduction *r, int64_t i);
/* Return where the reduction writes the result for params[i], and in which dtype. */
void *fsdp__result_place(const fsdp__reduction *r, int64_t i);
fsdp_dtype fsdp__result_dtype(const fsdp__reduction *r, int64_t i);
/* Returns where this rank's part of a flat group's vector goes, which all results lie in. */
void *fsdp__result_vector(const fsdp__reduction *r);
/* Returns whether the reduction itself adds to the gradients that shards have. */
bool fsdp__adds_in_place(const fsdp__reduction *r);
