/* buckets.h - the parameters of a replicated group in buckets, and the memory of their unsharded gradients.
 *
 * A parameter group is what is held together; buckets are a division of it for reductions alone, which may change
 * between iterations while parameters stay where they are. In a bucket gradients lie one after the other without a gap,
 * so that one all-reduce takes them as they lie. */
#ifndef SHARD_BUCKETS_H
#define SHARD_BUCKETS_H

#include "fsdp/replicate.h"
#include "shard/group.h"

typedef struct fsdp__bucket {
    const int32_t *params; /* indices in the group, in the order of the bucket; in fsdp__buckets.order */
    int64_t count, numel;
    fsdp_dtype dtype;
    fsdp__region *region; /* of the gradients that come; weak: it lives as long as one of them */
    int64_t waiting;      /* of its parameters, that the running backward has yet to come through */
} fsdp__bucket;

typedef struct fsdp__bucket_place {
    int64_t bucket; /* -1: none, as of a frozen parameter */
    int64_t at;     /* elements before it in the bucket */
    bool expected;  /* the running backward is of a forward that trained it */
    bool waited;    /* the running backward uses it, and has not come through all of that */
    bool used;      /* static graph: by some rank, in the first iteration */
    bool used_here; /* by this one */
} fsdp__bucket_place;

/* What became of a parameter that this rank had no gradient of, until it is known whether another had. */
typedef struct fsdp__late_result {
    fsdp__param *param;
    fsdp_tensor *result;
} fsdp__late_result;

typedef struct fsdp__buckets {
    fsdp_replicate_options options; /* without what they borrow */
    fsdp_module **ignored;          /* modules whose buffers are each rank's own; the tree's */
    int64_t ignored_count;
    fsdp__bucket *items; /* in the order in which they are sent */
    int64_t count;
    int32_t *order;             /* bucket after bucket */
    fsdp__bucket_place *places; /* by parameter */
    int64_t place_count;
    int32_t *arrivals; /* whose gradients were complete, in that order */
    int64_t arrival_count;
    int64_t backwards;     /* that have reduced since the buckets were first built */
    bool rebuilt;          /* in the order of arrivals */
    bool buffers_due;      /* rank 0's go to all before the next forward */
    bool open;             /* a forward ran whose backward has not come */
    bool running;          /* a backward that reduces */
    int64_t next;          /* bucket to be sent */
    int64_t last;          /* that will be: the others have nothing to send */
    fsdp_bucket_hook hook; /* averages in place of the library; NULL: the library does */
    void *hook_arg;
    float divisor;           /* of the running backward, in place of all ranks; 0: those */
    uint8_t incomplete;      /* some rank is: asked apart where a hook averages */
    uint8_t complete;        /* this rank has a gradient of every parameter */
    bool lacking;            /* some rank has not: known when the last bucket has been sent */
    fsdp__late_result *late; /* of the running backward */
    int64_t late_count;      /* room for all parameters */
    bool joining;            /* forwards are announced to ranks that have no inputs left: join.h */
    fsdp_join_options join;
    bool absent;                                      /* this rank takes part in a backward of others */
    int speaker;                                      /* whose order, buffers and parameters go to all */
    fsdp_status (*grad_complete)(fsdp__param *param); /* the running backward is through with it */
} fsdp__buckets;

/* For all parameters of the group, whose number is known. */
fsdp_status fsdp__buckets_create(const fsdp__param_group *group, const fsdp_replicate_options *options,
                                 fsdp__buckets **out);
void fsdp__buckets_free(fsdp__buckets *buckets);

/* ---- who is in which ---- */

/* As in the first iteration, of the parameters that are not frozen. */
fsdp_status fsdp__buckets_assign(fsdp__param_group *group);
/* Whether these are others than the buckets have, or of other dtypes. */
bool fsdp__buckets_are_outdated(const fsdp__param_group *group);
/* From the speaker's order of arrivals. [collective] */
fsdp_status fsdp__buckets_rebuild(fsdp__param_group *group);
/* Numbers, added up over all ranks. [collective] */
fsdp_status fsdp__buckets_add_up(const fsdp__param_group *group, int32_t *numbers, int64_t count);

/* ---- gradients ---- */

size_t fsdp__bucket_bytes(const fsdp__bucket *bucket);
/* Memory that peers can read where they share some. The caller owns `*out`. */
fsdp_status fsdp__bucket_make_region(const fsdp__param_group *group, const fsdp__bucket *bucket, fsdp__region **out);
/* The region of the bucket's gradients, made where there is none. The caller owns `*out`. */
fsdp_status fsdp__bucket_region(fsdp__param_group *group, fsdp__bucket *bucket, fsdp__region **out);
/* A tensor like the parameter at its place in such a region. The caller owns `*out`. */
fsdp_status fsdp__bucket_tensor(const fsdp__param *param, fsdp__region *region, fsdp_tensor **out);
/* Later gradients get memory of their own. */
void fsdp__bucket_leave_region(fsdp__bucket *bucket);
/* The running backward is over, or has failed: what it has not installed is not wanted. */
void fsdp__buckets_reset(fsdp__buckets *buckets);

#endif
