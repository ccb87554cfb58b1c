/* halves.h - lets f32 shards rest as what is gathered of them, a bf16, and 16 more bits: [Note: split numbers] in
 * device/formulas.h. The halves lie in the memory of the casts (cast.h) and in a region of their own.
 *
 * The first gather after a write splits the group's shards, and gives up their region. An Adam that keeps its moments
 * in f32 steps on the halves. Whoever else asks for the bytes of a shard (a state dict, another optimizer, the caller)
 * gets all shards of the group whole again, to the bit, until the next gather. */
#pragma once

#include "fsdp/device.h"

struct fsdp__param_group;

/* Checks that the shards of a group that is to split them can be: its residence has been chosen. */
fsdp_status fsdp__halves_check(const struct fsdp__param_group *group);
/* Makes the residence serve those who ask for bytes, and steps on halves. Call it when the residence has its writer. */
void fsdp__halves_serve(struct fsdp__param_group *group);
/* Lets the next split of the shards come after `written` (NULL: nothing), which may be an event of another stream. Does
 * nothing if no split is due. [stream of the device] */
fsdp_status fsdp__halves_follow(const struct fsdp__param_group *group, fsdp_event *written);
/* Splits the shards, if they are whole and the group is to do that; what is gathered is current then. [stream of the
 * device] */
fsdp_status fsdp__halves_split(struct fsdp__param_group *group);
/* Makes the shards whole again, if they are split. [stream of the device] */
fsdp_status fsdp__halves_join(struct fsdp__param_group *group);
/* Makes the shards whole for those who hold them longer than the group lives. Without memory for that they have no
 * bytes from now on. */
void fsdp__halves_end(struct fsdp__param_group *group);
