/* give_back.h - what gathers have brought from other machines goes back to the system.
 *
 * A CAST group over machines has room for its unsharded parameters on each of them, always. Bytes lie there only while
 * they are used: of a group that was resharded each rank gives back the pages of the rows that it fetches, once no rank
 * of its machine reads them any more. It looks for that when it leaves a module, and when a backward or an evaluation
 * ends, and waits for nobody. The rows of the machine's own ranks stay: they are cast once (cast.h). Where the system
 * makes huge pages of shared memory in the background (khugepaged), it may fill what was given back with zeros. */
#ifndef SHARD_GIVE_BACK_H
#define SHARD_GIVE_BACK_H

#include "shard/root.h"

/* Of all groups below the root that nobody reads. */
void fsdp__give_back(const fsdp__root *root);

#endif
