/* support/machines.c - machines in one process. */
#include "support/machines.h"

#include <stdlib.h>

#include "comm/transport/network/network_transport.h"
#include "comm/transport/network/numbering.h"
#include "fsdp/comm.h"

static fsdp_status join(const test_machines *o, thread_network *network, fsdp__arena **arenas,
                        const fsdp__network_world *all, int rank, fsdp_context **out)
{
    fsdp__network_options options = {.threads = 1, .all_readable = true, .one_level = o->one_level};
    fsdp__network_world world;
    fsdp__places places;
    char text[FSDP__NETWORK_TEXT];
    void *opened;

    thread_network_choose(network, rank);
    (void)thread_network_ops.open(&opened, &world, text);
    FSDP_TRY(fsdp__places_make(all, o->machines * o->machine_ranks, rank, &places));
    return fsdp__network_attach(&thread_network_ops, opened, places, arenas[rank / o->machine_ranks], &options, false,
                                out);
}

fsdp_status test_machines_create(const test_machines *o, thread_network **network, fsdp_context **contexts)
{
    int ranks = o->machines * o->machine_ranks;
    fsdp__network_world *all = calloc((size_t)ranks, sizeof *all);
    fsdp__arena **arenas = calloc((size_t)o->machines, sizeof *arenas);
    fsdp_status status = FSDP_OK;

    *network = thread_network_new(ranks, o->machines, NULL);
    for (int m = 0; m < o->machines && status == FSDP_OK; m++) {
        status = fsdp__arena_create(o->machine_ranks, ranks, false, &arenas[m]);
        if (status == FSDP_OK)
            arenas[m]->board->first = m * o->machine_ranks;
    }
    for (int r = 0; r < ranks; r++)
        all[r] = (fsdp__network_world){.rank = r,
                                       .size = ranks,
                                       .machine = r / o->machine_ranks * o->machine_ranks,
                                       .host = {(char)('a' + r / o->machine_ranks)}};
    for (int r = 0; r < ranks && status == FSDP_OK; r++)
        status = join(o, *network, arenas, all, r, &contexts[r]);
    /* A test that plants a wait that cannot end must not take as long as a user would wait. */
    for (int r = 0; r < ranks && status == FSDP_OK; r++)
        status = fsdp_context_set_comm_timeout(contexts[r], 15);
    for (int m = 0; m < o->machines; m++)
        fsdp__arena_unref(arenas[m]);
    free(arenas);
    free(all);
    return status;
}
