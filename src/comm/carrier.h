/* carrier.h - device carriers: collectives that a group issues on the streams of a device, behind the host.
 *
 * [Note: carriers]
 * The transport of a world keeps what is the host's: groups, objects, the numbers and signatures of calls, memory,
 * readers and health. For calls on streams of a device that `carries` (NVIDIA's), a group may have a carrier under it,
 * which is a second table of collectives (fsdp__collectives_of). It is made when the group's first such call is issued:
 * in the order of the program, by the hosts of all its ranks, which tell each other what it needs
 * (choose_carrier.h). Calls of other streams stay with the transport.
 *
 * A slot of a carrier is called like one of a transport (transport_ops.h): in the group's turn, inside the work of
 * traffic->stream, where traffic->carried is set. It compares signatures through the transport, on the host, when it
 * issues: the slot `barrier` of the group's transport, given the call itself, does that and nothing else. Then it makes
 * the stream wait for its peers by means of the device, and issues the rest beneath the work that it is called in. It
 * returns without settling. What the host is to know (call->contributed, flags, counters) it knows on return; the bytes
 * are there for whoever comes later on the stream. Two calls of a group may be on two streams, and are in order on the
 * device all the same. Results have the bits that the transport's would have.
 *
 * A device that waits for a rank that is gone, or stuck, would wait for ever. So a thread of the host looks after the
 * ranks that busy carriers wait for (carrier_watch.h). When the world has ended it condemns the device, so that nobody
 * takes what it computes from then on for a result, and has the carrier release it. Where other ranks may release it,
 * too, that is not early enough: there the device is judged by the world itself (fsdp__device_judge), which ends before
 * anybody releases anything. */
#pragma once

#include "comm/transport_ops.h"

enum {
    FSDP__CARRIER_FACTS = 512 /* bytes that each rank tells the others of a group */
};

typedef struct fsdp__carrier_ops {
    fsdp_carrier kind;
    /* Required. Their first argument is what `create` gave. `barrier` is not called. */
    const fsdp__collective_ops *collectives;
    /* Makes this rank's part of a carrier for the group's calls on the device's streams, and writes what the others
     * need to know of it (FSDP__CARRIER_FACTS bytes, zero before). Called on the program's thread, and so is `open`.
     * Both fail with FSDP_UNSUPPORTED or FSDP_NO_MEMORY where the group must do without. */
    fsdp_status (*create)(fsdp_process_group *group, fsdp_device *device, void *facts, void **out);
    /* Called when `create` has succeeded on all ranks, with the facts of each: connects them. `why` gets what the log
     * is to say of it. */
    fsdp_status (*open)(void *carrier, const void *const *facts, char *why, size_t why_bytes);
    /* Waits for the device's calls and frees the carrier; also one that was not opened. */
    void (*free)(void *carrier);
    /* Returns a number that grows as the device does the carrier's calls; 0: it has done all that were issued. Any
     * thread. */
    uint64_t (*busy)(void *carrier);
    /* Makes the device's streams go on, because the world has ended. Any thread, may be called again. */
    void (*release)(void *carrier);
    /* Optional. Returns whether all ranks are on one device, and can have shared memory there (fsdp__memory_ops, with
     * the call's device). */
    bool (*shares)(const void *carrier);
} fsdp__carrier_ops;

/* Holds what a group has of a carrier. */
typedef struct fsdp__carriage {
    bool decided;                 /* its ranks have asked each other */
    const fsdp__carrier_ops *ops; /* NULL: the transport takes all calls */
    void *state;
    fsdp_device *device; /* on whose streams the carrier takes calls */
    uint64_t seen;       /* for the thread that looks: busy's number, */
    int64_t ticks;       /* and for how long it has not grown */
} fsdp__carriage;
