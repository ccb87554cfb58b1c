/* traced_step.h - one step of a trace, as a report shows it: what each rank does when, what it waits for and for whom,
 * what it sends, and what its memory holds. */
#pragma once

#include "fsdp/comm.h"
#include "fsdp/device.h"
#include "report/trace_read.h"

/* Says what a rank does. A moment has one: what its device computes comes first, then what it waits for. */
typedef enum fsdp__activity {
    FSDP__DOES_PRODUCTS,
    FSDP__DOES_ATTENTION,
    FSDP__DOES_OTHER, /* kernels that are bound by memory */
    FSDP__DOES_OPTIMIZER,
    FSDP__DOES_COPIES,
    FSDP__WAITS_FOR_GATHERS,    /* nothing hides them */
    FSDP__WAITS_FOR_REDUCTIONS, /* the same */
    FSDP__WAITS_FOR_CALLS,      /* the same, of other collectives */
    FSDP__WAITS_FOR_DATA,
    FSDP__DOES_CHECKPOINT,
    FSDP__DOES_HOST, /* nothing of these: the host prepares what comes next */
    FSDP__ACTIVITIES
} fsdp__activity;
const char *fsdp__activity_name(fsdp__activity activity);
bool fsdp__activity_is_wait(fsdp__activity activity); /* for other ranks, or for what they send */

/* Counts nanoseconds from the beginning of the step. */
typedef struct fsdp__stretch {
    int64_t begin, end;
    int activity; /* or a kind of collective */
} fsdp__stretch;

typedef struct fsdp__stretches {
    fsdp__stretch *items; /* in order, none overlaps another one */
    int64_t count, capacity;
} fsdp__stretches;

typedef struct fsdp__step_rank {
    int64_t after, ns;               /* its step: by how much it begins after the first rank's, and its length */
    int64_t parts[FSDP__ACTIVITIES]; /* they add up to it */
    int64_t for_others;              /* of its waits: until the last rank had come to the call */
    int awaited;                     /* for whom most of that; -1: nobody */
    int64_t caused;                  /* how long others waited for it, all together */
    int64_t checkpoint;              /* a thread of it wrote a checkpoint meanwhile */
    fsdp__stretches does, calls;     /* calls: collectives in progress, hidden or not */
    /* Between two kernels or copies of its device: gaps, all together, and the longest, with what comes before and
     * after it (borrowed; NULL: there is no gap). */
    int64_t gaps, gap_ns, longest_gap;
    const char *gap_after, *gap_before;
} fsdp__step_rank;

/* Says what the slowest rank does longer than the others do. */
typedef enum fsdp__step_reason {
    FSDP__SLOW_IN_NOTHING,
    FSDP__SLOW_IN_COMPUTING,
    FSDP__SLOW_IN_DATA,
    FSDP__SLOW_IN_CHECKPOINT,
    FSDP__SLOW_IN_HOST,
    FSDP__SLOW_IN_CALLS,     /* after all ranks have come to them */
    FSDP__SLOW_BETWEEN_STEPS /* it begins the step later */
} fsdp__step_reason;

/* Waits for the calls of one name, "all_gather model.layers.3", over all ranks. */
typedef struct fsdp__step_wait {
    char *name;        /* borrowed from the trace */
    const char *group; /* of the calls, borrowed; NULL: it is not known */
    int kind;          /* fsdp_collective */
    int64_t ns, for_others;
} fsdp__step_wait;

/* Kernels of one name, over all ranks. */
typedef struct fsdp__step_kernel {
    const char *name; /* borrowed */
    int kind;         /* fsdp__kernel_class */
    int64_t calls, ns;
    double flops; /* 0: not known, as of what is bound by memory */
} fsdp__step_kernel;

/* Says what calls of one kind and group move in the step. */
typedef struct fsdp__step_traffic {
    const char *group; /* borrowed */
    int ranks, kind;
    int members;          /* ranks that made such calls, in any group of that name and size */
    int64_t calls, bytes; /* of one of them, on the average; bytes of the larger side */
    int64_t sent;         /* the same, to the other members; -1: not known, as of a broadcast */
} fsdp__step_traffic;

/* Bytes live after a moment, of a rank's device, by kind. */
typedef struct fsdp__step_memory {
    int64_t at;
    int64_t bytes[FSDP_MEMORY_KINDS], all;
} fsdp__step_memory;

/* The memory of the device of a rank that holds most. */
typedef struct fsdp__step_device {
    int rank; /* -1: no memory was counted */
    fsdp__step_memory *moments;
    int64_t count, capacity, peak;
} fsdp__step_device;

/* When something of a unit is so on rank 0. */
typedef enum fsdp__unit_state {
    FSDP__UNIT_WHOLE,
    FSDP__UNIT_FORWARD,
    FSDP__UNIT_BACKWARD,
    FSDP__UNIT_REDUCED /* its reduction goes on */
} fsdp__unit_state;
typedef struct fsdp__step_unit {
    const char *name; /* borrowed */
    int64_t begin, end;
    fsdp__unit_state state;
} fsdp__step_unit;

/* Describes a step in which the others waited for one rank much longer than in the step that is shown. */
typedef struct fsdp__odd_step {
    int64_t number, ns;
    int rank;
    int64_t waited; /* for it, by the others, on the average */
    fsdp__step_reason why;
    int64_t its, usual; /* as of the step that is shown */
    const char *at;     /* the call that was waited for longest; borrowed from the trace. NULL: none */
} fsdp__odd_step;

enum {
    FSDP__ODD_STEPS = 4,
    FSDP__MATRIX = 16, /* ranks, or machines, or sets of machines, on a side */
    FSDP__STEP_WAITS = 64,
    FSDP__STEP_KERNELS = 64
};

typedef struct fsdp__traced_step {
    fsdp__trace trace; /* for its names and ranks; its spans are gone */
    int64_t number;    /* of the step; 0: the trace has none, and all of it is shown */
    int64_t traced;    /* how many steps it has */
    int64_t ns;        /* from the first rank's beginning to the last one's end */
    fsdp__step_rank *ranks;
    int slowest; /* for whom the others wait most; -1: for nobody in particular */
    fsdp__step_reason why;
    int64_t its, usual;                  /* time of the reason, and its median on the others */
    fsdp__odd_step odd[FSDP__ODD_STEPS]; /* the longest first */
    int odd_count;
    fsdp__step_wait waits[FSDP__STEP_WAITS]; /* the longest first */
    int wait_count;
    fsdp__step_kernel kernels[FSDP__STEP_KERNELS]; /* those that take most time first */
    int kernel_count;
    fsdp__step_unit *units; /* by beginning */
    int64_t unit_count, unit_capacity;
    fsdp__step_traffic *traffic;
    int64_t traffic_count, traffic_capacity;
    /* The bytes that each side sends to each other one; a side is matrix_fold ranks, or machines. */
    double matrix[FSDP__MATRIX][FSDP__MATRIX];
    int matrix_sides, matrix_fold;
    bool matrix_of_machines;
    int64_t matrix_left_out;          /* calls whose members or senders are not known */
    fsdp__step_device highest, first; /* memory: of the rank whose memory peaks highest, and of rank 0 */
    double device_bytes;              /* memory of a rank's device; 0: not known */
} fsdp__traced_step;

/* Reads a trace, and keeps of it the step that took as long as most. Release it, also after a failure. */
fsdp_status fsdp__traced_step_read(const char *path, fsdp__traced_step *out);
void fsdp__traced_step_release(fsdp__traced_step *step);
