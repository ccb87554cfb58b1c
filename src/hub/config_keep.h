/* config_keep.h - the parts of config_keep.c, for its tests, and what it shares with config_write.c. */
#ifndef HUB_CONFIG_KEEP_H
#define HUB_CONFIG_KEEP_H

#include <jansson.h>

#include "fsdp/models.h"

/* What fsdp__config_text is the text of; NULL when out of memory. */
json_t *fsdp__config_object(const fsdp_model_config *config, fsdp_dtype dtype);
/* `text`, a config.json, as that of another model of the same kind. FSDP_UNSUPPORTED where that is not possible. free()
 * `*out`. */
fsdp_status fsdp__config_change(const char *path, const char *text, size_t bytes, const fsdp_model_config *config,
                                fsdp_dtype dtype, char **out);

#endif
