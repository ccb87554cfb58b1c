/* by_name.h - ranks of one machine that were started by torchrun, or by a shell with torchrun's variables: nobody has
 * given them memory to share. */
#pragma once

#include "fsdp/context.h"
#include "launch/starter.h"

/* Joins, as a transport's join: rank 0 makes the memory and hands it to the others, under a name that only they make.
 * FSDP_JOIN_TIMEOUT is how many seconds they wait for each other, 300 where it is not set. [collective] [blocks] */
fsdp_status fsdp__join_by_name(const fsdp__starter *starter, const fsdp_context_options *options, fsdp_context **out);

/* Tells the ranks that come within two seconds why this rank cannot join. If rank 0 knows it `alone`, it goes on for
 * ten seconds, or for half as long as they would wait if that is less. [blocks] */
void fsdp__refuse_by_name(const fsdp__starter *starter, const char *why, bool alone);
