/* by_name.h - ranks of one machine that torchrun has started, or a shell with their variables: nobody has given them
 * memory to share. */
#ifndef LAUNCH_BY_NAME_H
#define LAUNCH_BY_NAME_H

#include "fsdp/context.h"
#include "launch/starter.h"

/* As the join of a transport: rank 0 makes the memory and hands it to the others, under a name that only they make.
 * FSDP_JOIN_TIMEOUT: seconds to wait for each other, 300 where it is not set. [collective] [blocks] */
fsdp_status fsdp__join_by_name(const fsdp__starter *starter, const fsdp_context_options *options, fsdp_context **out);

/* In place of that, by a rank that cannot join: tells those that come within two seconds why. [blocks] */
void fsdp__refuse_by_name(const fsdp__starter *starter, const char *why);

#endif
