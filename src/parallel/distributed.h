/* distributed.h - distributed tensors that operations know as whole ones, and changes of their placements. */
#pragma once

#include "dist/dist.h"

/* Writes what a message says of an input: "a (4, 6) tensor with placements (Shard(dim=1),)". */
#define FSDP__GLOBAL_TEXT (FSDP__PLACEMENTS_TEXT + FSDP__SHAPE_TEXT + 64)
const char *fsdp__global_text(const fsdp_tensor *tensor, char text[FSDP__GLOBAL_TEXT]);

/* Gives a part its distribution, and makes it global. */
fsdp_status fsdp__make_global(fsdp_tensor *part, const fsdp_distribution *distribution);
/* Returns the part of a distributed tensor under other placements, of the scope, with a gradient; it has the
 * distribution, and is not global. Returns the tensor itself, or an alias of it, if nothing changes. */
fsdp_tensor *fsdp__redistributed(fsdp_tensor *tensor, const fsdp_placement *placements);
