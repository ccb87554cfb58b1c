/* comm_schedule.h - when the parameters and gradients of a model travel: which modules are gathered and reduced
 * together (a unit), which units stay whole from their forward to their backward, and how far ahead others are
 * gathered. It changes when bytes travel, and never what is computed. src/plan makes schedules, a file keeps one
 * (docs/plan.md), and a run follows it (parallelism.schedule). */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "base/compiler.h"
#include "fsdp/nn.h"

typedef struct fsdp__comm_unit {
    char **modules; /* dotted names, in the order of the forward */
    int64_t module_count;
    bool stays;                            /* whole from the forward to the backward */
    int64_t forward_ahead, backward_ahead; /* units after it, or before it, to gather ahead; 0: the engine's default */
} fsdp__comm_unit;

typedef struct fsdp__comm_schedule {
    char *model;         /* for people */
    uint64_t parameters; /* fsdp__comm_schedule_parameters of the model that it is for */
    char *strategy;      /* a word of parallelism.strategy */
    int world_size, machines, copies;
    char *prices;         /* what its times are rates of; NULL: none */
    double step, exposed; /* planned seconds of a step, and those of them that communication takes; 0: unknown */
    int64_t peak_bytes;   /* of a rank */
    int64_t reductions;   /* in flight at a time */
    int64_t unit_count;
    fsdp__comm_unit *units; /* in the order of the forward; the root, which has what they leave, is not among them */
} fsdp__comm_schedule;

/* Reads a file, or a text that `name` names in messages. Either may come from anybody. The caller frees it. */
fsdp_status fsdp__comm_schedule_read(const char *path, fsdp__comm_schedule **out);
fsdp_status fsdp__comm_schedule_parse(const char *name, const char *text, size_t bytes, fsdp__comm_schedule **out);
/* Prints what reads back as the same. */
fsdp_status fsdp__comm_schedule_print(const fsdp__comm_schedule *schedule, FILE *out);
/* Returns what is printed as a value; NULL: out of memory. */
json_t *fsdp__comm_schedule_value(const fsdp__comm_schedule *schedule);
/* Hashes what is printed. */
fsdp_status fsdp__comm_schedule_hash(const fsdp__comm_schedule *schedule, uint64_t *out);
void fsdp__comm_schedule_free(fsdp__comm_schedule *schedule); /* NULL is allowed */

/* Hashes the names, shapes and dtypes of a model's parameters, before anything is sharded. */
fsdp_status fsdp__comm_schedule_parameters(fsdp_module *model, uint64_t *out);

FSDP__SCOPED_POINTER(fsdp__comm_schedule, fsdp__comm_schedule_free)
