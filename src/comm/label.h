/* label.h - what a group's calls are for: ranks that disagree are told what each of them was doing. For the layers that
 * issue vectored collectives. */
#ifndef COMM_LABEL_H
#define COMM_LABEL_H

#include "fsdp/comm.h"

enum {
    FSDP__LABEL_BYTES = 64 /* with the end */
};

/* Every vectored collective issued on the group from now on is "for 'label'", until another label is set. Ranks' labels
 * must be equal, as their arguments must. Copied; one of 64 bytes or more is cut and ends in "..."; NULL or "": none.
 */
void fsdp__group_set_label(fsdp_group *group, const char *label);

#endif
