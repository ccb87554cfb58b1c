/* buckets.h - divides the parameters of a replicated group into buckets, and gives their unsharded gradients memory.
 *
 * A parameter group holds the parameters together. Buckets divide it for reductions alone, and the division may change
 * between iterations while the parameters stay where they are. In a bucket gradients lie one after the other without a
 * gap, so that one all-reduce takes them as they lie. */
#pragma once

#include "fsdp/replicate.h"
#include "shard/group/param_group.h"

typedef struct fsdp__bucket {
    const int32_t *params; /* indices in the group, in the order of the bucket; points into fsdp__buckets.order */
    int64_t count, numel;
    fsdp_dtype dtype;
    fsdp__region *region; /* of the gradients being computed; weak: it lives as long as one of them */
    int64_t waiting;      /* number of its parameters that the running backward has not finished with */
} fsdp__bucket;

typedef struct fsdp__bucket_place {
    int64_t bucket; /* -1: none, as for a frozen parameter */
    int64_t at;     /* offset in the bucket, in elements */
    bool expected;  /* the running backward belongs to a forward that trained it */
    bool waited;    /* the running backward uses it, and has not finished with it */
    bool used;      /* some rank used it: in this backward, or with a static graph in the first one */
    bool used_here; /* this rank did */
} fsdp__bucket_place;

/* The result for a parameter that this rank had no gradient of, until it is known whether another rank had one. */
typedef struct fsdp__late_result {
    fsdp__param *param;
    fsdp_tensor *result;
} fsdp__late_result;

typedef struct fsdp__buckets {
    fsdp_replicate_options options; /* without the pointers that it borrows */
    fsdp_module **ignored;          /* modules whose buffers stay each rank's own; borrowed from the tree */
    int64_t ignored_count;
    fsdp__bucket *items; /* in the order in which they are sent */
    int64_t count;
    int32_t *order;             /* the parameters' indices, bucket after bucket */
    fsdp__bucket_place *places; /* one for each parameter */
    int64_t place_count;
    int32_t *arrivals; /* parameters in the order in which their gradients were complete */
    int64_t arrival_count;
    int64_t backwards; /* number that have reduced since the buckets were first built */
    bool rebuilt;      /* from the order of arrivals */
    bool buffers_due;  /* the speaker's buffers go to all ranks before the next forward */
    bool open;         /* a forward has run whose backward has not begun */
    bool running;      /* a backward that reduces is running, on `comm` and with `settings`: */
    fsdp__comm_context *comm;
    const struct fsdp__reduce_settings *settings;
    int64_t next;          /* index of the next bucket to send */
    int64_t last;          /* index of the last bucket to send: those behind it have nothing to send */
    fsdp_bucket_hook hook; /* averages in place of the library; NULL: the library does */
    void *hook_arg;
    float divisor;           /* of the running backward; 0: the number of ranks */
    uint8_t incomplete;      /* some rank lacks a gradient: asked separately where a hook averages */
    uint8_t complete;        /* this rank has a gradient of every parameter */
    bool lacking;            /* some rank lacks a gradient: known when the last bucket has been sent */
    fsdp__late_result *late; /* results of the running backward */
    int64_t late_count;      /* `late` has room for all parameters */
    bool joining;            /* forwards are announced to ranks that have no inputs left (fsdp_module_join_begin) */
    fsdp_join_options join;
    bool absent;                                      /* this rank takes part in a backward of other ranks */
    int speaker;                                      /* the rank whose order, buffers and parameters go to all */
    fsdp_status (*grad_complete)(fsdp__param *param); /* called when the running backward has finished with it */
} fsdp__buckets;

/* Creates the buckets of a group to which all parameters have been added. The caller owns `*out`. */
fsdp_status fsdp__buckets_create(const fsdp__param_group *group, const fsdp_replicate_options *options,
                                 fsdp__buckets **out);
void fsdp__buckets_free(fsdp__buckets *buckets);

/* ---- division ---- */

/* Divides the parameters that are not frozen as for a first iteration. */
fsdp_status fsdp__buckets_assign(fsdp__param_group *group);
/* Returns whether the parameters that are not frozen, or their dtypes, differ from those in the buckets. */
bool fsdp__buckets_are_outdated(const fsdp__param_group *group);
/* Divides anew, in the order in which the speaker's gradients arrived. [collective] */
fsdp_status fsdp__buckets_rebuild(fsdp__param_group *group);
/* Adds up numbers over all ranks, in place. [collective] */
fsdp_status fsdp__buckets_add_up(const fsdp__param_group *group, int32_t *numbers, int64_t count);

/* ---- gradients ---- */

size_t fsdp__bucket_bytes(const fsdp__bucket *bucket);
/* Makes a region for the bucket's gradients, which peers can read where ranks share memory. The caller owns `*out`. */
fsdp_status fsdp__bucket_make_region(const fsdp__param_group *group, const fsdp__bucket *bucket, fsdp__region **out);
/* Gives the region of the bucket's gradients, and makes it if there is none. The caller owns `*out`. */
fsdp_status fsdp__bucket_region(fsdp__param_group *group, fsdp__bucket *bucket, fsdp__region **out);
/* Makes a tensor like the unsharded parameter, at the parameter's place in such a region. The caller owns `*out`. */
fsdp_status fsdp__bucket_tensor(const fsdp__param *param, fsdp__region *region, fsdp_tensor **out);
/* Detaches the bucket from its region: later gradients get new memory. */
void fsdp__bucket_leave_region(fsdp__bucket *bucket);
/* Ends the running backward, successful or not, and drops the late results that it has not installed. */
void fsdp__buckets_reset(fsdp__buckets *buckets);
