/* train/tuning.h - runs of preference tuning that the reference has done, too: eight pairs in each step. */
#pragma once

#include <jansson.h>

#include "fsdp/train.h"
#include "train/story.h"

enum {
    TUNING_STEPS = 5,
    TUNING_PAIRS = 8
};

typedef struct tuning {
    char *directory;
    const char *name; /* of the reference */
    int world, microbatches;
    const char *key, *value; /* one more; NULL: none */
    int cp, tp;              /* ranks of a sequence, and of a layer; 0: 1 */
    int batch;               /* pairs of a batch of the validations on the same pairs; 0: there are none */

    /* Of the last rank: of each step, and of the validation before it. */
    fsdp_train_report reports[TUNING_STEPS];
    fsdp_train_validation validations[TUNING_STEPS];
} tuning;

/* The path of a file of the reference, which may be kept elsewhere; skips the test where it is not. */
void tuning_find(const char *name, char path[512]);
/* The config of a run; free it with fsdp_train_config_free. */
fsdp_train_config *tuning_config(const tuning *t);
/* The reference's numbers; json_decref them. */
json_t *tuning_reference(const tuning *t);
/* Takes the steps, in a world of its own. */
void tuning_run(tuning *t);
/* Compares a value with the reference's of a step, from 0. */
void tuning_near(const tuning *t, const json_t *file, const char *list, int step, double value, double tolerance);

/* Writes lines of pairs for a story, `text` or, with NULL, 30 of its own, and a tokenizer. */
void tuning_write_pairs(const story *s, const char *text);
/* Has a story prefer these. */
void tuning_prefer(story *s);
