/* carrier_watch.h - the thread of a rank that looks after those whom its device waits for. */
#pragma once

#include "comm/comm.h"

/* Starts the thread, unless it runs. It looks at all groups that have a carrier. */
fsdp_status fsdp__carrier_watch_start(fsdp__comm *comm);
/* Waits until the device has done the group's calls, or was released from them; a device that is lost ends the world.
 * The group is still listed. [blocks] */
void fsdp__carrier_watch_settle(fsdp_process_group *group);
/* Ends the thread, when the groups are gone. */
void fsdp__carrier_watch_stop(fsdp__comm *comm);
