/* leave.h - how a rank takes leave of the others. */
#ifndef COMM_MACHINES_LEAVE_H
#define COMM_MACHINES_LEAVE_H

#include "comm/machines/watch.h"

/* Tells all that this rank takes part no more, and waits until nobody does, or the world is broken: true: nobody. Then
 * the watch's thread has ended, and what it has told has gone, where that takes no more than seconds. A watch that was
 * not opened is of no world: false. */
bool fsdp__leave_machines(fsdp__watch *watch);

#endif
