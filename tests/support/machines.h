/* support/machines.h - worlds of several machines, whose ranks are threads of this process. */
#pragma once

#include "fsdp/context.h"
#include "support/thread_network.h"

typedef struct test_machines {
    int machines, machine_ranks;
    bool one_level;
    thread_network *network; /* while its ranks run */
} test_machines;

/* Contexts of all ranks, each to be used and freed by a thread of its own; they wait for each other when they are
 * freed, unless their world is broken. The network is the caller's, and outlives them. */
fsdp_status test_machines_create(const test_machines *options, thread_network **network, fsdp_context **contexts);
