/* mismatch.h - tells how existing tensors differ from the parameters of a model, and what usually causes that. The
 * tensors are those of a folder's files, or of a checkpoint's section. */
#pragma once

#include "base/text.h"
#include "fsdp/models.h"
#include "fsdp/state.h"

typedef struct fsdp__mismatch {
    const char *place;               /* the folder or checkpoint, for messages */
    const fsdp_model_config *config; /* NULL: a program's own model, about which nothing else is known */
    bool by_keys;         /* the config comes from a run's keys (model.n_layers), not from the folder's config.json */
    bool checkpoint;      /* `place` is a checkpoint, not a folder of files */
    int64_t seen, layers; /* number of tensors, and of the layers they belong to */
    fsdp__names missing, unexpected;
    int64_t found, misshapen; /* parameters that exist, and those of another shape */
    char shapes[512];         /* name and both shapes of the first misshapen one */
    const char *file;         /* of the first unexpected tensor */
    const char *kind;         /* what the unexpected names are signs of; NULL: nothing known */
    int64_t rows;             /* rows that the embedding or the head has, if not as many as expected */
    bool other_size;          /* something besides those has another shape, too */
    bool head, bias;          /* what the last missing parameter is */
} fsdp__mismatch;

/* Notes an existing tensor. Call it for each one, before the model is made. */
void fsdp__mismatch_see(fsdp__mismatch *m, const char *name);
/* Makes the config's parameters on the meta device, for at most one layer more than there are tensors of. A config may
 * name any number of layers, and each takes memory. */
fsdp_status fsdp__mismatch_outline(const fsdp__mismatch *m, fsdp_context *context, fsdp_state_dict **out);

void fsdp__mismatch_missing(fsdp__mismatch *m, const char *name);
/* Notes an unexpected tensor. `file` is kept, not copied. */
void fsdp__mismatch_unexpected(fsdp__mismatch *m, const char *name, const char *file);
/* Returns whether a tensor has the shape of its parameter, and notes it if not. */
bool fsdp__mismatch_fits(fsdp__mismatch *m, const fsdp_state_dict_entry *entry, const char *name, int ndim,
                         const int64_t *shape);
/* Returns one error for all that was noted; FSDP_OK if there was nothing, or, with `partial`, no wrong shape. */
fsdp_status fsdp__mismatch_status(fsdp__mismatch *m, bool partial);
