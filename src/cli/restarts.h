/* restarts.h - a run whose ranks are started again when one of them has failed. */
#ifndef CLI_RESTARTS_H
#define CLI_RESTARTS_H

#include "cli/cli.h"

enum {
    FSDP__REASON_BYTES = 1024
};

typedef struct fsdp__restarts {
    const char *most_text, *least_text; /* as given, or NULL */
    int64_t most;                       /* restarts; 0: none */
    int64_t least;                      /* ranks to go on with; 0: as many as there were */
    int64_t done;
    int steps_fd;                    /* where rank 0 writes the step that it has taken last; -1: none yet */
    bool early;                      /* the failure before this one came before the first step after a start */
    char reason[FSDP__REASON_BYTES]; /* of the failure before this one; "": none */
} fsdp__restarts;

/* The command line: numbers, and whether this run can be restarted at all. `starter`: who else starts the ranks and
 * would have to start them again; NULL: nobody. */
fsdp_status fsdp__restarts_read(fsdp__restarts *restarts, const fsdp_train_config *config, int64_t ranks,
                                const char *starter);
/* Before each start: nothing is done yet. */
fsdp_status fsdp__restarts_begin(fsdp__restarts *restarts);
/* Rank 0: a step was taken. */
void fsdp__restarts_step(int steps_fd, int64_t step);
/* The step that rank 0 has taken last since the start; 0: none. */
int64_t fsdp__restarts_last_step(const fsdp__restarts *restarts);
/* After a launch has failed with `status`: whether to start again, with how many ranks, which it says on stderr. Where
 * it might have, and does not, the last error says why. */
bool fsdp__restarts_again(fsdp__restarts *restarts, const fsdp_train_config *config, fsdp_status status,
                          const fsdp_launch_report *report, int *ranks);
void fsdp__restarts_end(fsdp__restarts *restarts);

#endif
