/* leave.h - how a rank takes leave of the others. */
#ifndef COMM_MACHINES_LEAVE_H
#define COMM_MACHINES_LEAVE_H

#include "comm/machines/watch.h"

/* Tells all that this rank takes part no more, and waits until nobody does, or the world is broken: true: nobody, and
 * the network has nothing of this rank's any more. Then the watch's thread has ended. A watch that was not opened is of
 * no world: false. */
bool fsdp__leave_machines(fsdp__watch *watch);

#endif
