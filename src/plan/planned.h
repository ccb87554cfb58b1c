/* planned.h - what a plan says. */
#pragma once

#include "explain/explain.h"
#include "plan/prices.h"

/* ---- memory ---- */

/* The moment of the step at which most memory is live. */
typedef struct fsdp__plan_peak {
    size_t bytes[FSDP_MEMORY_KINDS];
    size_t total;     /* of all kinds but WORKSPACE */
    size_t workspace; /* beside it, at that moment */
    fsdp_explained_phase phase;
    int64_t microbatch;
    int64_t unit;                    /* whose forward or backward is going on; -1: none */
    const char *op;                  /* the kernel that is about to run; NULL: none in this step */
    size_t by_op[FSDP__KERNELS + 1]; /* activations, by the kernel that ran first after they were taken; last: others */
} fsdp__plan_peak;

/* The bytes that are live, except WORKSPACE, from a moment of the step on. */
typedef struct fsdp__plan_moment {
    double at;      /* seconds; without prices: how often the ledger has changed */
    int64_t events; /* of the units so far */
    size_t bytes[FSDP_MEMORY_KINDS];
} fsdp__plan_moment;

/* ---- time ---- */

typedef enum fsdp__plan_part {
    FSDP__PLAN_PRODUCTS,
    FSDP__PLAN_ATTENTION,
    FSDP__PLAN_MEMORY_BOUND,
    FSDP__PLAN_OPTIMIZER,
    FSDP__PLAN_COPIES,     /* between a GPU and the host, as far as they are waited for */
    FSDP__PLAN_GATHERS,    /* the same */
    FSDP__PLAN_REDUCTIONS, /* the same, with small calls */
    FSDP__PLAN_HOST,       /* the device waits for the host, which launches */
    FSDP__PLAN_PARTS
} fsdp__plan_part;

typedef struct fsdp__plan_time {
    double step;                                             /* seconds; 0: there are no prices */
    double parts[FSDP__PLAN_PARTS];                          /* they add up to the step */
    double hidden_gathers, hidden_reductions, hidden_copies; /* behind other parts */
} fsdp__plan_time;

/* ---- the plan ---- */

/* Counts bytes over the network in a step. */
typedef struct fsdp__plan_crossing {
    int64_t in, out; /* of the planned rank's machine, all its ranks together */
    /* What a machine must at least receive, and send, on the average: its ranks lack the other machines' rows of what
     * is gathered, and have sums of gradients that other machines need. 0: not known, as where gathers are coded. */
    int64_t least;
} fsdp__plan_crossing;

typedef struct fsdp__plan {
    fsdp_explanation *e; /* of the rank that has the most, without the parts of others and without variants */
    fsdp__plan_peak peak;
    fsdp__plan_moment *moments; /* if they were asked for */
    int64_t moment_count, moment_capacity;
    size_t host_bytes; /* of what is offloaded to the host, at most */
    fsdp__plan_time time;
    fsdp__plan_crossing crossing;
    double tokens_per_step; /* of all ranks */
    int64_t steps;          /* training.steps */
    uint64_t model_hash;    /* fsdp__comm_schedule_parameters */
    double *computed; /* for each event of the explanation: seconds that the device had computed; NULL: no prices */
    bool gpu;
    bool validates;  /* the run has validations, whose memory is not counted */
    bool unsearched; /* which rank has the most is not known: there are too many to try */
} fsdp__plan;

typedef struct fsdp__plan_options {
    int world_size, machines;
    bool one_level;
    bool moments;                        /* keep what is live when */
    bool every_microbatch;               /* run also those that are alike, as it is where moments are kept */
    bool rank_alone;                     /* leave out what its machine's other ranks send */
    const fsdp__prices *prices;          /* NULL: no time */
    const fsdp__comm_schedule *schedule; /* NULL: the config's */
} fsdp__plan_options;

/* Returns what a rank must have for the step, as far as a dry run knows: on a GPU what is reserved there, otherwise the
 * peak of all kinds together, workspace too. This is what fits or does not. */
static inline size_t fsdp__needed_bytes(const fsdp_explained_step *step)
{
    return FSDP__MAX(step->reserved_bytes, step->peak_with_workspace_bytes);
}

/* ---- dry_step.c ---- */

/* Takes the next step of a dry run whose steps are all alike by now, and fills in the plan's peak, time and
 * explanation. */
fsdp_status fsdp__plan_record(fsdp__plan *plan, fsdp_train_run *run, const fsdp__plan_options *options);
