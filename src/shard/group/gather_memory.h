/* gather_memory.h - memory for gathers that run beside the computing (COPY).
 *
 * Where the device's stream runs behind the host, a group that has been resharded may still be read while the next
 * gather is to run. So that gather gets other memory as long as at most two groups besides the root have some. The
 * third waits for the last reader of the first, and takes its memory. If the groups differ in size it gets new memory
 * instead, and waits for everything that the device's stream has been given. The root's memory goes back to the device
 * at once; if the device's stream is inline, all memory does. */
#pragma once

#include "shard/group/region.h"

enum {
    FSDP__SPARE_REGIONS = 2
};

/* Memory of a group that was resharded while the device's stream may still read it. */
typedef struct fsdp__spare_region {
    fsdp__region *region;
    fsdp_event *free; /* after the last use */
} fsdp__spare_region;

typedef struct fsdp__spares {
    fsdp__spare_region regions[FSDP__SPARE_REGIONS]; /* oldest first */
    int count;
    int out; /* number of regions that groups besides the root's have now */
} fsdp__spares;

/* Makes the events, once. */
fsdp_status fsdp__spares_open(fsdp__spares *spares, fsdp_device *device);
void fsdp__spares_close(fsdp__spares *spares);
/* Gives memory that was in use until its event, and makes `stream` wait for that; NULL: there is room for new. */
fsdp_status fsdp__spares_take(fsdp__spares *spares, size_t bytes, fsdp_stream *stream, fsdp__region **out);
/* Takes the region over. */
void fsdp__spares_give(fsdp__spares *spares, fsdp__region *region);
void fsdp__spares_drop(fsdp__spares *spares);
