/* agree.c - lets ranks agree whether all of them can go on. */
#include <stdio.h>

#include "train/run.h"

fsdp_status fsdp__train_agree(fsdp_train_run *run, fsdp_status mine)
{
    char own[1024];
    fsdp_status status;

    if (fsdp_context_world_size(run->context) == 1)
        return mine;
    if (!fsdp_world(run->context))
        return fsdp_last_status();
    snprintf(own, sizeof own, "%s", mine == FSDP_OK ? "" : fsdp_last_error());
    status = fsdp_agree(fsdp_world(run->context), mine);
    if (mine != FSDP_OK && status == mine)
        return FSDP_FAIL(mine, "%s", own);
    return status;
}
