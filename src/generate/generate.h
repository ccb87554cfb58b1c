/* generate.h - the choice of one token, which the layer's files and its tests share. */
#ifndef GENERATE_GENERATE_H
#define GENERATE_GENERATE_H

#include "fsdp/generate.h"

/* A token from `logits`; `draw` in [0, 1) decides. `scratch` holds vocab_size entries. */
typedef struct fsdp__candidate {
    float logit;
    int32_t token;
} fsdp__candidate;
fsdp_status fsdp__sample(const float *logits, int64_t vocab_size, float temperature, int64_t top_k, float draw,
                         fsdp__candidate *scratch, int32_t *out);

#endif
