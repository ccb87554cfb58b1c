/* compare_starts.h - the starts of `fsdp compare`: ranks of this program, which leave their figures in memory that the
 * process that starts them has made. */
#pragma once

#include "compare/compare_table.h"

/* Options of a started rank: where its config is, and where its figures go. */
#define FSDP__AS_RANK_OPTION "as-rank"
#define FSDP__RECORDS_OPTION "records"

/* Starts every variant that is not refused, in turns; failures go into its figures. `draws`: show how far it is on
 * stderr. An interruption ends this process. */
fsdp_status fsdp__compare_starts(fsdp__comparison *c, bool draws);
/* Runs as a rank, by what its options say. Returns the exit status. */
int fsdp__compare_rank(const char *config_fd, const char *records_fd, int steps);
