/* numbering.c - numbers the carrier's ranks by machine. */
#include "comm/transport/network/numbering.h"

#include <stdio.h>

#include "base/alloc.h"

_Static_assert((int)FSDP__PLACES_HOST_BYTES == (int)FSDP__NETWORK_HOST_BYTES, "a name has room");

/* Counts the ranks: ranks_of[m] is the number on the machine whose lowest carrier rank is m. */
static fsdp_status count_ranks(const fsdp__network_world *all, int ranks, int *ranks_of)
{
    for (int r = 0; r < ranks; r++) {
        int machine = all[r].machine;

        if (machine < 0 || machine > r || all[machine].machine != machine)
            return FSDP_FAIL(FSDP_COMM, "rank %d says that its machine begins with rank %d, but it does not", r,
                             machine);
        ranks_of[machine]++;
    }
    return FSDP_OK;
}

static fsdp_status check_equal(const fsdp__network_world *all, int ranks, const int *ranks_of)
{
    for (int r = 0; r < ranks; r++)
        if (ranks_of[r] > 0 && ranks_of[r] != ranks_of[0])
            return FSDP_FAIL(FSDP_INVALID,
                             "machine '%s' has %d ranks, machine '%s' has %d: parameters are divided among equally "
                             "many ranks on each machine: start as many everywhere",
                             all[0].host, ranks_of[0], all[r].host, ranks_of[r]);
    return FSDP_OK;
}

/* Numbers carrier ranks by machine. */
static void number(const fsdp__network_world *all, fsdp__places *places)
{
    int next = 0, machine = 0;

    for (int m = 0; m < places->ranks; m++) {
        if (all[m].machine != m)
            continue;
        snprintf(places->hosts[machine++], FSDP__PLACES_HOST_BYTES, "%s", all[m].host);
        for (int r = m; r < places->ranks; r++)
            if (all[r].machine == m) {
                places->of_carrier[r] = next;
                places->carriers[next++] = r;
            }
    }
}

fsdp_status fsdp__places_make(const fsdp__network_world *all, int ranks, int mine, fsdp__places *out)
{
    int *ranks_of = fsdp__calloc((size_t)ranks, sizeof *ranks_of);
    fsdp_status status = FSDP_OK;

    *out = (fsdp__places){.ranks = ranks};
    FSDP__TRY_NEW(ranks_of);
    FSDP_TRY_GOTO(status, count_ranks(all, ranks, ranks_of), out);
    FSDP_TRY_GOTO(status, check_equal(all, ranks, ranks_of), out);
    out->machine_ranks = ranks_of[0];
    out->machines = ranks / out->machine_ranks;
    out->carriers = fsdp__calloc((size_t)ranks, sizeof *out->carriers);
    out->of_carrier = fsdp__calloc((size_t)ranks, sizeof *out->of_carrier);
    out->hosts = fsdp__calloc((size_t)out->machines, sizeof *out->hosts);
    if (!out->carriers || !out->of_carrier || !out->hosts) {
        status = FSDP_NO_MEMORY;
        goto out;
    }
    number(all, out);
    out->rank = out->of_carrier[mine];
out:
    fsdp__free(ranks_of);
    if (status != FSDP_OK)
        fsdp__places_release(out);
    return status;
}

void fsdp__places_release(fsdp__places *places)
{
    FSDP__FREE_ALL(places->hosts, places->of_carrier, places->carriers);
    *places = (fsdp__places){0};
}
