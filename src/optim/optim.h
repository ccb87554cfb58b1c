/* optim.h - internal structures and functions of an optimizer. */
#pragma once

#include "fsdp/optim.h"

#include "base/compiler.h"
#include "device/kernels.h"

typedef enum fsdp__optimizer_kind {
    FSDP__OPTIMIZER_ADAM,
    FSDP__OPTIMIZER_ADAMW,
    FSDP__OPTIMIZER_SGD,
    FSDP__OPTIMIZER_LION,
    FSDP__OPTIMIZER_MUON,
    FSDP__OPTIMIZER_ADAFACTOR
} fsdp__optimizer_kind;

enum {
    FSDP__OPTIMIZER_PARTS = 4 /* tensors of a parameter's state, at most */
};

typedef struct fsdp__optimizer_param {
    char *name;
    fsdp_tensor *tensor;
    int64_t steps; /* number of steps taken with a gradient */
    /* NULL before the first step. Adam: exp_avg and exp_avg_sq. Lion: exp_avg. SGD: the momentum buffer, if there is
     * momentum. Muon: the momentum buffer. Adafactor: row_var and col_var, or variance of a vector. */
    fsdp_tensor *moment1, *moment2;
    fsdp_tensor *scale1, *scale2; /* of moments that are bytes */
    bool due;                     /* in the running step: it has a gradient, and is not launched yet */
    unsigned open; /* bit 0: the newest step that is not settled is counted in `steps`; bit 1: so is the one before */
    int owner;     /* with partitioned state: the rank that steps it and has its state */
    struct fsdp__optimizer_param *originals; /* of a flat parameter: originals.h */
    int64_t original_count;
    int64_t first; /* of an original: its first element in this rank's part of the flat parameter */
} fsdp__optimizer_param;

typedef struct fsdp__optimizer_group {
    fsdp__optimizer_kind kind;
    double lr;
    union {
        fsdp_adam_options adam;
        fsdp_sgd_options sgd;
        fsdp_lion_options lion;
        fsdp_muon_options muon;
        fsdp_adafactor_options adafactor;
    } options;
    fsdp__optimizer_param *params;
    int64_t count;
    int64_t *sorted; /* with partitioned state: the parameters in order of decreasing size */
} fsdp__optimizer_group;

struct fsdp_optimizer {
    fsdp__optimizer_group *groups;
    int group_count;
    fsdp_context *context; /* of the first tensor that was given, trained or not; NULL: none was */
    float grad_scale;      /* from clipping, for the next step; otherwise 1 */
    /* Has a span for every parameter, launch by launch. Spans stay as they are until the next step. */
    fsdp__optimizer_span *spans;
    fsdp__byte_span *byte_spans; /* of parameters whose moments are bytes, in the same places */
    int64_t span_capacity, byte_capacity, span_count;
    struct fsdp__partition *partition; /* NULL: this rank steps all parameters */
    const fsdp__verdict *verdict;      /* on the running step, on its device; NULL: it is taken */
    int open;                          /* number of steps that are not settled: 0 to 2 */
    int holds;                         /* the caller's, and those of scalers that know it by its address */
};

/* Hold its address, which no other optimizer has until it is dropped; it may be freed meanwhile. */
fsdp_optimizer *fsdp__optimizer_hold(fsdp_optimizer *optimizer);
void fsdp__optimizer_drop(fsdp_optimizer *optimizer);

/* Holds the state of a walk over the parameters of all groups. It begins as zeros. */
typedef struct fsdp__optimizer_walk {
    fsdp__optimizer_group *group; /* of `param` */
    fsdp__optimizer_param *param; /* the one at hand */
    int next_group;
    int64_t next, next_original;
} fsdp__optimizer_walk;
/* Goes on to the next parameter; returns false after the last. */
bool fsdp__next_param(const fsdp_optimizer *optimizer, fsdp__optimizer_walk *walk);
/* Does the same with the parameters under the names of their state: originals take the place of flat ones. */
bool fsdp__next_original(const fsdp_optimizer *optimizer, fsdp__optimizer_walk *walk);

/* Returns the number of parameters of all groups. */
int64_t fsdp__optimizer_count(const fsdp_optimizer *optimizer);
/* Checks the options of a group; the error names the one that is wrong. */
fsdp_status fsdp__optimizer_check_options(const fsdp__optimizer_group *group);

/* Says what a part of a parameter's state has a number for. */
typedef enum fsdp__part_extent {
    FSDP__PART_ELEMENTS,
    FSDP__PART_BLOCKS, /* blocks of rows */
    FSDP__PART_ROWS,   /* of the last two dimensions, of the whole parameter: every rank has all of it */
    FSDP__PART_COLUMNS /* the same of columns */
} fsdp__part_extent;

/* Describes a part of a parameter's state, beside its step; a NULL moment: not there. */
typedef struct fsdp__optimizer_part {
    const char *name;
    fsdp_tensor **moment;
    fsdp_dtype dtype;
    fsdp__part_extent extent;
} fsdp__optimizer_part;

/* Returns whether the parameter's moments are bytes. */
bool fsdp__optimizer_has_bytes(const fsdp__optimizer_group *group, const fsdp_tensor *tensor);
/* Gives the shape that this rank's part of the parameter's state has; and returns the number of its dimensions. */
int fsdp__optimizer_part_shape(const fsdp_tensor *tensor, const fsdp__optimizer_part *part,
                               int64_t shape[FSDP_MAX_DIMS]);

