/* flight.c - where the records of ranks' last calls go. */
#include <stdlib.h>

#include "base/alloc.h"
#include "cli/cli.h"
#include "train/run_config.h"

fsdp_status fsdp__flight_choose(const fsdp_train_config *config, int starter, char **out)
{
    const char *temporary = getenv("TMPDIR");

    if (config && config->metrics.flight_recorder)
        *out = fsdp__sprintf("%s", config->metrics.flight_recorder);
    else if (config && fsdp__train_saves(config))
        *out = fsdp__sprintf("%s/flight", config->checkpoint.folder);
    else if (config && config->metrics.jsonl)
        *out = fsdp__sprintf("%s.flight", config->metrics.jsonl);
    else
        *out = fsdp__sprintf("%s" FSDP__FLIGHT_TEMPORARY "%d", temporary && temporary[0] == '/' ? temporary : "/tmp",
                             starter);
    return *out ? FSDP_OK : FSDP_NO_MEMORY;
}
