/* group.h - a group of parameters: gathered in one all-gather, reduced in one reduce-scatter (FSDP2's FSDPParamGroup).
 *
 *     SHARDED --unshard--> GATHERING --wait--> UNSHARDED --reshard--> SHARDED
 *             SHARDED_POST_FORWARD --unshard--> GATHERING, UNSHARDED --reshard_to_slice--> SHARDED_POST_FORWARD
 *
 * The parameters of a group lie on one device and over one mesh; dtypes and sharded dimensions are each one's own. */
#ifndef SHARD_GROUP_H
#define SHARD_GROUP_H

#include "shard/custom.h"
#include "shard/flat.h"
#include "shard/offload.h"
#include "shard/param.h"
#include "shard/residence.h"
#include "shard/slice.h"
#include "shard/wire.h"

/* Memory for unsharded gradients is made for a group at once: as they are computed, and as they are accumulated in the
 * reduce dtype between backwards without reduction. */
typedef enum fsdp__gradient_use {
    FSDP__GRADIENT_COMPUTED,
    FSDP__GRADIENT_ACCUMULATED,
    FSDP__GRADIENT_USES
} fsdp__gradient_use;

/* One region, with room for the parameters that were not frozen when it was made. */
typedef struct fsdp__gradient_buffer {
    fsdp__region *region; /* weak: it lives as long as a gradient in it */
    bool *has_place;      /* by parameter */
} fsdp__gradient_buffer;

/* What reductions inside the shard group have left, as long as other replicas have not been asked: see partial.h. */
enum {
    FSDP__PARTIAL_RUNS = 3 /* f32, bf16, f16 */
};
typedef struct fsdp__partial {
    fsdp__storage *storage; /* NULL: nothing waits */
    int64_t *places;        /* by parameter: the byte where its chunk begins; -1: it has none */
    int run_count;
    struct fsdp__partial_run {
        fsdp_dtype dtype;
        int64_t at, numel;      /* first byte, elements */
    } runs[FSDP__PARTIAL_RUNS]; /* chunks of one dtype, one after the other */
} fsdp__partial;
typedef struct fsdp__partial_run fsdp__partial_run;

typedef struct fsdp__param_group {
    struct fsdp__module_state *state; /* whose it is */
    fsdp__flat flat;                  /* chosen before the group is laid out */
    fsdp__param *params;
    int64_t param_count, param_capacity;
    fsdp__residence residence;
    fsdp__slice slice;
    fsdp__offload offload; /* where the residence says so */
    fsdp__wire wire;
    /* The shard group once more, for reductions alone; NULL: they share it. The context's. */
    fsdp_process_group *reduce_pg;
    fsdp_custom_collective all_gather, reduce_scatter, all_reduce; /* the caller's; without `run`: the library's */
    fsdp_dtype compress;      /* of reductions on the wire, where that is narrower than the reduce dtype; NONE */
    fsdp_dtype low_gradients; /* that gradients of shards rest in: low_gradients.h; NONE: in the shards' */
    fsdp__region *packed;     /* for a gather by the caller's, while it may be at it */
    fsdp__gradient_buffer gradients[FSDP__GRADIENT_USES];
    fsdp__partial partial;
    struct fsdp__buckets *buckets; /* that its gradients are sent in: buckets.h; NULL: all at once */

    const fsdp_module *summoned_by; /* summon_full_params was called on it, and not ended; or NULL */
    fsdp_sharded_state sharded_state;
    fsdp_event *gathered;
    bool kept;            /* gradients of backwards without reduction, since the last one; the same on all ranks */
    bool explicit;        /* unsharded by the caller: [Note: what fields name] in param.h */
    bool requested;       /* by unshard_async, and not used since */
    bool stays_unsharded; /* after a use, as all ranks know: [Note: staying unsharded] in root.h */
    bool asked;           /* in the running exchange */
    bool writes_back, summoned_grads; /* when the summon ends; of gradients, too */
    bool written;                     /* the shards, by the device's stream, since a gather last waited for that */
    bool fresh;                       /* COPY: memory that the gather uses is new from the device */
    bool gives_back;                  /* what came from other machines: give_back.h */
    bool of_root;                     /* of the outermost state: its memory does not count in spares.out */
} fsdp__param_group;

/* FSDP_STATE, that it cannot `what` them, while its parameters are summoned. */
fsdp_status fsdp__param_group_check_summon(const fsdp__param_group *group, const char *what);

/* Whether gradients can be sent in it; NONE: as they are. */
fsdp_status fsdp__check_compression(fsdp_dtype dtype);
/* What its gradients are sent in, and partial ones are. */
fsdp_dtype fsdp__param_sent_dtype(const fsdp__param *param);

/* Adds a parameter, in the order of the calls; pointers to earlier ones are invalid then. */
fsdp_status fsdp__param_group_add(fsdp__param_group *group, fsdp_tensor *tensor, fsdp__param **out);

/* ---- the life cycle of the unsharded parameters ---- All are idempotent. */

/* [collective] */
fsdp_status fsdp__param_group_unshard(fsdp__param_group *group, fsdp__comm_context *comm);
/* A use begins: unsharded parameters are there, fields name them. */
fsdp_status fsdp__param_group_wait(fsdp__param_group *group, fsdp__comm_context *comm);
/* A use ends, and the group stays unsharded. */
void fsdp__param_group_leave(fsdp__param_group *group);
void fsdp__param_group_reshard(fsdp__param_group *group, fsdp__comm_context *comm);
/* The same on this rank alone, by a write or by the caller's will: see [Note: staying unsharded] in root.h. */
void fsdp__param_group_give_up(fsdp__param_group *group, fsdp__comm_context *comm);
/* Keeps a slice where the group has one; else as reshard. */
fsdp_status fsdp__param_group_reshard_to_slice(fsdp__param_group *group, fsdp__comm_context *comm);
/* The process group of its reductions. */
fsdp_process_group *fsdp__param_group_reduce_pg(const fsdp__param_group *group);
/* The ranks that the next gather, or the running one, is over. */
fsdp_process_group *fsdp__param_group_gather_pg(const fsdp__param_group *group);

#endif
