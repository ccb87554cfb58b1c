/* quantities.h - the quantities that a run reports of each step and each validation: one list for all places that they
 * are written to. */
#pragma once

#include <stddef.h>

#include "fsdp/train.h"

typedef enum fsdp__quantity_type {
    FSDP__QUANTITY_INTEGER, /* int64_t */
    FSDP__QUANTITY_BYTES,   /* size_t */
    FSDP__QUANTITY_NUMBER,  /* double */
    FSDP__QUANTITY_BOOL     /* bool */
} fsdp__quantity_type;

/* When a quantity is told. */
typedef enum fsdp__quantity_when {
    FSDP__QUANTITY_ALWAYS,
    FSDP__QUANTITY_NOT_ZERO,       /* 0 means that there is none */
    FSDP__QUANTITY_LEARNED,        /* of a step that is not left out */
    FSDP__QUANTITY_NETWORK,        /* in metrics.jsonl: on several machines; elsewhere always */
    FSDP__QUANTITY_WAITS,          /* in metrics.jsonl: on several machines, or GPUs; elsewhere always */
    FSDP__QUANTITY_MORE,           /* not in metrics.jsonl; elsewhere always */
    FSDP__QUANTITY_PAIRS,          /* of a step: with training.objective: dpo */
    FSDP__QUANTITY_VALIDATED_PAIRS /* the same of a validation */
} fsdp__quantity_when;

typedef struct fsdp__quantity {
    const char *name;  /* "loss" */
    const char *part;  /* what it is of: "parameter shard"; NULL: there is one quantity of this name */
    const char *group; /* what it is shown with: "train", "speed", "memory", "communication" */
    const char *unit;  /* "ms"; "": a plain number */
    const char *help;
    fsdp__quantity_type type;
    size_t offset; /* in the report */
    fsdp__quantity_when when;
} fsdp__quantity;

typedef struct fsdp__quantities {
    const fsdp__quantity *items;
    size_t count;
} fsdp__quantities;

/* List the quantities of fsdp_train_report and of fsdp_train_validation, without the step. */
extern const fsdp__quantities fsdp__step_quantities, fsdp__validation_quantities;

/* Returns the value in a report. */
double fsdp__quantity_value(const fsdp__quantity *quantity, const void *report);
/* Returns whether the report has a value: others are left out. */
bool fsdp__quantity_is_there(const fsdp__quantity *quantity, const void *report);
/* Prints the value: integers with all digits, numbers with nine, a bool as 0 or 1. */
void fsdp__quantity_print(const fsdp__quantity *quantity, const void *report, FILE *out);
