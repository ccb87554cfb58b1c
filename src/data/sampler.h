/* sampler.h - what a loader asks its sampler. */
#pragma once

#include "fsdp/dataset.h"

/* Returns the number of items in the data set that the sampler was made for. */
int64_t fsdp__sampler_items(const fsdp_distributed_sampler *sampler);
/* Returns the number of items that this rank gets in a whole epoch. */
int64_t fsdp__sampler_most(const fsdp_distributed_sampler *sampler);
/* Returns the position before an epoch begins, and what the sampler's order is made from; and the number of ranks. */
fsdp_data_position fsdp__sampler_position(const fsdp_distributed_sampler *sampler);
int fsdp__sampler_ranks(const fsdp_distributed_sampler *sampler);
/* Makes `epoch` the next epoch to begin, without its first `items` items. */
void fsdp__sampler_set_position(fsdp_distributed_sampler *sampler, int64_t epoch, int64_t items);
/* Begins an epoch. The epochs after it are whole again. */
void fsdp__sampler_begin(fsdp_distributed_sampler *sampler);
