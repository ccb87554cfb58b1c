/* parallel/parts.h - a mesh of one team, and what a rank of it has of a tensor, held to the whole one. */
#pragma once

#include "fsdp/dist.h"

/* Makes a mesh of all ranks with one dimension, "tp". */
fsdp_mesh *team_mesh(fsdp_context *context);
/* Compares `got`, numbers of this rank's part of `tensor` (its gradient, say), with those of the whole one, which has
 * at most two dimensions. */
void check_part(const char *name, const fsdp_tensor *tensor, const float *got, const float *whole);
/* Compares two numbers as f32 sums of another order may differ. */
void check_alike(const char *name, int64_t at, float got, float wanted);
