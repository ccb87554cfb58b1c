/* saved.h - checkpoints of a model folder, as ranks of a run save them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct saved {
    const char *model, *folder;
    int64_t step;
    float factor; /* what is saved of the final norm's weights: other text */
    bool bare;    /* no config.json: as a program's own model */
} saved;

/* <folder>/step-N by `world` ranks: the sections "model" and "others", the value "seed", which is 42, and config.json
 * beside them. */
void saved_make(int world, const saved *s);

/* Writes the checkpoint at `path` (step-N) again, into `folder`, without one of its small files, as if who has saved it
 * had not known of it. */
void saved_without(const char *path, const char *name, const char *folder);
