/* fake_network.h - counts what a call would exchange with other machines: it follows the algorithms of
 * comm/transport/network/ and sends nothing. Every rank is taken to call what this one calls, and to have what it has.
 * With one machine it counts nothing. */
#ifndef COMM_FAKE_FAKE_NETWORK_H
#define COMM_FAKE_FAKE_NETWORK_H

#include "comm/comm.h"

/* Counts the call. */
typedef void fsdp__fake_count(const fsdp_process_group *group, const fsdp__call *call, fsdp__traffic *traffic);

fsdp__fake_count fsdp__fake_count_all_gather, fsdp__fake_count_reduce_scatter, fsdp__fake_count_all_reduce,
    fsdp__fake_count_broadcast, fsdp__fake_count_all_to_all, fsdp__fake_count_barrier,
    fsdp__fake_count_gather_coalesced, fsdp__fake_count_reduce_coalesced;

#endif
