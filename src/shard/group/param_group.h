/* param_group.h - a group of parameters: gathered in one all-gather, reduced in one reduce-scatter (FSDP2's
 * FSDPParamGroup).
 *
 *     SHARDED --unshard--> GATHERING --wait--> UNSHARDED --reshard--> SHARDED
 *             SHARDED_POST_FORWARD --unshard--> GATHERING, UNSHARDED --reshard_to_slice--> SHARDED_POST_FORWARD
 *
 * The parameters of a group lie on one device and over one mesh. Each has its own dtypes and its own sharded dimension.
 */
#pragma once

#include "shard/group/custom.h"
#include "shard/group/encoded.h"
#include "shard/group/exposed.h"
#include "shard/group/gather.h"
#include "shard/group/layout.h"
#include "shard/group/offload.h"
#include "shard/group/param.h"
#include "shard/group/residence.h"
#include "shard/group/slice.h"

/* Names the two buffers of unsharded gradients. Each is made for the whole group at once: one for gradients as they are
 * computed, one for those that are accumulated in the reduce dtype between backwards without reduction. */
typedef enum fsdp__gradient_use {
    FSDP__GRADIENT_COMPUTED,
    FSDP__GRADIENT_ACCUMULATED,
    FSDP__GRADIENT_USES
} fsdp__gradient_use;

/* One region, with room for the buffers whose parameters were not all frozen when it was made. */
typedef struct fsdp__gradient_buffer {
    fsdp__region *region; /* weak: it lives as long as a gradient in it */
    bool *has_place;      /* one for each of the group's buffers */
} fsdp__gradient_buffer;

/* Counts the dtypes of results that were reduced inside the shard group, and not yet over the replicas (partial.h). */
enum {
    FSDP__PARTIAL_RUNS = 3 /* f32, bf16, f16 */
};
typedef struct fsdp__partial {
    fsdp__storage *storage; /* NULL: there are none */
    int64_t *places;        /* for each parameter: the byte where its chunk begins; -1: it has none */
    int run_count;
    struct fsdp__partial_run {
        fsdp_dtype dtype;
        int64_t at, numel;      /* first byte, elements */
    } runs[FSDP__PARTIAL_RUNS]; /* each holds the chunks of one dtype, one after the other */
} fsdp__partial;
typedef struct fsdp__partial_run fsdp__partial_run;

typedef struct fsdp__param_group {
    struct fsdp__module_state *state; /* the state that it belongs to */
    const void *owner;                /* its module, for the ledger: fsdp__taker */
    const fsdp__cut *cut;             /* set before the group is laid out; so is `flat`, which a flat group uses */
    fsdp__flat flat;
    fsdp__param *params;
    int64_t param_count, param_capacity;
    /* In a flat group this stands for all parameters as one. Optimizers get its `sharded` in place of the parameters'
     * shards; NULL: they get those. */
    fsdp__param vector;
    fsdp__param *buffers; /* what collectives take: the parameters, or the vector; set when the group is laid out */
    int64_t buffer_count;
    fsdp__residence residence;
    const fsdp__gather_way *way; /* shards or codes; set when the group is laid out */
    fsdp__slice slice;
    fsdp__offload offload; /* used if the residence says so */
    fsdp__encoded encoded; /* used if codes are gathered */
    /* A second process group of the shard group's ranks, for reductions alone; NULL: they use the shard group. Owned by
     * the context. */
    fsdp_process_group *reduce_pg;
    fsdp_custom_collective all_gather, reduce_scatter, all_reduce; /* the caller's; without `run`: the library's */
    fsdp_dtype compress;      /* what reductions send, where it is narrower than the reduce dtype; or NONE */
    fsdp_dtype low_gradients; /* dtype that gradients of shards rest in: low_gradients.h; NONE: the shards' dtype */
    fsdp__region *packed;     /* for a gather by the caller's function, while it may be running */
    fsdp__gradient_buffer gradients[FSDP__GRADIENT_USES];
    fsdp__partial partial;
    struct fsdp__buckets *buckets; /* that its gradients are sent in: buckets.h; NULL: all are sent at once */

    const fsdp_module *summoned_by; /* the module whose summon_full_params has not ended; or NULL */
    fsdp_sharded_state sharded_state;
    fsdp_event *gathered;
    fsdp__exposed gathers; /* its part of the communication context's time */
    bool kept;             /* gradients of backwards without reduction since the last one; the same on all ranks */
    bool explicit;         /* unsharded by the caller: [Note: what fields name] in param.h */
    bool requested;        /* by unshard_async, and not used since */
    bool stays_unsharded;  /* after a use, as far as all ranks know: [Note: staying unsharded] in iteration.h */
    bool asked;            /* in the running exchange */
    bool writes_back, summoned_grads; /* at the end of the summon; gradients are summoned, too */
    bool written;    /* the device's stream has written the shards since a gather last waited for that */
    bool fresh;      /* COPY: the memory that the gather uses is new from the device */
    bool gives_back; /* it has memory of fetched rows to give back: give_back.h */
    bool of_root;    /* of the outermost state: its memory does not count in spares.out */
} fsdp__param_group;

