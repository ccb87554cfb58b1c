/* spares.h - memory for gathers that run beside the computing (COPY).
 *
 * Where the device's stream runs behind the host, a group that is resharded may still be read, and the next gather is
 * to run beside that. So it gets other memory as long as no more than two groups besides the root have some; the third
 * waits for the first one's last reader, and takes its place: where groups have unequal sizes it gets new memory, and
 * waits for all that the device's stream has been given. Inline, memory goes back at once. */
#ifndef SHARD_SPARES_H
#define SHARD_SPARES_H

#include "shard/region.h"

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
    int out; /* regions that groups besides the root's have now */
} fsdp__spares;

/* Makes the events, once. */
fsdp_status fsdp__spares_open(fsdp__spares *spares, fsdp_device *device);
void fsdp__spares_close(fsdp__spares *spares);
/* Memory that was in use until its event, which `stream` waits for; NULL when there is room for more. */
fsdp_status fsdp__spares_take(fsdp__spares *spares, size_t bytes, fsdp_stream *stream, fsdp__region **out);
/* Takes the region over. */
void fsdp__spares_give(fsdp__spares *spares, fsdp__region *region);
void fsdp__spares_drop(fsdp__spares *spares);

#endif
