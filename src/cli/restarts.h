/* restarts.h - starts the ranks of a run again when one of them has failed. */
#pragma once

#include "cli/cli.h"

enum {
    FSDP__REASON_BYTES = 1024
};

/* Lists what ranks tell the process that has started them. */
typedef enum fsdp__restarts_news {
    FSDP__RESTARTS_TOLD,   /* the run ends because one of its ranks was told to */
    FSDP__RESTARTS_TRAINED /* all steps are taken */
} fsdp__restarts_news;

typedef struct fsdp__restarts {
    const char *most_text, *least_text; /* as given, or NULL */
    int64_t most;                       /* number of restarts; 0: none */
    int64_t least;                      /* fewest ranks to go on with; 0: as many as there were */
    int64_t done;
    /* Where rank 0 writes the last step that it has taken, and ranks, behind it, their news; -1: none yet */
    int steps_fd;
    bool early;                      /* the failure before this one came before the first step after a start */
    char reason[FSDP__REASON_BYTES]; /* of the failure before this one; "": none */
} fsdp__restarts;

/* Reads the command line's numbers, and checks whether this run can be restarted at all. `starter` is who else starts
 * the ranks and would have to start them again; NULL: nobody. */
fsdp_status fsdp__restarts_read(fsdp__restarts *restarts, const fsdp_train_config *config, int64_t ranks,
                                const char *starter);
/* Prepares a start: no step has been taken yet. Call it before each one. */
fsdp_status fsdp__restarts_begin(fsdp__restarts *restarts);
/* Notes that a step was taken; rank 0 calls it. */
void fsdp__restarts_step(int steps_fd, int64_t step);
/* Notes the news; returns whether it has come since the start. */
void fsdp__restarts_note(int steps_fd, fsdp__restarts_news news);
bool fsdp__restarts_heard(const fsdp__restarts *restarts, fsdp__restarts_news news);
/* Returns the last step that rank 0 has taken since the start; 0: none. */
int64_t fsdp__restarts_last_step(const fsdp__restarts *restarts);
/* Returns whether to start again after a launch has failed with `status`, and with how many ranks; it prints that on
 * stderr. If a restart was possible but is not done, the last error says why. */
bool fsdp__restarts_again(fsdp__restarts *restarts, const fsdp_train_config *config, fsdp_status status,
                          const fsdp_launch_report *report, int *ranks);
void fsdp__restarts_end(fsdp__restarts *restarts);
