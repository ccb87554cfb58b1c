/* give_back.h - gives memory of rows that gathers fetched from other machines back to the system.
 *
 * A CAST group over machines always has address space for its unsharded parameters on each machine, but bytes only
 * while they are used. Once a group has been resharded and no rank of its machine reads it any more, each rank gives
 * back the pages of the rows that it fetched. A rank checks for that when it leaves a module, and when a backward or an
 * evaluation ends; it never waits. The rows of the machine's own ranks stay, since they are cast once (cast.h). Where
 * the system makes huge pages of shared memory in the background (khugepaged), it may fill what was given back with
 * zeros. */
#pragma once

#include "shard/state/root.h"

/* Gives back the fetched rows of all groups below the root that no rank reads. */
void fsdp__give_back(const fsdp__root *root);
