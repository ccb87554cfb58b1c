/* content_check.h - whether something can be saved: names, texts, values of tensors. */
#ifndef CHECKPOINT_CONTENT_CHECK_H
#define CHECKPOINT_CONTENT_CHECK_H

#include "fsdp/checkpoint.h"

/* What only the first rank gives, values and files, is looked at where `first` says so. */
fsdp_status fsdp__content_check(const fsdp_checkpoint_content *content, bool first);

#endif
