/* run_id.c - what tells the lines of a run from those of another that writes to the same file. */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "train/run_start.h"
#include "watch/flight.h"

static fsdp_status draw(char id[FSDP__RUN_ID])
{
    uint64_t random = 0;

    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return FSDP_FAIL(FSDP_IO, "no random number for the run's id: %s", strerrordesc_np(errno));
    snprintf(id, FSDP__RUN_ID, "%016llx", (unsigned long long)random);
    return FSDP_OK;
}

bool fsdp__train_is_id(const char *text)
{
    return strlen(text) == FSDP__RUN_ID - 1 && strspn(text, "0123456789abcdef") == FSDP__RUN_ID - 1;
}

/* Sends rank 0's id to all ranks. */
static fsdp_status share(fsdp_train_run *run)
{
    int ranks = fsdp_context_world_size(run->context);
    FSDP__FREED const void **ids = fsdp__calloc((size_t)ranks, sizeof *ids);
    FSDP__FREED size_t *sizes = fsdp__calloc((size_t)ranks, sizeof *sizes);
    fsdp_process_group *world = fsdp_world(run->context);
    FSDP__FREED void *id = NULL;
    size_t bytes = 0;

    if (!world || !ids || !sizes)
        return world ? FSDP_NO_MEMORY : fsdp_last_status();
    for (int rank = 0; rank < ranks; rank++) {
        ids[rank] = run->id;
        sizes[rank] = sizeof run->id;
    }
    FSDP_TRY(fsdp_scatter_objects(world, 0, ids, sizes, &id, &bytes));
    memcpy(run->id, id, FSDP__MIN(bytes, sizeof run->id));
    return FSDP_OK;
}

fsdp_status fsdp__train_draw_id(fsdp_train_run *run)
{
    FSDP_TRY(fsdp__train_agree(run, fsdp_context_rank(run->context) == 0 ? draw(run->id) : FSDP_OK));
    if (fsdp_context_world_size(run->context) > 1)
        FSDP_TRY(share(run));
    fsdp__flight_is_of(run->context, run->id);
    return FSDP_OK;
}
