/* listing.h - lists what is in a model folder, a file of weights or a checkpoint, and the devices, as text and as
 * JSON. */
#pragma once

#include "fsdp/fsdp.h"

enum {
    FSDP__LISTED_SHAPE = 24 * FSDP_MAX_DIMS /* room for any shape */
};
/* Writes a shape as "[256, 48]", which is also valid JSON. Returns `text`. */
const char *fsdp__listed_shape(const int64_t *shape, int ndim, char text[FSDP__LISTED_SHAPE]);
/* Does it in room that lasts until the end of the block that it stands in. */
#define FSDP__SHAPE(shape, ndim) fsdp__listed_shape((shape), (ndim), (char[FSDP__LISTED_SHAPE]){0})
/* Returns the name of a file without its folder. */
const char *fsdp__shown_file(const char *path);

/* ---- weights_listing.c: `config` is a model's, `adapter` that of peft's folder, or NULL ---- */

void fsdp__list_weights(const char *path, const fsdp_model_config *config, const fsdp_lora_options *adapter,
                        const fsdp_weights *weights);
void fsdp__list_weights_as_json(const char *path, const fsdp_model_config *config, const fsdp_lora_options *adapter,
                                const fsdp_weights *weights);

/* ---- checkpoint_listing.c: `parts`: list every part of every tensor too ---- */

void fsdp__list_checkpoint(const fsdp_checkpoint_reader *reader, bool parts);
void fsdp__list_checkpoint_as_json(const fsdp_checkpoint_reader *reader);

/* ---- device_listing.c: the CPU, and each GPU, or why there is none ---- */

void fsdp__list_devices(fsdp_context *context);
void fsdp__list_devices_as_json(fsdp_context *context);
