/* choose_carrier.h - by what a group's calls on a GPU travel: [Note: carriers] in carrier.h. */
#pragma once

#include "comm/comm.h"

/* Gives the group a carrier, at its first call on a stream of a device that carries, and does nothing otherwise.
 * [collective] [blocks] */
fsdp_status fsdp__carrier_ready(fsdp_process_group *group, fsdp_stream *stream);
