/* ranks.c - starts rank processes and ends as they do. */
#include <stdio.h>

#include "cli/cli.h"
#include "cli/process.h"

int fsdp__launch_ranks(const fsdp_launch_options *options)
{
    fsdp_launch_report report = {0};
    fsdp_status status;

    fflush(NULL);
    status = fsdp_launch(options, &report);
    if (status == FSDP_OK)
        return 0;
    fsdp__failure("%s", fsdp_last_error());
    /* A script that was interrupted must see that this was the reason, or it goes on with its next command. */
    if (status == FSDP_INTERRUPTED)
        fsdp__die_of(report.exit_code - 128);
    return report.exit_code > 0 ? report.exit_code : FSDP__FAILED;
}
