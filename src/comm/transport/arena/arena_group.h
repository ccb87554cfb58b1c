/* arena_group.h - a rank and its groups, as places in an arena. */
#pragma once

#include "comm/health/calls.h"
#include "comm/transport/arena/arena.h"
#include "comm/transport_ops.h"
#include "device/allocator.h"

/* Holds one rank's view of the arena. */
typedef struct fsdp__arena_view {
    fsdp_context *context;
    fsdp__arena *arena;
    int rank; /* in the arena */
    fsdp__health health;
    int machine_ranks;     /* adds as machines with this many ranks each do; 0: in rank order */
    bool all_readable;     /* peers see every address of this rank (threads) */
    fsdp__allocator *heap; /* of buffers in this rank's part of the arena */
    struct fsdp__heap_source *source;
    struct fsdp__shared_header *freed; /* as a group's `freed`, from groups that have been freed */
    struct fsdp__device_memory *kept;  /* of devices, that this rank has given back: see device_region.h */
    struct fsdp__outbox *outboxes;     /* of such groups that peers may have open: see outboxes.h */
    pthread_mutex_t mutex;             /* guards the devices and the next: groups run their calls on several threads */
    struct fsdp__device_region *regions; /* of devices, that this rank has: see device_region.h */
    fsdp_device **devices;               /* devices with which payloads and staging are registered: see devices.h */
    int64_t device_count, device_capacity;
} fsdp__arena_view;

typedef struct fsdp__arena_group {
    fsdp__arena_view *world;
    fsdp__board_group *place; /* its barrier */
    fsdp__desk *desk;         /* of this rank, as the next */
    struct fsdp__rank_slot *slot;
    char *name;
    int index; /* in the arena; -1 until group_ready */
    int rank, size;
    int *ranks; /* numbers of the ranks in the arena */
    int block;  /* number of ranks whose contributions are added first: see order.h */
    uint64_t key;
    int tag;                 /* of messages, where there are several machines */
    bool claimed;            /* this rank is the group's first and has taken the place */
    uint64_t shown;          /* number of entries that this rank has shown: see [Note: parity] in rendezvous.h */
    void **sources;          /* scratch, `size` entries; one call runs at a time */
    const void **operands;   /* the same */
    int sleeps;              /* number of meetings in which this rank does not yield its core (rendezvous.c) */
    struct fsdp__peer *peer; /* by which calls on a device's streams go (peer.h); NULL: through the host */
    struct fsdp__shared_header *freed; /* shared memory in this rank's heap that peers may still hold */
} fsdp__arena_group;

/* Opens the group of all ranks. */
fsdp_status fsdp__arena_group_world(fsdp__arena_view *view, fsdp__arena_group **out);

/* Fill slots of a transport's table. */
fsdp_status fsdp__arena_group_open(void *transport, const fsdp__process_group_spec *spec, void **out);
void fsdp__arena_group_ready(void *group);
void fsdp__arena_group_free(void *group);
int fsdp__arena_block(const void *group);
void fsdp__arena_add_by_machine(void *transport, void *world_group, int ranks);

/* Convert between addresses and the offsets that ranks exchange. */
static inline uint64_t fsdp__to_offset(const fsdp__arena_group *group, const void *pointer)
{
    return (uint64_t)((uintptr_t)pointer - (uintptr_t)group->world->arena->base);
}

static inline void *fsdp__from_offset(const fsdp__arena_group *group, uint64_t offset)
{
    return (void *)((uintptr_t)group->world->arena->base + (uintptr_t)offset);
}
