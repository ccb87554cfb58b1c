/* content_check.h - checks whether something can be saved: names, texts, values of tensors. */
#pragma once

#include "fsdp/checkpoint.h"

/* Checks the content. What only the first rank gives, values and files, is checked if `first` is true. */
fsdp_status fsdp__content_check(const fsdp_checkpoint_content *content, bool first);