/* Adds up the time of gathers that a GPU knows, here and in the communication context, and lets it be taken from now
 * on. [blocks] */
fsdp_status fsdp__param_group_add_up_gathers(fsdp__param_group *group, fsdp__comm_context *comm);
/* Returns FSDP_STATE, with a message that it cannot `what` the parameters, if they are summoned. */
fsdp_status fsdp__param_group_check_summon(const fsdp__param_group *group, const char *what);

/* Checks that gradients can be sent in `dtype`; NONE stands for their own. */
fsdp_status fsdp__check_compression(fsdp_dtype dtype);
/* Returns the dtype that the param's gradients, partial ones included, are sent in. */
fsdp_dtype fsdp__param_sent_dtype(const fsdp__param *param);

/* Returns which of the group's buffers the parameter lies in. */
int64_t fsdp__param_buffer_index(const fsdp__param *param);
/* Gives the parameters of a buffer; returns their number. */
int64_t fsdp__param_group_in_buffer(const fsdp__param_group *group, int64_t buffer, fsdp__param **out);
/* Gives the parameters, or the vector, whose shards optimizers get, with the gradients; returns their number. */
int64_t fsdp__param_group_holders(fsdp__param_group *group, fsdp__param **out);

/* Adds a parameter at the end. Pointers to parameters added earlier become invalid. */
fsdp_status fsdp__param_group_add(fsdp__param_group *group, fsdp_tensor *tensor, fsdp__param **out);

/* Gives up the memory and objects that the group got with its residence. Tensors in them that others hold stay valid.
 */
void fsdp__param_group_close(fsdp__param_group *group);

/* ---- the life cycle of the unsharded parameters ---- All calls are idempotent. */

/* Starts the gather, unless it has been started already. [collective] */
fsdp_status fsdp__param_group_unshard(fsdp__param_group *group, fsdp__comm_context *comm);
/* Begins a use: waits until the unsharded parameters are there, and makes the fields name them. */
fsdp_status fsdp__param_group_wait(fsdp__param_group *group, fsdp__comm_context *comm);
/* Ends a use, and leaves the group unsharded. */
void fsdp__param_group_leave(fsdp__param_group *group);
/* Ends a use, and drops the unsharded parameters, or the slice. */
void fsdp__param_group_reshard(fsdp__param_group *group, fsdp__comm_context *comm);
/* Reshards on this rank alone, by a write or a call of the caller's: see [Note: staying unsharded] in iteration.h. */
void fsdp__param_group_give_up(fsdp__param_group *group, fsdp__comm_context *comm);
/* Keeps a slice if the group has one, and reshards otherwise. */
fsdp_status fsdp__param_group_reshard_to_slice(fsdp__param_group *group, fsdp__comm_context *comm);
/* Returns the process group of its reductions. */
fsdp_process_group *fsdp__param_group_reduce_pg(const fsdp__param_group *group);
/* Returns the process group of the next gather, or of the running one. */
fsdp_process_group *fsdp__param_group_gather_pg(const fsdp__param_group *group);
