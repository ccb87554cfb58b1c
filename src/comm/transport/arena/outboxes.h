/* outboxes.h - memory of a device that peers read, from its making to its end.
 *
 * [Note: who frees an outbox]
 * Peers that are other processes have an outbox open (fsdp__device_import), and what is freed while somebody has it
 * open is not defined. They close it when they free their part of the group, which may be much later. So each rank says
 * in its words that it has closed what it had open. An outbox whose peers have not all said so is kept, and looked at
 * again when the rank makes or frees another one, and when it leaves the world. What is open then, too, is left to the
 * end of the process. */
#pragma once

#include "comm/transport/arena/arena_group.h"
#include "device/device.h"

/* Makes an outbox of the group. The memory is the view's. */
fsdp_status fsdp__outbox_new(const fsdp__arena_group *group, fsdp_device *device, size_t bytes,
                             struct fsdp__outbox **out);
const fsdp__export *fsdp__outbox_memory(const struct fsdp__outbox *outbox);
/* Frees an outbox, or keeps it until its peers have closed it if they may have it open (`shown`).
 * This rank must have closed what it had open. */
void fsdp__outbox_free(fsdp__arena_view *view, struct fsdp__outbox *outbox, bool shown);
/* Frees those that were kept, as the rank leaves. [blocks] a little */
void fsdp__outboxes_close(fsdp__arena_view *view);
