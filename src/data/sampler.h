/* sampler.h - what a loader asks of its sampler. */
#ifndef DATA_SAMPLER_H
#define DATA_SAMPLER_H

#include "fsdp/dataset.h"

/* Of the data set that it is made for. */
int64_t fsdp__sampler_items(const fsdp_distributed_sampler *sampler);

#endif
