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
 * Only the process that has made the memory can free it, when all have closed it. So each rank that gives it back
 * counts itself out in the header. The rank that made it looks there when it gives it back, whenever its program issues
 * a call or comes back from one, and before the next region is made. Nobody waits for that, and no call is made for it:
 * a rank that frees late keeps the memory, but holds up no other rank. Once the ranks that freed a region have met
 * again, it has gone.
 *
 * Freeing waits until the process's device has done all its work, that of other ranks of the process too. Those may be
 * waiting for work that this rank has not issued yet. So ranks that are threads look only where all ranks of a group
 * are in one call, as the next region is made, and as they leave.
 *
 * A rank that leaves the world before the others have closed it waits for them, at most for comm.timeout: with its
 * process the memory would go, which they still read. */
#ifndef COMM_ARENA_DEVICE_REGION_H
#define COMM_ARENA_DEVICE_REGION_H

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
/* Closes it on this rank, whose device has done all that used it. Returns its header; NULL: there is no such region. */
struct fsdp__shared_header *fsdp__device_region_close(fsdp__arena_view *view, void *memory);
/* Frees what the header owns, which nobody has open any more; does nothing for one in the arena. */
void fsdp__device_region_free(fsdp__arena_view *view, struct fsdp__shared_header *header);
/* Keeps what the header owns, as the rank that made it is about to give it back, until the others have, too. */
void fsdp__device_region_keep(fsdp__arena_view *view, const struct fsdp__shared_header *header);
/* Frees what is kept and all have given back ([Note: when it goes back to the card]); on the program's thread. */
void fsdp__device_regions_look(fsdp__arena_view *view);
/* Frees what is kept, as the rank leaves. [blocks] while others have it open */
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

#endif
