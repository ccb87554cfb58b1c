/* options.h - builds options that own their strings. */
#pragma once

#include "adapter/adapter.h"

enum { /* peft's defaults */
    FSDP__LORA_RANK = 8,
    FSDP__LORA_ALPHA = 8
};

/* Returns options that are all zero, for fsdp_lora_options_free; NULL when out of memory. */
fsdp_lora_options *fsdp__lora_options_create(void);
/* Copy strings into the options. NULL stays NULL. */
fsdp_status fsdp__lora_options_text(fsdp_lora_options *options, const char *text, const char **out);
fsdp_status fsdp__lora_options_texts(fsdp_lora_options *options, const char *const *texts, int64_t count,
                                     const char *const **out, int64_t *out_count);
fsdp_status fsdp__lora_options_patterns(fsdp_lora_options *options, const fsdp_lora_pattern *patterns, int64_t count,
                                        const fsdp_lora_pattern **out, int64_t *out_count);
