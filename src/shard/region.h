/* region.h - counted memory that several tensors lie in: of a device, or of a process group.
 *
 * A region lives as long as the group of parameters it was made for, or a tensor on it: an optimizer may outlast the
 * model. */
#ifndef SHARD_REGION_H
#define SHARD_REGION_H

#include "device/device.h"
#include "shard/mesh_info.h"
#include "tensor/tensor.h"

typedef struct fsdp__region {
    int64_t refs;
    void *data;
    size_t bytes, counted_bytes;
    fsdp_device *device;
    fsdp_device *pinned_for; /* host memory that is registered with this device while it has bytes; NULL: with none */
    fsdp_memory_kind kind;
    fsdp_mesh *mesh; /* holds `pg`; NULL: the device's own memory */
    fsdp_process_group *pg;
    fsdp_memory_sharing sharing;
    /* Gives back memory that the caller of the library has made; NULL: it is the device's, or the process group's. */
    void (*release)(void *arg, fsdp_device *device, void *memory, size_t bytes);
    void *release_arg;
    struct fsdp__region **weak; /* is set to NULL when the region goes; may be NULL */
    /* Asked before a write to a storage that fsdp__region_lend_guarded lent bytes; NULL: nobody is left to ask. */
    fsdp_status (*before_write)(void *writer, const fsdp__storage *storage);
    void *writer;
} fsdp__region;

/* Still without bytes. */
fsdp_status fsdp__region_of_device(fsdp_device *device, size_t bytes, fsdp_memory_kind kind, fsdp__region **out);
/* Of the ranks of info->shard_pg, counted here as `counted_bytes` of `kind`. Still without bytes. */
fsdp_status fsdp__region_of_ranks(fsdp_device *device, const fsdp__mesh_info *info, fsdp_memory_sharing sharing,
                                  size_t bytes, fsdp_memory_kind kind, size_t counted_bytes, fsdp__region **out);
/* Takes the bytes: collective where the ranks share one region, and then all succeed or none. */
fsdp_status fsdp__region_fill(fsdp__region *region);
void fsdp__region_unref(fsdp__region *region);
/* `storage` takes the bytes from `offset` on, and a reference. */
void fsdp__region_lend(fsdp__region *region, size_t offset, fsdp__storage *storage);
/* The same for memory that peers read too: a write to the storage asks region->before_write first, and waits for the
 * peers by itself where nobody is left to ask. */
void fsdp__region_lend_guarded(fsdp__region *region, size_t offset, fsdp__storage *storage);

#endif
