/* gguf_names.h - where a parameter lies in a file of llama.cpp, and how its rows are ordered there. */
#ifndef HUB_GGUF_NAMES_H
#define HUB_GGUF_NAMES_H

#include "hub/gguf.h"

typedef struct fsdp__gguf_place {
    char name[FSDP__GGUF_NAME_BYTES]; /* in the file */
    bool transposed;                  /* the file has columns as rows */
    int64_t heads; /* whose rows are ordered anew: in each head the file has a row of the first half, then its partner
                    * of the second half, and so on. 0: none */
} fsdp__gguf_place;

/* Returns the file's name of an architecture, or NULL. */
const char *fsdp__gguf_architecture(fsdp_architecture architecture);
/* Returns whether this layer of a SmolLM3 has no rotary positions in llama.cpp. */
static inline bool fsdp__gguf_has_no_rope(int64_t layer)
{
    return layer % 4 == 3;
}
/* Finds the place of a parameter. Returns false if there is none. */
bool fsdp__gguf_place_of(const fsdp_model_config *config, const char *parameter, fsdp__gguf_place *out);
/* Brings elements into the file's order, or back. `shape` is that of the file. */
void fsdp__gguf_reorder(const fsdp__gguf_place *place, const int64_t *shape, int ndim, bool to_file, const float *from,
                        float *to);
/* Computes what llama3's scaling divides the rotary frequencies by: head_dim / 2 of them. */
void fsdp__gguf_rope_factors(const fsdp_model_config *config, float *out);

#endif
