/* leave.h - how a rank leaves the world. */
#ifndef COMM_HEALTH_LEAVE_H
#define COMM_HEALTH_LEAVE_H

#include "comm/health/network_watch.h"

/* Tells all ranks that this one takes part no more, and waits until all have left (returns true) or the world is broken
 * (returns false). On return the watch's thread has ended, and its messages have gone out, where that takes no more
 * than seconds. For a watch that was not opened, and so belongs to no world, returns false. */
bool fsdp__leave_machines(fsdp__watch *watch);

#endif
