/* train/story.h - a run of a very small model in pieces: what it reports, what it leaves on disk, and how it ends. */
#pragma once

#include "fsdp/train.h"
#include "support/ranks.h"

/* training.global_batch_size of a story whose batches eight ranks can share, too: it is 12 otherwise. */
#define STORY_BATCH_OF_8 "24"

enum {
    STORY_STEPS = 6,
    STORY_RANKS = 8
};

typedef struct story {
    char *directory, *folder, *model; /* of the checkpoints; of the export, which no key names yet */
    fsdp_train_config *config;
    char *away; /* name that the folder of checkpoints gets when the first one is there; NULL: it stays */
    int save_after, end_after; /* steps at whose end the last rank asks for it; 0: none */
    fsdp__fault_kind kind;
    long nth; /* fault of the last rank, armed with the run; 0: none */

    /* Of the piece that was run last. */
    double losses[STORY_STEPS + 1]; /* by step; NaN where there was none */
    int64_t tokens, epoch;          /* at the end of the last step */
    int64_t resumed_step;           /* -1: it began */
    int resumed_ranks;
    int64_t saved[STORY_STEPS + 2]; /* steps of checkpoints, as they came */
    int saved_count;
    int64_t best_step, last_step; /* by validations; taken */
    fsdp_status status;           /* of rank 0; all ranks end well, or none */
    fsdp_status statuses[STORY_RANKS];
    char message[4096]; /* its last error, and the lines that follow it */
    char log[4096];     /* what rank 0 was told */
    bool fired;
} story;

story *story_new(void);
int story_setup(void **state);
/* As fsdp_train_config_set; must succeed. */
void story_set(story *s, const char *key, const char *value);
/* Lets the run soon get worse, each step of which is that of a shorter run, with validations and an export. */
void story_get_worse(story *s);
/* The whole of fsdp_train with the config, on so many ranks. */
void story_run(story *s, int world);
/* The same, which must succeed. */
void story_go(story *s, int world);
/* Runs until the last rank ends it after that step; and goes on from there to the end. */
void story_stop(story *s, int world, int step);
void story_go_on(story *s, int world);
/* Whether <folder>/<name> is there. */
bool story_has(const story *s, const char *name);
/* Writes `to` over the place of step-N's manifest that begins with `from`; it stays one that fits its digest. */
void story_edit_manifest(const story *s, const char *step, const char *from, const char *to);
/* What the export has written. */
char *story_weights(const story *s, size_t *bytes);
void story_check_weights(const story *s, const char *expected, size_t bytes);

/* A digest of all that a run which stands has: model, optimizer state, average of the weights (0: none of it), all
 * whole, and its place in the data. The same on every rank. [collective] */
typedef struct story_state {
    uint64_t model, optimizer, ema;
    int64_t step, window;
    double scale;
} story_state;
story_state story_state_of(fsdp_train_run *run);

/* A run that other ranks go on with: what is left after two steps and a save, and what is found before one more; of
 * rank 0. Both functions are for test_run_ranks. */
typedef struct story_passage {
    story *story;
    story_state left, found;
} story_passage;
void story_leave(fsdp_context *context, void *passage);
void story_find(fsdp_context *context, void *passage);

#define STORY_TEST(name) TEST_OF(name, story_setup, NULL, story *s)
