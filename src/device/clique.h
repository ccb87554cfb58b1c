/* clique.h - the devices of several ranks, joined by a library of theirs (NCCL): its collectives are issued to streams.
 *
 * A member issues a call to its stream, and the device runs it when it has got there and all other members have issued
 * theirs: the same calls in the same order, with the same sizes. Nobody finds out where they differ: the devices wait
 * for ever. So ranks compare what they are about to call by other means, and whoever learns that a member is gone
 * breaks the clique. */
#pragma once

#include "device/kernel_args.h"
#include "fsdp/device.h"

enum {
    FSDP__CLIQUE_ID_BYTES = 128
};

typedef enum fsdp__clique_kind {
    FSDP__CLIQUE_GATHER,     /* recv (members * count) = everybody's send (count), in the order of members */
    FSDP__CLIQUE_REDUCE,     /* recv (count) = the reduction by `op` of everybody's send (count) */
    FSDP__CLIQUE_SCATTER,    /* recv (count) = that of part `member` of everybody's send (members * count) */
    FSDP__CLIQUE_BROADCAST,  /* recv (count) = the root's send (count) */
    FSDP__CLIQUE_ALL_TO_ALL, /* part m of recv (members * count) = part `member` of m's send (members * count) */
    FSDP__CLIQUE_KINDS
} fsdp__clique_kind;

/* Buffers are memory of the device. In place: recv == send; of a gather send == recv + member * count, of a scatter
 * recv == send + member * count; never of an all-to-all. In memory that is shown (`show`), either all members' buffers
 * are or none, and at the same offset, except for a gather's or scatter's part in place. Reductions add in an order,
 * and round in a way, of the library's own. */
typedef struct fsdp__clique_call {
    fsdp__clique_kind kind;
    const void *send;
    void *recv;
    int64_t count;
    fsdp_dtype dtype;
    fsdp__rank_op op;
    int root;
} fsdp__clique_call;

/* Describes one member. */
typedef struct fsdp__clique fsdp__clique;

/* Holds what a member must know before it joins. */
typedef struct fsdp__clique_place {
    unsigned char id[FSDP__CLIQUE_ID_BYTES]; /* by `name_clique`, from one member */
    int members, member;
    bool by_copies; /* copy engines are to do what they can do, where the library knows that; all members alike */
} fsdp__clique_place;

/* Says what the library makes of memory that it is shown: each is more than the one before. */
typedef enum fsdp__clique_sight {
    FSDP__CLIQUE_UNSEEN, /* nothing: it takes a way through buffers of its own */
    FSDP__CLIQUE_SEEN,   /* it reads and writes there, where its way between two members lets it */
    FSDP__CLIQUE_WINDOW, /* members read and write each other's */
    FSDP__CLIQUE_COPIES, /* and copy engines gather and exchange, where one machine's links join all members */
    FSDP__CLIQUE_SIGHTS
} fsdp__clique_sight;

typedef struct fsdp__clique_ops {
    const char *library; /* "NCCL" */

    /* Opens the library, and gives its version (22809: 2.28.9), which must be the same for all members; fails where it
     * is missing or too old. [thread-safe] */
    fsdp_status (*open)(fsdp_device *device, int *version);
    fsdp_status (*name_clique)(fsdp_device *device, unsigned char id[FSDP__CLIQUE_ID_BYTES]);
    /* Begins to join. The member is there when `look` says so, which it does when all have joined. */
    fsdp_status (*join)(fsdp_device *device, const fsdp__clique_place *place, fsdp__clique **out);
    /* Take memory that may be shown to members, and give it back, when no member lives to which it was shown. It is not
     * counted: see fsdp__device_clique_alloc. [thread-safe] */
    fsdp_status (*alloc)(fsdp_device *device, size_t bytes, void **out);
    void (*give_back)(fsdp_device *device, void *memory);
    /* Begins to show the library a whole piece of such memory, once for a member: all members show theirs, of one size.
     * It is done when `look` says so, and `sight` then says what came of it. What is shown is so until the member
     * leaves. */
    fsdp_status (*show)(fsdp__clique *clique, void *memory, size_t bytes);
    fsdp__clique_sight (*sight)(fsdp__clique *clique);
    /* Lets a stream wait, from inside its work, until the device has done all that belongs to the member: calls, and
     * what streams had been given before `belongs` was called for them. */
    fsdp_status (*follow)(fsdp__clique *clique, fsdp_stream *stream);
    fsdp_status (*belongs)(fsdp__clique *clique, fsdp_stream *stream);
    /* Returns whether what was asked for last has been done (`*idle`): the join, the issue of calls, the leave. Fails,
     * as all that is asked for from then on, where the library has found an error, and when the clique is broken.
     * [thread-safe] */
    fsdp_status (*look)(fsdp__clique *clique, bool *idle);
    /* Issues calls as one, from inside the stream's work. They are issued when `look` says so: nothing else may be
     * issued to the stream before. */
    fsdp_status (*issue)(fsdp__clique *clique, const fsdp__clique_call *calls, int count, fsdp_stream *stream);
    /* Returns whether the device has not done all that was issued. [thread-safe] */
    bool (*busy)(fsdp__clique *clique);
    /* Tells all calls that were issued to end, whose results are then of no use, and refuses all later ones. Those that
     * a stream has behind others end when these do. Other members' calls wait on. [thread-safe] */
    void (*interrupt)(fsdp__clique *clique);
    /* Begins to leave: all calls are done, and no more will come. It is over when all members do so. */
    fsdp_status (*leave)(fsdp__clique *clique);
    /* Frees a member that has left; one that has not is interrupted, and its calls have ended then. NULL is allowed. */
    void (*free)(fsdp__clique *clique);
} fsdp__clique_ops;

/* Returns what joins devices of this kind; NULL: nothing does. */
const fsdp__clique_ops *fsdp__device_cliques(const fsdp_device *device);
