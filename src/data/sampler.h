/* sampler.h - what a loader asks of its sampler. */
#ifndef DATA_SAMPLER_H
#define DATA_SAMPLER_H

#include "fsdp/dataset.h"

/* Of the data set that it is made for. */
int64_t fsdp__sampler_items(const fsdp_distributed_sampler *sampler);
/* Of this rank in a whole epoch. */
int64_t fsdp__sampler_most(const fsdp_distributed_sampler *sampler);
/* Where it stands, before an epoch begins; and of what its order is made. */
fsdp_data_position fsdp__sampler_position(const fsdp_distributed_sampler *sampler);
int fsdp__sampler_ranks(const fsdp_distributed_sampler *sampler);
/* The epoch to begin next is this one, without its first items. */
void fsdp__sampler_set_position(fsdp_distributed_sampler *sampler, int64_t epoch, int64_t items);
/* An epoch begins: those after it are whole. */
void fsdp__sampler_begin(fsdp_distributed_sampler *sampler);

#endif
