/* gguf_names.h - where a parameter lies in a file of llama.cpp, and how its rows are ordered there. */
#pragma once

#include "hub/gguf.h"

/* Names the tensors of longrope's factors. */
#define FSDP__GGUF_LONG "rope_factors_long.weight"
#define FSDP__GGUF_SHORT "rope_factors_short.weight"

typedef struct fsdp__gguf_place {
    char name[FSDP__GGUF_NAME_BYTES]; /* in the file */
    bool transposed;                  /* the file has columns as rows */
    bool plus_one;                    /* the file has what the norm multiplies by, the parameter that minus 1 */
    int64_t heads; /* whose rows are ordered anew: in each head the file has a row of the first half, then its partner
                    * of the second half, and so on. 0: none */
} fsdp__gguf_place;

/* Holds what llama.cpp knows of an architecture without a key that says it. */
typedef struct fsdp__gguf_family {
    fsdp_architecture architecture;
    const char *name;     /* in the file */
    bool paired;          /* rows of query and key are in another order there */
    int64_t no_rope;      /* of so many layers the last has no rotary positions; 0: all have */
    int64_t period;       /* of so many layers the last is full, the others are local; 0: no layer is local */
    float local_theta;    /* rope_theta of local layers; 0: that of the others */
    bool soft_caps;       /* scores and logits have them */
    bool must_tie;        /* there is no head beside the embeddings */
    int64_t large_layers; /* a model of so many layers scales scores by dim / n_heads instead of head_dim; 0: none */
} fsdp__gguf_family;

/* Returns an architecture's family, or that of a file's name; NULL: there is none. */
const fsdp__gguf_family *fsdp__gguf_family_of(fsdp_architecture architecture);
const fsdp__gguf_family *fsdp__gguf_family_named(const char *wanted);
bool fsdp__gguf_is_gemma(fsdp_architecture architecture);
/* Return what llama.cpp does in this layer, and what its scores are divided by the root of. */
static inline bool fsdp__gguf_has_rope(const fsdp__gguf_family *family, int64_t layer)
{
    return family->no_rope == 0 || (layer + 1) % family->no_rope != 0;
}
static inline bool fsdp__gguf_is_local(const fsdp__gguf_family *family, int64_t layer)
{
    return family->period > 0 && (layer + 1) % family->period != 0;
}
int64_t fsdp__gguf_query_scalar(const fsdp__gguf_family *family, const fsdp_model_config *config);
/* Finds the place of a parameter. Returns false if there is none. */
bool fsdp__gguf_place_of(const fsdp_model_config *config, const char *parameter, fsdp__gguf_place *out);
/* Returns whether elements must be reordered. */
static inline bool fsdp__gguf_is_reordered(const fsdp__gguf_place *place)
{
    return place->transposed || place->heads > 0;
}
/* Adds 1 to all elements, or takes it away, where the file has other values than the parameter. */
void fsdp__gguf_shift(const fsdp__gguf_place *place, bool to_file, int64_t numel, float *values);
/* Brings elements into the file's order, or back. `shape` is that of the file. */
void fsdp__gguf_reorder(const fsdp__gguf_place *place, const int64_t *shape, int ndim, bool to_file, const float *from,
                        float *to);
/* Computes what llama3's scaling divides the rotary frequencies by: head_dim / 2 of them. */
void fsdp__gguf_rope_factors(const fsdp_model_config *config, float *out);
