/* config_keep.h - parts of config_keep.c, for its tests, and what it shares with config_write.c. */
#pragma once

#include <jansson.h>

#include "fsdp/models.h"

/* Returns the object whose text fsdp__config_text gives; NULL when out of memory. */
json_t *fsdp__config_object(const fsdp_model_config *config, fsdp_dtype dtype);
/* Changes `text`, a config.json, to that of another model of the same kind. FSDP_UNSUPPORTED if that is not possible.
 * free() `*out`. */
fsdp_status fsdp__config_change(const char *path, const char *text, size_t bytes, const fsdp_model_config *config,
                                fsdp_dtype dtype, char **out);
