/* numbering.h - numbers a carrier's ranks by machine: see health/places.h. */
#pragma once

#include "comm/health/places.h"
#include "comm/transport/network/network.h"
#include "fsdp/status.h"

/* Numbers the ranks. `all` is what each carrier rank has said of itself; `mine` is this one's number. Machines with
 * unequal numbers of ranks are refused. */
fsdp_status fsdp__places_make(const fsdp__network_world *all, int ranks, int mine, fsdp__places *out);
void fsdp__places_release(fsdp__places *places);
