/* clique_carrier.h - the carrier of groups whose devices a library of theirs joins: NCCL. */
#pragma once

#include "comm/carrier.h"

/* Serves groups on a device of which fsdp__device_cliques gives something. */
extern const fsdp__carrier_ops fsdp__clique_carrier;
