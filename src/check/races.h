/* races.h - the race check: every use of device memory is compared with stream order.
 *
 * Two uses of the same bytes, one of which writes, must be ordered by something that holds in every run: the sequence
 * of one stream, an event that is waited for, the host that waits or queues, a meeting of ranks, a reader that a writer
 * awaits. What only the timing of this run has ordered is a race. It is found whichever of the two uses comes first.
 * The report names both uses, and from then on every kernel, copy and collective of the ranks that know each other
 * fails with it.
 *
 * Uses are those of kernels (kernel_buffers.c says which), of copies, of transports that report them, and the giving
 * back of memory: a write in the order of the device's stream ([Note: order of memory] in device.h). Watched is the
 * memory that devices hand out, their own and the host's, and that ranks share; other memory of the host is not
 * watched, as malloc hands it from thread to thread. Ranks that are threads are checked against each other; a rank that
 * is a process knows only its own uses. The check listens to probes (base/probe.h), so nothing in a queue or on the
 * ledger is different with it. */
#pragma once

#include "fsdp/context.h"

/* Checks all that the devices of `context` do; the context must not have opened any yet. `with`: a context of the same
 * process that is checked and whose memory this one may use; NULL: none. Call it before either has a thread of its
 * own. */
fsdp_status fsdp__races_check(fsdp_context *context, const fsdp_context *with);
/* Returns whether a race was found; `text` gets the report, or "". Any thread. */
bool fsdp__races_found(const fsdp_context *context, char *text, size_t bytes);
