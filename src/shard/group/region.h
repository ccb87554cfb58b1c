/* region.h - counted memory of a device, or of a process group, that several tensors lie in.
 *
 * A region lives as long as the group of parameters it was made for, or as long as a tensor on it: an optimizer may
 * outlast the model. */
#pragma once

#include "device/device.h"
#include "shard/group/mesh_info.h"
#include "tensor/tensor.h"

typedef struct fsdp__region {
    int64_t refs;
    void *data;
    size_t bytes, counted_bytes;
    fsdp_device *device;
    fsdp_device *pinned_for; /* the device that host memory is registered with while it has bytes; NULL: none */
    fsdp_memory_kind kind;
    const void *owner; /* the module that it was made for: fsdp__taker */
    fsdp_mesh *mesh;   /* holds `pg`; NULL: the memory is the device's own */
    fsdp_process_group *pg;
    fsdp_memory_sharing sharing;
    /* Frees memory that a function of the caller's made; NULL: the memory is the device's, or the process group's. */
    void (*release)(void *arg, fsdp_device *device, void *memory, size_t bytes);
    void *release_arg;
    struct fsdp__region **weak; /* set to NULL when the region is freed; may be NULL */
    /* Called before a write to a storage that fsdp__region_lend_guarded lent bytes to; NULL: there is nobody left to
     * ask. */
    fsdp_status (*before_write)(void *writer, const fsdp__storage *storage);
    /* These are those of fsdp__storage_guard, and get the writer; NULL: there are no copies. */
    void *(*copy_place)(void *writer, const fsdp__storage *storage, fsdp_dtype *dtype);
    void (*copied)(void *writer, const fsdp__storage *storage);
    fsdp_status (*bring)(void *writer, fsdp__storage *storage);
    void *(*low_place)(void *writer, const fsdp__storage *storage);
    void *writer;
} fsdp__region;

/* Creates a region on a device, still without bytes. */
fsdp_status fsdp__region_of_device(fsdp_device *device, size_t bytes, fsdp_memory_kind kind, fsdp__region **out);
/* Creates a region of the ranks of info->shard_pg, counted on this rank as `counted_bytes` of `kind`. It has no bytes
 * yet. */
fsdp_status fsdp__region_of_ranks(fsdp_device *device, const fsdp__mesh_info *info, fsdp_memory_sharing sharing,
                                  size_t bytes, fsdp_memory_kind kind, size_t counted_bytes, fsdp__region **out);
/* Creates a region on a device, with its bytes. */
fsdp_status fsdp__region_make(fsdp_device *device, size_t bytes, fsdp_memory_kind kind, fsdp__region **out);
/* Takes the bytes. This is collective where the ranks share one region; then all succeed or none does. */
fsdp_status fsdp__region_fill(fsdp__region *region);
/* Takes the bytes of a new region; after a failure the region is gone, and `*region` NULL. */
fsdp_status fsdp__region_fill_new(fsdp__region **region);
/* Frees the bytes of a device's own region, which no storage has any more. It can be filled again. */
void fsdp__region_empty(fsdp__region *region);
void fsdp__region_unref(fsdp__region *region);
/* Lends `storage` the bytes from `offset` on. The storage holds a reference. */
void fsdp__region_lend(fsdp__region *region, size_t offset, fsdp__storage *storage);
/* Does the same for memory that peers read too: a write to the storage calls region->before_write first, or, if nobody
 * is left to ask, waits for the peers by itself. */
void fsdp__region_lend_guarded(fsdp__region *region, size_t offset, fsdp__storage *storage);
/* Writes `numel` elements divided by `divisor` to `dst`, or with `add` adds them to what lies there: in f32, rounded
 * once. [stream] */
fsdp_status fsdp__divide_run(fsdp_stream *stream, const void *src, fsdp_dtype src_dtype, void *dst,
                             fsdp_dtype dst_dtype, int64_t numel, float divisor, bool add);
/* Makes a tensor of `shape` on the bytes of the region from `offset` on, counted nowhere else. The caller owns `*out`,
 * which holds a reference. */
fsdp_status fsdp__region_tensor(fsdp__region *region, size_t offset, fsdp_dtype dtype, int ndim, const int64_t *shape,
                                fsdp_tensor **out);

FSDP__SCOPED_POINTER(fsdp__region, fsdp__region_unref)
