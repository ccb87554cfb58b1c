/* rules.h - what operations do with distributed tensors: [Note: distributed tensors] in ops/global.h. */
#pragma once

#include "ops/global.h"

extern const fsdp__global_rules fsdp__parallel_rules;
