/* ranks.c - finds how many ranks there should be and who starts them; starts rank processes and ends as they do. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/host.h"
#include "base/probe.h"
#include "base/text.h"
#include "base/title.h"
#include "cli/cli.h"
#include "cli/own_process.h"
#include "comm/mpi/start.h"
#include "comm/world.h"
#include "launch/launch.h"
#include "launch/starter.h"

fsdp_status fsdp__ranks_read(const char *text, fsdp__ranks *out)
{
    fsdp__starter s;

    *out = (fsdp__ranks){.count = 1};
    FSDP_TRY(fsdp__args_integer("-n", text, 1, FSDP__MOST_RANKS, &out->count));
    FSDP_TRY(fsdp__starter_read(&s));
    if (s.kind == FSDP__BY_NOBODY || (s.kind == FSDP__BY_LAUNCH && s.size <= 1 && out->count > 1))
        return FSDP_OK;
    if (text && s.size == 0)
        return FSDP_FAIL(FSDP_INVALID, "-n is %lld, but %s has started the ranks (%s): leave -n out",
                         (long long)out->count, s.name, s.rank_variable);
    if (text && out->count != s.size)
        return FSDP_FAIL(FSDP_INVALID, "-n is %lld, but %s has started %d rank%s (%s): leave -n out",
                         (long long)out->count, s.name, s.size, fsdp__plural(s.size), s.size_variable);
    *out = (fsdp__ranks){
        .count = s.size, .rank = s.rank, .joins = true, .over_mpi = s.kind == FSDP__BY_MPI, .starter = s.name};
    return FSDP_OK;
}

fsdp_status fsdp__comm_timeout_option(const char *text, double *out)
{
    *out = FSDP__TIMEOUT_MS / 1000.0;
    return fsdp__args_number("--comm-timeout", text, 0, 1e9, out);
}

int fsdp__rank_failure(const fsdp__ranks *ranks)
{
    if (!ranks || !ranks->joins)
        return fsdp__failure("%s", fsdp_last_error());
    return fsdp__failure("%s's rank %d (machine '%s'): %s", ranks->starter, ranks->rank, FSDP__HOST_NAME,
                         fsdp_last_error());
}

int fsdp__ranks_refuse(const fsdp__ranks *ranks, int exit_status)
{
    char reason[1024];

    snprintf(reason, sizeof reason, "%s", fsdp_last_error());
    (void)(exit_status == FSDP__USAGE ? fsdp__usage_error("%s", reason) : fsdp__rank_failure(ranks));
    if (ranks->joins)
        fsdp__refuse_to_join(reason, exit_status != FSDP__USAGE);
    return exit_status;
}

int fsdp__ranks_fail_to_join(const fsdp__ranks *ranks)
{
    (void)(ranks->over_mpi ? fsdp__rank_failure(ranks) : fsdp__failure("%s", fsdp_last_error()));
    if (ranks->over_mpi)
        fsdp__mpi_end_all();
    return FSDP__FAILED;
}

void fsdp__ranks_title(const fsdp_context *context, const char *run)
{
    static char name[] = "fsdp"; /* overwrites what was there */
    char text[320];
    fsdp__title title = fsdp__title_find();

    if (fsdp_context_world_size(context) == 1)
        return;
    snprintf(text, sizeof text, "fsdp: rank %d of %d, %s", fsdp_context_rank(context), fsdp_context_world_size(context),
             run);
    fsdp__title_write(title, text);
    program_invocation_name = program_invocation_short_name = name;
}

fsdp_status fsdp__ranks_check_output(fsdp_context *context)
{
    char text[256];

    FSDP__TELL(RUN_ENDED, .context = context, .kind = FSDP_OK);
    FSDP_TRY(fsdp_barrier(fsdp_world(context)));
    if (fsdp_context_rank(context) > 0 || !fsdp__output_failed(text, sizeof text))
        return FSDP_OK;
    fsdp_abort(context, text); /* the launcher speaks for its ranks */
    return FSDP_FAIL(FSDP_IO, "%s", text);
}

int fsdp__ranks_failed(fsdp_status status, const fsdp_launch_report *report)
{
    if (report->flight[0])
        fsdp__failure("%s (fsdp flight %s shows the last calls of all ranks%s)", fsdp_last_error(),
                      FSDP__SHELL_WORD(report->flight),
                      strstr(report->flight, FSDP__FLIGHT_TEMPORARY) ? "; the folder is yours to remove" : "");
    else
        fsdp__failure("%s", fsdp_last_error());
    /* If a script is interrupted it must see that this was the reason, or it goes on with its next command. */
    if (status == FSDP_INTERRUPTED)
        fsdp__die_of(report->exit_code - 128);
    return report->exit_code > 0 ? report->exit_code : FSDP__FAILED;
}

int fsdp__launch_ranks(const fsdp_launch_options *options)
{
    fsdp_launch_report report = {0};
    fsdp_status status;

    fflush(NULL);
    status = fsdp_launch(options, &report);
    return status == FSDP_OK ? 0 : fsdp__ranks_failed(status, &report);
}
