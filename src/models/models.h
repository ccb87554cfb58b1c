/* models.h - what the two architectures share: a body that turns tokens into hidden states, and a head over it. */
#ifndef MODELS_MODELS_H
#define MODELS_MODELS_H

#include "fsdp/models.h"
#include "nn/layers.h"

/* Where and what to build. */
typedef struct fsdp__model_plan {
    fsdp_context *context;
    fsdp_device *device;
    const fsdp_model_config *config;
} fsdp__model_plan;

/* The body's parts that the root needs; borrowed from it. */
typedef struct fsdp__model_body {
    fsdp_module *module;   /* tokens (B,T) -> hidden states (B,T,C), normalised */
    fsdp_module *blocks;   /* ModuleList */
    fsdp_layer *embedding; /* its weight (V,C) is the head's when tied */
} fsdp__model_body;

/* The caller owns out->module. */
fsdp_status fsdp__gpt2_body_create(const fsdp__model_plan *plan, fsdp__model_body *out);
fsdp_status fsdp__llama_body_create(const fsdp__model_plan *plan, fsdp__model_body *out);

/* Adds `made` (taken over, also on failure; NULL: the last error) under `name` and stores it in *slot. */
fsdp_status fsdp__add_part(fsdp_module *parent, const char *name, fsdp_module *made, fsdp_module **slot);

/* The struct behind a Linear, Embedding or norm. */
static inline const fsdp_layer *fsdp__layer(const fsdp_module *module)
{
    return (const fsdp_layer *)module;
}

/* Whether somebody acts around the module's calls (who shards it by itself, say): it is called then, where its parent
 * would else compute with its parameters. */
static inline bool fsdp__has_hooks(const fsdp_module *module)
{
    return module->parts->hook_count > 0;
}

/* Llama's rotary frequencies: head_dim / 2 of them, as transformers computes them. */
void fsdp__rope_frequencies(const fsdp_model_config *config, float *out);

#endif
