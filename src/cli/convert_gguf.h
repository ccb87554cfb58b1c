/* convert_gguf.h - fsdp convert to and from files of llama.cpp. */
#pragma once

#include "fsdp/fsdp.h"

/* Returns whether a path names a GGUF file: one that begins as such, or a file whose name ends so, which must be one.
 */
bool fsdp__is_gguf(const char *path);
/* Writes the model of a Hugging Face folder or checkpoint as the file `to`. `dtype` is a type of tensors, or NULL: that
 * of the weights. */
fsdp_status fsdp__convert_to_gguf(const char *from, const char *to, const char *dtype);
/* Writes the model of a GGUF file as a Hugging Face folder. `dtype` is NULL: that of the file's matrices, and float32
 * for those that are quantised. */
fsdp_status fsdp__convert_from_gguf(const char *from, const char *to, const char *dtype);