/* Refuses an optimizer that is NULL; `what` was to be done with it. */
fsdp_status fsdp__optimizer_check(const fsdp_optimizer *optimizer, const char *what);
/* Checks that an optimizer can take the parameter; the error names it. */
fsdp_status fsdp__optimizer_check_param(const char *name, const fsdp_tensor *tensor);
/* Gives the gradient of a parameter, checked; NULL if there is none. */
fsdp_status fsdp__optimizer_grad(const fsdp__optimizer_param *param, fsdp_tensor **grad);

/* Makes the parameter's state fit it: zeros if it has no state, and this rank's rows of the state if it was sharded
 * since its last step. */
fsdp_status fsdp__optimizer_fit_state(const fsdp__optimizer_group *group, fsdp__optimizer_param *param);
void fsdp__optimizer_forget_state(fsdp__optimizer_param *param);

/* ---- steps of which the device decides what becomes of them: [Note: verdicts] in device/kernels_optim.h ----
 *
 * The host queues fsdp__optimizer_judge and fsdp__optimizer_step_judged, and learns later what the verdict was. It may
 * queue one more step before it settles the first. */

/* Returns whether all parameters lie on the device. */
bool fsdp__optimizer_is_on(const fsdp_optimizer *optimizer, const fsdp_device *device);
/* Computes the norm of all gradients of this rank, which lie on the device, and decides by it; `how` says how, its sum
 * is set here. [stream] */
fsdp_status fsdp__optimizer_judge(const fsdp_optimizer *optimizer, fsdp_device *device, fsdp__judge_step_args how);
/* Takes a step as fsdp_optimizer_step does, unless the verdict leaves it out. [stream] */
fsdp_status fsdp__optimizer_step_judged(fsdp_optimizer *optimizer, const fsdp__verdict *verdict);
/* Takes note of what became of the oldest step that is not settled. */
void fsdp__optimizer_settle(fsdp_optimizer *optimizer, bool left_out);
/* These two do the work of a scaler. The first unscales the gradients of this rank whatever they are, before the step
 * is judged. The second updates the scaler once it is known whether the step was left out, because a gradient was not
 * finite. */
fsdp_status fsdp__grad_scaler_unscale_unseen(const fsdp_grad_scaler *scaler, const fsdp_optimizer *optimizer);
void fsdp__grad_scaler_hear(fsdp_grad_scaler *scaler, bool found_inf);

/* ---- muon.c ---- */

/* Checks that Muon can take the parameter. */
fsdp_status fsdp__muon_check(const char *name, const fsdp_tensor *tensor);
/* Takes the step of the group's parameters that are due, which have state and are being written. [collective] where
 * they are sharded. */
fsdp_status fsdp__muon_step(const fsdp_optimizer *optimizer, fsdp__optimizer_group *group);

/* ---- adafactor.c ---- */

/* Checks that Adafactor can take the parameter. */
fsdp_status fsdp__adafactor_check(const char *name, const fsdp_tensor *tensor);
/* Takes the step of the group's parameters that are due, which have state and are being written. [collective] where
 * they are sharded. */
fsdp_status fsdp__adafactor_step(const fsdp_optimizer *optimizer, fsdp__optimizer_group *group);

/* ---- spread.c ---- */

/* Gives the shape of the whole parameter, and returns the number of its dimensions. */
int fsdp__optimizer_whole_shape(const fsdp_tensor *tensor, const int64_t **shape);

typedef struct fsdp__spread {
    fsdp_device *device;
    fsdp_mesh *mesh;  /* NULL if nothing is split */
    unsigned sharded; /* bit i: mesh dimension i splits the tensors */
} fsdp__spread;

bool fsdp__spread_equal(const fsdp__spread *a, const fsdp__spread *b);
/* Gives the spread of the parameter; `what` is to be done with it, for an error, which names one that is partial. */
fsdp_status fsdp__spread_of(const char *name, const fsdp_tensor *tensor, const char *what, fsdp__spread *out);

/* Labels the group's calls with the parameters that take a step together: so ranks whose gradients are of different
 * parameters are told. Count the parameters in one by one; it begins as zeros. */
typedef struct fsdp__step_label {
    const char *first; /* borrowed: the name of the first parameter */
    int64_t count;
    uint64_t hash; /* of all names */
} fsdp__step_label;
void fsdp__step_label_add(fsdp__step_label *label, const fsdp__optimizer_param *param);
void fsdp__step_label_set(const fsdp__step_label *label, fsdp_process_group *group);

/* ---- moments.c ---- */

/* Gives the parts of the parameter's state. */
void fsdp__optimizer_parts(const fsdp__optimizer_group *group, fsdp__optimizer_param *param,
                           fsdp__optimizer_part parts[FSDP__OPTIMIZER_PARTS]);

/* ---- optimizer_state.c ---- */

/* Add a part of the parameter's state under its name; and the number of its steps, as a tensor of the device. */
fsdp_status fsdp__optimizer_add_part(fsdp_state_dict *state, const fsdp__optimizer_param *param, const char *what,
                                     fsdp_tensor *tensor);
fsdp_status fsdp__optimizer_add_step(fsdp_state_dict *state, const fsdp__optimizer_param *param, fsdp_device *device,
                                     int64_t steps);

FSDP__SCOPED_POINTER(fsdp_optimizer, fsdp_optimizer_free)
