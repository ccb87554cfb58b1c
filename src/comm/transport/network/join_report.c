/* join_report.c - compares the reports of all ranks. */
#include "comm/transport/network/join_report.h"

#include "base/alloc.h"
#include "base/text.h"

void fsdp__report_write(fsdp__report *out, fsdp_status status)
{
    out->status = status;
    if (status != FSDP_OK)
        fsdp__shown(fsdp_last_error(), out->text, sizeof out->text);
}

fsdp_status fsdp__report_compare(const fsdp__network_ops *ops, void *network, const fsdp__places *places,
                                 const fsdp__report *mine, fsdp__report *first)
{
    char text[FSDP__NETWORK_TEXT] = "";
    FSDP__FREED fsdp__report *all = fsdp__calloc((size_t)places->ranks, sizeof *all);

    if (!ops->exchange(network, mine, sizeof *mine, all, text))
        return all ? FSDP_FAIL(FSDP_COMM, "rank %d: %s", places->rank, text) : FSDP_NO_MEMORY;
    for (int rank = 0; rank < places->ranks; rank++) {
        const fsdp__report *said = &all[places->carriers[rank]];

        if (said->status != FSDP_OK)
            return FSDP_FAIL((fsdp_status)said->status, "rank %d (machine '%s'): %.*s", rank,
                             fsdp__host_of(places, rank), (int)sizeof said->text - 1, said->text);
    }
    *first = all[places->carriers[places->rank - places->rank % places->machine_ranks]];
    return FSDP_OK;
}
