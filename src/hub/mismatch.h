/* mismatch.h - how tensors that there are differ from the parameters of a model, and what that usually comes from: the
 * tensors of a folder's files, or of a checkpoint's section. */
#ifndef HUB_MISMATCH_H
#define HUB_MISMATCH_H

#include "base/text.h"
#include "fsdp/models.h"
#include "fsdp/state.h"

typedef struct fsdp__mismatch {
    const char *place;               /* the folder or checkpoint, for messages */
    const fsdp_model_config *config; /* NULL: of a program's own model, of which nothing else is known */
    bool by_keys;         /* the config is of a run's keys (model.n_layers), not of the folder's config.json */
    bool checkpoint;      /* and no folder of files */
    int64_t seen, layers; /* tensors that there are, and the layers that they are of */
    fsdp__names missing, unexpected;
    int64_t found, misshapen; /* parameters that there are, and those of another shape */
    char shapes[512];         /* the first of them, and both shapes */
    const char *file;         /* of the first that is not expected */
    const char *kind;         /* what the names of those are signs of; NULL: of nothing that is known */
    int64_t rows;             /* that the embedding or the head has, where it has others */
    bool other_size;          /* something else than those has another shape, too */
    bool head, bias;          /* what is missing last */
} fsdp__mismatch;

/* Each tensor that there is, before the model is made. */
void fsdp__mismatch_see(fsdp__mismatch *m, const char *name);
/* The config's parameters on the meta device, of at most one layer more than there is something of: a config may say
 * any number of them, and each takes memory. */
fsdp_status fsdp__mismatch_outline(const fsdp__mismatch *m, fsdp_context *context, fsdp_state_dict **out);

void fsdp__mismatch_missing(fsdp__mismatch *m, const char *name);
/* `file` is kept. */
void fsdp__mismatch_unexpected(fsdp__mismatch *m, const char *name, const char *file);
/* Whether a tensor has the shape of its parameter; notes it where not. */
bool fsdp__mismatch_fits(fsdp__mismatch *m, const fsdp_state_dict_entry *entry, const char *name, int ndim,
                         const int64_t *shape);
/* One error for all that was noted; FSDP_OK where nothing was, or with `partial` no shape. */
fsdp_status fsdp__mismatch_status(fsdp__mismatch *m, bool partial);

#endif
