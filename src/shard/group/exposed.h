/* exposed.h - measures exposed time: how long nothing is computed because a gather or a reduction is not done.
 *
 * On a processor the program itself issues and waits, so the host's clock is enough. A GPU waits later than the host:
 * its stream takes one stamp before each wait and one after it. It does so once somebody has asked for the time. */
#pragma once

#include "fsdp/device.h"

typedef struct fsdp__gpu_wait fsdp__gpu_wait;

typedef struct fsdp__exposed {
    bool asked;             /* somebody has asked for the time */
    int64_t ns;             /* the sum so far */
    fsdp__gpu_wait *newest; /* of the GPU's waits that the sum lacks */
    int count;              /* of these */
} fsdp__exposed;

/* Describes one stretch of such time. */
typedef struct fsdp__stretch {
    fsdp_stream *stream;
    int64_t began_ns;     /* by the host's clock */
    fsdp__gpu_wait *wait; /* by the GPU's; NULL: it is not counted there */
} fsdp__stretch;

/* Begins a stretch in which `stream` waits for `other`, or, with `issues`, in which the caller issues to `other`: that
 * holds up a GPU only where both are one stream. Where very many waits of a GPU are not in the sum yet, they are added
 * first, for which the host waits. */
fsdp_status fsdp__exposed_begin(fsdp__exposed *exposed, fsdp_stream *stream, const fsdp_stream *other, bool issues,
                                fsdp__stretch *out);
/* Ends it, and adds what the host knows of it; call it with `ended` false after a failure within. */
fsdp_status fsdp__exposed_end(fsdp__exposed *exposed, const fsdp__stretch *stretch, bool ended);
/* Adds what the GPU knows, for which it waits until that has come so far. May be called within a stretch, which a later
 * call adds. [blocks] */
fsdp_status fsdp__exposed_sum(fsdp__exposed *exposed);
/* Forgets what was not added up. [blocks] */
void fsdp__exposed_drop(fsdp__exposed *exposed);
