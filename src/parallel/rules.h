/* rules.h - what operations do with distributed tensors: [Note: distributed tensors] in ops/global.h. */
#ifndef PARALLEL_RULES_H
#define PARALLEL_RULES_H

#include "ops/global.h"

extern const fsdp__global_rules fsdp__parallel_rules;

#endif
