/* generate.h - the choice of one token, which the layer's files and its tests share. */
#pragma once

#include "fsdp/generate.h"

/* fsdp__sample chooses a token from `logits`, by temperature, top_k and top_p; `draw` in [0, 1) decides. `scratch`
 * holds vocab_size entries. */
typedef struct fsdp__candidate {
    float logit;
    int32_t token;
} fsdp__candidate;
fsdp_status fsdp__sample(const float *logits, int64_t vocab_size, const fsdp_generate_options *options, float draw,
                         fsdp__candidate *scratch, int32_t *out);
