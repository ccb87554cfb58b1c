/* compare_starts.h - the starts of fsdp compare: ranks of this program, which leave their figures in memory that the
 * process which starts them has made. */
#ifndef CLI_COMPARE_STARTS_H
#define CLI_COMPARE_STARTS_H

#include "compare/table.h"

/* Of a started rank: where its config is, and where its figures go. */
#define FSDP__AS_RANK_OPTION "as-rank"
#define FSDP__RECORDS_OPTION "records"

/* Every variant that is not refused, in turns; what fails is in its figures. `draws`: how far it is, on stderr. An
 * interruption ends this process. */
fsdp_status fsdp__compare_starts(fsdp__comparison *c, bool draws);
/* A rank, by what its options say; the exit status. */
int fsdp__compare_rank(const char *config_fd, const char *records_fd, int steps);

#endif
