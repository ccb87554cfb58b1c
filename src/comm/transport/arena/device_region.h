/* device_region.h - memory of a GPU that all ranks of a group have in common.
 *
 * [Note: one region for a GPU]
 * Where all ranks of a group share one GPU, and their streams wait for words, they can have shared memory there as they
 * have it in an arena: the group's first rank makes it (fsdp__device_export) and the others open it, each at an address
 * of its own. What is known of it lies in the arena: the header of a region (health/region.h), where hosts count reads
 * when they are issued, and behind it a pair of words for each rank. A rank's stream writes how many of its reads are
 * over, and whoever is about to write makes his stream wait for that. So no host waits, and nothing is moved: a gather
 * is a meeting of streams, before which come all writes to the shards, and a write comes after all reads before.
 *
 * [Note: when it goes back to the card]
 * Only the process that has made the memory can free it, when all have closed it. A rank that gives it back closes it
 * when its device has nothing to do, and counts itself out in the header. In closing it the driver may wait for all
 * that the device has been given, what came after the memory was given back included; and the device may wait for a
 * rank that is late, and that one for this host. So each rank looks when it gives a region back, whenever its program
 * issues a call or comes back from one, and before the next region is made, and leaves open what it would wait for. The
 * rank that made it then looks whether all are counted out. No call is made for that: a rank that frees late keeps the
 * memory, but holds up no other rank. Once the ranks that freed a region have met again, and their devices are done
 * with it, it has gone.
 *
 * Where a driver frees nothing in the order of a stream, freeing waits until the process's device has done all its
 * work, that of other ranks of the process too. Those may be waiting for work that this rank has not issued yet. So
 * ranks that are threads free only where all ranks of a group are in one call, as the next region is made, and as they
 * leave.
 *
 * A rank that leaves the world closes what it has given back when its device is done, and waits for that, also where
 * the host has no memory to note when that is: to see that a device has nothing to do takes none. If others have its
 * memory open it waits for them, at most for comm.timeout: with its process the memory would go, which they still read.
 */
#pragma once

#include "comm/transport/arena/arena_group.h"
#include "device/device.h"

struct fsdp__shared_header;

/* ---- life ---- */

/* Returns the bytes of the words behind a header. */
size_t fsdp__device_region_words(const fsdp__arena_view *view);
/* Makes the memory, of zeros, as the group's first rank. The header is new, and owns it from then on. */
fsdp_status fsdp__device_region_make(struct fsdp__shared_header *header, fsdp_device *device, size_t bytes,
                                     fsdp__export *out);
/* Opens it on this rank, and gives where it lies. */
fsdp_status fsdp__device_region_open(fsdp__arena_group *group, struct fsdp__shared_header *header, fsdp_device *device,
                                     const fsdp__export *theirs, void **out);
/* Gives it back on this rank: a look closes it, and counts the rank out, when its device has nothing to do. Returns its
 * header; NULL: there is no such region. It waits for nothing. */
struct fsdp__shared_header *fsdp__device_region_leave(fsdp__arena_view *view, void *memory);
/* Counts this rank out of a region, on a device or not. */
void fsdp__region_count_out(const fsdp__arena_view *view, struct fsdp__shared_header *header);
/* Frees what the header owns, which nobody has open any more; does nothing for one in the arena. */
void fsdp__device_region_free(fsdp__arena_view *view, struct fsdp__shared_header *header);
/* Keeps what the header owns, as the rank that made it is about to give it back, until the others have, too. */
void fsdp__device_region_keep(fsdp__arena_view *view, const struct fsdp__shared_header *header);
/* Closes what this rank has given back, if its device has nothing to do, and frees what is kept and all have closed
 * ([Note: when it goes back to the card]); on the program's thread. */
void fsdp__device_regions_look(fsdp__arena_view *view);
/* Closes all of it, and frees what is kept, as the rank leaves. [blocks] while devices use it or others have it open */
void fsdp__device_regions_end(fsdp__arena_view *view);

/* Returns the header of the region; NULL: there is no such region on a device. Any thread. */
struct fsdp__shared_header *fsdp__device_region_header(fsdp__arena_view *view, const void *memory);

/* ---- readers ---- As fsdp__reader_ops has them. */

fsdp_status fsdp__device_region_done(void *group, void *memory, uint64_t number, fsdp_stream *stream);
fsdp_status fsdp__device_region_await(void *group, void *memory, uint64_t number, fsdp_stream *stream);

/* ---- from outside ---- Any thread. */

/* Returns whether the device of a rank waits for reads of another one, in a region of the group. */
bool fsdp__device_regions_wait(const fsdp__arena_group *group, int rank, int other);
/* Returns a number that grows with the reads that are over. */
uint64_t fsdp__device_regions_reads(const fsdp__arena_group *group);
/* Lets this rank's streams go on, because the world has ended. */
void fsdp__device_regions_release(const fsdp__arena_group *group);
