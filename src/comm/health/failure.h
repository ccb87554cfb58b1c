/* failure.h - the one failure of a context's world, which every later call repeats. */
#pragma once

#include "comm/comm.h"

/* Makes every later call of this rank fail with `text`, and those of its peers with "rank N failed: text". The first
 * reason stays. Any thread. */
void fsdp__comm_break(fsdp__comm *comm, fsdp_status status, const char *text);
bool fsdp__comm_is_broken(const fsdp_process_group *group);
/* Fails with the reason for which the group is broken. */
fsdp_status fsdp__comm_fail_broken(fsdp_process_group *group);
