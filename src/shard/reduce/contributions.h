/* contributions.h - adds up gradients of which each rank has only its own contribution: those of parameters that tensor
 * parallel replicates, and with which each of its ranks computes something else (a norm over a part of the sequence).
 *
 * A parameter is one all-reduce over each such dimension, in its reduce dtype, before its gradient is reduced over the
 * data-parallel ranks. The sum lies in the gradient, unless that has another dtype, somebody else holds it, or this
 * rank has none. */
#pragma once

#include "shard/reduce/reduction.h"

/* Makes the places of the sums, with what this rank contributes, by work of the device's stream. */
fsdp_status fsdp__contributions_prepare(fsdp__reduction *r);
/* Adds up, on the stream of the reduction, which follows. If this rank has no gradient of a parameter, the host waits
 * to hear whether another has one. [collective] */
fsdp_status fsdp__contributions_add(fsdp__reduction *r);
