/* scene.h - states of a few tensors of awkward shapes, cut in one way or another, whose values tell what they are. */
#pragma once

#include "fsdp/checkpoint.h"
#include "support/ranks.h"

typedef enum scene_layout {
    SCENE_ROWS,       /* over dimension 0 */
    SCENE_COLUMNS,    /* over the last dimension */
    SCENE_FLAT,       /* runs of a flat vector */
    SCENE_REPLICATED, /* whole on every rank of a mesh */
    SCENE_PLAIN,      /* whole, and of no mesh */
    SCENE_HYBRID,     /* rows over half of the ranks, each row twice, where their number is even */
    SCENE_DRAWN,      /* any shards, strided ones and segments too, over a mesh of two or three dimensions */
    SCENE_SLICED,     /* over "dp" or "tp" alone, whole along the other */
    SCENE_LAYOUTS
} scene_layout;

enum {
    SCENE_TENSORS = 9
};

/* The same tensors on any number of ranks; values follow from `salt`. Floating ones are of `dtype`, in which all values
 * are exact. `values` false: zeros, to be loaded into. */
typedef struct scene {
    fsdp_mesh *mesh;
    fsdp_state_dict *state;
} scene;

scene scene_create(fsdp_context *context, scene_layout layout, fsdp_dtype dtype, int salt, bool values);
void scene_free(scene *s);
/* Every element that this rank has is the one of `salt`. */
void scene_check(const scene *s, int salt);
/* Name of the index-th tensor. */
const char *scene_name(int index);

/* What goes into a checkpoint: two of them, a few values, files. Stays where it is until it is freed. */
typedef struct scene_content {
    scene model, optimizer;
    fsdp_checkpoint_section sections[2];
    fsdp_checkpoint_value values[3];
    fsdp_checkpoint_content content;
} scene_content;
void scene_content_create(scene_content *out, fsdp_context *context, scene_layout layout, int64_t step, int salt);
void scene_content_free(scene_content *c);

/* Saves "model" with `salt` and "optimizer" with salt + 1 as a step of `folder`, with a few values and a file. */
fsdp_status scene_save(fsdp_checkpoint_saver *saver, fsdp_context *context, scene_layout layout, int64_t step,
                       int salt);
/* The same with a saver of its own. */
void scene_save_to(const char *folder, fsdp_context *context, scene_layout layout, int64_t step, int salt);
/* Loads both sections into a scene of the layout, and checks all. */
void scene_load_check(const char *path, fsdp_context *context, scene_layout layout, fsdp_dtype dtype, int salt);

/* After a save of step 2, with salt 2, that has ended somehow: the newest checkpoint is whole and has the salt of its
 * step. `one_before`: there was a step 1. */
void scene_check_newest(const char *folder, fsdp_context *context, bool one_before);
/* The next save works, and leaves nothing of those before. */
void scene_check_next(const char *folder, fsdp_context *context);

enum {
    SCENE_SAVING_RANKS = 3 /* at most */
};

/* A save of step 2: what is saved, and by whom. */
typedef struct scene_saving {
    int world;
    scene_layout layout;
    bool async;
    bool later; /* step 1 is there, and goes when step 2 is */
} scene_saving;
/* Ends each kind of save at many points; returns the sum of what the sweeps return. `seen` counts points over all of
 * them, for a sweep that tries only some. */
int scene_each_saving(int (*sweep)(const scene_saving *what, int *seen));
